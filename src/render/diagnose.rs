//! A diagnosis of pasted texts on one screen: what it is, what to do next, what is certain, what is suspected, what cannot
//! be known. Evidence is cited by file and line. What does not fit is counted, and `-v` shows it.

use super::{
    map::host_words,
    page::{Options, Page, Tone, banner, count, cut, pad},
};
use crate::model::{
    finding::{Confidence, Finding, WARNING},
    report::Grading,
    snapshot::Snapshot,
    ticket::{Conclusion, Diagnosis, Remark, Ticket},
};
use std::io::{self, Write};

/// Rows of a screen, the shell's own prompt left out.
const SCREEN: usize = 39;

/// How much of each is shown.
#[derive(Debug, Clone, Copy)]
struct Limits {
    conclusions: usize,
    suspects: usize,
    evidence: usize,
    fixes: usize,
    lists: usize,
}

const ALL: Limits = Limits {
    conclusions: usize::MAX,
    suspects: usize::MAX,
    evidence: usize::MAX,
    fixes: usize::MAX,
    lists: usize::MAX,
};

/// From much to little.
const STEPS: [Limits; 6] = [
    limits(3, 3, 4, 2, 6),
    limits(3, 3, 3, 1, 4),
    limits(2, 2, 2, 1, 3),
    limits(2, 2, 1, 1, 2),
    limits(1, 1, 1, 1, 1),
    limits(1, 1, 1, 1, 0),
];

const fn limits(
    conclusions: usize,
    suspects: usize,
    evidence: usize,
    fixes: usize,
    lists: usize,
) -> Limits {
    Limits {
        conclusions,
        suspects,
        evidence,
        fixes,
        lists,
    }
}

/// Writes a diagnosis; without `verbose` as much of it as one screen of forty rows holds.
///
/// # Errors
/// Those of the writer.
pub fn write(
    ticket: &Ticket,
    diagnosis: &Diagnosis,
    snapshot: &Snapshot,
    verbose: bool,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let steps: &[Limits] = if verbose { &[ALL] } else { &STEPS };
    let mut text = Vec::new();
    for limits in steps {
        text.clear();
        let mut page = Page::new(&mut text, options);
        whole(ticket, diagnosis, snapshot, *limits, &mut page)?;
        if text.iter().filter(|b| **b == b'\n').count() <= SCREEN {
            break;
        }
    }
    out.write_all(&text)
}

fn whole(
    ticket: &Ticket,
    diagnosis: &Diagnosis,
    snapshot: &Snapshot,
    limits: Limits,
    page: &mut Page<'_>,
) -> io::Result<()> {
    if let Some((word, meaning)) = banner(snapshot.authenticity) {
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Plain, meaning)?;
    }
    head(ticket, diagnosis, snapshot, page)?;
    let mut hidden = apart(ticket, limits, page)?;
    hidden += disagreements(snapshot, limits, page)?;
    hidden += reported(ticket, limits, page)?;
    hidden += conclusions(ticket, diagnosis, snapshot, limits, page)?;
    hidden += suspects(ticket, diagnosis, snapshot, limits, page)?;
    hidden += unknown(diagnosis, limits, page)?;
    hidden += unread(ticket, limits, page)?;
    if limits.lists == usize::MAX {
        read(ticket, page)?;
    } else if hidden > 0 {
        page.labelled(
            Tone::Faint,
            "more  ",
            Tone::Faint,
            &format!("{hidden} more lines of evidence, fixes and gaps: -v"),
        )?;
    }
    Ok(())
}

fn head(
    ticket: &Ticket,
    diagnosis: &Diagnosis,
    snapshot: &Snapshot,
    page: &mut Page<'_>,
) -> io::Result<()> {
    let verdict = &diagnosis.verdict;
    let word = verdict.grading.word();
    let width = word.len().max(5) + 1;
    let tone = match verdict.grading {
        Grading::Pass => Tone::Good,
        Grading::Fail => Tone::Bad,
        Grading::Warn | Grading::Inconclusive => Tone::Doubt,
    };
    page.labelled(tone, &pad(word, width), Tone::Strong, &verdict.headline)?;
    if diagnosis.measured {
        page.labelled(
            Tone::Plain,
            &pad(super::terminal::second_line(verdict.grading), width),
            Tone::Plain,
            &verdict.cause,
        )?;
    }
    page.labelled(
        Tone::Plain,
        &pad("next", width),
        Tone::Strong,
        &verdict.next,
    )?;
    page.labelled(
        Tone::Plain,
        &" ".repeat(width),
        Tone::Plain,
        &diagnosis.next_because,
    )?;
    if let Some(settings) = &diagnosis.meanwhile {
        page.labelled(
            Tone::Plain,
            &" ".repeat(width),
            Tone::Plain,
            &format!("until then: {settings}"),
        )?;
    }
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for gpu in &snapshot.gpus {
        let name = gpu
            .name
            .known()
            .map_or_else(|| "GPU of unknown name".to_string(), |n| cut(n, 48));
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, number)) => *number += 1,
            None => kinds.push((name, 1)),
        }
    }
    let gpus: Vec<String> = kinds.iter().map(|(n, c)| format!("{c} x {n}")).collect();
    let mut line = match gpus.is_empty() {
        true => "no GPU shown".to_string(),
        false => format!("{}; {}", gpus.join(", "), snapshot.topology.class),
    };
    match snapshot.nvswitches.len() {
        0 => {}
        1 => line.push_str("; 1 NVSwitch"),
        n => line.push_str(&format!("; {n} NVSwitches")),
    }
    line.push_str(&format!("; {}", host_words(snapshot)));
    page.labelled(Tone::Faint, &pad("where", width), Tone::Faint, &line)?;
    let mut files: Vec<&str> = Vec::new();
    for input in &ticket.inputs {
        if !files.contains(&input.kind.as_str()) {
            files.push(&input.kind);
        }
    }
    if !files.is_empty() {
        page.labelled(
            Tone::Faint,
            &pad("read", width),
            Tone::Faint,
            &files.join(", "),
        )?;
    }
    if !diagnosis.measured {
        page.labelled(
            Tone::Faint,
            &pad("note", width),
            Tone::Faint,
            &verdict.cause,
        )?;
    }
    // One that has no counterpart says that the map of GPUs is not whole.
    let incomplete = ticket.incomplete.iter().take(2);
    for told in incomplete.chain(ticket.unmatched.iter().take(1)) {
        page.labelled(
            Tone::Doubt,
            &pad("note", width),
            Tone::Plain,
            &cut(told, 240),
        )?;
    }
    if !ticket.assumed.is_empty() {
        let (names, their) = match ticket.assumed.len() {
            1 => ("names", "its"),
            _ => ("name", "their"),
        };
        page.labelled(
            Tone::Doubt,
            &pad("note", width),
            Tone::Plain,
            &format!(
                "{} {names} no GPU: that {their} GPUs are those of the other files is assumed, by their number",
                cut(&ticket.assumed.join(", "), 120)
            ),
        )?;
    }
    Ok(())
}

/// Files of several hosts: told before all that follows from the rest.
fn apart(ticket: &Ticket, limits: Limits, page: &mut Page<'_>) -> io::Result<usize> {
    if ticket.hosts.is_empty() {
        return Ok(0);
    }
    let whole = limits.lists == usize::MAX;
    let short = |text: &str, most: usize| match whole {
        true => text.to_string(),
        false => cut(text, most),
    };
    page.heading("Not of one host at one time")?;
    let rows = match whole {
        true => usize::MAX,
        false => limits.lists.clamp(1, 5),
    };
    for line in ticket.hosts.iter().take(rows) {
        page.labelled(Tone::Bad, "  ! ", Tone::Plain, &short(line, 300))?;
    }
    let names = short(&ticket.left_out.join(", "), 160);
    page.text(
        2,
        Tone::Plain,
        &format!("Left out of all that follows: {names}"),
    )?;
    Ok(ticket.hosts.len().saturating_sub(rows))
}

fn disagreements(snapshot: &Snapshot, limits: Limits, page: &mut Page<'_>) -> io::Result<usize> {
    let all = &snapshot.topology.disagreements;
    let mut shown = 0;
    for one in all.iter().take(limits.lists.min(limits.evidence).max(1)) {
        if shown == 0 {
            page.heading("Sources disagree")?;
        }
        shown += 1;
        let claims: Vec<String> = one
            .claims
            .iter()
            .map(|(source, claim)| format!("{claim} ({source})"))
            .collect();
        page.labelled(
            Tone::Doubt,
            "  ! ",
            Tone::Plain,
            &format!(
                "{}: {}; followed: {}",
                one.about,
                claims.join(" against "),
                one.resolution
            ),
        )?;
    }
    Ok(all.len() - shown)
}

fn reported(ticket: &Ticket, limits: Limits, page: &mut Page<'_>) -> io::Result<usize> {
    let shown = limits
        .lists
        .min(ticket.remarks.len())
        .min(if limits.lists == usize::MAX {
            usize::MAX
        } else {
            3
        });
    // What is a symptom of peers comes before what engines say of themselves.
    let mut remarks: Vec<&Remark> = ticket.remarks.iter().collect();
    remarks.sort_by_key(|r| (!r.kind.suspects_peers(), r.by_person));
    for (at, remark) in remarks.into_iter().take(shown).enumerate() {
        if at == 0 {
            page.heading("Reported")?;
        }
        let times = match remark.times {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        let text = match limits.lists {
            usize::MAX => remark.text.clone(),
            _ => cut(&remark.text, 90),
        };
        page.labelled(
            Tone::Plain,
            "  ",
            Tone::Plain,
            &format!(
                "{}: \"{text}\" ({}{times})",
                remark.kind.words(),
                remark.source
            ),
        )?;
    }
    Ok(ticket.remarks.len() - shown)
}

fn conclusions(
    ticket: &Ticket,
    diagnosis: &Diagnosis,
    snapshot: &Snapshot,
    limits: Limits,
    page: &mut Page<'_>,
) -> io::Result<usize> {
    let all = &diagnosis.conclusions;
    let mut hidden = all.len().saturating_sub(limits.conclusions);
    for (at, one) in all.iter().take(limits.conclusions).enumerate() {
        if at == 0 {
            page.heading("What these texts say")?;
        }
        hidden += conclusion(at + 1, one, ticket, snapshot, limits, page)?;
    }
    Ok(hidden)
}

fn conclusion(
    number: usize,
    one: &Conclusion,
    ticket: &Ticket,
    snapshot: &Snapshot,
    limits: Limits,
    page: &mut Page<'_>,
) -> io::Result<usize> {
    page.labelled(
        Tone::Doubt,
        &format!("  {number}. "),
        Tone::Strong,
        &match (&one.cause, one.confidence.map(sure)) {
            (Some(cause), Some(sure)) => format!("{} ({cause}, {sure})", one.title),
            (Some(cause), None) => format!("{} ({cause})", one.title),
            // The title is what the text says; how sure the reason is stands before the reason.
            (None, _) => one.title.clone(),
        },
    )?;
    let because = match (&one.cause, one.confidence.map(sure)) {
        (None, Some(sure)) => format!("{sure}: {}", one.because),
        _ => one.because.clone(),
    };
    page.labelled(Tone::Faint, "     why  ", Tone::Plain, &because)?;
    rows(&one.evidence, &one.fix, ticket, snapshot, limits, page)
}

/// Evidence with places, then fixes; answers how many were left out.
fn rows(
    evidence: &[String],
    fixes: &[String],
    ticket: &Ticket,
    snapshot: &Snapshot,
    limits: Limits,
    page: &mut Page<'_>,
) -> io::Result<usize> {
    let mut label = "     seen ";
    for line in evidence.iter().take(limits.evidence) {
        // A log line carries its place at its end; the middle may go.
        let line = &match (limits.lists, line.rsplit_once(" (")) {
            (usize::MAX, _) | (_, None) => line.clone(),
            (_, Some((text, place))) if text.chars().count() > 150 => {
                format!("{} ({place}", cut(text, 150))
            }
            _ => line.clone(),
        };
        page.labelled(
            Tone::Faint,
            label,
            Tone::Plain,
            &cited(line, ticket, snapshot),
        )?;
        label = "          ";
    }
    // A fix without its warning is worse than none: what is left out is only ever a fix.
    let (warnings, fixes): (Vec<&String>, Vec<&String>) =
        fixes.iter().partition(|fix| fix.starts_with(WARNING));
    let shown = fixes.iter().take(limits.fixes);
    let mut label = "     fix  ";
    for fix in shown {
        page.labelled(Tone::Faint, label, Tone::Plain, fix)?;
        label = "          ";
    }
    for warning in warnings {
        page.labelled(Tone::Doubt, label, Tone::Doubt, warning)?;
        label = "          ";
    }
    Ok(evidence.len().saturating_sub(limits.evidence) + fixes.len().saturating_sub(limits.fixes))
}

fn sure(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Possible => "possible",
        Confidence::Probable => "probable",
        Confidence::Established => "established",
    }
}

fn suspects(
    ticket: &Ticket,
    diagnosis: &Diagnosis,
    snapshot: &Snapshot,
    limits: Limits,
    page: &mut Page<'_>,
) -> io::Result<usize> {
    let all = &diagnosis.suspects;
    let mut hidden = all.len().saturating_sub(limits.suspects);
    for (at, finding) in all.iter().take(limits.suspects).enumerate() {
        if at == 0 {
            page.heading("Suspects, if copies between GPUs are wrong here (not tested)")?;
        }
        let confidence = match finding.confidence {
            Confidence::Possible => "possible",
            Confidence::Probable | Confidence::Established => "probable",
        };
        page.labelled(
            Tone::Doubt,
            &format!("  {}. ", at + 1),
            Tone::Strong,
            &format!("{} ({}, {confidence})", finding.title, finding.cause),
        )?;
        hidden += rows(
            &finding.evidence,
            &finding.fix,
            ticket,
            snapshot,
            limits,
            page,
        )?;
    }
    if !diagnosis.cleared.is_empty() {
        let titles: Vec<String> = diagnosis
            .cleared
            .iter()
            .map(|f| match limits.lists {
                usize::MAX => cleared(f, ticket, snapshot),
                _ => cut(&f.title, 60),
            })
            .collect();
        page.labelled(Tone::Good, "  ruled out: ", Tone::Plain, &titles.join("; "))?;
    }
    Ok(hidden)
}

fn cleared(finding: &Finding, ticket: &Ticket, snapshot: &Snapshot) -> String {
    match finding.evidence.first() {
        Some(line) => format!("{} [{}]", finding.title, cited(line, ticket, snapshot)),
        None => finding.title.clone(),
    }
}

fn unknown(diagnosis: &Diagnosis, limits: Limits, page: &mut Page<'_>) -> io::Result<usize> {
    let all = &diagnosis.unknown;
    let shown: Vec<_> = all.iter().take(limits.lists).collect();
    if shown.is_empty() {
        return Ok(all.len());
    }
    page.heading("Not known from these texts")?;
    for one in &shown {
        page.labelled(
            Tone::Plain,
            "  ",
            Tone::Plain,
            &format!("{}: {}", cut(&one.what, 100), one.shown_by),
        )?;
    }
    Ok(all.len() - shown.len())
}

fn unread(ticket: &Ticket, limits: Limits, page: &mut Page<'_>) -> io::Result<usize> {
    let all = &ticket.unread;
    if all.is_empty() {
        return Ok(0);
    }
    if limits.lists != usize::MAX {
        let places: Vec<&str> = all.iter().take(4).map(|u| u.source.as_str()).collect();
        let more = all.len().saturating_sub(places.len());
        let mut line = places.join(", ");
        if more > 0 {
            line.push_str(&format!(" and {more} more"));
        }
        page.blank()?;
        page.labelled(Tone::Doubt, "not understood: ", Tone::Plain, &line)?;
        return Ok(0);
    }
    page.heading("Not understood")?;
    for one in all {
        page.labelled(
            Tone::Plain,
            "  ",
            Tone::Plain,
            &format!(
                "{}: {} (\"{}\")",
                one.source,
                one.reason,
                cut(&one.text, 60)
            ),
        )?;
    }
    Ok(0)
}

fn read(ticket: &Ticket, page: &mut Page<'_>) -> io::Result<()> {
    if ticket.inputs.is_empty() {
        return Ok(());
    }
    page.heading(&format!("Read ({})", count(ticket.inputs.len(), "part")))?;
    for input in &ticket.inputs {
        page.labelled(
            Tone::Plain,
            "  ",
            Tone::Plain,
            &format!("{}: {}: {}", input.source, input.kind, input.gave),
        )?;
    }
    for fact in &ticket.launch {
        page.labelled(
            Tone::Faint,
            "  launch: ",
            Tone::Plain,
            &format!("{} {} ({})", fact.about, fact.value, fact.source),
        )?;
    }
    for path in &ticket.transports {
        page.labelled(
            Tone::Faint,
            "  NCCL: ",
            Tone::Plain,
            &format!(
                "{} -> {} via {}, {} ({})",
                path.devices.0,
                path.devices.1,
                path.via,
                count(path.channels as usize, "channel"),
                path.source
            ),
        )?;
    }
    Ok(())
}

/// Evidence words of causes that name a source of a live host, and what the citation of that matter is about.
const BY_WORD: &[(&str, &str)] = &[
    ("/proc/cmdline", "/proc/cmdline"),
    ("params: RegistryDwords", "params RegistryDwords"),
    ("NVreg_RegistryDwords", "params NVreg_RegistryDwords"),
    ("NvLinkDisable", "params NvLinkDisable"),
    ("NVML", "NVML"),
    ("DMI", "DMI"),
    ("host bridge", "host bridge"),
];

/// Words in evidence about one GPU, and what their citations are about.
const OF_GPU: &[(&str, &[&str])] = &[
    ("link", &["link now", "link width now", "link width max"]),
    ("BAR1", &["BAR1"]),
    ("MIG", &["MIG mode"]),
    ("abric", &["fabric state"]),
    ("ECC", &["uncorrected ECC errors", "ECC mode"]),
    ("emapp", &["remapping failed", "remapping pending"]),
];

/// A line of evidence with the file and line that it comes from, where one is known.
fn cited(line: &str, ticket: &Ticket, snapshot: &Snapshot) -> String {
    let live = " (/sys/kernel/iommu_groups/*/type)";
    let find = |about: &str| ticket.citations.iter().find(|c| c.about == about);
    if line == "/proc/cpuinfo: hypervisor flag"
        && let Some(citation) = find("hypervisor")
    {
        return format!(
            "a virtual machine: {} ({})",
            citation.value, citation.source
        );
    }
    let exact = ticket.citations.iter().find(|c| {
        !c.about.is_empty()
            && line.contains(c.about.as_str())
            && !c.value.is_empty()
            && line.contains(c.value.as_str())
    });
    let by_word = || {
        let (_, about) = BY_WORD.iter().find(|(word, _)| line.contains(word))?;
        find(about)
    };
    let by_gpu = || {
        let digits: String = line
            .strip_prefix("GPU")?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let gpu = snapshot.gpus.get(digits.parse::<usize>().ok()?)?;
        let pci = gpu.pci.known()?;
        let (_, abouts) = OF_GPU.iter().find(|(word, _)| line.contains(word))?;
        abouts
            .iter()
            .find_map(|about| find(&format!("GPU {pci} {about}")))
    };
    match exact.or_else(by_word).or_else(by_gpu) {
        Some(citation) => format!("{} ({})", line.replace(live, ""), citation.source),
        None => line.to_string(),
    }
}
