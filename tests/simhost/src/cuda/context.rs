//! The driver's state in this process: contexts, handles, and who is current on a thread.
use super::codes::*;
use super::engine::{Engine, Op, Stream, lock};
use super::graph::{Executable, Graph, Mark};
use super::memory::Registry;
use super::pool::Pool;
use super::stuck::stuck;
use super::view::{die, forever};
use super::vmm::{Physical, Ranges};
use crate::ptx;
use crate::scenario::{Kind, Mechanism, Via};
use crate::world::{World, uuid_text, world};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

const CONTEXT_BASE: usize = 0x5c00_0000_0000;
const LEGACY_STREAM: usize = 1;
const PER_THREAD_STREAM: usize = 2;

/// A primary context.
pub(crate) struct Context {
    /// Physical GPU.
    pub(crate) gpu: usize,
    /// Retain count.
    pub(crate) retained: AtomicU32,
    /// Sticky error.
    pub(crate) poison: Arc<AtomicU32>,
    /// GPUs that it has enabled access to.
    pub(crate) peers: Mutex<BTreeSet<usize>>,
    null: OnceLock<Arc<Stream>>,
    /// The last copy on another context's null stream that had an end here.
    touched: Mutex<Option<Arc<Op>>>,
}

/// An event: the operation that recorded it last.
pub(crate) struct Event {
    pub(crate) timed: bool,
    pub(crate) op: Mutex<Option<Arc<Op>>>,
    /// Recorded last in a stream under capture.
    pub(crate) mark: Mutex<Option<Mark>>,
}

/// A loaded module.
pub(crate) struct Module {
    pub(crate) gpu: usize,
    pub(crate) code: ptx::Module,
}

/// An entry of a module.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
}

/// Handles of one kind. Numbers are never used twice, so a stale handle is known as such.
pub(crate) struct Table<T>(Mutex<BTreeMap<usize, T>>);

static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x5d00_0000_0000);

impl<T: Clone> Table<T> {
    fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
    pub(crate) fn insert(&self, value: T) -> usize {
        let handle = NEXT_HANDLE.fetch_add(16, Ordering::SeqCst);
        lock(&self.0).insert(handle, value);
        handle
    }
    pub(crate) fn get(&self, handle: usize) -> Result<T, Code> {
        lock(&self.0).get(&handle).cloned().ok_or(INVALID_HANDLE)
    }
    pub(crate) fn remove(&self, handle: usize) -> Result<T, Code> {
        lock(&self.0).remove(&handle).ok_or(INVALID_HANDLE)
    }
    pub(crate) fn all(&self) -> Vec<T> {
        lock(&self.0).values().cloned().collect()
    }
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        lock(&self.0).retain(|_, v| keep(v));
    }
}

/// The driver of this process.
pub(crate) struct Driver {
    pub(crate) world: &'static World,
    /// Physical GPU of each CUDA ordinal.
    pub(crate) visible: Vec<usize>,
    contexts: Vec<Context>,
    pub(crate) streams: Table<Arc<Stream>>,
    /// Default streams of threads, one for each context.
    thread_streams: Mutex<HashMap<(ThreadId, usize), Arc<Stream>>>,
    pub(crate) events: Table<Arc<Event>>,
    pub(crate) modules: Table<Arc<Module>>,
    pub(crate) functions: Table<Function>,
    pub(crate) memory: Registry,
    /// Handles of physical memory.
    pub(crate) handles: Table<Arc<Physical>>,
    /// Reserved addresses.
    pub(crate) ranges: Ranges,
    pub(crate) pools: Table<Arc<Pool>>,
    /// Default pool and current pool of each GPU.
    device_pools: Vec<(OnceLock<usize>, AtomicUsize)>,
    pub(crate) graphs: Table<Arc<Graph>>,
    pub(crate) executables: Table<Arc<Executable>>,
    pub(crate) engine: Engine,
}

static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
static READY: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// cuInit.
pub(crate) fn initialise() -> Result<(), Code> {
    let world = world().ok_or(UNKNOWN)?;
    if world.scenario.driver.init_error != 0 {
        return Err(world.scenario.driver.init_error);
    }
    let driver = DRIVER.get_or_init(|| Some(Driver::new(world)));
    if driver.as_ref().is_none_or(|d| d.visible.is_empty()) {
        return Err(NO_DEVICE);
    }
    READY.store(true, Ordering::SeqCst);
    Ok(())
}

/// The driver, once cuInit has succeeded.
pub(crate) fn driver() -> Result<&'static Driver, Code> {
    if !READY.load(Ordering::SeqCst) {
        return Err(NOT_INITIALIZED);
    }
    DRIVER.get().and_then(Option::as_ref).ok_or(NOT_INITIALIZED)
}

/// CUDA_VISIBLE_DEVICES: numbers or UUID prefixes; the first entry that fits nothing ends the list.
fn visible(world: &World, variable: Option<&str>) -> Vec<usize> {
    let Some(text) = variable else {
        return (0..world.gpus()).collect();
    };
    let mut out = Vec::new();
    for word in text.split(',').map(str::trim) {
        let gpu = match word.parse::<usize>() {
            Ok(n) if n < world.gpus() => Some(n),
            Ok(_) => None,
            Err(_) => (word.len() > 4)
                .then(|| (0..world.gpus()).find(|&g| uuid_text(&world.uuid(g)).starts_with(word)))
                .flatten(),
        };
        match gpu {
            Some(g) if !out.contains(&g) => out.push(g),
            _ => break,
        }
    }
    out
}

impl Driver {
    fn new(world: &'static World) -> Self {
        let context = |gpu| Context {
            gpu,
            retained: AtomicU32::new(0),
            poison: Arc::default(),
            peers: Mutex::default(),
            null: OnceLock::new(),
            touched: Mutex::default(),
        };
        Self {
            world,
            visible: visible(world, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref()),
            contexts: (0..world.gpus()).map(context).collect(),
            streams: Table::new(),
            thread_streams: Mutex::default(),
            events: Table::new(),
            modules: Table::new(),
            functions: Table::new(),
            memory: Registry::new(world),
            handles: Table::new(),
            ranges: Ranges::default(),
            pools: Table::new(),
            device_pools: (0..world.gpus()).map(|_| Default::default()).collect(),
            graphs: Table::new(),
            executables: Table::new(),
            engine: Engine::new(world),
        }
    }

    /// Physical GPU of a CUDA ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<usize, Code> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.visible.get(i))
            .copied()
            .ok_or(INVALID_DEVICE)
    }

    /// CUDA ordinal of a physical GPU.
    pub(crate) fn ordinal(&self, gpu: usize) -> i32 {
        self.visible
            .iter()
            .position(|&g| g == gpu)
            .map_or(-1, |i| i as i32)
    }

    /// Context of a GPU, whether retained or not.
    pub(crate) fn context_of(&self, gpu: usize) -> &Context {
        &self.contexts[gpu]
    }

    /// Handle of a context.
    pub(crate) fn context_handle(gpu: usize) -> usize {
        CONTEXT_BASE + gpu * 0x100
    }

    /// A living context by handle.
    pub(crate) fn context(&self, handle: usize) -> Result<&Context, Code> {
        let offset = handle
            .checked_sub(CONTEXT_BASE)
            .filter(|o| o % 0x100 == 0)
            .ok_or(INVALID_CONTEXT)?;
        let context = self.contexts.get(offset / 0x100).ok_or(INVALID_CONTEXT)?;
        if context.retained.load(Ordering::SeqCst) == 0 {
            Err(INVALID_CONTEXT)
        } else {
            Ok(context)
        }
    }

    /// The thread's context, without a look at its health.
    pub(crate) fn current_raw(&self) -> Option<&Context> {
        let gpu = CURRENT.get();
        self.contexts
            .get(gpu)
            .filter(|c| c.retained.load(Ordering::SeqCst) > 0)
    }

    /// The thread's context; its sticky error where it has one.
    pub(crate) fn current(&self) -> Result<&Context, Code> {
        let context = self.current_raw().ok_or(INVALID_CONTEXT)?;
        context.health()?;
        Ok(context)
    }

    /// Makes a context current on this thread.
    pub(crate) fn set_current(gpu: Option<usize>) {
        CURRENT.set(gpu.unwrap_or(usize::MAX));
    }

    /// Whether a context may reach memory of another GPU.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || lock(&self.contexts[from].peers).contains(&to)
    }

    /// Whether `gpu` may be given access to memory of `owner`, by peer access or by what memory of its own kind asks
    /// for (`via`). `refused` is the answer where the host knows no such access.
    pub(crate) fn may_enable(
        &self,
        gpu: usize,
        owner: usize,
        via: Via,
        refused: Code,
    ) -> Result<(), Code> {
        for (i, fault) in self
            .world
            .concerned(Some(gpu), Some(owner), Mechanism::Enable, via)
        {
            if self.world.strikes(i) {
                match fault.kind {
                    Kind::Refusal { code } => return Err(code),
                    Kind::Death => die(),
                    Kind::Hang => forever(),
                    Kind::Stuck => stuck(),
                    Kind::Sticky { code } => {
                        self.contexts[gpu].poison.store(code, Ordering::SeqCst);
                        return Err(code);
                    }
                    _ => {}
                }
            }
        }
        match self.world.topology.enable_result(gpu, owner) {
            SUCCESS => Ok(()),
            PEER_UNSUPPORTED => Err(refused),
            code => Err(code),
        }
    }

    /// Handle of the pool that a GPU was born with.
    pub(crate) fn default_pool(&self, gpu: usize) -> Result<usize, Code> {
        if !self.world.scenario.driver.pools {
            return Err(NOT_SUPPORTED);
        }
        let made = || self.pools.insert(Arc::new(Pool::new(gpu, true)));
        Ok(*self.device_pools[gpu].0.get_or_init(made))
    }

    /// Handle of the pool that cuMemAllocAsync takes from.
    pub(crate) fn pool_of(&self, gpu: usize) -> Result<usize, Code> {
        match self.device_pools[gpu].1.load(Ordering::SeqCst) {
            0 => self.default_pool(gpu),
            chosen => Ok(chosen),
        }
    }

    /// Chooses it.
    pub(crate) fn choose_pool(&self, gpu: usize, handle: usize) {
        self.device_pools[gpu].1.store(handle, Ordering::SeqCst);
    }

    /// A pool that goes is no longer the current one of its device.
    pub(crate) fn forget_pool(&self, handle: usize) {
        for (_, chosen) in &self.device_pools {
            let _ = chosen.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// A stream by handle: 0 and 1 are the null stream of the current context, 2 the calling thread's default stream there.
    pub(crate) fn stream(&'static self, handle: usize) -> Result<Arc<Stream>, Code> {
        let context = self.current()?;
        match handle {
            0 | LEGACY_STREAM => Ok(self.null_stream(context)),
            PER_THREAD_STREAM => Ok(self.thread_stream(context)),
            _ => {
                let stream = self.streams.get(handle)?;
                self.contexts[stream.gpu].health()?;
                Ok(stream)
            }
        }
    }

    /// The null stream of a context.
    pub(crate) fn null_stream(&'static self, context: &Context) -> Arc<Stream> {
        Arc::clone(context.null.get_or_init(|| {
            Stream::start(&self.engine, context.gpu, true, Arc::clone(&context.poison))
        }))
    }

    /// The calling thread's default stream of a context: it orders itself with the null stream, as streams do that were
    /// made without the flag.
    fn thread_stream(&'static self, context: &Context) -> Arc<Stream> {
        let key = (std::thread::current().id(), context.gpu);
        let make = || Stream::start(&self.engine, context.gpu, true, Arc::clone(&context.poison));
        Arc::clone(lock(&self.thread_streams).entry(key).or_insert_with(make))
    }

    /// All streams of a context.
    pub(crate) fn streams_of(&self, gpu: usize) -> Vec<Arc<Stream>> {
        let mut all: Vec<_> = self
            .streams
            .all()
            .into_iter()
            .filter(|s| s.gpu == gpu)
            .collect();
        all.extend(self.contexts[gpu].null.get().cloned());
        let threads = lock(&self.thread_streams);
        all.extend(threads.values().filter(|s| s.gpu == gpu).cloned());
        all
    }

    /// The last operations of a context's streams that take part in the null stream's order, as far as they are not over.
    fn pending_of(&self, gpu: usize) -> Vec<Arc<Op>> {
        let streams = self.streams_of(gpu).into_iter();
        let mut all: Vec<Arc<Op>> = streams
            .filter(|s| s.blocking)
            .filter_map(|s| s.last())
            .collect();
        all.extend(lock(&self.contexts[gpu].touched).clone());
        all.retain(|op| !op.done() || op.span.end().is_none());
        all
    }

    /// What an operation on this stream waits for by the rules of the legacy null stream.
    pub(crate) fn order(&self, stream: &Arc<Stream>) -> Vec<Arc<Op>> {
        if !stream.blocking {
            return Vec::new();
        }
        let context = &self.contexts[stream.gpu];
        if self.is_null(stream) {
            return self.pending_of(stream.gpu);
        }
        let mut all: Vec<Arc<Op>> = context
            .null
            .get()
            .and_then(|s| s.last())
            .into_iter()
            .collect();
        all.extend(lock(&context.touched).clone());
        all.retain(|op| !op.done() || op.span.end().is_none());
        all
    }

    fn is_null(&self, stream: &Arc<Stream>) -> bool {
        let null = self.contexts[stream.gpu].null.get();
        null.is_some_and(|null| Arc::ptr_eq(null, stream))
    }

    /// The same for a copy between the memories of two GPUs. On the null stream it does not start before everything issued
    /// to either of them is over, and nothing issued to either of them later starts before it is (CUDA programming guide,
    /// peer-to-peer memory copy).
    pub(crate) fn order_copy(
        &self,
        stream: &Arc<Stream>,
        ends: [Option<usize>; 2],
    ) -> Vec<Arc<Op>> {
        let mut all = self.order(stream);
        if self.is_null(stream) {
            let others = ends.into_iter().flatten().filter(|gpu| *gpu != stream.gpu);
            all.extend(others.flat_map(|gpu| self.pending_of(gpu)));
        }
        all
    }

    /// Makes later work of the other ends wait for a copy that went to a null stream.
    pub(crate) fn note_copy(&self, stream: &Arc<Stream>, ends: [Option<usize>; 2], op: &Arc<Op>) {
        if self.is_null(stream) {
            for gpu in ends.into_iter().flatten().filter(|gpu| *gpu != stream.gpu) {
                *lock(&self.contexts[gpu].touched) = Some(Arc::clone(op));
            }
        }
    }

    /// Waits until everything submitted to a context has been executed.
    pub(crate) fn drain(&self, gpu: usize) {
        for stream in self.streams_of(gpu) {
            if let Some(op) = stream.last() {
                self.engine.wait_done(&op);
                self.engine.end_of(&op);
            }
        }
    }

    /// Ends a context whose last holder has let go.
    pub(crate) fn destroy(&self, context: &Context) {
        for stream in self
            .streams
            .all()
            .into_iter()
            .filter(|s| s.gpu == context.gpu)
        {
            stream.close();
        }
        self.streams.retain(|s| s.gpu != context.gpu);
        lock(&self.thread_streams).retain(|(_, gpu), stream| {
            if *gpu == context.gpu {
                stream.close();
            }
            *gpu != context.gpu
        });
        self.modules.retain(|m| m.gpu != context.gpu);
        self.functions.retain(|f| f.module.gpu != context.gpu);
        self.memory.release_context(context.gpu);
        lock(&context.peers).clear();
        context.poison.store(SUCCESS, Ordering::SeqCst);
        if let Some(slot) = self.world.slot() {
            slot.contexts
                .fetch_and(!(1 << context.gpu), Ordering::SeqCst);
        }
    }
}

impl Context {
    /// The sticky error, if there is one.
    pub(crate) fn health(&self) -> Result<(), Code> {
        match self.poison.load(Ordering::SeqCst) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}

/// Writes through a pointer of the caller.
///
/// # Safety
/// A pointer that is not null must be valid for one `T`.
pub(crate) unsafe fn put<T>(p: *mut T, value: T) -> Result<(), Code> {
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { p.write_unaligned(value) };
    Ok(())
}

/// Writes text with its end mark into a buffer of the caller.
///
/// # Safety
/// A pointer that is not null must be valid for `len` bytes.
pub(crate) unsafe fn put_text(p: *mut std::ffi::c_char, len: usize, text: &str) -> bool {
    if p.is_null() || len == 0 {
        return false;
    }
    let n = text.len().min(len - 1);
    // SAFETY: n + 1 bytes fit into the caller's buffer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), p.cast::<u8>(), n);
        p.add(n).write(0);
    }
    n == text.len()
}

/// Defines exported functions whose bodies answer with a result.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// Pointers must be what the driver's interface asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> $crate::cuda::codes::Code {
            let call = || -> Result<(), $crate::cuda::codes::Code> { $body };
            call().err().unwrap_or(0)
        }
    )*};
}
pub(crate) use export;
