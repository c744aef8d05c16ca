//! The committed kernels of all-reduces in the weak memory mode: right with their releases, and caught when a copy of them
//! lacks one.
mod harness;

use harness::*;

const PRO: &str = "rtxpro6000-x8-root-complex";
const PTX: &str = include_str!("../../../kernels/reduce.ptx");
/// As in the source.
const FLAGS: usize = 3 * 256 * 8 * 4;
const EPOCHS: usize = 8 * 256;
const STATE: usize = EPOCHS + 16 * 256;
const FP32: u64 = 2;
/// Elements of a vector, and its bytes.
const COUNT: usize = 2048;
const BYTES: usize = 4 * COUNT;
const CALLS: usize = 8;

macro_rules! simulated {
    ($($name:ident on $scenario:expr, $settings:expr, $faults:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            must_pass(in_child(stringify!($name), $scenario, &$settings, &$faults, || { let body: fn() = $body; body() }));
        }
    )*};
}

/// What rank `rank` puts into element `i` of a call.
fn term(rank: usize, call: usize, i: usize) -> f32 {
    (1 + i + 5000 * call + 100_000 * rank) as f32
}

/// Calls in which some rank of two got a wrong sum by this PTX, each call with other data.
fn wrong_calls(h: &Host, ptx: &str, (entry, slots, room): (&str, usize, usize)) -> usize {
    let mailbox = FLAGS + slots * room;
    let sides: Vec<[Ptr; 4]> = (0..2)
        .map(|gpu| {
            let own = [mailbox, STATE + 256, CALLS * BYTES, CALLS * BYTES].map(|n| h.alloc(gpu, n));
            h.put(gpu, own[0], &vec![0xff; mailbox]);
            // Epochs, then nothing given up, then the stop word.
            h.put(
                gpu,
                own[1],
                &[vec![0xff; EPOCHS], vec![0; STATE - EPOCHS + 256]].concat(),
            );
            let vectors: Vec<u8> = (0..CALLS * COUNT)
                .flat_map(|n| term(gpu, n / COUNT, n % COUNT).to_le_bytes())
                .collect();
            h.put(gpu, own[2], &vectors);
            own
        })
        .collect();
    let streams: Vec<Handle> = (0..2).map(|gpu| h.stream(gpu, NON_BLOCKING)).collect();
    let functions: Vec<Handle> = (0..2).map(|gpu| h.function(gpu, ptx, entry)).collect();
    for call in 0..CALLS {
        for gpu in 0..2 {
            let [_, state, from, to] = sides[gpu];
            let at = (call * BYTES) as u64;
            let mut arguments = vec![from + at, to + at, COUNT as u64, FP32, gpu as u64, 2];
            arguments.extend((0..8).map(|rank| sides[rank.min(1)][0]));
            arguments.extend([state, state + STATE as u64, room as u64, 5_000_000_000]);
            assert_eq!(
                h.launch(gpu, functions[gpu], 2, 64, streams[gpu], arguments),
                0
            );
        }
    }
    let mut wrong = [false; CALLS];
    for gpu in 0..2 {
        assert_eq!(h.on(gpu).cu.cuStreamSynchronize(streams[gpu]), 0);
        let seen = h.get(gpu, sides[gpu][3], CALLS * BYTES);
        for (n, bits) in seen.as_chunks::<4>().0.iter().enumerate() {
            let (call, i) = (n / COUNT, n % COUNT);
            wrong[call] |= f32::from_le_bytes(*bits) != term(0, call, i) + term(1, call, i);
        }
    }
    wrong.iter().filter(|wrong| **wrong).count()
}

/// Every kernel that announces payload by flags: entry, slots of a mailbox, bytes of a slot.
const FLAGGED: [(&str, usize, usize); 4] = [
    ("peerproof_reduce_push", 4, BYTES),
    ("peerproof_reduce_pull", 2, BYTES),
    ("peerproof_reduce_two_shot", 8, BYTES / 2),
    ("peerproof_reduce_staged", 8, BYTES / 2),
];

/// Two GPUs that reach each other.
fn pair() -> Host {
    let h = Host::new();
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(h.enable(from, to), 0);
    }
    h
}

simulated! {
    the_committed_kernels_are_right_in_the_weak_mode on PRO, ["weak_memory=11"], [] => || {
        let h = pair();
        for case in FLAGGED {
            assert_eq!(wrong_calls(&h, PTX, case), 0, "{case:?}");
        }
        assert_eq!(wrong_calls(&h, PTX, ("peerproof_reduce_words", 4, 2 * BYTES)), 0);
    };
    a_missing_release_is_caught_in_the_weak_mode on PRO, ["weak_memory=11"], [] => || {
        let unfenced = PTX.replace("st.release.sys.global.u32", "st.relaxed.sys.global.u32");
        assert_ne!(unfenced, PTX);
        let h = pair();
        // A pull leaves its vector in memory of its own, which the mode does not delay.
        for case in FLAGGED.iter().filter(|(entry, ..)| !entry.ends_with("pull")) {
            assert!(wrong_calls(&h, &unfenced, *case) > 0, "{case:?}");
        }
    };
}
