//! A set of GPUs that work together: an island, or all that were chosen.

use super::pair::{GpuIndex, OrderedPair};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{borrow::Cow, fmt};

/// GPUs of one host by position, at least two, positions below 64. Written as an ascending list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u64);

impl Group {
    /// Highest number of GPUs, and the first position that a group cannot name.
    pub const MOST: u32 = 64;

    /// The set of these positions; `None` when one is named twice or is too high, or with fewer than two.
    pub fn new(gpus: impl IntoIterator<Item = u32>) -> Option<Group> {
        let mut bits = 0u64;
        for gpu in gpus {
            let bit = 1u64.checked_shl(gpu).filter(|bit| bits & bit == 0)?;
            bits |= bit;
        }
        (bits.count_ones() > 1).then_some(Group(bits))
    }

    /// Its GPUs, ascending.
    pub fn gpus(self) -> impl Iterator<Item = GpuIndex> {
        let held = move |gpu: &u32| self.0 >> gpu & 1 == 1;
        (0..Self::MOST).filter(held).map(GpuIndex)
    }

    /// How many.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether `gpu` is one of them.
    pub fn touches(self, gpu: GpuIndex) -> bool {
        gpu.0 < Self::MOST && self.0 >> gpu.0 & 1 == 1
    }

    /// Whether both ends of `pair` are among them.
    pub fn holds(self, pair: OrderedPair) -> bool {
        self.touches(pair.source) && self.touches(pair.destination)
    }

    /// Whether all of its GPUs are among those of `other`.
    pub fn is_within(self, other: Group) -> bool {
        self.0 & other.0 == self.0
    }

    /// Every ordered pair of its GPUs, row by row.
    pub fn pairs(self) -> impl Iterator<Item = OrderedPair> {
        self.gpus().flat_map(move |source| {
            self.gpus()
                .filter_map(move |destination| OrderedPair::new(source.0, destination.0))
        })
    }
}

impl fmt::Display for Group {
    /// "GPUs 0-3", "GPUs 0-1,4,6-7".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for gpu in self.gpus() {
            match spans.last_mut() {
                Some((_, end)) if *end + 1 == gpu.0 => *end = gpu.0,
                _ => spans.push((gpu.0, gpu.0)),
            }
        }
        f.write_str("GPUs ")?;
        for (at, (start, end)) in spans.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match start == end {
                true => write!(f, "{comma}{start}")?,
                false => write!(f, "{comma}{start}-{end}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.gpus())
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<u32>::deserialize(deserializer)?;
        let named = format!("{list:?}");
        Group::new(list).ok_or_else(|| {
            D::Error::custom(format!(
                "{named} is no group of GPUs: two or more different numbers below {}",
                Self::MOST
            ))
        })
    }
}

impl JsonSchema for Group {
    fn schema_name() -> Cow<'static, str> {
        "Group".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let gpu = generator.subschema_for::<GpuIndex>();
        json_schema!({
            "description": "GPUs of one host by position, ascending.",
            "type": "array",
            "items": gpu,
            "minItems": 2,
            "uniqueItems": true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_written_as_a_list_and_named_by_spans() {
        let group = Group::new([6, 0, 1, 4, 7]).unwrap();
        assert_eq!(serde_json::to_string(&group).unwrap(), "[0,1,4,6,7]");
        assert_eq!(group.to_string(), "GPUs 0-1,4,6-7");
        let read: Group = serde_json::from_str("[7,0,1,4,6]").unwrap();
        assert_eq!(read, group);
        assert_eq!((group.count(), group.pairs().count()), (5, 20));
        let high = Group::new([0, 63]).unwrap();
        assert!(high.touches(GpuIndex(63)) && !high.touches(GpuIndex(64)));
    }

    #[test]
    fn what_is_no_group_is_refused() {
        for gpus in [vec![], vec![3], vec![1, 1, 2], vec![0, 64]] {
            assert_eq!(Group::new(gpus.iter().copied()), None, "{gpus:?}");
            let text = serde_json::to_string(&gpus).unwrap();
            assert!(serde_json::from_str::<Group>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn parts_lie_within_and_hold_their_pairs() {
        let (whole, part) = (Group::new(0..8).unwrap(), Group::new([2, 5]).unwrap());
        assert!(part.is_within(whole) && !whole.is_within(part));
        let pair = OrderedPair::new(5, 2).unwrap();
        assert!(part.holds(pair));
        assert!(!part.holds(OrderedPair::new(5, 3).unwrap()));
        assert!(part.pairs().any(|p| p == pair));
    }
}
