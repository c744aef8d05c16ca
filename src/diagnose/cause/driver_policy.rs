//! The driver does not offer peer access (decision rows D5 to D8), or offers it and then refuses (D18, D19, D21). A
//! refusal by product policy is not a fault: bytes go through the host. A claim of OK that the driver then refuses is.

use super::super::{
    evidence::{Evidence, PeerClaim, name_pairs},
    weigh::{Cause, PEERS_OFF},
};
use crate::model::{
    case::Outcome,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
    registry::{Place, RegistryWord, removal},
};
use std::collections::BTreeMap;

pub(crate) const CAUSE: Cause = Cause {
    id: "driver-policy",
    title: "the driver does not offer peer access",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let count = e.snapshot.gpus.len() as u32;
    if count < 2 {
        return vec![CAUSE.says(Judgement::NotApplicable, "fewer than two GPUs")];
    }
    let mut refused: BTreeMap<String, Vec<OrderedPair>> = BTreeMap::new();
    let mut broken_promise: BTreeMap<u32, Vec<OrderedPair>> = BTreeMap::new();
    let mut unknown = 0;
    for pair in OrderedPair::all(count) {
        match e.claim(pair) {
            PeerClaim::Refused(status) => refused.entry(status).or_default().push(pair),
            PeerClaim::Ok => {
                if let Some(Outcome::Refused { code, .. }) = e.refused(pair).map(|r| &r.outcome) {
                    broken_promise.entry(*code).or_default().push(pair);
                }
            }
            PeerClaim::Unknown => unknown += 1,
        }
    }
    let total = (count * (count - 1)) as usize;
    let mut findings: Vec<Finding> = broken_promise
        .into_iter()
        .map(|(code, pairs)| contradiction(e, code, pairs))
        .collect();
    findings.extend(
        refused
            .into_iter()
            .map(|(status, pairs)| policy(e, &status, pairs, total)),
    );
    if findings.is_empty() {
        findings.push(if unknown == total {
            CAUSE.says(
                Judgement::CannotTell,
                "what the driver offers for these pairs was not read",
            )
        } else {
            offered(e)
        });
    }
    findings
}

/// A registry word that makes the driver offer peers whatever it knows of the chipset, with its place. It asserts; nothing delivers for it.
pub(super) fn asserted(e: &Evidence) -> Option<(String, String)> {
    let words = RegistryWord::of(e.snapshot);
    // What a file asks for did not make the claims that were read, where the loaded module's own words are known.
    let params = e.snapshot.driver.params.known().into_iter().flatten();
    let loaded = params.into_iter().any(|(name, _)| name == "RegistryDwords");
    let mut holding = words
        .into_iter()
        .filter(|w| w.place == Place::InForce || !loaded);
    let word = holding.find(RegistryWord::asserts_peers)?;
    let evidence = format!("{}: {}", word.place.words(), word.text);
    Some((word.text, evidence))
}

fn offered(e: &Evidence) -> Finding {
    match asserted(e) {
        Some((word, evidence)) => {
            let mut finding = CAUSE.says(
                Judgement::Cleared,
                format!(
                    "the driver offers peer access, because a registry word ({word}) overrides what it knows of the chipset"
                ),
            );
            finding.evidence.push(evidence);
            finding
        }
        None => CAUSE.says(Judgement::Cleared, "the driver offers peer access"),
    }
}

fn contradiction(e: &Evidence, code: u32, pairs: Vec<OrderedPair>) -> Finding {
    let (why, fix) = match code {
        205 => (
            "the mapping could not be made (205): BAR1 of a patched driver is not aligned as peers need it",
            format!(
                "leave peer access off on this host: {PEERS_OFF}; look for 'not aligned' in 'sudo dmesg | grep NVRM'"
            ),
        ),
        711 => (
            "peer mappings are exhausted (711): at most eight peers a GPU without NVSwitch, other processes included",
            "end other processes that hold peer mappings, or choose fewer GPUs with --gpus"
                .to_string(),
        ),
        217 => (
            "the driver says that these two GPUs have no peer access (217)",
            format!("use a backend that goes through the host: {PEERS_OFF}"),
        ),
        _ => (
            "the driver refused",
            format!("use a backend that goes through the host: {PEERS_OFF}"),
        ),
    };
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        Confidence::Established,
        format!(
            "NVML advertises OK for {}, and enabling peer access was refused: {why}",
            name_pairs(&pairs)
        ),
    );
    if let Some((pair, record)) = pairs.first().and_then(|p| e.refused(*p).map(|r| (*p, r)))
        && let Outcome::Refused { api, code, name } = &record.outcome
    {
        finding.evidence.push(format!(
            "{pair}: {api} returned {code} ({name}); NVML says OK"
        ));
    }
    if let Some(lines) = e.log_lines(&["not aligned", "IOMMU mapping failed"]) {
        finding
            .evidence
            .extend(lines.iter().take(2).map(|l| format!("kernel log: {l}")));
    }
    finding.fix = vec![fix];
    finding.next_test = Some("nvidia-smi topo -p2p w".into());
    finding.pairs = pairs;
    finding
}

fn policy(e: &Evidence, status: &str, pairs: Vec<OrderedPair>, total: usize) -> Finding {
    let all = pairs.len() == total;
    let geforce = pairs.iter().all(|p| {
        [p.source, p.destination].iter().all(|g| {
            e.snapshot
                .gpu(*g)
                .and_then(|gpu| gpu.name.known())
                .is_some_and(|n| n.contains("GeForce") || n.contains("TITAN"))
        })
    });
    let guest = e.is_guest() == Some(true);
    let tried = pairs.iter().any(|p| e.refused(*p).is_some());
    let confidence = if tried {
        Confidence::Established
    } else {
        Confidence::Probable
    };
    let staged = "use backends that go through the host (NCCL chooses shared memory by itself)";
    let (severity, because, fix) = match status {
        "DR" => (
            Severity::Warning,
            "a registry key of the driver switches peer access off".to_string(),
            removal(&RegistryWord::of(e.snapshot)),
        ),
        "CNS" if guest => (
            Severity::Info,
            "the virtual host bridge is not in the driver's chipset table, as in most guests; no fault of the GPUs".to_string(),
            format!("{staged}; on the hypervisor x-nv-gpudirect-clique makes the driver offer peer access, which then must be proven by 'peerproof qualify': the capability asserts, it does not deliver"),
        ),
        "CNS" | "GNS" if geforce => (
            Severity::Info,
            "product policy: the stock driver offers no PCIe peer access on GeForce GPUs. Not a fault".to_string(),
            format!("{staged}; patched drivers exist, and such hosts are among those whose custom all-reduce returned garbage: not advised"),
        ),
        "TNS" | "CNS" if !all => (
            Severity::Warning,
            "the driver supports peer access on some pairs of this host and not on these: two sockets, or slots of CPU and chipset mixed".to_string(),
            "move the cards to slots of one CPU, or keep groups within the pairs that have peer access ('peerproof map' shows them)".to_string(),
        ),
        "GNS" if !all => (
            Severity::Info,
            "one of the two GPUs of each of these pairs does not support peer access with the other".to_string(),
            staged.to_string(),
        ),
        _ => (
            Severity::Info,
            format!("the driver says {status} for these pairs: peer access does not exist on this combination of GPU, chipset and driver"),
            staged.to_string(),
        ),
    };
    let mut finding = CAUSE.indicts(severity, confidence, because);
    if !all {
        finding.title = "the driver does not offer peer access on some pairs".to_string();
    }
    finding.evidence.push(format!(
        "NVML: {status} for {} of {total} ordered pairs ({})",
        pairs.len(),
        name_pairs(&pairs)
    ));
    if guest {
        let bridges = e.snapshot.host_bridges.iter().filter_map(|b| {
            let chipset = virtual_chipset(b.identity.vendor, b.identity.device)?;
            let (vendor, device) = (b.identity.vendor, b.identity.device);
            Some(format!(
                "host bridge {}: {vendor:04x}:{device:04x} ({chipset})",
                b.pci
            ))
        });
        finding.evidence.extend(bridges.take(2));
    }
    let words = RegistryWord::of(e.snapshot).into_iter();
    finding.evidence.extend(words.map(|w| {
        let (place, text, meaning) = (w.place.words(), &w.text, w.meaning());
        format!("{place}: {text} ({meaning})")
    }));
    finding.fix = vec![fix];
    finding.next_test = (severity > Severity::Info).then(|| "nvidia-smi topo -p2p w".into());
    finding.pairs = pairs;
    finding
}

/// Host bridges that QEMU invents, none of which the driver's chipset table holds.
fn virtual_chipset(vendor: u16, device: u16) -> Option<&'static str> {
    Some(match (vendor, device) {
        (0x8086, 0x29c0) => "QEMU q35",
        (0x8086, 0x1237) => "QEMU i440fx",
        (0x1b36, 0x0008) => "QEMU PCIe host bridge",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair, refusal};
    use super::*;
    use crate::model::reading::Reading;

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    #[test]
    fn geforce_policy_is_no_fault() {
        let mut host = Host::root_complex(2);
        host.name_all("NVIDIA GeForce RTX 5090");
        host.claim_all("GNS");
        host.refused();
        let found = judged(&host);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Info);
        assert_eq!(found[0].confidence, Confidence::Established);
        assert!(found[0].because.contains("Not a fault"));
        assert!(found[0].fix[0].contains("not advised"));
    }

    #[test]
    fn a_registry_key_is_a_warning_with_the_line_to_delete() {
        let mut host = Host::root_complex(2);
        host.claim_all("DR");
        host.snapshot.driver.params =
            Reading::Known(vec![("RegistryDwords".into(), "\"ForceP2P=0\"".into())]);
        let found = judged(&host);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].evidence.iter().any(|l| l.contains("ForceP2P")));
        assert!(found[0].fix[0].contains("modprobe.d"));
    }

    #[test]
    fn a_guest_without_chipset_support_is_told_so() {
        let mut host = Host::root_complex(2);
        host.guest();
        host.claim_all("CNS");
        let found = judged(&host);
        assert_eq!(found[0].severity, Severity::Info);
        assert!(found[0].because.contains("virtual host bridge"));
    }

    #[test]
    fn advertised_and_refused_is_a_contradiction() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set(pair(0, 1), "ce-push", refusal(205));
        let found = judged(&host);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].because.contains("aligned"));
        assert_eq!(found[0].pairs, [pair(0, 1)]);
    }

    #[test]
    fn healthy_hosts_are_cleared_and_silence_cannot_tell() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
        host.snapshot.claims = crate::model::pair::PairTable::new(2);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
        assert_eq!(
            judged(&Host::root_complex(1))[0].judgement,
            Judgement::NotApplicable
        );
    }
}
