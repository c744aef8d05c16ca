//! `peerproof demo`: this same binary on a simulated host. Only finds the launcher and hands over.

use super::exit::Stop;
use std::{os::unix::process::ExitStatusExt, path::PathBuf, process::Command};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                  peerproof demo                                     a healthy host with eight GPUs\n  \
                  peerproof demo rtxpro6000-x8-zeroed                a host on which zeros arrive\n  \
                  peerproof demo opaque-vm -- map                    another command there\n  \
                  peerproof demo one-gpu -- qualify --prolog")]
pub(super) struct Options {
    /// Scenario: a shipped name (see `--list`) or the path of a scenario file.
    #[arg(default_value = "hgx-h200-x8")]
    scenario: String,
    /// List the shipped scenarios.
    #[arg(long)]
    list: bool,
    /// Command to run on the simulated host instead of `qualify --no-file`, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Places where a build or a release puts the launcher: beside this binary.
fn launcher() -> Result<(PathBuf, PathBuf), Stop> {
    let own = std::env::current_exe()
        .map_err(|error| Stop::failed(&format!("failed to find this binary: {error}")))?;
    let beside = own.with_file_name("simhost");
    if beside.is_file() {
        return Ok((own, beside));
    }
    Err(Stop::inconclusive(format!(
        "the simulated host is not here: {} is missing (releases carry it beside peerproof; in a source tree, 'cargo build' makes it)",
        beside.display()
    )))
}

pub(super) fn run(options: &Options) -> Result<u8, Stop> {
    let (own, launcher) = launcher()?;
    let mut command = Command::new(launcher);
    if options.list {
        command.arg("list");
    } else {
        command.args(["run", &options.scenario, "--"]).arg(own);
        if options.command.is_empty() {
            command.args(["qualify", "--no-file"]);
        } else {
            command.args(&options.command);
        }
    }
    let status = command
        .status()
        .map_err(|error| Stop::failed(&format!("failed to start the simulated host: {error}")))?;
    let by_signal = status.signal().map(|signal| 128 + signal);
    Ok(status
        .code()
        .or(by_signal)
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(super::exit::FAILED))
}
