//! Captures and graphs as programs meet them.
mod harness;

use harness::*;

const N: usize = 64 << 10;
const PRO: &str = "rtxpro6000-x8-root-complex";
const RELAXED: u32 = 2;

macro_rules! simulated {
    ($($name:ident on $scenario:expr, $faults:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            must_pass(in_child(stringify!($name), $scenario, &[], &$faults, || { let body: fn() = $body; body() }));
        }
    )*};
}

fn begin(h: &Host, s: Handle) {
    assert_eq!(h.cu.cuStreamBeginCapture_v2(s, RELAXED), 0);
}

fn end(h: &Host, s: Handle) -> (u32, Handle) {
    let mut g = std::ptr::null_mut();
    (h.cu.cuStreamEndCapture(s, &mut g), g)
}

fn ready(h: &Host, s: Handle) -> Handle {
    let (code, g) = end(h, s);
    assert_eq!(code, 0);
    let mut x = std::ptr::null_mut();
    assert_eq!(h.cu.cuGraphInstantiateWithFlags(&mut x, g, 0), 0);
    assert_eq!(h.cu.cuGraphDestroy(g), 0);
    x
}

simulated! {
    a_graph_plays_what_was_captured on PRO, [] => || {
        let h = Host::new();
        let (counter, a, b, s) = (h.alloc(0, 4096), h.alloc(0, N), h.alloc(0, N), h.stream(0, NON_BLOCKING));
        for p in [counter, b] { h.put(0, p, &[0; 4096]); }
        let f = h.function(0, EXTRA, "add_one");
        begin(&h, s);
        assert_eq!(h.launch(0, f, 1, 1, s, vec![counter]), 0);
        assert_eq!(h.cu.cuMemsetD8Async(a, 6, N, s), 0);
        assert_eq!(h.cu.cuMemcpyAsync(b, a, N, s), 0);
        let mut status = 9;
        assert_eq!((h.cu.cuStreamIsCapturing(s, &mut status), status), (0, 1));
        let x = ready(&h, s);
        assert_eq!((h.cu.cuStreamIsCapturing(s, &mut status), status), (0, 0));
        assert!(h.get(0, counter, 4) == [0; 4], "a capture does nothing");
        for _ in 0..5 { assert_eq!(h.cu.cuGraphLaunch(x, s), 0); }
        assert_eq!(h.cu.cuStreamSynchronize(s), 0);
        assert_eq!(h.get(0, counter, 4), 5_u32.to_le_bytes());
        assert!(h.get(0, b, N).iter().all(|&v| v == 6));
        // In another stream, in its order.
        let t = h.stream(0, NON_BLOCKING);
        assert_eq!(h.cu.cuMemsetD8Async(counter, 0, 4, t), 0);
        assert_eq!(h.cu.cuGraphLaunch(x, t), 0);
        assert_eq!(h.cu.cuStreamSynchronize(t), 0);
        assert_eq!(h.get(0, counter, 4), 1_u32.to_le_bytes());
        assert_eq!((h.cu.cuGraphExecDestroy(x), h.cu.cuGraphExecDestroy(x)), (0, 400));
    };
    streams_fork_and_join_in_a_graph on PRO, [] => || {
        let h = Host::new();
        assert_eq!(h.enable(0, 1), 0);
        let (a, b, s, t) = (h.alloc(0, N), h.alloc(1, N), h.stream(0, NON_BLOCKING), h.stream(1, NON_BLOCKING));
        let (fork, join) = (h.event(), h.event());
        h.on(0);
        begin(&h, s);
        assert_eq!(h.cu.cuMemsetD8Async(a, 1, N, s), 0);
        assert_eq!(h.cu.cuEventRecord(fork, s), 0);
        assert_eq!(h.cu.cuStreamWaitEvent(t, fork, 0), 0);
        assert_eq!(h.cu.cuMemcpyPeerAsync(b, h.contexts[1], a, h.contexts[0], N, t), 0);
        assert_eq!(h.cu.cuEventQuery(join), 0, "never recorded");
        assert_eq!(h.cu.cuEventQuery(fork), 907);
        assert_eq!(h.cu.cuEventRecord(join, t), 0);
        assert_eq!(h.cu.cuStreamWaitEvent(s, join, 0), 0);
        assert_eq!(h.cu.cuMemsetD8Async(a, 2, N, s), 0);
        let x = ready(&h, s);
        for _ in 0..20 {
            h.put(1, b, &[0; N]);
            h.on(0);
            assert_eq!(h.cu.cuGraphLaunch(x, s), 0);
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            assert!(h.get(1, b, N).iter().all(|&v| v == 1));
            assert!(h.get(0, a, N).iter().all(|&v| v == 2));
        }
        // The streams are free again.
        assert_eq!((h.cu.cuMemsetD8Async(b, 3, N, t), h.cu.cuStreamSynchronize(t)), (0, 0));
    };
    captures_refuse_what_they_must on PRO, [] => || {
        let h = Host::new();
        let (a, s, t) = (h.alloc(0, N), h.stream(0, NON_BLOCKING), h.stream(0, NON_BLOCKING));
        let e = h.event();
        assert_eq!(h.cu.cuStreamBeginCapture_v2(std::ptr::null_mut(), RELAXED), 900);
        assert_eq!(end(&h, s).0, 401);
        begin(&h, s);
        assert_eq!(h.cu.cuStreamBeginCapture_v2(s, RELAXED), 401);
        assert_eq!(h.cu.cuStreamSynchronize(s), 900);
        assert_eq!(h.cu.cuMemsetD8Async(a, 1, N, s), 901);
        assert_eq!(end(&h, s).0, 901);
        begin(&h, s);
        assert_eq!(h.cu.cuEventRecord(e, s), 0);
        assert_eq!(h.cu.cuStreamWaitEvent(t, e, 0), 0);
        assert_eq!(h.cu.cuMemsetD8Async(a, 1, N, t), 0);
        assert_eq!(end(&h, s).0, 904, "not joined");
        begin(&h, s);
        assert_eq!(h.cu.cuEventRecord(e, t), 0);
        assert_eq!(h.cu.cuStreamWaitEvent(s, e, 0), 905, "from outside");
        assert_eq!(end(&h, s).0, 901);
    };
    faults_strike_launches_of_a_graph on PRO, ["0>1:ce_push=zeroed:nth=2"] => || {
        let h = Host::new();
        assert_eq!(h.enable(0, 1), 0);
        let (a, b, s) = (h.alloc(0, N), h.alloc(1, N), h.stream(0, NON_BLOCKING));
        h.put(0, a, &pattern(1, N));
        begin(&h, s);
        assert_eq!(h.cu.cuMemcpyPeerAsync(b, h.contexts[1], a, h.contexts[0], N, s), 0);
        let x = ready(&h, s);
        let right: Vec<bool> = (0..4).map(|_| {
            assert_eq!((h.cu.cuGraphLaunch(x, s), h.cu.cuStreamSynchronize(s)), (0, 0));
            h.get(1, b, N) == pattern(1, N)
        }).collect();
        assert_eq!(right, [true, false, true, false]);
    };
}
