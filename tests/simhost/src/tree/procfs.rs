//! /proc as far as a topology reader looks at it, and the kernel log.
use super::Files;
use crate::scenario::Scenario;
use crate::world::{gpu_uuid, uuid_text};
use std::io;

/// Lines of /proc/driver/nvidia/params with the values of an untouched driver.
const PARAMS: &[(&str, &str)] = &[
    ("ResmanDebugLevel", "4294967295"),
    ("RmLogonRC", "1"),
    ("ModifyDeviceFiles", "1"),
    ("DeviceFileMode", "438"),
    ("EnableMSI", "1"),
    ("EnableStreamMemOPs", "0"),
    ("NvLinkDisable", "0"),
    ("PreserveVideoMemoryAllocations", "0"),
    ("EnablePCIERelaxedOrderingMode", "0"),
    ("EnableResizableBar", "0"),
    ("EnableGpuFirmware", "18"),
    ("RmNvlinkBandwidthLinkCount", "0"),
    ("DmaRemapPeerMmio", "1"),
    ("ImexChannelCount", "2048"),
    ("GrdmaPciTopoCheckOverride", "0"),
    ("CoherentGPUMemoryMode", "\"\""),
    ("RegistryDwords", "\"\""),
    ("RegistryDwordsPerDevice", "\"\""),
    ("RmMsg", "\"\""),
    ("GpuBlacklist", "\"\""),
    ("ExcludedGpus", "\"\""),
];

pub(super) fn write(files: &Files, scenario: &Scenario) -> io::Result<()> {
    let host = &scenario.host;
    files.line("proc/cmdline", &host.command_line)?;
    files.line("proc/sys/kernel/hostname", &host.name)?;
    files.line("proc/sys/kernel/osrelease", &host.kernel)?;
    files.line("proc/sys/kernel/ostype", "Linux")?;
    files.line("proc/sys/kernel/dmesg_restrict", "0")?;
    files.line(
        "proc/version",
        &format!(
            "Linux version {} (build@simhost) (gcc 13.3.0) #1 SMP PREEMPT_DYNAMIC",
            host.kernel
        ),
    )?;
    files.line("proc/uptime", "86400.00 1000000.00")?;
    files.line("proc/stat", "btime 1767225600")?;
    let mib: u64 = scenario
        .packages
        .iter()
        .flat_map(|p| &p.nodes)
        .map(|n| n.memory_mib)
        .sum();
    files.text("proc/meminfo", &format!("MemTotal:       {} kB\nMemFree:        {} kB\nMemAvailable:   {} kB\nSwapTotal:      0 kB\n", mib * 1024, mib * 900, mib * 950))?;
    files.text("proc/cpuinfo", &cpuinfo(scenario))?;
    files.text("proc/modules", &format!("nvidia_uvm 2162688 4 - Live 0x0000000000000000\nnvidia {} 8 nvidia_uvm, Live 0x0000000000000000\n", 14_376_960))?;
    driver(files, scenario)?;
    let mut log = String::new();
    for (i, line) in scenario.kernel_log.iter().enumerate() {
        // Priority (facility kernel), sequence, microseconds since start.
        let priority = if line.contains("Xid") || line.contains("FAULT") {
            3
        } else {
            6
        };
        log.push_str(&format!(
            "{priority},{},{},-;{line}\n",
            100 + i,
            1_000_000 + 250_000 * i
        ));
    }
    files.text("dev/kmsg", &log)
}

fn cpuinfo(scenario: &Scenario) -> String {
    let host = &scenario.host;
    let hypervisor = if host.hypervisor { " hypervisor" } else { "" };
    let mut out = String::new();
    for (package, node) in scenario
        .packages
        .iter()
        .enumerate()
        .flat_map(|(p, package)| package.nodes.iter().map(move |n| (p, n)))
    {
        for cpu in node.cpus[0]..=node.cpus[1] {
            out.push_str(&format!(
                "processor\t: {cpu}\nvendor_id\t: {}\nmodel name\t: {}\nphysical id\t: {package}\ncore id\t\t: {}\nflags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep sse sse2 ht syscall nx lm constant_tsc avx avx2{hypervisor}\n\n",
                host.cpu_vendor,
                host.cpu_model,
                cpu - node.cpus[0]
            ));
        }
    }
    out
}

fn driver(files: &Files, scenario: &Scenario) -> io::Result<()> {
    let driver = &scenario.driver;
    let flavour = if driver.open {
        "NVIDIA UNIX Open Kernel Module for x86_64"
    } else {
        "NVIDIA UNIX x86_64 Kernel Module"
    };
    files.text(
        "proc/driver/nvidia/version",
        &format!("NVRM version: {flavour}  {}  Release Build  (build@simhost)\nGCC version:  gcc version 13.3.0\n", driver.version),
    )?;
    let mut params = String::new();
    for (name, value) in PARAMS {
        let value = driver.params.get(*name).map_or(*value, String::as_str);
        params.push_str(&format!("{name}: {value}\n"));
    }
    for (name, value) in driver
        .params
        .iter()
        .filter(|(n, _)| !PARAMS.iter().any(|(p, _)| p == n))
    {
        params.push_str(&format!("{name}: {value}\n"));
    }
    files.text("proc/driver/nvidia/params", &params)?;
    for (i, gpu) in scenario.gpus.iter().enumerate() {
        files.text(
            &format!("proc/driver/nvidia/gpus/{}/information", gpu.at),
            &format!("Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nBus Type: \t PCIe\nBus Location: \t {}\nDevice Minor: \t {i}\n", scenario.gpu.name, 100 + i, uuid_text(&gpu_uuid(scenario, i)), gpu.at),
        )?;
    }
    Ok(())
}
