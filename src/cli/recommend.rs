//! `peerproof recommend` (placeholder until advise is merged).
use super::{Surroundings, exit::Stop};
use crate::{
    diagnose::Evidence,
    model::{
        finding::{Consumer, Recommendation},
        pair::GpuIndex,
    },
};

#[derive(Debug, clap::Args)]
pub(super) struct Options {}

pub(super) fn run(_: &Surroundings, _: &Options) -> Result<u8, Stop> {
    Err(Stop::failed("not built yet"))
}

pub(super) fn for_report(_: &Evidence, _: &[Consumer], _: &[GpuIndex]) -> Vec<Recommendation> {
    Vec::new()
}
