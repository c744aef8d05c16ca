//! How fast the interpreter is. Ignored: it prints numbers and holds no machine to them.
mod ptx_machine;
use ptx_machine::*;
use std::time::Instant;

#[test]
#[ignore = "prints numbers; run it alone with --run-ignored only --no-capture"]
fn speed() {
    let m = kernels();
    let bytes = 64usize << 20;
    let r = Region::new(bytes + 64);
    let units = (bytes / 16) as u64;
    let bad = BASE + bytes as u64;
    r.put(0, &vec![0u8; bytes]);
    for (name, args) in [
        ("fill16", vec![BASE, units, 7]),
        ("verify16", vec![BASE, units, 7, bad]),
        ("fill32", vec![BASE, units, 7]),
    ] {
        let t = Instant::now();
        let s = launch(&m, name, &r, 264, 256, &args).unwrap();
        let dt = t.elapsed().as_secs_f64();
        println!(
            "{name}: {:.0} M lane-instructions/s, {:.2} GB/s, {:.0} ms for {} MiB",
            s.instructions as f64 / dt / 1e6,
            (s.bytes_read + s.bytes_written) as f64 / dt / 1e9,
            dt * 1e3,
            bytes >> 20,
        );
    }
    assert_eq!(r.get::<u64>(bytes, 1), [0]);
}
