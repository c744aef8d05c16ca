//! Bytes of simulated memory as other threads may be changing them, and how faults change them.

/// Inverts bits of each `every`-th byte, counted from the start of the allocation.
pub(crate) fn flip(data: &mut [u8], offset: u64, mask: u8, every: usize) {
    for (i, b) in data.iter_mut().enumerate() {
        if (offset + i as u64).is_multiple_of(every as u64) {
            *b ^= mask;
        }
    }
}

/// Whether an offset lies in what a partial transfer leaves out.
pub(crate) fn left_out(offset: u64, keep: usize, hole: usize) -> bool {
    offset >= keep as u64 && (hole == 0 || offset < (keep + hole) as u64)
}

/// Reads memory that other threads may be writing.
///
/// # Safety
/// The range must be mapped.
pub(crate) unsafe fn fetch(addr: u64, out: &mut [u8]) {
    match out.len() {
        // Naturally aligned words in one piece, so that flags are never torn.
        // SAFETY: aligned and mapped.
        4 if addr.is_multiple_of(4) => {
            out.copy_from_slice(&unsafe { (addr as *const u32).read_volatile() }.to_ne_bytes())
        }
        // SAFETY: as above.
        8 if addr.is_multiple_of(8) => {
            out.copy_from_slice(&unsafe { (addr as *const u64).read_volatile() }.to_ne_bytes())
        }
        // SAFETY: mapped, and a slice of ours does not overlap it.
        n => unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), n) },
    }
}

/// Writes memory that other threads may be reading.
///
/// # Safety
/// The range must be mapped.
pub(crate) unsafe fn store(addr: u64, data: &[u8]) {
    match *data {
        // SAFETY: aligned and mapped.
        [a, b, c, d] if addr.is_multiple_of(4) => unsafe {
            (addr as *mut u32).write_volatile(u32::from_ne_bytes([a, b, c, d]))
        },
        // SAFETY: as above.
        [a, b, c, d, e, f, g, h] if addr.is_multiple_of(8) => unsafe {
            (addr as *mut u64).write_volatile(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
        },
        // SAFETY: mapped, and a slice of ours does not overlap it.
        _ => unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) },
    }
}

/// Writes a store that was checked when it was taken in; its mapping lives as long as the view.
pub(crate) fn arrive(addr: u64, data: &[u8]) {
    // SAFETY: as said.
    unsafe { store(addr, data) };
}
