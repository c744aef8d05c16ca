//! Ways beside the all-reduces, held against hosts.

use super::{
    Question,
    on_a_host::{on, said},
    tests::judged,
};
use crate::{
    advise::told,
    diagnose::sample::{Host, pair},
    model::{
        case::WrongKind,
        finding::Severity,
        launch::{LaunchCheck, LaunchOutcome},
    },
    profile::Profiles,
};

/// Experts' all-to-all and KV caches go from GPU to GPU, too: wrong where peers failed, and never called proven where no rung
/// tests what they stand on.
#[test]
fn ways_beside_all_reduces_are_judged() {
    let mut good = Host::root_complex(4);
    good.climb_all();
    let mut bad = Host::root_complex(4);
    bad.climb_all();
    bad.set_wrong(pair(0, 1), "ipc-sm-store", WrongKind::Dropped);
    let off = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0";
    let kv = "--kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}'";
    let vllm = |rest: &str| format!("{off} vllm serve x -tp 2 --disable-custom-all-reduce {rest}");
    let sglang = |rest: &str| {
        format!("NCCL_P2P_DISABLE=1 sglang serve x --tp 2 --disable-custom-all-reduce {rest}")
    };
    // A name that nobody read, or a value that is none, is no clear launch.
    for text in [
        vllm("-ep --all2all-backend deepep-low-latency"),
        format!("VLLM_ALL2ALL_BACKEND=bogus {}", vllm("-ep")),
        sglang("--moe-a2a-backend bogus"),
        vllm("--kv-transfer-config '{\"kv_connector\":\"FooConnector\"}'"),
        vllm("--kv-transfer-config '{}'"),
        vllm("--kv-transfer-config"),
    ] {
        for host in [&bad, &good] {
            let answer = on(host, &text);
            let told = |line: &String| line.contains("not known here");
            assert!(answer.not_judged.iter().any(told), "{text}: {answer:#?}");
        }
    }
    for (text, name) in [
        (
            vllm("-ep --all2all-backend deepep_low_latency"),
            "DeepEP (low latency)",
        ),
        (
            vllm("-ep --all2all-backend deepep_high_throughput"),
            "DeepEP (high throughput)",
        ),
        (vllm("-ep --all2all-backend nixl_ep"), "NIXL-EP"),
        (
            format!(
                "VLLM_ALL2ALL_BACKEND=pplx {}",
                vllm("--enable-expert-parallel")
            ),
            "pplx",
        ),
        (sglang("--moe-a2a-backend deepep"), "DeepEP"),
        (sglang("--moe-a2a-backend mooncake --ep-size 2"), "Mooncake"),
    ] {
        let answer = on(&bad, &text);
        let problem = said(&answer, "way-over-failed-peers");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {answer:#?}"));
        assert_eq!(problem.severity, Severity::Critical);
        assert!(problem.wrong.contains(name), "{text}: {}", problem.wrong);
        assert!(problem.wrong.contains("0->1"), "{text}: {}", problem.wrong);
        assert!(!problem.settings.is_empty(), "{text}");
        // Beside proven pairs nobody knows what NVSHMEM and its like do; CUDA IPC and atomics are tested.
        let answer = on(&good, &text);
        assert!(said(&answer, "way-over-failed-peers").is_none(), "{text}");
        let proven = answer.judged.iter().any(|j| j.contains(name));
        assert_eq!(
            proven,
            name.contains("high throughput"),
            "{text}: {answer:#?}"
        );
        let open = answer.not_judged.iter().find(|n| n.contains(name));
        assert_eq!(open.is_none(), proven, "{text}: {answer:#?}");
        assert!(open.is_none_or(|n| n.contains("cannot tell")), "{open:?}");
        // Without a host the question is open as well.
        let alone = judged(&text, &Question::default());
        assert!(
            alone.not_judged.iter().any(|n| n.contains(name)),
            "{alone:#?}"
        );
    }
    // NCCL carries the experts by default: off with it, and named where it is on.
    let on_nccl = "VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve x -tp 2 --disable-custom-all-reduce -ep";
    assert!(said(&on(&bad, on_nccl), "way-over-failed-peers").is_some());
    assert!(said(&on(&bad, &vllm("-ep")), "way-over-failed-peers").is_none());
    let named = on(&good, "vllm serve x -tp 2 --enable-expert-parallel");
    assert!(
        named
            .judged
            .iter()
            .any(|j| j.starts_with("experts' all-to-all by NCCL: proven")),
        "{named:#?}"
    );
    // UCX copies through CUDA IPC: proven as far as those copies are, over every GPU that may be the other end.
    for text in [
        vllm(kv),
        sglang("--disaggregation-mode prefill --disaggregation-transfer-backend nixl"),
    ] {
        let proven = on(&good, &text);
        assert!(
            proven.judged.iter().any(|j| j.contains("NIXL: proven")),
            "{proven:#?}"
        );
        let mut far = Host::root_complex(4);
        far.climb_all();
        far.set_wrong(pair(1, 3), "ipc-ce-push", WrongKind::Zeroed);
        let problem = on(&far, &text);
        let problem =
            said(&problem, "way-over-failed-peers").unwrap_or_else(|| panic!("{problem:#?}"));
        assert!(problem.wrong.contains("1->3"), "{}", problem.wrong);
        assert_eq!(problem.settings, ["UCX_TLS=^cuda_ipc"]);
        for tls in ["^cuda_ipc", "rc,sm,tcp,self", "tcp,cuda_copy"] {
            let kept = on(&far, &format!("UCX_TLS={tls} {text}"));
            assert!(said(&kept, "way-over-failed-peers").is_none(), "{kept:#?}");
        }
        for tls in ["tcp,cuda", "cuda_ipc,tcp", "^rc", "all"] {
            let open = on(&far, &format!("UCX_TLS={tls} {text}"));
            assert!(said(&open, "way-over-failed-peers").is_some(), "{tls}");
        }
        far.set_wrong(pair(2, 3), "ipc-ce-push", WrongKind::Zeroed);
        far.records
            .retain(|r| r.case.subject.pair() != Some(pair(1, 3)));
        let open = on(&far, &text);
        assert!(said(&open, "way-over-failed-peers").is_none(), "{open:#?}");
        assert!(
            open.not_judged
                .iter()
                .any(|n| n.contains("NIXL: cannot tell")),
            "{open:#?}"
        );
    }
    // What goes through a network card, or was not read, is not known.
    for text in [
        sglang("--disaggregation-mode decode"),
        vllm("--kv-transfer-config '{\"kv_connector\":\"MultiConnector\"}'"),
    ] {
        let open = on(&good, &text);
        assert!(
            open.not_judged.iter().any(|n| n.contains("cannot tell")),
            "{open:#?}"
        );
    }
    // Caches in host memory and files touch no peer.
    let file = vllm("--kv-transfer-config '{\"kv_connector\":\"OffloadingConnector\"}'");
    assert!(on(&good, &file).not_judged.is_empty());
    let engines = Profiles::embedded().unwrap().engines;
    for way in engines.iter().flat_map(|e| &e.ways) {
        assert!(way.off.iter().all(|s| !told(s).is_empty()), "{}", way.id);
        // Only data could call NVSHMEM proven.
        let own = format!("{:?} {}", way.untested, way.because);
        assert!(
            !way.because.contains("NVSHMEM") || own.contains("no rung"),
            "{}",
            way.id
        );
    }
}

/// No rung touches multicast: neither proven, nor needless to switch off.
#[test]
fn multicast_is_not_tested() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    let plain = on(&host, "vllm serve x -tp 8");
    let outside =
        |answer: &LaunchCheck, words: &str| answer.outside.iter().any(|o| o.contains(words));
    assert!(
        outside(&plain, "NVLink SHARP of NCCL (multicast) is not tested"),
        "{plain:#?}"
    );
    assert_eq!(plain.outcome(), LaunchOutcome::NothingWrong, "{plain:#?}");
    for text in [
        "NCCL_NVLS_ENABLE=0 vllm serve x -tp 8",
        "NCCL_NVLS_ENABLE=0 all_reduce_perf -g 8",
        "VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve x -tp 8",
    ] {
        let answer = on(&host, text);
        assert!(
            said(&answer, "needless-switches").is_none(),
            "{text}: {answer:#?}"
        );
        let mut once = answer.outside.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), answer.outside.len(), "{text}: {answer:#?}");
        assert!(
            outside(&answer, "which no rung tests"),
            "{text}: {answer:#?}"
        );
    }
    for text in [
        "NCCL_NVLS_ENABLE=1 vllm serve x -tp 8",
        "sglang serve x --tp 8 --enable-nccl-nvls",
    ] {
        let answer = on(&host, text);
        assert!(
            answer.not_judged.iter().any(|n| n.contains("multicast")),
            "{text}: {answer:#?}"
        );
    }
    let mut bridges = Host::root_complex(4);
    bridges.climb_all();
    assert!(!outside(&on(&bridges, "vllm serve x -tp 4"), "multicast"));
}
