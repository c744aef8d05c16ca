//! Lines of the kernel log that speak of GPUs, IOMMU faults or PCIe errors (facts: failures.md 3.9). Silence proves
//! nothing: several known faults log no line, and the ring may have turned over since.

use super::{live::Roots, sysfs::absence_of};
use crate::model::reading::Absence;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
};

/// Kept of each kind: so many from the start and as many from the end, so that a flood of one kind (corrected errors)
/// neither hides the others nor its own latest lines. Eleven kinds keep the whole at 220 lines.
const KEPT_AT_EACH_END: usize = 10;
/// Longest record that the kernel hands out, with room: one read returns one record, and a short buffer loses it.
const RECORD_BYTES: usize = 16 * 1024;
/// The kernel's ring is at most a few MiB; a recorded log may be anything.
const LOG_LIMIT: u64 = 64 * 1024 * 1024;

/// Kinds of relevant lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// NVRM: Xid.
    Xid,
    /// NVSwitch errors.
    Sxid,
    /// AMD's IOMMU: events and faults.
    AmdIommu,
    /// Intel's IOMMU: faults.
    IntelIommu,
    /// Arm's IOMMU: events.
    ArmIommu,
    /// The default domain type chosen at boot.
    IommuDefault,
    /// PCIe advanced error reporting.
    Aer,
    /// A PCIe link went down, or its port cut it off.
    LinkDown,
    /// Other lines of the NVIDIA driver that speak of peers, DMA or BARs.
    DriverPeer,
    /// Resizable BAR or address space could not be assigned.
    Resource,
    /// Mark of a sandboxed kernel.
    Sandbox,
}

impl Kind {
    /// The kind of a line, if it matters.
    pub fn of(line: &str) -> Option<Kind> {
        let has = |word: &str| line.contains(word);
        Some(if has("NVRM: Xid") {
            Kind::Xid
        } else if has("SXid") {
            Kind::Sxid
        } else if has("AMD-Vi:") {
            Kind::AmdIommu
        } else if has("DMAR:") && (has("fault") || has("Request device") || has("IOMMU enabled")) {
            Kind::IntelIommu
        } else if has("arm-smmu") && has("event") {
            Kind::ArmIommu
        } else if has("iommu: Default domain type") {
            Kind::IommuDefault
        } else if has("AER:") || has("PCIe Bus Error") {
            Kind::Aer
        } else if has("DPC:") && !has("enabled") && !has("capabilities")
            || has("] SDES")
            || has("pciehp") && has("Link Down")
        {
            Kind::LinkDown
        } else if has("NVRM:")
            && [
                "peer",
                "Peer",
                "P2P",
                "p2p",
                "DMA",
                "BAR",
                "alignment",
                "fallen off",
            ]
            .iter()
            .any(|w| has(w))
        {
            Kind::DriverPeer
        } else if has("no space for") || has("failed to assign") || has("can't assign") {
            Kind::Resource
        } else if has("gVisor") {
            Kind::Sandbox
        } else {
            return None;
        })
    }
}

/// The log as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelLog {
    /// Relevant lines in order, as dmesg prints them: "[   12.345678] text".
    pub lines: Vec<String>,
    /// Records read in all.
    pub records: usize,
    /// Relevant lines left out because of the bound.
    pub left_out: usize,
}

/// Reads the log to its present end without waiting for more.
///
/// # Errors
/// `NoPermission` for users without CAP_SYSLOG where kernel.dmesg_restrict is 1, `SourceMissing` in most containers.
pub fn read(roots: &Roots) -> Result<KernelLog, Absence> {
    let path = roots.path("dev/kmsg");
    let shown = path.display().to_string();
    let fail = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            Absence::NoPermission(format!("{shown}: needs CAP_SYSLOG (kernel.dmesg_restrict)"))
        }
        _ => absence_of(&error, &shown),
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .map_err(fail)?;
    let text = match roots.root {
        // A recorded log is a plain file with the same records.
        Some(_) => {
            let mut bytes = Vec::new();
            file.take(LOG_LIMIT).read_to_end(&mut bytes).map_err(fail)?;
            bytes
        }
        None => drain(file).map_err(fail)?,
    };
    Ok(filter(&String::from_utf8_lossy(&text)))
}

/// Reads records until the kernel has no more.
fn drain(mut file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut record = vec![0_u8; RECORD_BYTES];
    while (text.len() as u64) < LOG_LIMIT {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(record.get(..count).unwrap_or_default()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => break,
                // The ring turned over below us, or a record did not fit: the next read goes on behind it.
                Some(libc::EPIPE | libc::EINVAL | libc::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(text)
}

/// Picks the relevant lines out of records of the form "priority,sequence,microseconds,flags;text". Lines that begin
/// with a blank belong to the record before and carry device keys; they are skipped.
pub fn filter(text: &str) -> KernelLog {
    let mut log = KernelLog::default();
    let mut relevant: Vec<(Kind, String)> = Vec::new();
    for record in text.lines() {
        if record.starts_with(' ') || record.is_empty() {
            continue;
        }
        log.records += 1;
        let (stamp, line) = match record.split_once(';') {
            Some((head, line)) if head.starts_with(|c: char| c.is_ascii_digit()) => (
                head.split(',').nth(2).and_then(|us| us.parse::<u64>().ok()),
                line,
            ),
            // Not a record: a log saved by dmesg.
            _ => (None, record),
        };
        if let Some(kind) = Kind::of(line) {
            // The kernel escapes control characters itself; a recorded file may hold them raw.
            let line = line.replace(char::is_control, "?");
            let line = match stamp {
                Some(us) => format!("[{:>5}.{:06}] {line}", us / 1_000_000, us % 1_000_000),
                None => line,
            };
            relevant.push((kind, line));
        }
    }
    let count_of = |kind: Kind| relevant.iter().filter(|(k, _)| *k == kind).count();
    let mut counts = std::collections::BTreeMap::new();
    for (kind, _) in &relevant {
        counts
            .entry(*kind)
            .or_insert_with(|| (0_usize, count_of(*kind)));
    }
    for (kind, line) in relevant {
        let Some((seen, all)) = counts.get_mut(&kind) else {
            continue;
        };
        let from_end = *all - *seen;
        *seen += 1;
        if *seen <= KEPT_AT_EACH_END || from_end <= KEPT_AT_EACH_END {
            log.lines.push(line);
        } else {
            log.left_out += 1;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: &str = "\
6,1,0,-;Linux version 6.8.0
6,339,514090,-;iommu: Default domain type: Translated
6,340,514091,-;NET: Registered PF_INET protocol family
 SUBSYSTEM=net
4,900,61514090,-;NVRM: Xid (PCI:0000:17:00): 31, pid=1234, name=python
 SUBSYSTEM=pci
4,901,62000000,-;AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x2f000000 flags=0x0000]
3,902,63000001,-;pcieport 0000:15:01.0: AER: Corrected error received: 0000:15:01.0
3,903,63000002,-;DMAR: [DMA Write NO_PASID] Request device [17:00.0] fault addr 0xffff [fault reason 0x05]
";

    #[test]
    fn relevant_lines_stay_in_order_with_their_time() {
        let log = filter(LOG);
        assert_eq!(log.records, 7);
        assert_eq!(log.lines.len(), 5);
        assert_eq!(
            log.lines[0],
            "[    0.514090] iommu: Default domain type: Translated"
        );
        assert!(log.lines[1].starts_with("[   61.514090] NVRM: Xid (PCI:0000:17:00): 31"));
        assert_eq!(log.left_out, 0);
    }

    #[test]
    fn a_flood_of_one_kind_hides_nothing_else() {
        let mut text = String::new();
        for n in 0..5000 {
            text += &format!("3,{n},{n},-;pcieport 0000:15:01.0: AER: Corrected error {n}\n");
            if n == 2500 {
                text += "4,1,1,-;NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n";
            }
        }
        let log = filter(&text);
        assert_eq!(log.lines.len(), 2 * KEPT_AT_EACH_END + 1);
        assert_eq!(log.left_out, 5000 - 2 * KEPT_AT_EACH_END);
        assert!(log.lines.iter().any(|l| l.contains("Xid")));
        assert!(log.lines.last().unwrap().ends_with("error 4999"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,300}") {
            let _ = filter(&text);
        }
    }
}
