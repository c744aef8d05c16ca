//! Why the owner looks: a checker that pushes and reads back through the window through which it wrote, as bandwidth tests do,
//! calls a mirroring host right and fast. The same host, the same driver calls, and peerproof names the mirror.

use crate::host::{Host, failures, kind, launcher, summary};
use peerproof::{
    gpu::{Context, DeviceMemory, Event, PinnedMemory, Stream, System},
    model::case::WrongKind,
};
use std::{os::unix::fs::PermissionsExt, process::Command, time::Duration};

const SCENARIO: &str = "opaque-vm-mirrored";
const BYTES: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_writers_window_shows_a_mirror_as_right_and_the_owner_does_not() {
    let report = Host::new(SCENARIO).qualify(&["--mechanism", "bounce,ce-push"]);
    let named: Vec<_> = failures(&report).into_iter().filter_map(kind).collect();
    assert!(named.contains(&WrongKind::Mirrored), "{}", summary(&report));

    // The launcher hands peerproof's own `--root FOLDER` to what it starts; the test program does not know it.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("without-root");
    std::fs::write(&script, "#!/bin/sh\nshift 2\nexec \"$@\"\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    let naive = Command::new(launcher())
        .args(["run", SCENARIO, "--"])
        .arg(&script)
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "writers_window::naive_checker",
            "--ignored",
            "--nocapture",
        ])
        .env("PEERPROOF_TEST_NAIVE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&naive.stdout);
    let said = format!("{said}{}", String::from_utf8_lossy(&naive.stderr));
    assert!(naive.status.success(), "{said}");
    assert!(said.contains("read back by the writer: right"), "{said}");
    assert!(said.contains("there and back again: right"), "{said}");
    assert!(said.contains("read by the owner: wrong"), "{said}");
    // At the rate of the link: dropped writes are not slow.
    let rate = said
        .split("GB/s: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!(rate > 1.0, "{said}");
}

/// Not a test of its own: the program under the look-alike driver in the test above.
#[test]
#[ignore = "run by the test above, below the look-alike driver"]
fn naive_checker() {
    if std::env::var_os("PEERPROOF_TEST_NAIVE").is_none() {
        return;
    }
    let system = System::start().unwrap();
    let devices = system.devices().unwrap();
    let writer = Context::new(system.driver(), &devices[0]).unwrap();
    let owner = Context::new(system.driver(), &devices[1]).unwrap();
    writer.enable_peer(&owner).unwrap();
    owner.enable_peer(&writer).unwrap();
    let (sent, held) = (
        DeviceMemory::new(&writer, BYTES).unwrap(),
        DeviceMemory::new(&owner, BYTES).unwrap(),
    );
    let back = DeviceMemory::new(&writer, BYTES).unwrap();
    let (push, own) = (Stream::new(&writer).unwrap(), Stream::new(&owner).unwrap());
    let mut host = PinnedMemory::new(&writer, BYTES as usize).unwrap();

    let pattern: Vec<u8> = (0..BYTES)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8)
        .collect();
    assert!(host.write(0, &pattern));
    push.copy(sent.region(), host.region()).unwrap();
    push.wait(LIMIT).unwrap();

    // Push, and time it.
    let (start, end) = (Event::new(&writer).unwrap(), Event::new(&writer).unwrap());
    push.record(&start).unwrap();
    push.copy_peer((held.region(), &owner), (sent.region(), &writer))
        .unwrap();
    push.record(&end).unwrap();
    push.wait(LIMIT).unwrap();
    println!(
        "GB/s: {}",
        BYTES as f64 / 1e6 / start.elapsed_ms(&end).unwrap().max(1e-6)
    );

    let mut compare = |what: &str, stream: &Stream, from: &DeviceMemory| {
        host.write(0, &vec![0x5a; BYTES as usize]);
        stream.copy(host.region(), from.region()).unwrap();
        stream.wait(LIMIT).unwrap();
        let same = host.read(0, BYTES as usize).unwrap() == pattern;
        println!("{what}: {}", if same { "right" } else { "wrong" });
    };
    // What bandwidth tests do: the writer reads the destination back.
    push.copy_peer((back.region(), &writer), (held.region(), &owner))
        .unwrap();
    push.wait(LIMIT).unwrap();
    compare("read back by the writer", &push, &back);
    // The same as a round trip, with the source overwritten in between.
    push.set_bytes(sent.region(), 0).unwrap();
    push.copy_peer((sent.region(), &writer), (held.region(), &owner))
        .unwrap();
    push.wait(LIMIT).unwrap();
    compare("there and back again", &push, &sent);
    compare("read by the owner", &own, &held);
}
