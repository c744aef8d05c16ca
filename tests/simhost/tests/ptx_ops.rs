//! Each opcode family on hand-picked and random operands, against Rust.
mod ptx_machine;
use ptx_machine::*;
use simhost::ptx::Module;

/// Runs `body` over rows of operands `%a0`, `%a1`, ... of the given bits; the result is in `%o`.
fn eval(bits: &[usize], out: usize, body: &str, rows: &[Vec<u64>]) -> Vec<u64> {
    let n = bits.len();
    let mut text = String::from(
        ".version 7.4\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u64 q, .param .u32 n)\n{\n\
         .reg .b64 %rd<9>; .reg .b32 %r<9>, %t<9>; .reg .b16 %h<9>; .reg .b64 %d<9>; .reg .pred %p<9>, %g;\n",
    );
    for (k, b) in bits.iter().enumerate() {
        text += &format!(".reg .b{b} %a{k};\n");
    }
    text += &format!(
        ".reg .b{out} %o;\nmov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r0, %r1, %r2;\n\
         ld.param.u32 %r4, [n]; setp.ge.u32 %g, %r3, %r4; @%g bra DONE;\n\
         ld.param.u64 %rd0, [p]; ld.param.u64 %rd1, [q];\n\
         mul.wide.u32 %rd2, %r3, {}; add.s64 %rd3, %rd0, %rd2; mul.wide.u32 %rd4, %r3, 8; add.s64 %rd5, %rd1, %rd4;\n",
        8 * n
    );
    for (k, b) in bits.iter().enumerate() {
        text += &format!("ld.global.b{b} %a{k}, [%rd3+{}];\n", 8 * k);
    }
    text += &format!("{body}\nst.global.b{out} [%rd5], %o;\nDONE: ret;\n}}\n");
    let m = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let flat: Vec<u64> = rows.iter().flat_map(|r| r[..n].to_vec()).collect();
    let r = Region::new(8 * (flat.len() + rows.len()));
    r.put(0, &flat);
    let q = BASE + 8 * flat.len() as u64;
    launch(
        &m,
        "k",
        &r,
        rows.len().div_ceil(128) as u32,
        128,
        &[BASE, q, rows.len() as u64],
    )
    .unwrap();
    r.get(8 * flat.len(), rows.len())
}

/// Rows of edge values crossed, then random ones.
fn rows(n: usize) -> Vec<Vec<u64>> {
    const EDGES: [u64; 12] = [
        0,
        1,
        2,
        31,
        32,
        63,
        64,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
    ];
    let mut rng = Rng(n as u64);
    let mut out = vec![];
    for &a in &EDGES {
        for &b in &EDGES {
            out.push((0..n).map(|k| [a, b, a ^ b, b >> 3][k % 4]).collect());
        }
    }
    for k in 0..400 {
        out.push(
            (0..n)
                .map(|i| {
                    if (k + i) % 3 == 0 {
                        rng.next() % 70
                    } else {
                        rng.next()
                    }
                })
                .collect(),
        );
    }
    out
}

fn check(bits: &[usize], out: usize, body: &str, want: impl Fn(&[u64]) -> u64) {
    let rows = rows(bits.len());
    let got = eval(bits, out, body, &rows);
    for (r, g) in rows.iter().zip(got) {
        let ops: Vec<u64> = r
            .iter()
            .zip(bits)
            .map(|(v, b)| v & (u64::MAX >> (64 - b)))
            .collect();
        let mask = u64::MAX >> (64 - out);
        assert_eq!(g & mask, want(&ops) & mask, "{body} on {ops:x?}");
    }
}

#[test]
fn integer_arithmetic_wraps() {
    check(&[32, 32], 32, "add.s32 %o, %a0, %a1;", |o| o[0] + o[1]);
    check(&[64, 64], 64, "sub.s64 %o, %a0, %a1;", |o| {
        o[0].wrapping_sub(o[1])
    });
    check(&[16, 16], 16, "mul.lo.s16 %o, %a0, %a1;", |o| o[0] * o[1]);
    check(&[64, 64], 64, "mul.lo.s64 %o, %a0, %a1;", |o| {
        o[0].wrapping_mul(o[1])
    });
    check(&[32, 32], 32, "mul.hi.u32 %o, %a0, %a1;", |o| {
        (o[0] * o[1]) >> 32
    });
    check(&[32, 32], 32, "mul.hi.s32 %o, %a0, %a1;", |o| {
        ((o[0] as i32 as i64 * o[1] as i32 as i64) >> 32) as u64
    });
    check(&[64, 64], 64, "mul.hi.u64 %o, %a0, %a1;", |o| {
        ((u128::from(o[0]) * u128::from(o[1])) >> 64) as u64
    });
    check(&[64, 64], 64, "mul.hi.s64 %o, %a0, %a1;", |o| {
        ((o[0] as i64 as i128 * o[1] as i64 as i128) >> 64) as u64
    });
    check(&[32, 32], 64, "mul.wide.s32 %o, %a0, %a1;", |o| {
        (o[0] as i32 as i64 * o[1] as i32 as i64) as u64
    });
    check(&[16, 16], 32, "mul.wide.u16 %o, %a0, %a1;", |o| o[0] * o[1]);
    check(&[32, 32, 32], 32, "mad.lo.s32 %o, %a0, %a1, %a2;", |o| {
        o[0].wrapping_mul(o[1]).wrapping_add(o[2])
    });
    check(&[32, 32, 64], 64, "mad.wide.u32 %o, %a0, %a1, %a2;", |o| {
        (o[0] * o[1]).wrapping_add(o[2])
    });
    check(&[32, 32, 32], 32, "mad.hi.u32 %o, %a0, %a1, %a2;", |o| {
        ((o[0] * o[1]) >> 32) + o[2]
    });
    check(&[32, 32], 32, "div.u32 %o, %a0, %a1;", |o| {
        o[0].checked_div(o[1]).unwrap_or(!0)
    });
    check(&[32, 32], 32, "div.s32 %o, %a0, %a1;", |o| {
        match o[1] as i32 {
            0 => !0,
            b => (o[0] as i32).wrapping_div(b) as u64,
        }
    });
    check(&[64, 64], 64, "rem.u64 %o, %a0, %a1;", |o| {
        o[0].checked_rem(o[1]).unwrap_or(o[0])
    });
    check(&[32, 32], 32, "min.s32 %o, %a0, %a1;", |o| {
        (o[0] as i32).min(o[1] as i32) as u64
    });
    check(&[64, 64], 64, "max.u64 %o, %a0, %a1;", |o| o[0].max(o[1]));
    check(&[64], 64, "abs.s64 %o, %a0;", |o| {
        (o[0] as i64).wrapping_abs() as u64
    });
    check(&[16], 16, "neg.s16 %o, %a0;", |o| o[0].wrapping_neg());
    check(&[32, 32, 32], 32, "sad.u32 %o, %a0, %a1, %a2;", |o| {
        o[0].abs_diff(o[1]) + o[2]
    });
}

#[test]
fn shifts_clamp_at_their_width() {
    let amount = |v: u64, bits: u64| v.min(bits);
    check(&[32, 32], 32, "shl.b32 %o, %a0, %a1;", |o| {
        o[0].checked_shl(amount(o[1], 64) as u32).unwrap_or(0)
    });
    check(&[64, 32], 64, "shl.b64 %o, %a0, %a1;", |o| {
        o[0].checked_shl(o[1] as u32).unwrap_or(0)
    });
    check(&[16, 32], 16, "shr.u16 %o, %a0, %a1;", |o| {
        o[0].checked_shr(o[1] as u32).unwrap_or(0)
    });
    check(&[32, 32], 32, "shr.s32 %o, %a0, %a1;", |o| {
        (o[0] as i32 >> amount(o[1], 31)) as u64
    });
    check(&[64, 32], 64, "shr.s64 %o, %a0, %a1;", |o| {
        (o[0] as i64 >> amount(o[1], 63)) as u64
    });
    check(
        &[32, 32, 32],
        32,
        "shf.l.wrap.b32 %o, %a0, %a1, %a2;",
        |o| ((o[1] << 32 | o[0]) << (o[2] & 31)) >> 32,
    );
    check(
        &[32, 32, 32],
        32,
        "shf.r.clamp.b32 %o, %a0, %a1, %a2;",
        |o| (o[1] << 32 | o[0]) >> amount(o[2], 32),
    );
    check(
        &[32, 32, 32],
        32,
        "shf.r.wrap.b32 %o, %a0, %a1, %a2;",
        |o| (o[1] << 32 | o[0]) >> (o[2] & 31),
    );
    check(
        &[32, 32, 32],
        32,
        "shf.l.clamp.b32 %o, %a0, %a1, %a2;",
        |o| ((o[1] << 32 | o[0]) << amount(o[2], 32)) >> 32,
    );
}

/// A bit field by its definition, bit by bit.
fn field(a: u64, pos: u64, len: u64, msb: u64, signed: bool) -> u64 {
    let bit = |k: u64| a >> k & 1;
    let (pos, len) = (pos & 255, len & 255);
    let fill = if signed && len != 0 {
        bit((pos + len - 1).min(msb))
    } else {
        0
    };
    (0..=msb).fold(0, |d, i| {
        d | (if i < len && pos + i <= msb {
            bit(pos + i)
        } else {
            fill
        }) << i
    })
}

#[test]
fn bit_operations() {
    check(&[32, 32, 32], 32, "bfe.u32 %o, %a0, %a1, %a2;", |o| {
        field(o[0], o[1], o[2], 31, false)
    });
    check(&[32, 32, 32], 32, "bfe.s32 %o, %a0, %a1, %a2;", |o| {
        field(o[0], o[1], o[2], 31, true)
    });
    check(&[64, 32, 32], 64, "bfe.u64 %o, %a0, %a1, %a2;", |o| {
        field(o[0], o[1], o[2], 63, false)
    });
    check(&[64, 32, 32], 64, "bfe.s64 %o, %a0, %a1, %a2;", |o| {
        field(o[0], o[1], o[2], 63, true)
    });
    let insert = |o: &[u64], msb: u64| {
        let (pos, len) = (o[2] & 255, o[3] & 255);
        (0..len).filter(|i| pos + i <= msb).fold(o[1], |f, i| {
            f & !(1 << (pos + i)) | (o[0].checked_shr(i as u32).unwrap_or(0) & 1) << (pos + i)
        })
    };
    check(
        &[32, 32, 32, 32],
        32,
        "bfi.b32 %o, %a0, %a1, %a2, %a3;",
        |o| insert(o, 31),
    );
    check(
        &[64, 64, 32, 32],
        64,
        "bfi.b64 %o, %a0, %a1, %a2, %a3;",
        |o| insert(o, 63),
    );
    for lut in [0x96u32, 0xe8, 0x00, 0xff, 0x1b] {
        check(
            &[32, 32, 32],
            32,
            &format!("lop3.b32 %o, %a0, %a1, %a2, {lut};"),
            |o| {
                (0..32).fold(0, |d, i| {
                    let k = (o[0] >> i & 1) << 2 | (o[1] >> i & 1) << 1 | (o[2] >> i & 1);
                    d | u64::from(lut >> k & 1) << i
                })
            },
        );
    }
    let byte = |o: &[u64], s: u64| {
        let v = ((o[1] << 32 | o[0]) >> (8 * (s & 7))) as u8;
        u64::from(if s & 8 != 0 {
            ((v as i8) >> 7) as u8
        } else {
            v
        })
    };
    check(&[32, 32, 32], 32, "prmt.b32 %o, %a0, %a1, %a2;", |o| {
        (0..4).fold(0, |d, k| d | byte(o, o[2] >> (4 * k)) << (8 * k))
    });
    check(&[32, 32, 32], 32, "prmt.b32.f4e %o, %a0, %a1, %a2;", |o| {
        (0..4).fold(0, |d, k| d | byte(o, ((o[2] & 3) + k) & 7) << (8 * k))
    });
    check(&[32, 32, 32], 32, "prmt.b32.rc16 %o, %a0, %a1, %a2;", |o| {
        (0..4).fold(0, |d, k| d | byte(o, 2 * (o[2] & 1) + (k & 1)) << (8 * k))
    });
    check(&[32], 32, "brev.b32 %o, %a0;", |o| {
        u64::from((o[0] as u32).reverse_bits())
    });
    check(&[64], 32, "popc.b64 %o, %a0;", |o| {
        u64::from(o[0].count_ones())
    });
    check(&[64], 32, "clz.b64 %o, %a0;", |o| {
        u64::from(o[0].leading_zeros())
    });
    check(&[32], 32, "bfind.u32 %o, %a0;", |o| {
        if o[0] == 0 {
            !0
        } else {
            u64::from(o[0].ilog2())
        }
    });
    check(&[32], 32, "bfind.s32 %o, %a0;", |o| {
        let v = o[0] as i32;
        let v = if v < 0 { !v as u32 } else { v as u32 };
        if v == 0 { !0 } else { u64::from(v.ilog2()) }
    });
    check(&[64], 64, "not.b64 %o, %a0;", |o| !o[0]);
    check(&[32], 32, "cnot.b32 %o, %a0;", |o| u64::from(o[0] == 0));
}

#[test]
fn comparisons_and_predicates() {
    for (c, f) in [
        ("lt", (|a, b| a < b) as fn(i64, i64) -> bool),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b),
    ] {
        let text = |t: &str| format!("setp.{c}.{t} %p0, %a0, %a1; selp.u32 %o, 1, 0, %p0;");
        check(&[32, 32], 32, &text("s32"), |o| {
            u64::from(f(o[0] as i32 as i64, o[1] as i32 as i64))
        });
        check(&[32, 32], 32, &text("u32"), |o| {
            u64::from(f(o[0] as i64, o[1] as i64))
        });
        check(&[64, 64], 32, &text("s64"), |o| {
            u64::from(f(o[0] as i64, o[1] as i64))
        });
        check(&[16, 16], 32, &text("s16"), |o| {
            u64::from(f(o[0] as i16 as i64, o[1] as i16 as i64))
        });
    }
    check(
        &[64, 64],
        32,
        "setp.hi.u64 %p0, %a0, %a1; selp.u32 %o, 1, 0, %p0;",
        |o| u64::from(o[0] > o[1]),
    );
    // Both destinations, combined with a third predicate that is overwritten.
    let two = "setp.lt.u32 %p1, %a2, 1000; setp.gt.or.u32 %p1|%p2, %a0, %a1, !%p1;\n\
               selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2; add.u32 %o, %r5, %r6;";
    check(&[32, 32, 32], 32, two, |o| {
        let (t, c) = (o[0] > o[1], o[2] >= 1000);
        u64::from(t || c) + 2 * u64::from(!t || c)
    });
    let logic = "setp.lt.s32 %p1, %a0, %a1; setp.eq.s32 %p2, %a0, 0; xor.pred %p3, %p1, %p2; not.pred %p4, %p3;\n\
                 mov.pred %p5, %p4; mov.u32 %o, 1; @%p5 add.u32 %o, %o, 10; @!%p5 mov.u32 %o, 7;";
    check(&[32, 32], 32, logic, |o| {
        if ((o[0] as i32) < o[1] as i32) ^ (o[0] == 0) {
            7
        } else {
            11
        }
    });
}

fn float_rows() -> Vec<Vec<u64>> {
    let edges = [
        0.0f32,
        -0.0,
        1.0,
        -1.5,
        0.5,
        2.5,
        3.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        1e-40,
        -1e-45,
        65520.0,
        2147483648.0,
        -2147483904.0,
        4294967296.0,
        1.8446744e19,
        5.9604645e-8,
        2.9802322e-8,
    ];
    let mut rng = Rng(77);
    let mut out: Vec<Vec<u64>> = vec![];
    for a in edges {
        for b in edges {
            out.push(vec![
                u64::from(a.to_bits()),
                u64::from(b.to_bits()),
                u64::from((a - b).to_bits()),
            ]);
        }
    }
    out.extend((0..600).map(|_| (0..3).map(|_| rng.next() >> 32).collect::<Vec<u64>>()));
    out
}

fn check_f32(n: usize, out: usize, body: &str, want: impl Fn(f32, f32, f32) -> u64) {
    let rows = float_rows();
    let got = eval(&vec![32; n], out, body, &rows);
    for (r, g) in rows.iter().zip(got) {
        let f = |k: usize| f32::from_bits(r[k] as u32);
        let mask = u64::MAX >> (64 - out);
        assert_eq!(
            g & mask,
            want(f(0), f(1), f(2)) & mask,
            "{body} on {:?} {:?} {:?}",
            f(0),
            f(1),
            f(2)
        );
    }
}

fn bits(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

#[test]
fn float_arithmetic() {
    check_f32(2, 32, "add.f32 %o, %a0, %a1;", |a, b, _| bits(a + b));
    check_f32(2, 32, "add.ftz.f32 %o, %a0, %a1;", |a, b, _| {
        bits(flush(flush(a) + flush(b)))
    });
    check_f32(2, 32, "sub.rn.f32 %o, %a0, %a1;", |a, b, _| bits(a - b));
    check_f32(2, 32, "mul.sat.f32 %o, %a0, %a1;", |a, b, _| {
        let v = a * b;
        if v.is_nan() || v <= 0.0 {
            0
        } else {
            bits(v.min(1.0))
        }
    });
    check_f32(3, 32, "fma.rn.f32 %o, %a0, %a1, %a2;", |a, b, c| {
        bits(a.mul_add(b, c))
    });
    check_f32(2, 32, "div.rn.f32 %o, %a0, %a1;", |a, b, _| bits(a / b));
    check_f32(1, 32, "sqrt.rn.f32 %o, %a0;", |a, _, _| bits(a.sqrt()));
    check_f32(1, 32, "neg.f32 %o, %a0;", |a, _, _| {
        u64::from(a.to_bits() ^ 0x8000_0000)
    });
    check_f32(2, 32, "min.f32 %o, %a0, %a1;", |a, b, _| {
        if a == 0.0 && b == 0.0 {
            u64::from(a.to_bits() | b.to_bits())
        } else if a.is_nan() || b < a {
            bits(b)
        } else {
            bits(a)
        }
    });
    check_f32(2, 32, "max.f32 %o, %a0, %a1;", |a, b, _| {
        if a == 0.0 && b == 0.0 {
            u64::from(a.to_bits() & b.to_bits())
        } else if a.is_nan() || b > a {
            bits(b)
        } else {
            bits(a)
        }
    });
    let rows: Vec<Vec<u64>> = [(1.5f64, 2.25f64), (1e300, 1e10), (-0.0, 0.0)]
        .iter()
        .map(|(a, b)| vec![a.to_bits(), b.to_bits()])
        .collect();
    let got = eval(
        &[64, 64],
        64,
        "fma.rn.f64 %o, %a0, %a1, 0d3FF0000000000000;",
        &rows,
    );
    assert_eq!(
        got,
        [4.375f64.to_bits(), f64::INFINITY.to_bits(), 1f64.to_bits()]
    );
}

#[test]
fn float_comparisons_and_nan() {
    for (c, f) in [
        ("eq", (|a, b| a == b) as fn(f32, f32) -> bool),
        ("ne", |a, b| a != b && !a.is_nan() && !b.is_nan()),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("equ", |a, b| a == b || a.is_nan() || b.is_nan()),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| a < b || a.is_nan() || b.is_nan()),
        ("leu", |a, b| a <= b || a.is_nan() || b.is_nan()),
        ("gtu", |a, b| a > b || a.is_nan() || b.is_nan()),
        ("geu", |a, b| a >= b || a.is_nan() || b.is_nan()),
        ("num", |a, b| !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ] {
        let body = format!("setp.{c}.f32 %p0, %a0, %a1; selp.b32 %o, 1, 0, %p0;");
        check_f32(2, 32, &body, |a, b, _| u64::from(f(a, b)));
    }
}

#[test]
fn conversions() {
    check(&[32], 64, "cvt.s64.s32 %o, %a0;", |o| o[0] as i32 as u64);
    check(&[32], 64, "cvt.u64.u32 %o, %a0;", |o| o[0]);
    check(&[64], 32, "cvt.u32.u64 %o, %a0;", |o| o[0]);
    check(&[16], 32, "cvt.s32.s8 %o, %a0;", |o| o[0] as i8 as u64);
    check(&[32], 16, "cvt.u16.u8 %o, %a0;", |o| o[0] & 255);
    check(&[32], 16, "cvt.s16.s8 %o, %a0;", |o| o[0] as i8 as u64);
    check(&[32], 32, "cvt.sat.u8.s32 %o, %a0;", |o| {
        (o[0] as i32).clamp(0, 255) as u64
    });
    check(&[64], 32, "cvt.sat.s32.s64 %o, %a0;", |o| {
        (o[0] as i64).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    check(&[64], 32, "cvt.rn.f32.u64 %o, %a0;", |o| {
        u64::from((o[0] as f32).to_bits())
    });
    check(&[32], 64, "cvt.rn.f64.s32 %o, %a0;", |o| {
        f64::from(o[0] as i32).to_bits()
    });
    check_f32(1, 32, "cvt.rzi.s32.f32 %o, %a0;", |a, _, _| a as i32 as u64);
    check_f32(1, 32, "cvt.rni.u32.f32 %o, %a0;", |a, _, _| {
        u64::from(a.round_ties_even() as u32)
    });
    check_f32(1, 64, "cvt.rmi.s64.f32 %o, %a0;", |a, _, _| {
        a.floor() as i64 as u64
    });
    check_f32(1, 32, "cvt.rpi.f32.f32 %o, %a0;", |a, _, _| bits(a.ceil()));
    check_f32(
        1,
        64,
        "cvt.f64.f32 %d0, %a0; cvt.rn.f32.f64 %r5, %d0; cvt.u64.u32 %o, %r5;",
        |a, _, _| bits(a),
    );
    // A bf16 result is one of the two neighbours, and never farther than the other.
    let rows = float_rows();
    let got = eval(&[32], 16, "cvt.rn.bf16.f32 %o, %a0;", &rows);
    for (r, g) in rows.iter().zip(got) {
        let (b, g) = (r[0] as u32, g as u16);
        if f32::from_bits(b).is_nan() {
            assert_eq!(g, 0x7fff);
        } else {
            let down = (b >> 16) as u16;
            let cut = b & 0xffff;
            assert_eq!(
                g,
                if cut > 0x8000 || cut == 0x8000 && down & 1 == 1 {
                    down + 1
                } else {
                    down
                },
                "{b:x}"
            );
        }
    }
    // Pairs: the first source is the upper half.
    let got = eval(
        &[32, 32],
        32,
        "cvt.rn.f16x2.f32 %o, %a0, %a1;",
        &[vec![0x3f80_0000, 0xc000_0000]],
    );
    assert_eq!(got[0] as u32, 0x3c00_c000);
    // f16 arithmetic agrees with f32 arithmetic rounded once.
    let a = 0x3c01_4248u64;
    let got = eval(
        &[32, 32],
        32,
        "mul.f16x2 %t0, %a0, %a1; add.f16x2 %o, %t0, %a1;",
        &[vec![a, 0x3c00_4000]],
    );
    // 1.001 + 1 is a tie that goes to the even 2.0; 3.140625 * 2 + 2 is exact.
    assert_eq!(got[0] as u32, 0x4000_4824);
}

#[test]
fn packing_and_unpacking() {
    check(&[16, 16], 32, "mov.b32 %o, {%a0, %a1};", |o| {
        o[1] << 16 | o[0]
    });
    check(&[32, 32], 64, "mov.b64 %o, {%a0, %a1};", |o| {
        o[1] << 32 | o[0]
    });
    check(
        &[64],
        64,
        "mov.b64 {%r5, %r6}, %a0; mov.b64 %o, {%r6, %r5};",
        |o| o[0].rotate_left(32),
    );
    check(
        &[64],
        64,
        "mov.b64 {%h0, %h1, %h2, %h3}, %a0; mov.b64 %o, {%h3, %h2, %h1, %h0};",
        |o| (0..4).fold(0, |d, k| d | (o[0] >> (16 * k) & 0xffff) << (48 - 16 * k)),
    );
    check(&[32], 16, "mov.b32 {_, %o}, %a0;", |o| o[0] >> 16);
    check(
        &[32],
        32,
        "{ .reg .b32 %a0x; mov.b32 %a0x, %a0; { .reg .b32 %a0; mov.b32 %a0, 5; add.u32 %o, %a0x, %a0; } }",
        |o| o[0] + 5,
    );
}

/// What kernels of resident exchanges use, at the scope of the system.
#[test]
fn system_scope_forms() {
    for (op, f) in [
        ("add", (|a, b| a.wrapping_add(b)) as fn(u32, u32) -> u32),
        ("exch", |_, b| b),
        ("and", |a, b| a & b),
        ("or", |a, b| a | b),
        ("xor", |a, b| a ^ b),
        ("min", |a, b| a.min(b)),
        ("max", |a, b| a.max(b)),
    ] {
        let ty = if matches!(op, "exch" | "and" | "or" | "xor") {
            "b"
        } else {
            "u"
        };
        for (sem, fence) in [
            ("", "membar.sys;"),
            (".relaxed", "fence.acq_rel.sys;"),
            (".release", "fence.sc.sys;"),
            (".acq_rel", ""),
        ] {
            let body = format!(
                "activemask.b32 %r5; nanosleep.u32 20; mov.u64 %d5, %globaltimer; mov.u64 %d6, %clock64;\n\
                 atom{sem}.sys.global.{op}.{ty}32 %t0, [%rd3], %a1; {fence} ld.relaxed.sys.global.u32 %t1, [%rd3];\n\
                 ld.mmio.relaxed.sys.global.u32 %t2, [%rd3]; sub.s32 %t2, %t2, %t1; sub.s32 %t0, %t0, %a0;\n\
                 add.s32 %o, %t0, %t1; add.s32 %o, %o, %t2;"
            );
            check(&[32, 32], 32, &body, |o| {
                u64::from(f(o[0] as u32, o[1] as u32))
            });
        }
        if op != "exch" {
            let body = format!(
                "red.release.sys.global.{op}.{ty}32 [%rd3], %a1; ld.acquire.sys.global.u32 %o, [%rd3];"
            );
            check(&[32, 32], 32, &body, |o| {
                u64::from(f(o[0] as u32, o[1] as u32))
            });
        }
    }
    let body = "st.release.sys.global.u64 [%rd3], %a1; st.mmio.relaxed.sys.global.u64 [%rd3], %a1; st.volatile.global.v2.u32 [%rd3], {%r5, %r6};\n\
        st.global.v4.u8 [%rd3], {%r5, %r5, %r5, %r5}; st.global.u64 [%rd3], %a1; ld.global.v2.u64 {%d0, %d1}, [%rd3]; xor.b64 %d0, %d0, %a1; xor.b64 %d1, %d1, %a1; or.b64 %o, %d0, %d1;";
    check(&[64, 64], 64, body, |_| 0);
}

#[test]
fn memory_forms() {
    // Vectors, narrow elements with either extension, volatile, relaxed, cache operators, local memory.
    let body = ".local .align 8 .b8 box[32]; cvta.to.global.u64 %rd6, %rd3; mov.u64 %rd7, box; cvta.local.u64 %rd8, %rd7;\n\
        ld.global.nc.v2.u32 {%r5, %r6}, [%rd6]; st.local.v2.u32 [%rd7], {%r5, %r6}; ld.u64 %d0, [%rd8+0];\n\
        ld.relaxed.gpu.global.u64 %d1, [%rd6]; ld.volatile.global.u64 %d2, [%rd6]; sub.s64 %d1, %d1, %d2;\n\
        ld.global.cg.s8 %r7, [%rd6+1]; ld.global.L2::128B.u8 %h0, [%rd6+1]; cvt.u64.u16 %d3, %h0; cvt.s64.s32 %d4, %r7;\n\
        st.u8 [%rd8+9], %r7; ld.local.u8 %d5, [box+9]; ld.acquire.sys.v2.u32 {%t0, _}, [%rd6]; cvt.u64.u32 %d6, %t0;\n\
        add.s64 %o, %d0, %d1; xor.b64 %o, %o, %d3; add.s64 %o, %o, %d4; add.s64 %o, %o, %d5; add.s64 %o, %o, %d6;";
    let body = body.replace("ld.acquire.sys.v2.u32 {%t0, _}", "ld.acquire.sys.u32 %t0");
    check(&[64], 64, &body, |o| {
        let b = o[0] >> 8 & 255;
        (o[0] ^ b)
            .wrapping_add(b as i8 as u64)
            .wrapping_add(b)
            .wrapping_add(o[0] & 0xffff_ffff)
    });
    // Each lane its own cell: the old value, then what is left there.
    for (op, f) in [
        ("add.u64", (|a, b| a.wrapping_add(b)) as fn(u64, u64) -> u64),
        ("min.s64", |a, b| (a as i64).min(b as i64) as u64),
        ("max.u64", |a, b| a.max(b)),
        ("and.b64", |a, b| a & b),
        ("or.b64", |a, b| a | b),
        ("xor.b64", |a, b| a ^ b),
        ("exch.b64", |_, b| b),
    ] {
        let body = format!(
            "atom.global.{op} %d0, [%rd3], %a1; ld.global.u64 %d1, [%rd3]; sub.s64 %d2, %d0, %a0; add.s64 %o, %d1, %d2;"
        );
        check(&[64, 64], 64, &body, |o| f(o[0], o[1]));
    }
    check(
        &[64, 64],
        64,
        "atom.acq_rel.sys.global.cas.b64 %d0, [%rd3], 1, %a1; ld.global.u64 %o, [%rd3];",
        |o| {
            if o[0] == 1 { o[1] } else { o[0] }
        },
    );
    check(
        &[32, 32],
        32,
        "red.global.inc.u32 [%rd3], %a1; ld.global.u32 %o, [%rd3];",
        |o| {
            if o[0] >= o[1] { 0 } else { o[0] + 1 }
        },
    );
    check(
        &[32, 32],
        32,
        "atom.global.dec.u32 %r5, [%rd3], %a1; ld.global.u32 %o, [%rd3];",
        |o| {
            if o[0] == 0 || o[0] > o[1] {
                o[1]
            } else {
                o[0] - 1
            }
        },
    );
    check(
        &[32],
        32,
        "membar.sys; fence.sc.sys; fence.acq_rel.gpu; membar.cta; nanosleep.u32 40; prefetch.global.L2 [%rd3]; mov.b32 %o, %a0;",
        |o| o[0],
    );
}

#[test]
fn jump_tables() {
    let body = "T: .branchtargets L0, L1, L2;\nand.b32 %r5, %a0, 3; min.u32 %r5, %r5, 2; mov.u32 %o, 0; brx.idx %r5, T;\n\
                L0: add.u32 %o, %o, 1; L1: add.u32 %o, %o, 10; L2: add.u32 %o, %o, 100;";
    check(&[32], 32, body, |o| {
        [111, 110, 100, 100][(o[0] & 3) as usize]
    });
}

#[test]
fn warp_operations() {
    let rows: Vec<Vec<u64>> = (0..96).map(|i| vec![i * 5 % 7]).collect();
    let got = eval(&[32], 32, "match.any.sync.b32 %o, %a0, 0xffffffff;", &rows);
    for (i, g) in got.iter().enumerate() {
        let w = i / 32 * 32;
        let want = (0..32).fold(0u64, |m, k| m | u64::from(rows[w + k] == rows[i]) << k);
        assert_eq!(*g, want);
    }
    let body = "setp.gt.u32 %p1, %a0, 3; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, !%p1, -1;\n\
                shfl.sync.down.b32 %t0|%p4, %a0, 30, 31, -1; selp.u32 %o, 1, 0, %p2; @%p3 add.u32 %o, %o, 2; @%p4 add.u32 %o, %o, 4;\n\
                mov.u32 %t1, %lanemask_lt; popc.b32 %t1, %t1; mad.lo.u32 %o, %t1, 8, %o;";
    let got = eval(&[32], 32, body, &rows);
    for (i, g) in got.iter().enumerate() {
        assert_eq!(*g, 1 + 4 * u64::from(i % 32 < 2) + 8 * (i as u64 % 32));
    }
}
