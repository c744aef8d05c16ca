//! Settings of kernel and driver that texts show and that are about peer traffic: what each does, and what it is taken for and does
//! not do (facts: failures.md 3.1, 3.3 and 3.8; the kernel's admin-guide/kernel-parameters.txt; the open module's nvrm_registry.h).

use crate::model::{
    acs_line::{AcsLine, Named},
    finding::{Confidence, WARNING},
    registry::{Place, RegistryWord, removal, taken_out},
    snapshot::Snapshot,
    ticket::Conclusion,
};

/// One conclusion for each kind of setting.
pub(super) fn settings(snapshot: &Snapshot) -> Vec<Conclusion> {
    let line = snapshot.host.cmdline.known().map_or("", String::as_str);
    let mut out = acs(&AcsLine::of(line));
    out.extend(registry(snapshot));
    out.extend(nvlink_off(snapshot));
    out
}

fn stated(title: String, because: &str, evidence: String, fix: Vec<String>) -> Conclusion {
    Conclusion {
        title,
        because: because.to_string(),
        evidence: vec![evidence],
        fix,
        cause: None,
        // The words stand there, and what they do is documented.
        confidence: None,
    }
}

/// What the kernel matches with the devices of a word, in words.
fn devices<'a>(named: impl Iterator<Item = &'a str>) -> String {
    let (mut places, mut ids, mut all) = (0_usize, Vec::new(), false);
    for device in named {
        match Named::of(device) {
            Named::All => all = true,
            Named::Ids(text) => ids.push(text),
            Named::Place => places += 1,
        }
    }
    if all {
        return "every port that has ACS (pci:0:0 names all)".to_string();
    }
    let mut parts = Vec::new();
    match places {
        0 => {}
        1 => parts.push("the one device that it names".to_string()),
        n => parts.push(format!("the {n} devices that it names")),
    }
    match ids.as_slice() {
        [] => {}
        [one] => parts.push(format!(
            "every device with the ids {one}, however many there are"
        )),
        many => parts.push(format!(
            "every device with the ids {}, however many there are",
            many.join(" or ")
        )),
    }
    match parts.is_empty() {
        true => "no device: it names none".to_string(),
        false => parts.join(" and "),
    }
}

fn acs(line: &AcsLine) -> Vec<Conclusion> {
    const READ: &str = "what the ports do stands in their control words: sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'";
    const ISOLATION: &str = "not on a host that passes devices to virtual machines: groups merge, and guests lose what keeps them apart";
    let mut out = Vec::new();
    if let Some(word) = &line.overridden {
        out.push(stated(
            format!("{word} changes IOMMU groups and leaves ACS as it is"),
            "the word is of a patch that upstream kernels do not have (lkml 2013/5/30/513): the kernel then takes ports for isolating and splits their groups, and writes no control word. Peer traffic goes as without it; a group of its own proves neither isolation nor a redirect on this host",
            format!("/proc/cmdline: {word}"),
            vec![READ.to_string()],
        ));
    }
    if let Some((word, named)) = &line.disable {
        out.push(stated(
            format!("{word} asks the kernel to switch ACS redirects off"),
            &format!(
                "at boot it clears request redirect, completion redirect and egress control of {} and of no other port, so every port between the GPUs has to be among them. Kernels from 6.11 until early 2025 may leave some of the bits set, and a reset of the port sets them again",
                devices(named.iter().map(String::as_str))
            ),
            format!("/proc/cmdline: {word}"),
            vec![READ.to_string(), format!("{WARNING}{ISOLATION}")],
        ));
    }
    if let Some((word, named)) = &line.config {
        out.push(stated(
            format!("{word} sets bits of ACS control words"),
            &format!(
                "kernels from 6.11 on set or clear each bit of {} at boot: the rightmost character is bit 0, and bits 2, 3 and 5 are the redirects and egress control that send peer traffic up; older kernels do not know the word, and until early 2025 it failed for all devices but the first",
                devices(named.iter().map(|(_, device)| device.as_str()))
            ),
            format!("/proc/cmdline: {word}"),
            vec![READ.to_string(), format!("{WARNING}{ISOLATION}")],
        ));
    }
    for word in &line.ignored {
        out.push(stated(
            format!("{word} is no setting that the kernel knows: ACS stays as it is"),
            "upstream kernels have pci=disable_acs_redir= and, from 6.11 on, pci=config_acs=",
            format!("/proc/cmdline: {word}"),
            vec![READ.to_string()],
        ));
    }
    out
}

fn registry(snapshot: &Snapshot) -> Option<Conclusion> {
    let words = RegistryWord::of(snapshot);
    let first = words.first()?;
    let texts = |place: Option<Place>| -> Vec<&str> {
        let of = words
            .iter()
            .filter(|w| place.is_none_or(|p| w.places.contains(&p)));
        of.map(|w| w.text.as_str()).collect()
    };
    let asserts = words.iter().any(RegistryWord::asserts_peers);
    let holds = first.place == Place::InForce;
    let meanings: Vec<String> = words
        .iter()
        .map(|w| format!("{} {}", w.name, w.meaning()))
        .collect();
    let mut because = meanings.join("; ");
    if asserts {
        because.push_str(". With it topo -p2p and canAccessPeer say OK because they were told to: no root complex or switch delivers for that, and where it does not, bytes are lost without an error");
    }
    if !holds {
        because.push_str(". Asked for at the next load of the module: whether it holds, /proc/driver/nvidia/params says");
    }
    let places = [Place::InForce, Place::CommandLine, Place::Modprobe];
    let shown = places.into_iter().filter(|p| !texts(Some(*p)).is_empty());
    let evidence = shown.map(|p| format!("{}: {}", p.words(), texts(Some(p)).join(";")));
    let mut fix = Vec::new();
    if !holds {
        fix.push(
            "grep Registry /proc/driver/nvidia/params: what the loaded module was given"
                .to_string(),
        );
    }
    fix.push(format!(
        "'peerproof qualify' proves or refutes what they assert; to be rid of them: {}",
        removal(&words)
    ));
    fix.push(format!(
        "{WARNING}NVIDIA has these words for its own tests, and their numbers changed between driver lines: what was proven holds for this driver version only"
    ));
    Some(Conclusion {
        evidence: evidence.collect(),
        ..stated(
            format!(
                "registry words of the driver are about peer access: {}",
                texts(None).join(";")
            ),
            &because,
            String::new(),
            fix,
        )
    })
}

/// NVLinks that the driver was told to leave alone.
fn nvlink_off(snapshot: &Snapshot) -> Option<Conclusion> {
    let params = snapshot.driver.params.known().into_iter().flatten();
    let mut seen: Vec<(Place, String)> = params
        .filter(|(name, value)| {
            name.trim_start_matches("NVreg_") == "NvLinkDisable" && value == "1"
        })
        .map(|(name, value)| match name.starts_with("NVreg_") {
            true => (Place::Modprobe, format!("modprobe.d: {name}={value}")),
            false => (
                Place::InForce,
                format!("/proc/driver/nvidia/params: {name}: {value}"),
            ),
        })
        .collect();
    let line = snapshot.host.cmdline.known().map_or("", String::as_str);
    let words = line.split_whitespace().take_while(|word| *word != "--");
    seen.extend(
        words
            .filter(|word| *word == "nvidia.NVreg_NvLinkDisable=1")
            .map(|word| (Place::CommandLine, format!("/proc/cmdline: {word}"))),
    );
    let places: Vec<Place> = seen.iter().map(|(place, _)| *place).collect();
    // One GPU of an NVSwitch board is given to a guest like this, and misses nothing.
    (!seen.is_empty() && snapshot.gpus.len() != 1).then(|| Conclusion {
        confidence: Some(Confidence::Probable),
        evidence: seen.into_iter().map(|(_, line)| line).collect(),
        ..stated(
            "the driver was told to leave NVLink off (NvLinkDisable=1)".to_string(),
            "peers then go over PCIe, or do not exist, on GPUs that NVLink joins; guests with one GPU of an NVSwitch board are set up like this",
            String::new(),
            vec![format!(
                "where NVLink is wanted: {}; then 'nvidia-smi topo -m'",
                taken_out("NVreg_NvLinkDisable", &places)
            )],
        )
    })
}
