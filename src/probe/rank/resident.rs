//! A rank's side of an exchange between processes: its own kernel, its own mailbox, its own stop word, and the judgement of
//! what arrived here. Of the other side it knows the mailbox that it opened, and the keys.

use super::{Opening, Rank, Stop, refusal};
use crate::{
    ffi::driver::IpcHandle,
    gpu::{WaitError, memory::ImportedMemory, resident::Terms},
    model::case::{Case, Subject},
    probe::{
        examine::Keys,
        mechanism::StartError,
        resident::{self, BETWEEN_PROCESSES, GRACE, Peer, Side, State},
        seat::SeatError,
        transfer,
        wire::{Done, Job, Shared, Task},
    },
    words::Key,
};
use std::time::{Duration, Instant};

impl Rank {
    /// One step of an exchange; nothing is left queued but a kernel that was started.
    pub(super) fn exchange(&mut self, job: &Job) -> Result<Done, Stop> {
        match &job.task {
            Task::Export => {
                resident::room(&self.seat, 1).map_err(Stop::With)?;
                let buffer = &self.seat.destination;
                let handle = buffer.export().map_err(refusal)?;
                Ok(Done::Exported(Shared {
                    bytes: buffer.region().bytes(),
                    handle: handle.0.to_vec(),
                }))
            }
            Task::Import(shared) => {
                let bytes = <[u8; 64]>::try_from(shared.handle.as_slice());
                let bytes = bytes
                    .map_err(|_| StartError::CannotRun("a handle has not 64 bytes".to_string()))?;
                let memory =
                    ImportedMemory::open(&self.seat.context, IpcHandle(bytes), shared.bytes);
                let opening = Opening::Ipc(memory.map_err(refusal)?);
                self.opened.insert(job.case.id, opening);
                Ok(Done::Done)
            }
            Task::Close => {
                self.opened.remove(&job.case.id);
                Ok(Done::Done)
            }
            Task::Reset => self.reset(job).map(|()| Done::Done).map_err(ended),
            Task::Start => self.start(job).map(|()| Done::Done).map_err(ended),
            Task::Await => self.outlast(job).map(Done::Exchanged).map_err(ended),
            Task::Judge => self.judge(job).map_err(ended),
            _ => Err(ended(SeatError::Layout)),
        }
    }

    /// This rank's side, what it knows of the other one, and the terms.
    fn side(&self, job: &Job) -> Result<(Side<'_>, Peer, Terms), SeatError> {
        let case = &job.case;
        let (arriving, sent) = self.exchange_keys(job)?;
        let slot = resident::slot(case);
        let side = Side::of(&self.seat, self.open.guard, arriving, slot);
        let far = self.opened.get(&case.id).and_then(Opening::region);
        let far = far.and_then(|room| resident::mailbox(room, self.open.guard, slot));
        let terms = resident::terms(&self.seat, case);
        let (side, (_, mailbox)) = side.zip(far).ok_or(SeatError::Layout)?;
        let peer = (mailbox, sent.payload);
        Ok((side, peer, terms.ok_or(SeatError::Layout)?))
    }

    /// Keys of what arrives here, and of what is sent.
    fn exchange_keys(&self, job: &Job) -> Result<(Keys, Keys), SeatError> {
        let run = self.open.run.wrapping_add(u32::from(job.pass)) & Key::RUN_BITS;
        let own = self.open.gpu;
        Ok(match job.case.subject {
            Subject::Group(_) => return Err(SeatError::Layout),
            Subject::Pair(pair) => {
                let number = resident::number(&job.case.mechanism);
                let peer = match pair.source.0 == own {
                    true => pair.destination.0,
                    false => pair.source.0,
                };
                let keys = |from, to| resident::keys(run, from, to, number);
                (keys(peer, own), keys(own, peer))
            }
            Subject::Gpu(_) => {
                let keys = |number| resident::keys(run, own, own, number);
                let [first, second] = BETWEEN_PROCESSES.map(keys);
                match self.open.second {
                    true => (second, first),
                    false => (first, second),
                }
            }
        })
    }

    fn reset(&self, job: &Job) -> Result<(), SeatError> {
        let (side, peer, terms) = self.side(job)?;
        self.seat.pinned.store_u32(0, 0);
        side.prepare(peer, &terms, self.exchange_limit(&job.case))
    }

    fn start(&self, job: &Job) -> Result<(), SeatError> {
        let (side, peer, terms) = self.side(job)?;
        side.launch(peer, &terms)
    }

    /// Waits until the kernel has ended: by itself, or because it is told to when it is far overdue.
    fn outlast(&self, job: &Job) -> Result<State, SeatError> {
        let (side, _, terms) = self.side(job)?;
        let factor = self.system.deadline_factor();
        let began = Instant::now();
        let overdue = resident::whole(&job.case) * factor;
        while !self.seat.stream.is_done()? {
            if began.elapsed() > overdue {
                self.seat.pinned.store_u32(0, 1);
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        match self.seat.stream.wait(GRACE * factor) {
            Ok(()) => {
                let reports = side.reports(terms.rounds, self.exchange_limit(&job.case))?;
                Ok(State::Ended(reports))
            }
            Err(WaitError::TimedOut(_)) => Ok(State::Hung(began.elapsed())),
            Err(error) => Err(error.into()),
        }
    }

    fn judge(&self, job: &Job) -> Result<Done, SeatError> {
        let (side, _, terms) = self.side(job)?;
        let limit = self.exchange_limit(&job.case);
        let reports = side.reports(terms.rounds, limit)?;
        let found = side.corruption(&reports, &terms, limit)?;
        Ok(found.map_or(Done::Right, |found| Done::Concluded(Box::new(found))))
    }

    /// For what is done before and after the kernels wait.
    fn exchange_limit(&self, case: &Case) -> Duration {
        let bytes = resident::inbox_bytes(resident::slot(case)) + 2 * self.open.guard;
        transfer::limit(bytes, self.system.deadline_factor())
    }
}

fn ended(error: SeatError) -> Stop {
    Stop::With(resident::failure(error))
}
