//! GPUs by position, ordered pairs of them, and tables over pairs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Position of a GPU in its snapshot, in PCI order. A label: the keys of a GPU are its PCI address and UUID.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct GpuIndex(pub u32);

impl GpuIndex {
    /// As an index into a list.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for GpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Source and destination of bytes; direction matters and the two are never equal. Eight GPUs give 56.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct OrderedPair {
    /// Where the bytes start.
    pub source: GpuIndex,
    /// Where the bytes end; this GPU owns the destination memory.
    pub destination: GpuIndex,
}

impl OrderedPair {
    /// The pair, or nothing when both ends are one GPU.
    pub fn new(source: u32, destination: u32) -> Option<Self> {
        (source != destination).then_some(OrderedPair {
            source: GpuIndex(source),
            destination: GpuIndex(destination),
        })
    }

    /// All ordered pairs of `count` GPUs, row by row.
    pub fn all(count: u32) -> impl Iterator<Item = OrderedPair> {
        (0..count).flat_map(move |s| (0..count).filter_map(move |d| OrderedPair::new(s, d)))
    }

    /// The same two GPUs in the other direction.
    pub fn reversed(self) -> Self {
        OrderedPair {
            source: self.destination,
            destination: self.source,
        }
    }

    /// Whether one of the two ends is `gpu`.
    pub fn touches(self, gpu: GpuIndex) -> bool {
        self.source == gpu || self.destination == gpu
    }
}

impl fmt::Display for OrderedPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.source, self.destination)
    }
}

/// A value for each ordered pair. There is no diagonal, and an unmeasured cell is `None`, so nobody can average a hole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairTable<T> {
    count: u32,
    cells: Vec<Option<T>>,
}

impl<T> PairTable<T> {
    /// An empty table over `count` GPUs.
    pub fn new(count: u32) -> Self {
        PairTable {
            count,
            cells: (0..count as usize * count as usize).map(|_| None).collect(),
        }
    }

    /// Number of GPUs.
    pub fn count(&self) -> u32 {
        self.count
    }

    fn slot(&self, pair: OrderedPair) -> Option<usize> {
        let (s, d) = (pair.source.at(), pair.destination.at());
        let count = self.count as usize;
        (s < count && d < count && s != d).then_some(s * count + d)
    }

    /// The cell of `pair`; `None` when unmeasured or out of range.
    pub fn get(&self, pair: OrderedPair) -> Option<&T> {
        self.slot(pair)
            .and_then(|slot| self.cells.get(slot))
            .and_then(Option::as_ref)
    }

    /// The cell of `pair` to change in place.
    pub fn get_mut(&mut self, pair: OrderedPair) -> Option<&mut T> {
        let slot = self.slot(pair)?;
        self.cells.get_mut(slot).and_then(Option::as_mut)
    }

    /// Sets the cell of `pair`; out of range is ignored and answered with `false`.
    pub fn set(&mut self, pair: OrderedPair, value: T) -> bool {
        let Some(slot) = self.slot(pair) else {
            return false;
        };
        let Some(cell) = self.cells.get_mut(slot) else {
            return false;
        };
        *cell = Some(value);
        true
    }

    /// All filled cells, row by row.
    pub fn iter(&self) -> impl Iterator<Item = (OrderedPair, &T)> {
        OrderedPair::all(self.count).filter_map(|pair| self.get(pair).map(|value| (pair, value)))
    }
}
