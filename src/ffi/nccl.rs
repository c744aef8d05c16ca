//! NCCL's entry points as a table, opened at run time from wherever libnccl.so.2 is: nothing is linked, and a host without it
//! loses nothing else. Results are plain numbers, as with the driver's table.
//!
//! Methods are safe to call because communicators are opaque values that only this file makes, and addresses and streams come
//! from the driver's table: memory that is not there faults the GPU context, not this process.

use super::driver::{Address, StreamHandle};
use libloading::Library;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};

/// The name that the dynamic loader knows it by.
pub const SONAME: &str = "libnccl.so.2";

/// An NCCL call that did not answer ncclSuccess.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{api} answered {code} ({name}){}", last.as_deref().map_or(String::new(), |last| format!(": {last}")))]
pub struct NcclError {
    /// The entry point.
    pub api: &'static str,
    /// ncclResult_t as a number.
    pub code: u32,
    /// NCCL's own words for it.
    pub name: String,
    /// What NCCL says happened last, where it says anything.
    pub last: Option<String>,
}

/// Why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not found, or not loadable.
    #[error("{0}")]
    NotLoaded(String),
    /// Some other library, or a very old one.
    #[error("{0} lacks {1}: it is no NCCL 2")]
    Lacks(String, &'static str),
}

/// What makes a group of ranks one communicator, as bytes that travel to the other processes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// A rank's communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommHandle(*mut c_void);
// SAFETY: an opaque value of NCCL's, which allows its use from any thread, one at a time.
unsafe impl Send for CommHandle {}
// SAFETY: as above; nothing is read through it here.
unsafe impl Sync for CommHandle {}

/// ncclDataType_t of the types in use (nccl.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// ncclFloat16
    Float16 = 6,
    /// ncclFloat32
    Float32 = 7,
    /// ncclBfloat16
    Bfloat16 = 9,
}

/// ncclSum (nccl.h).
const SUM: c_int = 0;
/// ncclInProgress (nccl.h): not an error of a communicator that was asked.
const IN_PROGRESS: c_int = 7;

type Code = c_int;

macro_rules! nccl_table {
    (required { $(fn $name:ident($($arg:ty),*) -> $ret:ty;)* } optional { $(fn $oname:ident($($oarg:ty),*) -> $oret:ty;)* }) => {
        #[allow(non_snake_case)]
        struct Table {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $($oname: Option<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }
        impl Table {
            fn load(library: &Library, name: &str) -> Result<Self, OpenError> {
                Ok(Table {
                    $($name: symbol(library, concat!(stringify!($name), "\0"))
                        .ok_or_else(|| OpenError::Lacks(name.to_string(), stringify!($name)))?,)*
                    $($oname: symbol(library, concat!(stringify!($oname), "\0")),)*
                })
            }
        }
    };
}

nccl_table! {
    required {
        fn ncclGetVersion(*mut c_int) -> Code;
        fn ncclGetErrorString(Code) -> *const c_char;
        fn ncclGetUniqueId(*mut UniqueId) -> Code;
        fn ncclCommInitRank(*mut *mut c_void, c_int, UniqueId, c_int) -> Code;
        fn ncclAllReduce(u64, u64, usize, c_int, c_int, *mut c_void, *mut c_void) -> Code;
        fn ncclGroupStart() -> Code;
        fn ncclGroupEnd() -> Code;
        fn ncclCommDestroy(*mut c_void) -> Code;
        fn ncclCommAbort(*mut c_void) -> Code;
        fn ncclCommGetAsyncError(*mut c_void, *mut Code) -> Code;
    }
    optional {
        fn ncclGetLastError(*mut c_void) -> *const c_char;
    }
}

/// A function pointer of type `T` by its NUL-terminated name.
fn symbol<T: Copy>(library: &Library, name: &'static str) -> Option<T> {
    // SAFETY: `T` is a function pointer type written down in `nccl_table!` beside the name, after nccl.h; pointers to device
    // memory are passed as the numbers that they are.
    unsafe { library.get::<T>(name.as_bytes()).ok().map(|found| *found) }
}

/// The opened library.
pub struct Nccl {
    table: Table,
    /// Kept: its functions are in the table.
    _library: Library,
}

impl Nccl {
    /// Opens the library of this path or name.
    pub fn open(path: &OsStr) -> Result<Nccl, OpenError> {
        let name = path.to_string_lossy().into_owned();
        // SAFETY: opening the library runs its constructors, which is what using NCCL means.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            // The loader's own words are the source of the error, if it has any.
            let words = std::error::Error::source(&error).map(ToString::to_string);
            OpenError::NotLoaded(format!(
                "{name}: {}",
                words.unwrap_or_else(|| error.to_string())
            ))
        })?;
        Ok(Nccl {
            table: Table::load(&library, &name)?,
            _library: library,
        })
    }

    fn check(&self, api: &'static str, code: Code) -> Result<(), NcclError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL answers a static string for every number.
        let name = text(unsafe { (self.table.ncclGetErrorString)(code) });
        let last = self.table.ncclGetLastError.and_then(|last| {
            // SAFETY: the communicator may be null; NCCL answers a string of its own, or null.
            text(unsafe { last(std::ptr::null_mut()) })
        });
        Err(NcclError {
            api,
            code: code.unsigned_abs(),
            name: name.unwrap_or_else(|| "unknown to this NCCL".to_string()),
            last: last.filter(|last| !last.is_empty()),
        })
    }

    /// Version as NCCL counts: 22803 is 2.28.3.
    pub fn version(&self) -> Result<u32, NcclError> {
        let mut version = 0;
        // SAFETY: a pointer to a live local.
        let code = unsafe { (self.table.ncclGetVersion)(&mut version) };
        self.check("ncclGetVersion", code)
            .map(|()| version.unsigned_abs())
    }

    /// A new group of ranks.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a pointer to a live local of 128 bytes.
        let code = unsafe { (self.table.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id)
    }

    /// Begins a group of calls: they take effect together at its end.
    pub fn group_start(&self) -> Result<(), NcclError> {
        // SAFETY: takes nothing.
        let code = unsafe { (self.table.ncclGroupStart)() };
        self.check("ncclGroupStart", code)
    }

    /// Ends it.
    pub fn group_end(&self) -> Result<(), NcclError> {
        // SAFETY: takes nothing. Communicators asked for in the group are written to places that the caller keeps alive
        // until here (`comms_init` holds them).
        let code = unsafe { (self.table.ncclGroupEnd)() };
        self.check("ncclGroupEnd", code)
    }

    /// The communicators of some of `world` ranks, made together. `current` makes the rank's device the thread's current one;
    /// an error of it ends the attempt.
    pub fn comms_init<E>(
        &self,
        id: UniqueId,
        world: u32,
        ranks: &[u32],
        mut current: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Result<Vec<CommHandle>, E>, NcclError> {
        let mut made: Vec<*mut c_void> = vec![std::ptr::null_mut(); ranks.len()];
        self.group_start()?;
        let mut asked = Ok(());
        for (at, (rank, place)) in ranks.iter().zip(&mut made).enumerate() {
            if let Err(error) = current(at) {
                // The group must end all the same.
                let _ = self.group_end();
                return Ok(Err(error));
            }
            // SAFETY: `place` lives until after the group's end; the id is 128 bytes by value.
            let code =
                unsafe { (self.table.ncclCommInitRank)(place, world as c_int, id, *rank as c_int) };
            asked = asked.and(self.check("ncclCommInitRank", code));
        }
        let ended = self.group_end();
        asked.and(ended)?;
        Ok(Ok(made.into_iter().map(CommHandle).collect()))
    }

    /// Queues one rank's part of a sum over all ranks of `count` elements. The caller keeps both ranges inside memory of the
    /// rank's device.
    pub fn all_reduce(
        &self,
        (from, to): (Address, Address),
        (count, element): (u64, Element),
        comm: CommHandle,
        stream: StreamHandle,
    ) -> Result<(), NcclError> {
        // SAFETY: handles of ours; device addresses are numbers to this process.
        let code = unsafe {
            (self.table.ncclAllReduce)(
                from.raw(),
                to.raw(),
                count as usize,
                element as c_int,
                SUM,
                comm.0,
                stream.raw(),
            )
        };
        self.check("ncclAllReduce", code)
    }

    /// What has become of a communicator beside the calls: an error that no call answered.
    pub fn async_error(&self, comm: CommHandle) -> Result<(), NcclError> {
        let mut state = 0;
        // SAFETY: a handle made by `comms_init`, and a pointer to a live local.
        let code = unsafe { (self.table.ncclCommGetAsyncError)(comm.0, &mut state) };
        self.check("ncclCommGetAsyncError", code)?;
        match state {
            IN_PROGRESS => Ok(()),
            state => self.check("ncclCommGetAsyncError", state),
        }
    }

    /// Ends a communicator whose work is done; not used after.
    pub fn comm_destroy(&self, comm: CommHandle) -> Result<(), NcclError> {
        // SAFETY: a handle made by `comms_init`, destroyed once by its owner in `gpu`.
        let code = unsafe { (self.table.ncclCommDestroy)(comm.0) };
        self.check("ncclCommDestroy", code)
    }

    /// Ends one whose work may never be done; not used after.
    pub fn comm_abort(&self, comm: CommHandle) -> Result<(), NcclError> {
        // SAFETY: as above.
        let code = unsafe { (self.table.ncclCommAbort)(comm.0) };
        self.check("ncclCommAbort", code)
    }
}

fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that NCCL keeps at least until the next call.
    let text = unsafe { CStr::from_ptr(at) };
    Some(text.to_string_lossy().trim().to_string())
}
