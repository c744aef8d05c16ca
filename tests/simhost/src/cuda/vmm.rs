//! Virtual memory management: physical memory with handles that travel as file descriptors, and address ranges that it
//! is mapped into. The codes of refusals are those that a real driver (580, two H200) was seen to give.
use super::codes::*;
use super::context::Driver;
use super::engine::lock;
use super::memory::{empty, memory_file, uncharge};
use crate::world::World;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

/// What cuMemGetAllocationGranularity answers, minimum and recommended.
pub(crate) const GRANULARITY: u64 = 2 << 20;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_HANDLE_TYPE_FABRIC.
pub(crate) const POSIX_FD: u32 = 1;
pub(crate) const FABRIC: u32 = 8;
const NAME: &str = "simhost-vmm";

/// Memory of cuMemCreate, in this process or another. It is given back when no handle and no mapping is left.
pub(crate) struct Physical {
    pub(crate) file: OwnedFd,
    pub(crate) size: u64,
    /// GPU that owns the bytes.
    pub(crate) gpu: usize,
    /// Offset in its memory.
    pub(crate) physical: u64,
    /// Handle types asked for at creation.
    pub(crate) types: u32,
    /// This process has created it, and pays for it.
    charged: Option<&'static World>,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(world) = self.charged {
            uncharge(world, self.gpu, self.size);
        }
    }
}

impl Physical {
    /// cuMemCreate, its arguments already judged.
    pub(crate) fn create(driver: &Driver, gpu: usize, size: u64, types: u32) -> Result<Self, Code> {
        let physical = driver.memory.charge(gpu, size)?;
        // Owner and place travel in the name, which every process that holds the descriptor can read.
        let file = CString::new(format!("{NAME}:{gpu}:{physical}"))
            .map_err(|_| UNKNOWN)
            .and_then(|name| memory_file(&name, size))
            .inspect_err(|_| uncharge(driver.world, gpu, size))?;
        Ok(Self {
            file,
            size,
            gpu,
            physical,
            types,
            charged: Some(driver.world),
        })
    }

    /// A descriptor that the caller owns.
    pub(crate) fn export(&self) -> Result<RawFd, Code> {
        duplicate(self.file.as_raw_fd()).map(std::os::fd::IntoRawFd::into_raw_fd)
    }

    /// What a descriptor of this or another process holds; the descriptor stays the caller's.
    pub(crate) fn import(driver: &Driver, fd: RawFd) -> Result<Self, Code> {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| UNKNOWN)?;
        let link = link.to_string_lossy();
        let name = link
            .strip_prefix("/memfd:")
            .and_then(|n| n.split(' ').next());
        let mut words = name.unwrap_or_default().split(':');
        if words.next() != Some(NAME) {
            return Err(UNKNOWN);
        }
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
        let (gpu, physical) = number().zip(number()).ok_or(UNKNOWN)?;
        let gpu = usize::try_from(gpu)
            .ok()
            .filter(|&g| g < driver.world.gpus())
            .ok_or(UNKNOWN)?;
        let file = duplicate(fd)?;
        let size = std::fs::File::from(file.try_clone().map_err(|_| UNKNOWN)?)
            .metadata()
            .map_err(|_| UNKNOWN)?
            .len();
        Ok(Self {
            file,
            size,
            gpu,
            physical,
            types: POSIX_FD,
            charged: None,
        })
    }
}

fn duplicate(fd: RawFd) -> Result<OwnedFd, Code> {
    // SAFETY: a plain call; the new descriptor is owned by nobody else.
    unsafe {
        match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) {
            -1 => Err(UNKNOWN),
            new => Ok(OwnedFd::from_raw_fd(new)),
        }
    }
}

/// Address ranges of cuMemAddressReserve.
#[derive(Default)]
pub(crate) struct Ranges(Mutex<Vec<(u64, u64)>>);

impl Ranges {
    /// Reserves; sizes are whole granules, alignments powers of two.
    pub(crate) fn reserve(&self, driver: &Driver, size: u64, align: u64) -> Result<u64, Code> {
        if size == 0
            || !size.is_multiple_of(GRANULARITY)
            || (align != 0 && !align.is_power_of_two())
        {
            return Err(INVALID_VALUE);
        }
        if size > 1 << 44 || align > 1 << 40 {
            return Err(OUT_OF_MEMORY);
        }
        let base = driver.memory.reserve_range(size, align)?;
        lock(&self.0).push((base, size));
        Ok(base)
    }

    fn hold(&self, base: u64, size: u64) -> bool {
        let inside = |&(b, s): &(u64, u64)| base >= b && size <= s && base - b <= s - size;
        lock(&self.0).iter().any(inside)
    }

    /// Gives a whole range back, once nothing is mapped in it.
    pub(crate) fn free(&self, driver: &Driver, base: u64, size: u64) -> Result<(), Code> {
        let mut ranges = lock(&self.0);
        let i = ranges
            .iter()
            .position(|r| *r == (base, size))
            .ok_or(INVALID_VALUE)?;
        let used = |a: &Arc<super::memory::Allocation>| a.base >= base && a.base - base < size;
        if driver.memory.snapshot().iter().any(used) {
            return Err(INVALID_VALUE);
        }
        ranges.remove(i);
        // SAFETY: a range of ours, with nothing in it.
        unsafe { libc::munmap(base as *mut libc::c_void, size as usize) };
        Ok(())
    }

    /// cuMemMap.
    pub(crate) fn map(
        &self,
        driver: &Driver,
        base: u64,
        size: u64,
        offset: u64,
        memory: Arc<Physical>,
    ) -> Result<(), Code> {
        let whole = |n: u64| n.is_multiple_of(GRANULARITY);
        if size == 0 || !whole(base) || !whole(size) || !self.hold(base, size) {
            return Err(INVALID_VALUE);
        }
        if offset != 0 || size > memory.size {
            return Err(NOT_SUPPORTED);
        }
        driver.memory.map_at(base, size, memory)
    }

    /// cuMemUnmap: of whole mappings, after all work that may use them.
    pub(crate) fn unmap(&self, driver: &Driver, base: u64, size: u64) -> Result<(), Code> {
        let mappings = driver.memory.mappings(base, size).ok_or(INVALID_VALUE)?;
        for gpu in 0..driver.world.gpus() {
            driver.drain(gpu);
        }
        for a in &mappings {
            driver.memory.remove(a.base, &[super::memory::Kind::Mapped]);
        }
        empty(base, size, libc::MAP_FIXED)
    }
}
