//! NVLinks that are down or count errors (decision row D17): a bridge not fully seated, a lane gone. Compared with GPUs of
//! the same name, because a product may have fewer links than its chip; bridges that join pairs only are no fault.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{Cause, PEERS_OFF},
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::{GpuIndex, OrderedPair},
    snapshot::NvLinkEnd,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "nvlink-degraded",
    title: "NVLinks are down or count errors",
    judge,
    wants: None,
};

/// Errors during one run from which on a link is not healthy. A replay now and then is how the link works.
const ERRORS: u64 = 100;

fn judge(e: &Evidence) -> Vec<Finding> {
    let active = |gpu: GpuIndex| {
        let links = e.snapshot.gpu(gpu)?.nvlinks.known()?;
        Some(links.iter().filter(|l| l.active).count())
    };
    let with_links: Vec<GpuIndex> = e
        .gpus()
        .filter(|(i, _)| active(*i).is_some_and(|n| n > 0))
        .map(|(i, _)| i)
        .collect();
    let broken: Vec<OrderedPair> = e
        .path_failures()
        .iter()
        .copied()
        .filter(|p| e.has_nvlink(*p) && !e.copies_right(*p))
        .collect();
    if with_links.is_empty() && broken.is_empty() {
        return vec![CAUSE.says(Judgement::NotApplicable, "no active NVLink is known")];
    }
    let mut signals: BTreeMap<GpuIndex, Vec<String>> = BTreeMap::new();
    for (index, most) in below_siblings(e, &active) {
        let own = active(index).unwrap_or_default();
        let down: Vec<String> = e
            .snapshot
            .gpu(index)
            .and_then(|g| g.nvlinks.known())
            .into_iter()
            .flatten()
            .filter(|l| !l.active)
            .map(|l| l.link.to_string())
            .collect();
        signals.entry(index).or_default().push(format!(
            "GPU{index}: {own} active NVLinks, {most} on its like{}",
            if down.is_empty() {
                String::new()
            } else {
                format!("; down: {}", down.join(", "))
            }
        ));
    }
    // A link that is down says little by itself, and more where transfers over its neighbours are wrong.
    for index in broken.iter().flat_map(|p| [p.source, p.destination]) {
        let links = e.snapshot.gpu(index).and_then(|g| g.nvlinks.known());
        let down = links.map_or(0, |l| l.iter().filter(|l| !l.active).count());
        if down > 0 && !signals.contains_key(&index) {
            let own = active(index).unwrap_or_default();
            signals.insert(
                index,
                vec![format!("GPU{index}: {own} NVLinks active, {down} down")],
            );
        }
    }
    let mut risen = false;
    for (index, errors) in errors_risen(e) {
        if errors >= ERRORS {
            risen = true;
            signals.entry(index).or_default().push(format!(
                "GPU{index}: NVLink replay, recovery and CRC errors rose by {errors} during this run"
            ));
        }
    }
    // By itself an Xid of some time ago is a matter of gpu-itself.
    for (index, _, line) in e.xids().into_iter().filter(|(_, code, _)| *code == 74) {
        if broken.iter().any(|p| p.touches(index)) || signals.contains_key(&index) {
            let line = format!("kernel log: {line}");
            signals.entry(index).or_default().push(line);
        }
    }
    if signals.is_empty() {
        return vec![if broken.is_empty() {
            CAUSE.says(
                Judgement::Cleared,
                "GPUs of one name have equally many active NVLinks, and no error counter rose",
            )
        } else {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                format!(
                    "direct transfers over NVLink of {} {}, and no link is down and no counter rose as far as could be read",
                    name_pairs(&broken),
                    fate(e, &broken)
                ),
            );
            finding.next_test = Some("nvidia-smi nvlink -s; nvidia-smi nvlink -e".into());
            finding.fix = vec![keep_off(&broken)];
            finding.pairs = broken;
            finding
        }];
    }
    let named =
        |p: &OrderedPair| signals.contains_key(&p.source) || signals.contains_key(&p.destination);
    let pairs: Vec<OrderedPair> = broken.into_iter().filter(named).collect();
    let (severity, tail) = if pairs.is_empty() {
        (
            Severity::Warning,
            "slower than its like, or about to be".to_string(),
        )
    } else {
        (
            Severity::Critical,
            format!(
                "and direct transfers of {} {}",
                name_pairs(&pairs),
                fate(e, &pairs)
            ),
        )
    };
    let gpus: Vec<GpuIndex> = signals.keys().copied().collect();
    let names: Vec<String> = gpus.iter().map(|g| format!("GPU{g}")).collect();
    let mut finding = CAUSE.indicts(
        severity,
        // Counters before and after a run with transfers are the discriminating test.
        if risen {
            Confidence::Established
        } else {
            Confidence::Probable
        },
        format!("{}: NVLink is degraded, {tail}", names.join(", ")),
    );
    finding.evidence = signals.into_values().flatten().collect();
    finding.fix = vec![
        "bridges: power off, reseat the NVLink bridge, then swap it with another pair's; the fault moves with the bridge or stays with the GPU".to_string(),
        "baseboards (SXM): the tray's vendor; until then leave the GPU out of groups that span it".to_string(),
    ];
    if !pairs.is_empty() {
        finding.fix.push(keep_off(&pairs));
    }
    finding.next_test =
        Some("nvidia-smi nvlink -s; nvidia-smi nvlink -e (before and after a run)".into());
    finding.gpus = gpus;
    finding.pairs = pairs;
    vec![finding]
}

/// What became of the direct transfers of these pairs, in words: a hang is not wrong data.
fn fate(e: &Evidence, pairs: &[OrderedPair]) -> &'static str {
    let mut failed = pairs.iter().flat_map(|p| e.peer_cases(*p));
    let (mut wrong, mut ended) = (false, false);
    for record in failed.by_ref().filter(|r| r.outcome.is_failure()) {
        match record.outcome.corruption() {
            Some(_) => wrong = true,
            None => ended = true,
        }
    }
    match (wrong, ended) {
        (true, true) => "are wrong, or hang or fail",
        (false, true) => "hang or fail",
        _ => "are wrong",
    }
}

/// What to do with a link that delivers wrong bytes, whatever makes it do so.
fn keep_off(pairs: &[OrderedPair]) -> String {
    format!(
        "until 'peerproof qualify' passes keep traffic off {}: serve on other GPUs (CUDA_VISIBLE_DEVICES), or NCCL_NVLS_ENABLE=0 with {PEERS_OFF}",
        name_pairs(pairs)
    )
}

/// GPUs with fewer active links than the most of their name. Without NVSwitch a GPU with none is simply not bridged.
fn below_siblings(
    e: &Evidence,
    active: &dyn Fn(GpuIndex) -> Option<usize>,
) -> Vec<(GpuIndex, usize)> {
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    let mut names: BTreeMap<GpuIndex, &str> = BTreeMap::new();
    for (index, gpu) in e.gpus() {
        if let (Some(name), Some(count)) = (gpu.name.known(), active(index)) {
            names.insert(index, name);
            let best = most.entry(name).or_default();
            *best = (*best).max(count);
        }
    }
    let switched: BTreeSet<&str> = e
        .gpus()
        .filter(|(_, g)| {
            let mut links = g.nvlinks.known().into_iter().flatten();
            links.any(|l| l.remote_kind == NvLinkEnd::Switch)
        })
        .filter_map(|(i, _)| names.get(&i).copied())
        .collect();
    names
        .iter()
        .filter_map(|(index, name)| {
            let (own, best) = (active(*index)?, *most.get(name)?);
            let fewer = own < best && (own > 0 || switched.contains(name));
            fewer.then_some((*index, best))
        })
        .collect()
}

/// Rise of each GPU's counters between the first and the last look.
fn errors_risen(e: &Evidence) -> Vec<(GpuIndex, u64)> {
    let (Some(first), Some(last)) = (e.observations.first(), e.observations.last()) else {
        return Vec::new();
    };
    e.gpus()
        .filter_map(|(i, _)| {
            let before = first.gpus.get(i.at())?.nvlink_errors.known()?;
            let after = last.gpus.get(i.at())?.nvlink_errors.known()?;
            Some((i, after.saturating_sub(*before)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::{case::WrongKind, reading::Reading, snapshot::NvLink};

    fn link(number: u32, active: bool) -> NvLink {
        NvLink {
            link: number,
            active,
            version: Some(4),
            raw_gb_per_s: Some(26.562),
            remote: None,
            remote_kind: NvLinkEnd::Switch,
            errors: None,
        }
    }

    /// Four GPUs of 18 links each; those of GPU0 in `down` are not up.
    fn host(down: &[u32]) -> Host {
        let mut host = Host::nvswitch(4);
        host.all_intact();
        for (at, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
            let links = (0..18).map(|n| link(n, at > 0 || !down.contains(&n)));
            gpu.nvlinks = Reading::Known(links.collect());
        }
        host
    }

    fn judged(host: &Host) -> Finding {
        let mut all = host.judge(judge);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Wrong bytes over NVLink: what keeps traffic off the pair is said whether or not a link shows why.
    #[test]
    fn a_broken_pair_is_kept_off_whatever_its_links_show() {
        let mut silent = host(&[]);
        silent.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
        let found = judged(&silent);
        assert_eq!(found.judgement, Judgement::CannotTell);
        assert_eq!(found.pairs, [pair(0, 1)]);
        let mut degraded = host(&[3, 5]);
        degraded.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
        let held = judged(&degraded);
        assert_eq!(held.judgement, Judgement::Indicted);
        assert_eq!(held.severity, Severity::Critical);
        assert!(held.evidence[0].contains("16 active NVLinks, 18 on its like; down: 3, 5"));
        for finding in [found, held] {
            let kept = finding.fix.iter().find(|f| f.starts_with("until"));
            let kept = kept.unwrap_or_else(|| panic!("{:?}", finding.fix));
            for words in ["0->1", "NCCL_P2P_DISABLE=1", "NCCL_NVLS_ENABLE=0"] {
                assert!(kept.contains(words), "{words}: {kept}");
            }
        }
    }

    #[test]
    fn fewer_links_with_right_bytes_keep_the_pair_in_use() {
        let found = judged(&host(&[3]));
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.confidence, Confidence::Probable);
        assert!(!found.fix.iter().any(|f| f.contains("NCCL_P2P_DISABLE")));
        assert_eq!(judged(&host(&[])).judgement, Judgement::Cleared);
    }
}
