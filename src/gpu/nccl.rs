//! NCCL's all-reduce on streams of ours: communicators that end with their owner, and regions that hold what is asked of them.
//! Knows nothing of arms, logs or times.

use super::{context::Context, memory::Region, stream::Stream};
use crate::{
    ffi::{
        driver::DriverError,
        nccl::{CommHandle, Element, Nccl, NcclError, UniqueId},
    },
    model::reduction::Dtype,
};
use std::sync::Arc;

/// Why a communicator or a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// NCCL said so.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// The driver said so.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A region that is shorter than the vector.
    #[error("a region of {0} bytes cannot hold {1} bytes")]
    Short(u64, u64),
}

impl CommError {
    /// Entry point, number and name, as outcomes keep them.
    pub fn told(&self) -> (String, u32, String) {
        match self {
            CommError::Nccl(error) => (error.api.to_string(), error.code, error.name.clone()),
            CommError::Driver(error) => (error.api.to_string(), error.code, error.name.clone()),
            CommError::Short(..) => ("ncclAllReduce".to_string(), 4, self.to_string()),
        }
    }
}

/// The communicators of the ranks that this process holds.
pub struct Communicators {
    nccl: Arc<Nccl>,
    all: Vec<(CommHandle, Arc<Context>)>,
}

/// One rank's part of a call.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Which of the communicators, by the order in which they were made.
    pub local: usize,
    /// Its stream.
    pub stream: &'a Stream,
    /// Its vector.
    pub from: Region,
    /// Where the sum goes: `from` itself for a call in place.
    pub to: Region,
}

impl Communicators {
    /// Makes those of `ranks` of `world`, each on the device of its context. Blocks until all ranks of all processes are there.
    pub fn new(
        nccl: &Arc<Nccl>,
        id: UniqueId,
        world: u32,
        ranks: &[(u32, Arc<Context>)],
    ) -> Result<Self, CommError> {
        let numbers: Vec<u32> = ranks.iter().map(|(rank, _)| *rank).collect();
        // NCCL takes the thread's current device, which follows the primary context that is current.
        let bind = |at: usize| match ranks.get(at) {
            Some((_, context)) => context.bind(),
            None => Ok(()),
        };
        let made = nccl.comms_init(id, world, &numbers, bind)??;
        let contexts = ranks.iter().map(|(_, context)| context.clone());
        Ok(Communicators {
            nccl: nccl.clone(),
            all: made.into_iter().zip(contexts).collect(),
        })
    }

    /// Queues one all-reduce of `bytes` bytes on every rank that this process holds.
    pub fn all_reduce(
        &self,
        parts: &[Part<'_>],
        bytes: u64,
        dtype: Dtype,
    ) -> Result<(), CommError> {
        for part in parts {
            let room = part.from.bytes().min(part.to.bytes());
            if room < bytes {
                return Err(CommError::Short(room, bytes));
            }
        }
        self.nccl.group_start()?;
        let mut queued: Result<(), CommError> = Ok(());
        for part in parts {
            let Some((comm, context)) = self.all.get(part.local) else {
                continue;
            };
            queued = queued.and_then(|()| {
                context.bind()?;
                let places = (part.from.address(), part.to.address());
                let count = (bytes / dtype.bytes(), element(dtype));
                Ok(self
                    .nccl
                    .all_reduce(places, count, *comm, part.stream.handle())?)
            });
        }
        // A group that was begun must end, whatever came in between.
        let ended = self.nccl.group_end();
        queued?;
        Ok(ended?)
    }

    /// An error that no call has answered.
    pub fn healthy(&self) -> Result<(), CommError> {
        for (comm, context) in &self.all {
            context.bind()?;
            self.nccl.async_error(*comm)?;
        }
        Ok(())
    }
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::Fp16 => Element::Float16,
        Dtype::Bf16 => Element::Bfloat16,
        Dtype::Fp32 => Element::Float32,
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        // Work that hangs keeps even an abort waiting, and the process is about to be retired.
        if super::hung() {
            return;
        }
        let healthy = self.healthy().is_ok();
        for (comm, context) in &self.all {
            if context.bind().is_ok() {
                let _ = match healthy {
                    true => self.nccl.comm_destroy(*comm),
                    false => self.nccl.comm_abort(*comm),
                };
            }
        }
    }
}
