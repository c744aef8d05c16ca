//! The report as JSON, the journal, and the published schema.

use super::{hosts, intact};
use crate::hosts::{all_zeroed, run};
use peerproof::diagnose;
use peerproof::model::{
    pair::OrderedPair,
    report::{Grading, Report, SCHEMA_VERSION},
};
use peerproof::{
    model::snapshot::Observation,
    render::json::{self, Beside, JournalHead, ReadError},
};
use std::path::Path;

fn saved(report: &Report) -> String {
    let mut out = Vec::new();
    json::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn edited(report: &Report, edit: impl Fn(&mut serde_json::Value)) -> String {
    let mut value = serde_json::to_value(report).unwrap();
    edit(&mut value);
    value.to_string()
}

#[test]
fn a_report_comes_back_as_it_was() {
    for report in [
        all_zeroed(hosts::rtx_pro()),
        run(hosts::nvswitch(), &intact()),
        run(hosts::no_gpu(), &intact()),
    ] {
        assert_eq!(json::read(&saved(&report)).unwrap(), report);
    }
}

/// A report as the first version of this schema wrote it (simulated, zeros planted on 0->1): kept as it was, read for good.
#[test]
fn a_report_of_the_first_version_is_still_read() {
    let kept = include_str!("../fixtures/reports/schema-1-first.json");
    let report = json::read(kept).unwrap();
    // What that version did not know.
    assert!(report.ladder.is_empty() && report.reductions.is_empty());
    assert!(report.coverage.budget.is_none() && report.coverage.sensitivity.is_empty());
    // What it did know, and what this version makes of it.
    let pair = OrderedPair::new(0, 1).unwrap();
    assert_eq!(report.verdict.grading, Grading::Fail);
    assert_eq!(report.verdict.worst_pair, Some(pair));
    let stopped = report.standing(pair).stopped_by.unwrap();
    assert_eq!(
        (stopped.case.mechanism.as_str(), stopped.outcome.word()),
        ("ce-push", "zeroed")
    );
    let evidence = diagnose::Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder);
    let coverage = diagnose::coverage(&evidence, &report.coverage.left_out);
    let findings = diagnose::findings(&evidence);
    let now = diagnose::verdict(
        &evidence,
        &coverage,
        report.selftest.as_ref(),
        &findings,
        &[],
    );
    assert_eq!((now.grading, now.worst_pair), (Grading::Fail, Some(pair)));
    assert_eq!(json::read(&saved(&report)).unwrap(), report);
}

#[test]
fn other_versions_are_refused_with_what_to_do() {
    let report = run(hosts::one_gpu(), &intact());
    let newer = edited(&report, |v| {
        v["schema_version"] = (SCHEMA_VERSION + 1).into()
    });
    let error = json::read(&newer).unwrap_err();
    assert!(matches!(error, ReadError::Newer { .. }));
    assert!(
        error
            .to_string()
            .contains("use the peerproof that wrote it")
    );

    let never = edited(&report, |v| v["schema_version"] = 0.into());
    assert!(matches!(
        json::read(&never),
        Err(ReadError::NeverPublished { found: 0 })
    ));
    let foreign = json::read("{\"topology\": []}").unwrap_err();
    assert!(matches!(foreign, ReadError::NoVersion));
    // A newer shape that this version cannot parse is still refused for its version.
    let other = format!(
        "{{\"schema_version\": {}, \"all\": \"new\"}}",
        SCHEMA_VERSION + 3
    );
    assert!(matches!(json::read(&other), Err(ReadError::Newer { .. })));
}

#[test]
fn damage_is_told_with_its_place() {
    let text = saved(&run(hosts::one_gpu(), &intact()));
    let error = json::read(&text[..text.len() / 2]).unwrap_err().to_string();
    assert!(
        error.contains("line") && error.contains("column"),
        "{error}"
    );
    assert!(json::read("").is_err());
    let own = OrderedPair::new(0, 1).unwrap();
    let report = all_zeroed(hosts::rtx_pro());
    assert_eq!(
        report.standing(own).reached,
        Some(peerproof::model::case::Rung::Staged)
    );
    for (edit, word) in [
        (("/snapshot/claims/count", 4_000_000_000u32), "claims"),
        (("/tested_gpus/1", 99), "99"),
        (("/tested_gpus/1", 0), "twice"),
        (("/records/100/case/subject/pair/source", 200), "200"),
    ] {
        let text = edited(&report, |v| *v.pointer_mut(edit.0).unwrap() = edit.1.into());
        let error = json::read(&text).unwrap_err();
        assert!(matches!(error, ReadError::Contradiction(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    type Edit = fn(&mut serde_json::Value);
    let more: [(Edit, &str); 5] = [
        (
            |v| v["records"][101]["case"]["id"] = v["records"][100]["case"]["id"].clone(),
            "two records",
        ),
        (
            |v| v["records"][100]["attempts_ran"] = 0.into(),
            "no attempt of it ran",
        ),
        (
            |v| v["tested_gpus"] = serde_json::json!([]),
            "not among the tested",
        ),
        (
            |v| drop(v["records"].as_array_mut().unwrap().pop()),
            "were planned",
        ),
        (|v| v["took_ms"] = (-5.0).into(), "-5 ms"),
    ];
    for (edit, words) in more {
        let error = json::read(&edited(&report, edit)).unwrap_err();
        assert!(matches!(error, ReadError::Contradiction(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let loops = edited(&report, |v| {
        let pair = v.pointer_mut("/records/100/case/subject/pair").unwrap();
        pair["destination"] = pair["source"].clone();
    });
    assert!(
        json::read(&loops)
            .unwrap_err()
            .to_string()
            .contains("itself")
    );
}

#[test]
fn a_journal_survives_a_torn_last_line() {
    let report = all_zeroed(hosts::rtx_pro());
    let head = JournalHead {
        schema_version: SCHEMA_VERSION,
        tool_version: report.tool_version.clone(),
        kernels_sha256: report.kernels_sha256.clone(),
        authenticity: report.authenticity,
        started_at: report.started_at.clone(),
        arguments: report.arguments.clone(),
        snapshot: report.snapshot.clone(),
        tested_gpus: report.tested_gpus.clone(),
    };
    let mut out = Vec::new();
    json::write_journal_head(&head, &mut out).unwrap();
    let seen = Observation {
        moment: "before".to_string(),
        gpus: Vec::new(),
        bridges: Vec::new(),
    };
    let seen = Beside::Observation(seen);
    json::write_journal_beside(&seen, &mut out).unwrap();
    for record in &report.records {
        json::write_journal_record(record, &mut out).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    let whole = json::read_journal(&text).unwrap();
    assert_eq!(
        (&whole.head, &whole.records, whole.torn),
        (&head, &report.records, false)
    );
    assert_eq!(whole.beside, [seen]);

    let torn = json::read_journal(&text[..text.len() - 40]).unwrap();
    assert!(torn.torn);
    assert_eq!(torn.records.len(), report.records.len() - 1);

    let mut lines: Vec<&str> = text.lines().collect();
    lines[7] = "{\"case\":";
    let error = json::read_journal(&lines.join("\n"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 8"), "{error}");
    assert!(matches!(
        json::read_journal("\n"),
        Err(ReadError::EmptyJournal)
    ));
}

/// The committed schema is what the model gives. `PEERPROOF_BLESS=1` writes it anew.
#[test]
fn the_published_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.schema.json");
    let fresh = serde_json::to_string_pretty(&json::schema()).unwrap() + "\n";
    if std::env::var_os("PEERPROOF_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "docs/report.schema.json is not what the model gives; write it anew with PEERPROOF_BLESS=1 cargo test --test render"
    );
}
