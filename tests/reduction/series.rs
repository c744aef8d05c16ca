//! Whole series through the driver's look-alike: eager and as graphs, over several simulated GPUs, on one, and through host
//! memory; then with faults planted. Each test runs in a process of its own, which opens the look-alike as the product does.

use peerproof::{
    gpu::{Context, System},
    model::{
        case::{Outcome, WrongKind},
        reduction::{Arrangement, Dtype, Launch, Reduction},
    },
    probe::reduction::{ROSTER, Request, Tuning, by_id, exact::Values, group},
};
use simhost::{
    launcher::{Stage, find_library},
    scenario::Scenario,
};
use std::{collections::BTreeMap, process::Command, sync::Arc, time::Duration};

const CHILD: &str = "PEERPROOF_TEST_CHILD";
/// Eight GPUs whose peers reach each other.
const EIGHT: &str = "rtxpro6000-x8-root-complex";
/// Small GPUs, so that contexts are made quickly; the interpreter shares two processors among all ranks.
const SETTINGS: [&str; 1] = ["deadline_factor=20"];

/// Runs `body` in a child on a scenario.
fn on(name: &str, scenario: &str, faults: &[&str], body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|v| v == name) {
        return body();
    }
    let text = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let (settings, faults): (Vec<&str>, Vec<&str>) =
        faults.iter().copied().partition(|one| !one.contains('>'));
    let settings = [&SETTINGS[..], &settings].concat();
    let scenario = Scenario::resolve(scenario, &text(&settings), &text(&faults)).unwrap();
    let stage = Stage::new(&scenario, &find_library().unwrap()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let full = format!("series::{name}");
    command
        .args(["--exact", &full, "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    stage.equip(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn request(algorithm: &str) -> Request {
    Request {
        algorithms: vec![algorithm.to_string()],
        dtypes: vec![Dtype::Bf16],
        sizes: vec![1030],
        launches: vec![Launch::Eager],
        in_place: vec![false],
        values: Values::Integers,
        calls: 8,
        samples: 0,
        room: 1 << 20,
        tuning: Tuning {
            blocks: Some(2),
            threads: Some(64),
            words_up_to: None,
        },
        seed: 3,
        limit: Duration::from_secs(2),
    }
}

/// The rows of a request over these GPUs.
fn rows(gpus: &[u32], request: &Request) -> Vec<Reduction> {
    let system = System::start().unwrap();
    let devices = system.devices().unwrap();
    let mut contexts: BTreeMap<u32, Arc<Context>> = BTreeMap::new();
    for gpu in gpus {
        contexts
            .entry(*gpu)
            .or_insert_with(|| Context::new(system.driver(), &devices[*gpu as usize]).unwrap());
    }
    for (a, one) in &contexts {
        for (_, other) in contexts.iter().filter(|(b, _)| *b != a) {
            one.enable_peer(other).unwrap();
        }
    }
    let members: Vec<_> = gpus
        .iter()
        .map(|gpu| (*gpu, contexts[gpu].clone()))
        .collect();
    let mut rows = Vec::new();
    group::run(&members, request, system.deadline_factor(), |row| {
        rows.push(row)
    });
    rows
}

fn only(rows: Vec<Reduction>) -> Reduction {
    let [row] = <[Reduction; 1]>::try_from(rows).unwrap_or_else(|rows| panic!("{rows:#?}"));
    row
}

fn intact(row: &Reduction) {
    assert!(row.outcome.is_intact(), "{row:#?}");
}

#[test]
fn every_algorithm_over_several_gpus() {
    on("every_algorithm_over_several_gpus", EIGHT, &[], || {
        for algorithm in ROSTER {
            for ranks in [2, 4, 8].into_iter().filter(|n| algorithm.takes(*n)) {
                let gpus: Vec<u32> = (0..ranks).collect();
                let request = Request {
                    dtypes: vec![Dtype::ALL[ranks as usize / 3]],
                    launches: vec![Launch::Eager, Launch::Graph],
                    in_place: vec![ranks == 4],
                    values: Values::Random,
                    calls: 5,
                    ..request(algorithm.id())
                };
                let rows = rows(&gpus, &request);
                assert_eq!(rows.len(), 2, "{}", algorithm.id());
                for (row, calls) in rows.iter().zip([5, 20]) {
                    intact(row);
                    assert_eq!(
                        (row.calls, row.arrangement),
                        (calls, Arrangement::OneProcess)
                    );
                    assert_eq!(row.gpus, gpus);
                }
            }
        }
    });
}

#[test]
fn timed_calls_are_the_judged_ones() {
    on("timed_calls_are_the_judged_ones", EIGHT, &[], || {
        for launch in [Launch::Eager, Launch::Graph] {
            let row = only(rows(
                &[1, 5],
                &Request {
                    launches: vec![launch],
                    calls: 1,
                    samples: 3,
                    room: 24 << 10,
                    ..request("one-shot-push")
                },
            ));
            intact(&row);
            let time = row.time.clone().unwrap();
            assert_eq!(time.samples.len(), 3);
            assert!(time.samples.iter().all(|us| *us > 0.0), "{time:?}");
            // 9 vectors of 1280 bytes twice fit: 7 timed calls after 2.
            assert!(time.method.contains("mean of 7 "), "{}", time.method);
            let untimed = if launch == Launch::Graph { 4 } else { 1 };
            assert_eq!(row.calls, untimed + 3 * 9);
        }
    });
}

#[test]
fn ranks_as_streams_of_one_gpu() {
    on("ranks_as_streams_of_one_gpu", "one-gpu", &[], || {
        for algorithm in ROSTER.iter().filter(|a| a.takes(2)) {
            let row = only(rows(&[0, 0], &request(algorithm.id())));
            intact(&row);
            assert_eq!(row.arrangement, Arrangement::StreamsOfOneGpu);
        }
        // Blocks that do not fit at once are never launched.
        let mut many = request("one-shot-pull");
        many.tuning.blocks = Some(256);
        many.tuning.threads = Some(512);
        let row = only(rows(&[0; 8], &many));
        let Outcome::NotRun { reason } = &row.outcome else {
            panic!("{row:#?}");
        };
        assert!(
            reason.contains("2048 blocks of 512 threads wait for each other"),
            "{reason}"
        );
        // Left to itself, it takes as many as fit.
        many.tuning = Tuning::default();
        many.sizes = vec![64 << 10];
        many.calls = 1;
        intact(&only(rows(&[0; 8], &many)));
    });
}

#[test]
fn two_gpus_without_peer_access_reduce_through_host_memory() {
    let name = "two_gpus_without_peer_access_reduce_through_host_memory";
    on(name, "two-gpus-no-p2p", &[], || {
        for words_up_to in [0, 1 << 20] {
            let mut request = Request {
                launches: vec![Launch::Eager, Launch::Graph],
                ..request("pinned-host")
            };
            request.tuning.words_up_to = Some(words_up_to);
            let rows = rows(&[0, 1], &request);
            assert_eq!(rows.len(), 2);
            rows.iter().for_each(intact);
        }
    });
}

#[test]
fn plain_stores_on_their_way_are_waited_for() {
    let name = "plain_stores_on_their_way_are_waited_for";
    on(name, EIGHT, &["weak_memory=7"], || {
        for algorithm in ROSTER {
            let ranks = if algorithm.takes(4) { 4 } else { 2 };
            let gpus: Vec<u32> = (0..ranks).collect();
            for words_up_to in [0, 1 << 20] {
                let mut request = request(algorithm.id());
                request.tuning.words_up_to = Some(words_up_to);
                intact(&only(rows(&gpus, &request)));
            }
        }
    });
}

/// Ten thousand calls: 2,500 replays of one captured graph of four calls, each with other data.
#[test]
fn one_graph_is_replayed_with_changing_data() {
    on(
        "one_graph_is_replayed_with_changing_data",
        EIGHT,
        &[],
        || {
            let mut request = Request {
                launches: vec![Launch::Graph],
                sizes: vec![64],
                calls: 2500,
                ..request("one-shot-push")
            };
            request.tuning.threads = Some(32);
            request.tuning.blocks = Some(1);
            let row = only(rows(&[0, 1], &request));
            intact(&row);
            assert_eq!(row.calls, 10_000);
        },
    );
}

/// What a fault on the way from GPU 1 to GPU 0 comes to, by algorithm and width of its stores.
fn struck(algorithm: &str, words: bool) -> Reduction {
    let mut request = request(algorithm);
    request.tuning.words_up_to = Some(if words { 1 << 20 } else { 0 });
    request.limit = Duration::from_millis(50);
    only(rows(&[0, 1], &request))
}

macro_rules! faults {
    ($($name:ident: $fault:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            on(stringify!($name), EIGHT, &[$fault], || { let body: fn() = $body; body() });
        }
    )*};
}

fn corruption(row: &Reduction) -> &peerproof::model::case::Corruption {
    row.outcome
        .corruption()
        .unwrap_or_else(|| panic!("{row:#?}"))
}

faults! {
    // The payload of rank 1 lies one block (here 33 units) further on: the first block adds what was there before.
    a_payload_off_by_one_block_is_caught: "1>0:sm_store16=shifted:bytes=528" => || {
        for algorithm in ["one-shot-push", "two-shot", "staged-push"] {
            let row = struck(algorithm, false);
            assert!(corruption(&row).detail.contains("wrong sums on rank"), "{row:#?}");
        }
    };
    // Slots are 1040 bytes: it lands in the slot of the other rank, of the next set.
    a_payload_in_the_wrong_slot_is_caught: "1>0:sm_store16=shifted:bytes=1040" => || {
        let row = struck("one-shot-push", false);
        assert!(corruption(&row).detail.contains("wrong sums on rank"), "{row:#?}");
    };
    a_payload_that_is_lost_names_whose_it_was: "1>0:sm_store16=dropped:after=5" => || {
        let row = struck("one-shot-push", false);
        let found = corruption(&row);
        assert_eq!(found.kind, WrongKind::Stale, "{row:#?}");
        assert!(found.detail.contains("rank 0: in") && found.detail.contains("contribution of rank 1"), "{}", found.detail);
        assert!(found.detail.ends_with("wrong sums on rank 0"), "{}", found.detail);
    };
    zeros_in_place_of_a_payload_name_whose_it_was: "1>0:sm_store16=zeroed" => || {
        let row = struck("one-shot-push", false);
        let found = corruption(&row);
        assert_eq!(found.kind, WrongKind::Zeroed, "{row:#?}");
        assert!(found.detail.contains("contribution of rank 1 is missing"), "{}", found.detail);
    };
    a_payload_that_its_flag_overtakes_is_caught: "1>0:sm_store16=late:us=20000" => || {
        let row = struck("one-shot-push", false);
        corruption(&row);
    };
    a_lost_flag_names_rank_and_block: "1>0:sm_store=lost_flag" => || {
        for algorithm in ["one-shot-push", "one-shot-pull", "two-shot", "staged-push"] {
            let row = struck(algorithm, false);
            assert!(matches!(row.outcome, Outcome::Never { round: 1, rounds: 8, after_ms, missing: Some(_) } if after_ms >= 50), "{row:#?}");
            assert!(row.notes[0].starts_with("rank 1 block 0 never came: rank 0 waited") ||
                row.notes[0].starts_with("rank 1 block 1 never came: rank 0 waited"), "{:?}", row.notes);
        }
    };
    words_that_never_come_name_rank_and_block: "1>0:sm_store=lost_flag:after=4" => || {
        let row = struck("one-shot-push", true);
        assert!(matches!(row.outcome, Outcome::Never { round, .. } if round > 1), "{row:#?}");
        assert!(row.notes[0].starts_with("rank 1 block"), "{:?}", row.notes);
    };
}

#[test]
fn requests_leave_out_what_an_algorithm_does_not_take() {
    let all: Vec<String> = ROSTER.iter().map(|a| a.id().to_string()).collect();
    let request = Request {
        algorithms: all,
        sizes: vec![512, 16 << 20, 1 << 40],
        ..request("two-shot")
    };
    let ids = |ranks| -> Vec<(String, u64)> {
        let series = request.series(ranks);
        series.into_iter().map(|s| (s.algorithm, s.bytes)).collect()
    };
    assert_eq!(
        ids(2).iter().filter(|(id, _)| id == "pinned-host").count(),
        2
    );
    assert!(
        ids(2)
            .iter()
            .all(|(id, bytes)| id != "hierarchical" && *bytes <= 16 << 20)
    );
    assert!(
        ids(3)
            .iter()
            .all(|(id, _)| id != "hierarchical" && id != "pinned-host")
    );
    assert!(ids(8).contains(&("hierarchical".to_string(), 16 << 20)));
    assert!(ids(9).is_empty() && ids(1).is_empty());
    assert!(by_id("ring").is_none());
}
