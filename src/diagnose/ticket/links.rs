//! What a kernel log says of PCIe links beyond the cause link-errors, which judges the links of GPUs that are shown: whether the link
//! of a lost GPU failed first, and errors of devices and ports of which no text shows that a GPU is there.

use super::answers::logged;
use crate::diagnose::cause;
use crate::model::{
    aer_line::{AerLine, Weight},
    finding::Confidence,
    pci::PciAddress,
    snapshot::Snapshot,
    ticket::{Citation, Conclusion, Ticket},
    xid::Xid,
};

/// What the log says of PCIe links beside a GPU that was missed, each with a line and its place.
pub(super) enum LinkBefore {
    /// An error that no retry corrects came first.
    Failed(String),
    /// Corrected ones came first.
    Corrected(String),
    /// There are errors, after the loss.
    After(String),
    /// No line.
    Silent,
}

/// Errors of the GPU that was missed count; where no line names it, those of all ports.
pub(super) fn and_loss(ticket: &Ticket) -> LinkBefore {
    let lost = logged(ticket).find(|(seen, _)| seen.code == 79);
    let lost = lost.map(|(seen, _)| seen.gpu);
    let log = ticket.citations.iter().filter(|c| c.about == "kernel log");
    let mut errors: Vec<(AerLine, bool, &Citation)> = Vec::new();
    let mut missed = false;
    for citation in log {
        missed |= Xid::parse(&citation.value).is_some_and(|xid| xid.code == 79);
        errors.extend(AerLine::parse(&citation.value).map(|read| (read, missed, citation)));
    }
    let own = |read: &AerLine| Some(read.device) == lost || Some(read.reporter) == lost;
    if errors.iter().any(|(read, ..)| own(read)) {
        let ports: Vec<PciAddress> = errors
            .iter()
            .filter(|(read, ..)| own(read))
            .map(|(read, ..)| read.reporter)
            .collect();
        errors.retain(|(read, ..)| own(read) || ports.contains(&read.device));
    }
    let told =
        |found: &(AerLine, bool, &Citation)| format!("{} ({})", found.2.value, found.2.source);
    let mut before = errors.iter().filter(|(_, after, _)| !after);
    if let Some(failed) = before
        .clone()
        .find(|(read, ..)| read.weight != Weight::Corrected)
    {
        return LinkBefore::Failed(told(failed));
    }
    match (before.next(), errors.first()) {
        (Some(corrected), _) => LinkBefore::Corrected(told(corrected)),
        (None, Some(after)) => LinkBefore::After(told(after)),
        (None, None) => LinkBefore::Silent,
    }
}

/// Errors of PCIe links that the cause link-errors cannot judge, because no text shows the GPU: of devices that a line itself names
/// NVIDIA's, and of ports of which it is open whether a GPU lies below.
pub(super) fn of_unknown(snapshot: &Snapshot, ticket: &Ticket) -> Vec<Conclusion> {
    let log = || ticket.citations.iter().filter(|c| c.about == "kernel log");
    let lines = cause::logged(snapshot, log().map(|c| c.value.as_str()));
    let open: Vec<(AerLine, &Citation)> = log()
        .filter(|c| AerLine::parse(&c.value).is_some())
        .zip(lines)
        .filter(|(_, l)| l.gpus.is_empty())
        .map(|(citation, l)| (l.read, citation))
        .collect();
    let mut nvidia: Vec<PciAddress> = Vec::new();
    let named = ticket.citations.iter().filter(|c| c.about == "PCIe device");
    nvidia.extend(named.filter_map(|c| c.value.split(' ').next()?.parse::<PciAddress>().ok()));
    nvidia.extend(
        open.iter()
            .filter(|(l, _)| l.of_nvidia)
            .map(|(l, _)| l.reporter),
    );
    nvidia.sort_unstable();
    nvidia.dedup();
    let mut out = Vec::new();
    // A port that passed on a device's message speaks of its link, too.
    let mut ports: Vec<PciAddress> = Vec::new();
    for device in nvidia.iter().take(8) {
        let above: Vec<PciAddress> = open
            .iter()
            .filter(|(l, _)| l.device == *device)
            .map(|(l, _)| l.reporter)
            .collect();
        let of_device: Vec<&(AerLine, &Citation)> = open
            .iter()
            .filter(|(l, _)| l.device == *device || above.contains(&l.device))
            .collect();
        ports.extend(above);
        out.extend(link(
            &format!("{device}, a device of NVIDIA"),
            Confidence::Probable,
            &of_device,
        ));
    }
    // All ports above all GPUs are known, so that any other is none of theirs.
    let whole = !snapshot.gpus.is_empty()
        && snapshot.gpus.iter().all(|gpu| {
            gpu.pci.known().is_some() && gpu.bridge_chain.known().is_some_and(|c| !c.is_empty())
        });
    let rest: Vec<&(AerLine, &Citation)> = open
        .iter()
        .filter(|(l, _)| !nvidia.contains(&l.device) && !ports.contains(&l.device))
        .collect();
    if let Some((first, _)) = rest.first().filter(|_| !whole) {
        let who = format!(
            "{}; whether a GPU is at or below it, these texts do not show ('lspci -tv' does)",
            first.device
        );
        let found = link(&who, Confidence::Possible, &rest);
        out.extend(found);
    }
    out
}

fn link(who: &str, most: Confidence, lines: &[&(AerLine, &Citation)]) -> Option<Conclusion> {
    let worst = lines.iter().map(|(l, _)| l.weight).max()?;
    let of_worst = lines.iter().filter(|(l, _)| l.weight == worst);
    let times = cause::events(of_worst.clone().map(|(l, _)| l));
    let what = match worst {
        Weight::Corrected if times == 1 => "an error that was corrected".to_string(),
        Weight::Corrected => format!("{times} errors that were corrected"),
        Weight::Uncorrected => "errors that no retry corrects".to_string(),
        Weight::Contained => "an error after which its port cut it off (DPC)".to_string(),
        Weight::Down => "that it went down".to_string(),
    };
    Some(Conclusion {
        title: format!("the kernel logged of the PCIe link of {who}: {what}"),
        because: cause::meaning(worst).to_string(),
        evidence: of_worst
            .take(3)
            .map(|(_, c)| format!("{} ({})", c.value, c.source))
            .collect(),
        fix: vec![
            cause::RESEAT.to_string(),
            "sudo lspci -vvv: whether the link has its width and speed (LnkSta against LnkCap), and which ports lie above".to_string(),
        ],
        cause: None,
        confidence: Some(most),
    })
}
