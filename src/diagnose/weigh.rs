//! How a cause speaks: its findings, the cases that it wants, and the order in which findings are read.

use super::{cause::ROSTER, evidence::Evidence};
use crate::model::{
    case::{Record, Rung, Subject},
    fared::Fared,
    finding::{Confidence, Finding, Judgement, Severity},
    group::Group,
    pair::{GpuIndex, OrderedPair},
};

/// One possible cause: `cause/ID.rs`, described for people in `docs/causes/ID.md`.
#[derive(Debug)]
pub struct Cause {
    /// Id: file name with hyphens.
    pub id: &'static str,
    /// Title.
    pub title: &'static str,
    /// What it says of the evidence. At least one finding, so that a cleared suspect is seen.
    pub judge: fn(&Evidence) -> Vec<Finding>,
    /// Safe cases that would split it from the next cause and are not among the records, if there are any.
    pub wants: Option<fn(&Evidence) -> Vec<WantedCase>>,
}

/// A case that would turn a probable cause into an established or a cleared one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedCase {
    /// The cause that asks.
    pub cause: &'static str,
    /// GPU, ordered pair or group.
    pub subject: Subject,
    /// Mechanism id.
    pub mechanism: &'static str,
    /// Bytes of one attempt; `None` = whatever the plan takes for this mechanism.
    pub bytes: Option<u64>,
    /// Offset in the destination buffer, in bytes.
    pub offset: u64,
    /// Whether its rate is what is wanted.
    pub timed: bool,
}

/// What keeps serving engines off peers that deliver wrong data. NCCL's switch alone does not reach the engines' own kernels, and the
/// profiles of the engines, which 'peerproof recommend' reads, know every switch.
pub(crate) const PEERS_OFF: &str = "NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce, for vLLM also \
    VLLM_ALLREDUCE_USE_SYMM_MEM=0 and VLLM_ALLREDUCE_USE_FLASHINFER=0 ('peerproof recommend --engine ENGINE' has all switches)";

/// Pairs that a cause asks about at most: more of the same answer nothing new.
pub(crate) const ASKED_PAIRS: usize = 4;

impl Cause {
    /// A wanted case of this cause on a pair, as the plan would size it.
    pub(crate) fn wants(&self, pair: OrderedPair, mechanism: &'static str) -> WantedCase {
        WantedCase {
            cause: self.id,
            subject: Subject::Pair(pair),
            mechanism,
            bytes: None,
            offset: 0,
            timed: false,
        }
    }

    /// Both ways through the host for the first of `pairs`: whether the path between the GPUs is to blame at all.
    pub(crate) fn control_arms(&self, pairs: &[OrderedPair]) -> Vec<WantedCase> {
        let first = pairs.iter().take(ASKED_PAIRS);
        first
            .flat_map(|p| [self.wants(*p, "bounce"), self.wants(*p, "staged")])
            .collect()
    }

    /// The pairs for which a suspect on the path between two GPUs has to answer: wrong over PCIe, and not cleared by right
    /// copies over the same path or by right transfers below the end of BAR1. The suspects of bare metal all begin here.
    ///
    /// # Errors
    /// What the suspect says instead: in a guest, whose readings are not the host's, or where nobody knows whether it is
    /// one.
    pub(crate) fn on_bare_metal(
        &self,
        e: &Evidence,
        in_a_guest: &str,
    ) -> Result<Vec<OrderedPair>, Box<Finding>> {
        if e.is_guest() == Some(true) {
            return Err(Box::new(self.says(Judgement::NotApplicable, in_a_guest)));
        }
        let broken = e.path_suspects().to_vec();
        if e.is_guest().is_none() && !broken.is_empty() {
            let mut finding = self.says(
                Judgement::CannotTell,
                "it was not read whether a hypervisor is present, and in a guest these signals are not the host's",
            );
            finding.next_test = Some("grep -c hypervisor /proc/cpuinfo".into());
            finding.pairs = broken;
            return Err(Box::new(finding));
        }
        Ok(broken)
    }

    /// A finding without weight: cleared, cannot tell, not applicable.
    pub(crate) fn says(&self, judgement: Judgement, because: impl Into<String>) -> Finding {
        Finding {
            cause: self.id.to_string(),
            title: self.title.to_string(),
            judgement,
            severity: Severity::Info,
            confidence: Confidence::Possible,
            pairs: Vec::new(),
            gpus: Vec::new(),
            because: because.into(),
            evidence: Vec::new(),
            fix: Vec::new(),
            next_test: None,
        }
    }

    /// A finding that is held.
    pub(crate) fn indicts(
        &self,
        severity: Severity,
        confidence: Confidence,
        because: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            confidence,
            ..self.says(Judgement::Indicted, because)
        }
    }
}

/// What shows a rare fault again: the same cases for some minutes.
pub(crate) const DEEP: &str = "--deep=10m";

/// How often what a finding rests on was wrong, if it rests on wrong data alone: attempts that were wrong and attempts that ran,
/// and a record that a repetition would try. A hang, a fault and a death are other things, and so are readings.
fn wrong_attempts<'a>(e: &Evidence<'a>, finding: &Finding) -> Option<(u32, u32, &'a Record)> {
    let of_a_gpu = |gpu: &GpuIndex| finding.pairs.is_empty() && finding.gpus.contains(gpu);
    let about = |subject: &Subject| match subject {
        Subject::Pair(pair) => finding.pairs.contains(pair),
        Subject::Gpu(gpu) => of_a_gpu(gpu),
        Subject::Group(group) => finding.pairs.iter().any(|p| group.holds(*p)),
    };
    let counts = |subject: Subject, fared: &Fared| {
        fared.answers.failed() && (fared.rung == Rung::Alone || !matches!(subject, Subject::Gpu(_)))
    };
    let (mut wrong, mut ran, mut one) = (0, 0, None);
    for (subject, fared) in e.subjects().filter(|(subject, _)| about(subject)) {
        for fared in fared.iter().filter(|fared| counts(subject, fared)) {
            if fared.broken.is_some() {
                return None;
            }
            wrong += fared.wrong_attempts;
            ran += fared.attempts_of_wrong;
            one = one.or(fared.corrupt);
        }
    }
    Some((wrong, ran, one?))
}

/// Whether `right` attempts that were right tell anything beside `wrong` of `ran` that were not: what is wrong every time does, and
/// else it must be unlikely (5%) that all that went wrong fell on one side by chance (hypergeometric). What fails now and then
/// leaves most things right by luck.
pub(crate) fn tells_apart(wrong: u32, ran: u64, right: u64) -> bool {
    if wrong == 0 || u64::from(wrong) >= ran {
        return wrong > 0;
    }
    let by_chance = (0..u64::from(wrong))
        .map(|i| (ran - i) as f64 / (ran + right - i) as f64)
        .product::<f64>();
    by_chance <= 0.05
}

/// Said where that tells nothing.
pub(crate) const NOW_AND_THEN: &str =
    ", in few attempts: it fails so seldom that what was right beside it may have been so by luck";

/// Causes that counters and logs establish by themselves, whatever the transfers say.
const COUNTED: [&str; 3] = ["gpu-itself", "link-errors", "nvlink-degraded"];

/// What was wrong in a single attempt is no more than possible, whatever else fits: nobody knows yet whether it comes back.
fn seen_once(e: &Evidence, finding: &mut Finding) {
    if finding.judgement != Judgement::Indicted || finding.severity < Severity::Critical {
        return;
    }
    let Some((1, ran, record)) = wrong_attempts(e, finding) else {
        return;
    };
    if finding.confidence == Confidence::Established && COUNTED.contains(&finding.cause.as_str()) {
        return;
    }
    finding.confidence = Confidence::Possible;
    let of = match ran {
        1 => "the only attempt".to_string(),
        ran => format!("1 of {ran} attempts"),
    };
    finding.because.push_str(&format!(
        "; seen once, in {of}: no more than possible until it comes again"
    ));
    let mechanism = record.case.mechanism.as_str();
    let again = match record.case.subject {
        Subject::Pair(pair) => requalify(&[pair], &[mechanism]),
        Subject::Gpu(gpu) => format!("peerproof qualify --gpus {gpu} --mechanism {mechanism}"),
        Subject::Group(group) => requalify_group(group, mechanism),
    };
    finding.next_test = Some(format!("{again} {DEEP}"));
}

/// Asks every cause of the roster. Held findings first, worst and surest first; then those that cannot tell, those
/// cleared, and those with nothing to say.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut all: Vec<Finding> = ROSTER.iter().flat_map(|c| (c.judge)(evidence)).collect();
    all.iter_mut().for_each(|f| seen_once(evidence, f));
    all.sort_by_key(|f| {
        let held = match f.judgement {
            Judgement::Indicted => 0,
            Judgement::CannotTell => 1,
            Judgement::Cleared => 2,
            Judgement::NotApplicable => 3,
        };
        (held, std::cmp::Reverse((f.severity, f.confidence)))
    });
    all
}

/// Cases that would settle what is open, each once, without those that ran already.
pub fn wanted(evidence: &Evidence) -> Vec<WantedCase> {
    /// A run asks a few questions more, not a second plan.
    const AT_MOST: usize = 32;
    let ran = |case: &WantedCase| {
        let mut rows: Box<dyn Iterator<Item = _>> = match case.subject {
            Subject::Pair(pair) => Box::new(evidence.of_pair(pair)),
            Subject::Gpu(gpu) => Box::new(evidence.of_gpu(gpu)),
            Subject::Group(group) => Box::new(evidence.of_group(group)),
        };
        rows.any(|r| {
            r.case.mechanism == case.mechanism
                && r.outcome.ran()
                && case
                    .bytes
                    .is_none_or(|b| (b, case.offset) == (r.case.bytes, r.case.offset))
                && (!case.timed || r.rate.is_some())
        })
    };
    let mut all: Vec<WantedCase> = Vec::new();
    for case in ROSTER
        .iter()
        .filter_map(|c| c.wants)
        .flat_map(|w| w(evidence))
    {
        let asked = all.iter().any(|other| {
            (other.subject, other.mechanism, other.bytes, other.offset)
                == (case.subject, case.mechanism, case.bytes, case.offset)
        });
        if all.len() < AT_MOST && !asked && !ran(&case) {
            all.push(case);
        }
    }
    all
}

/// The command that runs an all-reduce over a group again, after the test of each of its GPUs by itself.
pub(crate) fn requalify_group(group: Group, mechanism: &str) -> String {
    let gpus: Vec<String> = group.gpus().map(|gpu| gpu.to_string()).collect();
    let gpus = gpus.join(",");
    format!("peerproof qualify --gpus {gpus} --mechanism memory,bounce,staged,{mechanism}")
}

/// The command that runs some mechanisms of some pairs again, after the test of each GPU by itself that could explain all.
pub(crate) fn requalify(pairs: &[OrderedPair], mechanisms: &[&str]) -> String {
    let mut command = "peerproof qualify".to_string();
    if let Some(first) = pairs.first() {
        command.push_str(&format!(" --pairs '{first}'"));
    }
    if !mechanisms.is_empty() {
        command.push_str(" --mechanism memory");
        for mechanism in mechanisms.iter().filter(|m| **m != "memory") {
            command.push_str(&format!(",{mechanism}"));
        }
    }
    command
}

/// How to make a kernel parameter stay.
pub(crate) fn kernel_parameter(words: &str) -> String {
    format!(
        "add '{words}' to GRUB_CMDLINE_LINUX in /etc/default/grub, run 'sudo update-grub' (or 'sudo grub2-mkconfig -o /boot/grub2/grub.cfg'), reboot, check 'cat /proc/cmdline', then run 'peerproof qualify' on all pairs again"
    )
}

/// Pages of causes, embedded from `docs/causes/`.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/causes.rs"));

/// The page of a cause: what it looks like, why, what splits it, the fix; `None` for an id that no cause has.
pub fn page(id: &str) -> Option<&'static str> {
    let known = PAGES
        .iter()
        .find(|(name, _)| name.strip_suffix(".md") == Some(id));
    known.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, gpu_address, pair, wrong};
    use super::*;
    use crate::model::{
        case::{Outcome, WrongKind},
        pair::GpuIndex,
    };
    use std::{collections::BTreeSet, fs, path::Path};

    fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == extension))
            .map(|path| {
                path.file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .replace('_', "-")
            })
            .filter(|stem| stem != "mod")
            .collect()
    }

    #[test]
    fn files_roster_and_pages_are_the_same() {
        let roster: BTreeSet<String> = ROSTER.iter().map(|c| c.id.to_string()).collect();
        assert_eq!(roster.len(), ROSTER.len());
        assert_eq!(stems("src/diagnose/cause", "rs"), roster);
        assert_eq!(stems("docs/causes", "md"), roster);
        for cause in ROSTER {
            let page =
                Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/causes/{}.md", cause.id));
            let text = fs::read_to_string(page).unwrap();
            assert!(
                text.starts_with(&format!("# {}: {}\n", cause.id, cause.title)),
                "{}",
                cause.id
            );
        }
    }

    #[test]
    fn every_cause_speaks_and_holds_nothing_against_a_healthy_host() {
        for mut host in [
            Host::root_complex(8),
            Host::nvswitch(8),
            Host::root_complex(1),
        ] {
            host.all_intact();
            let all = host.judge(findings);
            for cause in ROSTER {
                assert!(all.iter().any(|f| f.cause == cause.id), "{}", cause.id);
            }
            let held: Vec<_> = all
                .iter()
                .filter(|f| f.judgement == Judgement::Indicted)
                .collect();
            assert!(held.is_empty(), "{held:?}");
        }
    }

    #[test]
    fn held_findings_come_first_and_every_held_one_has_a_fix() {
        let mut host = Host::root_complex(4);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host.iommu_all("DMA");
        host.acs_all(Some(0x001d));
        let all = host.judge(findings);
        assert_eq!(all[0].cause, "iommu-translation");
        assert_eq!(all[1].cause, "acs-redirect");
        for finding in all.iter().filter(|f| f.judgement == Judgement::Indicted) {
            assert!(!finding.fix.is_empty() && !finding.evidence.is_empty());
        }
        assert!(all.iter().any(|f| f.judgement == Judgement::Cleared));
    }

    /// Whatever the cause: one wrong attempt is no more than possible, and all of them are what they were.
    #[test]
    fn what_was_seen_once_is_no_more_than_possible() {
        let times = |outcome: &mut Outcome, wrong: u32, ran: u32| {
            if let Outcome::Corrupt(c) = outcome {
                (c.wrong_attempts, c.attempts_ran) = (wrong, ran);
            }
        };
        let first = |host: &Host| host.judge(findings).remove(0);
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set(pair(0, 1), "pool-sm-store", Outcome::Intact);
        host.iommu_all("DMA-FQ");
        for mechanism in ["pool-sm-store", "sm-store"] {
            let mut one = wrong(WrongKind::Zeroed);
            times(&mut one, 1, 200);
            let mut broken = Host {
                snapshot: host.snapshot.clone(),
                records: host.records.clone(),
                observations: Vec::new(),
                ladder: Vec::new(),
            };
            broken.set(pair(0, 1), mechanism, one.clone());
            let found = first(&broken);
            assert_eq!(found.confidence, Confidence::Possible, "{found:?}");
            assert!(
                found.because.contains("seen once, in 1 of 200 attempts"),
                "{}",
                found.because
            );
            let again = format!("--mechanism memory,{mechanism} --deep=10m");
            assert!(found.next_test.unwrap().ends_with(&again));
            times(&mut one, 200, 200);
            broken.set(pair(0, 1), mechanism, one);
            assert_eq!(first(&broken).confidence, Confidence::Established);
        }
        // A GPU by itself; its counters speak without the transfers.
        let mut alone = Host::root_complex(1);
        let mut one = wrong(WrongKind::Flipped);
        times(&mut one, 1, 1);
        let gpu = Subject::Gpu(GpuIndex(0));
        alone.put(gpu, "memory", Rung::Alone, one);
        assert_eq!(first(&alone).confidence, Confidence::Possible);
        assert!(first(&alone).because.contains("the only attempt"));
        let line = format!("NVRM: Xid (PCI:{}): 79, pid=1, GPU", gpu_address(0));
        alone.snapshot.host.kernel_log =
            crate::model::reading::Reading::Known(vec![line.replace(".0):", "):")]);
        assert_eq!(first(&alone).confidence, Confidence::Established);
    }

    /// Sixteen GPUs with six sizes of every mechanism: the questions stay cheap enough to be asked of a saved report.
    #[test]
    fn a_large_report_is_judged_in_seconds_without_optimisation() {
        let mut host = Host::root_complex(16);
        host.direct_wrong(WrongKind::Zeroed, |p| p.source.0 == 3);
        let once = host.records.clone();
        for _ in 1..6 {
            host.records.extend(once.iter().cloned());
        }
        let started = std::time::Instant::now();
        host.judge(|e| {
            let covered = super::super::coverage(e, &[]);
            let users = super::super::consumers(e, &host.group());
            super::super::verdict(e, &covered, None, &findings(e), &users)
        });
        println!("{} records: {:?}", host.records.len(), started.elapsed());
        assert!(started.elapsed().as_secs() < 20);
    }
}
