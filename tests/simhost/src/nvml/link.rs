//! NVLink, its fabric, and field values.
use super::system::*;
use crate::scenario::PciAddress;
use crate::world::World;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlPciInfo_t, nvmlValue_t,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

/// Links an NVML call may name.
const MOST_LINKS: u32 = 18;

/// Checks a link number: one that the part does not have is not supported, one that no part has is an error.
fn link_of(device: Device, link: c_uint) -> Result<(&'static World, usize), Code> {
    let (world, gpu) = gpu_of(device)?;
    let links = world.scenario.nvlink.as_ref().map_or(0, |l| l.links);
    match link {
        l if l >= MOST_LINKS => Err(INVALID_ARGUMENT),
        l if l >= links => Err(NOT_SUPPORTED),
        _ => Ok((world, gpu)),
    }
}

fn pci(at: PciAddress, id: u32) -> nvmlPciInfo_t {
    // SAFETY: plain numbers and characters, for which zeros are valid.
    let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    (info.domain, info.bus, info.device, info.pciDeviceId) =
        (at.domain, u32::from(at.bus), u32::from(at.device), id);
    for (to, from) in info.busId.iter_mut().zip(at.nvml().bytes()) {
        *to = from as c_char;
    }
    for (to, from) in info
        .busIdLegacy
        .iter_mut()
        .zip(at.to_string().to_uppercase().bytes())
    {
        *to = from as c_char;
    }
    info
}

/// Fabric state: 3 completed where switches carry the links, else 0 not supported.
fn fabric(device: Device) -> Result<u32, Code> {
    let (world, gpu) = gpu_of(device)?;
    let switched = world.topology.has_nvswitch() && world.topology.link_up(gpu, 0);
    Ok(if switched { 3 } else { 0 })
}

fn field(world: &World, gpu: usize, id: c_uint, scope: c_uint) -> Option<(u32, u64)> {
    const UINT: u32 = 1;
    const ULONGLONG: u32 = 3;
    let gpu_facts = &world.scenario.gpus[gpu];
    let link = world.scenario.nvlink.as_ref();
    let links = link.map_or(0, |l| l.links);
    let mbps = || link.map(|l| (l.link_gbps * 1062.5) as u64);
    let bytes = |way: usize| world.shared().nvlink_bytes[gpu][way].load(Ordering::Relaxed);
    Some(match id {
        91 => (UINT, u64::from(links)),
        84..=89 => (
            UINT,
            if world.topology.link_up(gpu, id - 84) {
                mbps()?
            } else {
                0
            },
        ),
        132..=137 => (
            UINT,
            if world.topology.link_up(gpu, id - 132 + 6) {
                mbps()?
            } else {
                0
            },
        ),
        90 | 164 if links > 0 => (UINT, mbps()?),
        94 => (UINT, u64::from(gpu_facts.replays)),
        // KiB since start; a scope names one link, all ones mean the sum.
        138..=141 if links > 0 => {
            let sum = bytes((id - 138) as usize % 2) / 1024;
            (
                ULONGLONG,
                if scope == u32::MAX {
                    sum
                } else if scope < links {
                    sum / u64::from(links)
                } else {
                    return None;
                },
            )
        }
        142 if world.scenario.gpu.ecc => (UINT, 0),
        143 if world.scenario.gpu.ecc => (UINT, u64::from(gpu_facts.remapped_rows)),
        144 if world.scenario.gpu.ecc => (UINT, u64::from(gpu_facts.remap_pending)),
        145 if world.scenario.gpu.ecc => (UINT, u64::from(gpu_facts.remap_failed)),
        165 if scope < links => (UINT, u64::from(world.topology.link_up(gpu, scope))),
        166 if links > 0 => (UINT, u64::from(link?.version)),
        170 => (UINT, 0),
        202 if scope < links => (ULONGLONG, bytes(0) / u64::from(links)),
        204 if scope < links => (ULONGLONG, bytes(1) / u64::from(links)),
        _ => return None,
    })
}

export! {
    /// Whether a link is up.
    fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, out: *mut c_uint) {
        let (world, gpu) = link_of(device, link)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, c_uint::from(world.topology.link_up(gpu, link))) }
    }
    /// Version of a link.
    fn nvmlDeviceGetNvLinkVersion(device: Device, link: c_uint, out: *mut c_uint) {
        let (world, _) = link_of(device, link)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, world.scenario.nvlink.as_ref().map_or(0, |l| l.version)) }
    }
    /// What a link can do: 0 P2P, 1 system memory, 2 P2P atomics, 3 system memory atomics, 4 SLI, 5 valid.
    fn nvmlDeviceGetNvLinkCapability(device: Device, link: c_uint, capability: c_uint, out: *mut c_uint) {
        let (world, gpu) = link_of(device, link)?;
        let answer = match capability { 0 | 2 | 5 => world.topology.link_up(gpu, link), 1 | 3 | 4 => false, _ => return Err(INVALID_ARGUMENT) };
        // SAFETY: the caller's pointer.
        unsafe { put(out, c_uint::from(answer)) }
    }
    /// What is at the other end of a link.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, out: *mut nvmlPciInfo_t) {
        let (world, gpu) = link_of(device, link)?;
        if !world.topology.link_up(gpu, link) { return Err(NOT_SUPPORTED); }
        let nvlink = world.scenario.nvlink.as_ref().ok_or(NOT_SUPPORTED)?;
        let (at, id) = match world.topology.link_peer(gpu, link) {
            Some(peer) => (world.scenario.gpus[peer].at.clone(), &world.scenario.gpu.id),
            None if nvlink.switches.is_empty() => return Err(NOT_SUPPORTED),
            None => (nvlink.switches[link as usize % nvlink.switches.len()].clone(), &nvlink.switch_id),
        };
        let at = PciAddress::parse(&at).ok_or(NOT_SUPPORTED)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, pci(at, crate::cuda::nvml_pci_id(id))) }
    }
    /// Kind of the other end: 0 GPU, 2 switch.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Device, link: c_uint, out: *mut c_uint) {
        let (world, gpu) = link_of(device, link)?;
        if !world.topology.link_up(gpu, link) { return Err(NOT_SUPPORTED); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, if world.topology.link_peer(gpu, link).is_some() { 0 } else { 2 }) }
    }
    /// Errors of a link: none.
    fn nvmlDeviceGetNvLinkErrorCounter(device: Device, link: c_uint, counter: c_uint, out: *mut c_ulonglong) {
        link_of(device, link)?;
        if counter > 4 { return Err(INVALID_ARGUMENT); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, 0) }
    }
    /// Fabric state, first form.
    fn nvmlDeviceGetGpuFabricInfo(device: Device, out: *mut nvmlGpuFabricInfo_t) {
        let state = fabric(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: state as _ }) }
    }
    /// Fabric state, with versions 2 and 3.
    fn nvmlDeviceGetGpuFabricInfoV(device: Device, out: *mut nvmlGpuFabricInfo_v3_t) {
        let state = fabric(device)?;
        if out.is_null() { return Err(INVALID_ARGUMENT); }
        // SAFETY: both versions begin with their version word.
        let version = unsafe { (*out).version };
        // SAFETY: the version says which structure the caller's pointer is valid for.
        unsafe {
            if version == size_of::<nvmlGpuFabricInfo_v3_t>() as u32 | 3 << 24 {
                put(out, nvmlGpuFabricInfo_v3_t { version, clusterUuid: [0; 16], status: 0, cliqueId: 0, state: state as _, healthMask: 0, healthSummary: 0 })
            } else if version == size_of::<nvmlGpuFabricInfo_v2_t>() as u32 | 2 << 24 {
                put(out.cast::<nvmlGpuFabricInfo_v2_t>(), nvmlGpuFabricInfo_v2_t { version, clusterUuid: [0; 16], status: 0, cliqueId: 0, state: state as _, healthMask: 0 })
            } else {
                Err(VERSION_MISMATCH)
            }
        }
    }
    /// Several numbers at once; each carries its own result.
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: *mut nvmlFieldValue_t) {
        let (world, gpu) = gpu_of(device)?;
        if values.is_null() || count < 0 { return Err(INVALID_ARGUMENT); }
        for i in 0..count as usize {
            // SAFETY: an array of `count` values of the caller.
            let value = unsafe { &mut *values.add(i) };
            (value.timestamp, value.latencyUsec) = (0, 0);
            match field(world, gpu, value.fieldId, value.scopeId) {
                Some((kind, number)) => {
                    value.valueType = kind as _;
                    value.value = nvmlValue_t { ullVal: number };
                    value.nvmlReturn = 0;
                }
                None => value.nvmlReturn = NOT_SUPPORTED as _,
            }
        }
        Ok(())
    }
}
