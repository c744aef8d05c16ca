//! All ranks of an all-reduce in one process: over several GPUs, or as streams of one GPU. The entry point of a worker.

use super::{
    Mailboxes, Needs, Rank, Request, Series, Sight, conclude,
    rank::{Place, RankError, steps},
};
use crate::{
    gpu::{Context, PinnedMemory, Region, kernels::KernelError, reduce::Reduce},
    model::{
        case::Outcome,
        reduction::{Arrangement, Reduction},
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What setting up or resetting a rank may take.
const SETUP: Duration = Duration::from_secs(10);

/// Runs every series of `request` over `members`: GPU and context of each rank, in rank order. One GPU may be named several
/// times: its ranks are then streams of its one context. Between different GPUs peer access must have been enabled both
/// ways, unless only `pinned-host` is asked for. `emit` takes each row as it comes.
pub fn run(
    members: &[(u32, Arc<Context>)],
    request: &Request,
    factor: u32,
    mut emit: impl FnMut(Reduction),
) {
    let series = request.series(members.len() as u32);
    let opened = load(members).and_then(|members| Group::open(&members, &series));
    let mut group = match opened {
        Ok(group) => group,
        Err(error) => {
            let outcome = error.outcome();
            let rows = series.iter().map(|one| failed(members, one, &outcome));
            rows.for_each(emit);
            return;
        }
    };
    for one in &series {
        let row = group.run(one, factor);
        let lost = row.outcome.is_failure() && row.outcome.corruption().is_none();
        let done_for = lost && !matches!(row.outcome, Outcome::Never { .. });
        emit(row);
        if done_for {
            break;
        }
    }
}

/// A rank of one process: its GPU, context and kernels.
pub type Member = (u32, Arc<Context>, Arc<Reduce>);

/// Loads the kernels of each GPU once.
fn load(members: &[(u32, Arc<Context>)]) -> Result<Vec<Member>, RankError> {
    let mut loaded: BTreeMap<u32, Arc<Reduce>> = BTreeMap::new();
    let mut all = Vec::new();
    for (gpu, context) in members {
        let kernels = match loaded.get(gpu) {
            Some(kernels) => kernels.clone(),
            None => Arc::new(Reduce::load(context)?),
        };
        loaded.insert(*gpu, kernels.clone());
        all.push((*gpu, context.clone(), kernels));
    }
    Ok(all)
}

/// How ranks on these GPUs are arranged in one process.
fn arrangement(gpus: &[u32]) -> Arrangement {
    match gpus.split_first() {
        Some((first, rest)) if rest.contains(first) => Arrangement::StreamsOfOneGpu,
        _ => Arrangement::OneProcess,
    }
}

fn failed(members: &[(u32, Arc<Context>)], series: &Series, outcome: &Outcome) -> Reduction {
    let gpus: Vec<u32> = members.iter().map(|(gpu, _)| *gpu).collect();
    let sights: Vec<Sight> = (0..gpus.len() as u32)
        .map(|rank| Sight::lost(rank, outcome.clone()))
        .collect();
    conclude(series, &gpus, arrangement(&gpus), &sights)
}

/// The ranks, and host memory for mailboxes that lie there.
pub struct Group {
    gpus: Vec<u32>,
    ranks: Vec<Rank>,
    kernels: Vec<Arc<Reduce>>,
    /// Ranks on the GPU of each rank.
    sharing: Vec<u32>,
    host: Vec<PinnedMemory>,
}

impl Group {
    /// Makes the memory of all ranks, enough for each of `series`.
    pub fn open(members: &[Member], series: &[Series]) -> Result<Group, RankError> {
        let count = members.len() as u32;
        let on_host = |s: &&Series| {
            let algorithm = s.algorithm();
            algorithm.is_some_and(|a| a.mailboxes() == Mailboxes::Host)
        };
        let host = series.iter().filter(on_host);
        let host = host.map(|s| s.needs(count).mailbox).max().unwrap_or(0);
        let needs = series.iter().fold(Needs::default(), |needs, s| {
            let mut own = s.needs(count);
            if on_host(&s) {
                own.mailbox = 0;
            }
            needs.max(own)
        });
        let (mut ranks, mut kernels, mut sharings, mut memory) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (rank, (gpu, context, reduce)) in members.iter().enumerate() {
            let sharing = members.iter().filter(|(other, ..)| other == gpu).count() as u32;
            let place = Place {
                rank: rank as u32,
                ranks: count,
                sharing,
            };
            ranks.push(Rank::open(*gpu, context, reduce, place, needs)?);
            kernels.push(reduce.clone());
            sharings.push(sharing);
            if host > 0 {
                memory.push(PinnedMemory::new(context, host as usize)?);
            }
        }
        Ok(Group {
            gpus: members.iter().map(|(gpu, ..)| *gpu).collect(),
            ranks,
            kernels,
            sharing: sharings,
            host: memory,
        })
    }

    /// The mailboxes of a series.
    fn mailboxes(&self, series: &Series) -> Vec<Region> {
        let algorithm = series.algorithm();
        match algorithm.map(|algorithm| algorithm.mailboxes()) {
            Some(Mailboxes::Host) => self.host.iter().map(PinnedMemory::region).collect(),
            _ => self.ranks.iter().map(|r| r.mailbox().region()).collect(),
        }
    }

    /// The series with no more blocks than its ranks can have on a GPU at once, unless their number was set by hand.
    fn fitted(&self, series: &Series) -> Result<Series, KernelError> {
        let mut series = series.clone();
        let shape = series.shape(self.ranks.len() as u32);
        let (None, Some(shape)) = (series.tuning.blocks, shape) else {
            return Ok(series);
        };
        let mut blocks = u64::from(shape.blocks);
        for (kernels, sharing) in self.kernels.iter().zip(&self.sharing) {
            let room = kernels.resident(shape.kernel, shape.threads, *sharing)?;
            blocks = blocks.min(room / u64::from(*sharing));
        }
        if blocks > 0 {
            series.tuning.blocks = Some(blocks as u32);
        }
        Ok(series)
    }

    /// Begins a series on all ranks, and answers it with the number of blocks that fit. No rank of the process may be waiting
    /// for another.
    pub fn begin(&mut self, series: &Series, factor: u32) -> Result<Series, RankError> {
        let fitted = self.fitted(series)?;
        let mailboxes = self.mailboxes(&fitted);
        self.ranks
            .iter_mut()
            .try_for_each(|rank| rank.begin(&fitted, &mailboxes, SETUP * factor))?;
        Ok(fitted)
    }

    /// Makes all calls of a series that was begun. What its ranks saw may be read once no rank of the process waits any more.
    pub fn play(&mut self, series: &Series, factor: u32) {
        for step in steps(series) {
            self.ranks.iter_mut().for_each(|rank| rank.queue(step));
            // Whoever could not queue keeps the others waiting for nothing.
            if self.ranks.iter().any(|rank| !rank.well()) {
                self.ranks.iter().for_each(Rank::stop);
            }
            self.ranks.iter().for_each(Rank::open_gate);
            self.ranks
                .iter_mut()
                .for_each(|rank| rank.finish(step, factor));
            if self.ranks.iter().any(|rank| !rank.well()) {
                break;
            }
        }
    }

    /// What each rank saw of the series.
    pub fn sights(&mut self, factor: u32) -> Vec<Sight> {
        self.ranks.iter_mut().map(|r| r.sight(factor)).collect()
    }

    fn run(&mut self, series: &Series, factor: u32) -> Reduction {
        let arrangement = arrangement(&self.gpus);
        match self.begin(series, factor) {
            Ok(fitted) => {
                self.play(&fitted, factor);
                let sights = self.sights(factor);
                conclude(&fitted, &self.gpus, arrangement, &sights)
            }
            Err(error) => {
                let outcome = error.outcome();
                let ranks = 0..self.gpus.len() as u32;
                let sights: Vec<Sight> = ranks
                    .map(|rank| Sight::lost(rank, outcome.clone()))
                    .collect();
                conclude(series, &self.gpus, arrangement, &sights)
            }
        }
    }
}
