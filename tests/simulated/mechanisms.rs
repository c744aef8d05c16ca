//! Each mechanism by itself: what goes wrong on one way is found on that way, named, and on no other. Where a mechanism does
//! not exist that is said, and nothing is tried.

use crate::host::{Host, failures, kind, line, only, pair, summary};
use peerproof::model::{
    case::{Outcome, PeerAccess, Record, WrongKind},
    report::Report,
};

/// Two GPUs with NVLink and native atomics.
const SMALL: &str = "opaque-vm";
/// Transfers below this many bytes are too short to tell all kinds apart.
const TELLING: u64 = 4096;

fn of<'a>(report: &'a Report, mechanism: &'a str) -> impl Iterator<Item = &'a Record> {
    let records = report.records.iter();
    records.filter(move |record| record.case.mechanism == mechanism)
}

/// All wrong records that are long enough to tell are of this kind.
#[track_caller]
fn all_are(report: &Report, wanted: WrongKind) {
    let wrong = failures(report);
    let long: Vec<&&Record> = wrong.iter().filter(|r| r.case.bytes >= TELLING).collect();
    assert!(!long.is_empty(), "{}", summary(report));
    for record in long {
        assert_eq!(kind(record), Some(wanted), "{}", line(record));
    }
}

/// Pitfall P9: reads, writes, widths, atomics and kinds of memory fail one by one.
#[test]
fn every_way_is_blamed_for_itself() {
    for (planted, blamed, wanted) in [
        ("0>1:sm_store4=zeroed", "sm-store4", WrongKind::Zeroed),
        ("0>1:host_store=ones", "host-exchange", WrongKind::Ones),
        (
            "0>1:pool.ce_push=dropped",
            "pool-ce-push",
            WrongKind::Dropped,
        ),
        ("0>1:pool.ce_pull=zeroed", "pool-ce-pull", WrongKind::Zeroed),
        (
            "0>1:pool.sm_load=flipped",
            "pool-sm-load",
            WrongKind::Flipped,
        ),
        (
            "0>1:pool.sm_store=mirrored",
            "pool-sm-store",
            WrongKind::Mirrored,
        ),
    ] {
        let host = match planted.split_once("host_store") {
            // The other end of this way is the host.
            Some(_) => Host::new(SMALL).fault("0>host:host_store=ones"),
            None => Host::new(SMALL).fault(planted),
        };
        // Odd ends of wide stores are narrow, too.
        let report = host.qualify(&[
            "--mechanism",
            match blamed {
                "sm-store4" => "bounce,ce-push,sm-store4",
                _ => {
                    "bounce,host-exchange,ce-push,sm-store,pool-ce-push,pool-ce-pull,pool-sm-load,pool-sm-store"
                }
            },
        ]);
        if blamed == "host-exchange" {
            // A GPU that cannot store to the host is found alone, before its pairs are tried.
            assert!(!failures(&report).is_empty(), "{}", summary(&report));
            continue;
        }
        only(&report, pair(0, 1), blamed);
        all_are(&report, wanted);
    }
}

/// Pitfalls P1, P2 and P13: what proves nothing about peers says so, and memory that is granted was never reachable by
/// peer access.
#[test]
fn every_record_states_how_its_memory_was_reachable() {
    let report = Host::new(SMALL)
        .fault("0>1:ce=zeroed")
        .qualify(&["--mechanism", "staged,host-exchange,ce-push,pool-sm-store"]);
    for (mechanism, access) in [
        ("staged", PeerAccess::Off),
        ("host-exchange", PeerAccess::Off),
        ("ce-push", PeerAccess::Both),
        ("pool-sm-store", PeerAccess::Granted),
    ] {
        let mut ran = of(&report, mechanism)
            .filter(|r| r.outcome.ran())
            .peekable();
        assert!(ran.peek().is_some(), "{mechanism}: {}", summary(&report));
        for record in ran {
            assert_eq!(record.peer_access, access, "{}", line(record));
            let broken = mechanism == "ce-push" && record.case.subject.pair() == Some(pair(0, 1));
            assert_eq!(record.outcome.is_intact(), !broken, "{}", line(record));
        }
    }
}

/// Pitfall P6: with one attempt a case, what the case before brought must not pass for what this one sends.
#[test]
fn words_of_an_earlier_case_do_not_pass_for_new_ones() {
    let report =
        Host::new(SMALL)
            .fault("0>1:ce_push=stale")
            .qualify(&["--quick", "--mechanism", "ce-push"]);
    only(&report, pair(0, 1), "ce-push");
    let ran = of(&report, "ce-push").filter(|r| r.case.subject.pair() == Some(pair(0, 1)));
    let mut stale = 0;
    for record in ran.filter(|r| r.case.bytes >= TELLING && !r.case.timed && r.outcome.ran()) {
        let found = record.outcome.corruption();
        stale += found
            .unwrap_or_else(|| panic!("{}", line(record)))
            .counts
            .stale;
    }
    assert!(stale > 0, "{}", summary(&report));
}

/// The same on host memory: nothing over PCIe, and where a platform advertises them, lost ones are theirs alone.
#[test]
fn atomics_on_host_memory_are_issued_only_where_they_are_advertised() {
    let only = ["--mechanism", "host-exchange,host-atomics"];
    let over_pcie = Host::new(SMALL).qualify(&only);
    let asked: Vec<&Record> = of(&over_pcie, "host-atomics").collect();
    assert!(!asked.is_empty());
    for record in asked {
        let Outcome::NotApplicable { reason } = &record.outcome else {
            panic!("{}", line(record));
        };
        assert!(reason.contains("on host memory"), "{reason}");
    }
    let coherent = Host::new(SMALL).set("driver.host_atomics=true");
    let whole = coherent.clone().qualify(&only);
    assert!(failures(&whole).is_empty(), "{}", summary(&whole));
    assert!(of(&whole, "host-atomics").any(|r| r.outcome.is_intact()));
    let lost = coherent.fault("0>host:host_atomic=dropped").qualify(&only);
    let wrong = failures(&lost);
    assert!(!wrong.is_empty(), "{}", summary(&lost));
    for record in wrong {
        assert_eq!(record.case.mechanism, "host-atomics", "{}", line(record));
        assert_eq!(record.case.subject.pair(), Some(pair(0, 1)));
    }
}

#[test]
fn atomics_are_issued_only_where_they_are_advertised() {
    let report = Host::new(SMALL)
        .set("claims=[{pair='0>1',atomics=false}]")
        .qualify(&["--mechanism", "atomics,atomics-contended,sm-store"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    for mechanism in ["atomics", "atomics-contended"] {
        for record in of(&report, mechanism) {
            match &record.outcome {
                Outcome::NotApplicable { reason } => {
                    assert_eq!(record.case.subject.pair(), Some(pair(0, 1)));
                    assert!(reason.contains("advertises no native atomics"), "{reason}");
                }
                outcome => {
                    assert_eq!(record.case.subject.pair(), Some(pair(1, 0)));
                    assert!(outcome.is_intact(), "{}", line(record));
                }
            }
        }
    }
}

/// Atomics that a platform loses without an error: each lost one leaves a word that names nothing, or the owner's poison.
#[test]
fn lost_atomics_are_seen_in_both_mechanisms_and_in_no_other() {
    let report = Host::new(SMALL)
        .fault("0>1:atomic=dropped")
        .qualify(&["--mechanism", "atomics,atomics-contended,sm-store"]);
    for record in failures(&report) {
        assert_eq!(
            record.case.subject.pair(),
            Some(pair(0, 1)),
            "{}",
            line(record)
        );
        match record.case.mechanism.as_str() {
            "atomics" => assert_eq!(kind(record), Some(WrongKind::Dropped), "{}", line(record)),
            // The owner's own sums are there.
            "atomics-contended" => assert_eq!(kind(record), Some(WrongKind::Mixed)),
            other => panic!("{other}: {}", line(record)),
        }
    }
    for mechanism in ["atomics", "atomics-contended"] {
        let wrong = of(&report, mechanism).filter(|r| r.outcome.is_failure());
        assert!(wrong.count() > 0, "{mechanism}: {}", summary(&report));
    }
}

#[test]
fn without_pools_their_mechanisms_do_not_exist() {
    let report = Host::new(SMALL)
        .set("driver.pools=false")
        .qualify(&["--mechanism", "ce-push,pool-ce-push,pool-sm-load"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    for mechanism in ["pool-ce-push", "pool-sm-load"] {
        for record in of(&report, mechanism) {
            let Outcome::NotApplicable { reason } = &record.outcome else {
                panic!("{}", line(record));
            };
            assert!(
                reason.contains("no stream-ordered memory pools"),
                "{reason}"
            );
        }
    }
}

#[test]
fn a_pool_that_may_not_be_shared_is_a_clean_no() {
    let report = Host::new(SMALL)
        .fault("0>1:pool.enable=refusal")
        .qualify(&["--mechanism", "ce-push,pool-ce-push"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    for record in of(&report, "pool-ce-push") {
        match &record.outcome {
            Outcome::Refused { api, .. } => {
                assert_eq!(
                    record.case.subject.pair(),
                    Some(pair(0, 1)),
                    "{}",
                    line(record)
                );
                assert_eq!(api, "cuMemPoolSetAccess");
            }
            outcome => assert!(outcome.is_intact(), "{}", line(record)),
        }
    }
}

/// What a report keeps of each kind, on a transfer that starts and ends inside units.
#[test]
fn evidence_says_what_is_particular() {
    let unaligned = |report: &Report| -> Record {
        let wrong = failures(report).into_iter();
        let mut wrong = wrong.filter(|r| !r.case.offset.is_multiple_of(16));
        wrong
            .next()
            .unwrap_or_else(|| panic!("{}", summary(report)))
            .clone()
    };
    for (planted, wanted, says) in [
        ("zeroed", WrongKind::Zeroed, "257 of 257 units are zero"),
        ("partial:keep=8192", WrongKind::Partial, "bytes "),
        ("shifted:bytes=64", WrongKind::Shifted, "+64 bytes"),
        (
            "flipped:mask=4:every=1024",
            WrongKind::Flipped,
            "bit 2 of byte",
        ),
        (
            "spilled:bytes=48",
            WrongKind::Spilled,
            "bytes after the target",
        ),
    ] {
        let report = Host::new(SMALL)
            .fault(&format!("0>1:sm_store={planted}"))
            .qualify(&["--mechanism", "sm-store"]);
        let all = failures(&report);
        assert!(!all.is_empty(), "{planted}: {}", summary(&report));
        if planted.starts_with("partial") {
            // What lies past the first bytes is missing: of the longer transfers a part, others altogether.
            let kinds: Vec<_> = all.iter().filter_map(|record| kind(record)).collect();
            assert!(kinds.contains(&wanted), "{}", summary(&report));
            for kind in kinds {
                assert!(
                    [wanted, WrongKind::Dropped].contains(&kind),
                    "{}",
                    summary(&report)
                );
            }
            continue;
        }
        let record = unaligned(&report);
        let found = record.outcome.corruption().unwrap();
        assert_eq!(found.kind, wanted, "{planted}: {}", line(&record));
        assert!(found.detail.contains(says), "{planted}: {}", found.detail);
        if wanted != WrongKind::Spilled {
            assert!(
                found.last_offset <= record.case.bytes && found.first_offset < found.last_offset
            );
            assert!((1..=16).contains(&found.samples.len()));
            for sample in &found.samples {
                assert_eq!(sample.expected.len(), sample.owner.len());
                assert_ne!(sample.expected, sample.owner);
                assert!(sample.reread.is_some() && sample.accessor.is_some());
            }
        }
    }
}
