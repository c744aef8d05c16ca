//! `peerproof bench`.

use super::{Surroundings, console, exit::Stop, host, selftest};
use crate::{
    collect::live::Depth,
    model::{pair::GpuIndex, report::Bench},
    probe::{plan, pool},
    render,
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Rates say how long a test takes and nothing of whether data is right.\n\n\
                  Example:\n  \
                  peerproof bench --gpu 0 --samples 50"
)]
pub(super) struct Options {
    /// GPU to use: an index, a UUID or a PCI address; the first one that is free when not given.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Samples of each row, taken in turn.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
    /// Print JSON, samples included.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let chosen = selftest::one_gpu(&snapshot, options.gpu.as_ref())?;
    let plan = plan::build(
        &snapshot,
        &plan::Selection {
            gpus: vec![chosen],
            ..Default::default()
        },
    );
    let (rows, authenticity) =
        pool::bench(&snapshot, &plan, options.samples).map_err(Stop::inconclusive)?;
    let gpu = snapshot.gpu(GpuIndex(chosen));
    let text = |reading: Option<String>| reading.unwrap_or_else(|| "?".to_string());
    let device = format!(
        "GPU{chosen} {} {}, driver {}",
        text(gpu.and_then(|g| g.pci.known().map(ToString::to_string))),
        text(gpu.and_then(|g| g.name.known().cloned())),
        text(snapshot.driver.version.known().cloned()),
    );
    let bench = Bench {
        authenticity,
        device,
        rows,
    };
    if options.json {
        return console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &bench)?;
            writeln!(out)
        });
    }
    console::print(|out| render::bench::write(&bench, &surroundings.console.options, out))
}
