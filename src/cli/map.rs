//! `peerproof map`.

use super::{Surroundings, console, exit::Stop, host};
use crate::{
    bundle::archive,
    collect::{import, live::Depth, topology},
    model::{pair::GpuIndex, snapshot::Snapshot},
    render,
};
use std::{io::Read, path::PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                  peerproof map                        this host\n  \
                  peerproof map --from report.json     a host of which there is only a file\n  \
                  nvidia-smi topo -m | peerproof map --from - --group 0,1,4,5")]
pub(super) struct Options {
    /// Read a file instead of this host: a peerproof report or bundle, hwloc XML (1.x to 3.x), NCCL topology XML, or pasted
    /// `nvidia-smi topo -m`; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Also say what joins this group of GPUs: indices as the map prints them, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    group: Option<Vec<u32>>,
    /// Print the snapshot as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let snapshot = match &options.from {
        Some(path) => import_file(path)?,
        None => {
            let depth = if options.json {
                Depth::Full
            } else {
                Depth::Map
            };
            let (session, snapshot) = host::read(surroundings, depth)?;
            session.leave();
            snapshot
        }
    };
    if options.json {
        return console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &snapshot)?;
            writeln!(out)
        });
    }
    if options.from.is_none() {
        host::require_gpu(&snapshot)?;
    }
    let group = options
        .group
        .as_ref()
        .map(|list| group_of(&snapshot, list))
        .transpose()?;
    console::print(|out| {
        render::map::write(&snapshot, &surroundings.console.options, out)?;
        match &group {
            Some((class, label)) => writeln!(out, "\n{class}\n{label}"),
            None => Ok(()),
        }
    })
}

/// Class and label of a group, as two lines.
fn group_of(snapshot: &Snapshot, list: &[u32]) -> Result<(String, String), Stop> {
    let count = snapshot.gpus.len() as u32;
    if let Some(unknown) = list.iter().find(|gpu| **gpu >= count) {
        return Err(Stop::usage(format!(
            "--group: no GPU {unknown}; there are {count}, counted from 0"
        )));
    }
    let mut gpus: Vec<GpuIndex> = list.iter().copied().map(GpuIndex).collect();
    gpus.sort();
    gpus.dedup();
    let (class, reason) = topology::class_of(snapshot, &gpus);
    let label = topology::flashinfer_label(snapshot, &gpus);
    let names = gpus
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let safe = render::clean(&reason).into_owned();
    Ok((
        format!("group {names}: {class}: {safe}"),
        format!("group {names}: FlashInfer label {label}"),
    ))
}

/// Largest file that is read at all: a snapshot is text of kilobytes.
const MOST_BYTES: u64 = 64 << 20;

/// Reads any file that `map` understands.
pub(super) fn import_file(path: &PathBuf) -> Result<Snapshot, Stop> {
    let (name, bytes) = read_file(path)?;
    if let Some(journal) = journal_of(&bytes) {
        return Ok(journal.head.snapshot);
    }
    import::read(&name, &bytes).map_err(|error| Stop::usage(error.to_string()))
}

/// The journal of a run that did not live to write its report, if these bytes are one.
pub(super) fn journal_of(bytes: &[u8]) -> Option<render::json::Journal> {
    let text = std::str::from_utf8(bytes).ok()?;
    render::json::read_journal(text).ok()
}

/// A whole file, or standard input for `-`, with a bound. Of a bundle: what in it tells most.
pub(super) fn read_file(path: &PathBuf) -> Result<(String, Vec<u8>), Stop> {
    let (name, bytes) = read_plain(path)?;
    if bytes.starts_with(&archive::GZIP) {
        return super::bundle::unpacked(&name, &bytes);
    }
    Ok((name, bytes))
}

/// The same, bundles as they are.
pub(super) fn read_plain(path: &PathBuf) -> Result<(String, Vec<u8>), Stop> {
    let name = path.to_string_lossy().into_owned();
    let fail = |error: std::io::Error| Stop::usage(format!("failed to read {name}: {error}"));
    let mut bytes = Vec::new();
    let read = if name == "-" {
        std::io::stdin()
            .lock()
            .take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(fail)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Stop::usage(format!(
            "{name} is larger than {} MiB: this is no topology file",
            MOST_BYTES >> 20
        )));
    }
    Ok((name, bytes))
}
