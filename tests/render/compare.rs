//! Comparisons: a sister host that is broken, a BIOS change, numbers alone, nothing; as text, Markdown and JSON.

use super::{Answer, fits, hosts, intact, options};
use crate::hosts::{corrupt, finding, run};
use insta::assert_snapshot;
use peerproof::{
    compare::compare,
    model::{
        case::{Outcome, WrongKind},
        comparison::{Comparison, MatchedBy, Relation},
        finding::{ConsumerState, Judgement},
        pair::{GpuIndex, OrderedPair},
        reading::{Absence, Reading},
        report::{Grading, Report, Spending},
        snapshot::{AcsControl, Authenticity, IommuGroup, Snapshot},
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
            .what
            .contains("fewer than 3 samples")
    );
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
