//! The kernels of `kernels/integrity.ptx`, loaded into one context. Checks what a kernel cannot: alignment, lengths,
//! argument order. What the kernels do is written beside their source.

use super::{
    context::Context,
    memory::Region,
    stream::{Stream, pointer},
};
use crate::{
    ffi::driver::{Argument, DriverError, FunctionHandle, ModuleHandle, code},
    model::case::UnitCounts,
    words::Key,
};
use sha2::{Digest, Sha256};
use std::{ffi::CString, sync::Arc};

/// The committed PTX, compiled by the driver.
pub const INTEGRITY_PTX: &str = include_str!("../../kernels/integrity.ptx");

/// Lowest compute capability of the PTX.
pub const LOWEST_COMPUTE_CAPABILITY: (u32, u32) = (7, 0);

/// SHA-256 of all embedded PTX, hex.
pub fn sha256() -> String {
    let all = [
        INTEGRITY_PTX,
        super::resident::RESIDENT_PTX,
        super::gate::GATE_PTX,
        super::reduce::REDUCE_PTX,
    ];
    Sha256::digest(all.concat())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Why kernels cannot run on a device, in one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Too old a GPU: copies are verified by the host instead.
    #[error("compute capability {0}.{1} is below 7.0: kernels cannot run on this GPU")]
    TooOld(u32, u32),
    /// The driver's PTX compiler is missing, refuses this PTX or is switched off.
    #[error("{0}")]
    NoJit(String),
    /// Another driver error.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Regions do not start and end as a kernel needs them, or a result has no room.
    #[error("a kernel needs other alignment or more room for its result")]
    Layout,
}

/// Threads of a block; THREADS in the source.
const THREADS: u32 = 256;
/// Blocks per multiprocessor: enough to keep memory busy, few enough to start quickly.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Units that one block takes at a time; TILE in the source.
const TILE: u64 = 1024;
/// What owner and accessor each add to a word of a contest; SHARES in the source.
const SHARES: u64 = 16;

/// Bytes of the result of verify.
pub const MISMATCH_BYTES: u64 = 24;
/// Bytes of the result of classify.
pub const CENSUS_BYTES: u64 = (9 + 9 + 4 + 16 * 4) * 8;

/// What verify counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Units that differ.
    pub wrong: u64,
    /// Lowest and highest of them, counted from the one that holds the region's first byte; meaningless when `wrong` is 0.
    pub first: u64,
    /// See `first`.
    pub last: u64,
}

/// A unit that named its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Unit where it was found, counted from the start of the region.
    pub unit: u64,
    /// Byte offset inside that unit.
    pub skew: u64,
    /// Its packed key.
    pub key: u64,
    /// Its index.
    pub index: u64,
}

/// What classify counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Units of each class.
    pub counts: UnitCounts,
    /// Lowest unit of each class in the order of `UnitCounts`; `None` where there is none.
    pub first: [Option<u64>; 9],
    /// Highest unit that is not equal.
    pub last_wrong: u64,
    /// Smallest and largest displacement in bytes of displaced units (found at minus belongs at).
    pub shift: Option<(i64, i64)>,
    /// Some of the origins named.
    pub origins: Vec<Origin>,
    /// Byte of the first unit at which the region starts, and the region's length in bytes.
    pub extent: (u64, u64),
}

impl Census {
    /// Units that are not as expected.
    pub fn wrong(&self) -> u64 {
        let c = &self.counts;
        let known = c.poison + c.zero + c.ones + c.few_bits + c.displaced + c.stale + c.foreign;
        known + c.unknown
    }

    /// Lowest unit that is not as expected.
    pub fn first_wrong(&self) -> Option<u64> {
        self.first.iter().skip(1).flatten().min().copied()
    }

    /// Where a unit starts and ends in the region, bytes.
    pub fn bytes_of(&self, unit: u64) -> (u64, u64) {
        let (skew, bytes) = self.extent;
        let start = (unit * 16).saturating_sub(skew);
        (start.min(bytes), ((unit + 1) * 16 - skew).min(bytes))
    }
}

/// The module and its kernels in one context.
pub struct Kernels {
    context: Arc<Context>,
    module: ModuleHandle,
    fill: FunctionHandle,
    verify: FunctionHandle,
    classify: FunctionHandle,
    copy_load: FunctionHandle,
    copy_store: FunctionHandle,
    copy_store4: FunctionHandle,
    atomics: FunctionHandle,
    contend: FunctionHandle,
}

impl Kernels {
    /// Lets the driver compile the PTX for `context`. Takes a second on the first load, then the cache answers.
    pub fn load(context: &Arc<Context>) -> Result<Kernels, KernelError> {
        let (major, minor) = context.device().compute_capability;
        if (major, minor) < LOWEST_COMPUTE_CAPABILITY {
            return Err(KernelError::TooOld(major, minor));
        }
        context.bind()?;
        let driver = context.driver();
        let text = CString::new(INTEGRITY_PTX)
            .map_err(|_| KernelError::NoJit("the embedded PTX is damaged".into()))?;
        let module = driver.module_load(&text).map_err(explain)?;
        let function = |name| driver.module_function(module, name);
        Ok(Kernels {
            fill: function(c"peerproof_fill")?,
            verify: function(c"peerproof_verify")?,
            classify: function(c"peerproof_classify")?,
            copy_load: function(c"peerproof_copy_load")?,
            copy_store: function(c"peerproof_copy_store")?,
            copy_store4: function(c"peerproof_copy_store4")?,
            atomics: function(c"peerproof_atomics")?,
            contend: function(c"peerproof_contend")?,
            context: context.clone(),
            module,
        })
    }

    fn grid(&self, bytes: u64, units_per_block: u64) -> u32 {
        let most =
            u64::from(self.context.device().multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR);
        (bytes / 16).div_ceil(units_per_block).clamp(1, most) as u32
    }

    /// Queues the stream of `key` into `to`, whose first byte lies in unit `first`.
    pub fn fill(
        &self,
        stream: &Stream,
        to: Region,
        first: u64,
        key: Key,
    ) -> Result<(), KernelError> {
        let arguments = [
            pointer(to.address()),
            Argument::U64(to.bytes()),
            Argument::U64(first),
            Argument::U64(key.pack()),
        ];
        Ok(stream.launch(self.fill, self.grid(to.bytes(), TILE), THREADS, &arguments)?)
    }

    /// Queues a comparison of `from` with the stream of `key`; `result` takes [`MISMATCH_BYTES`] on the same device.
    pub fn verify(
        &self,
        stream: &Stream,
        from: Region,
        first: u64,
        key: Key,
        result: Region,
    ) -> Result<(), KernelError> {
        aligned(&[result])?;
        prepare(
            stream,
            result,
            MISMATCH_BYTES,
            &[(0, 8, 0), (8, 8, 0xff), (16, 8, 0)],
        )?;
        let arguments = [
            pointer(from.address()),
            Argument::U64(from.bytes()),
            Argument::U64(first),
            Argument::U64(key.pack()),
            pointer(result.address()),
        ];
        Ok(stream.launch(
            self.verify,
            self.grid(from.bytes(), TILE),
            THREADS,
            &arguments,
        )?)
    }

    /// Queues a census of `from`, which starts at a unit, whole units only; `result` takes [`CENSUS_BYTES`] on the same device.
    pub fn classify(
        &self,
        stream: &Stream,
        from: Region,
        first: u64,
        (key, poison): (Key, Key),
        result: Region,
    ) -> Result<(), KernelError> {
        aligned(&[from, result])?;
        // i64 extremes for shift_min and shift_max, byte by byte: 0x7f7f... and 0x8080... are beyond any displacement.
        let steps = [
            (0, CENSUS_BYTES, 0),
            (72, 72, 0xff),
            (152, 8, 0x7f),
            (160, 8, 0x80),
        ];
        prepare(stream, result, CENSUS_BYTES, &steps)?;
        let arguments = [
            pointer(from.address()),
            Argument::U64(from.bytes()),
            Argument::U64(first),
            Argument::U64(key.pack()),
            Argument::U64(poison.pack()),
            Argument::U64(Key::RUN_MASK),
            Argument::U64(Key::TRANSFER_MASK),
            pointer(result.address()),
        ];
        let grid = self.grid(from.bytes(), u64::from(THREADS));
        Ok(stream.launch(self.classify, grid, THREADS, &arguments)?)
    }

    /// Queues a copy whose loads cross the link: `from` belongs to another device.
    pub fn copy_load(&self, stream: &Stream, to: Region, from: Region) -> Result<(), KernelError> {
        self.copy(self.copy_load, stream, (to, from), 16)
    }

    /// Queues a copy whose stores cross the link: `to` belongs to another device.
    pub fn copy_store(&self, stream: &Stream, to: Region, from: Region) -> Result<(), KernelError> {
        self.copy(self.copy_store, stream, (to, from), 16)
    }

    /// The same with stores of 4 bytes.
    pub fn copy_store4(
        &self,
        stream: &Stream,
        to: Region,
        from: Region,
    ) -> Result<(), KernelError> {
        self.copy(self.copy_store4, stream, (to, from), 4)
    }

    /// Queues system-scope atomics that turn the units of `poison` at `to`, another device's memory, into what lies at
    /// `from`; the first byte lies in unit `first`. Both start and end at 4-byte words.
    pub fn atomics(
        &self,
        stream: &Stream,
        (to, from): (Region, Region),
        first: u64,
        poison: Key,
    ) -> Result<(), KernelError> {
        let bytes = same_place(to, from, 16)?;
        if !to.address().raw().is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return Err(KernelError::Layout);
        }
        let arguments = [
            pointer(to.address()),
            pointer(from.address()),
            Argument::U64(bytes),
            Argument::U64(first),
            Argument::U64(poison.pack()),
        ];
        let grid = self.grid(bytes, u64::from(THREADS));
        Ok(stream.launch(self.atomics, grid, THREADS, &arguments)?)
    }

    /// Queues half of a contest for `to`, whole units from `first` on: what this device adds so that the units of `poison`
    /// become those of `key` together with what another device adds at the same time. One of the two is the accessor.
    pub fn contend(
        &self,
        stream: &Stream,
        to: Region,
        first: u64,
        (key, poison): (Key, Key),
        accessor: bool,
    ) -> Result<(), KernelError> {
        aligned(&[to])?;
        if !to.bytes().is_multiple_of(16) {
            return Err(KernelError::Layout);
        }
        let arguments = [
            pointer(to.address()),
            Argument::U64(to.bytes()),
            Argument::U64(first),
            Argument::U64(key.pack()),
            Argument::U64(poison.pack()),
            Argument::U32(u32::from(accessor)),
        ];
        let grid = self.grid(to.bytes() * 2 * SHARES, u64::from(THREADS));
        Ok(stream.launch(self.contend, grid, THREADS, &arguments)?)
    }

    fn copy(
        &self,
        function: FunctionHandle,
        stream: &Stream,
        (to, from): (Region, Region),
        width: u64,
    ) -> Result<(), KernelError> {
        let bytes = same_place(to, from, width)?;
        let arguments = [
            pointer(to.address()),
            pointer(from.address()),
            Argument::U64(bytes),
        ];
        Ok(stream.launch(function, self.grid(bytes, TILE), THREADS, &arguments)?)
    }
}

/// The length of a copy whose ends start at the same byte of a piece of `width` bytes.
fn same_place(to: Region, from: Region, width: u64) -> Result<u64, KernelError> {
    let apart = to.address().raw() ^ from.address().raw();
    match apart.is_multiple_of(width) {
        true => Ok(to.bytes().min(from.bytes())),
        false => Err(KernelError::Layout),
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().module_unload(self.module);
        }
    }
}

/// Sets parts of a result to their starting bytes: (offset, length, byte).
fn prepare(
    stream: &Stream,
    result: Region,
    bytes: u64,
    steps: &[(u64, u64, u8)],
) -> Result<(), KernelError> {
    result.part(0, bytes).ok_or(KernelError::Layout)?;
    for (offset, length, byte) in steps {
        let part = result.part(*offset, *length).ok_or(KernelError::Layout)?;
        stream.set_bytes(part, *byte)?;
    }
    Ok(())
}

pub(super) fn aligned(regions: &[Region]) -> Result<(), KernelError> {
    regions
        .iter()
        .all(|region| region.address().raw().is_multiple_of(16))
        .then_some(())
        .ok_or(KernelError::Layout)
}

pub(super) fn explain(error: DriverError) -> KernelError {
    let meaning = match error.code {
        code::JIT_COMPILER_NOT_FOUND => {
            "the driver's PTX compiler (libnvidia-ptxjitcompiler) is not installed or not mounted into this container"
        }
        code::UNSUPPORTED_PTX_VERSION => {
            "the driver is too old for this program's PTX: R470 or newer is needed"
        }
        code::JIT_COMPILATION_DISABLED => "PTX compilation is switched off (CUDA_DISABLE_PTX_JIT)",
        code::NO_BINARY_FOR_GPU => "the driver cannot compile PTX of compute_70 for this GPU",
        _ => return KernelError::Driver(error),
    };
    KernelError::NoJit(format!("{error}: {meaning}"))
}

/// Reads the result of verify from its bytes.
pub fn read_mismatch(bytes: &[u8]) -> Option<Mismatch> {
    match words_of(bytes).as_slice() {
        [wrong, first, last] => Some(Mismatch {
            wrong: *wrong,
            first: *first,
            last: *last,
        }),
        _ => None,
    }
}

/// Reads the result of classify from its bytes.
pub fn read_census(bytes: &[u8]) -> Option<Census> {
    let words = words_of(bytes);
    let (counts, rest) = words.split_first_chunk::<9>()?;
    let (first, rest) = rest.split_first_chunk::<9>()?;
    let ([last_wrong, shift_min, shift_max, origins], rest) = rest.split_first_chunk::<4>()?;
    let [
        equal,
        poison,
        zero,
        ones,
        few_bits,
        displaced,
        stale,
        foreign,
        unknown,
    ] = *counts;
    Some(Census {
        counts: UnitCounts {
            equal,
            poison,
            zero,
            ones,
            few_bits,
            displaced,
            stale,
            foreign,
            unknown,
        },
        first: first.map(|unit| (unit != u64::MAX).then_some(unit)),
        last_wrong: *last_wrong,
        extent: (0, counts.iter().sum::<u64>() * 16),
        shift: (displaced > 0).then_some((*shift_min as i64, *shift_max as i64)),
        origins: rest
            .as_chunks::<4>()
            .0
            .iter()
            .take((*origins).min(16) as usize)
            .map(|[unit, skew, key, index]| Origin {
                unit: *unit,
                skew: *skew,
                key: *key,
                index: *index,
            })
            .collect(),
    })
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect()
}
