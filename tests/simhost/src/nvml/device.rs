//! What NVML says of one GPU, and of the way between two.
use super::system::*;
use crate::cuda::nvml_pci_id;
use crate::scenario::PciAddress;
use crate::world::uuid_text;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlUtilization_t,
};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};
use std::sync::atomic::Ordering;

const BITS: usize = c_ulong::BITS as usize;

/// A bit set in words of the caller.
///
/// # Safety
/// `out` must be valid for `size` words.
unsafe fn bits(
    out: *mut c_ulong,
    size: c_uint,
    set: impl Iterator<Item = u32>,
) -> Result<(), Code> {
    if out.is_null() || size == 0 {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as the caller promises.
    let words = unsafe { std::slice::from_raw_parts_mut(out, size as usize) };
    words.fill(0);
    for bit in set {
        if let Some(word) = words.get_mut(bit as usize / BITS) {
            *word |= 1 << (bit as usize % BITS);
        }
    }
    Ok(())
}

/// NUMA node of a GPU; a GPU without one is near to all of them, as NVML has it.
fn near_nodes(device: Device) -> Result<Vec<(u32, [u32; 2])>, Code> {
    let (world, gpu) = gpu_of(device)?;
    let numa = world.topology.numa(world.topology.gpu_nodes[gpu]);
    let nodes = world.scenario.packages.iter().flat_map(|p| &p.nodes);
    Ok(nodes
        .filter(|n| numa < 0 || n.id as i32 == numa)
        .map(|n| (n.id, n.cpus))
        .collect())
}

fn cpus(device: Device, out: *mut c_ulong, size: c_uint) -> Result<(), Code> {
    let nodes = near_nodes(device)?;
    // SAFETY: the caller's array.
    unsafe { bits(out, size, nodes.into_iter().flat_map(|(_, [a, b])| a..=b)) }
}

fn processes(device: Device, count: *mut c_uint, out: *mut nvmlProcessInfo_t) -> Result<(), Code> {
    let (world, gpu) = gpu_of(device)?;
    let info = |pid, used| nvmlProcessInfo_t {
        pid,
        usedGpuMemory: used,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    let mut all: Vec<nvmlProcessInfo_t> = world.scenario.gpus[gpu]
        .foreign_processes
        .iter()
        .map(|&pid| info(pid, 1 << 20))
        .collect();
    let ours = world
        .processes()
        .filter(|p| p.contexts.load(Ordering::SeqCst) & 1 << gpu != 0);
    all.extend(ours.map(|p| {
        info(
            p.pid.load(Ordering::SeqCst),
            p.used[gpu].load(Ordering::SeqCst),
        )
    }));
    // SAFETY: the caller's array.
    unsafe { list(count, out, &all) }
}

fn needs_ecc(device: Device) -> Result<&'static crate::scenario::spec::Gpu, Code> {
    let (world, gpu) = gpu_of(device)?;
    if world.scenario.gpu.ecc {
        Ok(&world.scenario.gpus[gpu])
    } else {
        Err(NOT_SUPPORTED)
    }
}

fn errors(device: Device, kind: c_uint, out: *mut c_ulonglong) -> Result<(), Code> {
    let gpu = needs_ecc(device)?;
    let count = match kind {
        0 => gpu.ecc_corrected,
        1 => gpu.ecc_uncorrected,
        _ => return Err(INVALID_ARGUMENT),
    };
    // SAFETY: the caller's pointer.
    unsafe { put(out, count) }
}

export! {
    /// Product name.
    fn nvmlDeviceGetName(device: Device, out: *mut c_char, len: c_uint) {
        let (world, _) = gpu_of(device)?;
        // SAFETY: the caller's buffer.
        unsafe { text(out, len, &world.scenario.gpu.name) }
    }
    /// UUID as text.
    fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, len: c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's buffer.
        unsafe { text(out, len, &uuid_text(&world.uuid(gpu))) }
    }
    /// Serial number: made up from the UUID.
    fn nvmlDeviceGetSerial(device: Device, out: *mut c_char, len: c_uint) {
        let (world, gpu) = gpu_of(device)?;
        if !world.scenario.gpu.ecc { return Err(NOT_SUPPORTED); }
        let number = world.uuid(gpu).iter().fold(0_u64, |n, b| n.wrapping_mul(131).wrapping_add(u64::from(*b))) % 10_000_000_000;
        // SAFETY: the caller's buffer.
        unsafe { text(out, len, &format!("165{number:010}")) }
    }
    /// PCI address and ids.
    fn nvmlDeviceGetPciInfo_v3(device: Device, out: *mut nvmlPciInfo_t) {
        let (world, gpu) = gpu_of(device)?;
        let at = PciAddress::parse(&world.scenario.gpus[gpu].at).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: plain numbers and characters, for which zeros are valid.
        let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
        (info.domain, info.bus, info.device) = (at.domain, u32::from(at.bus), u32::from(at.device));
        info.pciDeviceId = nvml_pci_id(&world.scenario.gpu.id);
        info.pciSubSystemId = nvml_pci_id(&world.scenario.gpu.subsystem);
        for (to, from) in info.busId.iter_mut().zip(at.nvml().bytes()) { *to = from as c_char; }
        for (to, from) in info.busIdLegacy.iter_mut().zip(at.to_string().to_uppercase().bytes()) { *to = from as c_char; }
        // SAFETY: the caller's pointer.
        unsafe { put(out, info) }
    }
    /// Number of the GPU.
    fn nvmlDeviceGetIndex(device: Device, out: *mut c_uint) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, gpu_of(device)?.1 as c_uint) }
    }
    /// Number of its device file.
    fn nvmlDeviceGetMinorNumber(device: Device, out: *mut c_uint) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, gpu_of(device)?.1 as c_uint) }
    }
    /// Memory.
    fn nvmlDeviceGetMemoryInfo(device: Device, out: *mut nvmlMemory_t) {
        let (world, gpu) = gpu_of(device)?;
        let (total, used) = (world.memory(), world.used(gpu));
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvmlMemory_t { total, free: total.saturating_sub(used), used }) }
    }
    /// Memory, with what is reserved.
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: *mut nvmlMemory_v2_t) {
        let (world, gpu) = gpu_of(device)?;
        let (total, used) = (world.memory(), world.used(gpu));
        // SAFETY: the caller's pointer.
        let version = unsafe { out.as_ref() }.ok_or(INVALID_ARGUMENT)?.version;
        if version != size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24 { return Err(VERSION_MISMATCH); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvmlMemory_v2_t { version, total, reserved: 0, free: total.saturating_sub(used), used }) }
    }
    /// BAR1.
    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, out: *mut nvmlBAR1Memory_t) {
        let (world, _) = gpu_of(device)?;
        let total = world.scenario.gpu.bar1_mib << 20;
        let used = total.min(1 << 20);
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used }) }
    }
    /// ECC now and after the next reset.
    fn nvmlDeviceGetEccMode(device: Device, now: *mut c_uint, pending: *mut c_uint) {
        needs_ecc(device)?;
        // SAFETY: the caller's pointers.
        unsafe { put(now, 1)?; put(pending, 1) }
    }
    /// ECC errors of a kind.
    fn nvmlDeviceGetTotalEccErrors(device: Device, kind: c_uint, _counter: c_uint, out: *mut c_ulonglong) { errors(device, kind, out) }
    /// ECC errors of a kind and place; all of them are in device memory (2).
    fn nvmlDeviceGetMemoryErrorCounter(device: Device, kind: c_uint, _counter: c_uint, place: c_uint, out: *mut c_ulonglong) {
        if place == 2 { return errors(device, kind, out); }
        needs_ecc(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, 0) }
    }
    /// Rows remapped.
    fn nvmlDeviceGetRemappedRows(device: Device, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint, failed: *mut c_uint) {
        let gpu = needs_ecc(device)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(corrected, 0)?;
            put(uncorrected, gpu.remapped_rows)?;
            put(pending, c_uint::from(gpu.remap_pending))?;
            put(failed, c_uint::from(gpu.remap_failed))
        }
    }
    /// Retired pages: parts that remap rows have none.
    fn nvmlDeviceGetRetiredPages(device: Device, _cause: c_uint, _count: *mut c_uint, _out: *mut c_ulonglong) {
        gpu_of(device)?;
        Err(NOT_SUPPORTED)
    }
    /// Retired pages with times: parts that remap rows have none.
    fn nvmlDeviceGetRetiredPages_v2(device: Device, _cause: c_uint, _count: *mut c_uint, _out: *mut c_ulonglong, _times: *mut c_ulonglong) {
        gpu_of(device)?;
        Err(NOT_SUPPORTED)
    }
    /// Whether pages wait for retirement: parts that remap rows have none.
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Device, _out: *mut c_uint) {
        gpu_of(device)?;
        Err(NOT_SUPPORTED)
    }
    /// PCIe generation now.
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Device, out: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.topology.link_now(world.topology.gpu_nodes[gpu]).0) }
    }
    /// PCIe width now.
    fn nvmlDeviceGetCurrPcieLinkWidth(device: Device, out: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.topology.link_now(world.topology.gpu_nodes[gpu]).1) }
    }
    /// Highest generation of device and slot.
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Device, out: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.topology.link_most(world.topology.gpu_nodes[gpu]).0) }
    }
    /// Highest width of device and slot.
    fn nvmlDeviceGetMaxPcieLinkWidth(device: Device, out: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.topology.link_most(world.topology.gpu_nodes[gpu]).1) }
    }
    /// Highest generation of the device alone.
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Device, out: *mut c_uint) {
        let (world, _) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.scenario.gpu.pcie_generation) }
    }
    /// PCIe replays.
    fn nvmlDeviceGetPcieReplayCounter(device: Device, out: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.scenario.gpus[gpu].replays) }
    }
    /// Common ancestor of two GPUs.
    fn nvmlDeviceGetTopologyCommonAncestor(a: Device, b: Device, out: *mut c_uint) {
        let ((world, a), (_, b)) = (gpu_of(a)?, gpu_of(b)?);
        if a == b { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.topology.stated_path_type(a, b).nvml()) }
    }
    /// P2P state of a pair: 0 read, 1 write, 2 NVLink, 3 atomics, 4 the PCIe way.
    fn nvmlDeviceGetP2PStatus(a: Device, b: Device, index: c_uint, out: *mut c_uint) {
        let ((world, a), (_, b)) = (gpu_of(a)?, gpu_of(b)?);
        if a == b { return Err(INVALID_ARGUMENT); }
        let (stated, links) = (world.topology.stated_p2p(a, b), world.topology.nvlinks(a, b));
        let answer = match index {
            0 | 1 => stated,
            2 => if links > 0 { stated } else { 5 },
            3 => if world.topology.native_atomics(a, b) { 0 } else { 5 },
            4 => if links > 0 { 5 } else { stated },
            _ => return Err(INVALID_ARGUMENT),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(out, answer) }
    }
    /// CPUs near the GPU.
    fn nvmlDeviceGetCpuAffinity(device: Device, size: c_uint, out: *mut c_ulong) { cpus(device, out, size) }
    /// CPUs near the GPU.
    fn nvmlDeviceGetCpuAffinityWithinScope(device: Device, size: c_uint, out: *mut c_ulong, _scope: c_uint) { cpus(device, out, size) }
    /// NUMA nodes near the GPU.
    fn nvmlDeviceGetMemoryAffinity(device: Device, size: c_uint, out: *mut c_ulong, _scope: c_uint) {
        let nodes = near_nodes(device)?;
        // SAFETY: the caller's array.
        unsafe { bits(out, size, nodes.into_iter().map(|(id, _)| id)) }
    }
    /// NUMA node of the GPU's own memory: only coherent parts have one.
    fn nvmlDeviceGetNumaNodeId(device: Device, _out: *mut c_uint) {
        gpu_of(device)?;
        Err(NOT_SUPPORTED)
    }
    /// MIG now and after the next reset.
    fn nvmlDeviceGetMigMode(device: Device, now: *mut c_uint, pending: *mut c_uint) {
        let (world, gpu) = gpu_of(device)?;
        if !world.scenario.gpu.ecc { return Err(NOT_SUPPORTED); }
        let on = c_uint::from(world.scenario.gpus[gpu].mig);
        // SAFETY: the caller's pointers.
        unsafe { put(now, on)?; put(pending, on) }
    }
    /// Virtualisation of the GPU.
    fn nvmlDeviceGetVirtualizationMode(device: Device, out: *mut c_uint) {
        let (world, _) = gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.scenario.host.virtualization_mode) }
    }
    /// Compute processes.
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, out: *mut nvmlProcessInfo_t) { processes(device, count, out) }
    /// Graphics processes: none.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        gpu_of(device)?;
        // SAFETY: the caller's array.
        unsafe { list(count, out, &[]) }
    }
    /// How busy the GPU is: fully, while some process has a context.
    fn nvmlDeviceGetUtilizationRates(device: Device, out: *mut nvmlUtilization_t) {
        let (world, gpu) = gpu_of(device)?;
        let busy = world.processes().any(|p| p.contexts.load(Ordering::SeqCst) & 1 << gpu != 0) || !world.scenario.gpus[gpu].foreign_processes.is_empty() || world.scenario.gpus[gpu].busy;
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvmlUtilization_t { gpu: if busy { 100 } else { 0 }, memory: 0 }) }
    }
    /// Persistence mode: on.
    fn nvmlDeviceGetPersistenceMode(device: Device, out: *mut c_uint) {
        gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, 1) }
    }
    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: *mut c_int, minor: *mut c_int) {
        let (world, _) = gpu_of(device)?;
        let [a, b] = world.scenario.gpu.compute_capability;
        // SAFETY: the caller's pointers.
        unsafe { put(major, a)?; put(minor, b) }
    }
    /// Power in mW.
    fn nvmlDeviceGetPowerUsage(device: Device, out: *mut c_uint) {
        gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, 82_000) }
    }
    /// Temperature of the chip.
    fn nvmlDeviceGetTemperature(device: Device, sensor: c_uint, out: *mut c_uint) {
        gpu_of(device)?;
        if sensor != 0 { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, 34) }
    }
    /// Clock in MHz: 0 graphics, 1 SM, 2 memory, 3 video.
    fn nvmlDeviceGetClockInfo(device: Device, clock: c_uint, out: *mut c_uint) {
        gpu_of(device)?;
        let mhz = match clock { 0 | 1 => 1980, 2 => 2619, 3 => 1545, _ => return Err(INVALID_ARGUMENT) };
        // SAFETY: the caller's pointer.
        unsafe { put(out, mhz) }
    }
    /// The same, at most.
    fn nvmlDeviceGetMaxClockInfo(device: Device, clock: c_uint, out: *mut c_uint) {
        gpu_of(device)?;
        let mhz = match clock { 0 | 1 => 1980, 2 => 2619, 3 => 1545, _ => return Err(INVALID_ARGUMENT) };
        // SAFETY: the caller's pointer.
        unsafe { put(out, mhz) }
    }
    /// Why clocks are held down: for idleness (bit 0).
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, out: *mut c_ulonglong) {
        gpu_of(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, 1) }
    }
}
