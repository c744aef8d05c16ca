//! What a kernel command line does to ACS (the kernel's admin-guide/kernel-parameters.txt, `pci=`). Only root ports and switch ports
//! that have the capability obey, and only at boot: the control words that are read afterwards are what holds.

use super::pci::PciAddress;

/// Bits of an ACS control word that send peer traffic up: request redirect, completion redirect, egress control.
const REDIRECTS: [usize; 3] = [2, 3, 5];

/// The words of a command line that are about ACS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AcsLine {
    /// `pcie_acs_override=...`, of a patch that upstream kernels do not have: it changes IOMMU groups and no control word.
    pub overridden: Option<String>,
    /// `disable_acs_redir=...`, with the devices that it names.
    pub disable: Option<(String, Vec<String>)>,
    /// `config_acs=...`, with flags and devices.
    pub config: Option<(String, Vec<(String, String)>)>,
    /// Words that look like settings and that the kernel does not know: "pci=noacs".
    pub ignored: Vec<String>,
}

/// What one device of `pci=` matches: a place, or ids, of which 0 stands for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    /// "0000:00:01.1", or the end of a path "00:01.1/00.0".
    Place,
    /// "10b5:8747" of "pci:10b5:8747": every device with these ids, and subsystem ids where they stand there.
    Ids(&'a str),
    /// "pci:0:0": all.
    All,
}

impl<'a> Named<'a> {
    /// Reads one device of a list.
    pub fn of(device: &'a str) -> Named<'a> {
        match device.trim().strip_prefix("pci:") {
            None => Named::Place,
            Some(ids)
                if ids
                    .split(':')
                    .all(|id| u16::from_str_radix(id, 16) == Ok(0)) =>
            {
                Named::All
            }
            Some(ids) => Named::Ids(ids),
        }
    }
}

impl AcsLine {
    /// Reads a command line. What stands behind `--` is for init.
    pub fn of(line: &str) -> AcsLine {
        let mut out = AcsLine::default();
        for word in line.split_whitespace().take_while(|word| *word != "--") {
            let word = word.trim_matches(['"', '\'']);
            let Some((name, values)) = word.split_once('=') else {
                continue;
            };
            let values = values.trim_matches(['"', '\'']);
            match name {
                "pcie_acs_override" => out.overridden = Some(word.to_string()),
                "pci" => values.split(',').for_each(|value| out.of_pci(value)),
                _ => {}
            }
        }
        out
    }

    fn of_pci(&mut self, value: &str) {
        let (name, devices) = value.split_once('=').unwrap_or((value, ""));
        let devices = devices.trim_matches(['"', '\'']);
        let parts = || devices.split(';').filter(|part| !part.is_empty());
        match name {
            "disable_acs_redir" => {
                let named = parts().map(str::to_string).collect();
                self.disable = Some((format!("pci={value}"), named));
            }
            "config_acs" => {
                let named = parts().filter_map(|part| {
                    let (flags, device) = part.split_once('@')?;
                    Some((flags.to_string(), device.to_string()))
                });
                self.config = Some((format!("pci={value}"), named.collect()));
            }
            "noacs" => self.ignored.push("pci=noacs".to_string()),
            _ => {}
        }
    }

    /// Whether the line has any word about ACS.
    pub fn is_silent(&self) -> bool {
        *self == AcsLine::default()
    }

    /// What the line asks of the redirects of this port: off (`false`) or on (`true`), with the word. Devices that are named by their
    /// ids or by a path are not told apart here.
    pub fn asks(&self, port: PciAddress) -> Option<(bool, &str)> {
        let is = |device: &str| Named::of(device) == Named::All || device.parse() == Ok(port);
        let configured = self.config.as_ref().and_then(|(word, all)| {
            let (flags, _) = all.iter().find(|(_, device)| is(device))?;
            Some((redirects(flags)?, word.as_str()))
        });
        configured.or_else(|| {
            let (word, all) = self.disable.as_ref()?;
            all.iter()
                .any(|device| is(device))
                .then_some((false, word.as_str()))
        })
    }
}

/// What the flags of `config_acs` do to the redirects: one that is set counts, and off are they only where all are cleared. The
/// rightmost character is bit 0; `x` leaves a bit as it is, as does one that is not given.
fn redirects(flags: &str) -> Option<bool> {
    let bit = |at: usize| flags.bytes().rev().nth(at);
    let (set, cleared) = (
        REDIRECTS.iter().any(|at| bit(*at) == Some(b'1')),
        REDIRECTS.iter().all(|at| bit(*at) == Some(b'0')),
    );
    (set || cleared).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn each_word_is_read_for_what_it_does() {
        let line = AcsLine::of(
            "ro pcie_acs_override=downstream,multifunction pci=realloc,disable_acs_redir=0000:00:01.1;20:01.1;pci:10b5:8747,noacs",
        );
        assert_eq!(
            line.overridden.as_deref(),
            Some("pcie_acs_override=downstream,multifunction")
        );
        assert_eq!(line.ignored, ["pci=noacs"]);
        let (word, devices) = line.disable.clone().unwrap();
        assert!(word.starts_with("pci=disable_acs_redir=0000:00:01.1;"));
        assert_eq!(devices.len(), 3);
        for named in ["0000:00:01.1", "0000:20:01.1"] {
            assert_eq!(line.asks(port(named)).map(|a| a.0), Some(false), "{named}");
        }
        assert_eq!(line.asks(port("0000:40:01.1")), None);
        assert_eq!(Named::of("pci:10b5:8747"), Named::Ids("10b5:8747"));
        assert_eq!(Named::of("00:01.1/00.0"), Named::Place);
        let all = AcsLine::of("pci=config_acs=x0x00xx@pci:0:0");
        assert_eq!(all.asks(port("0000:40:01.1")).map(|a| a.0), Some(false));
        assert!(AcsLine::of("ro quiet iommu=pt pci=realloc -- pcie_acs_override=x").is_silent());
    }

    #[test]
    fn flags_are_bits_from_the_right() {
        for (flags, wanted) in [
            ("0000000", Some(false)),
            ("x0x00xx", Some(false)),
            ("1x", None),
            ("xx1xx", Some(true)),
            ("x1x00xx", Some(true)),
            ("", None),
        ] {
            assert_eq!(redirects(flags), wanted, "{flags}");
        }
        let line = AcsLine::of("\"pci=config_acs=x0x00xx@0000:00:01.1;xx111xx@00:02.1\"");
        assert_eq!(line.asks(port("0000:00:01.1")).map(|a| a.0), Some(false));
        assert_eq!(line.asks(port("0000:00:02.1")).map(|a| a.0), Some(true));
    }
}
