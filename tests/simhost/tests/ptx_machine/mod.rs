//! Host memory that the tests' kernels run over: one region at a made-up device address.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::cell::UnsafeCell;
use std::time::Instant;

use simhost::ptx::{Entry, Launch, Memory, Module, Stats, Trap, run};

pub const BASE: u64 = 0x7f00_0000_0000;

pub struct Region {
    bytes: UnsafeCell<Vec<u128>>,
    len: usize,
    started: Instant,
}

// SAFETY: reached through raw pointers only, as device memory is.
unsafe impl Sync for Region {}

impl Region {
    pub fn new(len: usize) -> Region {
        Region {
            bytes: UnsafeCell::new(vec![0; len.div_ceil(16)]),
            len,
            started: Instant::now(),
        }
    }
    pub fn ptr(&self) -> *mut u8 {
        // SAFETY: no reference to the contents lives on.
        unsafe { (*self.bytes.get()).as_mut_ptr().cast() }
    }
    pub fn put<T: Copy>(&self, at: usize, values: &[T]) {
        assert!(at + size_of_val(values) <= self.len);
        // SAFETY: in bounds; no kernel runs.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr().cast(),
                self.ptr().add(at),
                size_of_val(values),
            )
        }
    }
    pub fn get<T: Copy + Default>(&self, at: usize, n: usize) -> Vec<T> {
        let mut v = vec![T::default(); n];
        assert!(at + size_of_val(&v[..]) <= self.len);
        // SAFETY: in bounds; T is a plain number in these tests.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.ptr().add(at),
                v.as_mut_ptr().cast(),
                size_of_val(&v[..]),
            )
        }
        v
    }
}

impl Memory for Region {
    fn span(&self, addr: u64, len: usize, _: bool) -> Option<*mut u8> {
        let at = addr.checked_sub(BASE)?;
        (at + len as u64 <= self.len as u64).then(|| self.ptr().wrapping_add(at as usize))
    }
    fn globaltimer(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// Parameter bytes from values of the parameters' own sizes.
pub fn params(entry: &Entry, values: &[u64]) -> Vec<u8> {
    assert_eq!(entry.params.len(), values.len());
    let mut out = vec![0; entry.param_bytes];
    for (p, v) in entry.params.iter().zip(values) {
        out[p.offset..p.offset + p.size].copy_from_slice(&v.to_le_bytes()[..p.size]);
    }
    out
}

pub fn launch(
    m: &Module,
    name: &str,
    mem: &dyn Memory,
    grid: u32,
    block: u32,
    values: &[u64],
) -> Result<Stats, Trap> {
    let entry = m.entry(name).unwrap();
    let params = params(entry, values);
    run(
        &Launch {
            entry,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            params: &params,
            dynamic_shared: 0,
        },
        mem,
    )
}

pub fn kernels() -> Module {
    Module::parse(include_str!("../ptx/kernels.ptx")).unwrap()
}

/// SplitMix64: inputs that every run sees alike.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
