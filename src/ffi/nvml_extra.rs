//! NVML calls that nvml-wrapper 0.13 does not wrap, or wraps wrongly, and the marker symbols of libraries that stand in
//! for hardware. Answers are plain numbers and our own structs; nothing here knows what a snapshot is.

#![allow(unsafe_code)]

use libloading::os::unix::Library;
use nvml_wrapper::{
    Device, Nvml,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings as sys;
use std::{
    ffi::{c_uint, c_void},
    mem::size_of,
};

/// Marker symbol of look-alike drivers: no GPU is involved.
pub const MARKER_SIMULATED: &str = "peerproof_simulated";
/// Marker symbol of a library that plants faults in front of a real driver.
pub const MARKER_FAULT_INJECTED: &str = "peerproof_fault_injected";

/// NVML's fabric registration of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricInfo {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed; anything else is newer than this build.
    pub state: u32,
    /// nvmlReturn of the registration; 0 = success.
    pub status: u32,
    /// Cluster UUID.
    pub cluster: [u8; 16],
    /// Clique id inside the cluster.
    pub clique: u32,
    /// Health mask; the oldest form of the call does not carry it.
    pub health_mask: Option<u32>,
}

/// Rows that the memory controller replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCounts {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// A remapping waits for a reset.
    pub pending: bool,
    /// A remapping failed.
    pub failed: bool,
}

/// The remote end of an NVLink as NVML numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteDevice {
    /// 0: a GPU.
    Gpu,
    /// 1: the NVLink unit of a POWER CPU.
    PowerNpu,
    /// 2: an NVSwitch.
    Switch,
    /// 255, or a number newer than this build.
    Unknown,
}

/// nvmlReturn for an argument struct of a version that the library does not know.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// Fabric registration: the newest struct version that the driver knows of 3, 2 and the unversioned one (R525).
///
/// # Errors
/// NVML's own error; `FailedToLoadSymbol` below R525.
pub fn fabric_info(device: &Device<'_>) -> Result<FabricInfo, NvmlError> {
    let lib = device.nvml().lib();
    if let Ok(versioned) = lib.nvmlDeviceGetGpuFabricInfoV.as_ref() {
        let forms = [
            (size_of::<sys::nvmlGpuFabricInfo_v3_t>(), 3_u32),
            (size_of::<sys::nvmlGpuFabricInfo_v2_t>(), 2),
        ];
        for (size, number) in forms {
            let mut info = sys::nvmlGpuFabricInfo_v3_t {
                version: size as u32 | number << 24,
                clusterUuid: [0; 16],
                status: 0,
                cliqueId: 0,
                state: 0,
                healthMask: 0,
                healthSummary: 0,
            };
            // SAFETY: the handle lives as long as `device`; the v2 struct is a prefix of v3, so the buffer is large
            // enough for both versions that `version` names.
            let code = unsafe { versioned(device.handle(), &mut info) };
            if code == ARGUMENT_VERSION_MISMATCH {
                continue;
            }
            nvml_try(code)?;
            return Ok(FabricInfo {
                state: u32::from(info.state),
                status: info.status,
                cluster: info.clusterUuid,
                clique: info.cliqueId,
                health_mask: Some(info.healthMask),
            });
        }
    }
    let plain = nvml_sym(lib.nvmlDeviceGetGpuFabricInfo.as_ref())?;
    let mut info = sys::nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: the handle lives as long as `device`, and `info` is the struct that this call fills.
    nvml_try(unsafe { plain(device.handle(), &mut info) })?;
    Ok(FabricInfo {
        state: u32::from(info.state),
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health_mask: None,
    })
}

/// Total and used bytes by the first form of the call, for drivers below R510; there `used` includes the driver's own
/// reserve.
///
/// # Errors
/// NVML's own error.
pub fn memory_first_form(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = sys::nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the handle lives as long as `device`, and `memory` is the struct that this call fills.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok((memory.total, memory.used))
}

/// Whether confidential computing is on. nvml-wrapper offers the answer only joined with others.
///
/// # Errors
/// NVML's own error; `FailedToLoadSymbol` below R535.
pub fn confidential_computing(nvml: &Nvml) -> Result<bool, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeState.as_ref())?;
    let mut state = sys::nvmlConfComputeSystemState_t {
        environment: 0,
        ccFeature: 0,
        devToolsMode: 0,
    };
    // SAFETY: NVML is initialised as long as `nvml` lives, and `state` is the struct that this call fills.
    nvml_try(unsafe { call(&mut state) })?;
    Ok(state.ccFeature == sys::NVML_CC_SYSTEM_FEATURE_ENABLED)
}

/// Multi-GPU mode of confidential computing, as NVML numbers it: 0 none, 1 protected PCIe, 2 NVLE.
///
/// # Errors
/// NVML's own error; `FailedToLoadSymbol` below R550.
pub fn confidential_multi_gpu(nvml: &Nvml) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeSettings.as_ref())?;
    let mut settings = sys::nvmlSystemConfComputeSettings_v1_t {
        version: size_of::<sys::nvmlSystemConfComputeSettings_v1_t>() as u32 | 1 << 24,
        environment: 0,
        ccFeature: 0,
        devToolsMode: 0,
        multiGpuMode: 0,
    };
    // SAFETY: NVML is initialised as long as `nvml` lives, and `settings` is the struct that `version` names.
    nvml_try(unsafe { call(&mut settings) })?;
    Ok(settings.multiGpuMode)
}

/// Remapped rows of GPUs with row remapping (Ampere data centre parts and later).
///
/// # Errors
/// NVML's own error; `NotSupported` on parts without row remapping.
pub fn remapped_rows(device: &Device<'_>) -> Result<RowCounts, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut correctable, mut uncorrectable): (c_uint, c_uint) = (0, 0);
    let (mut pending, mut failed): (c_uint, c_uint) = (0, 0);
    // SAFETY: the handle lives as long as `device`; all four pointers are to live, writable unsigned ints.
    nvml_try(unsafe {
        call(
            device.handle(),
            &mut correctable,
            &mut uncorrectable,
            &mut pending,
            &mut failed,
        )
    })?;
    Ok(RowCounts {
        correctable,
        uncorrectable,
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// What is at the far end of `link`. nvml-wrapper 0.13's `remote_device_type` hands NVML a temporary and always answers
/// "unknown", hence this one.
///
/// # Errors
/// NVML's own error; `FailedToLoadSymbol` on drivers without the call.
pub fn remote_device(device: &Device<'_>, link: u32) -> Result<RemoteDevice, NvmlError> {
    let lib = device.nvml().lib();
    let call = nvml_sym(lib.nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind: c_uint = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: the handle lives as long as `device`; `kind` is a live unsigned int, which is what the C enum is.
    nvml_try(unsafe { call(device.handle(), link, &mut kind) })?;
    Ok(match kind {
        0 => RemoteDevice::Gpu,
        1 => RemoteDevice::PowerNpu,
        2 => RemoteDevice::Switch,
        _ => RemoteDevice::Unknown,
    })
}

/// Values of (field id, scope id) pairs, in one call. The scope of NVLink fields is the link number, which
/// nvml-wrapper's `field_values_for` cannot pass. Only fields with whole, non-negative values are read; field ids that
/// the driver renumbered in R580 (251 and up) must not be passed.
///
/// # Errors
/// NVML's own error for the call, and one for each field that has no value.
pub fn fields(
    device: &Device<'_>,
    wanted: &[(u32, u32)],
) -> Result<Vec<Result<u64, NvmlError>>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let count = i32::try_from(wanted.len()).map_err(|_| NvmlError::InvalidArg)?;
    let mut values: Vec<sys::nvmlFieldValue_t> = wanted
        .iter()
        .map(|(field, scope)| sys::nvmlFieldValue_t {
            fieldId: *field,
            scopeId: *scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            nvmlReturn: sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
            value: sys::nvmlValue_t { ullVal: 0 },
        })
        .collect();
    // SAFETY: the handle lives as long as `device`; `values` holds exactly `count` structs.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(whole_number).collect())
}

/// The value of a field as NVML typed it.
fn whole_number(field: &sys::nvmlFieldValue_t) -> Result<u64, NvmlError> {
    nvml_try(field.nvmlReturn)?;
    let value = field.value;
    match field.valueType {
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => {
            // SAFETY: NVML says which member it filled, and every bit pattern is a valid unsigned int.
            Ok(u64::from(unsafe { value.uiVal }))
        }
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
        | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
            // SAFETY: as above; `unsigned long` is 64 bits on every platform that is built for, and the union was
            // zeroed before the call.
            Ok(unsafe { value.ullVal })
        }
        other => Err(NvmlError::UnexpectedVariant(other)),
    }
}

/// Which marker symbols the loaded NVML, or a library loaded in front of it, exports. Call after NVML was initialised:
/// the library is then in the process already, and opening it again only raises its count.
pub fn markers(_proof_of_load: &Nvml) -> Vec<&'static str> {
    let mut seen = Vec::new();
    // SAFETY: the library was opened, and its initialisers ran, when `Nvml` was made.
    let nvml = unsafe { Library::new("libnvidia-ml.so.1") }.ok();
    // A preloaded interposer is not a dependency of libnvidia-ml and is found in the program's own scope only.
    let places = nvml.into_iter().chain(std::iter::once(Library::this()));
    for library in places {
        for marker in [MARKER_SIMULATED, MARKER_FAULT_INJECTED] {
            // SAFETY: the symbol is looked up as an address and never called nor read through.
            let found = unsafe { library.get::<*const c_void>(marker.as_bytes()) }.is_ok();
            if found && !seen.contains(&marker) {
                seen.push(marker);
            }
        }
    }
    seen
}
