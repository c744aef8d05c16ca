//! Runs a test body in a child process on a staged scenario, with the look-alike opened as programs open the driver.
#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(dead_code, reason = "each test binary uses its part")]
use simhost::launcher::{Stage, find_library};
use simhost::scenario::Scenario;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Says which test the child is to run.
const CHILD: &str = "SIMHOST_TEST_CHILD";

pub type Ptr = u64;
pub type Handle = *mut c_void;

/// What the parent does with its child.
pub fn in_child(
    name: &str,
    scenario: &str,
    settings: &[&str],
    faults: &[&str],
    body: impl FnOnce(),
) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|v| v == name) {
        body();
        return None;
    }
    let text = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let scenario = Scenario::resolve(scenario, &text(settings), &text(faults)).unwrap();
    let stage = Stage::new(&scenario, &find_library().unwrap()).unwrap();
    Some(run_self(name, |c| stage.equip(c)))
}

/// This test binary again, for one test.
pub fn run_self(name: &str, equip: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    equip(&mut command);
    command.output().unwrap()
}

pub fn must_pass(output: Option<Output>) {
    let Some(output) = output else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

macro_rules! driver {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {
        /// The driver's functions, as dlopen finds them.
        pub struct Cuda { _library: libloading::Library, $(pub $name: unsafe extern "C" fn($($t),*) -> u32,)* pub simulated: u32 }
        impl Cuda {
            pub fn open() -> Self {
                // SAFETY: the look-alike has no constructors, and the types are those of the driver's interface.
                unsafe {
                    let library = libloading::Library::new("libcuda.so.1").unwrap();
                    $(let $name = *library.get::<unsafe extern "C" fn($($t),*) -> u32>(concat!(stringify!($name), "\0").as_bytes()).unwrap();)*
                    let simulated = (library.get::<unsafe extern "C" fn() -> u32>(b"peerproof_simulated\0").unwrap())();
                    Cuda { _library: library, $($name,)* simulated }
                }
            }
            $(#[allow(clippy::too_many_arguments, reason = "as the driver has it")]
            pub fn $name(&self, $($arg: $t),*) -> u32 {
                // SAFETY: the tests pass what the interface asks for.
                unsafe { (self.$name)($($arg),*) }
            })*
        }
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ticket(pub [u8; 64]);

driver! {
    cuInit(flags: c_uint);
    cuDeviceGetCount(n: *mut c_int);
    cuDeviceGetAttribute(v: *mut c_int, a: c_int, d: c_int);
    cuDeviceGetName(p: *mut c_char, n: c_int, d: c_int);
    cuDeviceGetPCIBusId(p: *mut c_char, n: c_int, d: c_int);
    cuDeviceCanAccessPeer(v: *mut c_int, a: c_int, b: c_int);
    cuDevicePrimaryCtxRetain(c: *mut Handle, d: c_int);
    cuDevicePrimaryCtxRelease_v2(d: c_int);
    cuCtxSetCurrent(c: Handle);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(c: Handle, f: c_uint);
    cuCtxDisablePeerAccess(c: Handle);
    cuMemGetInfo_v2(f: *mut usize, t: *mut usize);
    cuMemAlloc_v2(p: *mut Ptr, n: usize);
    cuMemFree_v2(p: Ptr);
    cuMemHostAlloc(p: *mut Handle, n: usize, f: c_uint);
    cuMemcpyAsync(d: Ptr, s: Ptr, n: usize, stream: Handle);
    cuMemcpyHtoD_v2(d: Ptr, s: *const c_void, n: usize);
    cuMemcpyDtoH_v2(d: *mut c_void, s: Ptr, n: usize);
    cuMemcpyDtoHAsync_v2(d: *mut c_void, s: Ptr, n: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2(d: Ptr, s: *const c_void, n: usize, stream: Handle);
    cuMemcpyPeerAsync(d: Ptr, dc: Handle, s: Ptr, sc: Handle, n: usize, stream: Handle);
    cuMemsetD8Async(d: Ptr, v: u8, n: usize, stream: Handle);
    cuMemsetD32Async(d: Ptr, v: c_uint, n: usize, stream: Handle);
    cuStreamCreate(s: *mut Handle, f: c_uint);
    cuStreamDestroy_v2(s: Handle);
    cuStreamQuery(s: Handle);
    cuStreamSynchronize(s: Handle);
    cuStreamWaitEvent(s: Handle, e: Handle, f: c_uint);
    cuEventCreate(e: *mut Handle, f: c_uint);
    cuEventRecord(e: Handle, s: Handle);
    cuEventQuery(e: Handle);
    cuEventSynchronize(e: Handle);
    cuEventElapsedTime(ms: *mut f32, a: Handle, b: Handle);
    cuModuleLoadData(m: *mut Handle, image: *const c_void);
    cuModuleUnload(m: Handle);
    cuModuleGetFunction(f: *mut Handle, m: Handle, name: *const c_char);
    cuLaunchKernel(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, s: Handle, args: *mut *mut c_void, extra: *mut *mut c_void);
    cuIpcGetMemHandle(h: *mut Ticket, p: Ptr);
    cuIpcOpenMemHandle_v2(p: *mut Ptr, h: Ticket, f: c_uint);
    cuIpcCloseMemHandle(p: Ptr);
    cuGetErrorName(e: c_uint, s: *mut *const c_char);
    cuMemGetAllocationGranularity(g: *mut usize, p: *const Prop, o: c_uint);
    cuMemCreate(h: *mut u64, n: usize, p: *const Prop, f: u64);
    cuMemRelease(h: u64);
    cuMemRetainAllocationHandle(h: *mut u64, p: *mut c_void);
    cuMemAddressReserve(p: *mut Ptr, n: usize, a: usize, w: Ptr, f: u64);
    cuMemAddressFree(p: Ptr, n: usize);
    cuMemMap(p: Ptr, n: usize, o: usize, h: u64, f: u64);
    cuMemUnmap(p: Ptr, n: usize);
    cuMemSetAccess(p: Ptr, n: usize, d: *const Desc, c: usize);
    cuMemGetAccess(f: *mut u64, l: *const [c_int; 2], p: Ptr);
    cuMemExportToShareableHandle(o: *mut c_void, h: u64, t: c_uint, f: u64);
    cuMemImportFromShareableHandle(h: *mut u64, o: *mut c_void, t: c_uint);
    cuMemPoolCreate(p: *mut Handle, d: *const PoolProp);
    cuMemPoolDestroy(p: Handle);
    cuMemPoolSetAccess(p: Handle, d: *const Desc, c: usize);
    cuMemPoolGetAccess(f: *mut c_uint, p: Handle, l: *mut [c_int; 2]);
    cuMemPoolSetAttribute(p: Handle, a: c_uint, v: *mut c_void);
    cuMemPoolGetAttribute(p: Handle, a: c_uint, v: *mut c_void);
    cuMemPoolTrimTo(p: Handle, n: usize);
    cuDeviceGetDefaultMemPool(p: *mut Handle, d: c_int);
    cuMemAllocAsync(p: *mut Ptr, n: usize, s: Handle);
    cuMemAllocFromPoolAsync(p: *mut Ptr, n: usize, q: Handle, s: Handle);
    cuMemFreeAsync(p: Ptr, s: Handle);
    cuStreamBeginCapture_v2(s: Handle, m: c_uint);
    cuStreamEndCapture(s: Handle, g: *mut Handle);
    cuStreamIsCapturing(s: Handle, v: *mut c_uint);
    cuGraphInstantiateWithFlags(x: *mut Handle, g: Handle, f: u64);
    cuGraphLaunch(x: Handle, s: Handle);
    cuGraphExecDestroy(x: Handle);
    cuGraphDestroy(g: Handle);
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prop {
    pub kind: c_int,
    pub types: c_uint,
    pub location: [c_int; 2],
    pub windows: *mut c_void,
    pub flags: [u8; 8],
}

/// Pinned memory of a device.
pub fn prop(device: c_int, types: c_uint) -> Prop {
    Prop {
        kind: 1,
        types,
        location: [1, device],
        windows: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// CUmemPoolProps.
#[repr(C)]
pub struct PoolProp {
    pub kind: c_int,
    pub types: c_uint,
    pub location: [c_int; 2],
    pub windows: *mut c_void,
    pub most: usize,
    pub reserved: [u8; 56],
}

/// CUmemAccessDesc: type and id of the location, flags.
pub type Desc = [c_int; 3];

/// Tiny kernels that the shared PTX does not have.
pub const EXTRA: &str = r#"
.version 6.4
.target sm_70
.address_size 64
.visible .entry copy8(.param .u64 to, .param .u64 from, .param .u32 n) {
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd3, %r5, 8;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.u64 %rd6, [%rd5];
  st.global.u64 [%rd4], %rd6;
DONE:
  ret;
}
.visible .entry send(.param .u64 payload, .param .u64 flag, .param .u64 answer, .param .u32 fenced) {
  .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [payload]; ld.param.u64 %rd2, [flag]; ld.param.u64 %rd3, [answer]; ld.param.u32 %r1, [fenced];
  mov.u64 %rd4, 77;
  st.global.u64 [%rd1], %rd4;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra PLAIN;
  membar.sys;
PLAIN:
  mov.u32 %r2, 1;
  st.volatile.global.u32 [%rd2], %r2;
WAIT:
  ld.volatile.global.u32 %r3, [%rd3];
  setp.eq.u32 %p2, %r3, 0;
  @%p2 bra WAIT;
  ret;
}
.visible .entry receive(.param .u64 payload, .param .u64 flag, .param .u64 answer, .param .u64 seen) {
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [payload]; ld.param.u64 %rd2, [flag]; ld.param.u64 %rd3, [answer]; ld.param.u64 %rd4, [seen];
WAIT:
  ld.volatile.global.u32 %r1, [%rd2];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra WAIT;
  ld.volatile.global.u64 %rd5, [%rd1];
  st.global.u64 [%rd4], %rd5;
  mov.u32 %r2, 1;
  st.volatile.global.u32 [%rd3], %r2;
  ret;
}
.visible .entry copy4(.param .u64 to, .param .u64 from) {
  .reg .b32 %r<3>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.u32 %r2, [%rd5];
  st.global.u32 [%rd4], %r2;
  ret;
}
.visible .entry copy16(.param .u64 to, .param .u64 from) {
  .reg .b32 %r<6>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 16;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd5];
  st.global.v4.u32 [%rd4], {%r2, %r3, %r4, %r5};
  ret;
}
.visible .entry wait_for(.param .u64 flag, .param .u64 stop, .param .u64 limit, .param .u64 out) {
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [stop]; ld.param.u64 %rd3, [limit]; ld.param.u64 %rd4, [out];
  mov.u64 %rd5, %globaltimer;
LOOP:
  mov.u32 %r2, 1;
  ld.acquire.sys.global.u32 %r1, [%rd1];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u32 %r2, 2;
  ld.mmio.relaxed.sys.global.u32 %r3, [%rd2];
  setp.ne.u32 %p2, %r3, 0;
  @%p2 bra DONE;
  nanosleep.u32 100;
  mov.u32 %r2, 3;
  mov.u64 %rd6, %globaltimer;
  sub.s64 %rd7, %rd6, %rd5;
  setp.lt.u64 %p3, %rd7, %rd3;
  @%p3 bra LOOP;
DONE:
  st.global.u32 [%rd4], %r2;
  ret;
}
.visible .entry add_one(.param .u64 at) {
  .reg .b32 %r<3>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [at];
  mov.u32 %r1, 1;
  atom.global.add.u32 %r2, [%rd1], %r1;
  ret;
}
"#;

/// Contexts of all devices, with kernels and streams.
pub struct Host {
    pub cu: Cuda,
    pub contexts: Vec<Handle>,
}

pub const NON_BLOCKING: u32 = 1;

impl Host {
    pub fn new() -> Self {
        let cu = Cuda::open();
        assert_eq!(cu.cuInit(0), 0);
        let mut n = 0;
        assert_eq!(cu.cuDeviceGetCount(&mut n), 0);
        let contexts = (0..n)
            .map(|d| {
                let mut c = std::ptr::null_mut();
                assert_eq!(cu.cuDevicePrimaryCtxRetain(&mut c, d), 0);
                c
            })
            .collect();
        Host { cu, contexts }
    }
    pub fn on(&self, gpu: usize) -> &Self {
        assert_eq!(self.cu.cuCtxSetCurrent(self.contexts[gpu]), 0);
        self
    }
    pub fn alloc(&self, gpu: usize, n: usize) -> Ptr {
        let mut p = 0;
        assert_eq!(self.on(gpu).cu.cuMemAlloc_v2(&mut p, n), 0);
        p
    }
    pub fn stream(&self, gpu: usize, flags: u32) -> Handle {
        let mut s = std::ptr::null_mut();
        assert_eq!(self.on(gpu).cu.cuStreamCreate(&mut s, flags), 0);
        s
    }
    pub fn event(&self) -> Handle {
        let mut e = std::ptr::null_mut();
        assert_eq!(self.cu.cuEventCreate(&mut e, 0), 0);
        e
    }
    pub fn put(&self, gpu: usize, at: Ptr, data: &[u8]) {
        assert_eq!(
            self.on(gpu)
                .cu
                .cuMemcpyHtoD_v2(at, data.as_ptr().cast(), data.len()),
            0
        );
    }
    pub fn get(&self, gpu: usize, at: Ptr, n: usize) -> Vec<u8> {
        let mut out = vec![0; n];
        assert_eq!(
            self.on(gpu)
                .cu
                .cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, n),
            0
        );
        out
    }
    pub fn enable(&self, from: usize, to: usize) -> u32 {
        self.on(from).cu.cuCtxEnablePeerAccess(self.contexts[to], 0)
    }
    /// Peer copy on a stream of the executor, awaited.
    pub fn copy(
        &self,
        executor: usize,
        (sg, s): (usize, Ptr),
        (dg, d): (usize, Ptr),
        n: usize,
    ) -> u32 {
        let stream = self.stream(executor, NON_BLOCKING);
        match self
            .cu
            .cuMemcpyPeerAsync(d, self.contexts[dg], s, self.contexts[sg], n, stream)
        {
            0 => self.cu.cuStreamSynchronize(stream),
            code => code,
        }
    }
    pub fn function(&self, gpu: usize, ptx: &str, name: &str) -> Handle {
        let (mut m, mut f) = (std::ptr::null_mut(), std::ptr::null_mut());
        let image = std::ffi::CString::new(ptx).unwrap();
        assert_eq!(
            self.on(gpu)
                .cu
                .cuModuleLoadData(&mut m, image.as_ptr().cast()),
            0
        );
        let name = std::ffi::CString::new(name).unwrap();
        assert_eq!(self.cu.cuModuleGetFunction(&mut f, m, name.as_ptr()), 0);
        f
    }
    /// Launches with arguments of 8 bytes each.
    pub fn launch(
        &self,
        gpu: usize,
        f: Handle,
        blocks: u32,
        threads: u32,
        stream: Handle,
        mut values: Vec<u64>,
    ) -> u32 {
        let mut args: Vec<*mut c_void> =
            values.iter_mut().map(|v| (v as *mut u64).cast()).collect();
        self.on(gpu).cu.cuLaunchKernel(
            f,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            args.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
    /// SM copy of `n` bytes executed by a GPU, awaited.
    pub fn sm_copy(&self, gpu: usize, to: Ptr, from: Ptr, n: usize) -> u32 {
        let f = self.function(gpu, EXTRA, "copy8");
        let stream = self.stream(gpu, NON_BLOCKING);
        let words = (n / 8) as u32;
        match self.launch(
            gpu,
            f,
            words.div_ceil(128),
            128,
            stream,
            vec![to, from, u64::from(words)],
        ) {
            0 => self.cu.cuStreamSynchronize(stream),
            code => code,
        }
    }
}

/// Bytes that tell where they are and whose they are.
pub fn pattern(seed: u8, n: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed | 1)
        .collect()
}

/// Waits until something is so.
pub fn until(limit: Duration, what: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}
