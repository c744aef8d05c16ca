//! Pools of stream-ordered memory. Who may reach their memory is said to the pool, accessor by accessor: peer access of
//! contexts says nothing about it. Knows grants and their proof; not what is moved.

use super::{context::Context, memory::Region, stream::Stream};
use crate::ffi::driver::{DriverError, PoolHandle, code};
use std::sync::Arc;

/// CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED (cuda.h).
const POOLS_SUPPORTED: i32 = 115;

/// A pool on one device.
pub struct Pool {
    context: Arc<Context>,
    handle: PoolHandle,
}

/// Why there is no pool, or why another device may not reach it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The device or its driver has none.
    #[error("this GPU and its driver have no stream-ordered memory pools")]
    Unsupported,
    /// The driver's answer does not fit what was asked before: nothing could be proven of such memory.
    #[error("cuMemPoolGetAccess says {says} {when} the grant")]
    Unproven {
        /// What it says.
        says: &'static str,
        /// Before or after.
        when: &'static str,
    },
    /// A call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Pool {
    /// Makes one on the device of `context`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Pool>, PoolError> {
        let (driver, device) = (context.driver(), context.device().handle);
        // A driver that does not know the attribute has no pools.
        if driver.device_attribute(device, POOLS_SUPPORTED).unwrap_or(0) == 0 {
            return Err(PoolError::Unsupported);
        }
        context.bind()?;
        match driver.pool_create(device) {
            Ok(handle) => Ok(Arc::new(Pool {
                context: context.clone(),
                handle,
            })),
            Err(error) if error.code == code::NOT_SUPPORTED => Err(PoolError::Unsupported),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets `accessor`'s device read and write this pool's memory. Proven on both sides: the driver says that it could
    /// not before, and that it can now.
    pub fn grant(&self, accessor: &Context) -> Result<(), PoolError> {
        let (driver, device) = (self.context.driver(), accessor.device().handle);
        self.context.bind()?;
        let says = |access: Option<bool>| match access {
            Some(true) => "read and write",
            Some(false) => "no access",
            None => "something between",
        };
        let before = driver.pool_access(self.handle, device)?;
        if before != Some(false) {
            let (says, when) = (says(before), "before");
            return Err(PoolError::Unproven { says, when });
        }
        driver.pool_grant(self.handle, device)?;
        let after = driver.pool_access(self.handle, device)?;
        if after != Some(true) {
            let (says, when) = (says(after), "after");
            return Err(PoolError::Unproven { says, when });
        }
        Ok(())
    }

    /// Takes `bytes`, there for good once `stream` has come so far.
    pub(super) fn take(&self, bytes: u64, stream: &Stream) -> Result<Region, DriverError> {
        self.context.bind()?;
        let driver = self.context.driver();
        let address = driver.pool_alloc(self.handle, bytes, stream.handle())?;
        Ok(Region::new(address, bytes))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().pool_destroy(self.handle);
        }
    }
}
