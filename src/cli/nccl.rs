//! `peerproof nccl-bench`: NCCL's all-reduce alone, as JSON. A part of `reduce` that can be run by itself.

use super::{Surroundings, console, exit::Stop, host};
use crate::{
    collect::live::Depth,
    diagnose::reductions,
    ffi::process,
    model::{
        case::Outcome,
        crossover::Crossover,
        reduction::{Arrangement, Dtype, Launch, Reduction},
        snapshot::Authenticity,
    },
    probe::nccl,
};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// GPUs of the group in rank order: indices, UUIDs or PCI addresses; all when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<String>>,
    /// Bytes of a rank's vector, separated by commas; K and M stand for KiB and MiB.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size, default_value = "8K,64K,256K,1M")]
    sizes: Vec<u64>,
    /// Element types.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = dtype, default_value = "bf16")]
    dtypes: Vec<Dtype>,
    /// Timed samples of each row.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,
    /// Also in place.
    #[arg(long)]
    in_place: bool,
    /// Only one process over all GPUs.
    #[arg(long)]
    one_process: bool,
    /// libnccl.so.2 to open instead of looking for one.
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
}

#[derive(Serialize)]
struct Page {
    authenticity: Authenticity,
    notes: Vec<String>,
    reductions: Vec<Reduction>,
    crossovers: Vec<Crossover>,
}

/// "8K" is 8192: a whole number of elements of every type.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let bytes = super::size::bytes(text)?;
    match (16..=4 << 30).contains(&bytes) && bytes.is_multiple_of(16) {
        true => Ok(bytes),
        false => Err("a multiple of 16 bytes from 16 to 4G is meant: 8192, 8K, 1M".to_string()),
    }
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|d| d.name() == text.trim());
    known.ok_or_else(|| "fp16, bf16 or fp32 is meant".to_string())
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let chosen = host::choose_gpus(&snapshot, options.gpus.as_deref())?;
    let mut gpus = Vec::new();
    for gpu in chosen {
        let pci = snapshot.gpus.get(gpu as usize).and_then(|g| g.pci.known());
        let pci = pci.ok_or_else(|| {
            Stop::inconclusive(format!("GPU{gpu} has no PCI address that could be read"))
        })?;
        gpus.push((gpu, *pci));
    }
    let arrangements = match options.one_process {
        true => vec![Arrangement::OneProcess],
        false => vec![Arrangement::ProcessPerGpu, Arrangement::OneProcess],
    };
    let request = nccl::Request {
        gpus,
        arrangements,
        sizes: options.sizes.clone(),
        dtypes: options.dtypes.clone(),
        launches: vec![Launch::Graph, Launch::Eager],
        in_place: if options.in_place {
            vec![false, true]
        } else {
            vec![false]
        },
        samples: options.samples,
        library: options.nccl.clone(),
    };
    process::catch_interrupts();
    let mut answer = nccl::run(&request, &mut |what| surroundings.console.progress(what));
    surroundings.console.quiet();
    reductions::flag(&mut answer.reductions);
    let ran = answer.reductions.iter().any(|row| row.outcome.ran());
    let failed = answer.reductions.iter().any(|row| row.outcome.is_failure());
    let gap = answer
        .reductions
        .iter()
        .any(|row| matches!(row.outcome, Outcome::NotRun { .. }));
    let applies = answer
        .reductions
        .iter()
        .any(|row| !matches!(row.outcome, Outcome::NotApplicable { .. }));
    let page = Page {
        authenticity: answer.authenticity.unwrap_or(snapshot.authenticity),
        notes: answer.notes,
        crossovers: reductions::crossovers(&answer.reductions),
        reductions: answer.reductions,
    };
    console::print(|out| {
        serde_json::to_writer_pretty(&mut *out, &page)?;
        writeln!(out)
    })?;
    // As with every command: what failed goes before what is missing; what does not exist here is no gap.
    Ok(
        match (
            failed,
            gap || (!ran && (applies || page.reductions.is_empty())),
        ) {
            (true, _) => 2,
            (false, true) => 3,
            (false, false) => 0,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(size("8K"), Ok(8192));
        assert_eq!(size(" 1m"), Ok(1 << 20));
        assert_eq!(size("512"), Ok(512));
        for bad in ["", "K", "7", "17", "-1", "9999G", "1.5M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
