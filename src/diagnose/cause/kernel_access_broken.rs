//! Copies are right and kernels are not (decision row D10): loads and stores by multiprocessors, or two kernels that wait
//! for each other, fail on pairs whose copy engines pass. Engines' own all-reduce kernels live on this path; copy tests and
//! bandwidth tests do not see it. The path between the GPUs is not accused: the copies crossed it.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, NOW_AND_THEN, PEERS_OFF, requalify, tells_apart},
};
use crate::model::{
    case::{Record, Rung},
    fared::Fared,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
    registry::RegistryWord,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "kernel-access-broken",
    title: "kernels' access to peer memory is wrong where copies are right",
    judge,
    // A copy and a kernel's transfer of the same pair in one run.
    wants: Some(|e| {
        let unsplit = e.path_failures().iter().copied().filter(|p| {
            let fared = e.pair_fared(*p);
            fared.iter().any(kernels_failed)
                && !fared
                    .iter()
                    .any(|f| f.rung == Rung::Copied && f.answers.ran())
        });
        let first = unsplit.take(ASKED_PAIRS);
        first
            .flat_map(|p| [CAUSE.wants(p, "ce-push"), CAUSE.wants(p, "ce-pull")])
            .collect()
    }),
};

/// A kernel's transfer, or two kernels that depend on each other, with a path's symptom.
fn is_kernel_failure(record: &Record) -> bool {
    matches!(
        record.case.rung,
        Rung::Touched | Rung::Resident | Rung::Reduced
    ) && record.outcome.is_path_symptom()
        && !super::pool_memory_broken::is_of_a_pool(&record.case.mechanism)
}

/// Copy engines between the two GPUs, on plain memory of whichever process.
fn is_copy(fared: &Fared) -> bool {
    (fared.mechanism.ends_with("ce-push") || fared.mechanism.ends_with("ce-pull"))
        && !super::pool_memory_broken::is_of_a_pool(fared.mechanism)
}

/// Whether the copies' being right tells anything of kernels that fail on the pairs: it does not beside a failure of now and then.
fn tells(e: &Evidence, broken: &[OrderedPair]) -> bool {
    let fared = || broken.iter().flat_map(|p| e.pair_fared(*p));
    let mechanisms: BTreeSet<&str> = fared()
        .filter(|f| kernels_failed(f))
        .map(|f| f.mechanism)
        .collect();
    let failing = || fared().filter(|f| mechanisms.contains(f.mechanism));
    failing().any(|f| f.broken.is_some())
        || tells_apart(
            failing().map(|f| f.wrong_attempts).sum(),
            failing().map(|f| f.attempts).sum(),
            fared().filter(|f| is_copy(f)).map(|f| f.attempts).sum(),
        )
}

/// Whether any case of a mechanism is such a failure.
fn kernels_failed(fared: &Fared) -> bool {
    matches!(fared.rung, Rung::Touched | Rung::Resident | Rung::Reduced)
        && fared.answers.path_symptom()
        && !super::pool_memory_broken::is_of_a_pool(fared.mechanism)
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken: Vec<OrderedPair> = e
        .path_failures()
        .iter()
        .copied()
        .filter(|p| e.copies_right(*p) && e.pair_fared(*p).iter().any(kernels_failed))
        // Copies of other processes' memory and under load are copies, too.
        .filter(|p| {
            !e.pair_fared(*p)
                .iter()
                .any(|f| is_copy(f) && f.answers.failed())
        })
        .collect();
    if !broken.is_empty() {
        return vec![indict(e, broken)];
    }
    let right = e
        .peer_passes()
        .iter()
        .any(|p| e.pair_fared(*p).iter().any(|f| f.rung == Rung::Touched));
    vec![if right {
        CAUSE.says(
            Judgement::Cleared,
            "kernels' loads and stores are right on every pair whose copies are right",
        )
    } else {
        CAUSE.says(
            Judgement::NotApplicable,
            "no pair with right copies had its kernels' access tried and wrong",
        )
    }]
}

fn indict(e: &Evidence, broken: Vec<OrderedPair>) -> Finding {
    let failing = |p: &OrderedPair| e.of_pair(*p).filter(|r| is_kernel_failure(r));
    let lowest = broken.iter().flat_map(failing).map(|r| r.case.rung).min();
    // The same bytes by a copy engine: nothing but who moved them differs.
    let split = broken.iter().all(|p| {
        failing(p).any(|wrong| {
            e.of_pair(*p).any(|r| {
                r.case.rung == Rung::Copied
                    && r.case.bytes >= wrong.case.bytes
                    && r.outcome.is_intact()
            })
        })
    });
    let told = tells(e, &broken);
    let atomics = only_atomics(&broken, &failing);
    let ids = |pairs: &[OrderedPair], what: &dyn Fn(&Record) -> bool| {
        let cases = pairs.iter().flat_map(|p| e.of_pair(*p));
        let cases = cases
            .filter(|r| what(r) && !super::pool_memory_broken::is_of_a_pool(&r.case.mechanism));
        let mut ids: Vec<&str> = cases.map(|r| r.case.mechanism.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.join(", ")
    };
    let failed: BTreeSet<&str> = broken
        .iter()
        .flat_map(failing)
        .map(|r| r.case.mechanism.as_str())
        .collect();
    let fails = |r: &Record| failed.contains(r.case.mechanism.as_str());
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        match (told, split) {
            (true, true) => Confidence::Established,
            (true, false) => Confidence::Probable,
            (false, _) => Confidence::Possible,
        },
        if atomics {
            format!(
                "copies, loads and stores of {} are right, and atomics on peer memory are not: what counts or locks across GPUs by atomics is broken, and nothing else",
                name_pairs(&broken)
            )
        } else {
            format!(
                "copy engines move the bytes of {} right, and kernels do not by {}{}: what an engine's own all-reduce does is broken, and no copy or bandwidth test shows it",
                name_pairs(&broken),
                ids(&broken, &|r| is_kernel_failure(r)),
                match ids(&broken, &|r| r.case.rung == Rung::Touched && r.outcome.is_intact() && !fails(r)) {
                    right if right.is_empty() => String::new(),
                    right => format!(" (right by {right})"),
                }
            )
        } + if told { "" } else { NOW_AND_THEN },
    );
    const SHOWN: usize = 4;
    finding.evidence = broken
        .iter()
        .flat_map(failing)
        .take(SHOWN)
        .map(|r| {
            let (subject, mechanism) = (r.case.subject, &r.case.mechanism);
            format!(
                "{subject} {mechanism} (rung {}): {}",
                r.case.rung,
                r.outcome.word()
            )
        })
        .collect();
    let patched = signs_of_a_patched_driver(e, &broken);
    let is_patched = !patched.is_empty();
    finding.evidence.extend(patched);
    finding.fix.push(if only_atomics(&broken, &failing) {
        "what sends atomics to peer memory: NVSHMEM and what stands on it (DeepEP and other expert all-to-all kernels: choose the engine's NCCL or all-gather backend), and programs of your own with system-scope atomics (use flags by release stores and acquire loads). Loads, stores and copies of these pairs are right: NCCL's and the engines' own all-reduces announce by stores, so their peers may stay on".to_string()
    } else if lowest < Some(Rung::Reduced) {
        format!("{PEERS_OFF}; NCCL's kernels load, store and wait for flags in peer memory, too")
    } else {
        "--disable-custom-all-reduce (vLLM, SGLang); NCCL may stay on P2P, its own rungs are right".to_string()
    });
    if is_patched {
        finding.fix.push("the stock driver. Hosts with a patched one also need the static BAR1 map: 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;PeerMappingOverride=1\"' in /etc/modprobe.d, initramfs rebuilt. Warning: unsupported by NVIDIA, and hosts that had it returned garbage all the same".to_string());
    }
    finding.next_test = Some(if atomics {
        requalify(&broken, &["sm-store", "sm-load", "atomics"])
    } else {
        requalify(&broken, &["ce-push", "sm-store", "sm-load"])
    });
    finding.pairs = broken;
    finding
}

/// Whether atomics are all that fails.
fn only_atomics<'a, I>(broken: &[OrderedPair], failing: &impl Fn(&OrderedPair) -> I) -> bool
where
    I: Iterator<Item = &'a Record>,
{
    broken
        .iter()
        .flat_map(failing)
        .all(|r| r.case.mechanism == "atomics")
}

/// Peer access that a stock driver does not give, and registry words that only patched drivers are told to use.
fn signs_of_a_patched_driver(e: &Evidence, broken: &[OrderedPair]) -> Vec<String> {
    let mut signs = Vec::new();
    let geforce = broken.iter().flat_map(|p| [p.source, p.destination]);
    let named = geforce
        .filter_map(|g| e.snapshot.gpu(g)?.name.known())
        .find(|name| name.contains("GeForce"));
    if let Some(name) = named {
        signs.push(format!(
            "{name} with peer access over PCIe: the stock driver offers none, so this one is patched"
        ));
    }
    let of_patched = ["RMForceStaticBar1", "PeerMappingOverride", "RMPcieP2PType"];
    let words = RegistryWord::of(e.snapshot).into_iter();
    signs.extend(
        words
            .filter(|w| of_patched.contains(&w.name.as_str()))
            .map(|w| format!("{}: {}", w.place.words(), w.text)),
    );
    signs
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        sample::{Host, pair},
        weigh::findings,
    };
    use super::*;
    use crate::model::case::WrongKind;

    /// ACS, IOMMU and root complex are not accused of what the copies over the same path clear.
    #[test]
    fn right_copies_clear_the_path() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.iommu_all("DMA");
        host.acs_all(Some(0x001d));
        for (a, b) in [(0, 1), (1, 0)] {
            host.set_wrong(pair(a, b), "sm-store", WrongKind::Zeroed);
        }
        let all = host.judge(findings);
        let held: Vec<&str> = all
            .iter()
            .filter(|f| f.judgement == Judgement::Indicted)
            .map(|f| f.cause.as_str())
            .collect();
        assert_eq!(held, ["kernel-access-broken"]);
        assert_eq!(all[0].confidence, Confidence::Established);
        assert!(all[0].fix[0].contains("NCCL_P2P_DISABLE=1"));
    }

    #[test]
    fn atomics_alone_leave_all_else_on() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set_wrong(pair(0, 1), "atomics", WrongKind::Dropped);
        let all = host.judge(findings);
        let found = &all[0];
        assert_eq!(found.cause, "kernel-access-broken");
        assert!(found.fix[0].contains("NVSHMEM"), "{:?}", found.fix);
        assert!(
            !found.fix.iter().any(|f| f.contains("NCCL_P2P_DISABLE")),
            "{:?}",
            found.fix
        );
        assert!(found.because.contains("atomics"));
        // Stores that fail beside them are more than atomics.
        host.set_wrong(pair(0, 1), "sm-store", WrongKind::Dropped);
        assert!(host.judge(findings)[0].fix[0].contains("NCCL_P2P_DISABLE=1"));
    }

    #[test]
    fn without_copies_it_asks_for_them() {
        let mut host = Host::root_complex(2);
        host.set_wrong(pair(0, 1), "sm-store", WrongKind::Zeroed);
        assert_eq!(host.judge(judge)[0].judgement, Judgement::NotApplicable);
        let wanted = host.judge(super::super::super::wanted);
        assert!(
            wanted.iter().any(|w| w.mechanism == "ce-push"),
            "{wanted:?}"
        );
    }

    /// Times `mechanism` was wrong on 0->1, of attempts on each of its cases and of the copies' cases.
    fn seldom(wrong: u32, ran: u32, mechanism: &str, also: Option<&str>) -> Vec<Finding> {
        let mut host = Host::root_complex(2);
        host.climb_all();
        for failing in also.into_iter().chain([mechanism]) {
            host.set_wrong(pair(0, 1), failing, WrongKind::Zeroed);
        }
        for record in &mut host.records {
            record.attempts_ran = ran;
            if let crate::model::case::Outcome::Corrupt(c) = &mut record.outcome {
                (c.wrong_attempts, c.attempts_ran) = (wrong, ran);
            }
        }
        host.judge(judge)
    }

    /// One wrong attempt of a hundred may have fallen on a kernel by chance.
    #[test]
    fn failures_of_now_and_then_establish_nothing() {
        let found = &seldom(1, 100, "sm-store", None)[0];
        assert_eq!(found.confidence, Confidence::Possible, "{found:?}");
        assert!(found.because.contains("by luck"), "{}", found.because);
        let often = &seldom(5, 100, "sm-store", None)[0];
        assert_eq!(often.confidence, Confidence::Established);
        let always = &seldom(100, 100, "sm-store", None)[0];
        assert_eq!(always.confidence, Confidence::Established);
        assert!(!always.because.contains("by luck"));
        // A copy of another process's memory that fails is a copy that fails.
        let copies = &seldom(100, 100, "sm-store", Some("ipc-ce-push"))[0];
        assert_ne!(copies.judgement, Judgement::Indicted, "{copies:?}");
    }
}
