//! The look-alike driver as a program meets it: opened by name, in a process of its own, on a staged scenario.
mod harness;

use harness::*;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const N: usize = 64 << 10;
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

/// Content of GPU 1 after GPU 0's content went there by a mechanism.
fn transfer(h: &Host, mechanism: &str, seed: u8) -> Vec<u8> {
    let (a, b) = (h.alloc(0, N), h.alloc(1, N));
    transfer_between(h, mechanism, seed, a, b)
}

fn transfer_between(h: &Host, mechanism: &str, seed: u8, a: Ptr, b: Ptr) -> Vec<u8> {
    h.put(0, a, &pattern(seed, N));
    h.put(1, b, &vec![POISON; N]);
    let code = match mechanism {
        "ce_push" => h.copy(0, (0, a), (1, b), N),
        "ce_pull" => h.copy(1, (0, a), (1, b), N),
        "sm_store" => h.sm_copy(0, b, a, N),
        "sm_load" => h.sm_copy(1, b, a, N),
        other => panic!("{other}"),
    };
    assert_eq!(code, 0, "{mechanism}");
    h.get(1, b, N)
}

fn enabled() -> Host {
    let h = Host::new();
    for (a, b) in [(0, 1), (1, 0)] {
        assert_eq!(h.enable(a, b), 0);
        assert_eq!(h.enable(a, b), 704);
    }
    h
}

const ALL: [&str; 4] = ["ce_push", "ce_pull", "sm_store", "sm_load"];

simulated! {
    healthy_bytes_arrive_by_every_mechanism on PRO, [], [] => || {
        let h = enabled();
        assert_eq!(h.cu.simulated, 5);
        for m in ALL { assert!(transfer(&h, m, 3) == pattern(3, N), "{m}"); }
        // Off again: staged, and right.
        assert_eq!(h.on(0).cu.cuCtxDisablePeerAccess(h.contexts[1]), 0);
        assert_eq!(h.on(0).cu.cuCtxDisablePeerAccess(h.contexts[1]), 705);
        assert!(transfer(&h, "ce_push", 4) == pattern(4, N));
    };
    every_peer_way_zeroed_but_staged on "rtxpro6000-x8-zeroed", [], [] => || {
        let h = Host::new();
        assert!(transfer(&h, "ce_push", 4) == pattern(4, N), "staged");
        for (a, b) in [(0, 1), (1, 0)] { assert_eq!(h.enable(a, b), 0); }
        let mut can = 0;
        assert_eq!(h.cu.cuDeviceCanAccessPeer(&mut can, 0, 1), 0);
        assert_eq!(can, 1);
        for m in ALL { assert!(transfer(&h, m, 3).iter().all(|&b| b == 0), "{m}"); }
    };
    a_fault_strikes_its_mechanism_only on PRO, [], ["0>1:ce_push=dropped"] => || {
        let h = enabled();
        assert!(transfer(&h, "ce_push", 9).iter().all(|&b| b == POISON));
        for m in &ALL[1..] { assert!(transfer(&h, m, 9) == pattern(9, N), "{m}"); }
    };
    a_fault_strikes_its_direction_only on PRO, [], ["1>0:any=dropped"] => || {
        let h = enabled();
        for m in ALL { assert!(transfer(&h, m, 9) == pattern(9, N), "{m}"); }
        let (a, b) = (h.alloc(1, N), h.alloc(0, N));
        h.put(1, a, &pattern(1, N));
        h.put(0, b, &[POISON; N]);
        assert_eq!(h.copy(1, (1, a), (0, b), N), 0);
        assert!(h.get(0, b, N).iter().all(|&x| x == POISON));
    };
    ones_arrive on PRO, [], ["0>1:any=ones"] => || {
        let h = enabled();
        for m in ALL { assert!(transfer(&h, m, 3).iter().all(|&b| b == 0xff), "{m}"); }
    };
    stale_is_the_content_before on PRO, [], ["0>1:ce_push=stale", "0>1:sm_store=stale", "0>1:sm_load=stale"] => || {
        let h = enabled();
        for m in ["ce_push", "sm_store"] {
            let (a, b) = (h.alloc(0, N), h.alloc(1, N));
            let first = transfer_between(&h, m, 1, a, b);
            if m == "sm_store" { assert!(first.iter().all(|&x| x == POISON), "{m}"); }
            assert!(transfer_between(&h, m, 2, a, b) == pattern(1, N), "{m}");
        }
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        assert!(transfer_between(&h, "sm_load", 1, a, b) == pattern(1, N));
        assert!(transfer_between(&h, "sm_load", 2, a, b) == pattern(1, N));
    };
    misrouted_bytes_are_another_pairs on PRO, [], ["0>1:ce_push=misrouted", "0>1:sm_store=misrouted:to=3"] => || {
        let h = enabled();
        assert_eq!(h.enable(2, 3), 0);
        let (c, d) = (h.alloc(2, N), h.alloc(3, N));
        h.put(2, c, &pattern(77, N));
        assert_eq!(h.copy(2, (2, c), (3, d), N), 0);
        assert!(transfer(&h, "ce_push", 5) == pattern(77, N));
        assert!(transfer(&h, "sm_store", 6).iter().all(|&b| b == POISON));
        assert!(h.get(3, d, N) == pattern(6, N));
    };
    spilled_goes_past_the_end on PRO, [], ["0>1:ce_push=spilled:bytes=32", "0>1:sm_store=spilled:bytes=32"] => || {
        let h = enabled();
        for m in ["ce_push", "sm_store"] {
            let (a, b) = (h.alloc(0, 4096), h.alloc(1, 8192));
            h.put(0, a, &pattern(1, 4096));
            h.put(1, b, &[POISON; 8192]);
            let code = if m == "ce_push" { h.copy(0, (0, a), (1, b), 4096) } else { h.sm_copy(0, b, a, 4096) };
            assert_eq!(code, 0);
            let got = h.get(1, b, 8192);
            assert!(got[4096..4128].iter().any(|&x| x != POISON) && got[4128..].iter().all(|&x| x == POISON), "{m}");
        }
    };
    shifted_lands_further on PRO, [], ["0>1:any=shifted:bytes=24"] => || {
        let h = enabled();
        for m in ["ce_push", "ce_pull", "sm_store"] {
            let got = transfer(&h, m, 8);
            assert!(got[..24].iter().all(|&x| x == POISON) && got[24..] == pattern(8, N)[..N - 24], "{m}");
        }
        assert!(transfer(&h, "sm_load", 8)[..N - 24] == pattern(8, N)[24..]);
    };
    flipped_inverts_few_bits on PRO, [], ["0>1:any=flipped:mask=1:every=4096"] => || {
        let h = enabled();
        for m in ALL {
            let (got, want) = (transfer(&h, m, 8), pattern(8, N));
            let wrong: Vec<usize> = (0..N).filter(|&i| got[i] != want[i]).collect();
            assert_eq!(wrong, (0..N).step_by(4096).collect::<Vec<_>>(), "{m}");
            assert!(wrong.iter().all(|&i| got[i] ^ want[i] == 1));
        }
    };
    partial_leaves_poison on PRO, [], ["0>1:ce=partial:keep=4096:hole=8192", "0>1:sm_store=partial:keep=4096"] => || {
        let h = enabled();
        let want = pattern(2, N);
        for m in ["ce_push", "ce_pull"] {
            let got = transfer(&h, m, 2);
            assert!(got[..4096] == want[..4096] && got[4096..12288].iter().all(|&x| x == POISON) && got[12288..] == want[12288..], "{m}");
        }
        let got = transfer(&h, "sm_store", 2);
        assert!(got[..4096] == want[..4096] && got[4096..].iter().all(|&x| x == POISON));
    };
    a_mirror_shows_only_to_the_writer on "opaque-vm-mirrored", [], [] => || {
        let h = enabled();
        for m in ["ce_push", "sm_store"] {
            let (a, b, back) = (h.alloc(0, N), h.alloc(1, N), h.alloc(0, N));
            assert!(transfer_between(&h, m, 5, a, b).iter().all(|&x| x == POISON), "{m}: owner");
            let code = if m == "ce_push" { h.copy(0, (1, b), (0, back), N) } else { h.sm_copy(0, back, b, N) };
            assert_eq!(code, 0);
            assert!(h.get(0, back, N) == pattern(5, N), "{m}: writer");
        }
    };
    occurrence_is_kept on PRO, [], ["0>1:ce_push=zeroed:nth=3", "0>1:ce_pull=zeroed:once", "0>1:sm_store=zeroed:after=2"] => || {
        let h = enabled();
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        let seen = |m| (0..6).map(|_| transfer_between(&h, m, 3, a, b) != pattern(3, N)).collect::<Vec<bool>>();
        assert_eq!(seen("ce_push"), [false, false, true, false, false, true]);
        assert_eq!(seen("ce_pull"), [true, false, false, false, false, false]);
        assert_eq!(seen("sm_store"), [false, false, true, true, true, true]);
    };
    only_past_an_offset on PRO, [], ["0>1:ce_push=zeroed:min_offset=4Mi", "0>1:ce_pull=zeroed:min_bytes=65537"] => || {
        let h = enabled();
        let (a, low) = (h.alloc(0, N), h.alloc(1, N));
        assert!(transfer_between(&h, "ce_push", 3, a, low) == pattern(3, N));
        assert!(transfer_between(&h, "ce_pull", 3, a, low) == pattern(3, N));
        let _fill = h.alloc(1, 4 << 20);
        let high = h.alloc(1, N);
        assert!(transfer_between(&h, "ce_push", 3, a, high).iter().all(|&x| x == 0));
    };
    host_links_can_be_wrong on PRO, [], ["2>host:bounce_d2h=flipped:mask=2:every=1024", "host>3:bounce_h2d=zeroed"] => || {
        let h = Host::new();
        let (a, b) = (h.alloc(2, N), h.alloc(3, N));
        h.put(2, a, &pattern(1, N));
        assert!(h.get(2, a, N) != pattern(1, N));
        h.put(3, b, &pattern(1, N));
        assert!(h.get(3, b, N).iter().all(|&x| x == 0));
    };
    own_memory_can_be_wrong on PRO, [], ["2>2:own=flipped:mask=2:every=1024"] => || {
        let h = Host::new();
        let (a, b, c, d) = (h.alloc(2, N), h.alloc(2, N), h.alloc(1, N), h.alloc(1, N));
        h.put(2, a, &pattern(1, N));
        h.put(1, c, &pattern(1, N));
        assert_eq!((h.sm_copy(2, b, a, N), h.sm_copy(1, d, c, N)), (0, 0));
        assert!(h.get(2, b, N) != pattern(1, N) && h.get(1, d, N) == pattern(1, N));
    };
    atomics_can_be_lost on PRO, [], ["0>1:atomic=dropped"] => || {
        let h = enabled();
        for (gpu, want) in [(0, 0_u8), (1, 1)] {
            let at = h.alloc(1, 4096);
            let f = h.function(gpu, EXTRA, "add_one");
            let s = h.stream(gpu, NON_BLOCKING);
            assert_eq!(h.launch(gpu, f, 1, 1, s, vec![at]), 0);
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            assert_eq!(h.get(1, at, 4), [want, 0, 0, 0]);
        }
    };
    a_sticky_error_poisons_one_context on PRO, [], ["0>1:ce_push=sticky:code=700"] => || {
        let h = enabled();
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        assert_eq!(h.copy(0, (0, a), (1, b), N), 700);
        assert_eq!(h.cu.cuCtxSynchronize(), 700);
        let mut p = 0;
        assert_eq!(h.cu.cuMemAlloc_v2(&mut p, 64), 700);
        assert_eq!(h.on(1).cu.cuMemAlloc_v2(&mut p, 64), 0);
    };
    a_peer_not_enabled_is_an_illegal_address on PRO, [], [] => || {
        let h = Host::new();
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        assert_eq!(h.sm_copy(0, b, a, N), 700);
        let mut p = 0;
        assert_eq!(h.cu.cuMemAlloc_v2(&mut p, 64), 700);
    };
    slow_shows_in_modelled_time on PRO, [], ["0>1:ce_push=slow:factor=8"] => || {
        let h = enabled();
        let (a, b, n) = (h.alloc(0, 8 << 20), h.alloc(1, 8 << 20), 8 << 20);
        let time = |executor: usize| {
            let s = h.stream(executor, NON_BLOCKING);
            let (x, y) = (h.event(), h.event());
            h.cu.cuEventRecord(x, s);
            assert_eq!(h.cu.cuMemcpyPeerAsync(b, h.contexts[1], a, h.contexts[0], n, s), 0);
            h.cu.cuEventRecord(y, s);
            assert_eq!(h.cu.cuEventSynchronize(y), 0);
            let mut ms = 0.0;
            assert_eq!(h.cu.cuEventElapsedTime(&mut ms, x, y), 0);
            ms
        };
        let (push, pull) = (time(0), time(1));
        assert!(push > 7.0 * pull && push < 8.5 * pull, "{push} {pull}");
        let rate = n as f32 / pull / 1e6;
        assert!((50.0..58.0).contains(&rate), "{rate} GB/s");
    };
    two_flows_share_a_link_and_opposite_ones_do_not on PRO, [], [] => || {
        let h = Host::new();
        for (a, b) in [(0, 1), (0, 2), (1, 0)] { assert_eq!(h.enable(a, b), 0); }
        let n = 4 << 20;
        let buffers: Vec<Ptr> = [0, 0, 1, 1, 2].iter().map(|&g| h.alloc(g, n)).collect();
        // Times of copies submitted together, each on a stream of its own.
        let together = |list: &[(usize, usize, usize, usize)]| -> Vec<f32> {
            let marks: Vec<_> = list.iter().map(|&(sg, s, dg, d)| {
                let stream = h.stream(sg, NON_BLOCKING);
                let (x, y) = (h.event(), h.event());
                h.cu.cuEventRecord(x, stream);
                assert_eq!(h.cu.cuMemcpyPeerAsync(buffers[d], h.contexts[dg], buffers[s], h.contexts[sg], n, stream), 0);
                h.cu.cuEventRecord(y, stream);
                (x, y)
            }).collect();
            marks.iter().map(|&(x, y)| {
                assert_eq!(h.cu.cuEventSynchronize(y), 0);
                let mut ms = 0.0;
                assert_eq!(h.cu.cuEventElapsedTime(&mut ms, x, y), 0);
                ms
            }).collect()
        };
        let alone = together(&[(0, 0, 1, 2)])[0];
        let shared = together(&[(0, 0, 1, 2), (0, 0, 2, 4)]);
        let opposite = together(&[(0, 0, 1, 2), (1, 3, 0, 1)]);
        assert!(shared.iter().all(|t| *t > 1.8 * alone && *t < 2.1 * alone), "{alone} {shared:?}");
        assert!(opposite.iter().all(|t| *t < 1.1 * alone), "{alone} {opposite:?}");
    };
    the_null_stream_orders_blocking_streams on PRO, [], [] => || {
        let h = Host::new();
        let n = 8 << 20;
        let a = h.alloc(0, n);
        let (blocking, free) = (h.stream(0, 0), h.stream(0, NON_BLOCKING));
        let time = |first: Handle, second: Handle| {
            let (x, y, z) = (h.event(), h.event(), h.event());
            h.cu.cuEventRecord(x, first);
            assert_eq!(h.cu.cuMemsetD8Async(a, 1, n, first), 0);
            h.cu.cuEventRecord(y, first);
            h.cu.cuEventRecord(z, second);
            assert_eq!((h.cu.cuEventSynchronize(y), h.cu.cuEventSynchronize(z)), (0, 0));
            let mut ms = [0.0; 2];
            assert_eq!((h.cu.cuEventElapsedTime(&mut ms[0], x, y), h.cu.cuEventElapsedTime(&mut ms[1], x, z)), (0, 0));
            ms
        };
        let null: Handle = std::ptr::null_mut();
        for (first, second, ordered) in [(null, blocking, true), (blocking, null, true), (null, free, false), (free, null, false), (blocking, free, false)] {
            let [own, other] = time(first, second);
            assert_eq!(other >= own, ordered, "{own} {other} {ordered}");
        }
    };
    events_join_streams on PRO, [], [] => || {
        let h = Host::new();
        let a = h.alloc(0, N);
        let (s, t) = (h.stream(0, NON_BLOCKING), h.stream(0, NON_BLOCKING));
        let e = h.event();
        h.cu.cuMemsetD8Async(a, 7, N, s);
        h.cu.cuEventRecord(e, s);
        assert_eq!(h.cu.cuStreamWaitEvent(t, e, 0), 0);
        let mut out = vec![0_u8; N];
        assert_eq!(h.cu.cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), a, N, t), 0);
        assert_eq!(h.cu.cuStreamSynchronize(t), 0);
        assert!(out.iter().all(|&x| x == 7));
    };
    resident_kernels_wait_for_each_other on PRO, [], [] => || {
        let h = enabled();
        let ptx = include_str!("ptx/kernels.ptx");
        let flags: Vec<Ptr> = (0..2).map(|g| { let p = h.alloc(g, 4096); h.put(g, p, &[0; 4096]); p }).collect();
        let payload = h.alloc(1, 4096);
        let streams: Vec<Handle> = (0..2).map(|g| h.stream(g, NON_BLOCKING)).collect();
        for g in 0..2_usize {
            let f = h.function(g, ptx, "ping");
            let args = vec![flags[g], flags[1 - g], payload, 20, u64::from(g == 0), 2_000_000_000, flags[g] + 64];
            assert_eq!(h.launch(g, f, 1, 1, streams[g], args), 0);
        }
        for g in 0..2 {
            assert_eq!(h.on(g).cu.cuStreamSynchronize(streams[g]), 0);
            assert_eq!(h.get(g, flags[g], 4), 20_u32.to_le_bytes());
            assert_eq!(h.get(g, flags[g] + 64, 4), [0; 4]);
        }
    };
    a_missing_fence_shows_in_the_weak_mode on PRO, ["weak_memory=5"], [] => || {
        let h = enabled();
        for fenced in [1, 0] {
            // On GPU 1: payload, flag, what was seen. On GPU 0: the answer.
            let (b, a) = (h.alloc(1, 4096), h.alloc(0, 4096));
            h.put(1, b, &[0; 4096]);
            h.put(0, a, &[0; 4096]);
            let (s, t) = (h.stream(0, NON_BLOCKING), h.stream(1, NON_BLOCKING));
            let (send, receive) = (h.function(0, EXTRA, "send"), h.function(1, EXTRA, "receive"));
            assert_eq!(h.launch(0, send, 1, 1, s, vec![b, b + 64, a, fenced]), 0);
            assert_eq!(h.launch(1, receive, 1, 1, t, vec![b, b + 64, a, b + 128]), 0);
            assert_eq!((h.on(0).cu.cuStreamSynchronize(s), h.on(1).cu.cuStreamSynchronize(t)), (0, 0));
            assert_eq!(h.get(1, b + 128, 8), (77 * fenced).to_le_bytes(), "fenced: {fenced}");
            assert_eq!(h.get(1, b, 8), 77_u64.to_le_bytes(), "all has arrived at the end");
        }
        for m in ALL { assert!(transfer(&h, m, 3) == pattern(3, N), "{m}"); }
    };
    visible_devices_are_chosen_by_the_environment on PRO, [], [] => || {
        // SAFETY: before any other thread of this process.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "5,2") };
        let h = Host::new();
        assert_eq!(h.contexts.len(), 2);
        let mut text = [0; 16];
        assert_eq!(h.cu.cuDeviceGetPCIBusId(text.as_mut_ptr(), 16, 0), 0);
        assert_eq!(text.map(|c| c as u8)[..12], *b"0000:A1:00.0");
    };
    bad_handles_are_refused on PRO, [], [] => || {
        let h = Host::new();
        h.on(0);
        let wild = 0x1234 as Handle;
        let mut p = 0;
        assert_eq!(h.cu.cuStreamSynchronize(wild), 400);
        assert_eq!(h.cu.cuEventQuery(wild), 400);
        assert_eq!(h.cu.cuModuleUnload(wild), 400);
        assert_eq!(h.cu.cuCtxSetCurrent(wild), 201);
        assert_eq!(h.cu.cuMemFree_v2(0x1234), 1);
        assert_eq!(h.cu.cuMemcpyDtoH_v2((&raw mut p).cast(), 0x1234, 8), 1);
        assert_eq!(h.cu.cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()), 400);
        assert_eq!(h.cu.cuCtxSetCurrent(std::ptr::null_mut()), 0);
        assert_eq!(h.cu.cuMemAlloc_v2(&mut p, 8), 201);
        let mut name = std::ptr::null();
        assert_eq!(h.cu.cuGetErrorName(12345, &mut name), 1);
        assert!(name.is_null());
    };
    memory_is_as_large_as_stated on PRO, [], [] => || {
        let h = Host::new();
        let (mut free, mut total) = (0, 0);
        assert_eq!(h.on(4).cu.cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!((free, total), (32 << 20, 32 << 20));
        let p = h.alloc(4, 24 << 20);
        let mut q = 0;
        assert_eq!(h.cu.cuMemAlloc_v2(&mut q, 9 << 20), 2);
        assert_eq!(h.cu.cuMemFree_v2(p), 0);
        assert_eq!(h.cu.cuMemAlloc_v2(&mut q, 9 << 20), 0);
    };
    eight_peers_at_once_and_no_more on "sixteen-gpus", [], [] => || {
        let h = Host::new();
        let codes: Vec<u32> = (1..10).map(|p| h.enable(0, p)).collect();
        assert_eq!(codes, [0, 0, 0, 0, 0, 0, 0, 0, 711]);
        assert_eq!(h.cu.cuCtxDisablePeerAccess(h.contexts[3]), 0);
        assert_eq!(h.enable(0, 9), 0);
    };
    refusals_and_claims on "geforce-x2-refused", [], [] => || {
        let h = Host::new();
        let mut can = 9;
        assert_eq!(h.cu.cuDeviceCanAccessPeer(&mut can, 0, 1), 0);
        assert_eq!((can, h.enable(0, 1)), (0, 217));
        assert!(transfer(&h, "ce_push", 4) == pattern(4, N), "staged");
    };
    advertised_but_refused on PRO, [], ["0>1:enable=refusal:code=217"] => || {
        let h = Host::new();
        let mut can = 0;
        assert_eq!(h.cu.cuDeviceCanAccessPeer(&mut can, 0, 1), 0);
        assert_eq!((can, h.enable(0, 1), h.enable(1, 0)), (1, 217, 0));
    };
    no_jit_is_said on PRO, ["driver.jit_error=221"], [] => || {
        let h = Host::new();
        let mut m = std::ptr::null_mut();
        assert_eq!(h.on(0).cu.cuModuleLoadData(&mut m, c".version 6.4\n.target sm_70".as_ptr().cast()), 221);
    };
}

#[test]
fn a_hang_stays_a_hang_until_the_process_is_killed() {
    let name = "a_hang_stays_a_hang_until_the_process_is_killed";
    let output = in_child(name, "hang-one-pair", &[], &[], || {
        let h = Host::new();
        assert_eq!(h.enable(2, 5), 0);
        assert_eq!(h.enable(2, 4), 0);
        let (a, b, c) = (h.alloc(2, N), h.alloc(5, N), h.alloc(4, N));
        let (s, t) = (h.stream(2, NON_BLOCKING), h.stream(2, NON_BLOCKING));
        assert_eq!(
            h.cu.cuMemcpyPeerAsync(b, h.contexts[5], a, h.contexts[2], N, s),
            0
        );
        assert_eq!(
            h.cu.cuMemcpyPeerAsync(c, h.contexts[4], a, h.contexts[2], N, t),
            0
        );
        assert_eq!(h.cu.cuStreamSynchronize(t), 0);
        assert!(!until(Duration::from_millis(300), || h.cu.cuStreamQuery(s) != 600));
        // SAFETY: this very process.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    if let Some(output) = output {
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGKILL),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn death_takes_the_process() {
    let output = in_child(
        "death_takes_the_process",
        PRO,
        &[],
        &["0>1:ce_push=death"],
        || {
            transfer(&enabled(), "ce_push", 1);
        },
    );
    if let Some(output) = output {
        assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    }
}

/// The other process of `memory_is_shared_between_processes`.
#[test]
fn importer() {
    let Ok(text) = std::env::var("SIMHOST_TEST_TICKET") else {
        return;
    };
    let bytes: Vec<u8> = text.split(' ').map(|w| w.parse().unwrap()).collect();
    let ticket = Ticket(bytes.try_into().unwrap());
    let h = Host::new();
    let mut p = 0;
    assert_eq!(h.on(1).cu.cuIpcOpenMemHandle_v2(&mut p, ticket, 1), 0);
    assert!(h.get(1, p, N) == pattern(40, N));
    // Without any enabled peer: the mapping carries its own access.
    let own = h.alloc(1, N);
    h.put(1, own, &pattern(41, N));
    assert_eq!(h.sm_copy(1, p, own, N), 0);
    assert_eq!(h.on(1).cu.cuIpcCloseMemHandle(p), 0);
    assert_eq!(h.on(1).cu.cuIpcCloseMemHandle(p), 1);
}

fn share(fault_free: bool) {
    let h = Host::new();
    let a = h.alloc(0, N);
    h.put(0, a, &pattern(40, N));
    let mut ticket = Ticket([0; 64]);
    assert_eq!(h.cu.cuIpcGetMemHandle(&mut ticket, a), 0);
    let mut p = 0;
    assert_eq!(
        h.cu.cuIpcOpenMemHandle_v2(&mut p, ticket, 1),
        201,
        "own handle"
    );
    let text: Vec<String> = ticket.0.iter().map(u8::to_string).collect();
    let output = run_self("importer", |c| {
        c.env("SIMHOST_TEST_TICKET", text.join(" "));
    });
    must_pass(Some(output));
    let got = h.get(0, a, N);
    if fault_free {
        assert!(got == pattern(41, N))
    } else {
        assert!(got == pattern(40, N), "dropped")
    }
}

simulated! {
    memory_is_shared_between_processes on PRO, [], [] => || share(true);
    faults_can_ask_for_ipc on PRO, [], ["1>0:ipc.sm_store=dropped"] => || share(false);
}

#[test]
fn launches_are_quick_enough_to_use() {
    must_pass(in_child(
        "launches_are_quick_enough_to_use",
        PRO,
        &[],
        &[],
        || {
            let h = Host::new();
            let f = h.function(0, EXTRA, "add_one");
            let (at, s) = (h.alloc(0, 4096), h.stream(0, NON_BLOCKING));
            let start = Instant::now();
            for _ in 0..200 {
                assert_eq!(h.launch(0, f, 1, 1, s, vec![at]), 0);
            }
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            assert_eq!(h.get(0, at, 4), 200_u32.to_le_bytes());
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{:?}",
                start.elapsed()
            );
            let _: *mut c_void = s;
        },
    ));
}
