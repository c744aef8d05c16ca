//! A GPU that is not sound by itself: it fails alone, counts uncorrected memory errors, could not remap rows, or reported
//! an Xid. It is the finding; pairs that touch a condemned GPU are not blamed on the fabric.

use super::super::{
    evidence::{Evidence, involves_host, is_not_ready},
    weigh::Cause,
    xid,
};
use crate::model::{
    case::{Record, Rung},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::GpuIndex,
    snapshot::Gpu,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "gpu-itself",
    title: "a GPU is not sound by itself",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    if e.snapshot.gpus.is_empty() {
        return vec![CAUSE.says(Judgement::NotApplicable, "no GPU")];
    }
    if let Some(finding) = all_silent(e) {
        return vec![finding];
    }
    let findings: Vec<Finding> = e.gpus().filter_map(|(i, gpu)| examine(e, i, gpu)).collect();
    if !findings.is_empty() {
        return findings;
    }
    let tried = e
        .records
        .iter()
        .any(|r| r.case.rung == Rung::Alone && r.outcome.is_intact());
    vec![if tried {
        CAUSE.says(
            Judgement::Cleared,
            "every GPU that was tried alone is right, and no reading speaks against one",
        )
    } else {
        CAUSE.says(
            Judgement::CannotTell,
            "no GPU was tried alone; no reading speaks against one",
        )
    }]
}

/// When and for how long NVML has not answered for a GPU, in words, if so.
fn silence(e: &Evidence, index: GpuIndex, gpu: &Gpu) -> Option<String> {
    if let Some(why) = gpu.nvml_index.unanswered() {
        return Some(format!("NVML, when the host was read: {why}"));
    }
    e.observations.iter().find_map(|seen| {
        let why = seen
            .gpus
            .get(index.at())?
            .utilization_percent
            .unanswered()?;
        Some(format!("NVML, {}: {why}", seen.moment))
    })
}

/// NVML answers for no GPU at all: that is the driver's, or its lock's, and no single GPU's.
fn all_silent(e: &Evidence) -> Option<Finding> {
    let count = e.snapshot.gpus.len();
    let silent: Vec<String> = e
        .gpus()
        .filter_map(|(index, gpu)| silence(e, index, gpu))
        .collect();
    if count < 2 || silent.len() < count {
        return None;
    }
    let because = format!("NVML answers for none of the {count} GPUs: the driver is stuck");
    let mut finding = CAUSE.indicts(Severity::Critical, Confidence::Probable, because);
    finding.title = "the driver does not answer".to_string();
    finding.evidence = silent.into_iter().take(1).collect();
    finding.gpus = e.gpus().map(|(index, _)| index).collect();
    finding.fix = vec![
        "serve nothing on this host until it answers again".to_string(),
        "'dmesg' may say which GPU holds the driver up (Xid, 'fallen off the bus', timeouts); end what still uses the GPUs, reload the driver or restart the host, then 'peerproof qualify' again".to_string(),
    ];
    finding.next_test = Some("timeout 60 nvidia-smi -L; dmesg | grep -iE 'xid|nvrm'".to_string());
    Some(finding)
}

/// Whether the GPU's own kernel found nothing wrong in its memory, or the host's copy of the same says otherwise: then what was
/// wrong may have come so over the link.
fn speaks_of_the_link(record: &Record) -> bool {
    let corruption = record.outcome.corruption();
    corruption.is_some_and(|c| c.wrong_units == 0 || c.owner_views_agree == Some(false))
}

fn examine(e: &Evidence, index: GpuIndex, gpu: &Gpu) -> Option<Finding> {
    let mut signals: Vec<(Severity, String)> = Vec::new();
    // Failures by what they say: of the GPU's own memory by its own kernel, of copies with the host, and the rest, of which
    // the GPU's reports came over the host link, too.
    let (mut own, mut with_host, mut rest) = (false, false, false);
    let (mut wrong_attempts, mut counted) = (0, false);
    for record in e
        .of_gpu(index)
        .filter(|r| r.case.rung == Rung::Alone && r.outcome.is_failure())
        .filter(|r| !is_not_ready(&r.outcome))
    {
        if involves_host(record) {
            with_host = true;
        } else if record.case.mechanism == "memory" && !speaks_of_the_link(record) {
            own = true;
            wrong_attempts += record.outcome.corruption().map_or(0, |c| c.wrong_attempts);
        } else {
            rest = true;
            wrong_attempts += record.outcome.corruption().map_or(0, |c| c.wrong_attempts);
        }
        let detail = record
            .outcome
            .corruption()
            .map_or_else(String::new, |c| format!(": {}", c.detail));
        signals.push((
            Severity::Critical,
            format!(
                "{} of GPU{index} alone: {}{detail}",
                record.case.mechanism,
                record.outcome.word()
            ),
        ));
    }
    // Where copies with the host are wrong, what came back over the same link is no word against the GPU.
    let failed_alone = own || rest && !with_host;
    let silent = silence(e, index, gpu);
    signals.extend(silent.clone().map(|words| (Severity::Critical, words)));
    if let Some(rows) = gpu.remapped_rows.known() {
        if rows.failed {
            signals.push((
                Severity::Critical,
                "NVML: a row remapping failed".to_string(),
            ));
        }
        if rows.pending {
            signals.push((
                Severity::Warning,
                "NVML: a row remapping waits for a reset".to_string(),
            ));
        }
    }
    if let Some(errors) = gpu.ecc_uncorrected.known().filter(|n| **n > 0) {
        signals.push((
            Severity::Warning,
            format!("NVML: {errors} uncorrected ECC errors since the driver loaded"),
        ));
    }
    let before = gpu.ecc_uncorrected.known().copied();
    let after = e
        .observations
        .last()
        .and_then(|o| o.gpus.get(index.at())?.ecc_uncorrected.known().copied());
    if let (Some(before), Some(after)) = (before, after)
        && after > before
    {
        counted = true;
        signals.push((
            Severity::Critical,
            format!("NVML: uncorrected ECC errors rose from {before} to {after} during this run"),
        ));
    }
    for (_, code, line) in e.xids().into_iter().filter(|(i, _, _)| *i == index) {
        if let Some(meaning) = xid::meaning(code).filter(|m| m.of_the_gpu) {
            counted |= xid::is_fatal(code);
            let severity = if xid::is_fatal(code) {
                Severity::Critical
            } else if code == 63 {
                Severity::Info
            } else {
                Severity::Warning
            };
            signals.push((
                severity,
                format!("kernel log, Xid {code} ({}): {line}", meaning.what),
            ));
        }
    }
    let severity = signals.iter().map(|(s, _)| *s).max()?;
    let condemned = e.condemned_gpus().contains(&index);
    let pairs = e
        .peer_failures()
        .iter()
        .filter(|p| p.touches(index))
        .count();
    // Nothing but copies with the host failed: the card is one suspect of several.
    let host_link = with_host
        && silent.is_none()
        && !failed_alone
        && !counted
        && gpu.remapped_rows.known().is_none_or(|rows| !rows.failed);
    let own_right = e
        .of_gpu(index)
        .any(|r| r.case.mechanism == "memory" && r.outcome.is_intact());
    let mut because = format!("GPU{index} ");
    because.push_str(if silent.is_some() {
        "does not answer NVML: it is wedged"
    } else if host_link && own_right {
        "is right in its own memory and wrong in copies with the host, no other GPU involved"
    } else if host_link {
        "is wrong in copies with the host, no other GPU involved"
    } else if failed_alone {
        "fails with no other GPU involved"
    } else if condemned {
        "reported errors after which it is not to be trusted"
    } else {
        "reported errors of its own; it was right when tried, or was not tried"
    });
    if condemned && pairs > 0 {
        because.push_str(&format!(
            "; {pairs} broken pairs that touch it are not blamed on the fabric"
        ));
    }
    // Its own kernel found its own memory wrong, more than once, or the hardware said so itself.
    let confidence = match (counted, failed_alone, wrong_attempts) {
        (true, ..) | (_, true, 2..) => Confidence::Established,
        _ => Confidence::Probable,
    };
    let mut finding = CAUSE.indicts(severity, confidence, because);
    finding.evidence = signals.into_iter().map(|(_, line)| line).collect();
    finding.gpus = vec![index];
    let own = gpu
        .pci
        .known()
        .map_or_else(|| format!("{index}"), ToString::to_string);
    finding.fix = vec![
        format!("take GPU{index} ({own}) out of service; 'sudo nvidia-smi -r -i {own}' with no process on it applies pending remaps, then 'peerproof qualify' again"),
        "if it comes back: another slot or riser with the same card tells card from slot; then replace the part that moved with the fault".to_string(),
    ];
    if silent.is_some() {
        finding.title = "a GPU does not answer".to_string();
        finding.fix = vec![
            format!("serve nothing on GPU{index} ({own}); end what still uses it, then 'sudo nvidia-smi -r -i {own}'; where that does not return either, restart the host"),
            "'dmesg' may say why (Xid, 'fallen off the bus'); if it comes back: another slot or riser with the same card tells card from slot".to_string(),
        ];
        finding.next_test = Some(format!("timeout 60 nvidia-smi -q -i {own}"));
        return Some(finding);
    }
    if host_link {
        finding.title = "host link or host memory suspected".to_string();
        finding.fix = vec![
            format!("serve nothing on GPU{index} ({own}) until this is settled: no backend avoids the host link; do not replace the GPU first, because its link, its slot and host memory fit as well"),
            "another slot or riser with the same card; test host memory (EDAC counters, memtest); check what the IOMMU does ('dmesg | grep -iE \"iommu|AER\"'); then 'peerproof qualify' again".to_string(),
        ];
        finding.next_test = Some(
            "sudo dmesg | grep -iE 'AER|EDAC|Machine check|IOMMU|Xid' (link and memory count their errors there), then the same card in another slot: what moves with it is the card's"
                .to_string(),
        );
        return Some(finding);
    }
    finding.next_test = Some(if failed_alone {
        format!("nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE -i {own}")
    } else {
        format!("peerproof qualify --gpus {own}")
    });
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, gpu_address, pair, wrong};
    use super::*;
    use crate::model::{
        case::{Outcome, Subject, WrongKind},
        reading::{Absence, Reading},
        snapshot::{GpuObservation, Observation, RemappedRows},
    };

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    #[test]
    fn a_gpu_that_fails_alone_is_the_finding_and_its_pairs_are_not_blamed() {
        let mut host = Host::root_complex(3);
        host.direct_wrong(WrongKind::Zeroed, |p| p.touches(GpuIndex(2)));
        host.iommu_all("DMA");
        host.put(
            Subject::Gpu(GpuIndex(2)),
            "memory",
            Rung::Alone,
            wrong(WrongKind::Flipped),
        );
        let found = judged(&host);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].gpus, [GpuIndex(2)]);
        assert_eq!(found[0].confidence, Confidence::Established);
        assert!(found[0].because.contains("4 broken pairs"));
        assert!(host.judge(|e| e.fabric_failures().is_empty()));
    }

    #[test]
    fn xid_79_condemns_and_xid_31_is_a_program() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        let line = |code: u32| {
            let text = format!("NVRM: Xid (PCI:{}): {code}, pid=1, GPU", gpu_address(1));
            Reading::Known(vec![text.replace(".0):", "):")])
        };
        host.snapshot.host.kernel_log = line(79);
        let found = judged(&host);
        assert_eq!(found[0].gpus, [GpuIndex(1)]);
        assert_eq!(found[0].severity, Severity::Critical);
        host.snapshot.host.kernel_log = line(31);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }

    #[test]
    fn memory_counters_warn_and_a_failed_remap_condemns() {
        let mut host = Host::root_complex(2);
        host.snapshot.gpus[0].ecc_uncorrected = Reading::Known(2);
        assert_eq!(judged(&host)[0].severity, Severity::Warning);
        host.snapshot.gpus[0].remapped_rows = Reading::Known(RemappedRows {
            correctable: 0,
            uncorrectable: 1,
            pending: false,
            failed: true,
        });
        assert_eq!(judged(&host)[0].severity, Severity::Critical);
        host.direct_wrong(WrongKind::Zeroed, |p| p == pair(0, 1));
        assert!(host.judge(|e| e.fabric_failures().is_empty()));
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_wedged_and_where_none_does_it_is_the_driver() {
        let no_answer = || Absence::NoAnswer("15 s".to_string());
        let mut host = Host::root_complex(3);
        host.all_intact();
        host.snapshot.gpus[1].nvml_index = Reading::Absent(no_answer());
        let found = judged(&host);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].gpus, [GpuIndex(1)]);
        assert_eq!(found[0].severity, Severity::Critical);
        assert!(found[0].evidence[0].contains("no answer within 15 s"));
        // That it cannot be asked does not make its pairs' faults its own.
        assert!(host.judge(|e| e.condemned_gpus().is_empty()));

        // The same when it stops during the run.
        host.snapshot.gpus[1].nvml_index = Reading::Known(1);
        let seen = |answers: bool| Observation {
            moment: "after a hang".to_string(),
            gpus: vec![GpuObservation {
                utilization_percent: match answers {
                    true => Reading::Known(0),
                    false => Reading::Absent(no_answer()),
                },
                ..GpuObservation::default()
            }],
            bridges: Vec::new(),
        };
        host.observations = vec![seen(true), seen(false)];
        let found = judged(&host);
        assert_eq!(found[0].gpus, [GpuIndex(0)]);
        assert!(found[0].evidence[0].contains("after a hang"));

        for gpu in &mut host.snapshot.gpus {
            gpu.nvml_index = Reading::Absent(no_answer());
        }
        let found = judged(&host);
        assert_eq!((found.len(), found[0].gpus.len()), (1, 3));
        assert!(found[0].because.contains("the driver is stuck"));
    }

    #[test]
    fn sound_gpus_are_cleared() {
        let mut host = Host::root_complex(1);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
        host.put(
            Subject::Gpu(GpuIndex(0)),
            "memory",
            Rung::Alone,
            Outcome::Intact,
        );
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn two_processes_on_one_gpu_that_cannot_share_memory_do_not_condemn_it() {
        let mut host = Host::root_complex(1);
        host.put(
            Subject::Gpu(GpuIndex(0)),
            "memory",
            Rung::Alone,
            Outcome::Intact,
        );
        let outcome = Outcome::Died {
            how: "exit status 70".into(),
        };
        host.put(Subject::Gpu(GpuIndex(0)), "ipc", Rung::Shared, outcome);
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
        assert!(host.judge(|e| e.condemned_gpus().is_empty()));
    }

    /// Reports of kernels come back over the host link, too: where that flips bits, they say nothing of the GPU.
    #[test]
    fn what_came_back_over_a_bad_link_is_no_word_against_the_gpu() {
        let mut host = Host::root_complex(1);
        let gpu = Subject::Gpu(GpuIndex(0));
        host.put(
            gpu,
            "reduce-same-gpu",
            Rung::Alone,
            wrong(WrongKind::Dropped),
        );
        let alone = judged(&host);
        assert_eq!(alone[0].title, CAUSE.title);
        host.put(gpu, "host-read", Rung::Alone, wrong(WrongKind::Flipped));
        let found = judged(&host);
        assert_eq!(found[0].title, "host link or host memory suspected");
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert!(found[0].fix[0].contains("do not replace the GPU first"));
        let next = found[0].next_test.as_ref().unwrap();
        assert!(
            next.contains("EDAC") && next.contains("another slot"),
            "{next}"
        );
        // The kernel's count of its own memory came over the link as well: it is zero, or the host's copy says otherwise.
        for (units, agree) in [(0, true), (64, false)] {
            let mut differ = wrong(WrongKind::Mixed);
            if let Outcome::Corrupt(c) = &mut differ {
                (c.wrong_units, c.owner_views_agree) = (units, Some(agree));
            }
            host.put(gpu, "memory", Rung::Alone, differ);
            assert_eq!(judged(&host)[0].title, "host link or host memory suspected");
        }
        // Where both find the same, it is another matter, whatever the link does.
        host.put(gpu, "memory", Rung::Alone, wrong(WrongKind::Flipped));
        assert_eq!(judged(&host)[0].title, CAUSE.title);
    }

    #[test]
    fn copies_with_the_host_suspect_the_link_before_the_gpu() {
        let only_the_copy = || {
            let mut outcome = wrong(WrongKind::Flipped);
            if let Outcome::Corrupt(c) = &mut outcome {
                (c.wrong_units, c.owner_views_agree) = (0, Some(false));
            }
            outcome
        };
        for (mechanism, outcome) in [
            ("host-write", wrong(WrongKind::Flipped)),
            ("host-read", Outcome::TimedOut { after_ms: 5000 }),
            ("pinned-host", wrong(WrongKind::Stale)),
            ("memory", only_the_copy()),
        ] {
            let mut host = Host::root_complex(2);
            host.put(
                Subject::Gpu(GpuIndex(1)),
                mechanism,
                Rung::Alone,
                outcome.clone(),
            );
            let found = judged(&host);
            assert_eq!(found[0].title, "host link or host memory suspected");
            assert_eq!(found[0].confidence, Confidence::Probable, "{mechanism}");
            assert!(found[0].fix[0].contains("do not replace the GPU first"));
            assert_eq!(found[0].severity, Severity::Critical);
            // With its own memory wrong by its own kernel the GPU is the finding.
            host.put(
                Subject::Gpu(GpuIndex(1)),
                "memory",
                Rung::Alone,
                wrong(WrongKind::Flipped),
            );
            let found = judged(&host);
            assert_eq!(found[0].title, CAUSE.title);
            assert_eq!(found[0].confidence, Confidence::Established);
        }
    }
}
