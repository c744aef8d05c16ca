//! Look-alike of NCCL, as much of it as an all-reduce takes: groups of ranks in one process or several, eager or captured, over
//! peers or shared memory as NCCL's rules have it, with NCCL's log.
mod comm;
mod number;
mod transport;

use crate::cuda::codes::Code as DriverCode;
use crate::cuda::context::driver;
use crate::cuda::engine::lock;
use comm::Comm;
use number::Type;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// ncclResult_t.
type Code = c_int;
const SUCCESS: Code = 0;
const UNHANDLED_CUDA: Code = 1;
const SYSTEM: Code = 2;
const INVALID_ARGUMENT: Code = 4;
const INVALID_USAGE: Code = 5;

/// Why a call failed: the number, and what ncclGetLastError then says.
struct Failure(Code, String);

impl From<DriverCode> for Failure {
    fn from(code: DriverCode) -> Self {
        Failure(UNHANDLED_CUDA, format!("Cuda failure {code}"))
    }
}

/// ncclUniqueId.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// Version that it claims: 2.28.3.
const VERSION: c_int = 22803;

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(0x5e00_0000_0000);

thread_local! {
    static DEPTH: RefCell<u32> = const { RefCell::new(0) };
    /// Communicators that the end of the group waits for.
    static JOINING: RefCell<Vec<Arc<Comm>>> = const { RefCell::new(Vec::new()) };
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

fn answer(result: Result<(), Failure>) -> Code {
    match result {
        Ok(()) => SUCCESS,
        Err(Failure(code, says)) => {
            LAST.set(CString::new(says).unwrap_or_default());
            code
        }
    }
}

fn comm(handle: *mut c_void) -> Result<Arc<Comm>, Failure> {
    lock(&COMMS)
        .get(&(handle as usize))
        .cloned()
        .ok_or_else(|| Failure(INVALID_ARGUMENT, "no such communicator".into()))
}

/// Waits for all ranks of the communicators that this thread has asked for.
fn join_all() -> Result<(), Failure> {
    let joining = JOINING.take();
    joining.iter().try_for_each(|comm| comm.wait_for_all())
}

/// # Safety
/// `out` must be valid for an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(out: *mut c_int) -> Code {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(VERSION) };
    SUCCESS
}

/// A sentence for a result.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        _ => c"unknown result code",
    }
    .as_ptr()
}

/// What went wrong last on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// # Safety
/// `out` must be valid for 128 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(out: *mut UniqueId) -> Code {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    let number = NEXT.fetch_add(16, Ordering::SeqCst);
    let mut id = UniqueId([0; 128]);
    let name = format!("nccl-{}-{number:x}", std::process::id());
    id.0[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: as the caller promises.
    unsafe { out.write(id) };
    SUCCESS
}

/// Makes the communicator of one rank on the thread's current device; in a group, its end waits for the other ranks.
///
/// # Safety
/// `out` must be valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    out: *mut *mut c_void,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> Code {
    let make = || -> Result<(), Failure> {
        let gpu = driver()?.current()?.gpu;
        let end = id.0.iter().position(|b| *b == 0).unwrap_or(id.0.len());
        let name = std::str::from_utf8(&id.0[..end]).unwrap_or_default();
        let (Ok(ranks), Ok(rank)) = (usize::try_from(ranks), usize::try_from(rank)) else {
            return Err(Failure(INVALID_ARGUMENT, "ranks below zero".into()));
        };
        if out.is_null() || !name.starts_with("nccl-") || rank >= ranks || ranks > crate::MAX_GPUS {
            return Err(Failure(INVALID_ARGUMENT, "bad rank or id".into()));
        }
        let comm = Arc::new(Comm::join(name, ranks, rank, gpu)?);
        let handle = NEXT.fetch_add(16, Ordering::SeqCst);
        lock(&COMMS).insert(handle, Arc::clone(&comm));
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut c_void) };
        JOINING.with_borrow_mut(|joining| joining.push(comm));
        if DEPTH.with_borrow(|depth| *depth) == 0 {
            return join_all();
        }
        Ok(())
    };
    answer(make())
}

/// # Safety
/// None; the interface has it so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> Code {
    DEPTH.with_borrow_mut(|depth| *depth += 1);
    SUCCESS
}

/// # Safety
/// None; the interface has it so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> Code {
    let open = DEPTH.with_borrow_mut(|depth| {
        *depth = depth.saturating_sub(1);
        *depth
    });
    match open {
        0 => answer(join_all()),
        _ => SUCCESS,
    }
}

/// Sum over all ranks (operation 0) of elements of type 6, 7 or 9.
///
/// # Safety
/// Addresses are device memory; a wrong one is answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    kind: c_int,
    operation: c_int,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Code {
    let queue = || -> Result<(), Failure> {
        let comm = comm(handle)?;
        let kind = Type::of(kind).filter(|_| operation == 0);
        let kind = kind.ok_or_else(|| Failure(INVALID_ARGUMENT, "type or operation".into()))?;
        comm.all_reduce((from, to), count, kind, stream as usize)
    };
    answer(queue())
}

/// # Safety
/// None; an unknown handle is answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Code {
    let gone = comm(handle).map(|_| {
        lock(&COMMS).remove(&(handle as usize));
    });
    answer(gone)
}

/// # Safety
/// None; an unknown handle is answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(handle: *mut c_void) -> Code {
    // SAFETY: as above.
    unsafe { ncclCommDestroy(handle) }
}

/// # Safety
/// `out` must be valid for an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, out: *mut Code) -> Code {
    let ask = || -> Result<(), Failure> {
        let comm = comm(handle)?;
        if out.is_null() {
            return Err(Failure(INVALID_ARGUMENT, "no place for the answer".into()));
        }
        let state = match driver()?.context_of(comm.gpu()).health() {
            Ok(()) => SUCCESS,
            Err(_) => UNHANDLED_CUDA,
        };
        // SAFETY: as the caller promises.
        unsafe { out.write(state) };
        Ok(())
    };
    answer(ask())
}
