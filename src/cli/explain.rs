//! `peerproof explain CAUSE`: the page of `docs/causes/` that the same build carries.

use super::{console, exit::Stop};
use crate::{diagnose, render};

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Cause id, as in a report or in `peerproof list`.
    #[arg(value_name = "CAUSE")]
    cause: String,
}

pub(super) fn run(options: &Options) -> Result<u8, Stop> {
    let page = diagnose::page(&options.cause).ok_or_else(|| {
        let known: Vec<&str> = diagnose::ROSTER.iter().map(|cause| cause.id).collect();
        Stop::usage(format!(
            "no cause '{}'; there are {}",
            render::clean(&options.cause),
            known.join(", ")
        ))
    })?;
    console::print(|out| write!(out, "{page}"))
}
