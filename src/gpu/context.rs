//! A device's primary context, and peer access between two of them.

use super::device::Device;
use crate::ffi::driver::{ContextHandle, Driver, DriverError, code};
use std::sync::Arc;

/// The primary context of one device. Every call that needs it current binds it first: driver contexts are current per
/// thread, and a worker drives several devices from one.
pub struct Context {
    driver: Arc<Driver>,
    handle: ContextHandle,
    device: Device,
}

/// What enabling or disabling peer access came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerChange {
    /// It is now as asked.
    Done,
    /// It was so already (704 on enabling, 705 on disabling).
    Already,
    /// A clean no: unsupported between the two (217), or the peer limit is reached (711).
    Refused(DriverError),
}

impl Context {
    /// Retains the primary context of `device` and makes it current.
    pub fn new(driver: &Arc<Driver>, device: &Device) -> Result<Arc<Context>, DriverError> {
        let handle = driver.context_retain(device.handle)?;
        let context = Context {
            driver: driver.clone(),
            handle,
            device: device.clone(),
        };
        context.bind()?;
        Ok(Arc::new(context))
    }

    /// Makes it current in this thread.
    pub fn bind(&self) -> Result<(), DriverError> {
        self.driver.context_bind(self.handle)
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its handle.
    pub fn handle(&self) -> ContextHandle {
        self.handle
    }

    /// Free and total device memory in bytes.
    pub fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        self.bind()?;
        self.driver.memory_info()
    }

    /// Whether the driver advertises native atomics of this device on memory of `peer`'s. Nothing else is asked before
    /// atomics are issued: where they are not native they do not fail, they are lost.
    pub fn advertises_atomics(&self, peer: &Context) -> bool {
        // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED (cuda.h); older drivers lack it: then nothing is claimed.
        const NATIVE_ATOMICS: i32 = 3;
        let (own, other) = (self.device.handle, peer.device.handle);
        self.driver
            .p2p_attribute(NATIVE_ATOMICS, own, other)
            .is_ok_and(|value| value != 0)
    }

    /// Lets this context access memory of `peer`.
    pub fn enable_peer(&self, peer: &Context) -> Result<PeerChange, DriverError> {
        self.bind()?;
        change(
            self.driver.peer_enable(peer.handle),
            code::PEER_ACCESS_ALREADY_ENABLED,
        )
    }

    /// Takes that back. `Already` proves that it was never enabled in this process.
    pub fn disable_peer(&self, peer: &Context) -> Result<PeerChange, DriverError> {
        self.bind()?;
        change(
            self.driver.peer_disable(peer.handle),
            code::PEER_ACCESS_NOT_ENABLED,
        )
    }
}

fn change(answer: Result<(), DriverError>, already: u32) -> Result<PeerChange, DriverError> {
    match answer {
        Ok(()) => Ok(PeerChange::Done),
        Err(error) if error.code == already => Ok(PeerChange::Already),
        Err(error)
            if matches!(
                error.code,
                code::PEER_ACCESS_UNSUPPORTED | code::TOO_MANY_PEERS
            ) =>
        {
            Ok(PeerChange::Refused(error))
        }
        Err(error) => Err(error),
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if super::hung() {
            return;
        }
        // A context that took an error may refuse; the process ends soon after, and with it everything.
        let _ = self.driver.context_release(self.device.handle);
    }
}
