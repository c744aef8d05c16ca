//! Lines of a file, and what a reader of pasted text makes of them: readings with the line that each came from.

use crate::model::{
    pci::PciAddress,
    snapshot::{Gpu, Origin, Snapshot},
    ticket::{Citation, Remark, RemarkKind, Transport},
};

/// A line without colour codes, quote marks and carriage returns.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: u32,
    pub(super) text: String,
}

/// What one section gave.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: String,
    pub(super) snapshot: Snapshot,
    /// It shows every GPU that can be seen where it was taken.
    pub(super) whole: bool,
    pub(super) citations: Vec<Citation>,
    pub(super) launch: Vec<Citation>,
    pub(super) remarks: Vec<Remark>,
    pub(super) transports: Vec<Transport>,
    /// In a few words.
    pub(super) gave: String,
    /// Lines of the section that were not understood, with the reason.
    pub(super) skipped: Vec<(u32, String, String)>,
}

/// Most statements kept of one section.
const MOST: usize = 4096;
/// Most skipped lines that are named.
const MOST_SKIPPED: usize = 64;

impl Part {
    pub(super) fn new(file: &str, format: &str) -> Part {
        Part {
            file: file.to_string(),
            snapshot: Snapshot::empty(Origin::Recorded {
                format: format.to_string(),
                file: file.to_string(),
            }),
            whole: false,
            citations: Vec::new(),
            launch: Vec::new(),
            remarks: Vec::new(),
            transports: Vec::new(),
            gave: String::new(),
            skipped: Vec::new(),
        }
    }

    /// File and line.
    pub(super) fn at(&self, line: &Line) -> String {
        format!("{}:{}", self.file, line.number)
    }

    /// Keeps where a reading comes from.
    pub(super) fn cite(&mut self, about: impl Into<String>, value: impl Into<String>, line: &Line) {
        if self.citations.len() < MOST {
            self.citations.push(Citation {
                about: about.into(),
                value: value.into().chars().take(400).collect(),
                source: self.at(line),
            });
        }
    }

    /// Keeps how something was started.
    pub(super) fn started(&mut self, about: &str, value: &str, line: &Line) {
        let known = self
            .launch
            .iter()
            .any(|c| c.about == about && c.value == value);
        if !known && self.launch.len() < MOST {
            self.launch.push(Citation {
                about: about.to_string(),
                value: value.chars().take(200).collect(),
                source: self.at(line),
            });
        }
    }

    /// Keeps a symptom; the same said again is counted.
    pub(super) fn remark(&mut self, kind: RemarkKind, text: &str, line: &Line, by_person: bool) {
        let text: String = text.trim().chars().take(300).collect();
        let source = self.at(line);
        let same = self
            .remarks
            .iter_mut()
            .find(|r| r.kind == kind && r.by_person == by_person);
        match same {
            Some(first) => first.times = first.times.saturating_add(1),
            None => self.remarks.push(Remark {
                kind,
                text,
                source,
                by_person,
                times: 1,
            }),
        }
    }

    /// Names a line of the section that was not understood.
    pub(super) fn skip(&mut self, line: &Line, reason: impl Into<String>) {
        if self.skipped.len() < MOST_SKIPPED {
            let start = line.text.trim().chars().take(60).collect();
            self.skipped.push((line.number, start, reason.into()));
        }
    }

    /// The GPU at an address, made if it is new. At most 64 of a host are kept.
    pub(super) fn gpu_at(&mut self, pci: PciAddress) -> Option<&mut Gpu> {
        use crate::model::reading::Reading;
        let gpus = &mut self.snapshot.gpus;
        let found = gpus.iter().position(|g| g.pci.known() == Some(&pci));
        let at = match found {
            Some(at) => at,
            None if gpus.len() < MOST_GPUS => {
                gpus.push(Gpu {
                    pci: Reading::Known(pci),
                    label: format!("GPU{}", gpus.len()),
                    ..Gpu::default()
                });
                gpus.len() - 1
            }
            None => return None,
        };
        gpus.get_mut(at)
    }
}

/// More GPUs than any host has.
pub(super) const MOST_GPUS: usize = 64;

/// Gigatransfers a second of a PCIe generation.
pub(super) fn speed_of(generation: u32) -> Option<f64> {
    let rates = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let at = usize::try_from(generation).ok()?.checked_sub(1)?;
    rates.get(at).copied()
}

/// "143771 MiB", "4G", "128K", "256 MB" in bytes; binary units, as nvidia-smi and lspci mean them.
pub(super) fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits
        .parse::<u64>()
        .ok()?
        .checked_mul(1_u64.checked_shl(shift)?)
}
