//! `peerproof selftest`.

use super::{
    Surroundings, console,
    exit::{self, Stop},
    host,
};
use crate::{
    collect::live::Depth,
    probe::{plan, pool},
    render,
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every 'qualify' begins with it. The exit code is 0 when all that was planted was named, else 3.\n\n\
                  Example:\n  \
                  peerproof selftest --gpu 0000:19:00.0"
)]
pub(super) struct Options {
    /// GPU to use: an index, a UUID or a PCI address; the first one that is free when not given.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let chosen = one_gpu(&snapshot, options.gpu.as_ref())?;
    let plan = plan::build(
        &snapshot,
        &plan::Selection {
            gpus: vec![chosen],
            ..Default::default()
        },
    );
    let (selftest, authenticity) = pool::selftest(&snapshot, &plan).map_err(Stop::inconclusive)?;
    console::print(|out| {
        render::selftest::write(&selftest, authenticity, &surroundings.console.options, out)
    })?;
    // A checker that misses a plant proves nothing about the host.
    Ok(if selftest.passed() {
        0
    } else {
        exit::INCONCLUSIVE
    })
}

/// The GPU named, or the first free one.
pub(super) fn one_gpu(
    snapshot: &crate::model::snapshot::Snapshot,
    named: Option<&String>,
) -> Result<u32, Stop> {
    let list = named.map(std::slice::from_ref);
    let (kept, left_out) = host::leave_out_busy(
        snapshot,
        host::choose_gpus(snapshot, list)?,
        named.is_some(),
    );
    kept.first()
        .copied()
        .ok_or_else(|| Stop::inconclusive(format!("no GPU is free: {}", left_out.join("; "))))
}
