//! Whole kernels, compiled from `ptx/kernels.cu` by NVRTC, against what the same C++ means on the host.
mod ptx_machine;
use ptx_machine::*;

fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[test]
fn fill_writes_every_unit_and_nothing_past_them() {
    let m = kernels();
    for (units, grid, block) in [
        (1000usize, 3, 96),
        (1, 1, 1),
        (4096, 7, 1024),
        (777, 40, 33),
    ] {
        let r = Region::new(units * 16 + 64);
        r.put(units * 16, &[0xa5u8; 64]);
        let s = launch(&m, "fill16", &r, grid, block, &[BASE, units as u64, 99]).unwrap();
        let want: Vec<u64> = (0..2 * units as u64).map(|k| mix(99 ^ k)).collect();
        assert_eq!(r.get::<u64>(0, 2 * units), want);
        assert_eq!(r.get::<u8>(units * 16, 64), [0xa5; 64]);
        assert_eq!((s.bytes_written, s.bytes_read), (units as u64 * 16, 0));
        launch(&m, "fill32", &r, grid, block, &[BASE, units as u64, 5]).unwrap();
        let want: Vec<u32> = (0..units as u32)
            .flat_map(|i| {
                let mut h = i.wrapping_mul(0x9e37_79b9).wrapping_add(5);
                h ^= h >> 16;
                h = h.wrapping_mul(0x85eb_ca6b);
                h ^= h >> 13;
                let hi = ((u64::from(h) * 0xc2b2_ae35) >> 32) as u32;
                let b = |k: u32| ((u64::from(i) << 32 | u64::from(h)) >> (8 * k)) as u8;
                let perm = u32::from_le_bytes([b(4), b(1), b(5), b(2)]);
                [h, hi, perm, (i << 7) | (h >> 25)]
            })
            .collect();
        assert_eq!(r.get::<u32>(0, 4 * units), want);
    }
}

#[test]
fn verify_counts_exactly_the_changed_units() {
    let m = kernels();
    let r = Region::new(16 * 5000 + 8);
    let bad = BASE + 16 * 5000;
    launch(&m, "fill16", &r, 5, 128, &[BASE, 5000, 1]).unwrap();
    for (at, n) in [
        (16 * 17 + 3, 1u64),
        (16 * 17 + 9, 1),
        (16 * 4999 + 15, 2),
        (0, 3),
    ] {
        let b = r.get::<u8>(at, 1)[0];
        r.put(at, &[b ^ 0x40]);
        r.put(16 * 5000, &[0u64]);
        let s = launch(&m, "verify16", &r, 5, 128, &[BASE, 5000, 1, bad]).unwrap();
        assert_eq!(r.get::<u64>(16 * 5000, 1), [n]);
        assert!(s.bytes_read >= 16 * 5000);
    }
}

#[test]
fn block_sums_through_shared_memory() {
    let m = kernels();
    let n = 10_000usize;
    let r = Region::new(4 * n + 8 * 16);
    let mut rng = Rng(1);
    let v: Vec<u32> = (0..n).map(|_| rng.next() as u32).collect();
    r.put(0, &v);
    let s = launch(
        &m,
        "block_sum",
        &r,
        9,
        256,
        &[BASE, n as u64, BASE + 4 * n as u64],
    )
    .unwrap();
    let mut want = [0u64; 9];
    v.iter()
        .enumerate()
        .for_each(|(i, &x)| want[i / 256 % 9] += u64::from(x));
    assert_eq!(r.get::<u64>(4 * n, 9), want);
    // Shared traffic is not global traffic.
    assert_eq!((s.bytes_read, s.bytes_written), (4 * n as u64, 72));
}

#[test]
fn classes_by_atomics() {
    let m = kernels();
    let n = 6000usize;
    let out = 4 * n;
    let r = Region::new(out + 64);
    let mut rng = Rng(2);
    let v: Vec<u32> = (0..n)
        .map(|i| {
            if i % 11 == 0 {
                0
            } else if i % 13 == 0 {
                !0
            } else {
                rng.next() as u32
            }
        })
        .collect();
    r.put(0, &v);
    r.put(out + 32, &[u32::MAX]);
    r.put(out + 36, &[i32::MIN]);
    let at = |k: usize| BASE + (out + k) as u64;
    launch(
        &m,
        "classify",
        &r,
        4,
        160,
        &[BASE, n as u64, at(0), at(32), at(36), at(40)],
    )
    .unwrap();
    let mut hist = [0u32; 8];
    for &x in &v {
        let c = match x {
            0 => 0,
            u32::MAX => 1,
            x if x & 1 != 0 => 2 + (x >> 30),
            x => 6 + u32::from(x.count_ones() > 16),
        };
        hist[c as usize] += 1;
    }
    assert_eq!(r.get::<u32>(out, 8), hist);
    assert_eq!(r.get::<u32>(out + 32, 1)[0], *v.iter().min().unwrap());
    assert_eq!(
        r.get::<i32>(out + 36, 1)[0],
        v.iter().map(|&x| x as i32).max().unwrap()
    );
    assert_eq!(
        r.get::<u32>(out + 40, 1)[0],
        v.iter().fold(0, |a, x| a | x & 0xf0f0_f0f0)
    );
}

#[test]
fn divergent_nested_loops_reconverge() {
    let m = kernels();
    let n = 200usize;
    let r = Region::new(8 * n);
    let mut rng = Rng(3);
    let v: Vec<u32> = (0..n).map(|_| (rng.next() % 10_000 + 1) as u32).collect();
    r.put(0, &v);
    launch(
        &m,
        "collatz",
        &r,
        2,
        128,
        &[BASE, BASE + 4 * n as u64, n as u64],
    )
    .unwrap();
    let steps = |mut v: u64| {
        let mut n = 0u32;
        while v != 1 {
            if v & 1 == 1 {
                v = 3 * v + 1;
            } else {
                v >>= v.trailing_zeros();
            }
            n += 1;
        }
        n
    };
    let want: Vec<u32> = (0..n as u32)
        .map(|i| {
            (0..(i & 3) + 1).fold(0u32, |t, k| {
                t.wrapping_mul(31)
                    .wrapping_add(steps(u64::from(v[i as usize] + k)))
            })
        })
        .collect();
    assert_eq!(r.get::<u32>(4 * n, n), want);
}

#[test]
fn switches_and_local_arrays() {
    let m = kernels();
    let n = 300usize;
    let r = Region::new(8 * n);
    let mut rng = Rng(4);
    let v: Vec<u32> = (0..n).map(|_| rng.next() as u32).collect();
    r.put(0, &v);
    launch(
        &m,
        "switches",
        &r,
        3,
        128,
        &[BASE, BASE + 4 * n as u64, n as u64],
    )
    .unwrap();
    let want: Vec<u32> = v
        .iter()
        .map(|&v| {
            let mut a: Vec<u32> = (1..=16).map(|k| v.wrapping_mul(k)).collect();
            for k in 0..v & 15 {
                let at = ((v >> (k & 7)) & 15) as usize;
                a[at] = a[at].wrapping_add(k);
            }
            let x = match v % 9 {
                0 => v.wrapping_add(1),
                1 => v.wrapping_mul(7),
                2 => v ^ 0x55,
                3 => !v,
                4 => v >> 3,
                5 => v << 5,
                6 => v.reverse_bits(),
                7 => v.leading_zeros(),
                _ => 99,
            };
            x.wrapping_add(a[((v >> 4) & 15) as usize])
        })
        .collect();
    assert_eq!(r.get::<u32>(4 * n, n), want);
}

#[test]
fn constant_and_global_variables() {
    let m = kernels();
    let r = Region::new(4 * 64);
    launch(&m, "variables", &r, 2, 64, &[BASE]).unwrap();
    let want: Vec<u32> = (0..64).map(|i| [3, 1, 4, 1, 5, 9, 2, 6][i % 8]).collect();
    assert_eq!(r.get::<u32>(0, 64), want);
    let (p, size) = m.variable("counter").unwrap();
    assert_eq!(size, 8);
    // SAFETY: the module lives and no kernel runs.
    assert_eq!(unsafe { p.cast::<u64>().read() }, 40 + 2 * 128);
    assert!(m.variable("nothing").is_none());
}

#[test]
fn shuffles_votes_and_prefix_sums() {
    let m = kernels();
    let r = Region::new(4 * 64 * 4);
    let mut rng = Rng(5);
    let v: Vec<u32> = (0..64).map(|_| rng.next() as u32).collect();
    r.put(0, &v);
    let at = |k: u64| BASE + 256 * k;
    launch(&m, "warps", &r, 1, 64, &[at(0), at(1), at(2), at(3)]).unwrap();
    for (w, v) in v.chunks(32).enumerate() {
        let sum = v.iter().fold(0u32, |a, &b| a.wrapping_add(b));
        let ballot = v
            .iter()
            .enumerate()
            .fold(0u32, |a, (i, x)| a | (x & 1) << i);
        let mut run = 0u32;
        for i in 0..32 {
            run = run.wrapping_add(v[i]);
            let k = 32 * w + i;
            assert_eq!(r.get::<u32>(256 + 4 * k, 1), [sum]);
            assert_eq!(r.get::<u32>(512 + 4 * k, 1), [run]);
            let down = v[if i + 3 < 32 { i + 3 } else { i }];
            assert_eq!(
                r.get::<u32>(768 + 4 * k, 1),
                [ballot.wrapping_add(v[(i & 24) + 5]).wrapping_add(down)]
            );
        }
    }
}

#[test]
fn lanes_of_one_warp_wait_for_each_other() {
    let m = kernels();
    let r = Region::new(4 * 64);
    launch(&m, "lanes_wait", &r, 1, 32, &[BASE, BASE + 4]).unwrap();
    assert_eq!(r.get::<u32>(4, 1), [7]);
    // All 32 lanes are together again after __syncwarp.
    assert_eq!(r.get::<u32>(8, 31), [!0; 31]);
}

#[test]
fn blocks_that_wait_for_each_other_are_all_resident() {
    let m = kernels();
    for threads in [32u32, 1024] {
        let n = simhost::ptx::resident_blocks(threads);
        let r = Region::new(16 + 4 * (threads * n) as usize);
        launch(&m, "grid_barrier", &r, n, threads, &[BASE, BASE + 16]).unwrap();
        let want: Vec<u32> = (0..n * threads)
            .map(|i| i / threads + i % threads)
            .collect();
        assert_eq!(r.get::<u32>(16, want.len()), want);
    }
}

#[test]
fn floats_round_as_the_host_does() {
    let m = kernels();
    let mut rng = Rng(6);
    let special = [
        0.0f32,
        -0.0,
        f32::INFINITY,
        -1.0e-40,
        65519.0,
        65520.0,
        6.0e-8,
        2.5,
        -3.5,
        1e30,
        f32::NAN,
        3e9,
    ];
    let n = 512usize;
    let a: Vec<f32> = (0..n)
        .map(|i| {
            special
                .get(i)
                .copied()
                .unwrap_or_else(|| f32::from_bits(rng.next() as u32))
        })
        .collect();
    let b: Vec<f32> = (0..n)
        .map(|_| (rng.next() as i32) as f32 / 65536.0)
        .collect();
    let r = Region::new(4 * n * 7);
    r.put(0, &a);
    r.put(4 * n, &b);
    let at = |k: usize| BASE + (4 * n * k) as u64;
    launch(
        &m,
        "floats",
        &r,
        4,
        128,
        &[at(0), at(1), at(2), at(3), at(4), at(5), at(6), n as u64],
    )
    .unwrap();
    for i in 0..n {
        let (x, y) = (a[i], b[i]);
        let nan = |f: f32| if f.is_nan() { 0x7fff_ffff } else { f.to_bits() };
        let fma = r.get::<u32>(4 * (4 * n + i), 1)[0];
        assert_eq!(fma, nan(x.mul_add(y, 1.5)));
        assert_eq!(
            r.get::<i32>(4 * (5 * n + i), 1)[0],
            x.round_ties_even() as i32
        );
        let low = if x.is_nan() { y } else { x.min(y) };
        assert_eq!(
            r.get::<u32>(4 * (6 * n + i), 1)[0],
            nan(low / y.max(2.0)),
            "{x} {y}"
        );
        let bf = r.get::<u16>(3 * 4 * n + 2 * i, 1)[0];
        if !x.is_nan() {
            // The nearer of the two neighbours, the even one on a tie.
            let back = f32::from_bits(u32::from(bf) << 16);
            let cut = x.to_bits() & 0xffff;
            assert_eq!(
                bf,
                ((x.to_bits() >> 16)
                    + u32::from(cut > 0x8000 || (cut == 0x8000 && x.to_bits() >> 16 & 1 == 1)))
                    as u16
            );
            assert!(back.is_infinite() || (back - x).abs() <= x.abs() / 256.0 + 1e-38);
        }
    }
}

#[test]
fn bytes_dynamic_shared_memory_and_counting_barrier() {
    let m = kernels();
    let n = 77usize;
    let r = Region::new(1024);
    let v: Vec<u8> = (0..n).map(|i| (i * 37) as u8).collect();
    r.put(0, &v);
    let entry = m.entry("bytes").unwrap();
    let p = params(entry, &[BASE, BASE + 128, BASE + 256, n as u64]);
    let l = simhost::ptx::Launch {
        entry,
        grid: [1; 3],
        block: [128, 1, 1],
        params: &p,
        dynamic_shared: n,
    };
    simhost::ptx::run(&l, &r).unwrap();
    let back: Vec<u8> = v.iter().rev().copied().collect();
    assert_eq!(r.get::<u8>(128, n), back);
    let wide: Vec<i16> = back.iter().map(|&b| i16::from(b as i8) * 3).collect();
    assert_eq!(r.get::<i16>(256, n), wide);
    assert_eq!(
        r.get::<i16>(256 + 2 * n, 1),
        [v.iter().filter(|&&b| b > 100).count() as i16]
    );
}

#[test]
fn atomics_from_several_host_threads_lose_nothing() {
    let m = kernels();
    let n = 4096usize;
    let r = Region::new(4 * n + 64);
    r.put(0, &vec![0u32; n]);
    let at = |k: usize| BASE + (4 * n + k) as u64;
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..4 {
                    let args = [BASE, n as u64, at(0), at(32), at(36), at(40)];
                    launch(&m, "classify", &r, 8, 64, &args).unwrap();
                }
            });
        }
    });
    assert_eq!(r.get::<u32>(4 * n, 1), [16 * n as u32]);
}

#[test]
fn two_runs_play_ping_pong_with_a_payload() {
    let m = kernels();
    let r = Region::new(256);
    let rounds = 300u64;
    std::thread::scope(|s| {
        for first in [1u64, 0] {
            let (m, r) = (&m, &r);
            s.spawn(move || {
                let (mine, theirs) = if first == 1 {
                    (BASE, BASE + 64)
                } else {
                    (BASE + 64, BASE)
                };
                let status = BASE + 192 + 4 * first;
                launch(
                    m,
                    "ping",
                    r,
                    1,
                    1,
                    &[
                        mine,
                        theirs,
                        BASE + 128,
                        rounds,
                        first,
                        20_000_000_000,
                        status,
                    ],
                )
                .unwrap();
            });
        }
    });
    assert_eq!(r.get::<u32>(192, 2), [0, 0]);
    assert_eq!(r.get::<u32>(0, 1), [rounds as u32]);
}

#[test]
fn waiting_ends_at_its_time_limit() {
    let m = kernels();
    let r = Region::new(256);
    launch(
        &m,
        "ping",
        &r,
        1,
        1,
        &[BASE, BASE + 64, BASE + 128, 5, 0, 2_000_000, BASE + 192],
    )
    .unwrap();
    assert_eq!(r.get::<u32>(192, 1), [1]);
}

#[test]
fn four_ranks_on_four_threads_sum_their_inputs() {
    let m = kernels();
    let (world, n, blocks, epochs) = (4usize, 3000usize, 3u32, 5u64);
    let (slot, flags, out) = (4 * n, 4 * 4 * n, 4 * 4 * n + 4 * 64);
    let r = Region::new(out + 4 * 4 * n + 64);
    let mut rng = Rng(8);
    for half in [false, true] {
        let element = if half { 2 } else { 4 };
        // Small integers: every order of summing them is exact in f16 too.
        let v: Vec<i32> = (0..world * n)
            .map(|_| (rng.next() % 401) as i32 - 200)
            .collect();
        for (k, &x) in v.iter().enumerate() {
            let at = k / n * slot + k % n * element;
            if half {
                let mag = x.unsigned_abs();
                let exp = if mag == 0 { 0 } else { mag.ilog2() };
                let bits = if mag == 0 {
                    0
                } else {
                    (exp + 15) << 10 | (mag << (10 - exp)) & 0x3ff
                };
                r.put(at, &[(bits | if x < 0 { 0x8000 } else { 0 }) as u16]);
            } else {
                r.put(at, &[x as f32]);
            }
        }
        r.put(flags, &[0u8; 256]);
        let entry = m.entry(if half { "sum_f16" } else { "sum_f32" }).unwrap();
        assert_eq!(entry.max_threads, Some(128));
        std::thread::scope(|s| {
            for rank in 0..world {
                let r = &r;
                s.spawn(move || {
                    for epoch in 1..=epochs {
                        let mut p = vec![0u8; entry.param_bytes];
                        let mut put = |at: usize, v: u64, size: usize| {
                            p[at..at + size].copy_from_slice(&v.to_le_bytes()[..size])
                        };
                        for k in 0..world {
                            put(8 * k, BASE + (k * slot) as u64, 8);
                            put(32 + 8 * k, BASE + (flags + 64 * k) as u64, 8);
                        }
                        let rest = [
                            BASE + (out + rank * slot) as u64,
                            rank as u64,
                            4,
                            n as u64,
                            epoch,
                            20_000_000_000,
                            BASE + (out + 4 * slot) as u64,
                        ];
                        for (at, v) in entry.params[1..].iter().zip(rest) {
                            put(at.offset, v, at.size);
                        }
                        let l = simhost::ptx::Launch {
                            entry,
                            grid: [blocks, 1, 1],
                            block: [128, 1, 1],
                            params: &p,
                            dynamic_shared: 0,
                        };
                        simhost::ptx::run(&l, r).unwrap();
                    }
                });
            }
        });
        assert_eq!(
            r.get::<u32>(out + 4 * slot, 1),
            [0],
            "a rank waited in vain"
        );
        for rank in 0..world {
            for k in 0..n {
                let want: i32 = (0..world).map(|w| v[w * n + k]).sum();
                let at = out + rank * slot + k * element;
                let got = if half {
                    let h = u32::from(r.get::<u16>(at, 1)[0]);
                    let (e, f) = ((h >> 10 & 31) as i32, (h & 0x3ff) as f32);
                    let mag = if e == 0 {
                        0.0
                    } else {
                        (1024.0 + f) * 2f32.powi(e - 25)
                    };
                    if h & 0x8000 == 0 { mag } else { -mag }
                } else {
                    r.get::<f32>(at, 1)[0]
                };
                assert_eq!(got, want as f32, "rank {rank}, element {k}");
            }
        }
    }
}
