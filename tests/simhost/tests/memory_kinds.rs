//! Mappings that travel as descriptors, and pools: who may reach them, and what faults can single them out. Codes of
//! refusals and the staging of copies are as two H200 with driver 580 showed them.
mod harness;

use harness::*;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const N: usize = 64 << 10;
const M: usize = 2 << 20;
const POISON: u8 = 0xA5;
const PRO: &str = "rtxpro6000-x8-root-complex";

macro_rules! simulated {
    ($($name:ident on $scenario:expr, $settings:expr, $faults:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            must_pass(in_child(stringify!($name), $scenario, &$settings, &$faults, || { let body: fn() = $body; body() }));
        }
    )*};
}

/// A mapping of 2 MiB on a GPU, with its handle and the GPUs that may use it.
fn mapping(h: &Host, gpu: usize, may: &[usize]) -> (Ptr, u64) {
    let (mut handle, mut p) = (0, 0);
    assert_eq!(h.cu.cuMemCreate(&mut handle, M, &prop(gpu as i32, 1), 0), 0);
    assert_eq!(h.cu.cuMemAddressReserve(&mut p, M, 0, 0, 0), 0);
    assert_eq!(h.cu.cuMemMap(p, M, 0, handle, 0), 0);
    let wishes: Vec<Desc> = may.iter().map(|&g| [1, g as i32, 3]).collect();
    if !wishes.is_empty() {
        assert_eq!(h.cu.cuMemSetAccess(p, M, wishes.as_ptr(), wishes.len()), 0);
    }
    (p, handle)
}

/// Memory of a pool of a GPU, and the pool.
fn pooled(h: &Host, gpu: usize) -> (Ptr, Handle) {
    let (mut pool, mut p) = (std::ptr::null_mut(), 0);
    let wanted = PoolProp {
        kind: 1,
        types: 0,
        location: [1, gpu as i32],
        windows: std::ptr::null_mut(),
        most: 0,
        reserved: [0; 56],
    };
    assert_eq!(h.cu.cuMemPoolCreate(&mut pool, &wanted), 0);
    let s = h.stream(gpu, NON_BLOCKING);
    assert_eq!(h.cu.cuMemAllocFromPoolAsync(&mut p, N, pool, s), 0);
    (p, pool)
}

/// Copies by the executor from plain memory of GPU 1 to `to` on GPU 0, naming both contexts or none.
fn into(h: &Host, to: Ptr, executor: usize, named: bool) -> (u32, bool) {
    let from = h.alloc(1, N);
    h.put(1, from, &pattern(7, N));
    h.put(0, to, &[POISON; N]);
    let s = h.stream(executor, NON_BLOCKING);
    let code = if named {
        h.cu.cuMemcpyPeerAsync(to, h.contexts[0], from, h.contexts[1], N, s)
    } else {
        h.cu.cuMemcpyAsync(to, from, N, s)
    };
    assert_eq!(h.cu.cuStreamSynchronize(s), 0);
    (code, h.get(0, to, N) == pattern(7, N))
}

/// All ways of copying: by GPU 1 and GPU 0, naming contexts and not.
fn ways(h: &Host, to: Ptr) -> [(u32, bool); 4] {
    [
        into(h, to, 1, true),
        into(h, to, 0, true),
        into(h, to, 1, false),
        into(h, to, 0, false),
    ]
}

const ALL_RIGHT: [(u32, bool); 4] = [(0, true); 4];
/// What a context without access cannot do is a copy that names nobody.
const STAGED_IF_NAMED: [(u32, bool); 4] = [(0, true), (0, true), (1, false), (0, true)];

simulated! {
    rules_of_mappings on PRO, [], [] => || {
        let h = Host::new();
        let (mut g, mut a, mut k, mut b) = (0, 0, 0, 0);
        assert_eq!((h.cu.cuMemGetAllocationGranularity(&mut g, &prop(0, 1), 0), g), (0, M));
        assert_eq!(h.cu.cuMemCreate(&mut k, M, &prop(0, 8), 0), 801, "fabric");
        assert_eq!(h.cu.cuMemCreate(&mut k, 4096, &prop(0, 1), 0), 1);
        assert_eq!(h.cu.cuMemCreate(&mut k, M, &prop(9, 1), 0), 101);
        assert_eq!(h.cu.cuMemCreate(&mut k, 2 * M, &prop(0, 1), 0), 0);
        assert_eq!(h.cu.cuMemAddressReserve(&mut b, 4096, 0, 0, 0), 1);
        assert_eq!(h.cu.cuMemAddressReserve(&mut a, 4 * M, 0, 0, 0), 0);
        let (yes, no, nobody): (Desc, Desc, Desc) = ([1, 0, 3], [1, 0, 0], [1, 9, 3]);
        assert_eq!(h.cu.cuMemSetAccess(a, 2 * M, &yes, 1), 1, "nothing mapped");
        assert_eq!(h.cu.cuMemMap(a, 4 * M, 0, k, 0), 801);
        assert_eq!(h.cu.cuMemMap(a, M, M, k, 0), 801);
        assert_eq!(h.cu.cuMemMap(a, 2 * M, 0, k, 0), 0);
        assert_eq!(h.cu.cuMemMap(a, 2 * M, 0, k, 0), 1);
        for (n, who, want) in [(4 * M, yes, 1), (M, yes, 1), (2 * M, nobody, 1), (2 * M, yes, 0), (2 * M, no, 0), (2 * M, yes, 0)] {
            assert_eq!(h.cu.cuMemSetAccess(a, n, &who, 1), want, "{n} {who:?}");
        }
        let mut flags = 9;
        assert_eq!((h.cu.cuMemGetAccess(&mut flags, &[1, 0], a + 5), flags), (0, 3));
        assert_eq!((h.cu.cuMemGetAccess(&mut flags, &[1, 3], a), flags), (0, 0));
        h.put(0, a, &pattern(3, N));
        assert!(h.get(0, a, N) == pattern(3, N));
        let mut ticket = Ticket([0; 64]);
        assert_eq!(h.cu.cuIpcGetMemHandle(&mut ticket, a), 1);
        assert_eq!(h.cu.cuMemFree_v2(a), 1);
        assert_eq!(h.cu.cuMemAddressFree(a, 4 * M), 1, "still mapped");
        assert_eq!(h.cu.cuMemRelease(k), 0);
        assert_eq!(h.cu.cuMemRelease(k), 1);
        let (mut free, mut total) = (0, 0);
        assert_eq!(h.cu.cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!(total - free, 2 * M, "the mapping keeps it");
        assert_eq!(h.cu.cuMemUnmap(a, M), 1);
        assert_eq!(h.cu.cuMemUnmap(a, 2 * M), 0);
        assert_eq!(h.cu.cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!(total, free);
        assert_eq!(h.cu.cuMemAddressFree(a, 2 * M), 1);
        assert_eq!(h.cu.cuMemAddressFree(a, 4 * M), 0);
        assert_eq!(h.cu.cuMemCreate(&mut k, 64 << 20, &prop(0, 1), 0), 2);
    };
    a_mapping_needs_its_own_access on PRO, [], [] => || {
        let h = Host::new();
        let (none, _) = mapping(&h, 0, &[]);
        let own = h.alloc(0, N);
        assert_eq!(h.cu.cuMemcpyDtoH_v2((&raw mut *vec![0_u8; N]).cast(), none, N), 1, "nobody");
        let (only, _) = mapping(&h, 0, &[0]);
        assert_eq!(ways(&h, only), STAGED_IF_NAMED);
        // Peer access says nothing about it.
        for (a, b) in [(0, 1), (1, 0)] { assert_eq!(h.enable(a, b), 0); }
        assert_eq!(ways(&h, only), STAGED_IF_NAMED);
        let (both, _) = mapping(&h, 0, &[0, 1]);
        assert_eq!(ways(&h, both), ALL_RIGHT);
        let s = h.stream(1, NON_BLOCKING);
        assert_eq!(h.cu.cuMemsetD8Async(only, 1, N, s), 1);
        // A kernel that touches it all the same is done for.
        h.put(0, own, &pattern(2, N));
        let there = h.alloc(1, N);
        assert_eq!(h.sm_copy(1, there, both, N), 0);
        assert_eq!(h.sm_copy(1, there, only, N), 700);
        assert_eq!(h.on(1).cu.cuCtxSynchronize(), 700);
    };
    mappings_are_direct_without_enabled_peers on PRO, [], ["0>1:vmm.ce_push=dropped", "0>1:vmm.sm_store=zeroed", "*>*:plain.any=ones"] => || {
        let h = Host::new();
        let (to, _) = mapping(&h, 1, &[0, 1]);
        let from = h.alloc(0, N);
        h.put(0, from, &pattern(4, N));
        h.put(1, to, &[POISON; N]);
        let s = h.stream(0, NON_BLOCKING);
        assert_eq!((h.cu.cuMemcpyAsync(to, from, N, s), h.cu.cuStreamSynchronize(s)), (0, 0));
        assert!(h.get(1, to, N).iter().all(|&b| b == POISON));
        assert_eq!(h.sm_copy(0, to, from, N), 0);
        assert!(h.get(1, to, N).iter().all(|&b| b == 0));
    };
    no_access_between_gpus_without_peers on "geforce-x2-refused", [], [] => || {
        let h = Host::new();
        let (p, _) = mapping(&h, 0, &[0]);
        let wish: Desc = [1, 1, 3];
        assert_eq!(h.cu.cuMemSetAccess(p, M, &wish, 1), 101);
        assert_eq!(into(&h, p, 1, true), (0, true), "staged");
    };
    ways_of_enabling_are_refused_apart on PRO, [], ["1>0:vmm.enable=refusal:code=801", "2>0:pool.enable=refusal"] => || {
        let h = Host::new();
        let (p, _) = mapping(&h, 0, &[0]);
        let (_, pool) = pooled(&h, 0);
        let wish = |g| -> Desc { [1, g, 3] };
        assert_eq!((h.cu.cuMemSetAccess(p, M, &wish(1), 1), h.cu.cuMemSetAccess(p, M, &wish(2), 1)), (801, 0));
        assert_eq!((h.cu.cuMemPoolSetAccess(pool, &wish(1), 1), h.cu.cuMemPoolSetAccess(pool, &wish(2), 1)), (0, 217));
        assert_eq!((h.enable(1, 0), h.enable(2, 0)), (0, 0));
    };
    descriptors_are_handles on PRO, [], [] => || {
        let h = Host::new();
        let (p, k) = mapping(&h, 0, &[0]);
        let (mut fd, mut back, mut again) = (-1_i32, 0, 0);
        assert_eq!(h.cu.cuMemExportToShareableHandle((&raw mut fd).cast(), k, 8, 0), 1);
        assert_eq!(h.cu.cuMemExportToShareableHandle((&raw mut fd).cast(), k, 1, 0), 0);
        assert_eq!(h.cu.cuMemImportFromShareableHandle(&mut back, 1 as Handle, 1), 999);
        assert_eq!(h.cu.cuMemImportFromShareableHandle(&mut back, 9999 as Handle, 1), 999);
        assert_eq!(h.cu.cuMemImportFromShareableHandle(&mut back, fd as usize as Handle, 1), 0);
        // SAFETY: this test owns the descriptor.
        unsafe { libc::close(fd) };
        assert_eq!(h.cu.cuMemAddressReserve(&mut again, M, 0, 0, 0), 0);
        assert_eq!(h.cu.cuMemMap(again, M, 0, back, 0), 0);
        assert_eq!(h.cu.cuMemSetAccess(again, M, &[1, 0, 3], 1), 0);
        h.put(0, p, &pattern(9, N));
        assert!(h.get(0, again, N) == pattern(9, N));
    };
    pools_have_their_own_access on PRO, [], [] => || {
        let h = Host::new();
        let (p, pool) = pooled(&h, 0);
        assert_eq!(ways(&h, p), STAGED_IF_NAMED);
        for (a, b) in [(0, 1), (1, 0)] { assert_eq!(h.enable(a, b), 0); }
        assert_eq!(ways(&h, p), STAGED_IF_NAMED);
        let wish: Desc = [1, 1, 3];
        assert_eq!(h.cu.cuMemPoolSetAccess(pool, &wish, 1), 0);
        assert_eq!(ways(&h, p), ALL_RIGHT);
        let mut flags = 9;
        assert_eq!((h.cu.cuMemPoolGetAccess(&mut flags, pool, &mut [1, 1]), flags), (0, 3));
        assert_eq!(h.cu.cuMemPoolSetAccess(pool, &[1, 0, 0], 1), 1, "the owner stays");
        let mut ticket = Ticket([0; 64]);
        assert_eq!(h.on(0).cu.cuIpcGetMemHandle(&mut ticket, p), 1);
        let q = h.alloc(2, N);
        assert_eq!(h.sm_copy(2, q, p, N), 700, "another GPU");
    };
    pools_are_freed_in_order on PRO, [], [] => || {
        let h = Host::new();
        let (mut pool, mut p) = (std::ptr::null_mut(), 0);
        assert_eq!(h.cu.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
        let s = h.stream(0, NON_BLOCKING);
        assert_eq!(h.cu.cuMemAllocAsync(&mut p, N, s), 0);
        let (mut threshold, mut used) = (1_u64 << 20, 0_u64);
        assert_eq!(h.cu.cuMemPoolSetAttribute(pool, 4, (&raw mut threshold).cast()), 0);
        assert_eq!((h.cu.cuMemPoolGetAttribute(pool, 7, (&raw mut used).cast()), used), (0, N as u64));
        assert_eq!(h.cu.cuMemsetD8Async(p, 3, N, s), 0);
        let mut out = vec![0_u8; N];
        assert_eq!(h.cu.cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), p, N, s), 0);
        assert_eq!((h.cu.cuMemFreeAsync(p, s), h.cu.cuMemFreeAsync(p, s)), (0, 1));
        assert_eq!(h.cu.cuStreamSynchronize(s), 0);
        assert!(out.iter().all(|&b| b == 3));
        assert_eq!((h.cu.cuMemPoolGetAttribute(pool, 7, (&raw mut used).cast()), used), (0, 0));
        assert_eq!((h.cu.cuMemPoolTrimTo(pool, 0), h.cu.cuMemPoolDestroy(pool)), (0, 1));
        assert_eq!(h.cu.cuMemAllocAsync(&mut p, 0, s), 1);
        assert_eq!((h.cu.cuMemAllocAsync(&mut p, N, s), h.cu.cuMemFree_v2(p)), (0, 0));
    };
    a_pool_can_fail_alone on PRO, [], ["1>0:pool.ce_push=dropped"] => || {
        let h = Host::new();
        for (a, b) in [(0, 1), (1, 0)] { assert_eq!(h.enable(a, b), 0); }
        let (p, pool) = pooled(&h, 0);
        assert_eq!(h.cu.cuMemPoolSetAccess(pool, &[1, 1, 3], 1), 0);
        assert_eq!(into(&h, p, 1, true), (0, false));
        assert_eq!(into(&h, p, 0, true), (0, true), "pull");
        let plain = h.alloc(0, N);
        assert_eq!(into(&h, plain, 1, true), (0, true));
    };
    a_host_without_mappings_and_pools on PRO, ["driver.vmm=false", "driver.pools=false"], [] => || {
        let h = Host::new();
        let (mut v, mut k, mut pool) = (9, 0, std::ptr::null_mut());
        for a in [102, 103, 115, 128] { assert_eq!((h.cu.cuDeviceGetAttribute(&mut v, a, 0), v), (0, 0)); }
        assert_eq!(h.cu.cuMemCreate(&mut k, M, &prop(0, 1), 0), 801);
        assert_eq!(h.cu.cuDeviceGetDefaultMemPool(&mut pool, 0), 801);
    };
    fabric_handles_are_stated_and_not_permitted on "opaque-vm", [], [] => || {
        let h = Host::new();
        let (mut v, mut k) = (0, 0);
        for a in [102, 103, 115, 128] { assert_eq!((h.cu.cuDeviceGetAttribute(&mut v, a, 0), v), (0, 1)); }
        assert_eq!(h.cu.cuMemCreate(&mut k, M, &prop(0, 8), 0), 800);
    };
    a_descriptor_reaches_another_process on PRO, [], [] => || send(true);
    a_mapping_of_another_process_can_fail_alone on PRO, [], ["1>0:vmm.sm_store=dropped"] => || send(false);
}

/// Passes one descriptor over a socket, as programs do.
fn pass(socket: &UnixStream, fd: Option<i32>) -> i32 {
    // SAFETY: every structure is local, zeroed, and large enough for one descriptor.
    unsafe {
        let (mut byte, mut room) = ([0_u8; 1], [0_u64; 4]);
        let mut part = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        };
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) =
            (room.as_mut_ptr().cast(), libc::CMSG_SPACE(4) as _);
        if let Some(fd) = fd {
            let head = libc::CMSG_FIRSTHDR(&message);
            ((*head).cmsg_level, (*head).cmsg_type, (*head).cmsg_len) =
                (libc::SOL_SOCKET, libc::SCM_RIGHTS, libc::CMSG_LEN(4) as _);
            libc::CMSG_DATA(head).cast::<i32>().write_unaligned(fd);
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), 1);
            return fd;
        }
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &mut message, 0), 1);
        libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message))
            .cast::<i32>()
            .read_unaligned()
    }
}

/// The other process: a GPU of its own, and the mapping.
#[test]
fn receiver() {
    let Ok(path) = std::env::var("SIMHOST_TEST_SOCKET") else {
        return;
    };
    let h = Host::new();
    let fd = pass(&UnixStream::connect(path).unwrap(), None);
    let (mut k, mut p) = (0, 0);
    assert_eq!(
        h.cu.cuMemImportFromShareableHandle(&mut k, fd as usize as Handle, 1),
        0
    );
    assert_eq!(h.cu.cuMemAddressReserve(&mut p, M, 0, 0, 0), 0);
    assert_eq!(h.cu.cuMemMap(p, M, 0, k, 0), 0);
    assert_eq!(
        h.on(1)
            .cu
            .cuMemcpyDtoH_v2((&raw mut *vec![0_u8; N]).cast(), p, N),
        1,
        "no access yet"
    );
    assert_eq!(h.cu.cuMemSetAccess(p, M, &[1, 1, 3], 1), 0);
    assert!(h.get(1, p, N) == pattern(40, N));
    let own = h.alloc(1, N);
    h.put(1, own, &pattern(41, N));
    assert_eq!(h.sm_copy(1, p, own, N), 0);
    assert_eq!(
        (
            h.cu.cuMemUnmap(p, M),
            h.cu.cuMemAddressFree(p, M),
            h.cu.cuMemRelease(k)
        ),
        (0, 0, 0)
    );
}

fn send(right: bool) {
    let h = Host::new();
    let (p, k) = mapping(&h, 0, &[0]);
    h.put(0, p, &pattern(40, N));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        run_self("receiver", |c| {
            c.env("SIMHOST_TEST_SOCKET", path);
        })
    });
    let mut fd = -1_i32;
    assert_eq!(
        h.cu.cuMemExportToShareableHandle((&raw mut fd).cast(), k, 1, 0),
        0
    );
    pass(&listener.accept().unwrap().0, Some(fd));
    must_pass(Some(other.join().unwrap()));
    let got = h.get(0, p, N);
    assert!(got == pattern(if right { 41 } else { 40 }, N));
}
