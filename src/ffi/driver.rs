//! The CUDA driver's entry points as a table of our own, with results as plain numbers.
//!
//! cudarc gives the library, the handle types and the constants. Its typed results are not used: a code that the chosen
//! CUDA level does not list would be an invalid enum value, which is undefined behaviour (`docs/decisions/0002`).
//! A function that the driver lacks is either an error at load (required) or `None` (optional); nothing panics.
//!
//! Methods are safe to call because device addresses, contexts, streams, events, modules and functions are opaque
//! values that only this file makes; a stale one is answered by the driver with an error code, and an address that is
//! not mapped faults the GPU context, not this process. Host memory appears only as `HostMemory` made here.

pub mod graph;
pub mod vmm;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

/// A driver call that did not answer CUDA_SUCCESS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{api} answered {code} ({name})")]
pub struct DriverError {
    /// The entry point.
    pub api: &'static str,
    /// CUresult as a number; this build need not know it.
    pub code: u32,
    /// The driver's own name for it, or "unknown to this driver".
    pub name: String,
}

/// CUdevice_P2PAttribute numbers. Names and numbers: cuda.h.
pub mod p2p {
    /// CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
    pub const PERFORMANCE_RANK: i32 = 1;
    /// CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    pub const ACCESS: i32 = 2;
    /// CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    pub const NATIVE_ATOMICS: i32 = 3;
    /// CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
    pub const ARRAY_ACCESS: i32 = 4;
    /// CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED, from CUDA 13 on
    pub const ONLY_PARTIAL_ATOMICS: i32 = 5;
}

/// CUresult values that the program decides by. Names and numbers: cuda.h.
pub mod code {
    /// CUDA_ERROR_INVALID_VALUE
    pub const INVALID_VALUE: u32 = 1;
    /// CUDA_ERROR_OUT_OF_MEMORY
    pub const OUT_OF_MEMORY: u32 = 2;
    /// CUDA_ERROR_STUB_LIBRARY
    pub const STUB_LIBRARY: u32 = 34;
    /// CUDA_ERROR_NO_DEVICE
    pub const NO_DEVICE: u32 = 100;
    /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    pub const PEER_ACCESS_UNSUPPORTED: u32 = 217;
    /// CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    pub const JIT_COMPILER_NOT_FOUND: u32 = 221;
    /// CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    pub const UNSUPPORTED_PTX_VERSION: u32 = 222;
    /// CUDA_ERROR_JIT_COMPILATION_DISABLED
    pub const JIT_COMPILATION_DISABLED: u32 = 223;
    /// CUDA_ERROR_NO_BINARY_FOR_GPU
    pub const NO_BINARY_FOR_GPU: u32 = 209;
    /// CUDA_ERROR_NOT_READY
    pub const NOT_READY: u32 = 600;
    /// CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    /// CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
    pub const PEER_ACCESS_NOT_ENABLED: u32 = 705;
    /// CUDA_ERROR_TOO_MANY_PEERS
    pub const TOO_MANY_PEERS: u32 = 711;
    /// CUDA_ERROR_NOT_PERMITTED
    pub const NOT_PERMITTED: u32 = 800;
    /// CUDA_ERROR_NOT_SUPPORTED
    pub const NOT_SUPPORTED: u32 = 801;
    /// CUDA_ERROR_SYSTEM_NOT_READY
    pub const SYSTEM_NOT_READY: u32 = 802;

    /// Whether a context is lost after this answer, by the words of cuda.h ("the context cannot be used", "leaves the process in
    /// an inconsistent state"). All else is a plain no of one call.
    pub fn loses_context(code: u32) -> bool {
        matches!(
            code,
            214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999
        )
    }
}

/// Why the driver cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No libcuda on the loader's path.
    #[error("no CUDA driver library: libcuda.so.1 was not found by the dynamic loader")]
    NotFound,
    /// The driver is older than every supported one (R470).
    #[error("the CUDA driver library lacks {0}; drivers from R470 (CUDA 11.4) on have it")]
    Lacks(&'static str),
}

/// A loaded device address (unified addressing: also of pinned host memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(u64);

impl Address {
    /// `bytes` further on. The caller keeps inside its allocation; leaving it faults the GPU context.
    pub fn plus(self, bytes: u64) -> Self {
        Address(self.0.wrapping_add(bytes))
    }

    /// As a kernel argument.
    pub fn raw(self) -> u64 {
        self.0
    }
}

macro_rules! handle {
    ($($(#[$doc:meta])* $name:ident($raw:ty);)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name($raw);
        // SAFETY: the driver's handles are process-wide values; the driver itself is thread safe.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )* };
}
handle! {
    /// A CUDA context.
    ContextHandle(CUcontext);
    /// A stream.
    StreamHandle(CUstream);
    /// An event.
    EventHandle(CUevent);
    /// A loaded module.
    ModuleHandle(CUmodule);
    /// A kernel of a module.
    FunctionHandle(CUfunction);
    /// A pool of stream-ordered memory.
    PoolHandle(sys::CUmemoryPool);
}

impl StreamHandle {
    /// The default stream of whatever context is current.
    pub const DEFAULT: StreamHandle = StreamHandle(std::ptr::null_mut());

    /// As another library of NVIDIA's takes it.
    pub(super) fn raw(self) -> *mut c_void {
        self.0.cast()
    }
    /// The legacy null stream of whatever context is current (CU_STREAM_LEGACY).
    pub const LEGACY: StreamHandle = StreamHandle(std::ptr::without_provenance_mut(1));
    /// The calling thread's default stream of whatever context is current (CU_STREAM_PER_THREAD).
    pub const PER_THREAD: StreamHandle = StreamHandle(std::ptr::without_provenance_mut(2));
}

/// Pinned host memory made by the driver and mapped for all contexts.
#[derive(Debug)]
pub struct HostMemory {
    pointer: *mut c_void,
    bytes: usize,
}
// SAFETY: plain memory; every access below goes through raw copies under `&self` or `&mut self`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Its address for copies and kernels (unified addressing: the same number).
    pub fn address(&self) -> Address {
        Address(self.pointer as u64)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies out `out.len()` bytes from `offset`; false when out of range. A device may write meanwhile: the bytes are
    /// then any mixture, as with every DMA target.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(end) = offset.checked_add(out.len()) else {
            return false;
        };
        if end > self.bytes {
            return false;
        }
        // SAFETY: the range lies inside the allocation, which lives as long as `self`; `out` is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pointer.cast::<u8>().add(offset),
                out.as_mut_ptr(),
                out.len(),
            );
        }
        true
    }

    /// Copies `data` to `offset`; false when out of range.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let Some(end) = offset.checked_add(data.len()) else {
            return false;
        };
        if end > self.bytes {
            return false;
        }
        // SAFETY: the range lies inside the allocation, and `data` cannot overlap memory of the driver.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.pointer.cast::<u8>().add(offset),
                data.len(),
            );
        }
        true
    }

    /// Stores a 32-bit word so that a running kernel sees it (abort words); false when out of range or unaligned.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        if !offset.is_multiple_of(4) || offset.checked_add(4).is_none_or(|end| end > self.bytes) {
            return false;
        }
        // SAFETY: aligned (the allocation is page aligned) and in range; atomics may be made on shared memory.
        let word = unsafe {
            &*self
                .pointer
                .cast::<u8>()
                .add(offset)
                .cast::<std::sync::atomic::AtomicU32>()
        };
        word.store(value, std::sync::atomic::Ordering::Release);
        true
    }
}

/// An IPC handle of device memory, as bytes that can be sent to another process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

impl std::fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IpcHandle(..)")
    }
}

type Code = c_uint;

macro_rules! driver_table {
    (required { $(fn $name:ident($($arg:ty),*);)* } optional { $(fn $oname:ident($($oarg:ty),*);)* }) => {
        #[allow(non_snake_case)]
        struct Table {
            $($name: unsafe extern "C" fn($($arg),*) -> Code,)*
            $($oname: Option<unsafe extern "C" fn($($oarg),*) -> Code>,)*
        }
        impl Table {
            fn load(library: &'static sys_library::Library) -> Result<Self, LoadError> {
                Ok(Table {
                    $($name: sys_library::symbol(library, concat!(stringify!($name), "\0"))
                        .ok_or(LoadError::Lacks(stringify!($name)))?,)*
                    $($oname: sys_library::symbol(library, concat!(stringify!($oname), "\0")),)*
                })
            }
        }
    };
}

/// Symbol lookup in the library that cudarc found.
mod sys_library {
    use super::sys;
    pub(super) use libloading::Library;

    /// The driver library, or nothing when there is none.
    pub(super) fn open() -> Option<&'static Library> {
        // SAFETY: opening the driver library runs its constructors, which is what using CUDA means.
        unsafe { sys::is_culib_present().then(|| sys::culib()) }
    }

    /// A function pointer of type `T` by its NUL-terminated name.
    pub(super) fn symbol<T: Copy>(library: &'static Library, name: &'static str) -> Option<T> {
        // SAFETY: `T` is a function pointer type written down in `driver_table!` beside the name, after cuda.h.
        unsafe { library.get::<T>(name.as_bytes()).ok().map(|found| *found) }
    }
}

driver_table! {
    required {
        fn cuInit(c_uint);
        fn cuDriverGetVersion(*mut c_int);
        fn cuGetErrorName(c_uint, *mut *const c_char);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGet(*mut CUdevice, c_int);
        fn cuDeviceGetName(*mut c_char, c_int, CUdevice);
        fn cuDeviceGetUuid_v2(*mut [u8; 16], CUdevice);
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        fn cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
        fn cuDeviceTotalMem_v2(*mut usize, CUdevice);
        fn cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        fn cuDeviceGetP2PAttribute(*mut c_int, c_int, CUdevice, CUdevice);
        fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(CUdevice);
        fn cuCtxSetCurrent(CUcontext);
        fn cuCtxEnablePeerAccess(CUcontext, c_uint);
        fn cuCtxDisablePeerAccess(CUcontext);
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemAlloc_v2(*mut CUdeviceptr, usize);
        fn cuMemFree_v2(CUdeviceptr);
        fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        fn cuMemFreeHost(*mut c_void);
        fn cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fn cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        fn cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        fn cuStreamCreate(*mut CUstream, c_uint);
        fn cuStreamDestroy_v2(CUstream);
        fn cuStreamQuery(CUstream);
        fn cuStreamWaitEvent(CUstream, CUevent, c_uint);
        fn cuEventCreate(*mut CUevent, c_uint);
        fn cuEventDestroy_v2(CUevent);
        fn cuEventRecord(CUevent, CUstream);
        fn cuEventQuery(CUevent);
        fn cuModuleLoadData(*mut CUmodule, *const c_void);
        fn cuModuleUnload(CUmodule);
        fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        fn cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
        fn cuIpcGetMemHandle(*mut [u8; 64], CUdeviceptr);
        fn cuIpcCloseMemHandle(CUdeviceptr);
    }
    optional {
        fn cuEventElapsedTime(*mut f32, CUevent, CUevent);
        fn cuEventElapsedTime_v2(*mut f32, CUevent, CUevent);
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        fn cuIpcOpenMemHandle_v2(*mut CUdeviceptr, IpcByValue, c_uint);
        fn cuStreamBeginCapture_v2(CUstream, c_uint);
        fn cuStreamEndCapture(CUstream, *mut sys::CUgraph);
        fn cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong);
        fn cuGraphUpload(sys::CUgraphExec, CUstream);
        fn cuGraphLaunch(sys::CUgraphExec, CUstream);
        fn cuGraphExecDestroy(sys::CUgraphExec);
        fn cuGraphDestroy(sys::CUgraph);
        fn cuMemPoolCreate(*mut sys::CUmemoryPool, *const PoolProperties);
        fn cuMemPoolDestroy(sys::CUmemoryPool);
        fn cuMemPoolSetAccess(sys::CUmemoryPool, *const PoolWish, usize);
        fn cuMemPoolGetAccess(*mut c_uint, sys::CUmemoryPool, *const OnDevice);
        fn cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, sys::CUmemoryPool, CUstream);
        fn cuMemFreeAsync(CUdeviceptr, CUstream);
        fn cuMemGetAllocationGranularity(*mut usize, *const vmm::Properties, c_uint);
        fn cuMemCreate(*mut u64, usize, *const vmm::Properties, c_ulonglong);
        fn cuMemRelease(u64);
        fn cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        fn cuMemAddressFree(CUdeviceptr, usize);
        fn cuMemMap(CUdeviceptr, usize, usize, u64, c_ulonglong);
        fn cuMemUnmap(CUdeviceptr, usize);
        fn cuMemSetAccess(CUdeviceptr, usize, *const vmm::Access, usize);
        fn cuMemExportToShareableHandle(*mut c_void, u64, c_uint, c_ulonglong);
        fn cuMemImportFromShareableHandle(*mut u64, *mut c_void, c_uint);
    }
}

/// CUipcMemHandle is passed by value: a struct of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcByValue([u8; 64]);

/// CUmemLocation of a device.
#[repr(C)]
#[derive(Clone, Copy)]
struct OnDevice {
    /// CU_MEM_LOCATION_TYPE_DEVICE = 1.
    kind: c_int,
    device: c_int,
}

/// CUmemPoolProps: 88 bytes; what newer drivers read behind `location` is zero, which means their defaults.
#[repr(C)]
struct PoolProperties {
    /// CU_MEM_ALLOCATION_TYPE_PINNED = 1.
    kind: c_int,
    /// CU_MEM_HANDLE_TYPE_NONE = 0: not for other processes.
    handles: c_int,
    location: OnDevice,
    rest: [u64; 9],
}

/// CUmemAccessDesc.
#[repr(C)]
struct PoolWish {
    location: OnDevice,
    /// 0 none, 1 read, 3 read and write.
    flags: c_int,
}

/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: c_uint = 3;

/// The loaded and initialised driver.
pub struct Driver {
    table: Table,
    marker: Marker,
}

/// What stands below the driver interface, as its marker symbols tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// No marker: a real driver.
    None,
    /// `peerproof_simulated`: look-alike; wall deadlines are multiplied by the factor it states.
    Simulated {
        /// At least 1.
        deadline_factor: u32,
    },
    /// `peerproof_fault_injected`: a real driver behind an interposer.
    FaultInjected,
}

/// One kernel argument.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    /// 64-bit: an address or a count.
    U64(u64),
    /// 32-bit.
    U32(u32),
}

macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: pointers in the arguments are to live locals or to memory owned by the caller's objects.
        $self.check(stringify!($name), unsafe { ($self.table.$name)($($arg),*) })
    };
}

impl Driver {
    /// Finds, opens and initialises the driver.
    pub fn load() -> Result<Result<Driver, DriverError>, LoadError> {
        let library = sys_library::open().ok_or(LoadError::NotFound)?;
        let factor =
            sys_library::symbol::<unsafe extern "C" fn() -> u32>(library, "peerproof_simulated\0");
        let injected = sys_library::symbol::<unsafe extern "C" fn() -> u32>(
            library,
            "peerproof_fault_injected\0",
        );
        let marker = match (factor, injected) {
            (Some(factor), _) => Marker::Simulated {
                // SAFETY: the marker takes nothing and returns a number.
                deadline_factor: unsafe { factor() }.max(1),
            },
            (None, Some(_)) => Marker::FaultInjected,
            (None, None) => Marker::None,
        };
        let driver = Driver {
            table: Table::load(library)?,
            marker,
        };
        Ok(call!(driver.cuInit(0)).map(|()| driver))
    }

    /// What stands below.
    pub fn marker(&self) -> Marker {
        self.marker
    }

    fn check(&self, api: &'static str, code: Code) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver stores a pointer to a static string, or leaves null and answers an error.
        let named = unsafe { (self.table.cuGetErrorName)(code, &mut text) } == 0 && !text.is_null();
        let name = if named {
            // SAFETY: a NUL-terminated static string of the driver.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        } else {
            "unknown to this driver".to_string()
        };
        Err(DriverError { api, code, name })
    }

    /// CUDA version of the driver: 1000*major + 10*minor.
    pub fn version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        call!(self.cuDriverGetVersion(&mut version)).map(|()| version)
    }

    /// Number of visible devices.
    pub fn device_count(&self) -> Result<i32, DriverError> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&mut count)).map(|()| count)
    }

    /// The device handle of an ordinal.
    pub fn device_handle(&self, ordinal: i32) -> Result<i32, DriverError> {
        let mut device = 0;
        call!(self.cuDeviceGet(&mut device, ordinal)).map(|()| device)
    }

    /// Product name.
    pub fn device_name(&self, device: i32) -> Result<String, DriverError> {
        let mut text = [0u8; 256];
        call!(self.cuDeviceGetName(text.as_mut_ptr().cast(), 255, device))
            .map(|()| until_nul(&text))
    }

    /// PCI address as the driver words it.
    pub fn device_pci(&self, device: i32) -> Result<String, DriverError> {
        let mut text = [0u8; 64];
        call!(self.cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 63, device))
            .map(|()| until_nul(&text))
    }

    /// UUID bytes.
    pub fn device_uuid(&self, device: i32) -> Result<[u8; 16], DriverError> {
        let mut uuid = [0u8; 16];
        call!(self.cuDeviceGetUuid_v2(&mut uuid, device)).map(|()| uuid)
    }

    /// A device attribute by its CUdevice_attribute number.
    pub fn device_attribute(&self, device: i32, attribute: i32) -> Result<i32, DriverError> {
        let mut value = 0;
        call!(self.cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value)
    }

    /// Total memory in bytes.
    pub fn device_memory(&self, device: i32) -> Result<u64, DriverError> {
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&mut bytes, device)).map(|()| bytes as u64)
    }

    /// Whether `device` may access `peer`, as advertised.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool, DriverError> {
        let mut can = 0;
        call!(self.cuDeviceCanAccessPeer(&mut can, device, peer)).map(|()| can != 0)
    }

    /// A P2P attribute by its CUdevice_P2PAttribute number (`p2p`).
    pub fn p2p_attribute(
        &self,
        attribute: i32,
        source: i32,
        destination: i32,
    ) -> Result<i32, DriverError> {
        let mut value = 0;
        call!(self.cuDeviceGetP2PAttribute(&mut value, attribute, source, destination))
            .map(|()| value)
    }

    /// Retains the device's primary context.
    pub fn context_retain(&self, device: i32) -> Result<ContextHandle, DriverError> {
        let mut context = std::ptr::null_mut();
        call!(self.cuDevicePrimaryCtxRetain(&mut context, device)).map(|()| ContextHandle(context))
    }

    /// Releases it.
    pub fn context_release(&self, device: i32) -> Result<(), DriverError> {
        call!(self.cuDevicePrimaryCtxRelease_v2(device))
    }

    /// Makes `context` the calling thread's current one.
    pub fn context_bind(&self, context: ContextHandle) -> Result<(), DriverError> {
        call!(self.cuCtxSetCurrent(context.0))
    }

    /// Lets the current context access memory of `peer`'s.
    pub fn peer_enable(&self, peer: ContextHandle) -> Result<(), DriverError> {
        call!(self.cuCtxEnablePeerAccess(peer.0, 0))
    }

    /// Takes that back.
    pub fn peer_disable(&self, peer: ContextHandle) -> Result<(), DriverError> {
        call!(self.cuCtxDisablePeerAccess(peer.0))
    }

    /// Free and total device memory of the current context, bytes.
    pub fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        let (mut free, mut total) = (0, 0);
        call!(self.cuMemGetInfo_v2(&mut free, &mut total)).map(|()| (free as u64, total as u64))
    }

    /// Allocates device memory in the current context (cuMemAlloc: covered by peer access and exportable by IPC).
    pub fn memory_alloc(&self, bytes: u64) -> Result<Address, DriverError> {
        let mut pointer = 0;
        call!(self.cuMemAlloc_v2(&mut pointer, bytes as usize)).map(|()| Address(pointer))
    }

    /// Frees it.
    pub fn memory_free(&self, address: Address) -> Result<(), DriverError> {
        call!(self.cuMemFree_v2(address.0))
    }

    /// Allocates pinned host memory, portable (all contexts) and mapped.
    pub fn host_alloc(&self, bytes: usize) -> Result<HostMemory, DriverError> {
        let mut pointer = std::ptr::null_mut();
        // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
        call!(self.cuMemHostAlloc(&mut pointer, bytes, 3)).map(|()| HostMemory { pointer, bytes })
    }

    /// Frees it.
    pub fn host_free(&self, memory: &mut HostMemory) -> Result<(), DriverError> {
        let pointer = std::mem::replace(&mut memory.pointer, std::ptr::null_mut());
        memory.bytes = 0;
        if pointer.is_null() {
            return Ok(());
        }
        call!(self.cuMemFreeHost(pointer))
    }

    /// Queues a copy between any two addresses; the driver infers the direction.
    pub fn copy(
        &self,
        to: Address,
        from: Address,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        call!(self.cuMemcpyAsync(to.0, from.0, bytes as usize, stream.0))
    }

    /// Queues a copy between contexts; direct if peer access is enabled, else staged through the host.
    pub fn copy_peer(
        &self,
        to: (Address, ContextHandle),
        from: (Address, ContextHandle),
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        call!(self.cuMemcpyPeerAsync(to.0.0, to.1.0, from.0.0, from.1.0, bytes as usize, stream.0))
    }

    /// Queues a byte fill.
    pub fn set_bytes(
        &self,
        to: Address,
        value: u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        call!(self.cuMemsetD8Async(to.0, value, bytes as usize, stream.0))
    }

    /// A non-blocking stream of the current context: the legacy null stream would serialise directions.
    pub fn stream_create(&self) -> Result<StreamHandle, DriverError> {
        let mut stream = std::ptr::null_mut();
        call!(self.cuStreamCreate(&mut stream, 1)).map(|()| StreamHandle(stream))
    }

    /// Destroys it.
    pub fn stream_destroy(&self, stream: StreamHandle) -> Result<(), DriverError> {
        call!(self.cuStreamDestroy_v2(stream.0))
    }

    /// Whether all queued work is done.
    pub fn stream_done(&self, stream: StreamHandle) -> Result<bool, DriverError> {
        done(call!(self.cuStreamQuery(stream.0)))
    }

    /// Makes later work of `stream` wait for `event`.
    pub fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        call!(self.cuStreamWaitEvent(stream.0, event.0, 0))
    }

    /// An event with timing, of the current context.
    pub fn event_create(&self) -> Result<EventHandle, DriverError> {
        let mut event = std::ptr::null_mut();
        call!(self.cuEventCreate(&mut event, 0)).map(|()| EventHandle(event))
    }

    /// Destroys it.
    pub fn event_destroy(&self, event: EventHandle) -> Result<(), DriverError> {
        call!(self.cuEventDestroy_v2(event.0))
    }

    /// Records it in `stream`.
    pub fn event_record(
        &self,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        call!(self.cuEventRecord(event.0, stream.0))
    }

    /// Whether it has passed.
    pub fn event_done(&self, event: EventHandle) -> Result<bool, DriverError> {
        done(call!(self.cuEventQuery(event.0)))
    }

    /// Milliseconds between two passed events.
    pub fn event_elapsed_ms(
        &self,
        start: EventHandle,
        end: EventHandle,
    ) -> Result<f32, DriverError> {
        let mut ms = 0.0;
        let Some(elapsed) = self
            .table
            .cuEventElapsedTime_v2
            .or(self.table.cuEventElapsedTime)
        else {
            return Err(self.lacks("cuEventElapsedTime"));
        };
        // SAFETY: two event handles and a pointer to a live local.
        let code = unsafe { elapsed(&mut ms, start.0, end.0) };
        self.check("cuEventElapsedTime", code).map(|()| ms)
    }

    /// Loads PTX text into the current context; the driver compiles it.
    pub fn module_load(&self, ptx: &CStr) -> Result<ModuleHandle, DriverError> {
        let mut module = std::ptr::null_mut();
        call!(self.cuModuleLoadData(&mut module, ptx.as_ptr().cast()))
            .map(|()| ModuleHandle(module))
    }

    /// Unloads it.
    pub fn module_unload(&self, module: ModuleHandle) -> Result<(), DriverError> {
        call!(self.cuModuleUnload(module.0))
    }

    /// A kernel by name.
    pub fn module_function(
        &self,
        module: ModuleHandle,
        name: &CStr,
    ) -> Result<FunctionHandle, DriverError> {
        let mut function = std::ptr::null_mut();
        call!(self.cuModuleGetFunction(&mut function, module.0, name.as_ptr()))
            .map(|()| FunctionHandle(function))
    }

    /// Blocks of `threads` threads that fit one multiprocessor at once.
    pub fn occupancy(&self, function: FunctionHandle, threads: u32) -> Result<i32, DriverError> {
        let Some(occupancy) = self.table.cuOccupancyMaxActiveBlocksPerMultiprocessor else {
            return Err(self.lacks("cuOccupancyMaxActiveBlocksPerMultiprocessor"));
        };
        let mut blocks = 0;
        // SAFETY: a function handle and a pointer to a live local.
        let code = unsafe { occupancy(&mut blocks, function.0, threads as c_int, 0) };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)
            .map(|()| blocks)
    }

    /// Queues a kernel: `grid` blocks of `threads` threads. The arguments must match the kernel's parameters in number
    /// and width; `gpu::kernels` is the only caller and a test compares it with the PTX.
    pub fn launch(
        &self,
        function: FunctionHandle,
        grid: u32,
        threads: u32,
        arguments: &[Argument],
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::U64(value) => *value,
                // Little endian: the driver reads the low four bytes.
                Argument::U32(value) => u64::from(*value),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = values
            .iter_mut()
            .map(|v| std::ptr::from_mut(v).cast())
            .collect();
        call!(self.cuLaunchKernel(
            function.0,
            grid,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream.0,
            pointers.as_mut_ptr(),
            std::ptr::null_mut()
        ))
    }

    /// A handle by which another process can open device memory.
    pub fn ipc_export(&self, address: Address) -> Result<IpcHandle, DriverError> {
        let mut bytes = [0u8; 64];
        call!(self.cuIpcGetMemHandle(&mut bytes, address.0)).map(|()| IpcHandle(bytes))
    }

    /// Opens memory of another process in the current context, enabling peer access lazily.
    pub fn ipc_open(&self, handle: IpcHandle) -> Result<Address, DriverError> {
        let Some(open) = self.table.cuIpcOpenMemHandle_v2 else {
            return Err(self.lacks("cuIpcOpenMemHandle_v2"));
        };
        let mut pointer = 0;
        // SAFETY: the handle is 64 bytes by value; CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1.
        let code = unsafe { open(&mut pointer, IpcByValue(handle.0), 1) };
        self.check("cuIpcOpenMemHandle_v2", code)
            .map(|()| Address(pointer))
    }

    /// Closes memory opened by [`Driver::ipc_open`].
    pub fn ipc_close(&self, address: Address) -> Result<(), DriverError> {
        call!(self.cuIpcCloseMemHandle(address.0))
    }

    /// Makes a pool of stream-ordered memory on `device`, for this process only.
    pub fn pool_create(&self, device: i32) -> Result<PoolHandle, DriverError> {
        let api = "cuMemPoolCreate";
        let create = self.table.cuMemPoolCreate.ok_or_else(|| self.lacks(api))?;
        let properties = PoolProperties {
            kind: 1,
            handles: 0,
            location: OnDevice { kind: 1, device },
            rest: [0; 9],
        };
        let mut pool = std::ptr::null_mut();
        // SAFETY: pointers to live locals of the layout of cuda.h.
        let code = unsafe { create(&mut pool, &properties) };
        self.check(api, code).map(|()| PoolHandle(pool))
    }

    /// Destroys it.
    pub fn pool_destroy(&self, pool: PoolHandle) -> Result<(), DriverError> {
        let api = "cuMemPoolDestroy";
        let destroy = self.table.cuMemPoolDestroy.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a handle made by `pool_create`.
        let code = unsafe { destroy(pool.0) };
        self.check(api, code)
    }

    /// Lets another device read and write the pool's memory, that which exists and that to come.
    pub fn pool_grant(&self, pool: PoolHandle, device: i32) -> Result<(), DriverError> {
        let api = "cuMemPoolSetAccess";
        let set = self
            .table
            .cuMemPoolSetAccess
            .ok_or_else(|| self.lacks(api))?;
        let wish = PoolWish {
            location: OnDevice { kind: 1, device },
            flags: READ_WRITE as c_int,
        };
        // SAFETY: a handle made by `pool_create`, and one live description.
        let code = unsafe { set(pool.0, &wish, 1) };
        self.check(api, code)
    }

    /// Whether a device may read and write the pool's memory (true) or may do neither (false); `None` for anything else.
    pub fn pool_access(&self, pool: PoolHandle, device: i32) -> Result<Option<bool>, DriverError> {
        let api = "cuMemPoolGetAccess";
        let get = self
            .table
            .cuMemPoolGetAccess
            .ok_or_else(|| self.lacks(api))?;
        let (mut flags, location) = (0, OnDevice { kind: 1, device });
        // SAFETY: a handle made by `pool_create`, and pointers to live locals.
        let code = unsafe { get(&mut flags, pool.0, &location) };
        self.check(api, code).map(|()| match flags {
            0 => Some(false),
            READ_WRITE => Some(true),
            _ => None,
        })
    }

    /// Takes memory from a pool, in the order of `stream`.
    pub fn pool_alloc(
        &self,
        pool: PoolHandle,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Address, DriverError> {
        let api = "cuMemAllocFromPoolAsync";
        let alloc = self.table.cuMemAllocFromPoolAsync;
        let alloc = alloc.ok_or_else(|| self.lacks(api))?;
        let mut pointer = 0;
        // SAFETY: handles of ours, and a pointer to a live local.
        let code = unsafe { alloc(&mut pointer, bytes as usize, pool.0, stream.0) };
        self.check(api, code).map(|()| Address(pointer))
    }

    /// Gives it back, in the order of `stream`.
    pub fn pool_free(&self, address: Address, stream: StreamHandle) -> Result<(), DriverError> {
        let api = "cuMemFreeAsync";
        let free = self.table.cuMemFreeAsync.ok_or_else(|| self.lacks(api))?;
        // SAFETY: an address and a stream of ours.
        let code = unsafe { free(address.0, stream.0) };
        self.check(api, code)
    }

    fn lacks(&self, api: &'static str) -> DriverError {
        DriverError {
            api,
            code: code::NOT_SUPPORTED,
            name: "this driver lacks the function".to_string(),
        }
    }
}

/// NOT_READY is an answer, not an error.
fn done(answer: Result<(), DriverError>) -> Result<bool, DriverError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code == code::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).into_owned()
}
