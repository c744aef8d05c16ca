//! A rank's part in an all-reduce between processes: its own stream, mailbox, vectors and stop word, and what it saw. Of the
//! other ranks it knows the mailboxes that it opened.

use super::{Rank, Stop, refusal};
use crate::{
    ffi::driver::IpcHandle,
    gpu::{Region, memory::ImportedMemory},
    probe::{
        mechanism::StartError,
        reduced,
        reduction::{self, Needs, Series, rank::Place, rank::RankError},
        seat::SeatError,
        wire::{Done, Job, Seating, Shared, Task},
    },
};
use std::time::Duration;

/// This process's rank of the all-reduces under way. Fields drop from the top: what was opened of others goes first.
#[derive(Default)]
pub(super) struct Member {
    /// The others' mailboxes in rank order; `None` at its own place.
    opened: Vec<Option<ImportedMemory>>,
    /// Its own, kept for as long as what comes next fits.
    own: Option<Own>,
    /// What is under way.
    series: Option<Series>,
}

struct Own {
    rank: reduction::Rank,
    place: Place,
    needs: Needs,
}

/// What setting up may take.
const SETUP: Duration = Duration::from_secs(10);

impl Rank {
    /// One step of an all-reduce; nothing is left queued.
    pub(super) fn reduce(&mut self, job: &Job) -> Result<Done, Stop> {
        match &job.task {
            Task::Seat(seating) => self.sit(seating),
            Task::Gather(shared) => self.gather(shared),
            Task::Begin(blocks) => self.begin_series(*blocks),
            Task::Reduce => {
                let factor = self.system.deadline_factor();
                let own = self.member.own.as_mut().ok_or(SeatError::Layout)?;
                Ok(Done::Saw(Box::new(own.rank.run(factor))))
            }
            Task::Close => {
                self.member.opened.clear();
                Ok(Done::Done)
            }
            _ => Err(SeatError::Layout.into()),
        }
    }

    /// Takes its place, with memory for the series, and exports its mailbox.
    fn sit(&mut self, seating: &Seating) -> Result<Done, Stop> {
        let Seating {
            series,
            place,
            needs,
        } = seating;
        let kernels = self
            .seat
            .reduce()
            .map_err(|why| Stop::With(why.outcome()))?;
        let shape = series.shape(place.ranks).ok_or(SeatError::Layout)?;
        let blocks = kernels.resident(shape.kernel, shape.threads, place.sharing);
        let blocks = blocks.map_err(|error| stop(error.into()))?;
        let fits = |own: &&Own| own.place == *place && own.needs.max(*needs) == own.needs;
        if self.member.own.as_ref().filter(fits).is_none() {
            let most = self
                .member
                .own
                .take()
                .map_or(*needs, |own| own.needs.max(*needs));
            let context = &self.seat.context;
            let rank = reduction::Rank::open(self.open.gpu, context, kernels, *place, most);
            self.member.own = Some(Own {
                rank: rank.map_err(stop)?,
                place: *place,
                needs: most,
            });
        }
        self.member.series = Some(series.clone());
        let own = self.member.own.as_ref().ok_or(SeatError::Layout)?;
        let mailbox = own.rank.mailbox();
        let handle = mailbox.export().map_err(refusal)?;
        Ok(Done::Seated {
            mailbox: Shared {
                bytes: mailbox.region().bytes(),
                handle: handle.0.to_vec(),
            },
            blocks,
        })
    }

    /// Opens the mailboxes of the others.
    fn gather(&mut self, shared: &[Option<Shared>]) -> Result<Done, Stop> {
        self.member.opened.clear();
        for one in shared {
            let Some(one) = one else {
                self.member.opened.push(None);
                continue;
            };
            let bytes = <[u8; 64]>::try_from(one.handle.as_slice());
            let bytes = bytes
                .map_err(|_| StartError::CannotRun("a handle has not 64 bytes".to_string()))?;
            let memory = ImportedMemory::open(&self.seat.context, IpcHandle(bytes), one.bytes);
            self.member.opened.push(Some(memory.map_err(refusal)?));
        }
        Ok(Done::Done)
    }

    fn begin_series(&mut self, blocks: u32) -> Result<Done, Stop> {
        let member = &mut self.member;
        let own = member.own.as_mut().ok_or(SeatError::Layout)?;
        let series = member.series.as_mut().ok_or(SeatError::Layout)?;
        series.tuning.blocks = Some(blocks);
        let mailboxes: Vec<Region> = member
            .opened
            .iter()
            .map(|opened| match opened {
                Some(memory) => memory.region(),
                None => own.rank.mailbox().region(),
            })
            .collect();
        let limit = SETUP * self.system.deadline_factor();
        let begun = own.rank.begin(series, &mailboxes, limit);
        begun.map_err(stop)?;
        Ok(Done::Done)
    }
}

fn stop(error: RankError) -> Stop {
    Stop::With(reduced::failure(error))
}
