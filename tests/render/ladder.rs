//! Golden pages of whole climbs: every rung that this version knows, kernels that wait, load, budgets and islands. What is
//! derived is derived by `diagnose`, as in a run.

use super::{fits, hosts, options};
use hosts::{Answer, corrupt};
use insta::assert_snapshot;
use peerproof::{
    diagnose::{self, Evidence},
    model::{
        case::{Load, Missing, Outcome, Record, Rung, Subject, WrongKind},
        group::Group,
        ladder::Step,
        measurement::{Measurement, Unit},
        pair::{GpuIndex, OrderedPair},
        reduction::{AllReduce, Dtype, Launch},
        report::{Grading, Report, Spending},
        snapshot::Snapshot,
    },
    render::{
        terminal::{self, Closing, Saved},
        verdict_file::{self, VerdictFile},
    },
};

/// What came after the mechanisms of `hosts::run`.
const HIGHER: [(&str, Rung); 17] = [
    ("host-exchange", Rung::Staged),
    ("pool-ce-push", Rung::Copied),
    ("pool-ce-pull", Rung::Copied),
    ("sm-store4", Rung::Touched),
    ("atomics", Rung::Touched),
    ("pool-sm-load", Rung::Touched),
    ("pool-sm-store", Rung::Touched),
    ("ipc-ce-push", Rung::Shared),
    ("ipc-ce-pull", Rung::Shared),
    ("ipc-sm-load", Rung::Shared),
    ("ipc-sm-store", Rung::Shared),
    ("vmm-ce-push", Rung::Shared),
    ("vmm-ce-pull", Rung::Shared),
    ("vmm-sm-load", Rung::Shared),
    ("vmm-sm-store", Rung::Shared),
    ("resident", Rung::Resident),
    ("ipc-resident", Rung::Resident),
];

pub(super) type UnderLoad = Box<dyn Fn(OrderedPair, &str, Load) -> (Outcome, f64)>;

pub(super) fn right_under_load() -> UnderLoad {
    Box::new(|_, _, load| {
        let rate = match load {
            Load::BothDirections => 48.0,
            _ => 24.0,
        };
        (Outcome::Intact, rate)
    })
}

/// A run over every rung, judged.
pub(super) fn climb(snapshot: Snapshot, answer: &Answer, load: &UnderLoad) -> Report {
    let mut report = hosts::run(snapshot, answer);
    let count = report.snapshot.gpus.len() as u32;
    let steps: Vec<(String, Rung)> = report
        .records
        .iter()
        .filter(|r| r.case.subject.pair() == OrderedPair::new(0, 1))
        .map(|r| (r.case.mechanism.clone(), r.case.rung))
        .chain(HIGHER.map(|(m, r)| (m.to_string(), r)))
        .collect();
    let model: Record = report.records.last().unwrap().clone();
    let add = |report: &mut Report, pair, mechanism: &str, rung, outcome: Outcome| {
        let mut one = model.clone();
        one.case.id = report.records.len() as u32;
        one.case.subject = peerproof::model::case::Subject::Pair(pair);
        one.case.mechanism = mechanism.to_string();
        one.case.rung = rung;
        one.outcome = outcome;
        one.rate = None;
        one.attempts_ran = if one.outcome.ran() { 3 } else { 0 };
        report.records.push(one);
    };
    for (mechanism, rung) in HIGHER {
        for pair in OrderedPair::all(count) {
            add(&mut report, pair, mechanism, rung, answer(pair, mechanism));
        }
    }
    for mechanism in ["ce-push", "sm-load"] {
        for shape in [Load::BothDirections, Load::AllPairs] {
            for pair in OrderedPair::all(count) {
                let (outcome, gbps) = load(pair, mechanism, shape);
                let intact = outcome.is_intact();
                add(&mut report, pair, mechanism, Rung::Loaded, outcome);
                let one = report.records.last_mut().unwrap();
                one.case.load = Some(shape);
                one.alone = false;
                one.rate = intact.then(|| Measurement {
                    samples: vec![gbps; 3],
                    unit: Unit::GbPerS,
                    warmup: 1,
                    method: format!("under load: {}", shape.words()),
                    caveats: Vec::new(),
                });
            }
        }
    }
    report.ladder = steps
        .into_iter()
        .map(|(mechanism, rung)| Step { mechanism, rung })
        .collect();
    judge(&mut report, "default");
    report
}

fn judge(report: &mut Report, budget: &str) {
    let group: Vec<GpuIndex> = report.tested_gpus.iter().copied().map(GpuIndex).collect();
    let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder);
    let mut coverage = diagnose::coverage(&evidence, &[]);
    coverage.budget = Some(Spending {
        name: budget.to_string(),
        device_bytes: 201 << 20,
        host_bytes: 128 << 20,
        expected_s: 8.4,
        limit_s: 280.0,
    });
    let findings = diagnose::findings(&evidence);
    let consumers = diagnose::consumers(&evidence, &group);
    let verdict = diagnose::verdict(
        &evidence,
        &coverage,
        report.selftest.as_ref(),
        &findings,
        &consumers,
    );
    report.recommendations.clear();
    (report.coverage, report.findings) = (coverage, findings);
    (report.consumers, report.verdict) = (consumers, verdict);
}

fn told(report: &Report, width: usize) -> String {
    let closing = Closing {
        timings: false,
        saved: Saved::NotAsked,
    };
    let mut out = Vec::new();
    terminal::write(report, &closing, &options(width), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    fits(&text, width);
    text
}

fn intact() -> Answer {
    Box::new(|_, _| Outcome::Intact)
}

fn golden(name: &str, report: &Report) {
    for width in [80, 160] {
        assert_snapshot!(format!("ladder_{name}_{width}"), told(report, width));
    }
}

#[test]
fn a_healthy_host_with_all_rungs() {
    let report = climb(hosts::nvswitch(), &intact(), &right_under_load());
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{:?}",
        report.verdict
    );
    let text = told(&report, 80);
    assert!(text.contains("not tested by this version"), "{text}");
    golden("healthy", &report);
}

/// The same with all-reduces over every pair, both halves and all GPUs; `together` answers for the groups.
pub(super) fn reduced(snapshot: Snapshot, together: impl Fn(Group) -> Outcome) -> Report {
    let mut report = climb(snapshot, &intact(), &right_under_load());
    let count = report.snapshot.gpus.len() as u32;
    let half = count / 2;
    let groups = [(0, half), (half, count), (0, count)];
    let groups = groups.map(|(from, to)| Group::new(from..to).unwrap());
    let model: Record = report.records.last().unwrap().clone();
    for mechanism in ["one-shot-push", "ipc-one-shot-push"] {
        let pairs = OrderedPair::all(count).map(|pair| (Subject::Pair(pair), Outcome::Intact));
        let groups = groups.map(|group| (Subject::Group(group), together(group)));
        for (subject, outcome) in pairs.chain(groups) {
            let mut one = model.clone();
            one.case.id = report.records.len() as u32;
            (one.case.subject, one.case.rung) = (subject, Rung::Reduced);
            (one.case.load, one.case.bytes) = (None, 8 << 10);
            one.case.mechanism = mechanism.to_string();
            one.case.all_reduce = Some(AllReduce {
                dtype: Dtype::Bf16,
                in_place: false,
                launch: Launch::Eager,
            });
            one.rate = None;
            one.outcome = outcome;
            one.attempts_ran = 24;
            report.records.push(one);
        }
        report.ladder.push(Step {
            mechanism: mechanism.to_string(),
            rung: Rung::Reduced,
        });
    }
    judge(&mut report, "default");
    report
}

#[test]
fn a_healthy_host_that_reduces() {
    let report = reduced(hosts::nvswitch(), |_| Outcome::Intact);
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{:?}",
        report.verdict
    );
    let text = told(&report, 160);
    assert!(text.contains("up to rung 6"), "{text}");
    golden("reduced", &report);
}

#[test]
fn a_group_that_fails_where_its_parts_do_not() {
    let report = reduced(hosts::nvswitch(), |group| match group.count() {
        8 => corrupt(WrongKind::Stale, OrderedPair::new(2, 5).unwrap()),
        _ => Outcome::Intact,
    });
    assert_eq!(report.verdict.grading, Grading::Fail);
    golden("reduced_wrong", &report);
    let report = reduced(hosts::nvswitch(), |group| match group.count() {
        8 => rank_never_came(),
        _ => Outcome::Intact,
    });
    golden("reduced_never", &report);
}

/// An all-reduce in which the rank of GPU5 never came.
pub(super) fn rank_never_came() -> Outcome {
    Outcome::Never {
        round: 3,
        rounds: 24,
        after_ms: 1000,
        missing: Some(Missing {
            rank: 5,
            gpu: GpuIndex(5),
            block: 2,
        }),
    }
}

#[test]
fn a_flag_that_overtakes_its_payload() {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "resident" | "ipc-resident" if pair == OrderedPair::new(2, 5).unwrap() => {
            corrupt(WrongKind::Late, pair)
        }
        _ => Outcome::Intact,
    });
    let report = climb(hosts::nvswitch(), &answer, &right_under_load());
    assert_eq!(report.verdict.grading, Grading::Fail);
    golden("late", &report);
}

#[test]
fn a_flag_that_never_comes() {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "resident" if pair == OrderedPair::new(1, 0).unwrap() => Outcome::Never {
            round: 3,
            rounds: 1000,
            after_ms: 2000,
            missing: None,
        },
        _ => Outcome::Intact,
    });
    let report = climb(hosts::virtual_machine(), &answer, &right_under_load());
    assert_eq!(report.verdict.grading, Grading::Fail);
    golden("never", &report);
}

#[test]
fn wrong_under_load_alone() {
    let load: UnderLoad = Box::new(|pair, mechanism, load| match (mechanism, load) {
        ("ce-push", Load::AllPairs) if pair.source.0 == 3 => (corrupt(WrongKind::Stale, pair), 0.0),
        _ => (Outcome::Intact, 24.0),
    });
    let report = climb(hosts::nvswitch(), &intact(), &load);
    assert_eq!(report.verdict.grading, Grading::Fail);
    let headline = &report.verdict.headline;
    assert!(
        headline.contains("wrong only under load: every ordered pair at once"),
        "{headline}"
    );
    golden("load_wrong", &report);
}

#[test]
fn a_collapse_is_slow_and_not_wrong() {
    let load: UnderLoad = Box::new(|pair, mechanism, load| match (mechanism, load) {
        ("ce-push", Load::AllPairs) if pair.source.0 / 4 != pair.destination.0 / 4 => {
            (Outcome::Intact, 2.7)
        }
        _ => (Outcome::Intact, 24.0),
    });
    let report = climb(hosts::sixteen(), &intact(), &load);
    assert_ne!(report.verdict.grading, Grading::Fail);
    golden("collapse", &report);
}

#[test]
fn budgets_say_what_they_would_have_seen() {
    let mut report = climb(hosts::virtual_machine(), &intact(), &right_under_load());
    for record in &mut report.records {
        record.attempts_ran = 1;
    }
    judge(&mut report, "quick");
    assert!(report.verdict.cause.contains("1 in 200 would not"));
    golden("quick", &report);
    for record in &mut report.records {
        record.attempts_ran = 598;
    }
    judge(&mut report, "deep");
    let limits = &report.verdict.cause;
    assert!(
        limits.contains("a fault of 1 in 200 attempts would have been seen"),
        "{limits}"
    );
    golden("deep", &report);
}

#[test]
fn islands_are_judged_where_the_group_fails() {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "bounce" | "staged" | "host-exchange" => Outcome::Intact,
        _ if pair.source.0 / 4 != pair.destination.0 / 4 => corrupt(WrongKind::Zeroed, pair),
        _ => Outcome::Intact,
    });
    let report = climb(hosts::sixteen(), &answer, &right_under_load());
    golden("islands", &report);
}

/// The file for other programs comes back as it was, and says what changed since.
#[test]
fn a_verdict_file_ends_with_its_keys() {
    let report = climb(hosts::nvswitch(), &intact(), &right_under_load());
    let file = VerdictFile::of(&report, "2026-02-01T03:04:05Z".to_string());
    let mut out = Vec::new();
    file.write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(verdict_file::read(&text).unwrap(), file);
    assert!(file.objections(&report.snapshot, 0, 1).is_empty());
    assert_eq!(file.objections(&report.snapshot, 2, 1).len(), 1);

    let mut later = report.snapshot.clone();
    later.driver.version = peerproof::model::reading::Reading::Known("590.1".to_string());
    later.gpus.swap(0, 1);
    later.host.bios = peerproof::model::reading::Reading::Known("new".to_string());
    let objections = file.objections(&later, 0, 1);
    assert!(
        objections.contains(&"driver version: was 580.159.04, is 590.1".to_string()),
        "{objections:?}"
    );
    assert!(objections.contains(&"BIOS: was not readable, is new".to_string()));
    assert!(objections.iter().any(|o| o.starts_with("GPU0 UUID: was ")));
    // An idle GPU lowers its link's rate by design; fewer lanes are another matter.
    let mut idle = report.snapshot.clone();
    let link = peerproof::model::pci::PcieLink {
        speed_gts: 2.5,
        width: 16,
    };
    idle.gpus[0].link_now = peerproof::model::reading::Reading::Known(link);
    assert!(file.objections(&idle, 0, 1).is_empty());
    idle.gpus[0].link_now =
        peerproof::model::reading::Reading::Known(peerproof::model::pci::PcieLink {
            width: 8,
            ..link
        });
    assert_eq!(
        file.objections(&idle, 0, 1),
        ["GPU0 PCIe lanes: was 16, is 8"]
    );

    let other = text.replacen("\"verdict_version\": 1", "\"verdict_version\": 2", 1);
    assert!(
        verdict_file::read(&other)
            .unwrap_err()
            .to_string()
            .contains("write it anew")
    );
    assert!(verdict_file::read(&text[..text.len() / 2]).is_err());
}

/// The committed schema of verdict files is what the type gives. `PEERPROOF_BLESS=1` writes it anew.
#[test]
fn the_published_verdict_schema_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/verdict.schema.json");
    let fresh = serde_json::to_string_pretty(&verdict_file::schema()).unwrap() + "\n";
    if std::env::var_os("PEERPROOF_BLESS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "docs/verdict.schema.json is not what the type gives; write it anew with PEERPROOF_BLESS=1 cargo test --test render"
    );
}
