//! Ranks in threads of this process over one made-up memory, in which the committed PTX runs. No driver.

use peerproof::{
    gpu::reduce::{EPOCH_BYTES, GivenUp, Kernel, REDUCE_PTX, STATE_BYTES, Shape, read_given_up},
    model::reduction::Dtype,
};
use simhost::ptx::{Launch, Memory, Module, run};
use std::{cell::UnsafeCell, sync::LazyLock, time::Instant};

/// Device address of the memory under the kernels.
const BASE: u64 = 0x7f00_0000_0000;

/// Parsed once.
pub(crate) static MODULE: LazyLock<Module> = LazyLock::new(|| Module::parse(REDUCE_PTX).unwrap());

/// Memory that all ranks reach.
pub(crate) struct Device {
    memory: UnsafeCell<Vec<u128>>,
    begun: Instant,
}

// SAFETY: reached through raw pointers only, as device memory is; ranks keep to their own parts but for what they mean to
// share.
#[allow(unsafe_code)]
unsafe impl Sync for Device {}

#[allow(unsafe_code)]
impl Device {
    pub(crate) fn new(bytes: u64) -> Device {
        Device {
            memory: UnsafeCell::new(vec![0; bytes.div_ceil(16) as usize]),
            begun: Instant::now(),
        }
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: no reference to the contents lives on.
        unsafe { (*self.memory.get()).as_mut_ptr().cast() }
    }

    fn bytes(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.memory.get()).len() as u64 * 16 }
    }

    pub(crate) fn put(&self, at: u64, data: &[u8]) {
        assert!(at + data.len() as u64 <= self.bytes());
        // SAFETY: in bounds.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.base().add(at as usize), data.len());
        }
    }

    pub(crate) fn get(&self, at: u64, bytes: u64) -> Vec<u8> {
        assert!(at + bytes <= self.bytes());
        let mut out = vec![0; bytes as usize];
        // SAFETY: in bounds.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base().add(at as usize),
                out.as_mut_ptr(),
                out.len(),
            );
        }
        out
    }

    /// Launches `name` and waits for its end.
    pub(crate) fn launch(&self, name: &str, (blocks, threads): (u32, u32), values: &[u64]) {
        let entry = MODULE.entry(name).unwrap();
        assert_eq!(entry.params.len(), values.len());
        let mut params = vec![0; entry.param_bytes];
        for (p, value) in entry.params.iter().zip(values) {
            params[p.offset..p.offset + p.size].copy_from_slice(&value.to_le_bytes()[..p.size]);
        }
        let launch = Launch {
            entry,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            params: &params,
            dynamic_shared: 0,
        };
        run(&launch, self).unwrap_or_else(|trap| panic!("{name}: {trap}"));
    }
}

impl Memory for Device {
    fn span(&self, address: u64, bytes: usize, _: bool) -> Option<*mut u8> {
        let at = address.checked_sub(BASE)?;
        (at + bytes as u64 <= self.bytes()).then(|| self.base().wrapping_add(at as usize))
    }

    fn globaltimer(&self) -> u64 {
        1 + self.begun.elapsed().as_nanos() as u64
    }
}

/// As in the source.
pub(crate) fn number(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Fp16 => 0,
        Dtype::Bf16 => 1,
        Dtype::Fp32 => 2,
    }
}

fn entry(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Words => "peerproof_reduce_words",
        Kernel::Push => "peerproof_reduce_push",
        Kernel::Pull => "peerproof_reduce_pull",
        Kernel::TwoShot => "peerproof_reduce_two_shot",
        Kernel::Staged => "peerproof_reduce_staged",
        Kernel::Islands => "peerproof_reduce_islands",
    }
}

/// Ranks that reduce vectors of at most `largest` bytes by one kernel.
pub(crate) struct Ranks {
    pub(crate) device: Device,
    pub(crate) shape: Shape,
    pub(crate) count: u32,
    largest: u64,
    /// Nanoseconds that a wait may take.
    pub(crate) limit: u64,
}

/// Before and after an output: no kernel may touch it.
const GUARD: u64 = 64;
/// Start of the stop words, one for each rank.
const STOP: u64 = 0;
/// Start of the ranks' memory.
const FIRST: u64 = 4096;

impl Ranks {
    pub(crate) fn new(shape: Shape, count: u32, largest: u64) -> Ranks {
        let mut ranks = Ranks {
            device: Device::new(0),
            shape,
            count,
            largest,
            limit: 20_000_000_000,
        };
        ranks.device = Device::new(FIRST + u64::from(count) * ranks.each());
        for rank in 0..count {
            let mailbox = vec![0xff; ranks.mailbox_bytes() as usize];
            ranks.device.put(ranks.at(rank), &mailbox);
            let epochs = [0xff; EPOCH_BYTES as usize];
            ranks
                .device
                .put(ranks.at(rank) + ranks.mailbox_bytes(), &epochs);
        }
        ranks
    }

    fn mailbox_bytes(&self) -> u64 {
        let bytes = self.shape.kernel.mailbox_bytes(self.count, self.largest);
        bytes.next_multiple_of(256)
    }

    /// Of input or output with its guards, wherever in a unit it starts.
    fn vector_bytes(&self) -> u64 {
        (self.largest + 16 + 2 * GUARD).next_multiple_of(256)
    }

    fn each(&self) -> u64 {
        self.mailbox_bytes() + STATE_BYTES + 2 * self.vector_bytes()
    }

    fn at(&self, rank: u32) -> u64 {
        FIRST + u64::from(rank) * self.each()
    }

    /// Where a rank's input (0) or output (1) starts: `skew` bytes after a unit.
    fn vector(&self, rank: u32, which: u64, skew: u64) -> u64 {
        let first = self.at(rank) + self.mailbox_bytes() + STATE_BYTES;
        first + which * self.vector_bytes() + GUARD + skew
    }

    /// One call of one rank: its input goes in, its output comes back. `skew`: where in a unit both start.
    pub(crate) fn call(
        &self,
        rank: u32,
        dtype: Dtype,
        input: &[u8],
        (in_place, skew): (bool, u64),
    ) -> Vec<u8> {
        let device = &self.device;
        let bytes = input.len() as u64;
        assert!(bytes <= self.largest);
        let (from, to) = (
            self.vector(rank, 0, skew),
            self.vector(rank, u64::from(!in_place), skew),
        );
        let guard = [0xa5; GUARD as usize];
        for end in [to - GUARD, to + bytes] {
            device.put(end, &guard);
        }
        if !in_place {
            device.put(to, &vec![0x5a; input.len()]);
        }
        device.put(from, input);
        let mut values = vec![
            BASE + from,
            BASE + to,
            bytes / dtype.bytes(),
            number(dtype),
            u64::from(rank),
            u64::from(self.count),
        ];
        let boxes =
            (0..8).map(|other| BASE + self.at(if other < self.count { other } else { rank }));
        values.extend(boxes);
        values.extend([
            BASE + self.at(rank) + self.mailbox_bytes(),
            BASE + STOP + 256 * u64::from(rank),
            self.room(),
            self.limit,
        ]);
        let grid = (self.shape.blocks, self.shape.threads);
        device.launch(entry(self.shape.kernel), grid, &values);
        assert_eq!(device.get(to - GUARD, GUARD), guard, "before the output");
        assert_eq!(device.get(to + bytes, GUARD), guard, "after the output");
        if !in_place {
            assert_eq!(device.get(from, bytes), input, "the input of rank {rank}");
        }
        device.get(to, bytes)
    }

    /// Bytes of a slot, as the mailbox has them.
    fn room(&self) -> u64 {
        let (count, kernel) = (u64::from(self.count), self.shape.kernel);
        let slots = match kernel {
            Kernel::Pull => 2,
            Kernel::Words | Kernel::Push => 2 * count,
            Kernel::TwoShot | Kernel::Staged => 4 * count,
            Kernel::Islands => 6 * count,
        };
        (kernel.mailbox_bytes(self.count, self.largest) - kernel.mailbox_bytes(self.count, 0))
            / slots
    }

    /// Waits that a rank's blocks gave up.
    pub(crate) fn given_up(&self, rank: u32) -> Vec<GivenUp> {
        let state = self.at(rank) + self.mailbox_bytes();
        read_given_up(
            &self
                .device
                .get(state + EPOCH_BYTES, STATE_BYTES - EPOCH_BYTES),
        )
    }

    /// A rank's epochs: how many calls it made, by each block's count.
    pub(crate) fn epochs(&self, rank: u32) -> Vec<u32> {
        let state = self.at(rank) + self.mailbox_bytes();
        let words = self.device.get(state, EPOCH_BYTES);
        words
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word) as u32)
            .collect()
    }

    /// Sets every rank's epochs, and what a mailbox holds before the first call, to just before `next`.
    pub(crate) fn begin_at(&self, next: u32) {
        let before = next.wrapping_sub(1);
        for rank in 0..self.count {
            let epochs = u64::from(before)
                .to_le_bytes()
                .repeat(EPOCH_BYTES as usize / 8);
            self.device
                .put(self.at(rank) + self.mailbox_bytes(), &epochs);
            let mailbox = before
                .to_le_bytes()
                .repeat(self.mailbox_bytes() as usize / 4);
            self.device.put(self.at(rank), &mailbox);
        }
    }

    /// `body` for every rank, side by side.
    pub(crate) fn side_by_side(&self, body: impl Fn(u32) + Sync) {
        std::thread::scope(|scope| {
            let body = &body;
            let all: Vec<_> = (0..self.count)
                .map(|r| scope.spawn(move || body(r)))
                .collect();
            for one in all {
                one.join().unwrap();
            }
        });
    }
}
