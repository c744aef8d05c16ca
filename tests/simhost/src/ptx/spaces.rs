//! Where generic addresses lead, and the storage of module variables.
//!
//! Knows the interpreter's own windows at the top of the address space. The rest of the address space is the caller's.

use std::cell::UnsafeCell;

/// Global addresses of the caller must stay below this; from here up are the interpreter's own windows.
pub const WINDOWS: u64 = 0xfff0_0000_0000_0000;
pub(super) const SHARED: u64 = 0xfff1_0000_0000_0000;
pub(super) const LOCAL: u64 = 0xfff2_0000_0000_0000;
pub(super) const DATA: u64 = 0xfff3_0000_0000_0000;

#[inline(always)]
pub(super) fn is_shared(a: u64) -> bool {
    a >> 48 == SHARED >> 48
}

#[inline(always)]
pub(super) fn is_local(a: u64) -> bool {
    a >> 48 == LOCAL >> 48
}

/// Variables of a module: memory that kernels on several host threads share as they share global memory.
pub(super) struct ModuleData {
    words: UnsafeCell<Box<[u128]>>,
    len: usize,
}

// SAFETY: the storage is reached only through raw pointers, as device memory is: by atomics where a kernel says so, and
// with the races that the kernel itself has otherwise. The box itself is never replaced.
unsafe impl Sync for ModuleData {}

impl ModuleData {
    pub(super) fn new(image: &[u8]) -> ModuleData {
        let mut words = vec![0u128; image.len().div_ceil(16)].into_boxed_slice();
        for (w, chunk) in words.iter_mut().zip(image.chunks(16)) {
            let mut b = [0; 16];
            b[..chunk.len()].copy_from_slice(chunk);
            *w = u128::from_le_bytes(b);
        }
        ModuleData {
            words: UnsafeCell::new(words),
            len: image.len(),
        }
    }

    pub(super) fn host(&self, at: usize) -> *mut u8 {
        // SAFETY: only the data pointer of the box is read; no reference to its contents is made.
        unsafe {
            (*self.words.get())
                .as_mut_ptr()
                .cast::<u8>()
                .wrapping_add(at)
        }
    }

    /// The host address of a window range, if all of it is inside the variables.
    pub(super) fn span(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let at = addr.checked_sub(DATA)?;
        (at.checked_add(len as u64)? <= self.len as u64).then(|| self.host(at as usize))
    }
}
