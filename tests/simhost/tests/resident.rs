//! The committed kernels that wait for each other, in the weak memory mode: right with their fences, and caught when a
//! copy of them lacks one.
mod harness;

use harness::*;

const PRO: &str = "rtxpro6000-x8-root-complex";
const PTX: &str = include_str!("../../../kernels/resident.ptx");
const CHANNELS: u64 = 4;
const SLOT: u64 = 1024;
const ROUNDS: u64 = 64;
const FLAGS: u64 = 128;
const REPORT: usize = 96;

macro_rules! simulated {
    ($($name:ident on $scenario:expr, $settings:expr, $faults:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            must_pass(in_child(stringify!($name), $scenario, &$settings, &$faults, || { let body: fn() = $body; body() }));
        }
    )*};
}

/// What the channels of both GPUs report of an exchange by this PTX: how it ended, rounds judged, rounds wrong at the flag.
fn exchange(ptx: &str) -> Vec<[u64; 3]> {
    let h = Host::new();
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(h.enable(from, to), 0);
    }
    // The stop word may lie anywhere that both reach.
    let stop = h.alloc(0, 4096);
    h.put(0, stop, &[0; 4096]);
    let sides: Vec<[Ptr; 4]> = (0..2)
        .map(|gpu| {
            let sizes = [
                2 * CHANNELS * SLOT,
                CHANNELS * FLAGS,
                4096,
                3 * CHANNELS * SLOT,
            ];
            sizes.map(|bytes| {
                let at = h.alloc(gpu, bytes as usize);
                h.put(gpu, at, &vec![0; bytes as usize]);
                at
            })
        })
        .collect();
    let streams: Vec<Handle> = (0..2).map(|gpu| h.stream(gpu, NON_BLOCKING)).collect();
    let functions: Vec<Handle> = (0..2)
        .map(|gpu| h.function(gpu, ptx, "peerproof_resident"))
        .collect();
    for gpu in 0..2 {
        let ([inbox, flags, reports, evidence], peer) = (sides[gpu], sides[1 - gpu]);
        let keys = [0x1234_5678 << 16, 0x8765_4321 << 16];
        let arguments = vec![
            inbox,
            peer[0],
            flags,
            peer[1],
            reports,
            evidence,
            stop,
            keys[gpu],
            keys[1 - gpu],
            SLOT,
            ROUNDS,
            5_000_000_000,
            20_000_000,
        ];
        assert_eq!(
            h.launch(
                gpu,
                functions[gpu],
                CHANNELS as u32,
                128,
                streams[gpu],
                arguments
            ),
            0
        );
    }
    (0..2)
        .flat_map(|gpu| {
            assert_eq!(h.on(gpu).cu.cuStreamSynchronize(streams[gpu]), 0);
            let seen = h.get(gpu, sides[gpu][2], REPORT * CHANNELS as usize);
            seen.chunks(REPORT)
                .map(|channel| {
                    let word = |n: usize| {
                        u64::from_le_bytes(channel[8 * n..8 * n + 8].try_into().unwrap())
                    };
                    [word(1), word(2), word(3)]
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

simulated! {
    the_committed_kernel_is_right_in_the_weak_mode on PRO, ["weak_memory=11"], [] => || {
        assert_eq!(exchange(PTX), vec![[1, ROUNDS, 0]; 8]);
    };
    a_missing_fence_is_caught_in_the_weak_mode on PRO, ["weak_memory=11"], [] => || {
        let unfenced = PTX.replace("st.release.sys.global.u32", "st.relaxed.sys.global.u32");
        assert_ne!(unfenced, PTX);
        let reports = exchange(&unfenced);
        assert!(reports.iter().any(|[_, _, wrong]| *wrong > 0), "{reports:?}");
    };
}
