//! Memory: device memory is shared memory without a name, mapped at addresses that look like a device's; one address
//! for each allocation, valid for host code too.
use super::codes::*;
use super::context::Driver;
use super::engine::lock;
use super::pool::Pool;
use super::vmm::Physical;
use crate::MAX_GPUS;
use crate::scenario::Via;
use crate::world::World;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// First address of GPU 0; each GPU has a range of this length.
const DEVICE_BASE: u64 = 0x3000_0000_0000;
const RANGE: u64 = 0x10_0000_0000;
/// Alignment of addresses, as the driver gives it to large allocations.
const ALIGN: u64 = 2 << 20;
/// Memory is accounted in pages of this size.
const PAGE: u64 = 64 << 10;
/// Range of host memory, and the last one, without an end, for cuMemAddressReserve.
const HOST: usize = 2 * MAX_GPUS;
const RESERVED: usize = HOST + 1;

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// cuMemAlloc.
    Device,
    /// cuIpcOpenMemHandle.
    Imported,
    /// cuMemHostAlloc.
    Host,
    /// cuMemHostRegister.
    Registered,
    /// cuMemMap.
    Mapped,
    /// cuMemAllocAsync.
    Pool,
}

/// Which GPUs may read (bit 0) and write (bit 1) memory that states its own access: mappings and pools.
#[derive(Debug, Default)]
pub(crate) struct AccessTable([AtomicU8; MAX_GPUS]);

/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
pub(crate) const READ_WRITE: u8 = 3;

impl AccessTable {
    /// CUmemAccess_flags of a GPU.
    pub(crate) fn of(&self, gpu: usize) -> u8 {
        self.0[gpu].load(Ordering::SeqCst)
    }
    pub(crate) fn set(&self, gpu: usize, flags: u8) {
        self.0[gpu].store(flags, Ordering::SeqCst);
    }
}

/// Where memory came from, beyond cuMemAlloc.
#[derive(Default)]
pub(crate) enum Origin {
    #[default]
    Plain,
    /// A mapping of this physical memory.
    Mapped(Arc<Physical>),
    /// A pool, which lives as long as its memory.
    Pool(Arc<Pool>),
}

/// One allocation. Its mapping goes when the last holder goes, so work in flight never meets a hole.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// GPU that owns the bytes; None for host memory.
    pub(crate) gpu: Option<usize>,
    /// GPU of the context that allocated, opened or registered it.
    pub(crate) context: usize,
    /// Offset in the memory of its GPU.
    pub(crate) physical: u64,
    /// Its own list of who may reach it; None: contexts and peer access decide.
    pub(crate) access: Option<Arc<AccessTable>>,
    pub(crate) origin: Origin,
    /// A cuMemFreeAsync is on its way.
    pub(crate) freed: AtomicBool,
    /// Bytes that go with the value; 0 where somebody else unmaps.
    mapped: usize,
    file: Option<OwnedFd>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the range was mapped by `map` and nothing else unmaps it.
            unsafe { libc::munmap(self.base as *mut libc::c_void, self.mapped) };
        }
    }
}

impl Allocation {
    /// Whether the range lies inside.
    pub(crate) fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && len <= self.size && addr - self.base <= self.size - len
    }
    /// Whether a GPU may use it, as far as the memory itself says. Without a list of its own it says nothing against.
    pub(crate) fn allows(&self, gpu: usize, write: bool) -> bool {
        let needed = if write { READ_WRITE } else { 1 };
        self.access
            .as_ref()
            .is_none_or(|t| t.of(gpu) & needed == needed)
    }
    /// How its bytes came to be reachable, for faults.
    pub(crate) fn via(&self) -> Via {
        match self.kind {
            Kind::Imported => Via::IPC,
            Kind::Mapped => Via::VMM,
            Kind::Pool => Via::POOL,
            Kind::Device | Kind::Host | Kind::Registered => Via::NONE,
        }
    }
    /// Offset in device memory.
    pub(crate) fn physical_at(&self, addr: u64) -> u64 {
        self.physical + (addr - self.base)
    }
}

/// A view of all allocations at one moment, by address.
pub(crate) type Snapshot = Arc<Vec<Arc<Allocation>>>;

/// Finds the allocation that holds a range.
pub(crate) fn find(
    all: &[Arc<Allocation>],
    addr: u64,
    len: u64,
) -> Option<(usize, &Arc<Allocation>)> {
    let i = all.partition_point(|a| a.base <= addr).checked_sub(1)?;
    let allocation = all.get(i)?;
    allocation.holds(addr, len).then_some((i, allocation))
}

/// What cuIpcGetMemHandle puts into its 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ticket {
    magic: u64,
    pid: u32,
    file: i32,
    gpu: u32,
    _reserved: u32,
    size: u64,
    physical: u64,
    inode: u64,
    _rest: [u64; 2],
}
const MAGIC: u64 = 0x7369_6d68_6f73_7431;
const _: () = assert!(size_of::<Ticket>() == 64);

/// All allocations of the process.
pub(crate) struct Registry {
    all: RwLock<Snapshot>,
    next: Vec<AtomicU64>,
    opened: Mutex<Vec<(u64, u64, usize, u32)>>,
    world: &'static World,
}

impl Registry {
    pub(crate) fn new(world: &'static World) -> Self {
        let next = (0..=RESERVED)
            .map(|i| AtomicU64::new(DEVICE_BASE + i as u64 * RANGE))
            .collect();
        Self {
            all: RwLock::default(),
            next,
            opened: Mutex::default(),
            world,
        }
    }

    /// The allocations as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.all.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, f: impl FnOnce(&mut Vec<Arc<Allocation>>)) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = all.as_ref().clone();
        f(&mut list);
        list.sort_by_key(|a| a.base);
        *all = Arc::new(list);
    }

    fn add(&self, allocation: Allocation) -> u64 {
        let base = allocation.base;
        self.change(|all| all.push(Arc::new(allocation)));
        base
    }

    /// Allocation that holds an address.
    pub(crate) fn at(&self, addr: u64) -> Option<Arc<Allocation>> {
        find(&self.snapshot(), addr, 1).map(|(_, a)| Arc::clone(a))
    }

    fn reserve(&self, range: usize, size: u64) -> u64 {
        self.next[range].fetch_add(size.next_multiple_of(ALIGN) + ALIGN, Ordering::SeqCst)
    }

    /// Takes bytes of a GPU; the answer is their offset in its memory.
    pub(crate) fn charge(&self, gpu: usize, size: u64) -> Result<u64, Code> {
        let charge = size.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
        let physical = self.world.used(gpu);
        if charge > self.world.memory().saturating_sub(physical) {
            return Err(OUT_OF_MEMORY);
        }
        let slot = self.world.slot().ok_or(OUT_OF_MEMORY)?;
        slot.used[gpu].fetch_add(charge, Ordering::SeqCst);
        Ok(physical)
    }

    /// cuMemAlloc, or memory of a pool.
    pub(crate) fn allocate(
        &self,
        gpu: usize,
        size: u64,
        pool: Option<Arc<Pool>>,
    ) -> Result<u64, Code> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let physical = self.charge(gpu, size)?;
        let mapped = memory_file(c"simhost", size).and_then(|file| {
            let (base, mapped) = map(&file, size, Some(self.reserve(gpu, size)))?;
            Ok((file, base, mapped))
        });
        let (file, base, mapped) = mapped.inspect_err(|_| uncharge(self.world, gpu, size))?;
        let (kind, access, origin) = match pool {
            None => (Kind::Device, None, Origin::Plain),
            Some(pool) => {
                pool.grown(size);
                let access = Arc::clone(&pool.access);
                (Kind::Pool, Some(access), Origin::Pool(pool))
            }
        };
        Ok(self.add(Allocation {
            base,
            size,
            kind,
            gpu: Some(gpu),
            context: gpu,
            physical,
            access,
            origin,
            freed: AtomicBool::new(false),
            mapped,
            file: Some(file),
        }))
    }

    /// cuMemMap: puts physical memory at an address that is reserved.
    pub(crate) fn map_at(&self, base: u64, size: u64, memory: Arc<Physical>) -> Result<(), Code> {
        let free = |a: &Arc<Allocation>| a.base >= base + size || base >= a.base + a.size;
        if !self.snapshot().iter().all(free) {
            return Err(INVALID_VALUE);
        }
        place(&memory.file, base, size)?;
        self.add(Allocation {
            base,
            size,
            kind: Kind::Mapped,
            gpu: Some(memory.gpu),
            context: memory.gpu,
            physical: memory.physical,
            access: Some(Arc::default()),
            origin: Origin::Mapped(memory),
            freed: AtomicBool::new(false),
            mapped: 0,
            file: None,
        });
        Ok(())
    }

    /// Mappings that make up a range exactly; None if it has holes or cuts one.
    pub(crate) fn mappings(&self, base: u64, size: u64) -> Option<Vec<Arc<Allocation>>> {
        let end = base.checked_add(size)?;
        let inside: Vec<_> = self
            .snapshot()
            .iter()
            .filter(|a| a.base < end && base < a.base + a.size)
            .cloned()
            .collect();
        let mut at = base;
        for a in &inside {
            if a.kind != Kind::Mapped || a.base != at {
                return None;
            }
            at += a.size;
        }
        (at == end && size > 0).then_some(inside)
    }

    /// An address range of its own, with nothing in it.
    pub(crate) fn reserve_range(&self, size: u64, align: u64) -> Result<u64, Code> {
        let at = self
            .reserve(RESERVED, size + align)
            .next_multiple_of(align.max(ALIGN));
        empty(at, size, libc::MAP_FIXED_NOREPLACE)?;
        Ok(at)
    }

    /// cuMemHostAlloc.
    pub(crate) fn allocate_host(&self, context: usize, size: u64) -> Result<u64, Code> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        if size > 1 << 36 {
            return Err(OUT_OF_MEMORY);
        }
        let file = memory_file(c"simhost", size)?;
        let (base, mapped) = map(&file, size, Some(self.reserve(HOST, size)))?;
        Ok(self.add(Allocation {
            base,
            size,
            kind: Kind::Host,
            gpu: None,
            context,
            physical: 0,
            access: None,
            origin: Origin::Plain,
            freed: AtomicBool::new(false),
            mapped,
            file: Some(file),
        }))
    }

    /// cuMemHostRegister.
    pub(crate) fn register(&self, context: usize, base: u64, size: u64) -> Result<(), Code> {
        if base == 0 || size == 0 || base.checked_add(size).is_none() {
            return Err(INVALID_VALUE);
        }
        let overlaps = |a: &Arc<Allocation>| a.base < base + size && base < a.base + a.size;
        if self.snapshot().iter().any(overlaps) {
            return Err(HOST_ALREADY);
        }
        self.add(Allocation {
            base,
            size,
            kind: Kind::Registered,
            gpu: None,
            context,
            physical: 0,
            access: None,
            origin: Origin::Plain,
            freed: AtomicBool::new(false),
            mapped: 0,
            file: None,
        });
        Ok(())
    }

    /// Takes an allocation of one of the kinds out of the list, by its first address.
    pub(crate) fn remove(&self, base: u64, kinds: &[Kind]) -> Option<Arc<Allocation>> {
        let found = self
            .snapshot()
            .iter()
            .find(|a| a.base == base && kinds.contains(&a.kind))
            .cloned()?;
        self.change(|all| all.retain(|a| a.base != base));
        self.uncharge(&found);
        Some(found)
    }

    fn uncharge(&self, allocation: &Allocation) {
        if let (Kind::Device | Kind::Pool, Some(gpu)) = (allocation.kind, allocation.gpu) {
            uncharge(self.world, gpu, allocation.size);
        }
        if let Origin::Pool(pool) = &allocation.origin {
            pool.shrunk(allocation.size);
        }
    }

    /// Everything of a context goes with it.
    pub(crate) fn release_context(&self, gpu: usize) {
        let goes = |a: &Arc<Allocation>| {
            a.context == gpu && matches!(a.kind, Kind::Device | Kind::Imported | Kind::Pool)
        };
        for a in self.snapshot().iter().filter(|a| goes(a)) {
            self.uncharge(a);
        }
        self.change(|all| all.retain(|a| !goes(a)));
        lock(&self.opened).retain(|(_, _, context, _)| *context != gpu);
    }

    /// cuIpcGetMemHandle.
    pub(crate) fn ticket(&self, addr: u64) -> Result<[u8; 64], Code> {
        let a = self
            .at(addr)
            .filter(|a| a.kind == Kind::Device)
            .ok_or(INVALID_VALUE)?;
        let (Some(file), Some(gpu)) = (&a.file, a.gpu) else {
            return Err(INVALID_VALUE);
        };
        let ticket = Ticket {
            magic: MAGIC,
            pid: std::process::id(),
            file: file.as_raw_fd(),
            gpu: gpu as u32,
            _reserved: 0,
            size: a.size,
            physical: a.physical,
            inode: inode(file),
            _rest: [0; 2],
        };
        // SAFETY: plain integers of 64 bytes without padding.
        Ok(unsafe { std::mem::transmute::<Ticket, [u8; 64]>(ticket) })
    }

    /// cuIpcOpenMemHandle. Opening a handle of this process is refused with 201, as the driver does; a handle opened
    /// twice in one context gives the same address and is counted.
    pub(crate) fn open(
        &self,
        driver: &Driver,
        context: usize,
        handle: &[u8; 64],
    ) -> Result<u64, Code> {
        // SAFETY: any bytes are valid integers; alignment is not assumed.
        let t = unsafe { handle.as_ptr().cast::<Ticket>().read_unaligned() };
        let gpu = t.gpu as usize;
        if t.magic != MAGIC || gpu >= self.world.gpus() || t.size == 0 {
            return Err(INVALID_VALUE);
        }
        if t.pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        if gpu != context {
            driver.may_enable(context, gpu, Via::IPC, PEER_UNSUPPORTED)?;
        }
        let mut opened = lock(&self.opened);
        if let Some((_, base, _, count)) = opened
            .iter_mut()
            .find(|(inode, _, c, _)| *inode == t.inode && *c == context)
        {
            *count += 1;
            return Ok(*base);
        }
        let path = format!("/proc/{}/fd/{}", t.pid, t.file);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|_| INVALID_VALUE)?;
        let file = OwnedFd::from(file);
        // The number may have been used again since.
        if inode(&file) != t.inode {
            return Err(INVALID_VALUE);
        }
        let (base, mapped) = map(
            &file,
            t.size,
            Some(self.reserve(crate::MAX_GPUS + gpu, t.size)),
        )?;
        opened.push((t.inode, base, context, 1));
        Ok(self.add(Allocation {
            base,
            size: t.size,
            kind: Kind::Imported,
            gpu: Some(gpu),
            context,
            physical: t.physical,
            access: None,
            origin: Origin::Plain,
            freed: AtomicBool::new(false),
            mapped,
            file: None,
        }))
    }

    /// cuIpcCloseMemHandle.
    pub(crate) fn close(&self, addr: u64) -> Result<(), Code> {
        let mut opened = lock(&self.opened);
        let i = opened
            .iter()
            .position(|(_, base, _, _)| *base == addr)
            .ok_or(INVALID_VALUE)?;
        opened[i].3 -= 1;
        if opened[i].3 == 0 {
            opened.remove(i);
            self.remove(addr, &[Kind::Imported]);
        }
        Ok(())
    }
}

fn inode(file: &OwnedFd) -> u64 {
    // SAFETY: stat is plain integers, for which zeros are valid, and fstat fills it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(file.as_raw_fd(), &raw mut stat) == 0 {
            stat.st_ino
        } else {
            0
        }
    }
}

/// Gives bytes of a GPU back.
pub(crate) fn uncharge(world: &World, gpu: usize, size: u64) {
    if let Some(slot) = world.slot() {
        slot.used[gpu].fetch_sub(size.next_multiple_of(PAGE), Ordering::SeqCst);
    }
}

/// Shared memory without a path; the name shows in /proc only.
pub(crate) fn memory_file(name: &CStr, size: u64) -> Result<OwnedFd, Code> {
    // SAFETY: the name is a valid C string; the descriptor is new and owned by nobody else.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        OwnedFd::from_raw_fd(fd)
    };
    let size = i64::try_from(size).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: a descriptor that this function owns.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    Ok(file)
}

/// Maps at the wanted address, or anywhere if something lies there.
fn map(file: &OwnedFd, size: u64, wanted: Option<u64>) -> Result<(u64, usize), Code> {
    let len = usize::try_from(size).map_err(|_| OUT_OF_MEMORY)?;
    for (address, flag) in [(wanted, libc::MAP_FIXED_NOREPLACE), (None, 0)] {
        let hint = address.unwrap_or(0) as *mut libc::c_void;
        // SAFETY: a new shared mapping that replaces none.
        let p = unsafe {
            libc::mmap(
                hint,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | flag,
                file.as_raw_fd(),
                0,
            )
        };
        if p != libc::MAP_FAILED {
            return Ok((p as u64, len));
        }
    }
    Err(OUT_OF_MEMORY)
}

/// Maps a file over a range that is reserved.
fn place(file: &OwnedFd, base: u64, size: u64) -> Result<(), Code> {
    let len = usize::try_from(size).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the caller has reserved the range (`empty`), so nothing else lies there.
    let p = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    Ok(())
}

/// Makes a range one that nothing can be read from: MAP_FIXED over a mapping of ours, or MAP_FIXED_NOREPLACE anew.
pub(crate) fn empty(base: u64, size: u64, how: libc::c_int) -> Result<(), Code> {
    let len = usize::try_from(size).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: replaces nothing, or only what `place` put there.
    let p = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    Ok(())
}
