//! The driver's reports of GPU errors in a kernel log: which GPU, which code. What a code means is `diagnose::xid`'s business.

use super::pci::PciAddress;

/// One report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// The GPU; the log leaves the function out, which is 0.
    pub gpu: PciAddress,
    /// Number in NVIDIA's catalogue of Xid errors.
    pub code: u32,
}

impl Xid {
    /// Of a line like "NVRM: Xid (PCI:0000:61:00): 31, pid=4242, ..."; `None` for every other.
    pub fn parse(line: &str) -> Option<Xid> {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (address, rest) = rest.split_once("):")?;
        let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
        Some(Xid {
            gpu: address.parse().ok()?,
            code: digits.into_iter().next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_driver_and_no_other() {
        let seen = Xid::parse("[ 1.2] NVRM: Xid (PCI:0000:61:00): 31, pid=4242, name=x").unwrap();
        assert_eq!(
            (seen.gpu.to_string().as_str(), seen.code),
            ("0000:61:00.0", 31)
        );
        for other in [
            "NVRM: Xid (PCI:0000:61:00)",
            "NVRM: Xid (PCI:somewhere): 31",
            "NVRM: Xid (PCI:0000:61:00): none",
            "NVRM: Xid (PCI:0000:61:00): 99999999999",
            "Xid 31",
            "",
        ] {
            assert_eq!(Xid::parse(other), None, "{other}");
        }
    }
}
