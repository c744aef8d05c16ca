//! The machine, its kernel, its confinement, and the driver's files below /proc: facts that need no GPU library.
//!
//! Live values of memory, kernel and names come from sysinfo; a simulated or recorded host gives the same facts by its
//! files. Nothing here is tuned or changed.

use super::{
    live::Roots,
    sysfs::{read_parsed, read_text},
};
use crate::model::{
    reading::{Absence, Reading},
    snapshot::{Driver, Host},
};
use std::{fs, io::Read, path::Path};
use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// Start of /proc/cpuinfo that is read: one processor block is below 4 KiB, and the kernel works for each further one
/// (it may ask every CPU for its clock).
const CPUINFO_START: u64 = 8 * 1024;

/// Lines of /proc/driver/nvidia/params that say something of peers, links, BARs or sharing. A trailing `*` stands for
/// any rest. Each is reported with its value, default or not.
const PARAMS: [&str; 16] = [
    "RegistryDwords*",
    "NvLinkDisable",
    "DmaRemapPeerMmio",
    "EnableResizableBar",
    "EnablePCIERelaxedOrderingMode",
    "EnablePCIeGen3",
    "UsePageAttributeTable",
    "EnableStreamMemOPs",
    "GrdmaPciTopoCheckOverride",
    "PeerMappingOverride",
    "OpenRmEnableUnsupportedGpus",
    "CreateImexChannel*",
    "ImexChannelCount",
    "EnableGpuFirmware",
    "CoherentGPUMemoryMode",
    "EnableSystemMemoryPools",
];

/// Variables that steer CUDA, NCCL, visibility, the loader, or an engine's choice of communication. A trailing `*`
/// stands for any rest.
const VARIABLES: [&str; 18] = [
    "CUDA_*",
    "NCCL_*",
    "NVIDIA_*",
    "NVSHMEM_*",
    "GGML_CUDA_*",
    "TORCH_NCCL_*",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "VLLM_*",
    "SGLANG_*",
    "SGL_*",
    "FLASHINFER_*",
    "TRTLLM_*",
    "TLLM_*",
    "UCX_*",
    "HWLOC_*",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
];

/// Parts of a name that mark a secret. Such a variable is left out: reports are passed on.
const SECRET: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];

fn reading<T>(result: Result<T, Absence>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Known(value),
        Err(absence) => Reading::Absent(absence),
    }
}

fn listed(roster: &[&str], name: &str) -> bool {
    roster.iter().any(|entry| match entry.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *entry == name,
    })
}

/// Picks the steering variables, sorted by name, secrets left out. Workers run with a fixed environment, so the parent
/// passes what the operator had.
pub fn steering_variables(
    all: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut picked: Vec<(String, String)> = all
        .into_iter()
        .filter(|(name, _)| {
            let upper = name.to_ascii_uppercase();
            listed(&VARIABLES, name) && !SECRET.iter().any(|mark| upper.contains(mark))
        })
        .collect();
    picked.sort();
    picked
}

/// The steering variables of this process; names and values that are no UTF-8 are shown with replacement characters.
pub fn own_steering_variables() -> Vec<(String, String)> {
    steering_variables(std::env::vars_os().map(|(name, value)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    }))
}

/// Reads all host facts except the kernel log, which has a reader of its own.
pub fn read_host(roots: &Roots) -> Host {
    let text = |path: &str| reading(read_text(&roots.path(path)));
    let cpuinfo = cpuinfo_start(&roots.path("proc/cpuinfo"));
    let cpu_field = |names: &[&str]| -> Result<Option<String>, Absence> {
        let text = cpuinfo.as_ref().map_err(Clone::clone)?;
        Ok(text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            names
                .contains(&name.trim())
                .then(|| value.trim().to_string())
        }))
    };
    let mut host = Host {
        os: reading(read_text(&roots.path("etc/os-release")).and_then(|t| os_name(&t))),
        cpu_model: match cpu_field(&["model name", "cpu", "Model"]) {
            Ok(Some(model)) => Reading::Known(model),
            Ok(None) => Reading::Absent(Absence::NotSupported(
                "/proc/cpuinfo names no model".to_string(),
            )),
            Err(absence) => Reading::Absent(absence),
        },
        logical_cpus: reading(read_parsed(
            &roots.path("sys/devices/system/cpu/online"),
            count_list,
        )),
        cmdline: text("proc/cmdline"),
        dmi_vendor: text("sys/class/dmi/id/sys_vendor"),
        dmi_product: text("sys/class/dmi/id/product_name"),
        bios: bios(roots),
        hypervisor: match cpu_field(&["flags"]) {
            Ok(Some(flags)) => {
                Reading::Known(flags.split_whitespace().any(|flag| flag == "hypervisor"))
            }
            Ok(None) => Reading::Absent(Absence::NotSupported(
                "/proc/cpuinfo has no flags line on this architecture".to_string(),
            )),
            Err(absence) => Reading::Absent(absence),
        },
        iommu_classes: iommu_classes(roots),
        container: container(roots),
        shm_bytes: shm_bytes(roots),
        memlock_bytes: reading(read_parsed(&roots.path("proc/self/limits"), memlock)),
        ptrace_scope: ptrace_scope(roots),
        seccomp: reading(read_parsed(&roots.path("proc/self/status"), |t| {
            field(t, "Seccomp:")?.parse().ok()
        })),
        shm_free_bytes: shm_free_bytes(roots),
        capabilities: reading(read_parsed(&roots.path("proc/self/status"), |t| {
            u64::from_str_radix(field(t, "CapEff:")?, 16).ok()
        })),
        numa_balancing: reading(read_parsed(
            &roots.path("proc/sys/kernel/numa_balancing"),
            |t| t.parse().ok(),
        )),
        wsl: reading(
            read_text(&roots.path("proc/sys/kernel/osrelease"))
                .map(|release| release.to_ascii_lowercase().contains("microsoft")),
        ),
        ..Host::default()
    };
    match roots.root {
        None => live_facts(&mut host),
        Some(_) => {
            host.name = text("proc/sys/kernel/hostname");
            host.kernel = text("proc/sys/kernel/osrelease");
            host.memory_bytes = reading(read_parsed(&roots.path("proc/meminfo"), |t| {
                let kib: u64 = field(t, "MemTotal:")?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()?;
                kib.checked_mul(1024)
            }));
        }
    }
    host
}

/// What sysinfo knows of the running host.
fn live_facts(host: &mut Host) {
    let failed = |error: &dyn std::fmt::Display| Absence::Failed(format!("sysinfo: {error}"));
    host.name = reading(System::host_name().map_err(|e| failed(&e)));
    host.kernel = reading(System::kernel_version().map_err(|e| failed(&e)));
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    host.memory_bytes = match system.map(|s| s.total_memory()) {
        Ok(bytes) if bytes > 0 => Reading::Known(bytes),
        Ok(_) => Reading::Absent(failed(&"memory size 0")),
        Err(error) => Reading::Absent(failed(&error)),
    };
}

/// Names of processes, in the order of `pids`; `None` for those that this user or container cannot see.
pub fn process_names(roots: &Roots, pids: &[u32]) -> Vec<Option<String>> {
    if pids.is_empty() {
        return Vec::new();
    }
    if roots.root.is_some() {
        let comm = |pid: &u32| read_text(&roots.path("proc").join(pid.to_string()).join("comm"));
        return pids.iter().map(|pid| comm(pid).ok()).collect();
    }
    let wanted: Vec<Pid> = pids.iter().map(|pid| Pid::from_u32(*pid)).collect();
    let Ok(mut system) = System::new_with_specifics(RefreshKind::nothing()) else {
        return vec![None; pids.len()];
    };
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&wanted),
        false,
        ProcessRefreshKind::nothing(),
    );
    wanted
        .iter()
        .map(|pid| Some(system.process(*pid)?.name().to_string_lossy().into_owned()))
        .collect()
}

fn cpuinfo_start(path: &Path) -> Result<String, Absence> {
    let fail = |e| super::sysfs::absence_of(&e, &path.display().to_string());
    let mut bytes = Vec::new();
    fs::File::open(path)
        .map_err(fail)?
        .take(CPUINFO_START)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Value of the first line that begins with `key`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .map(str::trim)
}

fn os_name(text: &str) -> Result<String, Absence> {
    field(text, "PRETTY_NAME=")
        .or_else(|| field(text, "NAME="))
        .map(|name| name.trim_matches(['"', '\'']).to_string())
        .ok_or_else(|| Absence::Unparsed("os-release has no NAME".to_string()))
}

/// Members of a kernel list such as "0-31,64-95".
fn count_list(text: &str) -> Option<u32> {
    text.split(',').try_fold(0_u32, |sum, part| {
        let (start, end) = part.split_once('-').unwrap_or((part, part));
        let (start, end): (u32, u32) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
        sum.checked_add(end.checked_sub(start)?.checked_add(1)?)
    })
}

fn bios(roots: &Roots) -> Reading<String> {
    let part = |name: &str| read_text(&roots.path("sys/class/dmi/id").join(name));
    match (part("bios_date"), part("bios_version")) {
        (Ok(date), Ok(version)) => Reading::Known(format!("{date} {version}").trim().to_string()),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Reading::Known(one),
        (Err(absence), Err(_)) => Reading::Absent(absence),
    }
}

/// Folder names in /sys/class/iommu. A kernel without IOMMU support has no such folder; that is "none" as well, but
/// only where /sys itself can be seen.
fn iommu_classes(roots: &Roots) -> Reading<Vec<String>> {
    let folder = roots.path("sys/class/iommu");
    match fs::read_dir(&folder) {
        Ok(listing) => {
            let mut names: Vec<String> = listing
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            Reading::Known(names)
        }
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && roots.path("sys/class").is_dir() =>
        {
            Reading::Known(Vec::new())
        }
        Err(error) => Reading::Absent(super::sysfs::absence_of(
            &error,
            &folder.display().to_string(),
        )),
    }
}

/// Container kind by its marks. The marks can be missing in a container, so `Known(None)` means "none seen".
fn container(roots: &Roots) -> Reading<Option<String>> {
    let version = read_text(&roots.path("proc/version"));
    // gVisor's kernel gives itself away by name or by the one build date that every release carries.
    let gvisor = |v: &String| v.contains("gVisor") || v.contains("Sun Jan 10 15:06:54 PST 2016");
    if version.as_ref().is_ok_and(gvisor) {
        return Reading::Known(Some("gvisor".to_string()));
    }
    for (mark, kind) in [(".dockerenv", "docker"), ("run/.containerenv", "podman")] {
        if roots.path(mark).exists() {
            return Reading::Known(Some(kind.to_string()));
        }
    }
    let cgroup = read_text(&roots.path("proc/1/cgroup"));
    for (word, kind) in [
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("containerd", "containerd"),
        ("lxc", "lxc"),
    ] {
        if cgroup.as_ref().is_ok_and(|text| text.contains(word)) {
            return Reading::Known(Some(kind.to_string()));
        }
    }
    match (cgroup, version) {
        (Err(absence), Err(_)) => Reading::Absent(absence),
        _ => Reading::Known(None),
    }
}

/// Size of /dev/shm: of the running host by statvfs, of a recorded one by the `size=` option of its mount.
fn shm_bytes(roots: &Roots) -> Reading<u64> {
    if roots.root.is_none() {
        return match nix::sys::statvfs::statvfs("/dev/shm") {
            Ok(fs) => Reading::Known(fs.blocks().saturating_mul(fs.fragment_size())),
            Err(nix::errno::Errno::ENOENT) => {
                Reading::Absent(Absence::SourceMissing("/dev/shm".to_string()))
            }
            Err(errno) => Reading::Absent(Absence::Failed(format!("statvfs /dev/shm: {errno}"))),
        };
    }
    reading(read_parsed(&roots.path("proc/mounts"), |text| {
        let options = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (_source, place) = (words.next()?, words.next()?);
            (place == "/dev/shm").then(|| words.nth(1))?
        })?;
        let size = options.split(',').find_map(|o| o.strip_prefix("size="))?;
        let (digits, factor) = match size.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1024),
            None => (size, 1),
        };
        digits.parse::<u64>().ok()?.checked_mul(factor)
    }))
}

/// Free part of /dev/shm; a recorded host does not carry it.
fn shm_free_bytes(roots: &Roots) -> Reading<u64> {
    if roots.root.is_some() {
        return Reading::default();
    }
    match nix::sys::statvfs::statvfs("/dev/shm") {
        Ok(fs) => Reading::Known(fs.blocks_available().saturating_mul(fs.fragment_size())),
        Err(errno) => Reading::Absent(Absence::Failed(format!("statvfs /dev/shm: {errno}"))),
    }
}

/// Soft limit of "Max locked memory" in /proc/self/limits; `u64::MAX` = unlimited.
fn memlock(text: &str) -> Option<u64> {
    match field(text, "Max locked memory")?
        .split_whitespace()
        .next()?
    {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// A kernel without Yama has no such file and restricts nothing.
fn ptrace_scope(roots: &Roots) -> Reading<u32> {
    let path = roots.path("proc/sys/kernel/yama/ptrace_scope");
    match read_parsed(&path, |text| text.parse().ok()) {
        Err(Absence::SourceMissing(_)) if roots.path("proc/sys/kernel").is_dir() => {
            Reading::Known(0)
        }
        other => reading(other),
    }
}

/// What the kernel driver says of itself below /proc/driver/nvidia; NVML's part is filled in by the join.
pub fn read_driver(roots: &Roots) -> Driver {
    let version = read_text(&roots.path("proc/driver/nvidia/version"));
    let line = version.as_ref().map_err(Clone::clone).and_then(|text| {
        field(text, "NVRM version:").ok_or_else(|| {
            let start: String = text.chars().take(60).collect();
            Absence::Unparsed(format!("/proc/driver/nvidia/version: '{start}'"))
        })
    });
    Driver {
        version: reading(line.clone().and_then(|line| {
            line.split_whitespace()
                .find(|word| is_version(word))
                .map(str::to_string)
                .ok_or_else(|| Absence::Unparsed(format!("/proc/driver/nvidia/version: '{line}'")))
        })),
        flavour: reading(line.map(|line| {
            match line.contains("Open Kernel Module") {
                true => "open",
                false => "proprietary",
            }
            .to_string()
        })),
        params: reading(read_text(&roots.path("proc/driver/nvidia/params")).map(|t| params(&t))),
        peermem: module_loaded(roots, "nvidia_peermem"),
        hmm_disabled: reading(read_parsed(
            &roots.path("sys/module/nvidia_uvm/parameters/uvm_disable_hmm"),
            |text| match text {
                "Y" | "1" => Some(true),
                "N" | "0" => Some(false),
                _ => None,
            },
        )),
        imex_channels: imex_channels(roots),
        ..Driver::default()
    }
}

/// Whether /sys/module has a module; without /sys nobody knows.
fn module_loaded(roots: &Roots, name: &str) -> Reading<bool> {
    let modules = roots.path("sys/module");
    if !modules.is_dir() {
        return Reading::Absent(Absence::SourceMissing(modules.display().to_string()));
    }
    Reading::Known(modules.join(name).is_dir())
}

/// Channels for memory shared between hosts of one NVLink domain; a driver without IMEX makes no such folder.
fn imex_channels(roots: &Roots) -> Reading<u32> {
    let folder = roots.path("dev/nvidia-caps-imex-channels");
    match fs::read_dir(&folder) {
        Ok(listing) => Reading::Known(listing.flatten().count() as u32),
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && roots.path("dev").is_dir() =>
        {
            Reading::Known(0)
        }
        Err(error) => Reading::Absent(super::sysfs::absence_of(
            &error,
            &folder.display().to_string(),
        )),
    }
}

/// "580.159.04" or "470.82".
fn is_version(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    (2..=4).contains(&parts.len())
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The lines that matter, quotes around values removed.
fn params(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            let plain = value
                .strip_prefix('"')
                .and_then(|v| v.strip_suffix('"'))
                .unwrap_or(value);
            listed(&PARAMS, name.trim()).then(|| (name.trim().to_string(), plain.to_string()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_keep_what_matters_without_quotes() {
        let text = "ResmanDebugLevel: 4294967295\nNvLinkDisable: 1\nDmaRemapPeerMmio: 1\nRegistryDwords: \"ForceP2P=0x11;RMForceP2PType=1\"\nRegistryDwordsPerDevice: \"\"\n";
        assert_eq!(
            params(text),
            [
                ("NvLinkDisable".to_string(), "1".to_string()),
                ("DmaRemapPeerMmio".to_string(), "1".to_string()),
                (
                    "RegistryDwords".to_string(),
                    "ForceP2P=0x11;RMForceP2PType=1".to_string()
                ),
                ("RegistryDwordsPerDevice".to_string(), String::new()),
            ]
        );
    }

    #[test]
    fn secrets_of_engines_are_left_out() {
        let all = [
            ("VLLM_API_KEY", "x"),
            ("NCCL_P2P_DISABLE", "1"),
            ("HOME", "/root"),
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            ("SGLANG_AUTH_TOKEN", "x"),
        ]
        .map(|(a, b)| (a.to_string(), b.to_string()));
        let names: Vec<String> = steering_variables(all)
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        assert_eq!(names, ["CUDA_VISIBLE_DEVICES", "NCCL_P2P_DISABLE"]);
    }

    #[test]
    fn lists_and_limits() {
        assert_eq!(count_list("0-31,64-95"), Some(64));
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("5-3"), None);
        assert_eq!(count_list("0-4294967295"), None);
        assert_eq!(count_list(""), None);
        assert_eq!(
            memlock(
                "Limit   Soft Hard Units\nMax locked memory         8388608              8388608              bytes\n"
            ),
            Some(8_388_608)
        );
        assert_eq!(
            memlock("Max locked memory         unlimited            unlimited            bytes"),
            Some(u64::MAX)
        );
        assert!(is_version("580.159.04") && !is_version("x86_64") && !is_version("580"));
    }
}
