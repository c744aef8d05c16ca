//! Devices and what the driver says of them.
use super::codes::*;
use super::context::{driver, export, put, put_text};
use crate::scenario::{PciAddress, pci::parse_id};
use std::ffi::{CStr, c_char, c_int, c_void};

/// CUdevice_attribute, as far as answers are not zero.
fn attribute(number: c_int, gpu: usize) -> Result<c_int, Code> {
    let driver = driver()?;
    let world = driver.world;
    let model = &world.scenario.gpu;
    let at = PciAddress::parse(&world.scenario.gpus[gpu].at).ok_or(INVALID_VALUE)?;
    Ok(match number {
        1 => 1024,       // threads of a block
        2 | 3 => 1024,   // block x, y
        4 => 64,         // block z
        5 => i32::MAX,   // grid x
        6 | 7 => 65_535, // grid y, z
        8 => 48 << 10,   // shared memory of a block
        9 => 64 << 10,   // constant memory
        10 => 32,        // warp
        11 => i32::MAX,  // pitch
        12 => 65_536,    // registers of a block
        13 => 1_980_000, // clock, kHz
        14 => 512,       // texture alignment
        15 => 1,         // overlap
        16 => model.multiprocessors,
        18 => 0, // integrated
        19 => 1, // maps host memory
        20 => 0, // compute mode: default
        31 => 1, // concurrent kernels
        32 => c_int::from(model.ecc),
        33 => c_int::from(at.bus),
        34 => c_int::from(at.device),
        35 => 0,         // TCC driver
        36 => 2_619_000, // memory clock, kHz
        37 => 5120,      // memory bus width
        38 => 50 << 20,  // L2
        39 => 2048,      // threads of a multiprocessor
        40 => 3,         // copy engines
        41 => 1,         // unified addressing
        50 => at.domain as c_int,
        75 => model.compute_capability[0],
        76 => model.compute_capability[1],
        78 => 1,                                               // stream priorities
        81 => 48 << 10,                                        // shared memory of a multiprocessor
        82 => 65_536,                                          // registers of a multiprocessor
        83 => 1,                                               // managed memory
        84 => 0,                                               // multi-GPU board
        86 => c_int::from(world.scenario.driver.host_atomics), // native atomics on host memory
        89 => 1,                                               // concurrent managed access
        95 => 1,                                               // cooperative launch
        97 => 48 << 10,                                        // opt-in shared memory
        102 | 103 => c_int::from(world.scenario.driver.vmm), // virtual memory management, POSIX handles
        115 => c_int::from(world.scenario.driver.pools),     // memory pools
        119 => c_int::from(world.scenario.driver.pools),     // handle types of pools: POSIX
        // Real NVSwitch guests state it, and refuse the handle without a channel of the IMEX service.
        128 => c_int::from(world.scenario.driver.vmm && world.topology.has_nvswitch()),
        // 116 RDMA of mappings, 132 multicast: not simulated.
        _ => 0,
    })
}

export! {
    /// Number of devices.
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(count, driver()?.visible.len() as c_int) }
    }
    /// Handle of a device.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        driver()?.device(ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, ordinal) }
    }
    /// Product name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let driver = driver()?;
        driver.device(device)?;
        if name.is_null() || len <= 0 { return Err(INVALID_VALUE); }
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { put_text(name, len as usize, &driver.world.scenario.gpu.name) };
        Ok(())
    }
    /// UUID.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, driver.world.uuid(gpu)) }
    }
    /// UUID, older name.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, driver.world.uuid(gpu)) }
    }
    /// PCI address as text.
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        if text.is_null() || len <= 0 { return Err(INVALID_VALUE); }
        let at = PciAddress::parse(&driver.world.scenario.gpus[gpu].at).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's buffer of `len` bytes.
        if unsafe { put_text(text, len as usize, &at.to_string().to_uppercase()) } { Ok(()) } else { Err(INVALID_VALUE) }
    }
    /// Device by PCI address.
    fn cuDeviceGetByPCIBusId(device: *mut c_int, text: *const c_char) {
        let driver = driver()?;
        if text.is_null() { return Err(INVALID_VALUE); }
        // SAFETY: a C string of the caller.
        let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| INVALID_VALUE)?;
        let wanted = PciAddress::parse(text).ok_or(INVALID_VALUE)?;
        let found = driver.visible.iter().position(|&g| PciAddress::parse(&driver.world.scenario.gpus[g].at) == Some(wanted));
        // SAFETY: the caller's pointer.
        unsafe { put(device, found.ok_or(INVALID_DEVICE)? as c_int) }
    }
    /// One number about a device.
    fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) {
        let gpu = driver()?.device(device)?;
        if number <= 0 || number > 200 { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointer.
        unsafe { put(value, attribute(number, gpu)?) }
    }
    /// Bytes of memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let driver = driver()?;
        driver.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, driver.world.memory() as usize) }
    }
    /// Whether a device can reach another's memory, as the driver claims.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let driver = driver()?;
        let (a, b) = (driver.device(device)?, driver.device(peer)?);
        // SAFETY: the caller's pointer.
        unsafe { put(can, c_int::from(driver.world.topology.can_access(a, b))) }
    }
    /// One number about a pair: 1 performance rank, 2 access, 3 native atomics, 4 array access; from CUDA 13 on 5, whether
    /// only some atomics are native.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, number: c_int, source: c_int, destination: c_int) {
        let driver = driver()?;
        let (a, b) = (driver.device(source)?, driver.device(destination)?);
        if a == b { return Err(INVALID_DEVICE); }
        let topology = &driver.world.topology;
        let answer = match number {
            1 => c_int::from(topology.nvlinks(a, b) == 0),
            2 | 4 => c_int::from(topology.can_access(a, b)),
            3 => c_int::from(topology.native_atomics(a, b)),
            // No scenario has a link that carries only some.
            5 if driver.world.scenario.driver.cuda >= 13000 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, answer) }
    }
    /// Free and total memory of the current context's device.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        let all = driver.world.memory();
        // SAFETY: the caller's pointers.
        unsafe { put(free, all.saturating_sub(driver.world.used(gpu)) as usize)?; put(total, all as usize) }
    }
}

/// Where the driver's entry points are asked for by name instead of by symbol.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    _name: *const c_char,
    _out: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    _status: *mut c_int,
) -> Code {
    NOT_SUPPORTED
}

/// PCI ids of a GPU in NVML's order: device in the upper half.
pub(crate) fn nvml_pci_id(id: &str) -> u32 {
    parse_id(id).map_or(0, |(vendor, device)| {
        u32::from(device) << 16 | u32::from(vendor)
    })
}
