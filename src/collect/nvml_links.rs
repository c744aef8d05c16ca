//! NVLinks of one GPU as NVML tells them: state, rate, far end; errors for the observer.

use super::nvml::{absence, address_of};
use crate::{
    ffi::nvml_extra::{self, RemoteDevice},
    model::{
        pci::PciAddress,
        reading::{Absence, Reading},
        snapshot::{FabricState, NvLink, NvLinkEnd},
    },
};
use nvml_wrapper::{Device, enum_wrappers::nv_link::ErrorCounter, sys_exports::field_id};

/// Links asked for when the driver does not say how many there are: more than any GPU so far has; NVML refuses the rest.
const LINKS_AT_MOST: u32 = 36;

/// All links by their state. A GPU without NVLink answers "not supported" for link 0 and keeps that word.
///
/// Every single question about a link can cost a round trip to the GPU's firmware, so rates of all links are asked in one
/// call, and error counters not at all: 18 links cost 15 ms on an H200 (docs/hardware-log.md). The observer asks for them
/// before and after a run, which is when they say something.
pub(super) fn read(device: &Device<'_>, fabric: Option<&FabricState>) -> Reading<Vec<NvLink>> {
    let first_field = |field: u32| {
        let answer = nvml_extra::fields(device, &[(field, 0)]).ok()?;
        answer.into_iter().next()?.ok()
    };
    let told = first_field(field_id::NVML_FI_DEV_NVLINK_LINK_COUNT)
        .and_then(|count| u32::try_from(count).ok())
        .filter(|count| *count > 0);
    let mut links = Vec::new();
    for number in 0..told.unwrap_or(LINKS_AT_MOST).min(LINKS_AT_MOST) {
        let active = match device.link_wrapper_for(number).is_active() {
            Ok(active) => active,
            Err(error) if links.is_empty() => return Reading::Absent(absence(&error)),
            // Past the last link.
            Err(_) => break,
        };
        links.push(NvLink {
            link: number,
            active,
            version: None,
            raw_gb_per_s: None,
            remote: None,
            remote_kind: NvLinkEnd::Unknown,
            errors: None,
        });
    }
    let active: Vec<u32> = links.iter().filter(|l| l.active).map(|l| l.link).collect();
    let Some(first) = active.first().copied() else {
        return Reading::Known(links);
    };
    let rates = link_fields(device, field_id::NVML_FI_DEV_NVLINK_GET_SPEED, &active);
    let common = match rates.iter().all(Option::is_some) {
        true => None,
        false => first_field(field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON),
    };
    // All links of a GPU are of one version.
    let version = device.link_wrapper_for(first).version().ok();
    for (link, rate) in links.iter_mut().filter(|link| link.active).zip(rates) {
        (link.remote, link.remote_kind) = far_end(device, link.link, fabric);
        link.version = version;
        // NVML's "MBps" is 1e6 bytes a second: 26562 is printed as 26.562 GB/s.
        link.raw_gb_per_s = rate
            .or(common)
            .filter(|m| *m > 0)
            .map(|m| m as f64 / 1000.0);
    }
    Reading::Known(links)
}

/// Address and kind of what a link leads to.
fn far_end(
    device: &Device<'_>,
    number: u32,
    fabric: Option<&FabricState>,
) -> (Option<PciAddress>, NvLinkEnd) {
    let remote = device
        .link_wrapper_for(number)
        .remote_pci_info()
        .ok()
        .and_then(|info| address_of(&info).into_known())
        // Hidden far ends come as all ones, in the width that the source had.
        .filter(|remote| !matches!(remote.domain, u32::MAX | 0x0fff_ffff))
        .filter(|remote| !(remote.bus == 0xff && remote.device == 0x1f));
    // A GPU that is registered with a fabric has all its links in NVSwitches.
    let in_fabric = fabric.is_some_and(|f| f.state == "completed" && f.status == 0);
    let kind = match nvml_extra::remote_device(device, number) {
        Ok(RemoteDevice::Gpu) => NvLinkEnd::Gpu,
        Ok(RemoteDevice::PowerNpu) => NvLinkEnd::Cpu,
        Ok(RemoteDevice::Switch) => NvLinkEnd::Switch,
        Ok(RemoteDevice::Unknown) | Err(_) if in_fabric => NvLinkEnd::Switch,
        Ok(RemoteDevice::Unknown) | Err(_) => NvLinkEnd::Unknown,
    };
    (remote, kind)
}

/// One field of several links, in one call.
fn link_fields(device: &Device<'_>, field: u32, links: &[u32]) -> Vec<Option<u64>> {
    let wanted: Vec<(u32, u32)> = links.iter().map(|link| (field, *link)).collect();
    match nvml_extra::fields(device, &wanted) {
        Ok(answers) => answers.into_iter().map(Result::ok).collect(),
        Err(_) => vec![None; links.len()],
    }
}

/// Replay, recovery and CRC errors of each link, summed. Drivers without the fields are asked counter by counter.
fn link_errors(device: &Device<'_>, links: &[u32]) -> Vec<Option<u64>> {
    let fields = [
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    ];
    let wanted: Vec<(u32, u32)> = links
        .iter()
        .flat_map(|link| fields.map(|field| (field, *link)))
        .collect();
    let answers = nvml_extra::fields(device, &wanted).unwrap_or_default();
    let sums: Vec<Option<u64>> = answers
        .chunks(fields.len())
        .map(|of_link| {
            let known = of_link.iter().filter_map(|answer| answer.as_ref().ok());
            known.copied().reduce(u64::saturating_add)
        })
        .collect();
    if sums.len() == links.len() && sums.iter().any(Option::is_some) {
        return sums;
    }
    let counters = [
        ErrorCounter::DlReplay,
        ErrorCounter::DlRecovery,
        ErrorCounter::DlCrcFlit,
    ];
    let one_by_one = |link: u32| {
        let link = device.link_wrapper_for(link);
        let known = counters
            .iter()
            .filter_map(|counter| link.error_counter(*counter).ok());
        known.reduce(u64::saturating_add)
    };
    let mut sums = Vec::with_capacity(links.len());
    for link in links {
        sums.push(one_by_one(*link));
        // A driver that refuses the first link refuses all.
        if sums.iter().all(Option::is_none) {
            return vec![None; links.len()];
        }
    }
    sums
}

/// Sum over the active links.
pub(super) fn error_sum(device: &Device<'_>, links: &[u32]) -> Reading<u64> {
    let refused = |what: &str| Reading::Absent(Absence::NotSupported(what.to_string()));
    if links.is_empty() {
        return refused("no active NVLink");
    }
    let known = link_errors(device, links).into_iter().flatten();
    match known.reduce(u64::saturating_add) {
        Some(sum) => Reading::Known(sum),
        None => refused("NVML has no error counters for these links"),
    }
}
