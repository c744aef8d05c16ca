//! Which kind of file it is, and the reader for it. A kind that is known but not read is refused by its name, with what
//! to give instead.

use super::{
    error::{ImportError, quoted},
    hwloc_xml, nccl_xml, report_json, topo_text,
    xml::{Xml, place_of},
};
use crate::{collect::topology, model::snapshot::Snapshot};

/// Largest input accepted, in bytes.
pub const MAX_INPUT_BYTES: usize = 64 << 20;

/// What can be given, for messages.
const ACCEPTED: &str = "a peerproof report, hwloc XML (lstopo host.xml), NCCL topology XML (NCCL_TOPO_DUMP_FILE) \
                        or the text of nvidia-smi topo -m";

/// Reads a file that tells of a host and joins what it says. `file_name` is for messages only; the kind is told by the
/// content.
///
/// # Errors
/// One message with line and column where there is text to point at: too large, not text, not well formed, a kind that
/// is not read, or a kind that is not known.
pub fn read(file_name: &str, bytes: &[u8]) -> Result<Snapshot, ImportError> {
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(ImportError::whole(
            file_name,
            format!(
                "{} bytes; files above {MAX_INPUT_BYTES} are not read",
                bytes.len()
            ),
        ));
    }
    let text = decode(file_name, bytes)?;
    let start = text.trim_start();
    let mut snapshot = match start.as_bytes().first() {
        None => {
            return Err(ImportError::whole(
                file_name,
                format!("empty; give {ACCEPTED}"),
            ));
        }
        Some(b'<') => read_xml(file_name, &text)?,
        // A saved report was joined when it was taken; it is shown as it was.
        Some(b'{') => return report_json::read(file_name, &text),
        Some(_) => read_text(file_name, &text)?,
    };
    topology::join(&mut snapshot);
    Ok(snapshot)
}

fn read_xml(file: &str, text: &str) -> Result<Snapshot, ImportError> {
    let xml = Xml::parse(file, text)?;
    let root = xml.root();
    match root.tag_name().name() {
        "topology" => hwloc_xml::read(file, &xml),
        "system" => nccl_xml::read(file, &xml),
        "nvidia_smi_log" => Err(xml.error(
            root,
            "nvidia-smi -q -x output: it has no topology; give the text of nvidia-smi topo -m",
        )),
        "graphs" => Err(xml.error(
            root,
            "an NCCL graph file (NCCL_GRAPH_DUMP_FILE): it lists rings, not the host; give NCCL_TOPO_DUMP_FILE",
        )),
        "node" | "list" => Err(xml.error(
            root,
            "lshw XML: it does not show PCIe switches reliably; give lstopo host.xml",
        )),
        other => Err(xml.error(
            root,
            format!("XML with root {}: not a topology; give {ACCEPTED}", quoted(other)),
        )),
    }
}

fn read_text(file: &str, text: &str) -> Result<Snapshot, ImportError> {
    if let Some(snapshot) = topo_text::read(file, text)? {
        return Ok(snapshot);
    }
    let what = known_text(text).map_or_else(
        || format!("not a kind of file that is known; give {ACCEPTED}"),
        |(kind, instead)| format!("{kind} is not read as a topology; {instead}"),
    );
    let first = text.len() - text.trim_start().len();
    let (line, column) = place_of(text, first);
    Err(ImportError::at(file, line, column, what))
}

/// Kinds of text that are often sent along with a bug report, by marks in their first lines.
fn known_text(text: &str) -> Option<(&'static str, &'static str)> {
    let topo = "give the text of nvidia-smi topo -m, or lstopo host.xml from the same host";
    let xml =
        "it lacks NUMA nodes or ids that the map needs; give lstopo host.xml from the same host";
    let head: Vec<&str> = text.lines().take(64).collect();
    let any = |f: &dyn Fn(&str) -> bool| head.iter().any(|line| f(line));
    let starts = |p: &str| any(&|l: &str| l.trim_start().starts_with(p));
    let has = |p: &str| any(&|l: &str| l.contains(p));
    Some(
        if has("# peer access reported by CUDA") || starts("#gpu\tbus_id") {
            (
                "a table of GPUs with CUDA's peer answers (.peers.txt)",
                topo,
            )
        } else if starts("-[0000:") || any(&|l: &str| l.starts_with("-+-[") || l.starts_with("-["))
        {
            ("the tree of lspci -t", xml)
        } else if any(&lspci_line) {
            ("the output of lspci", xml)
        } else if any(&|l: &str| l.trim_start().starts_with("Link ") && l.contains("Remote Device"))
        {
            ("the output of nvidia-smi nvlink -R", topo)
        } else if any(&|l: &str| l.trim_start().starts_with("Link ") && l.contains("GB/s")) {
            ("the output of nvidia-smi nvlink -s", topo)
        } else if has("NVSMI LOG") || (has("Driver Version") && has("CUDA Version")) {
            ("the output of nvidia-smi -q", topo)
        } else if starts("available:") && has("node 0 cpus") {
            ("the output of numactl -H", topo)
        } else if starts("[    0.000000]") || has("Linux version ") {
            ("a kernel log", topo)
        } else if starts("BOOT_IMAGE=") || (head.len() == 1 && any(&super::paste::is_command_line))
        {
            ("a kernel command line", topo)
        } else if starts("ResmanDebugLevel:") || starts("RmLogonRC:") {
            ("/proc/driver/nvidia/params", topo)
        } else if starts("# bdf vendor device") {
            ("a listing of sysfs PCI devices", xml)
        } else if starts("Machine (") || (has("HostBridge") && has("PCI ")) {
            (
                "the console text of lstopo",
                "give its XML: lstopo host.xml",
            )
        } else {
            return None;
        },
    )
}

fn lspci_line(line: &str) -> bool {
    let Some((slot, rest)) = line.split_once(' ') else {
        return false;
    };
    let address = slot.contains('.') && slot.parse::<crate::model::pci::PciAddress>().is_ok();
    address && rest.contains(": ")
}

/// Pasted text: as `decode`, but logs that were cut inside a character, or saved as UTF-16 without its mark, are read too.
pub(super) fn decode_lenient(file: &str, bytes: &[u8]) -> Result<String, ImportError> {
    // The mark that some editors put before UTF-8 is no part of the text.
    let bytes = bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(bytes);
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(ImportError::whole(
            file,
            format!(
                "{} bytes; files above {MAX_INPUT_BYTES} are not read",
                bytes.len()
            ),
        ));
    }
    let marked = matches!(
        bytes,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0x1f, 0x8b, ..]
    );
    let head = bytes.get(..bytes.len().min(4096)).unwrap_or_default();
    let nuls = |odd: usize| {
        head.iter()
            .skip(odd)
            .step_by(2)
            .filter(|b| **b == 0)
            .count()
    };
    let half = head.len() / 2;
    if !marked && half > 8 && nuls(1) * 10 > half * 7 && nuls(0) * 10 < half {
        return decode(file, &[&[0xff, 0xfe], bytes].concat());
    }
    if !marked && bytes.contains(&0) {
        return Err(ImportError::whole(
            file,
            "not a text file (it has zero bytes); give the text of the outputs",
        ));
    }
    match decode(file, bytes) {
        Err(_) if !marked => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => other,
    }
}

/// Whether `bytes` are what this program prints for people: two of its own headings.
pub fn is_own_text(bytes: &[u8]) -> bool {
    const MARKS: [&str; 7] = [
        "Pairs: rung reached or what went wrong; row = source",
        "Who may rely on it",
        "exit code ",
        "report file  ",
        "SIMULATED: look-alike drivers answered",
        "smallest fault rate that would be seen",
        "Suspects, if copies between GPUs are wrong here (not tested)",
    ];
    let text = String::from_utf8_lossy(bytes.get(..bytes.len().min(1 << 20)).unwrap_or(bytes));
    let told = |mark: &&&str| {
        text.lines().any(|line| {
            line.trim_start()
                .trim_start_matches("> ")
                .starts_with(**mark)
        })
    };
    MARKS.iter().filter(told).count() > 1
}

/// UTF-8 (a byte order mark allowed) or UTF-16 with its mark, as some terminals save.
fn decode(file: &str, bytes: &[u8]) -> Result<String, ImportError> {
    let utf16 = |unit: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|c| unit([c[0], c[1]]));
        char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect::<String>()
    };
    let plain = match bytes {
        [0xff, 0xfe, ..] => return Ok(utf16(u16::from_le_bytes)),
        [0xfe, 0xff, ..] => return Ok(utf16(u16::from_be_bytes)),
        [0xef, 0xbb, 0xbf, rest @ ..] => rest,
        [0x1f, 0x8b, ..] => {
            return Err(ImportError::whole(file, "gzip-compressed; unpack it first"));
        }
        all => all,
    };
    match std::str::from_utf8(plain) {
        Ok(text) => Ok(text.to_string()),
        Err(error) => {
            let good = String::from_utf8_lossy(&plain[..error.valid_up_to()]);
            let (line, column) = place_of(&good, good.len());
            Err(ImportError::at(
                file,
                line,
                column,
                format!(
                    "byte 0x{:02x} is not UTF-8 text; give {ACCEPTED}",
                    plain.get(error.valid_up_to()).copied().unwrap_or(0)
                ),
            ))
        }
    }
}
