//! Comparisons: a sister host that is broken, a BIOS change, numbers alone, nothing; as text, Markdown and JSON.

use super::{Answer, fits, hosts, intact, options, reduced::row};
use crate::hosts::{corrupt, finding, run};
use insta::assert_snapshot;
use peerproof::{
    compare::compare,
    diagnose::reductions,
    model::{
        case::{Outcome, Rung, Subject, WrongKind},
        comparison::{Comparison, MatchedBy, Relation},
        finding::{ConsumerState, Judgement},
        group::Group,
        measurement::Unit,
        pair::{GpuIndex, OrderedPair},
        reading::{Absence, Reading},
        report::{Grading, Report, Spending},
        snapshot::{AcsControl, Authenticity, IommuGroup, Snapshot},
        traffic::{Band, Caveat, Executor, Expectation, Flow, Place, Shape, Streams, Traffic, Way},
    },
    render::diff,
};

fn known<T>(value: T) -> Reading<T> {
    Reading::Known(value)
}

/// A host of which everything is known that a change of BIOS or kernel would move.
fn described(mut snapshot: Snapshot, domain: &str, acs: u16) -> Snapshot {
    snapshot.authenticity = Authenticity::Hardware;
    snapshot.host.kernel = known("6.8.0-60-generic".to_string());
    snapshot.host.bios = known("04/12/2025 2.1".to_string());
    snapshot.host.cmdline = known("BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet".to_string());
    for (at, gpu) in snapshot.gpus.iter_mut().enumerate() {
        gpu.iommu = known(IommuGroup {
            group: at as u32,
            domain_type: known(domain.to_string()),
        });
    }
    for bridge in &mut snapshot.bridges {
        bridge.acs = known(AcsControl {
            capability: 0x1f,
            control: acs,
        });
    }
    snapshot
}

fn sister(mut snapshot: Snapshot) -> Snapshot {
    snapshot.host.name = known("rtx-08".to_string());
    for (at, gpu) in snapshot.gpus.iter_mut().enumerate() {
        gpu.uuid = known(format!("GPU-11111111-0000-0000-0000-{at:012}"));
    }
    snapshot
}

fn text(comparison: &Comparison) -> String {
    let mut out = Vec::new();
    diff::write(comparison, &options(80), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    fits(&text, 80);
    text
}

fn markdown(comparison: &Comparison) -> String {
    let mut out = Vec::new();
    diff::markdown(comparison, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn good() -> Report {
    run(described(hosts::rtx_pro(), "identity", 0), &intact())
}

fn budget(name: &str) -> Option<Spending> {
    Some(Spending {
        name: name.to_string(),
        device_bytes: 0,
        host_bytes: 0,
        expected_s: 0.0,
        limit_s: 0.0,
    })
}

fn broken_sister() -> Report {
    // Across the sockets bytes are lost; one card hangs on half its lanes.
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "bounce" | "staged" => Outcome::Intact,
        _ if (pair.source.0 < 4) != (pair.destination.0 < 4) => corrupt(WrongKind::Zeroed, pair),
        _ => Outcome::Intact,
    });
    let mut snapshot = sister(described(hosts::rtx_pro(), "DMA-FQ", 0x1d));
    snapshot.host.cmdline =
        known("BOOT_IMAGE=/vmlinuz root=UUID=2 ro quiet amd_iommu=on".to_string());
    if let Reading::Known(link) = &mut snapshot.gpus[5].link_now {
        link.width = 8;
    }
    snapshot.environment = vec![("NCCL_P2P_LEVEL".to_string(), "SYS".to_string())];
    let mut report = run(snapshot, &answer);
    report.verdict.grading = Grading::Fail;
    report.verdict.headline = "zeroed: 32 of 56 ordered pairs, worst 0->4 by ce-push".to_string();
    let mut cause = finding("iommu-translation", "IOMMU", Judgement::Indicted);
    cause.pairs = OrderedPair::all(8)
        .filter(|p| (p.source.0 < 4) != (p.destination.0 < 4))
        .collect();
    report.findings[0] = cause;
    report
}

#[test]
fn a_broken_sister_host() {
    let comparison = compare(&good(), &broken_sister(), ("good.json", "bad.json"));
    assert_eq!(comparison.relation, Relation::SisterHosts);
    assert!(
        comparison
            .matching
            .pairs
            .iter()
            .all(|m| m.by == MatchedBy::PciAddress && m.a == m.b)
    );
    assert_eq!(comparison.exit_code(), 1);
    let what: Vec<&str> = comparison
        .configuration
        .iter()
        .map(|d| d.what.as_str())
        .collect();
    for expected in [
        "IOMMU domain",
        "ACS control",
        "PCIe lanes in use",
        "environment NCCL_P2P_LEVEL",
    ] {
        assert!(what.contains(&expected), "{what:?}");
    }
    // The disk it boots from is no difference, nor are host name and UUIDs.
    let line = comparison
        .configuration
        .iter()
        .find(|d| d.what.starts_with("kernel command"))
        .unwrap();
    assert_eq!(
        (line.a.as_deref(), line.b.as_deref()),
        (None, Some("amd_iommu=on"))
    );
    let push = comparison
        .verdicts
        .iter()
        .find(|d| d.what == "ce-push at rung 2")
        .unwrap();
    assert_eq!(
        (push.a.as_deref(), push.b.as_deref()),
        (Some("intact"), Some("zeroed"))
    );
    assert_eq!(push.of.len(), 32);
    assert!(
        comparison
            .verdicts
            .iter()
            .any(|d| d.what == "cause iommu-translation")
    );
    assert!(
        comparison.numbers.is_empty(),
        "no rate is taken of what is wrong"
    );
    assert_snapshot!("diff_broken_sister", text(&comparison));
    assert_snapshot!("diff_broken_sister_markdown", markdown(&comparison));
}

#[test]
fn a_change_of_bios() {
    let mut after = good();
    after.started_at = "2026-01-03T03:04:05Z".to_string();
    after.snapshot.host.bios = known("11/02/2026 3.0".to_string());
    for gpu in &mut after.snapshot.gpus {
        gpu.bar1_bytes = known(128 << 30);
    }
    let mut before = good();
    for gpu in &mut before.snapshot.gpus {
        gpu.bar1_bytes = known(256 << 20);
    }
    // And the card of slot 3 was replaced.
    after.snapshot.gpus[3].uuid = known("GPU-22222222-0000-0000-0000-000000000000".to_string());
    let comparison = compare(&before, &after, ("before.json", "after.json"));
    assert_eq!(comparison.relation, Relation::SameHost);
    assert_eq!(comparison.matching.pairs[3].by, MatchedBy::PciAddress);
    assert_eq!(
        comparison.configuration.len(),
        3,
        "{:#?}",
        comparison.configuration
    );
    assert!(comparison.verdicts.is_empty() && comparison.numbers.is_empty());
    assert_snapshot!("diff_bios", text(&comparison));
}

#[test]
fn numbers_alone() {
    let mut slower = good();
    for record in &mut slower.records {
        let slow = match (record.case.subject.pair(), record.case.mechanism.as_str()) {
            (Some(pair), "ce-push" | "ce-pull") => pair.touches(GpuIndex(6)),
            _ => false,
        };
        if let Some(rate) = record.rate.as_mut().filter(|_| slow) {
            rate.samples.iter_mut().for_each(|s| *s *= 0.5);
        }
    }
    let comparison = compare(&good(), &slower, ("monday.json", "friday.json"));
    assert!(comparison.configuration.is_empty() && comparison.verdicts.is_empty());
    assert_eq!(comparison.numbers.len(), 2);
    assert_eq!(comparison.numbers[0].differing.len(), 14);
    assert_eq!(comparison.exit_code(), 1);
    assert_snapshot!("diff_numbers", text(&comparison));
    insta::assert_json_snapshot!("diff_numbers_json", comparison, {
        ".numbers[].differing" => insta::dynamic_redaction(|value, _| {
            let list = value.as_slice().unwrap();
            assert_eq!(list.len(), 14);
            format!("{} numbers", list.len())
        }),
    });
}

#[test]
fn numbers_within_their_spread_are_the_same() {
    let mut other = good();
    for record in &mut other.records {
        let Some(rate) = &mut record.rate else {
            continue;
        };
        match record.case.mechanism.as_str() {
            // Steady, and 4% apart: two runs are that far apart by themselves.
            "ce-push" => rate.samples.iter_mut().for_each(|s| *s *= 0.96),
            // 12% apart, and wavering by more.
            "sm-load" => rate.samples = vec![30.0, 36.0, 41.4, 47.0, 52.0],
            _ => {}
        }
    }
    let comparison = compare(&good(), &other, ("a", "b"));
    assert!(comparison.numbers.is_empty(), "{:#?}", comparison.numbers);
    // One sample more than two is needed.
    for record in &mut other.records {
        if let Some(rate) = &mut record.rate {
            rate.samples = vec![1.0, 1.0];
        }
    }
    let comparison = compare(&good(), &other, ("a", "b"));
    assert!(comparison.numbers.is_empty());
    assert_eq!(comparison.same.numbers, 0);
    assert_eq!(
        comparison.exit_code(),
        0,
        "nobody knows more than the other"
    );
    assert!(
        comparison.not_compared[0]
            .why
            .contains("fewer than 3 samples")
    );
}

/// Four sizes of two algorithms and NCCL over eight GPUs; nothing else was tried.
fn reduced(faster: f64, transport: &str, nccl_us: f64) -> Report {
    let mut report = run(described(hosts::nvswitch(), "identity", 0), &intact());
    report.records.clear();
    report.selftest = None;
    report.coverage.budget = None;
    let gpus: Vec<u32> = (0..8).collect();
    for bytes in [512_u64, 8 << 10, 256 << 10, 4 << 20] {
        let kib = bytes as f64 / 1024.0;
        let rows = &mut report.reductions;
        rows.push(row("one-shot-push", &gpus, bytes, Some(3.0 + 0.09 * kib)));
        rows.push(row(
            "two-shot",
            &gpus,
            bytes,
            Some((5.2 + 0.02 * kib) * faster),
        ));
        let mut nccl = row("nccl", &gpus, bytes, Some(nccl_us + 0.03 * kib));
        nccl.transport = Some(transport.to_string());
        rows.push(nccl);
    }
    report.crossovers = reductions::crossovers(&report.reductions);
    report.verdict.grading = Grading::Pass;
    report.verdict.headline = "every sum of 12 rows is exact on every rank".to_string();
    report.coverage = Default::default();
    report
}

#[test]
fn two_reduce_reports() {
    let before = reduced(1.0, "P2P/CUMEM", 11.0);
    let mut after = reduced(0.4, "SHM/direct/direct", 205.0);
    // And one algorithm is wrong over all of them at one size.
    for row in &mut after.reductions {
        if row.algorithm == "one-shot-push" && row.bytes == 4 << 20 {
            row.outcome = corrupt(WrongKind::Stale, OrderedPair::new(0, 1).unwrap());
            row.time = None;
        }
    }
    after.crossovers = reductions::crossovers(&after.reductions);
    after.verdict.grading = Grading::Fail;
    after.verdict.headline = "one-shot-push over 8 ranks, 4194304 bytes: stale".to_string();
    let comparison = compare(&before, &after, ("before.json", "after.json"));
    let verdict = |what: &str| {
        let found = comparison
            .verdicts
            .iter()
            .find(|d| d.what.starts_with(what));
        let found = found.unwrap_or_else(|| panic!("{what}: {:#?}", comparison.verdicts));
        (
            found.of.join(" "),
            found.a.clone().unwrap_or_default(),
            found.b.clone().unwrap_or_default(),
        )
    };
    let three = |of: &str, a: &str, b: &str| (of.to_string(), a.to_string(), b.to_string());
    assert_eq!(
        verdict("all-reduce one-shot-push"),
        three("GPUs 0-7", "intact", "stale")
    );
    assert_eq!(
        verdict("transport of nccl"),
        three("GPUs 0-7", "P2P/CUMEM", "SHM/direct/direct")
    );
    // At 256 KiB two-shot was the fastest before as well.
    assert_eq!(
        verdict("fastest all-reduce"),
        three("512 B 8 KiB", "one-shot-push", "two-shot")
    );
    assert_eq!(
        verdict("NCCL's times as a baseline"),
        three("", "sound", "sick")
    );
    let two_shot: Vec<_> = comparison
        .numbers
        .iter()
        .filter(|n| n.what.contains("two-shot"))
        .collect();
    assert_eq!(two_shot.len(), 1, "all sizes are one");
    assert_eq!(two_shot[0].differing.len(), 4);
    assert!(
        two_shot[0]
            .differing
            .iter()
            .any(|n| n.of == "8 KiB, GPUs 0-7")
    );
    assert_eq!(two_shot[0].unit, Unit::Us);
    assert!(
        !comparison
            .warnings
            .iter()
            .any(|w| w.contains("nothing was tested")),
        "{:?}",
        comparison.warnings
    );
    let text = text(&comparison);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("shorter in B") && words.contains("longer in B"));
    assert_snapshot!("diff_reduce", text);
}

/// An algorithm that one side did not time makes no other one the fastest of it.
#[test]
fn who_is_fastest_is_told_only_of_those_that_both_timed() {
    let before = reduced(1.0, "P2P/CUMEM", 11.0);
    let mut after = before.clone();
    after
        .reductions
        .retain(|row| row.algorithm != "one-shot-push");
    after.crossovers = reductions::crossovers(&after.reductions);
    let comparison = compare(&before, &after, ("a", "b"));
    assert!(comparison.verdicts.is_empty(), "{:#?}", comparison.verdicts);
    assert_eq!(comparison.exit_code(), 3);
    let left: Vec<&str> = comparison
        .not_compared
        .iter()
        .map(|n| n.why.as_str())
        .collect();
    assert!(
        left.iter().any(|l| l.contains("did not time the fastest")),
        "{left:?}"
    );
    assert!(comparison.warnings[0].contains("only A was to run all-reduce one-shot-push"));
}

fn copies(shape: Shape, flows: &[(Place, Place)], rate: f64) -> Traffic {
    Traffic {
        shape,
        executor: Executor::CopyEngine,
        way: Way::Push,
        streams: Streams::NonBlocking,
        bytes: 64 << 20,
        copies: 4,
        flows: flows
            .iter()
            .map(|(from, to)| Flow::new(*from, *to))
            .collect(),
        unit: match shape {
            Shape::FlagRoundTrip => Unit::Us,
            _ => Unit::GbPerS,
        },
        whole: vec![rate * 0.99, rate, rate, rate, rate * 1.01],
        warmup: 1,
        outcome: Outcome::Intact,
        caveats: Vec::new(),
        promised: None,
        expected: None,
    }
}

fn measured(slow: f64) -> Report {
    let mut report = run(described(hosts::rtx_pro(), "identity", 0), &intact());
    report.records.clear();
    report.selftest = None;
    report.coverage.budget = None;
    let gpu = Place::Gpu;
    for pair in OrderedPair::all(8) {
        let rate = if pair.touches(GpuIndex(6)) {
            50.0 * slow
        } else {
            50.0
        };
        let ends = [(gpu(pair.source.0), gpu(pair.destination.0))];
        let mut one = copies(Shape::OneWay, &ends, rate);
        one.expected = Some(Expectation {
            ceiling: 63.0,
            typical: 52.0,
            warn_below: 45.0,
            fail_below: 30.0,
            link: "Gen5 x16 at both ends, PHB".to_string(),
            class: "root-complex".to_string(),
            source: "made up".to_string(),
            band: if rate < 30.0 { Band::Fail } else { Band::Usual },
        });
        report.traffic.push(one);
    }
    let back = [(gpu(0), gpu(1)), (gpu(1), gpu(0))];
    report
        .traffic
        .push(copies(Shape::BothDirections, &back, 98.0));
    report
        .traffic
        .push(copies(Shape::FlagRoundTrip, &back, 2.0 / slow));
    report
        .traffic
        .push(copies(Shape::OneWay, &[(Place::Host, gpu(3))], 51.0));
    report.verdict.grading = Grading::Pass;
    report.verdict.headline = "59 transfers timed".to_string();
    (report.coverage.planned, report.coverage.ran) = (59, 59);
    report
}

#[test]
fn two_measure_reports() {
    let before = measured(1.0);
    let mut after = measured(0.5);
    after.verdict.grading = Grading::Warn;
    for case in &mut after.traffic {
        if case.subject() == "0->6" {
            case.caveats = vec![
                Caveat::OtherProcesses {
                    gpu: 6,
                    processes: 1,
                },
                Caveat::FewSamples { samples: 4 },
            ];
        }
    }
    let comparison = compare(&before, &after, ("monday.json", "friday.json"));
    assert_eq!(comparison.numbers.len(), 2, "{:#?}", comparison.numbers);
    let rates = comparison
        .numbers
        .iter()
        .find(|n| n.unit == Unit::GbPerS)
        .unwrap();
    assert_eq!((rates.compared, rates.differing.len()), (57, 14));
    let doubted: Vec<_> = rates
        .differing
        .iter()
        .filter(|pair| !pair.doubts.is_empty())
        .collect();
    assert_eq!(doubted.len(), 1);
    assert_eq!(
        (doubted[0].of.as_str(), doubted[0].doubts.as_slice()),
        ("0->6", ["B: other processes".to_string()].as_slice())
    );
    let band = comparison
        .verdicts
        .iter()
        .find(|d| d.what.ends_with("against its link"))
        .unwrap();
    assert_eq!(band.of.len(), 14);
    assert_eq!(band.b.as_deref(), Some("far below the usual"));
    assert_snapshot!("diff_measure", text(&comparison));
}

/// Cards that changed places: what is about them is found again under A's numbers.
#[test]
fn groups_flows_and_ranks_follow_their_cards() {
    let mut before = measured(0.5);
    let gpus: Vec<u32> = (0..4).collect();
    before.reductions = vec![row("two-shot", &gpus, 512, Some(5.0))];
    let mut case = good().records[0].clone();
    case.case.subject = Subject::Group(Group::new([0, 1, 2, 6]).unwrap());
    case.case.rung = Rung::Reduced;
    case.case.mechanism = "one-shot-push".to_string();
    before.records = vec![case];
    // In B the cards 6 and 5 stand in each other's slot.
    let swap = |gpu: u32| match gpu {
        5 => 6,
        6 => 5,
        other => other,
    };
    let mut after = before.clone();
    for (at, gpu) in after.snapshot.gpus.iter_mut().enumerate() {
        gpu.uuid = before.snapshot.gpus[swap(at as u32) as usize].uuid.clone();
    }
    for flow in after.traffic.iter_mut().flat_map(|t| t.flows.iter_mut()) {
        for place in [&mut flow.source, &mut flow.destination] {
            if let Place::Gpu(gpu) = place {
                *gpu = swap(*gpu);
            }
        }
    }
    after.records[0].case.subject = Subject::Group(Group::new([0, 1, 2, 5]).unwrap());
    let comparison = compare(&before, &after, ("a", "b"));
    assert_eq!(comparison.relation, Relation::SameHost);
    assert!(
        comparison.verdicts.is_empty() && comparison.numbers.is_empty(),
        "{:#?}{:#?}",
        comparison.verdicts,
        comparison.numbers
    );
    assert!(
        comparison.not_compared.is_empty(),
        "{:#?}",
        comparison.not_compared
    );
    assert!(comparison.same.numbers > 56);
    // The same group fails in B under other numbers: A's are told.
    after.records[0].outcome = corrupt(WrongKind::Zeroed, OrderedPair::new(0, 1).unwrap());
    let comparison = compare(&before, &after, ("a", "b"));
    let group = comparison
        .verdicts
        .iter()
        .find(|d| d.what == "one-shot-push at rung 6")
        .unwrap();
    assert_eq!(group.of, ["GPUs 0-2,6"]);
}

#[test]
fn reports_of_two_commands_have_only_the_host_in_common() {
    let comparison = compare(&good(), &measured(1.0), ("qualify.json", "measure.json"));
    assert!(
        comparison
            .warnings
            .iter()
            .any(|w| w.contains("A holds tests of transfers, B holds timed copies")),
        "{:?}",
        comparison.warnings
    );
    assert!(comparison.configuration.is_empty());
    assert!(comparison.verdicts.is_empty(), "{:?}", comparison.verdicts);
    assert_eq!(comparison.exit_code(), 3);
    let text = text(&comparison);
    for said in [
        "only A has it: B is a report of 'measure'",
        "only B has it: A is a report of 'qualify'",
        "A is a report of 'qualify', B one of 'measure'",
    ] {
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(said), "{said}: {text}");
    }
    for wrong in [
        "none is taken of what is wrong",
        "does not know it",
        "not run",
    ] {
        assert!(!text.contains(wrong), "{text}");
    }
}

/// Why a number is missing: what was wrong is not timed, and what was not tried is not either.
#[test]
fn a_missing_number_has_its_own_reason() {
    let whys = |other: &Report| -> Vec<String> {
        let comparison = compare(&good(), other, ("a", "b"));
        let left = comparison.not_compared.iter();
        left.filter(|n| n.what == "rates and times")
            .map(|n| n.why.clone())
            .collect()
    };
    let wrong = whys(&broken_sister());
    assert!(
        wrong.iter().all(|w| w.contains("not intact there")),
        "{wrong:?}"
    );
    let mut fewer = good();
    fewer.records.retain(|r| r.case.mechanism != "sm-load");
    let untimed = whys(&fewer);
    assert!(
        untimed.iter().all(|w| w.contains("not timed there")),
        "{untimed:?}"
    );
    assert_eq!((wrong.len(), untimed.len()), (1, 1));
}

/// Where something lies is no setting; what was loaded from there is.
#[test]
fn paths_of_libraries_and_scratch_files_are_no_configuration() {
    let with = |path: &str, cache: &str, nccl: &str| {
        let mut report = good();
        report.snapshot.environment = vec![
            ("LD_LIBRARY_PATH".to_string(), path.to_string()),
            ("VLLM_CONFIG_ROOT".to_string(), cache.to_string()),
        ];
        report.notes = vec![format!("NCCL {nccl} from {path}/libnccl.so.2")];
        report
    };
    let a = with("/opt/a", "/tmp/run-1/c", "2.27.3");
    let same = compare(&a, &with("/opt/b", "/tmp/run-2/c", "2.27.3"), ("a", "b"));
    assert_eq!(same.exit_code(), 0, "{:?}", same.configuration);
    let other = compare(&a, &with("/opt/b", "/tmp/run-2/c", "2.28.1"), ("a", "b"));
    let whats: Vec<&str> = other
        .configuration
        .iter()
        .map(|d| d.what.as_str())
        .collect();
    assert_eq!(whats, ["NCCL version"]);
    let moved = compare(&a, &with("/opt/a", "/srv/c", "2.27.3"), ("a", "b"));
    assert_eq!(moved.configuration[0].what, "environment VLLM_CONFIG_ROOT");
}

#[test]
fn nothing_differs() {
    let comparison = compare(&good(), &good(), ("a.json", "b.json"));
    assert_eq!(comparison.exit_code(), 0);
    assert!(comparison.same.numbers > 300 && comparison.same.verdicts > 300);
    assert_snapshot!("diff_nothing", text(&comparison));
}

#[test]
fn other_coverage_comes_first_and_is_not_the_same() {
    let (mut quick, mut deep) = (good(), good());
    quick.coverage.budget = budget("quick");
    deep.coverage.budget = budget("deep");
    quick.records.retain(|r| r.case.mechanism != "sm-load");
    for bridge in &mut quick.snapshot.bridges {
        bridge.acs = Reading::Absent(Absence::NoPermission("config".to_string()));
    }
    let comparison = compare(&quick, &deep, ("quick.json", "deep.json"));
    assert!(!comparison.differs(), "{:#?}", comparison.verdicts);
    assert_eq!(comparison.exit_code(), 3);
    assert_eq!(comparison.warnings.len(), 2);
    let text = text(&comparison);
    assert!(text.find("beware").unwrap() < text.find("Not compared").unwrap());
    assert_snapshot!("diff_coverage", text);
}

/// A run of some pairs or mechanisms is not worse for what it was not asked: that is not compared, and equal is not shown.
#[test]
fn what_a_run_was_not_asked_for_is_no_difference() {
    let whole = good();
    let mut part = run(described(hosts::rtx_pro(), "identity", 0), &intact());
    part.records
        .retain(|r| matches!(r.case.subject, Subject::Gpu(_)) || r.case.mechanism == "ce-push");
    // As it follows from less.
    part.verdict.grading = Grading::Inconclusive;
    for consumer in &mut part.consumers {
        consumer.state = ConsumerState::Unproven;
        consumer.reached = None;
    }
    part.recommendations.truncate(1);
    for (a, b, side) in [(&whole, &part, "B"), (&part, &whole, "A")] {
        let found = compare(a, b, ("a.json", "b.json"));
        assert!(found.verdicts.is_empty(), "{:?}", found.verdicts);
        assert_eq!(found.exit_code(), 3);
        let left = found
            .not_compared
            .iter()
            .find(|n| n.what == "the verdict")
            .unwrap();
        assert!(
            left.why.contains(&format!("not known of {side}")),
            "{left:?}"
        );
    }
    // What it did find is a difference.
    part.verdict.grading = Grading::Fail;
    part.consumers[0].state = ConsumerState::Vetoed;
    part.findings
        .push(finding("iommu-translation", "t", Judgement::Indicted));
    let found = compare(&whole, &part, ("a.json", "b.json"));
    let told: Vec<&str> = found.verdicts.iter().map(|d| d.what.as_str()).collect();
    assert!(told.contains(&"verdict"), "{told:?}");
    assert!(told.contains(&"cause iommu-translation"), "{told:?}");
    assert!(told.contains(&part.consumers[0].name.as_str()), "{told:?}");
    assert_eq!(found.exit_code(), 1);
}

/// One GPU of a host has no peers to rely on, and that says nothing of the host's group.
#[test]
fn who_may_rely_on_it_is_of_one_group_of_gpus() {
    let mut whole = good();
    whole.tested_gpus = (0..whole.snapshot.gpus.len() as u32).collect();
    let mut one = run(described(hosts::rtx_pro(), "identity", 0), &intact());
    one.tested_gpus = vec![0];
    one.records
        .retain(|r| r.case.subject == Subject::Gpu(GpuIndex(0)));
    for consumer in &mut one.consumers {
        consumer.state = ConsumerState::NotApplicable;
        consumer.reached = None;
    }
    for (a, b) in [(&whole, &one), (&one, &whole)] {
        let found = compare(a, b, ("a.json", "b.json"));
        assert!(found.verdicts.is_empty(), "{:?}", found.verdicts);
        assert_eq!(found.exit_code(), 3);
        let what = |what: &str| found.not_compared.iter().any(|n| n.what == what);
        assert!(what("who may rely on it"), "{:?}", found.not_compared);
        assert!(what("recommended all-reduces"), "{:?}", found.not_compared);
    }
}

#[test]
fn a_simulation_is_marked_whatever_it_is_held_against() {
    let mut simulated = good();
    simulated.authenticity = Authenticity::Simulated;
    let comparison = compare(&good(), &simulated, ("real.json", "sim.json"));
    assert!(text(&comparison).starts_with("SIMULATED"));
    assert!(markdown(&comparison).starts_with("> **SIMULATED**"));
    assert!(comparison.warnings[0].contains("says nothing of a host"));
}

#[test]
fn foreign_text_does_not_become_markup() {
    let mut other = good();
    other.snapshot.host.bios = known("<script>|`@all`\u{1b}[2J".to_string());
    let comparison = compare(&good(), &other, ("a", "b"));
    let page = markdown(&comparison);
    assert!(!page.contains("<script>") && !page.contains("@all") && !page.contains('\u{1b}'));
    assert!(page.contains("&lt;script>\\|\\`&#64;all\\`"), "{page}");
}

#[test]
fn hosts_without_a_common_gpu_prove_nothing() {
    let mut report = good();
    report.consumers[0].state = ConsumerState::Proven;
    let empty = run(hosts::no_gpu(), &intact());
    let comparison = compare(&report, &empty, ("a", "b"));
    assert_eq!(comparison.matching.only_a.len(), 8);
    assert_ne!(comparison.exit_code(), 0);
    assert!(
        comparison
            .warnings
            .iter()
            .any(|w| w.contains("nothing was tested in B"))
    );
    text(&comparison);
}

/// The committed schema is what the type gives. `PEERPROOF_BLESS=1` writes it anew.
#[test]
fn the_published_schema_of_a_comparison_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/diff.schema.json");
    let fresh = serde_json::to_string_pretty(&diff::schema()).unwrap() + "\n";
    if std::env::var_os("PEERPROOF_BLESS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "docs/diff.schema.json is not what the type gives; write it anew with PEERPROOF_BLESS=1 cargo test --test render"
    );
}
