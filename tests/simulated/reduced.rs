//! Rung 6: all-reduces over pairs and groups. Healthy hosts are silent; wrong sums, waits in vain and deaths are named, on
//! exactly the direction or group that has them.

use crate::host::{Host, consumer, failures, kind, line, only, pair, summary};
use peerproof::{
    model::{
        case::{Outcome, PeerAccess, Record, Rung, Subject, WrongKind},
        finding::ConsumerState,
        pair::OrderedPair,
        reduction::Arrangement,
        report::{Grading, Report},
    },
    render::json,
};

/// Two GPUs with NVLink.
const SMALL: &str = "opaque-vm";
/// Eight GPUs on NVSwitch.
const EIGHT: &str = "hgx-h200-x8";
const ONLY: &[&str] = &["--mechanism", "one-shot-push"];
const ACROSS: &[&str] = &["--mechanism", "ipc-one-shot-push"];

fn of<'r>(report: &'r Report, mechanism: &str, pair: OrderedPair) -> Vec<&'r Record> {
    let records = report.records.iter();
    let mine = records.filter(|r| {
        r.case.mechanism == mechanism
            && r.case.subject.pair() == Some(pair)
            && r.case.all_reduce.is_some()
    });
    let mine: Vec<&Record> = mine.collect();
    assert!(!mine.is_empty(), "{}", summary(report));
    mine
}

fn of_groups<'r>(report: &'r Report, mechanism: &str) -> Vec<&'r Record> {
    let records = report.records.iter();
    let mine =
        records.filter(|r| r.case.mechanism == mechanism && r.case.subject.group().is_some());
    mine.collect()
}

#[test]
fn healthy_pairs_reduce_by_every_algorithm_also_where_stores_are_weakly_ordered() {
    let all = "host-reduce,one-shot-push,one-shot-pull,two-shot,staged-push,ipc-one-shot-push,ipc-one-shot-pull,ipc-two-shot,ipc-staged-push";
    for setting in ["deadline_factor=5", "weak_memory=3"] {
        let report = Host::new(SMALL).set(setting).qualify(&["--mechanism", all]);
        assert!(failures(&report).is_empty(), "{}", summary(&report));
        assert_eq!(report.verdict.grading, Grading::Pass);
        for id in all.split(',') {
            for direction in [pair(0, 1), pair(1, 0)] {
                for record in of(&report, id, direction) {
                    assert!(record.outcome.is_intact(), "{}", line(record));
                    assert!(
                        record.attempts_ran >= record.case.attempts,
                        "{}",
                        line(record)
                    );
                    let (rung, access) = match id {
                        "host-reduce" => (Rung::Staged, PeerAccess::Off),
                        id if id.starts_with("ipc-") => (Rung::Reduced, PeerAccess::Imported),
                        _ => (Rung::Reduced, PeerAccess::Both),
                    };
                    assert_eq!((record.case.rung, record.peer_access), (rung, access));
                }
            }
        }
        // The pair is the whole group: its all-reduces are timed, each algorithm once a size.
        assert!(!report.reductions.is_empty());
        for row in &report.reductions {
            assert!(row.outcome.is_intact() && row.arrangement == Arrangement::OneProcess);
            assert_eq!(row.gpus, [0, 1]);
            assert!(
                row.time
                    .as_ref()
                    .is_some_and(|time| !time.samples.is_empty())
            );
        }
    }
}

#[test]
fn a_quick_look_at_eight_gpus_reduces_on_every_pair_island_and_all_together() {
    let report =
        Host::new(EIGHT).qualify(&["--quick", "--mechanism", "one-shot-push,ipc-one-shot-push"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    for id in ["one-shot-push", "ipc-one-shot-push"] {
        for direction in OrderedPair::all(8) {
            let records = of(&report, id, direction);
            assert!(records.len() == 1 && records[0].outcome.is_intact());
        }
        let groups = of_groups(&report, id);
        assert!(
            groups
                .iter()
                .any(|r| r.case.subject.group().unwrap().count() == 8)
        );
        assert!(groups.iter().all(|r| r.outcome.is_intact()));
    }
}

#[test]
fn what_a_rank_lacks_is_the_senders_direction() {
    for (planted, wanted) in [
        ("0>1:sm_store=zeroed", WrongKind::Zeroed),
        ("1>0:sm_store16=flipped:every=16", WrongKind::Mixed),
    ] {
        let (guilty, other) = match planted.starts_with('0') {
            true => (pair(0, 1), pair(1, 0)),
            false => (pair(1, 0), pair(0, 1)),
        };
        let report = Host::new(SMALL)
            .fault(planted)
            .qualify(&[ONLY, &["--quick"]].concat());
        let record = of(&report, "one-shot-push", guilty)[0];
        // Words that carry their epoch are lost with it: then the rank never came.
        match &record.outcome {
            Outcome::Never {
                missing: Some(_), ..
            } => {}
            _ => assert_eq!(kind(record), Some(wanted), "{planted}: {}", line(record)),
        }
        only(&report, guilty, "one-shot-push");
        let other = of(&report, "one-shot-push", other)[0];
        assert!(!other.outcome.is_failure(), "{planted}: {}", line(other));
        assert_eq!(consumer(&report, "nccl-p2p"), ConsumerState::Vetoed);
    }
}

#[test]
fn wrong_loads_are_the_direction_that_was_loaded() {
    let report = Host::new(SMALL)
        .fault("0>1:sm_load=zeroed")
        .qualify(&["--mechanism", "one-shot-pull"]);
    only(&report, pair(0, 1), "one-shot-pull");
    let record = of(&report, "one-shot-pull", pair(0, 1))[0];
    assert_eq!(kind(record), Some(WrongKind::Zeroed), "{}", line(record));
    let found = record.outcome.corruption().unwrap();
    assert!(
        found.detail.contains("contribution of rank 0 is missing"),
        "{}",
        found.detail
    );
    let other = of(&report, "one-shot-pull", pair(1, 0))[0];
    assert!(other.outcome.is_intact(), "{}", line(other));
}

#[test]
fn who_never_comes_is_named_with_its_block() {
    let report = Host::new(SMALL)
        .fault("1>0:sm_store=lost_flag")
        .qualify(&["--mechanism", "two-shot"]);
    only(&report, pair(1, 0), "two-shot");
    let record = of(&report, "two-shot", pair(1, 0))[0];
    let Outcome::Never {
        round: 1,
        rounds,
        after_ms,
        missing: Some(missing),
    } = &record.outcome
    else {
        panic!("{}", line(record));
    };
    assert_eq!((missing.rank, missing.gpu.0, missing.block), (1, 1, 0));
    assert!(
        *rounds > 1 && (900..20_000).contains(after_ms),
        "{after_ms}"
    );
    let Outcome::NotRun { reason } = &of(&report, "two-shot", pair(0, 1))[0].outcome else {
        panic!("{}", summary(&report));
    };
    assert!(reason.contains("the other direction"), "{reason}");
    assert!(
        report
            .verdict
            .headline
            .contains("block 0 of rank 1 (GPU1) never came"),
        "{}",
        report.verdict.headline
    );
}

#[test]
fn between_processes_wrong_never_hang_fault_and_death_are_the_senders() {
    for planted in ["zeroed", "hang", "sticky", "death"] {
        let fault = format!("1>0:ipc.sm_store={planted}");
        let report = Host::new(SMALL)
            .fault(&fault)
            .qualify(&[ACROSS, &["--quick"]].concat());
        only(&report, pair(1, 0), "ipc-one-shot-push");
        let record = of(&report, "ipc-one-shot-push", pair(1, 0))[0];
        match (planted, &record.outcome) {
            (
                "zeroed",
                Outcome::Never {
                    missing: Some(_), ..
                }
                | Outcome::Corrupt(_),
            )
            | ("hang", Outcome::TimedOut { .. })
            | ("sticky", Outcome::Faulted { code: 700, .. })
            | ("death", Outcome::Died { .. }) => {}
            (_, other) => panic!("{planted}: {other:?}"),
        }
        let other = of(&report, "ipc-one-shot-push", pair(0, 1))[0];
        assert!(!other.outcome.is_failure(), "{planted}: {}", line(other));
    }
}

#[test]
fn no_rank_waits_on_a_pair_that_failed_below_nor_in_a_group_that_holds_it() {
    let report = Host::new(EIGHT).fault("2>5:ce_push=zeroed").qualify(&[
        "--quick",
        "--mechanism",
        "ce-push,one-shot-push",
    ]);
    for direction in [pair(2, 5), pair(5, 2)] {
        let Outcome::NotRun { reason } = &of(&report, "one-shot-push", direction)[0].outcome else {
            panic!("{}", summary(&report));
        };
        assert!(reason.contains("unsafe after rung 2"), "{reason}");
    }
    assert!(
        of(&report, "one-shot-push", pair(2, 4))[0]
            .outcome
            .is_intact()
    );
    for record in of_groups(&report, "one-shot-push") {
        let group = record.case.subject.group().unwrap();
        match group.holds(pair(2, 5)) {
            true => assert!(
                matches!(&record.outcome, Outcome::NotRun { reason } if reason.contains("2->5")),
                "{}",
                line(record)
            ),
            false => assert!(record.outcome.is_intact(), "{}", line(record)),
        }
    }
}

#[test]
fn one_gpu_reduces_with_itself_in_streams_with_times_and_in_two_processes_without() {
    let report = Host::new("one-gpu").qualify(&[]);
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{}",
        summary(&report)
    );
    let find = |id: &str| {
        report
            .records
            .iter()
            .find(|r| r.case.mechanism == id)
            .unwrap()
    };
    let streams = find("reduce-same-gpu");
    assert!(streams.outcome.is_intact(), "{}", line(streams));
    assert!(!report.reductions.is_empty());
    for row in &report.reductions {
        assert_eq!(row.arrangement, Arrangement::StreamsOfOneGpu);
        assert!(row.time.is_some() && row.outcome.is_intact());
    }
    let apart = find("ipc-one-shot-push");
    assert!(matches!(apart.case.subject, Subject::Gpu(_)));
    assert!(apart.outcome.is_intact(), "{}", line(apart));
}

/// `peerproof reduce ARGUMENTS --json`, read.
fn reduce(host: &Host, arguments: &[&str]) -> (Report, Option<i32>) {
    let run = host.run(&[&["reduce", "--json", "--no-nccl"], arguments].concat());
    let report = json::read(&run.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", run.stdout, run.stderr));
    (report, run.code)
}

#[test]
fn reduce_brings_a_row_for_every_algorithm_size_and_arrangement() {
    let arguments = ["--bytes", "512,2KiB", "--calls", "8", "--samples", "2"];
    let (report, code) = reduce(
        &Host::new(SMALL),
        &[&arguments[..], &["--arrangement", "both"]].concat(),
    );
    assert_eq!(code, Some(0), "{:?}", report.verdict);
    let rows = &report.reductions;
    // Five algorithms take two ranks in one process, four of them in two.
    assert_eq!(rows.len(), 2 * (5 + 4));
    for row in rows {
        assert!(row.outcome.is_intact(), "{row:?}");
        assert!(row.calls > 8 && row.time.is_some(), "{row:?}");
    }
    assert!(
        rows.iter()
            .any(|row| row.arrangement == Arrangement::ProcessPerGpu)
    );
    let (report, code) = reduce(
        &Host::new("one-gpu"),
        &[&arguments[..], &["--arrangement", "both"]].concat(),
    );
    assert_eq!(code, Some(0), "{:?}", report.verdict);
    for row in &report.reductions {
        let sliced = row.arrangement == Arrangement::ProcessesOfOneGpu;
        assert_eq!(row.time.is_none(), sliced, "{row:?}");
        assert_eq!(row.gpus, [0, 0]);
    }
    assert!(report.reductions.iter().any(|row| row.time.is_none()));
}

#[test]
fn a_wrong_sum_fails_the_command_and_a_refusal_is_no_sum() {
    let arguments = [
        "--bytes",
        "512",
        "--calls",
        "4",
        "--samples",
        "1",
        "--algorithm",
        "one-shot-pull",
    ];
    let broken = Host::new(SMALL).fault("0>1:sm_load=zeroed");
    let (report, code) = reduce(&broken, &arguments);
    assert_eq!((report.verdict.grading, code), (Grading::Fail, Some(2)));
    assert!(report.reductions[0].outcome.corruption().is_some());
    let text = broken.run(&[&["reduce", "--no-nccl"], &arguments[..]].concat());
    assert!(text.stdout.contains("SIMULATED"), "{}", text.stdout);
    assert!(text.stdout.contains("zeroed"), "{}", text.stdout);
    let (report, code) = reduce(
        &Host::new("two-gpus-no-p2p"),
        &["--bytes", "512", "--calls", "4", "--samples", "1"],
    );
    assert_eq!(code, Some(0), "{:?}", report.verdict);
    let ran: Vec<&str> = report
        .reductions
        .iter()
        .filter(|row| row.outcome.is_intact())
        .map(|row| row.algorithm.as_str())
        .collect();
    assert_eq!(ran, ["pinned-host"]);
}

#[test]
fn wrong_words_are_refused_in_one_line() {
    for (arguments, wanted) in [
        (&["--algorithm", "ring"][..], "no algorithm 'ring'"),
        (&["--bytes", "7"], "whole multiples of 4"),
        (&["--bytes", "1TiB"], "is no size"),
        (&["--dtype", "fp8"], "no element type"),
        (&["--ranks", "3", "--gpus", "0,1"], "names more than one"),
        (&["--threads", "100"], "multiple of 32"),
    ] {
        let run = Host::new(SMALL).run(&[&["reduce"], arguments].concat());
        assert_eq!(run.code, Some(64), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains(wanted), "{arguments:?}: {}", run.stderr);
    }
}

/// The page of a saved report of all-reduces is that of the run, remarks and who is fastest in it.
#[test]
fn a_saved_report_of_sums_has_the_page_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sums.json").display().to_string();
    let host = Host::new(SMALL);
    let printed = host.run(&[
        "reduce",
        "--bytes",
        "512,8KiB",
        "--calls",
        "2",
        "--samples",
        "2",
        "--no-nccl",
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
    let report: Report = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(!report.crossovers.is_empty() && !report.coverage.left_out.is_empty());
    let page = host.run(&["render", &file, "--format", "html"]).stdout;
    assert!(page.contains("All-reduce: time against bytes"), "{page}");
}

/// The steps of a launch: exactly their sizes, in both arrangements, over the GPUs that the launch would take.
#[test]
fn a_launch_is_measured_at_the_sizes_of_its_own_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (timed, proven) = (path("r.json"), path("q.json"));
    let launch = ["--model", "qwen3-32b", "--tp", "2", "--batch", "3"];
    let few = ["--algorithm", "one-shot-push", "--calls", "4"];
    let drafts = ["--engine", "vllm", "--draft-tokens", "1"];
    let host = Host::new(EIGHT);
    let own = ["--report", &timed];
    let (report, code) = reduce(&host, &[&launch[..], &few, &drafts, &own].concat());
    assert_eq!(code, Some(0), "{:?}", report.verdict);
    // 5120 elements of two bytes; one draft makes two rows.
    let row = 2 * 5120 * 2;
    for arrangement in [Arrangement::OneProcess, Arrangement::ProcessPerGpu] {
        let own = report.reductions.iter();
        let own = own.filter(|r| r.arrangement == arrangement);
        let sizes: Vec<u64> = own.map(|r| r.bytes).collect();
        assert_eq!(sizes, [row, 2 * row, 3 * row], "{arrangement:?}");
    }
    assert!(report.reductions.iter().all(|r| r.gpus == [0, 1]));
    assert!(
        report.notes[0].contains("graphs of 1, 2, 3 requests"),
        "{:?}",
        report.notes
    );
    // They are taken in beside a report that proves pairs, from the same host only.
    let quick = ["qualify", "--quick", "--mechanism", "bounce"];
    let gpus = ["--gpus", "0,1", "--out", &proven];
    let run = host.run(&[&quick[..], &gpus].concat());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let question = |from: &str, reductions: &str, more: &[&str]| {
        let source = ["--from", from, "--reductions", reductions];
        crate::recommend::recommend(&[&["--engine", "vllm"], &launch[..], &source, more].concat())
    };
    let answer = question(&proven, &timed, &["--draft-tokens", "1"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(
        answer
            .stdout
            .contains("one-shot-push is the fastest proven"),
        "{}",
        answer.stdout
    );
    let empty = question(&proven, &proven, &[]);
    assert_eq!(empty.code, Some(64), "{}", empty.stdout);
    assert!(empty.stderr.contains("no all-reduce was timed"));
    let (other, elsewhere) = (Host::new(SMALL), path("s.json"));
    let own = ["--out", &elsewhere];
    other.run(&[&quick[..], &own].concat());
    let other = question(&elsewhere, &timed, &[]);
    assert_eq!(other.code, Some(64), "{}", other.stdout);
    assert!(other.stderr.contains("UUIDs differ"), "{}", other.stderr);
}

#[test]
fn a_launch_that_cannot_be_measured_is_refused_before_anything_runs() {
    let said = |scenario: &str, arguments: &[&str], code: i32| {
        let run = Host::new(scenario).run(&[&["reduce"], arguments].concat());
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (Some(code), ""),
            "{arguments:?}"
        );
        run.stderr
    };
    let launch = ["--model", "qwen3-32b", "--batch", "2"];
    let with = |more: &[&'static str]| -> Vec<&str> { [&launch[..], more].concat() };
    for (arguments, word) in [
        (vec!["--tp", "2"], "--tp sizes the steps of a model"),
        (vec!["--batch", "2"], "--batch sizes the steps of a model"),
        (vec!["--hidden", "64"], "--batch is missing"),
        (with(&["--tp", "9"]), "8 ranks at most"),
        (with(&["--tp", "1"]), "no all-reduce to size"),
        (with(&["--draft-tokens", "3"]), "give --engine"),
        (with(&["--dtype", "fp16,bf16"]), "one type"),
        (
            with(&["--tp", "2", "--gpus", "0"]),
            "the group has 1 GPU and",
        ),
    ] {
        let said = said(SMALL, &arguments, 64);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
    let few = said("one-gpu", &with(&["--tp", "2"]), 3);
    assert!(few.contains("1 can be used here"), "{few}");
}
