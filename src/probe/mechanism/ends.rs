//! One transfer as a mechanism sees it: the seat whose engine works, and two regions that it can reach. The other end's
//! seat is there only when it lives in this process.

use super::StartError;
use crate::{
    gpu::Region,
    probe::{examine::Keys, seat::Seat},
};

/// One transfer.
pub struct Transfer<'a> {
    /// The seat whose engine moves the bytes. Of transfers through the host: the destination's.
    pub executing: &'a Seat,
    /// The other end's seat; none when that end is another process.
    pub other: Option<&'a Seat>,
    /// What is sent.
    pub from: Region,
    /// Where it must arrive, of equal length, at the same byte of a unit.
    pub to: Region,
    /// Index of the unit that holds the first byte.
    pub first: u64,
    /// What is sent, and what the owner wrote to the target before.
    pub keys: Keys,
}

impl Transfer<'_> {
    /// The other end's seat, for mechanisms in which both ends work.
    pub(super) fn other(&self) -> Result<&Seat, StartError> {
        self.other.ok_or_else(|| {
            StartError::CannotRun("both ends must be open in one process".to_string())
        })
    }

    /// Queues a copy out of the executing seat's memory into the other end's.
    pub(super) fn push(&self, to: Region, from: Region) -> Result<(), StartError> {
        let (own, stream) = (&*self.executing.context, &self.executing.stream);
        Ok(match self.other {
            Some(other) => stream.copy_peer((to, &other.context), (from, own))?,
            // Memory of another process has no context here: its address alone says where it is.
            None => stream.copy(to, from)?,
        })
    }

    /// Queues a copy out of the other end's memory into the executing seat's.
    pub(super) fn pull(&self, to: Region, from: Region) -> Result<(), StartError> {
        let (own, stream) = (&*self.executing.context, &self.executing.stream);
        Ok(match self.other {
            Some(other) => stream.copy_peer((to, own), (from, &other.context))?,
            None => stream.copy(to, from)?,
        })
    }
}
