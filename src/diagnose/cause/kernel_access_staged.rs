//! Kernels reach peer memory many times slower than copy engines do (decision row D11): the driver takes their accesses
//! through system memory. Data is right; an all-reduce by kernels is slower than NCCL's copies by that factor.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, WantedCase, requalify},
};
use crate::{
    model::{
        case::{Record, Rung},
        finding::{Confidence, Finding, Judgement, Severity},
        measurement::Unit,
        pair::OrderedPair,
    },
    stats::median,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "kernel-access-staged",
    title: "kernels' access to peer memory goes through the host",
    judge,
    wants: Some(wants),
};

/// A kernel below this share of a copy's rate is a finding. Fifteen times was seen in the field; kernels on sound paths
/// stay above half.
const SHARE: f64 = 0.2;
/// Below this size a launch costs more than the bytes, for either executor.
const COMPARED_FROM: u64 = 64 << 10;
/// The size of the published comparison.
const COMPARED_AT: u64 = 64 << 10;

/// Rates of one pair at one size, in GB/s: by a kernel, by a copy engine.
struct Compared<'a> {
    kernel: (&'a Record, f64),
    copy: (&'a Record, f64),
}

fn rate(record: &Record) -> Option<f64> {
    let rate = record.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
    let counted = record.alone && record.outcome.is_intact();
    counted.then(|| median(&rate.samples)).flatten()
}

fn compare<'a>(e: &Evidence<'a>, pair: OrderedPair) -> Vec<Compared<'a>> {
    let rated = |rung: Rung| {
        e.of_pair(pair)
            .filter(move |r| r.case.rung == rung && r.case.bytes >= COMPARED_FROM)
            .filter_map(|r| Some((r, rate(r)?)))
    };
    let copies: Vec<(&Record, f64)> = rated(Rung::Copied).collect();
    rated(Rung::Touched)
        .filter_map(|kernel| {
            let copy = copies
                .iter()
                .copied()
                .filter(|(r, _)| r.case.bytes == kernel.0.case.bytes)
                .max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(Compared { kernel, copy })
        })
        .collect()
}

fn pcie_pairs(e: &Evidence) -> Vec<OrderedPair> {
    let pairs = e.peer_passes().iter().copied();
    pairs.filter(|p| !e.has_nvlink(*p)).collect()
}

fn wants(e: &Evidence) -> Vec<WantedCase> {
    let (_, slow) = sort(e);
    let first = slow.into_iter().take(ASKED_PAIRS).map(|(pair, _)| pair);
    first
        .flat_map(|pair| {
            ["sm-load", "ce-pull"].map(|mechanism| WantedCase {
                bytes: Some(COMPARED_AT),
                timed: true,
                ..CAUSE.wants(pair, mechanism)
            })
        })
        .collect()
}

/// How many pairs could be compared, and those whose kernels are slow at every size.
fn sort<'a>(e: &Evidence<'a>) -> (usize, Vec<(OrderedPair, Vec<Compared<'a>>)>) {
    let mut compared = 0;
    let mut slow = Vec::new();
    for pair in pcie_pairs(e) {
        let here = compare(e, pair);
        compared += usize::from(!here.is_empty());
        let all = here.iter().all(|c| c.kernel.1 < SHARE * c.copy.1);
        if all && !here.is_empty() {
            slow.push((pair, here));
        }
    }
    (compared, slow)
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let (compared, slow) = sort(e);
    if slow.is_empty() {
        return vec![if compared > 0 {
            CAUSE.says(
                Judgement::Cleared,
                "kernels reach peer memory at a rate comparable to copies",
            )
        } else {
            CAUSE.says(
                Judgement::NotApplicable,
                "no pair over PCIe has rates of a kernel and of a copy of the same size",
            )
        }];
    }
    let settled = slow.iter().all(|(_, here)| {
        here.iter()
            .any(|c| c.kernel.0.case.bytes == COMPARED_AT && c.copy.0.case.bytes == COMPARED_AT)
    });
    let pairs: Vec<OrderedPair> = slow.iter().map(|(pair, _)| *pair).collect();
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if settled {
            Confidence::Established
        } else {
            Confidence::Probable
        },
        format!(
            "kernels move the bytes of {} at less than a fifth of a copy's rate: the driver takes their accesses through system memory. Data is right; an all-reduce by kernels would be slower than NCCL",
            name_pairs(&pairs)
        ),
    );
    const SHOWN: usize = 4;
    finding.evidence = slow
        .iter()
        .flat_map(|(pair, here)| here.iter().take(1).map(move |c| (pair, c)))
        .take(SHOWN)
        .map(|(pair, c)| {
            format!(
                "{pair}: {} {:.2} GB/s, {} {:.2} GB/s ({} bytes, alone)",
                c.kernel.0.case.mechanism,
                c.kernel.1,
                c.copy.0.case.mechanism,
                c.copy.1,
                c.copy.0.case.bytes
            )
        })
        .collect();
    finding.fix = vec![
        "--disable-custom-all-reduce (vLLM, SGLang): NCCL is the faster one here".to_string(),
        "at your own risk, a community setting for direct-attached cards: 'options nvidia NVreg_RegistryDwords=\"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1\"' in /etc/modprobe.d, initramfs rebuilt, reboot. Warning: registry words are unsupported; qualify all pairs again, and take them out if one is wrong".to_string(),
    ];
    finding.next_test = Some(requalify(&pairs, &["ce-pull", "sm-load"]));
    finding.pairs = pairs;
    vec![finding]
}
