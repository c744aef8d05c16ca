//! Faults that need kernels, load or luck, and how often each one struck.
mod harness;

use harness::*;
use std::path::PathBuf;

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

/// How often each of the faults has struck so far.
fn struck(n: usize) -> Vec<u64> {
    let scenario = PathBuf::from(std::env::var_os("SIMHOST_SCENARIO").unwrap());
    simhost::world::strikes_of(&scenario, n).unwrap()
}

fn enabled() -> Host {
    let h = Host::new();
    for (a, b) in [(0, 1), (1, 0)] {
        assert_eq!(h.enable(a, b), 0);
    }
    h
}

/// A payload of GPU 0 and a flag, both on GPU 1: what GPU 1 saw when it saw the flag, and what lay there in the end.
fn send_and_receive(h: &Host, fenced: u64) -> (u64, u64) {
    let (b, a) = (h.alloc(1, 4096), h.alloc(0, 4096));
    h.put(1, b, &[0; 4096]);
    h.put(0, a, &[0; 4096]);
    let (s, t) = (h.stream(0, NON_BLOCKING), h.stream(1, NON_BLOCKING));
    let (send, receive) = (
        h.function(0, EXTRA, "send"),
        h.function(1, EXTRA, "receive"),
    );
    assert_eq!(
        h.launch(1, receive, 1, 1, t, vec![b, b + 64, a, b + 128]),
        0
    );
    assert_eq!(h.launch(0, send, 1, 1, s, vec![b, b + 64, a, fenced]), 0);
    assert_eq!(
        (
            h.on(0).cu.cuStreamSynchronize(s),
            h.on(1).cu.cuStreamSynchronize(t)
        ),
        (0, 0)
    );
    let number = |at| u64::from_le_bytes(h.get(1, at, 8).try_into().unwrap());
    (number(b + 128), number(b))
}

/// Ping-pong of GPUs 0 and 1 with a payload on each: the status of both.
fn exchange(h: &Host, limit_ns: u64) -> [u32; 2] {
    let ptx = include_str!("ptx/kernels.ptx");
    let flags: Vec<Ptr> = (0..2)
        .map(|g| {
            let p = h.alloc(g, 4096);
            h.put(g, p, &[0; 4096]);
            p
        })
        .collect();
    let payload = h.alloc(1, 4096);
    let streams: Vec<Handle> = (0..2).map(|g| h.stream(g, NON_BLOCKING)).collect();
    for g in 0..2_usize {
        let f = h.function(g, ptx, "ping");
        let args = vec![
            flags[g],
            flags[1 - g],
            payload,
            5,
            u64::from(g == 0),
            limit_ns,
            flags[g] + 64,
        ];
        assert_eq!(h.launch(g, f, 1, 1, streams[g], args), 0);
    }
    [0, 1].map(|g| {
        assert_eq!(h.on(g).cu.cuStreamSynchronize(streams[g]), 0);
        u32::from_le_bytes(h.get(g, flags[g] + 64, 4).try_into().unwrap())
    })
}

/// Launches a kernel of 32 threads that copies, and gives what arrived.
fn kernel_copy(h: &Host, name: &str, gpu: usize, to: Ptr, from: Ptr) {
    let (f, s) = (h.function(gpu, EXTRA, name), h.stream(gpu, NON_BLOCKING));
    assert_eq!(h.launch(gpu, f, 1, 32, s, vec![to, from]), 0);
    assert_eq!(h.cu.cuStreamSynchronize(s), 0);
}

simulated! {
    a_flag_can_overtake_its_payload on PRO, [], ["0>1:sm_store=late:us=300000"] => || {
        let h = enabled();
        assert_eq!(send_and_receive(&h, 1), (0, 77));
        assert_eq!(struck(1), [1]);
        // Without a flag nothing is late.
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        h.put(0, a, &pattern(3, N));
        assert_eq!(h.sm_copy(0, b, a, N), 0);
        assert!(h.get(1, b, N) == pattern(3, N));
        assert_eq!(struck(1), [1]);
    };
    the_weak_mode_and_late_flags_go_together on PRO, ["weak_memory=5"], ["0>1:sm_store=late:us=300000"] => || {
        let h = enabled();
        assert_eq!(send_and_receive(&h, 1), (0, 77));
    };
    a_late_payload_is_wrong_in_an_exchange on PRO, [], ["0>1:sm_store=late:us=300000"] => || {
        let h = enabled();
        // The receiver says in which round; the sender then waits in vain.
        let [sender, receiver] = exchange(&h, 300_000_000);
        assert_eq!((sender, receiver), (1, 0x8000_0001));
        assert_eq!(struck(1), [1]);
    };
    a_lost_flag_leaves_both_waiting on PRO, [], ["0>1:sm_store=lost_flag"] => || {
        let h = enabled();
        assert_eq!(exchange(&h, 100_000_000), [1, 1]);
        assert_eq!(struck(1), [1]);
        let (a, b) = (h.alloc(0, N), h.alloc(1, N));
        h.put(0, a, &pattern(3, N));
        assert_eq!(h.sm_copy(0, b, a, N), 0);
        assert!(h.get(1, b, N) == pattern(3, N), "plain stores arrive");
    };
    a_healthy_exchange_ends_well on PRO, [], [] => || assert_eq!(exchange(&enabled(), 3_000_000_000), [0, 0]);
    stores_of_other_sizes_are_told_apart on PRO, [], ["0>1:sm_store4=dropped", "1>0:sm_store16=dropped"] => || {
        let h = enabled();
        let buffers = [h.alloc(0, 4096), h.alloc(1, 4096)];
        let own = [h.alloc(0, 4096), h.alloc(1, 4096)];
        for (gpu, name, arrives) in [(0, "copy4", false), (0, "copy16", true), (1, "copy4", true), (1, "copy16", false)] {
            h.put(gpu, own[gpu], &pattern(5, 512));
            h.put(1 - gpu, buffers[1 - gpu], &[POISON; 512]);
            kernel_copy(&h, name, gpu, buffers[1 - gpu], own[gpu]);
            assert_eq!(h.get(1 - gpu, buffers[1 - gpu], 128) == pattern(5, 512)[..128], arrives, "{gpu} {name}");
        }
        assert_eq!(struck(2), [1, 1]);
    };
    kernels_and_host_memory_can_be_wrong on PRO, [], ["0>host:host_store=zeroed", "host>1:host_load=flipped:mask=1:every=8", "0>host:host_atomic=dropped"] => || {
        let h = Host::new();
        for gpu in 0..2 {
            let mut p: Handle = std::ptr::null_mut();
            assert_eq!(h.on(gpu).cu.cuMemHostAlloc(&mut p, 4096, 0), 0);
            // SAFETY: 4096 bytes of pinned memory that only finished kernels have touched.
            let host = unsafe { std::slice::from_raw_parts_mut(p.cast::<u8>(), 4096) };
            let own = h.alloc(gpu, 4096);
            h.put(gpu, own, &pattern(6, 128));
            host.fill(POISON);
            kernel_copy(&h, "copy4", gpu, p as Ptr, own);
            assert_eq!(host[..128] == pattern(6, 128), gpu == 1, "store by {gpu}");
            assert_eq!(host[..128].iter().all(|&b| b == 0), gpu == 0);
            host[..128].copy_from_slice(&pattern(7, 128));
            kernel_copy(&h, "copy4", gpu, own, p as Ptr);
            let got = h.get(gpu, own, 128);
            assert_eq!(got == pattern(7, 128), gpu == 0, "load by {gpu}");
            host.fill(0);
            let (f, s) = (h.function(gpu, EXTRA, "add_one"), h.stream(gpu, NON_BLOCKING));
            assert_eq!(h.launch(gpu, f, 1, 1, s, vec![p as Ptr]), 0);
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            assert_eq!(host[0], gpu as u8, "atomic by {gpu}");
        }
        assert_eq!(struck(3), [1, 1, 1]);
    };
    atomics_follow_their_fault on PRO, [], ["0>1:atomic=zeroed:at=1", "0>2:atomic=flipped:mask=6", "0>3:atomic=slow", "0>4:atomic=mirrored"] => || {
        let h = Host::new();
        let add = |to: usize| {
            assert!(matches!(h.enable(0, to), 0 | 704));
            let at = h.alloc(to, 4096);
            h.put(to, at, &[9, 0, 0, 0]);
            let (f, s) = (h.function(0, EXTRA, "add_one"), h.stream(0, NON_BLOCKING));
            assert_eq!(h.launch(0, f, 1, 1, s, vec![at]), 0);
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            h.get(to, at, 1)[0]
        };
        assert_eq!([add(1), add(1), add(2), add(3), add(4)], [0, 10, 16, 10, 9]);
        assert_eq!(struck(4), [1, 1, 1, 1]);
    };
    strikes_are_counted_and_launches_elsewhere_are_not on PRO, [], ["0>1:sm_store=zeroed:nth=2", "0>1:ce_push=ones", "0>1:sm_store=slow"] => || {
        let h = enabled();
        let (a, b, c) = (h.alloc(0, N), h.alloc(1, N), h.alloc(0, N));
        h.put(0, a, &pattern(2, N));
        let wrong = |n: usize| (0..n).filter(|_| { assert_eq!(h.sm_copy(0, b, a, N), 0); h.get(1, b, N) != pattern(2, N) }).count();
        for _ in 0..3 { assert_eq!(h.sm_copy(0, c, a, N), 0); }
        assert_eq!(struck(3), [0, 0, 0]);
        assert_eq!(wrong(4), 2);
        assert_eq!(struck(3), [2, 0, 4]);
        assert_eq!(h.copy(0, (0, a), (1, b), N), 0);
        assert_eq!(struck(3), [2, 1, 4]);
    };
    luck_follows_from_the_seed on PRO, [], ["0>1:ce_push=zeroed:random=0.25:seed=3", "0>1:ce_pull=zeroed:at=3"] => || {
        let h = enabled();
        let (a, b) = (h.alloc(0, 4096), h.alloc(1, 4096));
        h.put(0, a, &pattern(2, 4096));
        let wrong: Vec<bool> = (0..200).map(|_| { assert_eq!(h.copy(0, (0, a), (1, b), 4096), 0); h.get(1, b, 4096) != pattern(2, 4096) }).collect();
        let count = wrong.iter().filter(|w| **w).count();
        assert!((25..80).contains(&count), "{count}");
        assert_eq!(struck(2), [count as u64, 0]);
        let pulls: Vec<bool> = (0..4).map(|_| { assert_eq!(h.copy(1, (0, a), (1, b), 4096), 0); h.get(1, b, 4096) != pattern(2, 4096) }).collect();
        assert_eq!(pulls, [false, false, true, false]);
    };
    some_faults_strike_under_load_only on PRO, [], ["0>1:ce_push=zeroed:load=2", "0>1:sm_store=zeroed:load=1"] => || {
        let h = Host::new();
        for (a, b) in [(0, 1), (2, 3), (4, 5)] { assert_eq!(h.enable(a, b), 0); }
        let buffers: Vec<Ptr> = (0..6).map(|g| h.alloc(g, N)).collect();
        h.put(0, buffers[0], &pattern(4, N));
        let streams: Vec<Handle> = [0, 2, 4].iter().map(|&g| h.stream(g, NON_BLOCKING)).collect();
        // So many pairs at once, the watched one first.
        let pushes = |pairs: usize| {
            for i in 0..pairs {
                assert_eq!(h.on(2 * i).cu.cuMemcpyPeerAsync(buffers[2 * i + 1], h.contexts[2 * i + 1], buffers[2 * i], h.contexts[2 * i], N, streams[i]), 0);
            }
            for (i, s) in streams.iter().take(pairs).enumerate() { assert_eq!(h.on(2 * i).cu.cuStreamSynchronize(*s), 0); }
            h.get(1, buffers[1], N) == pattern(4, N)
        };
        assert_eq!([pushes(1), pushes(2), pushes(3), pushes(1)], [true, true, false, true]);
        assert_eq!(struck(2), [1, 0]);
        assert_eq!(h.sm_copy(0, buffers[1], buffers[0], N), 0);
        assert!(h.get(1, buffers[1], N) == pattern(4, N), "alone");
        let f = h.function(0, EXTRA, "copy8");
        assert_eq!(h.launch(0, f, 64, 128, streams[0], vec![buffers[1], buffers[0], (N / 8) as u64]), 0);
        assert_eq!(h.on(2).cu.cuMemcpyPeerAsync(buffers[3], h.contexts[3], buffers[2], h.contexts[2], N, streams[1]), 0);
        assert_eq!((h.on(0).cu.cuStreamSynchronize(streams[0]), h.on(2).cu.cuStreamSynchronize(streams[1])), (0, 0));
        assert!(h.get(1, buffers[1], N) != pattern(4, N), "beside a copy");
        assert_eq!(struck(2), [1, 1]);
    };
}

/// Rates in GB/s of copies started together, each of 8 MiB from one GPU to another, pushed or pulled.
fn rates(list: &[(usize, usize, bool)]) -> Vec<f32> {
    let (h, n) = (Host::new(), 8 << 20);
    let marks: Vec<_> = list
        .iter()
        .map(|&(from, to, push)| {
            let by = if push { from } else { to };
            assert_eq!(h.enable(by, from + to - by), 0);
            (
                h.alloc(from, n),
                h.alloc(to, n),
                h.stream(by, NON_BLOCKING),
                h.event(),
                h.event(),
            )
        })
        .collect();
    for (&(a, b, s, x, y), &(from, to, _)) in marks.iter().zip(list) {
        h.cu.cuEventRecord(x, s);
        assert_eq!(
            h.cu.cuMemcpyPeerAsync(b, h.contexts[to], a, h.contexts[from], n, s),
            0
        );
        h.cu.cuEventRecord(y, s);
    }
    marks
        .iter()
        .map(|&(.., x, y)| {
            assert_eq!(h.cu.cuEventSynchronize(y), 0);
            let mut ms = 0.0;
            assert_eq!(h.cu.cuEventElapsedTime(&mut ms, x, y), 0);
            n as f32 / ms / 1e6
        })
        .collect()
}

simulated! {
    writes_of_one_switch_to_one_root_are_fine on "posted-write-collapse", [], [] => || {
        assert!(rates(&[(0, 2, true), (1, 3, true)]).iter().all(|r| *r > 20.0));
    };
    writes_of_one_switch_to_two_roots_collapse on "posted-write-collapse", [], [] => || {
        let both = rates(&[(0, 2, true), (1, 4, true)]);
        assert!(both.iter().all(|r| *r < 1.6), "{both:?}");
    };
    reads_of_one_switch_to_two_roots_do_not on "posted-write-collapse", [], [] => || {
        let both = rates(&[(0, 2, false), (1, 4, false)]);
        assert!(both.iter().all(|r| *r > 20.0), "{both:?}");
    };
    one_write_alone_is_fine on "posted-write-collapse", [], [] => || {
        let one = rates(&[(0, 2, true)]);
        assert!(one[0] > 40.0, "{one:?}");
    };
}
