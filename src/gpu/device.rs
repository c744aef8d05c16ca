//! The loaded driver and what it advertises of its devices.

use crate::{
    ffi::driver::{Driver, DriverError, LoadError, Marker, code},
    model::{pci::PciAddress, snapshot::Authenticity},
};
use std::sync::Arc;

/// Why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No usable driver library.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused to start.
    #[error("{}", explain(.0))]
    Init(DriverError),
    /// Another call failed.
    #[error(transparent)]
    Call(#[from] DriverError),
    /// The driver words a PCI address in a way that this program does not know.
    #[error("the driver names device {0} by the PCI address '{1}', which cannot be read")]
    Address(i32, String),
}

/// One sentence for the start-up codes that have a known meaning; the code itself otherwise.
fn explain(error: &DriverError) -> String {
    let meaning = match error.code {
        code::STUB_LIBRARY => {
            "a toolkit's stub library was found instead of the driver: remove the 'stubs' folder from LD_LIBRARY_PATH"
        }
        code::NO_DEVICE => {
            "the driver sees no GPU (is one hidden by CUDA_VISIBLE_DEVICES or by the container?)"
        }
        code::SYSTEM_NOT_READY => {
            "the NVSwitch fabric is not ready: nvidia-fabricmanager of exactly the driver's version must run"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {meaning}")
}

/// The initialised driver.
pub struct System {
    driver: Arc<Driver>,
}

/// What CUDA advertises of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// CUDA's device handle in this process.
    pub handle: i32,
    /// PCI address.
    pub pci: PciAddress,
    /// Product name.
    pub name: String,
    /// "GPU-xxxxxxxx-..." as NVML writes it.
    pub uuid: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Whether memory can be made without an address and mapped (virtual memory management).
    pub maps_memory: bool,
    /// Whether such memory can travel as a file descriptor.
    pub shares_descriptors: bool,
    /// Whether such memory can travel as a fabric handle.
    pub shares_fabric: bool,
    /// Whether its atomics on host memory are native, as over NVLink-C2C.
    pub host_atomics: bool,
}

/// CUdevice_attribute numbers (cuda.h).
const MULTIPROCESSOR_COUNT: i32 = 16;
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
const COMPUTE_CAPABILITY_MINOR: i32 = 76;
/// CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
const HOST_ATOMICS: i32 = 86;
/// CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
pub const MAPS_MEMORY: i32 = 102;
/// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
pub const SHARES_DESCRIPTORS: i32 = 103;
/// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
pub const SHARES_FABRIC: i32 = 128;

impl System {
    /// Loads and initialises the driver.
    pub fn start() -> Result<System, StartError> {
        let driver = Driver::load()?.map_err(StartError::Init)?;
        Ok(System {
            driver: Arc::new(driver),
        })
    }

    /// The driver table.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// CUDA version of the driver: 1000*major + 10*minor.
    pub fn version(&self) -> Result<i32, DriverError> {
        self.driver.version()
    }

    /// By what wall deadlines are multiplied: 1 on a real driver, what the look-alike states on a simulated one.
    pub fn deadline_factor(&self) -> u32 {
        match self.driver.marker() {
            Marker::Simulated { deadline_factor } => deadline_factor,
            Marker::None | Marker::FaultInjected => 1,
        }
    }

    /// Hardware, simulated or fault-injected.
    pub fn authenticity(&self) -> Authenticity {
        match self.driver.marker() {
            Marker::None => Authenticity::Hardware,
            Marker::Simulated { .. } => Authenticity::Simulated,
            Marker::FaultInjected => Authenticity::FaultInjected,
        }
    }

    /// All visible devices, in the driver's order.
    pub fn devices(&self) -> Result<Vec<Device>, StartError> {
        (0..self.driver.device_count()?)
            .map(|ordinal| self.device(ordinal))
            .collect()
    }

    fn device(&self, ordinal: i32) -> Result<Device, StartError> {
        let driver = &self.driver;
        let handle = driver.device_handle(ordinal)?;
        let text = driver.device_pci(handle)?;
        let pci = text
            .parse()
            .map_err(|_| StartError::Address(ordinal, text))?;
        let attribute = |number| {
            driver
                .device_attribute(handle, number)
                .map(|value| value.max(0) as u32)
        };
        // Older drivers do not know an attribute: then nothing is claimed.
        let claims = |number| driver.device_attribute(handle, number).unwrap_or(0) != 0;
        Ok(Device {
            maps_memory: claims(MAPS_MEMORY),
            shares_descriptors: claims(SHARES_DESCRIPTORS),
            shares_fabric: claims(SHARES_FABRIC),
            host_atomics: claims(HOST_ATOMICS),
            handle,
            pci,
            name: driver.device_name(handle)?,
            uuid: uuid_text(driver.device_uuid(handle)?),
            compute_capability: (
                attribute(COMPUTE_CAPABILITY_MAJOR)?,
                attribute(COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(MULTIPROCESSOR_COUNT)?,
            memory_bytes: driver.device_memory(handle)?,
        })
    }
}

/// NVML's spelling of a UUID.
fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let cut = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        cut(0, 8),
        cut(8, 12),
        cut(12, 16),
        cut(16, 20),
        cut(20, 32)
    )
}
