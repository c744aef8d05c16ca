//! Wrong choices that people made in the field, by their number in the facts (engines.md 8): each is a launch that is warned,
//! or a matter of no launch, with the place that knows it.

use super::{Question, check, read};
use crate::{
    diagnose::sample::Host,
    model::{
        case::{Rung, WrongKind},
        launch::LaunchCheck,
        measurement::{Measurement, Unit},
        pair::OrderedPair,
        reading::Reading,
        topology::{FabricClass, PathType},
    },
    profile::Profiles,
};
use std::collections::BTreeSet;

const PCIE_S: &str = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1";
const PCIE_V: &str = "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1";
const DRAFTED: &str = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash --tp 2 --cuda-graph-max-bs-decode 32 --speculative-algorithm DSPARK --speculative-num-draft-tokens 6 --max-running-requests 32";

/// What shows that a trap is known.
enum Shown {
    /// The launch alone: `(problem, text)`.
    Launch(&'static str, String),
    /// The launch on a host; on the second host it is not said.
    On(&'static str, String, fn() -> Host, fn() -> Host),
    /// No launch holds it: who says it instead.
    Elsewhere(&'static str),
}

use Shown::{Elsewhere, Launch, On};

fn four() -> Host {
    let mut host = Host::root_complex(4);
    host.climb_all();
    host
}

fn two() -> Host {
    let mut host = Host::root_complex(2);
    host.climb_all();
    host
}

fn eight() -> Host {
    let mut host = Host::root_complex(8);
    host.climb_all();
    host
}

fn switched(count: u32) -> Host {
    let mut host = Host::nvswitch(count);
    host.climb_all();
    host
}

/// NUMA nodes in PCI order, in turns, or all one.
fn homes(mut host: Host, home: fn(i32) -> i32) -> Host {
    for (i, gpu) in (0..).zip(&mut host.snapshot.gpus) {
        gpu.numa_node = Reading::Known(home(i));
    }
    host
}

fn across_sockets() -> Host {
    let mut host = homes(eight(), |i| i / 4);
    host.snapshot.topology.class = FabricClass::RootComplexCrossSocket;
    for p in OrderedPair::all(8) {
        let far = p.source.0 / 4 != p.destination.0 / 4;
        host.snapshot.topology.pairs.get_mut(p).unwrap().pcie =
            Some(if far { PathType::Sys } else { PathType::Node });
    }
    host
}

fn guest() -> Host {
    let mut host = four();
    host.snapshot.topology.class = FabricClass::VmOpaque;
    host
}

fn geforce() -> Host {
    let mut host = two();
    host.name_all("NVIDIA GeForce RTX 3090");
    host
}

fn turing() -> Host {
    let mut host = two();
    for gpu in &mut host.snapshot.gpus {
        gpu.compute_capability = Reading::Known((7, 5));
    }
    host
}

fn mirrored() -> Host {
    let mut host = two();
    host.guest();
    host.direct_wrong(WrongKind::Mirrored, |_| true);
    host
}

/// Kernels a tenth as fast as copies.
fn staged_kernels() -> Host {
    let mut host = two();
    for record in &mut host.records {
        let rate = match record.case.rung {
            Rung::Copied => 25.0,
            Rung::Touched => 2.0,
            _ => continue,
        };
        record.rate = Some(Measurement {
            samples: vec![rate; 3],
            unit: Unit::GbPerS,
            warmup: 1,
            method: String::new(),
            caveats: Vec::new(),
        });
    }
    host
}

fn registry_words() -> Host {
    let mut host = two();
    let words = "ForceP2P=0x11;RMForceP2PType=1".to_string();
    host.snapshot.driver.params = Reading::Known(vec![("RegistryDwords".to_string(), words)]);
    host
}

fn ask(text: &str, host: Option<&Host>) -> LaunchCheck {
    let profiles = Profiles::embedded().unwrap();
    let engine = text
        .starts_with("VLLM_ENABLE_PCIE_ALLREDUCE")
        .then_some("vllm-local-inference-lab");
    let mut launches = read("text", text, engine, &profiles).unwrap();
    assert_eq!(launches.len(), 1, "{text}");
    let launch = launches.remove(0);
    match host {
        None => check(&launch, &Question::default(), &profiles).unwrap(),
        Some(host) => host.judge(|e| {
            let group = host.group();
            let question = Question {
                evidence: Some(e),
                candidates: &group,
                engine,
                ..Question::default()
            };
            check(&launch, &question, &profiles).unwrap()
        }),
    }
}

fn has(answer: &LaunchCheck, id: &str) -> bool {
    answer.problems.iter().any(|p| p.id == id)
}

/// Every number of engines.md 8.
fn table() -> Vec<(u32, Shown)> {
    let sized = |numel: &str| format!("{PCIE_S} SGLANG_PCIE_IPC_MAX_NUMEL={numel} {DRAFTED}");
    let s = |text: &str| text.to_string();
    vec![
        // Sizes and configuration.
        (1, Launch("prefill-sized-workspace", sized("67108864"))),
        (
            2,
            Elsewhere(
                "a sick baseline is seen where NCCL is timed: reduce and measured advice leave such times out (diagnose::reductions)",
            ),
        ),
        (3, Launch("draft-width-forgotten", sized("131072"))),
        (
            4,
            Launch(
                "workspace-of-64-rows",
                format!("{PCIE_S} sglang serve x --tp 4"),
            ),
        ),
        (
            5,
            Launch(
                "draft-tokens-are-rows",
                s(
                    "sglang serve x --speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-num-draft-tokens 5",
                ),
            ),
        ),
        (
            6,
            Launch(
                "tune-cache-of-another-host",
                format!("FLASHINFER_AUTOTUNE_DIR=/nfs/tune {PCIE_S} sglang serve x --tp 4"),
            ),
        ),
        (7, Launch("prefill-sized-workspace", sized("100663296"))),
        (
            8,
            Launch(
                "captures-count-tokens",
                s(
                    "vllm serve zai-org/GLM-5.2 -tp 8 --max-num-seqs 32 --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":5}' --compilation-config '{\"cudagraph_capture_sizes\":[1,2,32]}'",
                ),
            ),
        ),
        (
            8,
            Launch(
                "captures-count-requests",
                DRAFTED.replace("decode 32", "decode 192"),
            ),
        ),
        // Eligibility.
        (
            9,
            Launch(
                "pcie-ipc-beside-other-groups",
                format!("{PCIE_S} sglang serve Qwen/Qwen3-32B --tp 4 --dp-size 2"),
            ),
        ),
        (
            9,
            Launch(
                "pcie-ipc-beside-other-groups",
                format!("{PCIE_S} sglang serve Qwen/Qwen3-30B-A3B --tp 4 --ep 2"),
            ),
        ),
        (
            10,
            Elsewhere(
                "inside the engine: an opt-in backend is advised by proof, and its worth is a line of its own (advise::worth)",
            ),
        ),
        (
            11,
            Launch(
                "pcie-ipc-is-bf16",
                format!("{PCIE_S} sglang serve x --dtype half"),
            ),
        ),
        (
            11,
            Launch(
                "pcie-ipc-is-not-fp32",
                format!("{PCIE_V} vllm serve x -tp 2 --dtype float32"),
            ),
        ),
        (
            11,
            Launch(
                "torch-symm-mem-is-bf16",
                s("sglang serve x --tp 4 --enable-torch-symm-mem --dtype float16"),
            ),
        ),
        (
            11,
            Launch(
                "symm-mem-is-bf16",
                s("VLLM_ALLREDUCE_USE_SYMM_MEM=1 vllm serve x -tp 4 --dtype half"),
            ),
        ),
        (
            11,
            On(
                "host-reduce-is-fp16",
                s("1cat-vllm serve x -tp 2 --dtype bfloat16"),
                turing,
                two,
            ),
        ),
        (
            12,
            On(
                "custom-all-reduce-is-for-nvlink",
                s("vllm serve x -tp 4"),
                four,
                || switched(4),
            ),
        ),
        (
            12,
            On(
                "custom-all-reduce-is-for-nvlink",
                s("sglang serve x --tp 4"),
                four,
                || switched(4),
            ),
        ),
        (
            12,
            On(
                "strategy-without-nvlink",
                s("trtllm-serve x --tp_size 4 --allreduce_strategy ONESHOT"),
                four,
                || switched(4),
            ),
        ),
        (
            13,
            On(
                "flashinfer-without-table",
                s("VLLM_ALLREDUCE_USE_FLASHINFER=1 vllm serve x -tp 4"),
                four,
                || switched(4),
            ),
        ),
        (
            13,
            On(
                "fusion-without-table",
                s("sglang serve x --tp 4 --enable-flashinfer-allreduce-fusion"),
                four,
                || switched(4),
            ),
        ),
        (
            13,
            On(
                "torch-symm-mem-without-multicast",
                s("sglang serve x --tp 4 --enable-torch-symm-mem"),
                four,
                || switched(4),
            ),
        ),
        (
            14,
            On(
                "pcie-ipc-in-one-node",
                format!("{PCIE_S} sglang serve x --tp 4 --cuda-graph-max-bs-decode 8"),
                || homes(four(), |_| 0),
                || homes(four(), |i| i / 2),
            ),
        ),
        (
            15,
            Launch(
                "symm-mem-takes-pcie-ipc",
                format!("{PCIE_S} sglang serve x --enable-symm-mem"),
            ),
        ),
        (
            16,
            Launch(
                "pcie-ipc-may-be-missing",
                format!("{PCIE_S} sglang serve x --tp 2"),
            ),
        ),
        (
            16,
            Launch(
                "pcie-ipc-may-be-missing",
                format!("{PCIE_V} vllm serve x -tp 2"),
            ),
        ),
        (
            17,
            Launch(
                "lowprecision-never-starts",
                s("trtllm-serve x --allreduce_strategy LOWPRECISION"),
            ),
        ),
        (
            18,
            Elsewhere(
                "a log, not a launch: the caveats of vLLM's profile, and its trap pcie-ipc-may-be-missing, say what that line lists",
            ),
        ),
        // Correctness.
        (
            19,
            On(
                "failed-peers-in-use",
                s("vllm serve x -tp 2"),
                mirrored,
                two,
            ),
        ),
        (
            20,
            On(
                "patched-driver-custom-on",
                s("vllm serve x -tp 2"),
                geforce,
                two,
            ),
        ),
        (
            20,
            On(
                "patched-driver-custom-on",
                s("sglang serve x --tp 2"),
                geforce,
                two,
            ),
        ),
        (
            21,
            Launch(
                "nccl-off-custom-on",
                s("NCCL_P2P_DISABLE=1 vllm serve x -tp 4"),
            ),
        ),
        (
            21,
            Launch(
                "nccl-off-symm-mem-on",
                s("NCCL_P2P_DISABLE=1 vllm serve x -tp 4 --disable-custom-all-reduce"),
            ),
        ),
        (
            21,
            Launch(
                "nccl-off-symm-mem-asked",
                s(
                    "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=1 vllm serve x -tp 4 --disable-custom-all-reduce",
                ),
            ),
        ),
        (
            21,
            Launch(
                "nccl-off-windows-on",
                s("NCCL_P2P_DISABLE=1 VLLM_USE_NCCL_SYMM_MEM=1 vllm serve x -tp 4"),
            ),
        ),
        (
            21,
            Launch(
                "nccl-off-symm-mem-on",
                s(
                    "NCCL_P2P_DISABLE=1 sglang serve x --tp 4 --disable-custom-all-reduce --enable-mscclpp",
                ),
            ),
        ),
        (
            21,
            Launch(
                "disabled-by-another-word",
                s("NCCL_P2P_DISABLE=true vllm serve x -tp 4"),
            ),
        ),
        (
            22,
            Elsewhere(
                "whether the two ranks were tried: a group of two is judged by its own pairs, and open ones are listed as not judged (tested below)",
            ),
        ),
        (
            23,
            Launch("check-that-trusts", s("VLLM_SKIP_P2P_CHECK=1 vllm serve x")),
        ),
        (
            23,
            Launch(
                "check-with-a-stale-cache",
                s("VLLM_SKIP_P2P_CHECK=0 vllm serve x"),
            ),
        ),
        (
            23,
            Launch(
                "p2p-check-that-trusts",
                s("SGLANG_SKIP_P2P_CHECK=1 sglang serve x --enable-p2p-check"),
            ),
        ),
        (
            24,
            Launch(
                "ggml-p2p-by-presence",
                s("GGML_CUDA_P2P=0 llama-server -m x"),
            ),
        ),
        (
            25,
            Launch(
                "expandable-segments",
                s("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve x -tp 2"),
            ),
        ),
        (
            25,
            Launch(
                "expandable-segments",
                s("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True sglang serve x --tp 2"),
            ),
        ),
        (
            25,
            Launch(
                "expandable-segments-by-the-new-name",
                s("PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve x -tp 2"),
            ),
        ),
        (
            25,
            Launch(
                "expandable-segments-by-the-new-name",
                s("PYTORCH_ALLOC_CONF=expandable_segments:True sglang serve x --tp 2"),
            ),
        ),
        (
            26,
            Elsewhere(
                "one command starts all ranks of these engines; what a rank decides by itself is the adapter's, and the settings are printed for the group",
            ),
        ),
        (
            27,
            Launch(
                "isolated-shared-memory",
                s("docker run img vllm serve x -tp 2"),
            ),
        ),
        // Speed.
        (
            28,
            Elsewhere("slots of a host: the causes slow-pair and link-downtrained, and measure"),
        ),
        (
            29,
            Elsewhere(
                "how to measure: measure has three kinds of streams and contention; the cause posted-write-collapse",
            ),
        ),
        (30, Elsewhere("ports of a host: the cause acs-redirect")),
        (
            31,
            On("level-below-proof", s("vllm serve x -tp 4"), four, || {
                switched(4)
            }),
        ),
        (
            32,
            On(
                "islands-interleaved",
                s("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 vllm serve x -tp 8"),
                || homes(eight(), |i| i % 2),
                across_sockets,
            ),
        ),
        (
            33,
            On(
                "kernels-through-the-host",
                s("vllm serve x -tp 2"),
                staged_kernels,
                two,
            ),
        ),
        (
            34,
            On(
                "pcie-ipc-in-a-vm",
                format!("{PCIE_V} vllm serve x -tp 4"),
                guest,
                four,
            ),
        ),
        (
            35,
            On(
                "b12x-across-sockets",
                s(
                    "VLLM_ENABLE_PCIE_ALLREDUCE=1 VLLM_PCIE_ALLREDUCE_BACKEND=b12x vllm serve x -tp 8",
                ),
                across_sockets,
                eight,
            ),
        ),
        (
            36,
            On(
                "peers-at-many-requests",
                s("NCCL_P2P_LEVEL=SYS vllm serve x -tp 4"),
                four,
                || switched(4),
            ),
        ),
        (
            37,
            Launch(
                "autotune-around-pcie-ipc",
                format!("{PCIE_S} sglang serve x --tp 4"),
            ),
        ),
        (
            38,
            Launch(
                "tune-cache-of-another-host",
                format!("FLASHINFER_AUTOTUNE_DIR=/nfs/tune {PCIE_V} vllm serve x -tp 4"),
            ),
        ),
        (
            39,
            On(
                "registry-words-without-peers",
                s(
                    "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve x -tp 2 --disable-custom-all-reduce",
                ),
                registry_words,
                two,
            ),
        ),
        // Half of the list is wrong where peers are not proven, and needless where they are.
        (
            21,
            On(
                "nccl-off-custom-on",
                s("NCCL_P2P_DISABLE=1 vllm serve x -tp 2"),
                mirrored,
                two,
            ),
        ),
        (
            21,
            On(
                "nccl-off-custom-on",
                s("NCCL_P2P_DISABLE=1 trtllm-serve x --tp_size 2 --allreduce_strategy AUTO"),
                mirrored,
                two,
            ),
        ),
        (
            21,
            On(
                "nccl-off-symm-mem-on",
                s("NCCL_P2P_DISABLE=1 sglang serve x --tp 2 --enable-symm-mem"),
                mirrored,
                two,
            ),
        ),
        (
            21,
            On(
                "nccl-off-symm-mem-asked",
                s("NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=1 vllm serve x -tp 2"),
                mirrored,
                two,
            ),
        ),
        (
            21,
            On(
                "nccl-off-windows-on",
                s("NCCL_P2P_DISABLE=1 VLLM_USE_NCCL_SYMM_MEM=1 vllm serve x -tp 2"),
                mirrored,
                two,
            ),
        ),
        (
            21,
            On(
                "nccl-off-pcie-ipc-on",
                s("NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x -tp 2"),
                mirrored,
                two,
            ),
        ),
        (
            31,
            On(
                "level-keeps-proven-peers-off",
                s("NCCL_P2P_LEVEL=LOC vllm serve x -tp 2"),
                two,
                mirrored,
            ),
        ),
        (
            31,
            On(
                "level-shorter-than-the-paths",
                s("NCCL_P2P_LEVEL=PXB vllm serve x -tp 4"),
                four,
                || switched(4),
            ),
        ),
        (
            40,
            Launch(
                "peer-copies-gain-nothing",
                s("GGML_CUDA_P2P=1 llama-server -m x"),
            ),
        ),
    ]
}

#[test]
fn every_wrong_choice_of_the_field_is_known() {
    let table = table();
    let numbers: BTreeSet<u32> = table.iter().map(|(n, _)| *n).collect();
    assert_eq!(numbers, (1..=40).collect());
    let mut wrong = Vec::new();
    for (number, shown) in &table {
        match shown {
            Launch(id, text) => {
                let answer = ask(text, None);
                if !has(&answer, id) {
                    wrong.push(format!("{number} {id}: {text}: {answer:#?}"));
                }
            }
            On(id, text, bad, good) => {
                let (bad, good) = (ask(text, Some(&bad())), ask(text, Some(&good())));
                if !has(&bad, id) || has(&good, id) {
                    wrong.push(format!("{number} {id}: {text}: {bad:#?} and {good:#?}"));
                }
            }
            Elsewhere(who) => assert!(who.len() > 20, "{number}"),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Those that a launch shows by itself are reached in `tests.rs` or here; those that a host decides have a host here, on
/// which they are said, and one on which they are not.
#[test]
fn every_trap_of_a_host_has_a_host() {
    let own: String = include_str!("field_traps.rs").split_whitespace().collect();
    for engine in Profiles::embedded().unwrap().engines {
        for trap in engine.traps.iter().filter(|t| !t.host.is_empty()) {
            assert!(
                own.contains(&format!("On(\"{}\"", trap.id)),
                "{} {}",
                engine.id,
                trap.id
            );
        }
    }
}

/// engines.md 8, 22: four ranks that work clear no group of two.
#[test]
fn two_ranks_are_judged_by_their_own_pair() {
    let mut host = Host::root_complex(4);
    let open = ask("vllm serve x -tp 2", Some(&host));
    let said = |answer: &LaunchCheck| {
        let mut all = answer.not_judged.iter();
        all.any(|n| n.contains("whether peers may be used") && n.contains("0->1"))
    };
    assert!(said(&open), "{open:?}");
    host.climb_all();
    assert!(!said(&ask("vllm serve x -tp 2", Some(&host))));
}

/// Sizes are said with the bytes that they cost, by the allocation as it is and not as its own text says.
#[test]
fn a_prefill_sized_workspace_is_told_in_bytes() {
    let text = format!(
        "{PCIE_S} SGLANG_PCIE_IPC_MAX_NUMEL=100663296 sglang serve zai-org/GLM-5.2 --tp 8 --cuda-graph-max-bs-decode 64"
    );
    let answer = ask(&text, None);
    let found = answer
        .problems
        .iter()
        .find(|p| p.id == "prefill-sized-workspace");
    let wrong = &found.unwrap().wrong;
    for words in ["256 times", "6,442,484,864 bytes on each GPU", "says half"] {
        assert!(wrong.contains(words), "{words}: {wrong}");
    }
}

/// What a host knows of slow kernels and of registry words is in a recommendation, too.
#[test]
fn slow_kernels_are_not_recommended() {
    let profiles = Profiles::embedded().unwrap();
    let recommend = |host: &Host, engine: &str| {
        let request = crate::advise::Request {
            engine: engine.into(),
            // Before FlashInfer's kernels, which come first where they are proven.
            engine_version: (engine == "vllm").then(|| "0.28.1".parse().unwrap()),
            model: Some("qwen3-32b".into()),
            tp: 2,
            batch: 32,
            ..crate::advise::Request::default()
        };
        host.judge(|e| {
            let users = crate::diagnose::consumers(e, &host.group());
            crate::advise::recommend(Some(e), &users, &request, &profiles).unwrap()
        })
    };
    for (engine, kernel) in [
        ("vllm", "custom-all-reduce"),
        ("sglang", "custom-all-reduce-legacy"),
    ] {
        assert_eq!(recommend(&two(), engine).backend, kernel);
        let slow = recommend(&staged_kernels(), engine);
        assert_eq!(slow.backend, "nccl");
        let off = slow
            .flags
            .iter()
            .find(|f| f.name == "--disable-custom-all-reduce");
        assert!(off.unwrap().basis.contains("GB/s"), "{off:?}");
        assert!(slow.caveats.iter().any(|c| c.contains("through the host")));
        assert!(
            !slow
                .environment
                .iter()
                .any(|s| s.name == "NCCL_P2P_DISABLE")
        );
    }
    let mut failed = registry_words();
    failed.direct_wrong(WrongKind::Zeroed, |_| true);
    let says = |host: &Host| {
        let answer = recommend(host, "vllm");
        answer.caveats.iter().any(|c| c.contains("registry words"))
    };
    assert!(says(&failed));
    assert!(!says(&registry_words()), "peers are used there");
}
