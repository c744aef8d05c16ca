//! `peerproof diagnose` on tickets as support receives them: goldens of five, every recorded file read or named, and
//! mutated inputs. The fixtures are written for these tests; recorded hosts come from PEERPROOF_CASES.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and says how much it tried"
)]

use peerproof::{
    collect::import::{self, Pasted},
    diagnose::{self, Evidence},
    model::{
        report::Grading,
        snapshot::Snapshot,
        ticket::{Diagnosis, RemarkKind},
    },
    render::{self, Options},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

#[path = "diagnose/apart.rs"]
mod apart;
#[path = "diagnose/certainty.rs"]
mod certainty;
#[path = "diagnose/given.rs"]
mod given;
#[path = "diagnose/links.rs"]
mod links;
#[path = "diagnose/settings.rs"]
mod settings;

fn fixture(name: &str) -> (String, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/diagnose")
        .join(name);
    (name.to_string(), std::fs::read(path).unwrap())
}

fn read(names: &[&str]) -> Pasted {
    let files: Vec<(String, Vec<u8>)> = names.iter().map(|n| fixture(n)).collect();
    import::read_all(&files, None).unwrap()
}

fn inline(files: &[(&str, &str)]) -> Pasted {
    let files: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()))
        .collect();
    import::read_all(&files, None).unwrap()
}

const TWO: &str = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t0-63\t0\t\tN/A\nGPU1\tPHB\t X \t0-63\t0\t\tN/A\n";
const FOUR: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\tPHB\tPHB\t0-63\t0\t\tN/A\nGPU1\tPHB\t X \tPHB\tPHB\t0-63\t0\t\tN/A\nGPU2\tPHB\tPHB\t X \tPHB\t0-63\t0\t\tN/A\nGPU3\tPHB\tPHB\tPHB\t X \t0-63\t0\t\tN/A\n";
const TRANSLATED: &str = "[    0.514090] iommu: Default domain type: Translated\n[    2.000000] nvidia 0000:21:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x8a000000000 flags=0x0030]\n";

/// Addresses and a word on virtual machines are missing from what people paste; the IOMMU that logged is a suspect anyway.
#[test]
fn a_translating_iommu_in_the_log_is_a_suspect_without_addresses() {
    let pasted = inline(&[("topo.txt", TWO), ("dmesg.txt", TRANSLATED)]);
    let found = judge(&pasted);
    let suspect = found
        .suspects
        .iter()
        .find(|f| f.cause == "iommu-translation")
        .unwrap_or_else(|| panic!("{found:?}"));
    assert!(suspect.fix[0].contains("iommu=pt"), "{:?}", suspect.fix);
    assert!(
        suspect
            .evidence
            .iter()
            .any(|l| l.contains("supposed: bare metal"))
    );
}

#[test]
fn iommu_pt_is_not_prescribed_where_it_is_set() {
    let line = "BOOT_IMAGE=/vmlinuz-6.8.0 root=/dev/sda1 ro iommu=pt quiet\n";
    let pasted = inline(&[
        ("topo.txt", TWO),
        ("dmesg.txt", TRANSLATED),
        ("cmdline.txt", line),
    ]);
    let found = judge(&pasted);
    let suspects = found.suspects.iter().flat_map(|f| &f.fix);
    let fixes: Vec<&String> = suspects
        .chain(found.conclusions.iter().flat_map(|c| &c.fix))
        .collect();
    assert!(
        fixes
            .iter()
            .all(|f| !f.starts_with("add 'iommu=pt'") && !f.contains("boot with iommu=pt")),
        "{fixes:?}"
    );
    assert!(
        fixes.iter().any(|f| f.contains("did not take effect")),
        "{fixes:?}"
    );
}

#[test]
fn files_that_disagree_about_the_gpus_are_asked_about_and_not_mixed() {
    let pasted = inline(&[("a.txt", TWO), ("b.txt", FOUR), ("dmesg.txt", TRANSLATED)]);
    let found = judge(&pasted);
    assert!(
        found
            .verdict
            .headline
            .contains("a.txt shows 2 GPUs; b.txt shows 4 GPUs"),
        "{}",
        found.verdict.headline
    );
    assert!(found.suspects.is_empty() && found.conclusions.is_empty());
    assert_eq!(pasted.ticket.left_out, ["b.txt"]);
    let same = inline(&[("a.txt", TWO), ("b.txt", TWO)]);
    assert!(same.ticket.hosts.is_empty(), "{:?}", same.ticket.hosts);
}

#[test]
fn our_own_text_is_known_as_such() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut own = 0;
    for entry in std::fs::read_dir(root.join("render/snapshots")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if name.starts_with("render__qualify") || name.contains("__ladder_") {
            assert!(
                import::is_own_text(&std::fs::read(&path).unwrap()),
                "{name}"
            );
            own += 1;
        }
    }
    assert!(own > 10);
    for entry in std::fs::read_dir(root.join("fixtures/diagnose")).unwrap() {
        let path = entry.unwrap().path();
        assert!(
            !import::is_own_text(&std::fs::read(&path).unwrap()),
            "{}",
            path.display()
        );
    }
}

fn judge(pasted: &Pasted) -> Diagnosis {
    let evidence = Evidence::new(&pasted.snapshot, &[], &[]);
    diagnose::ticket(&evidence, &pasted.ticket, None)
}

fn shown(pasted: &Pasted, verbose: bool) -> String {
    let options = Options {
        width: 80,
        color: false,
    };
    let mut out = Vec::new();
    let diagnosis = judge(pasted);
    render::diagnose::write(
        &pasted.ticket,
        &diagnosis,
        &pasted.snapshot,
        verbose,
        &options,
        &mut out,
    )
    .unwrap();
    let text = String::from_utf8(out).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "too wide: {line}");
    }
    if !verbose {
        let rows = text.lines().count();
        assert!(rows < 40, "{rows} rows do not fit a screen:\n{text}");
    }
    text
}

const ZEROED: &[&str] = &["zeroed-mail.txt", "zeroed-dmesg.txt", "zeroed-smi-q.txt"];
const ACS: &[&str] = &["acs-lspci.txt", "acs-host.txt", "acs-nccl.log"];
const NVSWITCH: &[&str] = &[
    "nvswitch-topo.txt",
    "nvswitch-smi-q.txt",
    "nvswitch-vllm.log",
];
const GEFORCE: &[&str] = &["geforce-ticket.txt", "geforce-vllm.log"];
const GUEST: &[&str] = &["vm-lspci-tv.txt", "vm-topo.txt", "vm-nccl.log"];

#[test]
fn zeroed_copies_with_a_translating_iommu() {
    let pasted = read(ZEROED);
    let iommu = pasted.snapshot.gpus[0].iommu.known().unwrap();
    assert_eq!(iommu.group, 22);
    assert_eq!(iommu.translates(), Some(true));
    assert_eq!(pasted.snapshot.host.hypervisor.known(), Some(&false));
    let diagnosis = judge(&pasted);
    assert_eq!(diagnosis.grading(), Grading::Inconclusive);
    assert_eq!(diagnosis.suspects[0].cause, "iommu-translation");
    assert_eq!(diagnosis.verdict.next, "sudo peerproof qualify");
    insta::assert_snapshot!(shown(&pasted, false));
}

#[test]
fn acs_redirects_on_bare_metal() {
    let pasted = read(ACS);
    assert_eq!(
        pasted.snapshot.gpus[1].bar1_bytes.known(),
        Some(&(64 << 30))
    );
    let diagnosis = judge(&pasted);
    assert_eq!(diagnosis.suspects[0].cause, "acs-redirect");
    assert!(
        diagnosis
            .cleared
            .iter()
            .any(|f| f.cause == "iommu-translation")
    );
    insta::assert_snapshot!(shown(&pasted, false));
    insta::assert_snapshot!("acs_verbose", shown(&pasted, true));
}

#[test]
fn a_healthy_nvswitch_host_asks_why_custom_all_reduce_is_off() {
    let pasted = read(NVSWITCH);
    let diagnosis = judge(&pasted);
    assert!(diagnosis.suspects.is_empty(), "{:?}", diagnosis.suspects);
    assert!(
        diagnosis.conclusions[0]
            .title
            .contains("because the launch says so")
    );
    assert_eq!(diagnosis.grading(), Grading::Inconclusive);
    insta::assert_snapshot!(shown(&pasted, false));
}

#[test]
fn geforce_has_no_peer_access_and_that_is_no_fault() {
    let pasted = read(GEFORCE);
    let diagnosis = judge(&pasted);
    assert!(diagnosis.suspects.is_empty(), "{:?}", diagnosis.suspects);
    assert!(
        diagnosis
            .conclusions
            .iter()
            .any(|c| c.cause.as_deref() == Some("driver-policy"))
    );
    insta::assert_snapshot!(shown(&pasted, false));
}

#[test]
fn a_guest_with_a_flat_bus_suspects_its_hypervisor() {
    let pasted = read(GUEST);
    let diagnosis = judge(&pasted);
    assert_eq!(pasted.snapshot.host.hypervisor.known(), Some(&true));
    assert_eq!(diagnosis.suspects[0].cause, "hypervisor-no-peer-delivery");
    assert!(diagnosis.suspects.iter().all(|f| f.cause != "acs-redirect"));
    insta::assert_snapshot!(shown(&pasted, false));
}

/// A denied capability is unknown; the same listing as root is not.
#[test]
fn denied_capabilities_are_unknown_and_never_off() {
    let (name, bytes) = fixture("acs-lspci.txt");
    let text = String::from_utf8(bytes).unwrap();
    let denied: String = text
        .lines()
        .filter(|l| !l.contains("ACS") && !l.contains("Lnk") && !l.contains("Capabilities: [100"))
        .map(|l| match l.contains("Capabilities:") {
            true => "\tCapabilities: <access denied>\n".to_string(),
            false => format!("{l}\n"),
        })
        .collect();
    let files = [(name, denied.into_bytes()), fixture("acs-host.txt")];
    let pasted = import::read_all(&files, None).unwrap();
    assert_eq!(pasted.snapshot.bridges.len(), 2);
    for bridge in &pasted.snapshot.bridges {
        let absence = bridge.acs.absence().unwrap().to_string();
        assert!(absence.contains("permission"), "{absence}");
    }
    let diagnosis = judge(&pasted);
    assert!(diagnosis.suspects.iter().all(|f| f.cause != "acs-redirect"));
    assert!(
        diagnosis
            .unknown
            .iter()
            .any(|u| u.shown_by == "sudo lspci -vvv")
    );
}

/// Two texts that differ are both named.
#[test]
fn conflicts_name_both_places() {
    let other = b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.00  Release Build\n"
        .to_vec();
    let files = [
        fixture("zeroed-smi-q.txt"),
        ("version.txt".to_string(), other),
    ];
    let pasted = import::read_all(&files, None).unwrap();
    assert_eq!(
        pasted.ticket.hosts,
        ["driver version: zeroed-smi-q.txt says 580.142; version.txt says 570.00"]
    );
    assert_eq!(pasted.ticket.left_out, ["version.txt"]);
    // What may differ on one host is followed, and told with both places.
    let sys = TWO.replace("\t0-63\t0\t", "\t0-63\t1\t");
    let pasted = inline(&[("a.txt", TWO), ("b.txt", &sys)]);
    let disagreement = &pasted.snapshot.topology.disagreements[0];
    assert_eq!(disagreement.about, "GPU0 NUMA node");
    assert_eq!(disagreement.claims[0].1, "0");
    assert!(disagreement.claims[0].0.starts_with("a.txt:"));
    assert!(disagreement.claims[1].0.starts_with("b.txt:"));
    assert!(pasted.ticket.hosts.is_empty());
}

/// Whatever a terminal or mail program did to the text, it says the same.
#[test]
fn encodings_and_quotes_change_nothing() {
    let (name, bytes) = fixture("zeroed-mail.txt");
    let text = String::from_utf8(bytes).unwrap();
    let plain = read(&["zeroed-mail.txt"]);
    let utf16 = |mark: bool| -> Vec<u8> {
        let units = mark
            .then_some(0xfeff_u16)
            .into_iter()
            .chain(text.encode_utf16());
        units.flat_map(u16::to_le_bytes).collect()
    };
    let crlf = text.replace('\n', "\r\n").into_bytes();
    let quoted: String = text.lines().map(|l| format!("> {l}\n")).collect();
    for bytes in [utf16(true), utf16(false), crlf, quoted.into_bytes()] {
        let other = import::read_all(&[(name.clone(), bytes)], None).unwrap();
        assert_eq!(other.snapshot.claims, plain.snapshot.claims);
        assert_eq!(other.ticket.remarks, plain.ticket.remarks);
        assert_eq!(other.snapshot.host.cmdline, plain.snapshot.host.cmdline);
    }
}

/// Every line is in a part that was read, in a range that is named as not understood, or is a prompt or blank.
#[test]
fn no_line_is_dropped_silently() {
    let pasted = read(&["zeroed-mail.txt"]);
    let (_, bytes) = fixture("zeroed-mail.txt");
    let places = pasted
        .ticket
        .inputs
        .iter()
        .map(|i| i.source.as_str())
        .chain(pasted.ticket.unread.iter().map(|u| u.source.as_str()));
    let ranges: Vec<(u32, u32)> = places
        .map(|p| {
            let lines = p.rsplit_once(':').unwrap().1;
            let (a, b) = lines.split_once('-').unwrap_or((lines, lines));
            (a.parse().unwrap(), b.parse().unwrap())
        })
        .collect();
    for (line, number) in String::from_utf8(bytes).unwrap().lines().zip(1_u32..) {
        let told = ranges.iter().any(|(a, b)| (*a..=*b).contains(&number));
        assert!(
            told || line.trim().is_empty() || line.starts_with("$ "),
            "line {number} is nowhere: {line}"
        );
    }
}

#[test]
fn logs_become_remarks_with_places() {
    let pasted = read(&["acs-nccl.log", "geforce-vllm.log"]);
    let find = |kind| {
        pasted
            .ticket
            .remarks
            .iter()
            .find(|r| r.kind == kind)
            .unwrap()
    };
    assert_eq!(find(RemarkKind::Hang).source, "acs-nccl.log:10");
    let off = find(RemarkKind::CustomAllReduceOff);
    assert_eq!((off.source.as_str(), off.times), ("geforce-vllm.log:2", 2));
    let paths: Vec<(u32, u32, &str, u32)> = pasted
        .ticket
        .transports
        .iter()
        .map(|t| (t.devices.0, t.devices.1, t.via.as_str(), t.channels))
        .collect();
    assert_eq!(paths, [(0, 1, "P2P/CUMEM", 2), (1, 0, "P2P/CUMEM", 2)]);
    let launch = |about: &str| {
        let fact = pasted.ticket.launch.iter().find(|f| f.about == about);
        fact.map(|f| f.value.as_str())
    };
    assert_eq!(launch("tensor_parallel_size"), Some("2"));
    assert_eq!(launch("NCCL version"), Some("2.27.3+cuda12.9"));
    assert_eq!(
        pasted.snapshot.gpus[0].pci.known().unwrap().to_string(),
        "0000:41:00.0"
    );
}

/// An IOMMU that the command line switches off is off, although the kernel logs its default type all the same.
#[test]
fn iommu_off_outranks_the_logged_default() {
    let text = "[    0.0] Command line: BOOT_IMAGE=/v root=/dev/x ro amd_iommu=off iommu=off\n\
                [    0.5] iommu: Default domain type: Translated\n\
                [    1.0] pci 0000:75:00.0: [10de:2bb5] type 00 class 0x030200 PCIe Endpoint\n\
                [    1.1] pci 0000:76:00.0: [10de:2bb5] type 00 class 0x030200 PCIe Endpoint\n";
    let files = [("dmesg".to_string(), text.as_bytes().to_vec())];
    let pasted = import::read_all(&files, None).unwrap();
    assert!(pasted.snapshot.gpus[0].iommu.known().is_none());
    assert_eq!(
        pasted.snapshot.host.iommu_classes.known(),
        Some(&Vec::new())
    );
}

/// What a recorded file of these kinds must give; a file that is in no row must only be read or named.
fn expect(name: &str, pasted: &Pasted) {
    let snapshot = &pasted.snapshot;
    let gpus = snapshot.gpus.len();
    let wanted = match name {
        "h200x1-vm.smi-q.txt" | "gpud-lspci.nn.a10.txt" => 1,
        "h200x2-vm.smi-q.txt" | "h200x2-vm.nvlink-R.txt" | "h200x2-vm.nvlink-s.txt" => 2,
        "h200x2-vm.topo-p2p-r.txt" | "h200x2-vm.topo-m.txt" => 2,
        "h100x8-sxm-pex89.lspci-vvv.trim.txt"
        | "rtxpro6000x8-asus-esc8000a.lspci-vvv.trim.txt"
        | "rtxpro6000x8-asus-esc8000a.smi-q.excerpt.txt"
        | "rtxpro6000x8-asus-esc8000a.dmesg.excerpt.txt"
        | "gpud-lspci.nn.a100.txt"
        | "h200x8-kvm-vm.lspci-tv.txt" => 8,
        _ => gpus,
    };
    assert_eq!(gpus, wanted, "{name}");
    match name {
        "h100x8-sxm-pex89.lspci-vvv.trim.txt" => {
            assert_eq!(snapshot.nvswitches.len(), 4, "{name}");
            assert!(
                snapshot
                    .bridges
                    .iter()
                    .any(|b| b.acs.known().is_some_and(|a| a.redirects()))
            );
            let chain = snapshot.gpus[0].bridge_chain.known().unwrap();
            assert!(chain.len() >= 3, "{name}: {chain:?}");
        }
        "rtxpro6000x8-asus-esc8000a.lspci-vvv.trim.txt" => {
            let redirects = |b: &peerproof::model::snapshot::Bridge| {
                b.acs.known().is_some_and(|a| a.redirects())
            };
            assert!(!snapshot.bridges.iter().any(redirects), "{name}");
            // The record was trimmed of that region: unknown, not zero.
            assert!(
                snapshot.gpus.iter().all(|g| g.bar1_bytes.known().is_none()),
                "{name}"
            );
        }
        "rtxpro6000x8-asus-esc8000a.cmdline.txt" => {
            let line = snapshot.host.cmdline.known().unwrap();
            assert!(line.ends_with("iommu=off"), "{name}");
        }
        "h200x8-kvm-vm.lspci-tv.txt" | "gpud-lspci.nn.a10.txt" => {
            assert_eq!(snapshot.host.hypervisor.known(), Some(&true), "{name}");
        }
        "h200x2-vm.smi-q.txt" => {
            let gpu = &snapshot.gpus[0];
            assert_eq!(gpu.bar1_bytes.known(), Some(&(262_144 << 20)), "{name}");
            assert_eq!(gpu.fabric.known().unwrap().state, "completed", "{name}");
            assert_eq!(
                gpu.link_now.known().unwrap().generation(),
                Some(5),
                "{name}"
            );
        }
        "h200x2-vm.nvlink-s.txt" => {
            assert_eq!(
                snapshot.gpus[1].nvlinks.known().unwrap().len(),
                18,
                "{name}"
            );
        }
        _ => {}
    }
}

#[test]
fn every_recorded_file_is_read_or_named() {
    let Some(root) = std::env::var_os("PEERPROOF_CASES") else {
        println!("skipped: PEERPROOF_CASES is not set; it names the folder of recorded hosts");
        return;
    };
    let (mut whole, mut named) = (0, 0);
    for folder in ["pci", "h200", "topo"] {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(Path::new(&root).join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            if name.starts_with("INDEX") || name.starts_with("README") {
                continue;
            }
            let files = [(name.clone(), std::fs::read(&path).unwrap())];
            let pasted = import::read_all(&files, None).unwrap();
            let _ = shown(&pasted, false);
            expect(&name, &pasted);
            let ticket = &pasted.ticket;
            if ticket.inputs.is_empty() {
                named += 1;
                assert!(!ticket.unread.is_empty(), "{name}: neither read nor named");
            } else {
                whole += 1;
            }
            for unread in &ticket.unread {
                println!("{}: {} ({})", unread.source, unread.reason, unread.text);
            }
        }
    }
    println!("{whole} files read, {named} named as not read");
    assert!(
        whole >= 60,
        "only {whole} files were read: is the folder whole?"
    );
}

/// Three texts of one host tell more together than each alone.
#[test]
fn recorded_texts_of_one_host_join() {
    let Some(root) = std::env::var_os("PEERPROOF_CASES") else {
        println!("skipped: PEERPROOF_CASES is not set; it names the folder of recorded hosts");
        return;
    };
    let of = |kind: &str| {
        let name = format!("rtxpro6000x8-asus-esc8000a.{kind}.txt");
        let path = Path::new(&root).join("pci").join(&name);
        (name, std::fs::read(path).unwrap())
    };
    let files = [
        of("lspci-vvv.trim"),
        of("smi-q.excerpt"),
        of("topo-m"),
        of("cmdline"),
        of("dmesg.excerpt"),
    ];
    let pasted = import::read_all(&files, None).unwrap();
    let snapshot = &pasted.snapshot;
    assert_eq!(snapshot.gpus.len(), 8);
    assert!(
        snapshot
            .gpus
            .iter()
            .all(|g| g.name.known().is_some() && g.bridge_chain.known().is_some())
    );
    assert_eq!(snapshot.driver.version.known().unwrap(), "595.58.03");
    assert_eq!(snapshot.driver.flavour.known().unwrap(), "open");
    assert_eq!(snapshot.host.iommu_classes.known(), Some(&Vec::new()));
    println!("{}", shown(&pasted, false));
}

const INPUTS: u64 = 20_000;

/// xorshift64*, seeded per input.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % limit.max(1)
    }
}

const PIECES: &[&str] = &[
    "\u{1b}[4m",
    "\t",
    "\r\n",
    "\u{0}",
    "é",
    "中",
    "18446744073709551616",
    "4294967295",
    "-1",
    "0",
    "0x",
    "ff:1f.7",
    "0000:ff:ff.f",
    " : ",
    ": ",
    "[",
    "]",
    "GPU 0",
    "GPU0\tX\n",
    "NCCL WARN ",
    "$ cat /proc/cmdline\n",
    "Capabilities: ",
    "ACSCtl:\t",
    "Bus: primary=00, secondary=00",
    "busId ffffffffffffffff",
    "via ",
    " -> ",
    "[0000:ff]-+-",
    "-[00-ff]-",
    "+-1f.7-[ff]--",
    "Speed 1e309GT/s, Width x99999999999",
    "[size=99999999999999999999T]",
    "    Fabric\n",
    "None",
    "nvmlDev 4294967295 busId 1",
    "iommu_groups/4294967295/type DMA\n",
    "tensor_parallel_size=",
    "'''",
];

fn mutate(seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    // Short pieces of the seeds keep an input small and the run fast.
    let seed = &seeds[dice.below(seeds.len())];
    let from = dice.below(seed.len().saturating_sub(2000));
    let from = if dice.below(3) == 0 { 0 } else { from };
    let mut input = seed[from..(from + 2000).min(seed.len())].to_vec();
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(input.len() + 1);
        match dice.below(7) {
            0 if at < input.len() => input[at] ^= 1 << dice.below(8),
            1 => input.truncate(at.max(1)),
            2 => {
                let end = (at + dice.below(80)).min(input.len());
                input.drain(at..end);
            }
            3 => {
                let mut lines: Vec<Vec<u8>> =
                    input.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
                let (a, b) = (dice.below(lines.len()), dice.below(lines.len()));
                lines.swap(a, b);
                input = lines.join(&b'\n');
            }
            4 => {
                let other = &seeds[dice.below(seeds.len())];
                let from = dice.below(other.len());
                let to = (from + dice.below(300)).min(other.len());
                input.splice(at..at, other[from..to].to_vec());
            }
            5 => {
                let piece =
                    PIECES[dice.below(PIECES.len())].repeat(1 + dice.below(3) * dice.below(40));
                input.splice(at..at, piece.into_bytes());
            }
            _ => {
                let piece = PIECES[dice.below(PIECES.len())];
                input.splice(at..at, piece.bytes());
            }
        }
    }
    input
}

/// What must hold for any input.
fn hold(input: &[u8]) -> bool {
    match import::read_all(&[("mutant".to_string(), input.to_vec())], None) {
        Ok(pasted) => {
            sound(&pasted.snapshot);
            assert!(shown(&pasted, false).len() < 20_000);
            !pasted.ticket.inputs.is_empty()
        }
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            false
        }
    }
}

fn sound(snapshot: &Snapshot) {
    let count = u32::try_from(snapshot.gpus.len()).unwrap();
    assert!(count <= 128);
    assert_eq!(snapshot.claims.count(), count);
    assert_eq!(snapshot.topology.pairs.count(), count);
}

fn mutants(format: &str, names: &[&str]) {
    let seeds: Vec<Vec<u8>> = names.iter().map(|n| fixture(n).1).collect();
    let (next, read) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism()
            .map_or(2, usize::from)
            .min(8)
        {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= INPUTS {
                        break;
                    }
                    let mut state = 0xcbf2_9ce4_8422_2325_u64;
                    for byte in format.bytes().chain(number.to_le_bytes()) {
                        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                    }
                    let input = mutate(&seeds, &mut Dice(state | 1));
                    match catch_unwind(AssertUnwindSafe(|| hold(&input))) {
                        Ok(known) => {
                            read.fetch_add(u64::from(known), Ordering::Relaxed);
                        }
                        Err(_) => {
                            let path = std::env::temp_dir()
                                .join(format!("peerproof-find-{format}-{number}"));
                            std::fs::write(&path, &input).unwrap();
                            panic!(
                                "{format} input {number} broke a rule: kept as {}",
                                path.display()
                            );
                        }
                    }
                }
            });
        }
    });
    let read = read.into_inner();
    println!("{format}: {INPUTS} inputs, {read} of them still read");
    assert!(read * 20 > INPUTS, "{format}: {read} of {INPUTS} were read");
}

#[test]
fn mutants_of_smi_query() {
    mutants("smi-q", &["zeroed-smi-q.txt", "nvswitch-smi-q.txt"]);
}

#[test]
fn mutants_of_smi_tables() {
    mutants("smi", &["geforce-ticket.txt", "nvlink.txt"]);
}

#[test]
fn mutants_of_lspci() {
    mutants("lspci", &["acs-lspci.txt", "vm-lspci-tv.txt"]);
}

#[test]
fn mutants_of_host_texts() {
    mutants(
        "host",
        &["zeroed-dmesg.txt", "acs-host.txt", "zeroed-mail.txt"],
    );
}

#[test]
fn mutants_of_logs() {
    mutants(
        "log",
        &[
            "acs-nccl.log",
            "vm-nccl.log",
            "nvswitch-vllm.log",
            "geforce-vllm.log",
        ],
    );
}

const CLAIMED: &str = " \tGPU0\tGPU1\tGPU2\tGPU3\t\n GPU0\tX\tOK\tOK\tOK\t\n GPU1\tOK\tX\tOK\tOK\t\n GPU2\tOK\tOK\tX\tOK\t\n GPU3\tOK\tOK\tOK\tX\t\n";
const HANG: &str = "node1:311:311 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\nnode1:311:345 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n[rank0]:[E812 10:21:12.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1) ran for 600012 milliseconds before timing out.\n";

/// What the screen of three pasted files says: its first lines, and that it is one screen.
fn screen(pasted: &Pasted) -> (String, String) {
    let page = shown(pasted, false);
    assert!(page.lines().count() <= 40, "{page}");
    let next = page.lines().find(|l| l.starts_with("next")).unwrap();
    (next.to_string(), page)
}

/// A boot log of an IOMMU at work, without a fault and without addresses, beside a hang: the IOMMU is the first suspect.
#[test]
fn an_iommu_at_work_is_a_suspect_of_a_hang() {
    let log = "[    0.612345] AMD-Vi: Extended features (0x841f77e022094ace, 0x0): PPR X2APIC NX\n[    0.700000] iommu: Default domain type: Translated\n[    0.700001] iommu: DMA domain TLB invalidation policy: lazy mode\n";
    let files = [("nccl.log", HANG), ("dmesg.txt", log), ("topo.txt", FOUR)];
    let pasted = inline(&files);
    let found = judge(&pasted);
    assert_eq!(found.suspects[0].cause, "iommu-translation");
    let (next, page) = screen(&pasted);
    assert!(next.contains("sudo peerproof qualify"), "{next}");
    assert!(page.contains("iommu=pt"), "{page}");
    // The kernel names its default on machines without an IOMMU, too.
    let log = "[    0.700000] iommu: Default domain type: Translated\n";
    let silent = inline(&[("nccl.log", HANG), ("dmesg.txt", log), ("topo.txt", FOUR)]);
    assert!(judge(&silent).suspects.is_empty());
}

/// Claims that say OK, a symptom, and nothing else: what to serve with until then, which also is the test without a tool.
#[test]
fn a_symptom_gets_settings_until_then_that_also_tell() {
    let vllm = "INFO 08-12 10:11:12 [utils.py:326] non-default args: {'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 4}\n";
    let mail = "Output of the model is garbage (!!!!!) with TP4, fine with TP1.\n";
    let told = |files: &[(&str, &str)]| judge(&inline(files)).meanwhile;
    let base = [("p2p.txt", CLAIMED), ("topo.txt", FOUR)];
    let [claims, topo] = base;
    let with = told(&[("mail.txt", mail), claims, ("vllm.log", vllm)]).unwrap();
    for words in [
        "NCCL_P2P_DISABLE=1",
        "--disable-custom-all-reduce",
        "VLLM_ALLREDUCE_USE_SYMM_MEM=0",
        "VLLM_ALLREDUCE_USE_FLASHINFER=0",
        "peerproof recommend --engine vllm",
        "only where every switch",
    ] {
        assert!(with.contains(words), "{words}: {with}");
    }
    let page = shown(
        &inline(&[("mail.txt", mail), claims, ("vllm.log", vllm)]),
        false,
    );
    assert!(page.contains("until then"), "{page}");
    // No symptom, no peers, or peers off already: no such test.
    assert_eq!(told(&base), None);
    let refused = CLAIMED.replace("OK", "CNS");
    assert_eq!(told(&[("mail.txt", mail), ("p2p.txt", &refused)]), None);
    let off = "node1:311:311 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n";
    let files = [("mail.txt", mail), topo, ("nccl.log", off)];
    assert_eq!(told(&files), None);
    let found = judge(&inline(&files));
    let stays = found
        .conclusions
        .iter()
        .find(|c| c.title.contains("not to use peers"));
    assert!(
        stays
            .unwrap()
            .because
            .contains("If the symptom is of this very run"),
        "{found:?}"
    );
    assert!(
        stays
            .unwrap()
            .because
            .contains("VLLM_ALLREDUCE_USE_FLASHINFER=0")
    );
    // Hopper has further ways.
    let mut hopper = inline(&[("mail.txt", mail), claims]);
    for gpu in &mut hopper.snapshot.gpus {
        gpu.name = peerproof::model::reading::Reading::Known("NVIDIA H100 80GB HBM3".into());
    }
    let with = judge(&hopper).meanwhile.unwrap_or_default();
    assert!(with.contains("NCCL_NVLS_ENABLE=0"), "{with}");
    assert!(with.contains("fuse_allreduce_rms:false"), "{with}");
}

/// A sentence is no command line, and one line may tell two symptoms.
#[test]
fn prose_is_read_as_prose() {
    let pasted = inline(&[("m.txt", "we boot with iommu=pt already\n")]);
    assert!(pasted.snapshot.host.cmdline.known().is_none());
    let pasted = inline(&[("m.txt", "It hangs at start. Output is garbage afterwards\n")]);
    let kinds: Vec<RemarkKind> = pasted.ticket.remarks.iter().map(|r| r.kind).collect();
    assert!(
        kinds.contains(&RemarkKind::Hang) && kinds.contains(&RemarkKind::Garbage),
        "{kinds:?}"
    );
}

/// Error 802: nothing of CUDA runs, so that the next step is not our own test.
#[test]
fn a_fabric_that_is_not_up_is_looked_at_first() {
    let log = "RuntimeError: CUDA error: system not yet initialized\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: system not yet initialized (error 802)\n";
    let smi = fixture("nvswitch-topo.txt");
    let topo = String::from_utf8(smi.1).unwrap();
    let pasted = inline(&[("cuda.log", log), ("topo.txt", &topo)]);
    let found = judge(&pasted);
    let of_fabric = |c: &&peerproof::model::ticket::Conclusion| {
        c.title.contains("802") || c.cause.as_deref() == Some("fabric-not-ready")
    };
    assert_eq!(
        found.conclusions.iter().filter(of_fabric).count(),
        1,
        "{found:?}"
    );
    assert!(
        !found.verdict.next.contains("peerproof qualify"),
        "{:?}",
        found.verdict
    );
    let (next, _) = screen(&pasted);
    assert!(
        next.contains("lspci -d 10de:") || next.contains("nvidia-fabricmanager"),
        "{next}"
    );
    // The log alone, before any GPU was shown.
    let alone = judge(&inline(&[("cuda.log", log)]));
    assert!(
        !alone.verdict.next.starts_with("nvidia-smi -q"),
        "{:?}",
        alone.verdict
    );
}

/// The error of a traceback stands some lines below the place that names the shared buffers.
#[test]
fn a_traceback_is_read_as_a_whole() {
    let log = "[2026-08-12 10:00:31 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \"/sgl-workspace/sglang/python/sglang/srt/distributed/device_communicators/custom_all_reduce.py\", line 210, in __init__\n    handles = ops.get_graph_buffer_ipc_meta(self._ptr)\nRuntimeError: CUDA error: invalid argument\n";
    let pasted = inline(&[("sgl.log", log), ("p2p.txt", CLAIMED)]);
    let remark = &pasted.ticket.remarks[0];
    assert_eq!(remark.kind, RemarkKind::SharingFailed);
    assert_eq!(remark.source, "sgl.log:4");
    let found = judge(&pasted);
    let held = |c: &&peerproof::model::ticket::Conclusion| {
        c.cause.as_deref() == Some("allocation-not-shareable")
    };
    assert_eq!(
        found.conclusions.iter().filter(held).count(),
        1,
        "{found:?}"
    );
    // The same error elsewhere says nothing of shared buffers.
    let other = log.replace("custom_all_reduce", "model_runner");
    let pasted = inline(&[("sgl.log", &other), ("p2p.txt", CLAIMED)]);
    assert!(
        pasted.ticket.remarks.is_empty(),
        "{:?}",
        pasted.ticket.remarks
    );
}

/// GeForce GPUs whose claims say OK over PCIe run a patched driver.
#[test]
fn peer_access_of_geforce_is_told_as_what_it_is() {
    let (_, bytes) = fixture("geforce-ticket.txt");
    let ticket = String::from_utf8(bytes).unwrap();
    let patched = |text: &str| {
        let found = judge(&inline(&[("ticket.txt", text)]));
        found
            .conclusions
            .iter()
            .any(|c| c.title.contains("the driver is patched"))
    };
    assert!(!patched(&ticket));
    let offered = ticket.replace("GNS", "OK ").replace("CNS", "OK ");
    assert!(patched(&offered), "{offered}");
}

/// The driver's own word on a guest.
#[test]
fn a_passed_through_gpu_is_in_a_virtual_machine() {
    let (_, bytes) = fixture("zeroed-smi-q.txt");
    let text = String::from_utf8(bytes).unwrap();
    let mode = "Virtualization Mode                            : ";
    let through = text.replace(&format!("{mode}None"), &format!("{mode}Pass-Through"));
    assert_ne!(text, through);
    let guest = inline(&[("smi.txt", &through)]);
    assert_eq!(guest.snapshot.host.hypervisor.known(), Some(&true));
    assert_eq!(
        inline(&[("smi.txt", &text)])
            .snapshot
            .host
            .hypervisor
            .known(),
        None
    );
    let asked = judge(&guest);
    assert!(
        asked
            .unknown
            .iter()
            .all(|u| !u.shown_by.contains("iommu_groups"))
    );
}

/// Every Xid of a log is told with its GPU, whether or not another text shows that GPU; one that is gone comes first.
#[test]
fn every_xid_is_told() {
    let log = "\
[  100.1] NVRM: Xid (PCI:0000:61:00): 31, pid=4242, name=python3, Ch 00000010, MMU Fault: ENGINE GRAPHICS
[  100.2] NVRM: Xid (PCI:0000:61:00): 48, pid=1, DBE occurred
[  100.3] NVRM: Xid (PCI:0000:61:00): 48, pid=1, DBE occurred
[  101.2] NVRM: Xid (PCI:0000:62:00): 119, pid=77, Timeout after 6s of waiting for RPC response from GPU1 GSP!
[  102.0] NVRM: Xid (PCI:0000:62:00): 999, pid=1, something new
";
    let found = judge(&inline(&[("dmesg.txt", log)]));
    let titles: Vec<&str> = found.conclusions.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(titles.len(), 4, "{titles:?}");
    assert!(
        titles[0].starts_with("Xid 48 of 0000:61:00.0, 2 times"),
        "{titles:?}"
    );
    assert!(
        titles[3].starts_with("Xid 31 of 0000:61:00.0"),
        "{titles:?}"
    );
    assert!(
        titles.iter().any(|t| t.starts_with("Xid 999 of")),
        "{titles:?}"
    );
    assert_eq!(found.verdict.headline, titles[0]);
    let gone = format!(
        "{log}[  103.0] nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0042 address=0x20f80000000 flags=0x0020]\n\
         [  104.0] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
    );
    let found = judge(&inline(&[("dmesg.txt", &gone)]));
    assert_eq!(found.grading(), Grading::Fail);
    assert_eq!(
        found.verdict.headline,
        "GPU 0000:41:00.0 does not answer any more"
    );
    assert!(
        !found.verdict.next.contains("dmesg"),
        "{}",
        found.verdict.next
    );
}
