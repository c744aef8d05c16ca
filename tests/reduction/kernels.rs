//! The committed kernels against the host's arithmetic: all of them, every type, 2 to 8 ranks, odd lengths.

use super::machine::{Device, MODULE, Ranks, number};
use peerproof::{
    gpu::reduce::{
        BLOCK_LIMIT, CALLS_BYTES, How, Kernel, POISON, Shape, VERDICT_BYTES, fresh_verdict,
        read_verdict,
    },
    model::reduction::Dtype,
    probe::reduction::{
        ROSTER, Tuning,
        exact::{Order, Values, Vector, expected, sum},
    },
};

/// Packs bits of elements.
fn pack(dtype: Dtype, bits: impl Iterator<Item = u32>) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(width))
        .collect()
}

fn order(kernel: Kernel) -> Order {
    match kernel {
        Kernel::Islands => Order::Islands,
        _ => Order::Ranks,
    }
}

/// Calls of one group, each with other data and, by turns, other lengths.
fn calls(ranks: &Ranks, dtype: Dtype, values: Values, counts: &[u64], how: (bool, u64), n: u64) {
    let order = order(ranks.shape.kernel);
    ranks.side_by_side(|rank| {
        for call in 0..n {
            let count = counts[call as usize % counts.len()];
            let own = Vector::new(dtype, values, 5, (rank, call));
            let input = pack(dtype, (0..count).map(|i| own.bits(i)));
            let seen = ranks.call(rank, dtype, &input, how);
            let wanted =
                (0..count).map(|i| expected(dtype, (values, order), (5, ranks.count), (call, i)));
            assert!(
                seen == pack(dtype, wanted),
                "{:?} {dtype} rank {rank} of {}, call {call}, {count} elements: {:?}",
                ranks.shape,
                ranks.count,
                ranks.given_up(rank)
            );
        }
    });
}

fn takes(kernel: Kernel, ranks: u32) -> bool {
    kernel != Kernel::Islands || matches!(ranks, 4 | 8)
}

/// Elements of a vector in these tests: not a whole number of units, or of shares of 2 to 8 ranks.
const MOST: u64 = 1003;

#[test]
fn every_kernel_is_exact_for_every_type_and_2_to_8_ranks() {
    // By turns, so that a slot holds leavings of a longer or shorter call: odd ends, a single element, a whole unit.
    let counts = [MOST, 1, MOST - 1, 8, 515, 7];
    for kernel in Kernel::ALL {
        for ranks in (2..=8).filter(|ranks| takes(kernel, *ranks)) {
            for dtype in Dtype::ALL {
                let values = match ranks % 2 {
                    0 => Values::Random,
                    _ => Values::Integers,
                };
                let shape = Shape {
                    kernel,
                    blocks: 3,
                    threads: 64,
                };
                let group = Ranks::new(shape, ranks, MOST * dtype.bytes());
                calls(&group, dtype, values, &counts, (false, 0), 6);
            }
        }
    }
}

#[test]
fn in_place_and_from_any_element_on() {
    for kernel in Kernel::ALL {
        for (dtype, in_place, skew) in [
            (Dtype::Bf16, true, 0),
            (Dtype::Fp32, true, 4),
            (Dtype::Fp16, false, 2),
            (Dtype::Bf16, true, 14),
        ] {
            let shape = Shape {
                kernel,
                blocks: 2,
                threads: 32,
            };
            let group = Ranks::new(shape, 4, 333 * dtype.bytes());
            calls(
                &group,
                dtype,
                Values::Random,
                &[333, 40],
                (in_place, skew),
                4,
            );
        }
    }
}

/// Slots are used over and over: whatever is left in one from an older call must never be taken for new.
#[test]
fn thousands_of_calls_in_a_row() {
    for (kernel, ranks, n) in [
        (Kernel::Words, 2, 4000),
        (Kernel::Push, 2, 2000),
        (Kernel::Pull, 3, 1000),
        (Kernel::TwoShot, 3, 500),
        (Kernel::Staged, 3, 500),
        (Kernel::Islands, 4, 500),
    ] {
        let shape = Shape {
            kernel,
            blocks: 2,
            threads: 32,
        };
        let group = Ranks::new(shape, ranks, 2 * 60);
        calls(
            &group,
            Dtype::Bf16,
            Values::Integers,
            &[60, 60, 59, 1],
            (false, 0),
            n,
        );
        for rank in 0..ranks {
            // Blocks that no grid used count along.
            assert_eq!(group.epochs(rank), vec![n as u32 - 1; BLOCK_LIMIT as usize]);
        }
    }
}

/// One group, grids of other sizes from call to call: the counts of all blocks stay alike.
#[test]
fn grids_may_change_from_call_to_call() {
    for kernel in Kernel::ALL {
        let mut group = Ranks::new(
            Shape {
                kernel,
                blocks: 1,
                threads: 32,
            },
            4,
            2 * 200,
        );
        for (call, blocks) in (0u64..).zip([1, 4, 2, 7, 1, 3]) {
            group.shape.blocks = blocks;
            let values = (Values::Random, order(kernel));
            group.side_by_side(|rank| {
                let own = Vector::new(Dtype::Fp16, values.0, 9, (rank, call));
                let input = pack(Dtype::Fp16, (0..200).map(|i| own.bits(i)));
                let wanted = (0..200).map(|i| expected(Dtype::Fp16, values, (9, 4), (call, i)));
                assert!(
                    group.call(rank, Dtype::Fp16, &input, (false, 0)) == pack(Dtype::Fp16, wanted),
                    "{kernel:?} {blocks} blocks"
                );
            });
        }
    }
}

/// A comparison that is not signed would hang or run ahead where the count of calls wraps.
#[test]
fn epochs_pass_the_end_of_32_bits() {
    for kernel in Kernel::ALL {
        let shape = Shape {
            kernel,
            blocks: 2,
            threads: 32,
        };
        let group = Ranks::new(shape, 4, 2 * 90);
        group.begin_at(u32::MAX - 2);
        calls(
            &group,
            Dtype::Bf16,
            Values::Integers,
            &[90, 13],
            (false, 0),
            8,
        );
        assert_eq!(group.epochs(0)[0], 4);
    }
}

/// Rank 2 of 4 never calls.
#[test]
fn who_waits_in_vain_names_rank_and_block() {
    for kernel in Kernel::ALL {
        let shape = Shape {
            kernel,
            blocks: 2,
            threads: 32,
        };
        let mut group = Ranks::new(shape, 4, 2 * 400);
        group.limit = 50_000_000;
        let begin = std::time::Instant::now();
        group.side_by_side(|rank| {
            if rank != 2 {
                group.call(rank, Dtype::Bf16, &[0; 800], (false, 0));
            }
        });
        assert!(begin.elapsed().as_secs() < 10, "{kernel:?}");
        // In its island, or around the ring, somebody waits for rank 2 itself.
        let waits: Vec<_> = [0, 1, 3]
            .iter()
            .flat_map(|rank| group.given_up(*rank))
            .collect();
        for block in 0..2 {
            let named = waits
                .iter()
                .find(|wait| wait.block == block && wait.rank == 2 && wait.call == 0);
            let named = named.unwrap_or_else(|| panic!("{kernel:?}: {waits:?}"));
            assert_eq!(named.how, How::Never);
            assert!(named.waited_us >= 50_000, "{named:?}");
        }
        assert!(group.given_up(2).is_empty());
    }
}

const BASE: u64 = 0x7f00_0000_0000;

/// Fill and verify are the host's twins, and verify says whose contribution is wrong.
#[test]
fn fill_and_verify_agree_with_the_host() {
    let count = 700u64;
    let (input, output, fills, verifies, verdict) = (0u64, 4096, 8192, 12288, 16384);
    for dtype in Dtype::ALL {
        for (values, order, ranks) in [
            (Values::Integers, Order::Ranks, 8),
            (Values::Random, Order::Ranks, 5),
            (Values::Random, Order::Islands, 8),
        ] {
            let device = Device::new(20480);
            let random = u64::from(values == Values::Random);
            let islands = u64::from(order == Order::Islands);
            let call = 41u64;
            let calls = call.to_le_bytes().repeat(CALLS_BYTES as usize / 8);
            device.put(fills, &calls);
            let fill = [
                BASE + input,
                BASE + output,
                count,
                number(dtype),
                3,
                77,
                random,
                BASE + fills,
            ];
            device.launch("peerproof_reduce_fill", (3, 64), &fill);
            let own = Vector::new(dtype, values, 77, (3, call));
            assert!(
                device.get(input, count * dtype.bytes())
                    == pack(dtype, (0..count).map(|i| own.bits(i))),
                "{dtype} {values:?}"
            );
            let poison = pack(dtype, (0..count).map(|_| POISON));
            assert!(device.get(output, count * dtype.bytes()) == poison);
            let counted = (call + 1).to_le_bytes().repeat(CALLS_BYTES as usize / 8);
            assert_eq!(device.get(fills, CALLS_BYTES), counted);

            let judge = |result: &[u8]| {
                device.put(verifies, &calls);
                device.put(verdict, &fresh_verdict());
                device.put(output, result);
                let verify = [
                    BASE + output,
                    count,
                    number(dtype),
                    ranks,
                    77,
                    random,
                    islands,
                    BASE + verifies,
                    BASE + verdict,
                ];
                device.launch("peerproof_reduce_verify", (3, 64), &verify);
                assert_eq!(device.get(verifies, CALLS_BYTES), counted);
                read_verdict(&device.get(verdict, VERDICT_BYTES)).unwrap()
            };
            let terms = |index: u64| -> Vec<u32> {
                let of = |rank| Vector::new(dtype, values, 77, (rank, call)).bits(index);
                (0..ranks as u32).map(of).collect()
            };
            let right = pack(dtype, (0..count).map(|i| sum(dtype, order, &terms(i))));
            let seen = judge(&right);
            assert_eq!(
                (seen.wrong, seen.judged, seen.first),
                (0, 1, None),
                "{dtype} {values:?}"
            );

            let mut one = right.clone();
            one[(300 * dtype.bytes()) as usize] ^= 1;
            let seen = judge(&one);
            assert_eq!(
                (seen.wrong, seen.first, seen.wrong_calls),
                (1, Some((call, 300)), 1)
            );
            let bits = sum(dtype, order, &terms(300)) ^ 1;
            assert_eq!(seen.got, Some(bits), "{dtype}");

            let seen = judge(&poison);
            assert_eq!((seen.wrong, seen.poison), (count, count));

            // Rank 2 left out, then rank 2 with what it put into the calls before.
            for (how, theirs) in [None, Some(call - 1), Some(call - 2)]
                .into_iter()
                .enumerate()
            {
                let wrong = pack(
                    dtype,
                    (0..count).map(|i| {
                        let mut all = terms(i);
                        all[2] = theirs
                            .map_or(0, |call| Vector::new(dtype, values, 77, (2, call)).bits(i));
                        sum(dtype, order, &all)
                    }),
                );
                let seen = judge(&wrong);
                assert!(seen.wrong > count / 2, "{dtype}: {seen:?}");
                let guilty: Vec<(usize, usize)> = (0..3)
                    .flat_map(|how| (0..ranks as usize).map(move |rank| (how, rank)))
                    .filter(|(how, rank)| seen.instead[*how][*rank] == seen.wrong)
                    .collect();
                assert_eq!(guilty, [(how, 2)], "{dtype} {values:?}: {seen:?}");
            }
        }
    }
}

#[test]
fn the_gate_opens_by_its_word_or_its_clock() {
    let device = Device::new(4096);
    device.launch("peerproof_reduce_gate", (1, 32), &[BASE, 20_000_000]);
    std::thread::scope(|scope| {
        let held = scope
            .spawn(|| device.launch("peerproof_reduce_gate", (1, 32), &[BASE, 20_000_000_000]));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!held.is_finished());
        device.put(0, &1u32.to_le_bytes());
        held.join().unwrap();
    });
}

#[test]
fn every_kernel_has_an_algorithm_and_every_shape_fits_its_kernel() {
    let mut used = Vec::new();
    for algorithm in ROSTER {
        let ranks: Vec<u32> = (0..20).filter(|n| algorithm.takes(*n)).collect();
        assert!(
            !ranks.is_empty() && ranks.iter().all(|n| (2..=8).contains(n)),
            "{}",
            algorithm.id()
        );
        for n in ranks {
            for bytes in (0..)
                .map(|k| 512 << k)
                .take_while(|b| *b <= algorithm.largest(n))
            {
                let shape = algorithm.shape(n, bytes, &Tuning::default());
                assert!((1..=BLOCK_LIMIT).contains(&shape.blocks));
                let name = match shape.kernel {
                    Kernel::TwoShot => "two_shot".to_string(),
                    other => format!("{other:?}").to_lowercase(),
                };
                let entry = MODULE.entry(&format!("peerproof_reduce_{name}")).unwrap();
                assert!(entry.max_threads.is_none_or(|most| shape.threads <= most));
                used.push(shape.kernel);
            }
            assert!(algorithm.largest(n) >= 4 << 20, "{} {n}", algorithm.id());
        }
    }
    assert!(Kernel::ALL.iter().all(|kernel| used.contains(kernel)));
}
