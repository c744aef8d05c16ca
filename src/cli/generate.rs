//! Man pages and shell completions, made from the command line's own definition: they cannot say anything else.

use super::{Arguments, exit::Stop};
use clap::{Args, CommandFactory, Subcommand};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Options of `generate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  peerproof generate man /usr/local/share/man/man1\n  peerproof generate completions /etc/bash_completion.d"
)]
pub(super) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One page for each command, section 1.
    Man {
        /// Folder that takes them; it is made when it is not there.
        folder: PathBuf,
    },
    /// Completions for bash, zsh and fish.
    Completions {
        /// Folder that takes them; it is made when it is not there.
        folder: PathBuf,
    },
}

/// Shells for which completions are written.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

pub(super) fn run(options: &Options) -> Result<u8, Stop> {
    let mut command = Arguments::command();
    let written = match &options.what {
        What::Man { folder } => {
            ready(folder).and_then(|()| clap_mangen::generate_to(command, folder))
        }
        What::Completions { folder } => ready(folder).and_then(|()| {
            SHELLS.into_iter().try_for_each(|shell| {
                clap_complete::generate_to(shell, &mut command, "peerproof", folder).map(|_| ())
            })
        }),
    };
    let (What::Man { folder } | What::Completions { folder }) = &options.what;
    written
        .map(|()| 0)
        .map_err(|error| Stop::usage(format!("{}: {error}", folder.display())))
}

fn ready(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}
