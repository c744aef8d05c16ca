//! The kernel's lines of PCIe errors (AER, DPC, hot-plug): which device, which port told of it, and how bad it is. Lines with which a
//! service of a port announces itself at boot are none. Whether a device is a GPU is not known here.

use super::pci::PciAddress;

/// How bad an error is, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The link repeated what was lost.
    Corrected,
    /// No retry corrects it.
    Uncorrected,
    /// The port cut its link off (downstream port containment).
    Contained,
    /// The link went down unasked.
    Down,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AerLine {
    /// How bad it is.
    pub weight: Weight,
    /// The port that reports, or the device that speaks itself.
    pub reporter: PciAddress,
    /// Of which device it is; the reporter where the line names no other.
    pub device: PciAddress,
    /// The driver of the device is NVIDIA's, by the line's own words.
    pub of_nvidia: bool,
    /// A port tells of a message: the device's own line of the same error may follow.
    pub message: bool,
}

impl AerLine {
    /// Of a line like "nvidia 0000:06:00.0: PCIe Bus Error: severity=Corrected, ..."; `None` for every other.
    pub fn parse(line: &str) -> Option<AerLine> {
        let has = |word: &str| line.contains(word);
        let of_aer = has("AER:") || has("PCIe Bus Error");
        // "error received: ADDRESS" and, of later kernels, "error message received from ADDRESS".
        let message = has(" received");
        let graded = of_aer && (has("severity=") || message);
        let weight = if has("Surprise Down")
            || has("Surprise Link Down")
            || has("] SDES")
            || has("pciehp") && has("Link Down")
        {
            Weight::Down
        } else if has("DPC:") && (has("containment event") || has(" detected")) {
            Weight::Contained
        } else if graded && has("Uncorrect") {
            Weight::Uncorrected
        } else if graded && (has("Corrected") || has("Correctable")) {
            Weight::Corrected
        } else {
            return None;
        };
        let words = line.split([' ', '\t', '[', ']', '(', ')', ',', '=']);
        let mut addresses = words.filter_map(|word| {
            let word = word.trim_end_matches([':', '.', ';']);
            // Times and short ids are none: the kernel always writes the domain.
            let whole = word.matches(':').count() == 2 && word.contains('.');
            whole.then(|| word.parse::<PciAddress>().ok()).flatten()
        });
        let reporter = addresses.next()?;
        Some(AerLine {
            weight,
            reporter,
            device: addresses.next_back().unwrap_or(reporter),
            of_nvidia: has(&format!("nvidia {reporter}:")),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_read_for_device_and_weight() {
        let (gpu, port) = ("0000:06:00.0", "0000:00:01.1");
        for (line, weight, reporter, device, of_nvidia) in [
            (
                "[ 9.1] nvidia 0000:06:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
                Weight::Corrected,
                gpu,
                gpu,
                true,
            ),
            (
                "pcieport 0000:00:01.1: AER: Multiple Corrected error received: 0000:06:00.0",
                Weight::Corrected,
                port,
                gpu,
                false,
            ),
            (
                "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:06:00.0",
                Weight::Corrected,
                port,
                gpu,
                false,
            ),
            (
                "[Tue Mar 17 10:00:00 2026] pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:06:00.0",
                Weight::Uncorrected,
                port,
                gpu,
                false,
            ),
            (
                "pcieport 0000:00:01.1: AER: Uncorrectable (Non-Fatal) error message received from 0000:06:00.0",
                Weight::Uncorrected,
                port,
                gpu,
                false,
            ),
            (
                "pcieport 0000:00:01.1:    [ 5] SDES                   (First)",
                Weight::Down,
                port,
                port,
                false,
            ),
            (
                "pcieport 0000:00:01.1: pciehp: Slot(7): Link Down",
                Weight::Down,
                port,
                port,
                false,
            ),
            (
                "pcieport 0000:00:01.1: DPC: containment event, status:0x1f01 source:0x0000",
                Weight::Contained,
                port,
                port,
                false,
            ),
        ] {
            let read = AerLine::parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(read.weight, weight, "{line}");
            assert_eq!(read.reporter.to_string(), reporter, "{line}");
            assert_eq!(read.device.to_string(), device, "{line}");
            assert_eq!(read.of_nvidia, of_nvidia, "{line}");
        }
        for other in [
            "pcieport 0000:00:01.1: AER: enabled with IRQ 37",
            "pcieport 0000:00:01.1: DPC: enabled with IRQ 37",
            "pcieport 0000:00:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+",
            "pcieport 0000:00:01.1: AER: device recovery successful",
            "AER: Corrected error received: somewhere",
            "",
        ] {
            assert_eq!(AerLine::parse(other), None, "{other}");
        }
    }
}
