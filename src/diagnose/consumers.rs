//! Who relies on peer transfers, and what each may rely on. Veto only: one broken pair condemns the group, and what was
//! not tested is unproven, never proven.

use super::{
    evidence::{Evidence, PeerClaim},
    ladder::{RungState, rung_state},
};
use crate::model::{
    case::Rung,
    finding::{Consumer, ConsumerState},
    pair::{GpuIndex, OrderedPair},
};

/// What a consumer is made of.
struct Kind {
    id: &'static str,
    name: &'static str,
    needs: &'static [Rung],
    /// Takes the direct path, and does not exist without peer access.
    peer: bool,
}

/// Kernels of several processes that write into each other's memory and wait for each other. A pair that fails a lower
/// rung of the same path is no ground for a higher one, so those are needed too.
const RESIDENT_KERNELS: &[Rung] = &[
    Rung::Copied,
    Rung::Touched,
    Rung::Shared,
    Rung::Resident,
    Rung::Reduced,
];

const KINDS: &[Kind] = &[
    Kind {
        id: "nccl-p2p",
        name: "NCCL P2P",
        needs: RESIDENT_KERNELS,
        peer: true,
    },
    Kind {
        id: CUSTOM_ALL_REDUCE,
        name: "custom all-reduce (vLLM, SGLang)",
        needs: RESIDENT_KERNELS,
        peer: true,
    },
    Kind {
        id: FLASHINFER_PCIE_IPC,
        name: "FlashInfer pcie_ipc",
        needs: RESIDENT_KERNELS,
        peer: true,
    },
    Kind {
        id: SYMMETRIC_MEMORY,
        name: "symmetric memory",
        needs: RESIDENT_KERNELS,
        peer: true,
    },
    Kind {
        id: "llama-cpp-peer-copies",
        name: "llama.cpp peer copies",
        needs: &[Rung::Copied],
        peer: true,
    },
    Kind {
        id: SINGLE_PROCESS_PYTHON,
        name: "single-process multi-GPU Python",
        needs: &[Rung::Staged, Rung::Copied, Rung::Touched],
        peer: false,
    },
    Kind {
        id: "host-staged",
        name: "host-staged (NCCL SHM)",
        needs: &[Rung::Staged],
        peer: false,
    },
];

const CUSTOM_ALL_REDUCE: &str = "custom-all-reduce";
const FLASHINFER_PCIE_IPC: &str = "flashinfer-pcie-ipc";
const SYMMETRIC_MEMORY: &str = "symmetric-memory";
const SINGLE_PROCESS_PYTHON: &str = "single-process-python";

/// All consumers, judged for `group`.
pub fn consumers(evidence: &Evidence, group: &[GpuIndex]) -> Vec<Consumer> {
    let pairs: Vec<OrderedPair> = group
        .iter()
        .flat_map(|s| group.iter().map(move |d| (*s, *d)))
        .filter_map(|(s, d)| OrderedPair::new(s.0, d.0))
        .collect();
    KINDS
        .iter()
        .map(|kind| {
            let (state, sentence) = judge(evidence, kind, group, &pairs);
            Consumer {
                id: kind.id.to_string(),
                name: kind.name.to_string(),
                needs: kind.needs.to_vec(),
                state,
                sentence,
            }
        })
        .collect()
}

fn judge(
    e: &Evidence,
    kind: &Kind,
    group: &[GpuIndex],
    pairs: &[OrderedPair],
) -> (ConsumerState, String) {
    if pairs.is_empty() {
        return (
            ConsumerState::NotApplicable,
            "does not exist with fewer than two GPUs".to_string(),
        );
    }
    if let Some(veto) = veto(e, kind, group, pairs) {
        return (ConsumerState::Vetoed, veto);
    }
    let without: Vec<OrderedPair> = pairs
        .iter()
        .copied()
        .filter(|p| no_peer_access(e, *p))
        .collect();
    if let Some(first) = without.first() {
        if kind.peer {
            return if e.claim(*first) == PeerClaim::Ok {
                (
                    ConsumerState::Unproven,
                    format!(
                        "unproven because peer access was refused on pair {first}, which the driver advertises"
                    ),
                )
            } else {
                (
                    ConsumerState::NotApplicable,
                    format!("does not exist here: no peer access on pair {first}"),
                )
            };
        }
        if kind.id == SINGLE_PROCESS_PYTHON {
            let (state, sentence) = proof(e, &[Rung::Staged], pairs);
            return (state, format!("{sentence} (copies go through the host)"));
        }
    }
    if let Some(reason) = unused(e, kind, group, pairs) {
        return (ConsumerState::NotApplicable, reason.to_string());
    }
    proof(e, kind.needs, pairs)
}

fn veto(e: &Evidence, kind: &Kind, group: &[GpuIndex], pairs: &[OrderedPair]) -> Option<String> {
    if let Some(gpu) = e.condemned_gpus().iter().find(|g| group.contains(g)) {
        return Some(format!("vetoed by GPU{gpu}, which fails by itself"));
    }
    kind.needs.iter().find_map(|rung| {
        let failing: Vec<OrderedPair> = pairs
            .iter()
            .copied()
            .filter(|p| rung_state(e, *p, *rung) == RungState::Failed)
            .collect();
        let first = failing.first()?;
        let more = match failing.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Some(format!("vetoed by pair {first} at {}{more}", number(*rung)))
    })
}

/// The driver offers no peer access, or refused it.
fn no_peer_access(e: &Evidence, pair: OrderedPair) -> bool {
    matches!(e.claim(pair), PeerClaim::Refused(_))
        || e.refused(pair).is_some()
        || rung_state(e, pair, Rung::Copied) == RungState::Absent
}

/// Why engines do not use this consumer on such a group, whatever the proof.
fn unused(
    e: &Evidence,
    kind: &Kind,
    group: &[GpuIndex],
    pairs: &[OrderedPair],
) -> Option<&'static str> {
    let full_nvlink = pairs.iter().all(|p| e.has_nvlink(*p));
    let links_known = pairs.iter().all(|p| {
        e.snapshot
            .topology
            .pairs
            .get(*p)
            .is_some_and(|path| path.nvlink_known)
    });
    let no_full_nvlink = links_known && !full_nvlink;
    match kind.id {
        CUSTOM_ALL_REDUCE if group.len() > 2 && no_full_nvlink => Some(
            "not used here: vLLM and SGLang switch it off for more than two GPUs without NVLink on every pair",
        ),
        SYMMETRIC_MEMORY if no_full_nvlink => {
            Some("not used here: engines take it with NVLink on every pair only")
        }
        FLASHINFER_PCIE_IPC if !matches!(group.len(), 2 | 4 | 8) => {
            Some("not covered: its kernels exist for 2, 4 and 8 GPUs")
        }
        FLASHINFER_PCIE_IPC if full_nvlink => {
            Some("not used here: backends over NVLink come first")
        }
        _ => None,
    }
}

fn proof(e: &Evidence, needs: &[Rung], pairs: &[OrderedPair]) -> (ConsumerState, String) {
    let intact = |rung: Rung| {
        pairs
            .iter()
            .all(|p| rung_state(e, *p, rung) == RungState::Intact)
    };
    let reached = Rung::LADDER
        .into_iter()
        .filter(|r| *r > Rung::Advertised)
        .take_while(|r| intact(*r))
        .last();
    let untested: Vec<Rung> = needs.iter().copied().filter(|r| !intact(*r)).collect();
    if untested.is_empty() {
        let top = needs.last().copied().map_or_else(String::new, number);
        return (ConsumerState::Proven, format!("proven up to {top}"));
    }
    let mut sentence = format!("unproven because {} not tested", ranges(&untested));
    if let Some(rung) = reached {
        sentence.push_str(&format!("; proven up to {}", number(rung)));
    }
    (ConsumerState::Unproven, sentence)
}

fn number(rung: Rung) -> String {
    rung.number()
        .map_or_else(|| rung.name().to_string(), |n| format!("rung {n}"))
}

/// "rung 3 was", "rungs 4 to 6 were", "rungs 2 and 4 to 6 were".
fn ranges(rungs: &[Rung]) -> String {
    let numbers: Vec<u32> = rungs.iter().filter_map(|r| r.number()).collect();
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for n in &numbers {
        match spans.last_mut() {
            Some((_, end)) if *end + 1 == *n => *end = *n,
            _ => spans.push((*n, *n)),
        }
    }
    let words: Vec<String> = spans
        .iter()
        .map(|(start, end)| {
            if start == end {
                start.to_string()
            } else {
                format!("{start} to {end}")
            }
        })
        .collect();
    match numbers.len() {
        1 => format!("rung {} was", words.join(" and ")),
        _ => format!("rungs {} were", words.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair, wrong};
    use super::*;
    use crate::model::case::{Outcome, Subject, WrongKind};

    fn ask(host: &Host, id: &str) -> (ConsumerState, String) {
        let all = host.judge(|e| consumers(e, &host.group()));
        let found = all.into_iter().find(|c| c.id == id).unwrap();
        (found.state, found.sentence)
    }

    #[test]
    fn healthy_is_unproven_above_what_was_tested_and_proven_below() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        assert_eq!(
            ask(&host, "nccl-p2p"),
            (
                ConsumerState::Unproven,
                "unproven because rungs 4 to 6 were not tested; proven up to rung 3".to_string()
            )
        );
        assert_eq!(
            ask(&host, "single-process-python"),
            (ConsumerState::Proven, "proven up to rung 3".to_string())
        );
        assert_eq!(
            ask(&host, "llama-cpp-peer-copies"),
            (ConsumerState::Proven, "proven up to rung 2".to_string())
        );
        assert_eq!(ask(&host, "host-staged").1, "proven up to rung 1");
    }

    #[test]
    fn one_broken_pair_vetoes_the_group_and_leaves_the_host_path() {
        let mut host = Host::root_complex(8);
        host.all_intact();
        host.set_wrong(pair(2, 5), "sm-store", WrongKind::Dropped);
        for id in ["nccl-p2p", "custom-all-reduce", "single-process-python"] {
            assert_eq!(
                ask(&host, id),
                (
                    ConsumerState::Vetoed,
                    "vetoed by pair 2->5 at rung 3".to_string()
                ),
                "{id}"
            );
        }
        assert_eq!(ask(&host, "llama-cpp-peer-copies").0, ConsumerState::Proven);
        assert_eq!(ask(&host, "host-staged").0, ConsumerState::Proven);
        let others = host.judge(|e| consumers(e, &[GpuIndex(0), GpuIndex(1)]));
        assert!(others.iter().all(|c| c.state != ConsumerState::Vetoed));
    }

    #[test]
    fn engines_leave_custom_all_reduce_and_symmetric_memory_off_on_large_pcie_groups() {
        let mut host = Host::root_complex(4);
        host.all_intact();
        assert_eq!(
            ask(&host, "custom-all-reduce").0,
            ConsumerState::NotApplicable
        );
        assert_eq!(
            ask(&host, "symmetric-memory").0,
            ConsumerState::NotApplicable
        );
        let mut host = Host::nvswitch(4);
        host.all_intact();
        assert_eq!(ask(&host, "custom-all-reduce").0, ConsumerState::Unproven);
        assert_eq!(
            ask(&host, "flashinfer-pcie-ipc").0,
            ConsumerState::NotApplicable
        );
    }

    #[test]
    fn without_peer_access_python_goes_through_the_host() {
        let mut host = Host::root_complex(2);
        host.claim_all("GNS");
        host.refused();
        assert_eq!(
            ask(&host, "nccl-p2p"),
            (
                ConsumerState::NotApplicable,
                "does not exist here: no peer access on pair 0->1".to_string()
            )
        );
        assert_eq!(
            ask(&host, "single-process-python"),
            (
                ConsumerState::Proven,
                "proven up to rung 1 (copies go through the host)".to_string()
            )
        );
        host.claim_all("OK");
        assert_eq!(ask(&host, "nccl-p2p").0, ConsumerState::Unproven);
    }

    #[test]
    fn nothing_tried_is_unproven_and_a_condemned_gpu_vetoes_all() {
        let mut host = Host::root_complex(2);
        assert_eq!(
            ask(&host, "llama-cpp-peer-copies").1,
            "unproven because rung 2 was not tested"
        );
        host.all_intact();
        let outcome = wrong(WrongKind::Flipped);
        host.put(Subject::Gpu(GpuIndex(1)), "memory", Rung::Alone, outcome);
        assert_eq!(
            ask(&host, "host-staged").1,
            "vetoed by GPU1, which fails by itself"
        );
        let one = Host::root_complex(1);
        assert_eq!(ask(&one, "nccl-p2p").0, ConsumerState::NotApplicable);
    }

    #[test]
    fn rungs_in_words() {
        assert_eq!(
            ranges(&[Rung::Copied, Rung::Shared, Rung::Resident]),
            "rungs 2 and 4 to 5 were"
        );
        let mut host = Host::root_complex(2);
        host.all_intact();
        let reason = "budget".to_string();
        host.set(pair(0, 1), "ce-pull", Outcome::NotRun { reason });
        assert_eq!(
            ask(&host, "nccl-p2p").1,
            "unproven because rungs 2 and 4 to 6 were not tested; proven up to rung 1"
        );
    }
}
