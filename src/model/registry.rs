//! Registry words of NVIDIA's driver that are about peer access: which there are, where they were read, and what they do. Numbers as in
//! the open module's `nvrm_registry.h`; words that it does not explain are not explained here.

use super::snapshot::Snapshot;

/// The parameter of the module that carries them.
const PARAMETER: &str = "RegistryDwords";

/// Where a word was read, and so whether it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// /proc/driver/nvidia/params: what the loaded module was given.
    InForce,
    /// The kernel command line: what a built-in or later loaded module is given.
    CommandLine,
    /// A file of modprobe.d: what the next load is given.
    Modprobe,
}

impl Place {
    /// As evidence names it.
    pub fn words(self) -> &'static str {
        match self {
            Place::InForce => "/proc/driver/nvidia/params: RegistryDwords",
            Place::CommandLine => "/proc/cmdline: nvidia.NVreg_RegistryDwords",
            Place::Modprobe => "modprobe.d: NVreg_RegistryDwords",
        }
    }
}

/// One `NAME=VALUE` about peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryWord {
    /// "ForceP2P".
    pub name: String,
    /// Its number; `None` where it is none.
    pub value: Option<u32>,
    /// As written: "ForceP2P=0x11".
    pub text: String,
    /// Where it was read first, and so whether it holds.
    pub place: Place,
    /// All places where it was read, with the same value.
    pub places: Vec<Place>,
}

/// Words about peers, and what each is for. `ForceP2P` is read bit by bit.
const KNOWN: [(&str, &str); 6] = [
    ("ForceP2P", ""),
    (
        "RMForceP2PType",
        "takes a kind of peer path in place of the driver's own order (C2C, NVLink, then PCIe); where NVLink joins the GPUs it can put their traffic on PCIe",
    ),
    (
        "RMPcieP2PType",
        "chooses how peers over PCIe are mapped, by mailbox or BAR1",
    ),
    (
        "RMForceStaticBar1",
        "maps all memory through BAR1 for good, which peers of patched drivers need",
    ),
    (
        "PeerMappingOverride",
        "lets the GPU map memory of other devices than GPUs (NVSHMEM's network path needs it; guides for patched drivers set it, too)",
    ),
    (
        "GrdmaPciTopoCheckOverride",
        "leaves out the driver's look at the PCIe path before it offers GPU memory to other devices",
    ),
];

impl RegistryWord {
    /// All words about peers that a snapshot has, those in force first, each once.
    pub fn of(snapshot: &Snapshot) -> Vec<RegistryWord> {
        let mut all: Vec<RegistryWord> = Vec::new();
        let params = snapshot.driver.params.known().into_iter().flatten();
        for (name, value) in params {
            let (name, place) = match name.strip_prefix("NVreg_") {
                Some(name) => (name, Place::Modprobe),
                None => (name.as_str(), Place::InForce),
            };
            if name.starts_with(PARAMETER) {
                all.extend(words(value, place));
            }
        }
        let line = snapshot.host.cmdline.known().map_or("", String::as_str);
        for word in line.split_whitespace().take_while(|word| *word != "--") {
            let word = word.trim_matches('"');
            let value = word
                .strip_prefix("nvidia.NVreg_")
                .and_then(|w| w.split_once('='))
                .filter(|(name, _)| name.starts_with(PARAMETER));
            all.extend(
                value
                    .into_iter()
                    .flat_map(|(_, v)| words(v, Place::CommandLine)),
            );
        }
        all.sort_by_key(|word| word.place);
        let mut once: Vec<RegistryWord> = Vec::new();
        for word in all {
            match once
                .iter_mut()
                .find(|w| w.name == word.name && w.value == word.value)
            {
                Some(known) if known.places.contains(&word.place) => {}
                Some(known) => known.places.push(word.place),
                None => once.push(word),
            }
        }
        once
    }

    /// Field of two bits: reads at 0, writes at 4, atomics at 8.
    fn field(&self, at: u32) -> Option<u32> {
        (self.name == "ForceP2P").then_some(self.value? >> at & 3)
    }

    /// It makes the driver claim peer reads or writes whatever it knows of the chipset.
    pub fn asserts_peers(&self) -> bool {
        self.field(0) == Some(1) || self.field(4) == Some(1)
    }

    /// It makes the driver refuse peer reads or writes.
    pub fn forbids_peers(&self) -> bool {
        self.field(0) == Some(0) || self.field(4) == Some(0)
    }

    /// What it does, in words that go on after its text.
    pub fn meaning(&self) -> String {
        let known = KNOWN.iter().find(|(name, _)| *name == self.name);
        match (self.value, known) {
            (None, _) => "has no number, so the driver takes nothing from it".to_string(),
            (Some(0), Some((name, _))) if *name != "ForceP2P" => {
                "is 0, the driver's own choice".to_string()
            }
            (_, Some((_, words))) if !words.is_empty() => (*words).to_string(),
            _ => {
                let field = |what: &str, at: u32| match self.field(at)? {
                    0 => Some(format!("{what} forbidden")),
                    1 => Some(format!("{what} allowed")),
                    _ => None,
                };
                let fields = [("reads", 0), ("writes", 4), ("atomics", 8)];
                let told: Vec<String> = fields
                    .iter()
                    .filter_map(|(what, at)| field(what, *at))
                    .collect();
                match told.is_empty() {
                    true => "leaves peers to what the driver knows of the chipset".to_string(),
                    false => format!(
                        "overrides what the driver knows of the chipset: peer {} over PCIe",
                        told.join(", ")
                    ),
                }
            }
        }
    }
}

/// "ForceP2P=0x11;RMForceP2PType=1", and with "pci=0000:01:00.0," before it per device.
fn words(value: &str, place: Place) -> impl Iterator<Item = RegistryWord> {
    let parts = value
        .split([';', ','])
        .map(|part| part.trim_matches(['"', '\'', ' ']));
    parts.filter_map(move |part| {
        let (name, number) = part.split_once('=')?;
        let (name, number) = (name.trim(), number.trim());
        let value = match number.strip_prefix("0x").or(number.strip_prefix("0X")) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        };
        let known = KNOWN.iter().any(|(known, _)| *known == name);
        known.then(|| RegistryWord {
            name: name.to_string(),
            value,
            text: format!("{name}={number}"),
            place,
            places: vec![place],
        })
    })
}

/// How to be rid of a parameter of the module that was seen in these places. What the loaded module says of itself does not tell where it
/// was given.
pub fn taken_out(parameter: &str, places: &[Place]) -> String {
    let file = format!(
        "take {parameter} out of /etc/modprobe.d (grep -rl {parameter} /etc/modprobe.d), 'sudo update-initramfs -u'"
    );
    let line = format!(
        "take nvidia.{parameter} out of GRUB_CMDLINE_LINUX in /etc/default/grub, 'sudo update-grub'"
    );
    match (
        places.contains(&Place::Modprobe),
        places.contains(&Place::CommandLine),
    ) {
        (true, true) => format!("{file}, {line}, reboot"),
        (true, false) => format!("{file}, reboot"),
        (false, true) => format!("{line}, reboot"),
        (false, false) => format!(
            "where it was given, /proc/driver/nvidia/params does not tell: 'grep -r {parameter} /etc/modprobe.d /proc/cmdline' does. In a file: {file}; on the kernel command line: {line}; then reboot"
        ),
    }
}

/// How to be rid of registry words.
pub fn removal(words: &[RegistryWord]) -> String {
    let places: Vec<Place> = words.iter().flat_map(|w| w.places.clone()).collect();
    taken_out("NVreg_RegistryDwords", &places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{reading::Reading, snapshot::Origin};

    fn snapshot(params: &[(&str, &str)], line: &str) -> Snapshot {
        let mut snapshot = Snapshot::empty(Origin::Live);
        let params = params.iter().map(|(n, v)| ((*n).into(), (*v).into()));
        snapshot.driver.params = Reading::Known(params.collect());
        snapshot.host.cmdline = Reading::Known(line.into());
        snapshot
    }

    #[test]
    fn words_are_found_in_all_three_places_and_told_once() {
        let host = snapshot(
            &[
                ("RegistryDwords", "\"ForceP2P=0x11;RmMsg=1\""),
                (
                    "RegistryDwordsPerDevice",
                    "pci=0000:01:00.0,RMForceP2PType=1",
                ),
                ("NVreg_RegistryDwords", "ForceP2P=17;PeerMappingOverride=1"),
                ("NvLinkDisable", "0"),
            ],
            "ro nvidia.NVreg_RegistryDwords=RMPcieP2PType=2 nvidia.NVreg_EnableResizableBar=1",
        );
        let found: Vec<(String, Place)> = RegistryWord::of(&host)
            .into_iter()
            .map(|w| (w.text, w.place))
            .collect();
        let wanted = [
            ("ForceP2P=0x11", Place::InForce),
            ("RMForceP2PType=1", Place::InForce),
            ("RMPcieP2PType=2", Place::CommandLine),
            ("PeerMappingOverride=1", Place::Modprobe),
        ];
        let first = RegistryWord::of(&host).remove(0);
        assert_eq!(first.places, [Place::InForce, Place::Modprobe]);
        let wanted: Vec<(String, Place)> =
            wanted.iter().map(|(t, p)| ((*t).to_string(), *p)).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn force_p2p_is_read_field_by_field() {
        for (value, asserts, forbids, words) in [
            (
                "0x11",
                true,
                false,
                "peer reads allowed, writes allowed, atomics forbidden",
            ),
            (
                "529",
                true,
                false,
                "peer reads allowed, writes allowed over PCIe",
            ),
            (
                "0",
                false,
                true,
                "peer reads forbidden, writes forbidden, atomics forbidden",
            ),
            ("0x222", false, false, "leaves peers"),
            ("yes", false, false, "has no number"),
        ] {
            let host = snapshot(&[("RegistryDwords", &format!("ForceP2P={value}"))], "");
            let word = RegistryWord::of(&host).remove(0);
            assert_eq!(word.asserts_peers(), asserts, "{value}");
            assert_eq!(word.forbids_peers(), forbids, "{value}");
            assert!(
                word.meaning().contains(words),
                "{value}: {}",
                word.meaning()
            );
        }
    }
}
