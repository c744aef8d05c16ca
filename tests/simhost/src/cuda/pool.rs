//! Stream-ordered pools. Their memory says itself who may reach it; peer access of contexts says nothing about it.
use super::memory::{AccessTable, READ_WRITE};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool of one GPU.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) gpu: usize,
    pub(crate) access: Arc<AccessTable>,
    /// The one that the driver made; it cannot be destroyed.
    pub(crate) default: bool,
    /// Attributes that are only kept: 1 to 3 reuse, 4 release threshold.
    pub(crate) kept: [AtomicU64; 5],
    used: AtomicU64,
    most: AtomicU64,
}

impl Pool {
    pub(crate) fn new(gpu: usize, default: bool) -> Self {
        let pool = Self {
            gpu,
            access: Arc::default(),
            default,
            kept: std::array::from_fn(|i| AtomicU64::new(u64::from((1..4).contains(&i)))),
            used: AtomicU64::new(0),
            most: AtomicU64::new(0),
        };
        pool.access.set(gpu, READ_WRITE);
        pool
    }

    pub(crate) fn grown(&self, bytes: u64) {
        let now = self.used.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    pub(crate) fn shrunk(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Bytes in use now, and the most so far.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (
            self.used.load(Ordering::SeqCst),
            self.most.load(Ordering::SeqCst),
        )
    }

    /// Starts the count of the most anew.
    pub(crate) fn reset_most(&self) {
        self.most
            .store(self.used.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}
