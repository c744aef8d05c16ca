//! `peerproof map`: what joins the GPUs of a host, in a tree, in the familiar matrix, and in words. Knows nothing that
//! the snapshot does not say; where sources differ, that stands first, because a wrong map misleads all that follows.

use super::{
    matrix::{Cell, Matrix},
    page::{Options, Page, Tone, banner, clean, count, cut},
    tree::{self, gpu_label},
};
use crate::model::{
    pair::OrderedPair,
    reading::Reading,
    snapshot::{Origin, Snapshot},
    topology::PathType,
};
use std::io::{self, Write};

/// Writes the map of `snapshot`.
///
/// # Errors
/// Those of the writer.
pub fn write(snapshot: &Snapshot, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    title(snapshot, page)?;
    silent(snapshot, page)?;
    disagreements(snapshot, page)?;
    if snapshot.gpus.is_empty() {
        no_gpu(snapshot, page)?;
    } else {
        page.blank()?;
        tree::write(snapshot, page)?;
        if snapshot.gpus.len() + snapshot.nics.len() > 1 {
            matrix(snapshot, page)?;
        }
        summary(snapshot, page)?;
    }
    sources(snapshot, page)
}

/// One line: which host, which driver, and what kind of evidence this is.
pub(super) fn host_words(snapshot: &Snapshot) -> String {
    let mut words = Vec::new();
    words.push(match &snapshot.host.name {
        Reading::Known(name) => format!("host {}", cut(name, 64)),
        Reading::Absent(_) => "host name not known".to_string(),
    });
    if let Some(version) = snapshot.driver.version.known() {
        let flavour = snapshot
            .driver
            .flavour
            .known()
            .map(|f| format!(" ({})", cut(f, 24)))
            .unwrap_or_default();
        words.push(format!("driver {}{flavour}", cut(version, 32)));
    } else {
        words.push("driver not known".to_string());
    }
    if let Some(cuda) = snapshot.driver.cuda_version.known() {
        words.push(format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10));
    }
    words.join(", ")
}

/// "recorded: nvidia-smi topo -m in topo.txt", for snapshots that were not read live.
pub(super) fn recorded_words(snapshot: &Snapshot) -> Option<String> {
    match &snapshot.origin {
        Origin::Live => None,
        Origin::Recorded { format, file } => Some(format!(
            "RECORDED from {} ({})",
            cut(file, 120),
            cut(format, 48)
        )),
    }
}

fn title(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let mark = banner(snapshot.authenticity);
    let mut first = host_words(snapshot);
    if let Some(recorded) = recorded_words(snapshot) {
        first.push_str(&format!("; {recorded}"));
    }
    let label = mark.map_or_else(String::new, |(word, _)| format!("{word} "));
    page.labelled(Tone::Bad, &label, Tone::Strong, &first)?;
    if let Some((word, meaning)) = mark {
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Plain, meaning)?;
    }
    Ok(())
}

/// GPUs for which the driver does not answer: what the map shows of them is not the driver's word.
fn silent(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    for gpu in &snapshot.gpus {
        if let Some(why) = gpu.nvml_index.unanswered() {
            let text = format!(
                "NVML does not answer for it ({why}): the GPU or the driver is stuck; what is shown of it is the kernel's word"
            );
            let label = format!("{}: ", cut(&gpu.label, 16));
            page.labelled(Tone::Bad, &label, Tone::Plain, &text)?;
        }
    }
    Ok(())
}

fn disagreements(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let all = &snapshot.topology.disagreements;
    if all.is_empty() {
        return Ok(());
    }
    page.heading(&format!(
        "Sources disagree ({}): read this before the map",
        count(all.len(), "matter")
    ))?;
    for one in all {
        page.labelled(Tone::Doubt, "  ! ", Tone::Plain, &cut(&one.about, 120))?;
        for (source, claim) in &one.claims {
            page.labelled(
                Tone::Plain,
                &format!("    {}: ", cut(source, 24)),
                Tone::Plain,
                claim,
            )?;
        }
        page.labelled(Tone::Plain, "    followed: ", Tone::Plain, &one.resolution)?;
    }
    Ok(())
}

fn no_gpu(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    page.blank()?;
    match &snapshot.origin {
        Origin::Live => page.text(0, Tone::Doubt, "No NVIDIA GPU was found on this host.")?,
        Origin::Recorded { .. } => {
            page.text(0, Tone::Doubt, "The input shows no NVIDIA GPU.")?;
        }
    }
    for note in &snapshot.topology.notes {
        page.labelled(Tone::Plain, "note: ", Tone::Plain, note)?;
    }
    if !snapshot.nics.is_empty() {
        page.text(
            0,
            Tone::Plain,
            &format!("{} seen.", count(snapshot.nics.len(), "network adapter")),
        )?;
    }
    Ok(())
}

fn matrix(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let labels: Vec<String> = snapshot
        .gpus
        .iter()
        .enumerate()
        .map(|(at, gpu)| gpu_label(gpu, at))
        .collect();
    let mut columns = labels.clone();
    columns.extend((0..snapshot.nics.len()).map(|n| format!("NIC{n}")));
    let affinity = snapshot
        .gpus
        .iter()
        .any(|g| g.cpu_affinity.known().is_some());
    let numa = snapshot.gpus.iter().any(|g| g.numa_node.known().is_some());
    if affinity {
        columns.push("CPU affinity".to_string());
    }
    if numa {
        columns.push("NUMA".to_string());
    }

    let value = |text: String| Cell::Value {
        text: clean(&text).into_owned(),
        code: None,
        tone: Tone::Plain,
        number: None,
    };
    let mut used: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for (source, gpu) in snapshot.gpus.iter().enumerate() {
        let mut cells = Vec::new();
        for destination in 0..snapshot.gpus.len() {
            let Some(pair) = OrderedPair::new(source as u32, destination as u32) else {
                cells.push(Cell::Diagonal);
                continue;
            };
            cells.push(match snapshot.topology.pairs.get(pair) {
                Some(path) => {
                    used.push(path.label());
                    value(path.label())
                }
                None => {
                    used.push("n/a".to_string());
                    Cell::Missing
                }
            });
        }
        for nic in &snapshot.nics {
            cells.push(match nic.to_gpus.get(source).copied().flatten() {
                Some(path) => {
                    used.push(path.to_string());
                    value(path.to_string())
                }
                None => {
                    used.push("n/a".to_string());
                    Cell::Missing
                }
            });
        }
        if affinity {
            cells.push(
                gpu.cpu_affinity
                    .known()
                    .map_or(Cell::Missing, |list| value(cut(list, 32))),
            );
        }
        if numa {
            cells.push(
                gpu.numa_node
                    .known()
                    .map_or(Cell::Missing, |node| value(node.to_string())),
            );
        }
        rows.push((labels.get(source).cloned().unwrap_or_default(), cells));
    }
    page.blank()?;
    Matrix {
        corner: String::new(),
        columns,
        rows,
        even: false,
        diagonal: " X ",
    }
    .write(page)?;
    page.blank()?;
    legend(snapshot, &used, page)
}

/// Path types in words.
pub(super) const PATHS: [(PathType, &str); 5] = [
    (
        PathType::Pix,
        "at most one PCIe bridge (a switch) in between",
    ),
    (
        PathType::Pxb,
        "several PCIe bridges, all below one host bridge",
    ),
    (
        PathType::Phb,
        "through a PCIe host bridge, that is, the CPU",
    ),
    (PathType::Node, "between host bridges of one NUMA node"),
    (
        PathType::Sys,
        "between NUMA nodes, over the link that joins them",
    ),
];

fn legend(snapshot: &Snapshot, used: &[String], page: &mut Page<'_>) -> io::Result<()> {
    let mut entries: Vec<(&str, String)> = vec![("X", "the GPU itself".to_string())];
    if used.iter().any(|u| u.starts_with("NV")) {
        let switched = snapshot
            .topology
            .pairs
            .iter()
            .any(|(_, p)| p.through_nvswitch);
        let direct = snapshot
            .topology
            .pairs
            .iter()
            .any(|(_, p)| p.nvlinks > 0 && !p.through_nvswitch);
        entries.push((
            "NV#",
            match (switched, direct) {
                (true, false) => "# NVLinks, through NVSwitch",
                (true, true) => "# NVLinks, some through NVSwitch",
                (false, _) => "# NVLinks",
            }
            .to_string(),
        ));
    }
    let names: Vec<(String, &str)> = PATHS.iter().map(|(p, w)| (p.to_string(), *w)).collect();
    for (name, meaning) in &names {
        if used.iter().any(|u| u == name) {
            entries.push((name, (*meaning).to_string()));
        }
    }
    if used.iter().any(|u| u == "?") {
        entries.push((
            "?",
            "no NVLink seen, and the sources do not show the PCIe path".to_string(),
        ));
    }
    if used.iter().any(|u| u == "n/a") {
        entries.push(("n/a", "no source says anything".to_string()));
    }
    for (name, meaning) in entries {
        page.labelled(Tone::Faint, &format!("  {name:<5} "), Tone::Faint, &meaning)?;
    }
    for (position, nic) in snapshot.nics.iter().enumerate() {
        let place = nic
            .pci
            .known()
            .map(|p| format!("  {p}"))
            .unwrap_or_default();
        page.labelled(
            Tone::Faint,
            &format!("  {:<5} ", format!("NIC{position}")),
            Tone::Faint,
            &format!("{}{place}", cut(&nic.name, 40)),
        )?;
    }
    Ok(())
}

fn summary(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let topology = &snapshot.topology;
    page.blank()?;
    page.labelled(
        Tone::Strong,
        "fabric class      ",
        Tone::Plain,
        &format!("{}: {}", topology.class, topology.class_reason),
    )?;
    page.labelled(
        Tone::Strong,
        "FlashInfer label  ",
        Tone::Plain,
        &match topology.pairs.iter().any(|(_, path)| path.pcie.is_some()) {
            true => format!(
                "{} (FlashInfer looks at PCIe ancestry only, not at NVLink)",
                topology.flashinfer_label
            ),
            false if snapshot.gpus.len() < 2 => format!(
                "{} (what FlashInfer says where no pair shares a switch)",
                topology.flashinfer_label
            ),
            false => "not known: it follows from PCIe ancestry, which this input does not tell"
                .to_string(),
        },
    )?;
    let mut label = "islands           ";
    for island in &topology.islands {
        let members: Vec<String> = island.gpus.iter().map(|g| g.to_string()).collect();
        page.labelled(
            Tone::Strong,
            label,
            Tone::Plain,
            &format!(
                "{{{}}} by {}",
                members.join(" "),
                cut(&island.joined_by, 40)
            ),
        )?;
        label = "                  ";
    }
    for note in &topology.notes {
        page.labelled(Tone::Doubt, "note              ", Tone::Plain, note)?;
    }
    if !matches!(snapshot.origin, Origin::Live) {
        page.labelled(
            Tone::Doubt,
            "cannot tell       ",
            Tone::Plain,
            "whether any byte arrives: this is a recording, and a map claims paths, it proves none.",
        )?;
    }
    Ok(())
}

fn sources(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    if snapshot.sources.is_empty() {
        return Ok(());
    }
    page.blank()?;
    let read: Vec<String> = snapshot
        .sources
        .iter()
        .filter_map(|note| {
            let found = note.result.known()?;
            let time = if note.took_ms > 0.0 {
                format!(", {:.0} ms", note.took_ms)
            } else {
                String::new()
            };
            Some(format!(
                "{} ({}{time})",
                cut(&note.source, 32),
                cut(found, 80)
            ))
        })
        .collect();
    if !read.is_empty() {
        page.labelled(
            Tone::Faint,
            "read: ",
            Tone::Faint,
            &format!("{}.", read.join("; ")),
        )?;
    }
    for note in &snapshot.sources {
        if let Some(absence) = note.result.absence() {
            page.labelled(
                Tone::Doubt,
                &format!("not read: {}: ", cut(&note.source, 32)),
                Tone::Plain,
                &absence.to_string(),
            )?;
        }
    }
    Ok(())
}
