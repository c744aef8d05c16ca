//! Start and end, versions, handles; and what the other parts answer with.
use crate::cuda::put_text;
use crate::cuda::view::forever;
use crate::scenario::{PciAddress, spec::Answers};
use crate::world::{World, uuid_text, world};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

/// nvmlReturn_t.
pub type Code = u32;
/// nvmlDevice_t.
pub type Device = *mut std::ffi::c_void;

pub(super) const UNINITIALIZED: Code = 1;
pub(super) const INVALID_ARGUMENT: Code = 2;
pub(super) const NOT_SUPPORTED: Code = 3;
pub(super) const NOT_FOUND: Code = 6;
pub(super) const INSUFFICIENT_SIZE: Code = 7;
pub(super) const DRIVER_NOT_LOADED: Code = 9;
pub(super) const VERSION_MISMATCH: Code = 25;

const HANDLE_BASE: usize = 0x6e00_0000_0000;
const STRIDE: usize = 0x40;

static STARTED: AtomicU32 = AtomicU32::new(0);

/// Defines exported functions whose bodies answer with a result.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// Pointers must be what NVML's interface asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> $crate::nvml::Code {
            let call = || -> Result<(), $crate::nvml::Code> { $body };
            call().err().unwrap_or(0)
        }
    )*};
}
pub(super) use export;

/// The world, between nvmlInit and nvmlShutdown.
pub(super) fn ready() -> Result<&'static World, Code> {
    if STARTED.load(Ordering::SeqCst) == 0 {
        return Err(UNINITIALIZED);
    }
    world().ok_or(DRIVER_NOT_LOADED)
}

/// GPU of a handle.
pub(super) fn gpu_of(device: Device) -> Result<(&'static World, usize), Code> {
    let world = ready()?;
    let offset = (device as usize)
        .checked_sub(HANDLE_BASE)
        .filter(|o| o % STRIDE == 0)
        .ok_or(INVALID_ARGUMENT)?;
    let gpu = offset / STRIDE;
    if gpu < world.gpus() {
        if !world.nvml_answers(gpu) {
            forever();
        }
        Ok((world, gpu))
    } else {
        Err(INVALID_ARGUMENT)
    }
}

/// Handle of a GPU.
pub(super) fn handle(gpu: usize) -> Device {
    (HANDLE_BASE + gpu * STRIDE) as Device
}

/// Writes through a pointer of the caller.
///
/// # Safety
/// A pointer that is not null must be valid for one `T`.
pub(super) unsafe fn put<T>(p: *mut T, value: T) -> Result<(), Code> {
    if p.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as the caller promises.
    unsafe { p.write_unaligned(value) };
    Ok(())
}

/// Writes text into a buffer of the caller.
///
/// # Safety
/// A pointer that is not null must be valid for `len` bytes.
pub(super) unsafe fn text(p: *mut c_char, len: c_uint, value: &str) -> Result<(), Code> {
    if p.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as the caller promises.
    if unsafe { put_text(p, len as usize, value) } {
        Ok(())
    } else {
        Err(INSUFFICIENT_SIZE)
    }
}

/// Fills an array of the caller whose length is an in-out argument.
///
/// # Safety
/// `count` must be valid, and `out` for `*count` elements unless that is 0.
pub(super) unsafe fn list<T: Copy>(
    count: *mut c_uint,
    out: *mut T,
    values: &[T],
) -> Result<(), Code> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as the caller promises.
    unsafe {
        let room = *count as usize;
        *count = values.len() as c_uint;
        if room < values.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        if values.is_empty() {
            return Ok(());
        }
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len());
    }
    Ok(())
}

fn start() -> Result<(), Code> {
    let world = world().ok_or(DRIVER_NOT_LOADED)?;
    if world.scenario.driver.nvml == Answers::Never {
        forever();
    }
    STARTED.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

export! {
    /// Starts NVML.
    fn nvmlInit_v2() { start() }
    /// Starts NVML; flags change nothing here.
    fn nvmlInitWithFlags(_flags: c_uint) { start() }
    /// Ends what one start began.
    fn nvmlShutdown() {
        STARTED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).map(|_| ()).map_err(|_| UNINITIALIZED)
    }
    /// Version of the kernel driver.
    fn nvmlSystemGetDriverVersion(out: *mut c_char, len: c_uint) {
        // SAFETY: the caller's buffer.
        unsafe { text(out, len, &ready()?.scenario.driver.version) }
    }
    /// Version of NVML.
    fn nvmlSystemGetNVMLVersion(out: *mut c_char, len: c_uint) {
        let driver = &ready()?.scenario.driver;
        // SAFETY: the caller's buffer.
        unsafe { text(out, len, &format!("{}.{}", driver.cuda / 1000, driver.version)) }
    }
    /// CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, ready()?.scenario.driver.cuda) }
    }
    /// CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, ready()?.scenario.driver.cuda) }
    }
    /// State of confidential computing.
    fn nvmlSystemGetConfComputeState(out: *mut nvml_wrapper_sys::bindings::nvmlConfComputeSystemState_t) {
        let on = c_uint::from(ready()?.scenario.host.confidential);
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvml_wrapper_sys::bindings::nvmlConfComputeSystemState_st { environment: if on == 1 { 2 } else { 0 }, ccFeature: on, devToolsMode: 0 }) }
    }
    /// Number of GPUs.
    fn nvmlDeviceGetCount_v2(out: *mut c_uint) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, ready()?.gpus() as c_uint) }
    }
    /// GPU by number.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Device) {
        if index as usize >= ready()?.gpus() { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, handle(index as usize)) }
    }
    /// GPU by PCI address.
    fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, out: *mut Device) {
        let world = ready()?;
        if address.is_null() { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's C string.
        let wanted = unsafe { CStr::from_ptr(address) }.to_str().ok().and_then(PciAddress::parse).ok_or(INVALID_ARGUMENT)?;
        let gpu = world.scenario.gpus.iter().position(|g| PciAddress::parse(&g.at) == Some(wanted)).ok_or(NOT_FOUND)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, handle(gpu)) }
    }
    /// GPU by UUID.
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Device) {
        let world = ready()?;
        if uuid.is_null() { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's C string.
        let wanted = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| INVALID_ARGUMENT)?;
        let gpu = (0..world.gpus()).find(|&g| uuid_text(&world.uuid(g)) == wanted).ok_or(NOT_FOUND)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, handle(gpu)) }
    }
}

/// Sentence of a code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    match code {
        0 => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        VERSION_MISMATCH => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
