//! Timed transfers on simulated hosts come out as their scenarios model them: what the null stream loses, what an uplink of a
//! switch and the way between sockets carry when several flows share them. Expected rates are worked out from the scenario's
//! own numbers, not from earlier runs.

use crate::host::{Host, pair};
use peerproof::{
    model::{
        case::{Outcome, WrongKind},
        report::{Grading, Report},
        traffic::{Band, Caveat, Executor, Place, Shape, Streams, Traffic, Way},
    },
    stats::median,
};
use std::io::Write;

const ROOTS: &str = "rtxpro6000-x8-root-complex";
const SWITCHES: &str = "switch-pairs-x8";
/// Gen5 x16 after line coding, packets of 256 bytes: what a link of these scenarios carries, GB/s.
const LINK: f64 = 32.0 * 128.0 / 130.0 / 8.0 * 16.0 * 256.0 / 280.0;
/// `rates.packages_gbps`.
const SOCKETS: f64 = 51.0;
/// `rates.copy_ns`.
const LEAD_NS: f64 = 1400.0;

/// GB/s of copies of so many bytes that have `gbps` for themselves: each one has its lead.
fn rate(bytes: u64, gbps: f64) -> f64 {
    bytes as f64 / (bytes as f64 / gbps + LEAD_NS)
}

fn near(is: f64, should: f64, what: &str) {
    assert!(
        (is - should).abs() <= 0.04 * should,
        "{what}: {is:.2}, by the scenario {should:.2}"
    );
}

fn cases(report: &Report, shape: Shape, streams: Streams) -> Vec<&Traffic> {
    let all = report.traffic.iter();
    all.filter(|c| c.shape == shape && c.streams == streams)
        .collect()
}

fn between(report: &Report, shape: Shape, streams: Streams, ends: (Place, Place)) -> &Traffic {
    let found = cases(report, shape, streams).into_iter().find(|case| {
        let flow = &case.flows[0];
        (flow.source, flow.destination) == ends
    });
    found.unwrap_or_else(|| panic!("no {shape:?} {ends:?} on {streams:?}"))
}

fn whole(case: &Traffic) -> f64 {
    assert!(case.outcome.is_intact(), "{:?}", case.outcome);
    median(&case.whole).unwrap()
}

fn gpus(s: u32, d: u32) -> (Place, Place) {
    (Place::Gpu(s), Place::Gpu(d))
}

#[test]
fn the_null_stream_loses_what_it_serialises() {
    let arguments = ["--only", "streams", "--gpus", "0,1,4,5", "--size", "256KiB"];
    let report = Host::new(ROOTS).measure(&arguments);
    let both = |streams, ends| whole(between(&report, Shape::BothDirections, streams, ends));
    let bytes = report.traffic[0].bytes;
    // 0 and 1 are on one socket, 4 and 5 on the other.
    for (ends, gbps) in [
        (gpus(0, 1), LINK),
        (gpus(0, 4), SOCKETS),
        (gpus(4, 5), LINK),
    ] {
        let alone = rate(bytes, gbps);
        near(
            both(Streams::NonBlocking, ends),
            2.0 * alone,
            "non-blocking",
        );
        near(both(Streams::PerThread, ends), 2.0 * alone, "per thread");
        near(
            both(Streams::LegacyNull, ends),
            alone,
            "legacy null: one after the other",
        );
    }
    // Host copies of one GPU are in one stream there, too.
    let ends = (Place::Host, Place::Gpu(0));
    near(
        both(Streams::NonBlocking, ends),
        2.0 * rate(bytes, 0.96 * LINK),
        "host",
    );
    near(
        both(Streams::LegacyNull, ends),
        rate(bytes, 0.96 * LINK),
        "host, null",
    );
    // All-gather of four: on the null streams copies take turns wherever they share a GPU.
    let gather = |streams| {
        let all = cases(&report, Shape::AllGather, streams);
        *all.iter().find(|case| case.flows.len() == 12).unwrap()
    };
    let null = gather(Streams::LegacyNull);
    let (mut free, mut end) = ([0.0_f64; 8], 0.0_f64);
    for _ in 0..null.copies {
        for flow in &null.flows {
            let [s, d] = [flow.source, flow.destination].map(|p| p.gpu().unwrap() as usize);
            let gbps = if (s < 4) == (d < 4) { LINK } else { SOCKETS };
            let done = free[s].max(free[d]) + bytes as f64 / gbps + LEAD_NS;
            (free[s], free[d], end) = (done, done, end.max(done));
        }
    }
    let share = 3.0 * bytes as f64 * f64::from(null.copies);
    near(whole(null), share / end, "a receiver, null");
    assert!(whole(gather(Streams::NonBlocking)) > 2.5 * whole(null));
}

#[test]
fn flows_over_one_uplink_share_it() {
    let arguments = [
        "--only",
        "shapes",
        "--gpus",
        "0,1,2,3,4",
        "--size",
        "256KiB",
    ];
    let report = Host::new(SWITCHES).measure(&arguments);
    let of = |report: &Report, shape| {
        let all = cases(report, shape, Streams::NonBlocking);
        assert_eq!(all.len(), 1, "{shape:?}");
        (whole(all[0]), all[0].promised.unwrap(), all[0].bytes)
    };
    let (one, promised, bytes) = of(&report, Shape::SwitchToOneRoot);
    near(promised, 2.0 * rate(bytes, LINK), "two flows alone");
    near(
        one,
        2.0 * rate(bytes, LINK / 2.0),
        "half of the uplink each",
    );
    let (two, _, _) = of(&report, Shape::SwitchToTwoRoots);
    near(two, 2.0 * rate(bytes, LINK / 2.0), "the same to two roots");
    // Where posted writes pile up, the same two flows fall to what the scenario says, and one root still does not.
    let sick = Host::new("posted-write-collapse").measure(&arguments);
    near(
        of(&sick, Shape::SwitchToTwoRoots).0,
        2.0 * rate(bytes, 2.7 / 2.0),
        "collapse",
    );
    near(
        of(&sick, Shape::SwitchToOneRoot).0,
        2.0 * rate(bytes, LINK / 2.0),
        "one root",
    );
}

#[test]
fn what_crosses_sockets_shares_the_way_between_them() {
    let report = Host::new(ROOTS).measure(&["--only", "shapes", "--size", "128KiB"]);
    let one = |shape| {
        let all = cases(&report, shape, Streams::NonBlocking);
        assert_eq!(all.len(), 1, "{shape:?}");
        all[0]
    };
    let bytes = one(Shape::Ring).bytes as f64;
    // The ring crosses once in each direction, and ends with those two flows.
    near(
        whole(one(Shape::Ring)),
        8.0 * rate(bytes as u64, SOCKETS),
        "ring",
    );
    // All to all: 16 flows each way share it, and are the last to end.
    let all = one(Shape::AllToAll);
    assert_eq!(all.flows.len(), 56);
    let last = bytes / (SOCKETS / 16.0) + LEAD_NS;
    near(whole(all), 56.0 * bytes / last, "all to all");
    // What is lost is a number: eight links were promised.
    near(
        all.promised.unwrap(),
        8.0 * rate(bytes as u64, LINK),
        "promised",
    );
    // One source sends what its own link carries, and is promised no more than its best single flow.
    let from = between(&report, Shape::OneToMany, Streams::NonBlocking, gpus(0, 1));
    near(
        whole(from),
        7.0 * rate(bytes as u64, LINK / 7.0),
        "one to many",
    );
    near(from.promised.unwrap(), rate(bytes as u64, LINK), "one link");
}

#[test]
fn wrong_content_is_no_rate() {
    let host = Host::new("opaque-vm").fault("0>1:ce_push=dropped");
    let report = host.measure(&["--only", "shapes", "--size", "64KiB"]);
    assert_eq!(
        report.verdict.grading,
        Grading::Fail,
        "{:?}",
        report.verdict
    );
    assert_eq!(report.verdict.worst_pair, Some(pair(0, 1)));
    let bad = between(&report, Shape::OneWay, Streams::NonBlocking, gpus(0, 1));
    let kind = bad.outcome.corruption().map(|c| c.kind);
    assert_eq!(kind, Some(WrongKind::Dropped), "{:?}", bad.outcome);
    assert!(bad.whole.is_empty() && bad.flows[0].samples.is_empty());
    whole(between(
        &report,
        Shape::OneWay,
        Streams::NonBlocking,
        gpus(1, 0),
    ));
}

#[test]
fn a_hang_costs_its_gpus_and_nothing_that_was_measured() {
    let host = Host::new(ROOTS).fault("1>0:ce_push=hang");
    let arguments = ["--only", "shapes", "--gpus", "0,1,2,3", "--size", "64KiB"];
    let report = host.measure(&arguments);
    assert_eq!(report.verdict.grading, Grading::Fail);
    let of = |s, d| between(&report, Shape::OneWay, Streams::NonBlocking, gpus(s, d));
    whole(of(0, 1));
    assert!(
        matches!(of(1, 0).outcome, Outcome::TimedOut { .. }),
        "{:?}",
        of(1, 0).outcome
    );
    match &of(1, 2).outcome {
        Outcome::NotRun { reason } => assert!(reason.contains("1->0: hang"), "{reason}"),
        other => panic!("{other:?}"),
    }
    whole(of(2, 3));
}

#[test]
fn without_peer_access_the_driver_stages_and_it_says_so() {
    let report =
        Host::new("two-gpus-no-p2p").measure(&["--only", "streams,shapes", "--size", "64KiB"]);
    let one = between(&report, Shape::OneWay, Streams::NonBlocking, gpus(0, 1));
    assert_eq!(one.executor, Executor::Staged);
    assert!(
        one.caveats.contains(&Caveat::HostIncluded),
        "{:?}",
        one.caveats
    );
    whole(one);
    let peers = |c: &&Traffic| c.flows.iter().all(|f| f.pair().is_some());
    let all = report.traffic.iter().filter(peers);
    assert!(all.clone().count() > 4 && all.clone().all(|c| c.executor == Executor::Staged));
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{:?}",
        report.verdict
    );
}

#[test]
fn latencies_are_those_of_the_scenario() {
    let report = Host::new("opaque-vm").measure(&["--only", "latency"]);
    let small = between(
        &report,
        Shape::SmallCopies,
        Streams::NonBlocking,
        gpus(0, 1),
    );
    near(
        whole(small),
        LEAD_NS / 1e3,
        "a copy of 16 bytes is its lead",
    );
    let trip = between(
        &report,
        Shape::FlagRoundTrip,
        Streams::NonBlocking,
        gpus(0, 1),
    );
    assert!(whole(trip) > 0.0);
    assert_eq!(
        (trip.executor, trip.way),
        (Executor::Multiprocessors, Way::Push)
    );
}

#[test]
fn a_slow_pair_is_below_what_its_links_should_carry() {
    // Big enough that the size of a copy is one of which something is expected.
    let host = Host::new(ROOTS)
        .set("gpu.memory_mib=512")
        .fault("0>1:ce_push=slow:factor=4");
    let report = host.measure(&["--only", "shapes", "--gpus", "0,1"]);
    let band = |s, d| {
        let case = between(&report, Shape::OneWay, Streams::NonBlocking, gpus(s, d));
        let expected = case.expected.clone().unwrap_or_else(|| panic!("{case:?}"));
        assert!(expected.link.contains("Gen5 x16"), "{}", expected.link);
        expected.band
    };
    assert_eq!((band(0, 1), band(1, 0)), (Band::Fail, Band::Usual));
    assert_eq!(report.verdict.grading, Grading::Fail);
    assert_eq!(report.verdict.worst_pair, Some(pair(0, 1)));
}

#[test]
fn the_page_fits_its_width_and_another_tools_file_stands_beside() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(
        file,
        r#"{{"nvbandwidth": {{"version": "v0.8", "testcases": [{{"name": "device_to_device_memcpy_write_ce",
        "status": "Passed", "bandwidth_matrix": [["N/A", "10.0"], ["10.0", "N/A"]]}}]}}}}"#
    )
    .unwrap();
    let path = file.path().to_str().unwrap().to_string();
    let host = Host::new(ROOTS).variable("COLUMNS", "80");
    let mut command = host.command(&[
        "measure",
        "--only",
        "shapes,streams",
        "--size",
        "16KiB",
        "--compare",
        &path,
    ]);
    command.env("COLUMNS", "80");
    let run = crate::host::run(command);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    for line in run.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for words in [
        "SIMULATED",
        "copy engine of the source pushes",
        "null loses",
        "20.7 of 37.3 GB/s",
        "all-gather per receiver, G=8",
        "Beside nvbandwidth v0.8",
        "exit code 0  PASS",
    ] {
        assert!(run.stdout.contains(words), "{words}\n{}", run.stdout);
    }
}

/// A saved report of rates is shown as what it is, in every form, and its verdict stays that of rates.
#[test]
fn a_saved_report_of_rates_has_the_page_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rates.json").display().to_string();
    let host = Host::new(ROOTS);
    let printed = host.run(&[
        "measure",
        "--gpus",
        "0,1,4",
        "--only",
        "copies,latency,streams",
        "--size",
        "16KiB",
        "--report",
        &file,
    ]);
    assert_eq!(
        printed.code,
        Some(0),
        "{}\n{}",
        printed.stdout,
        printed.stderr
    );
    let again = host.run(&["render", &file]);
    assert_eq!(again.stdout, printed.stdout);
    let page = host.run(&["render", &file, "--format", "html"]).stdout;
    for words in [
        "Timed transfers",
        "Round trip of a flag",
        "null loses",
        "SIMULATED",
    ] {
        assert!(page.contains(words), "{words}\n{page}");
    }
    assert!(!page.contains("no rung above them"), "{page}");
    let ticket = host.run(&["render", &file, "--format", "markdown"]).stdout;
    assert!(
        ticket.contains("### Timed transfers") && !ticket.contains("### Pairs"),
        "{ticket}"
    );
}

#[test]
fn sixteen_gpus_are_legible_and_what_needs_too_many_peers_is_said() {
    let mut command =
        Host::new("sixteen-gpus").command(&["measure", "--only", "shapes", "--size", "4KiB"]);
    command.env("COLUMNS", "80");
    let run = crate::host::run(command);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    assert!(
        run.stdout.lines().all(|line| line.chars().count() <= 80),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("more peers at once"), "{}", run.stdout);
    assert!(run.stdout.contains("GPU15"), "{}", run.stdout);
}

#[test]
fn bad_input_is_told_before_anything_is_measured() {
    let host = Host::new("one-gpu");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "nvbandwidth Version: v0.8").unwrap();
    let path = file.path().to_str().unwrap();
    for (arguments, says) in [
        (
            vec!["measure", "--only", "speed"],
            "copies, curve, latency, streams, shapes",
        ),
        (vec!["measure", "--size", "64MB"], "KiB, MiB or GiB"),
        (vec!["measure", "--compare", path], "nvbandwidth -j"),
        (
            vec!["measure", "--compare", "/nowhere/x.json"],
            "/nowhere/x.json",
        ),
        (vec!["measure", "--report", "/nowhere/x.json"], "no folder"),
    ] {
        let run = host.run(&arguments);
        assert_eq!(run.code, Some(64), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains(says), "{arguments:?}: {}", run.stderr);
    }
}
