//! What few and small texts decide by themselves: a kernel command line alone, a board that lspci shows alone, a table that
//! was cut.

use super::{inline, judge, shown};
use peerproof::model::{finding::Judgement, report::Grading};

fn line(words: &str) -> String {
    format!("BOOT_IMAGE=/vmlinuz-6.8 root=/dev/sda1 ro quiet {words}\n")
}

#[test]
fn a_command_line_alone_tells_what_the_iommu_does() {
    for (words, headline, because) in [
        (
            "intel_iommu=on",
            "the IOMMU probably translates, by the kernel command line: intel_iommu=on",
            "CONFIG_IOMMU_DEFAULT_PASSTHROUGH",
        ),
        (
            "iommu=nopt",
            "the IOMMU probably translates, by the kernel command line: iommu=nopt",
            "Intel's needs intel_iommu=on",
        ),
        (
            "amd_iommu=on iommu.passthrough=0",
            "the IOMMU probably translates, by the kernel command line: iommu.passthrough=0 amd_iommu=on",
            "amd_iommu=on is no setting that the kernel knows",
        ),
        (
            "intel_iommu=on iommu=nopt",
            "the IOMMU translates, by the kernel command line: intel_iommu=on iommu=nopt",
            "lets it translate",
        ),
        (
            "iommu.strict=1",
            "whether the IOMMU translates is not set, by the kernel command line: iommu.strict=1",
            "strict invalidation",
        ),
        (
            "intel_iommu=on iommu=pt",
            "the IOMMU does not translate, by the kernel command line: intel_iommu=on iommu=pt",
            "no suspect",
        ),
    ] {
        let pasted = inline(&[("cmdline.txt", &line(words))]);
        let found = judge(&pasted);
        assert_eq!(found.verdict.grading, Grading::Inconclusive);
        assert_eq!(found.verdict.headline, headline);
        let first = &found.conclusions[0];
        assert!(first.because.contains(because), "{}", first.because);
        assert!(
            found.verdict.next.contains("iommu_groups"),
            "{}",
            found.verdict.next
        );
        // The place of the line stands behind it.
        let page = shown(&pasted, true).replace('\n', " ");
        assert!(page.contains("cmdline.txt:1"), "{page}");
    }
    // Words alone are enough, in any order and without what boot loaders add.
    for text in [
        "root=/dev/vda1 ro console=ttyS0 intel_iommu=on iommu=pt\n",
        "console=ttyS0,115200n8 iommu=pt intel_iommu=on\n",
        "intel_iommu=on iommu=pt\n",
    ] {
        let found = judge(&inline(&[("cmdline.txt", text)]));
        assert!(
            found
                .verdict
                .headline
                .contains("the IOMMU does not translate"),
            "{text}{}",
            found.verdict.headline
        );
    }
    // A line without such words is no answer.
    let found = judge(&inline(&[("cmdline.txt", &line("nosplash"))]));
    assert!(found.conclusions.is_empty(), "{:?}", found.conclusions);
}

#[test]
fn beside_gpus_the_command_line_makes_a_suspect_or_clears_one() {
    let with = |words: &str| {
        judge(&inline(&[
            ("topo.txt", super::FOUR),
            ("cmdline.txt", &line(words)),
        ]))
    };
    for words in [
        "intel_iommu=on",
        "iommu=nopt",
        "intel_iommu=on iommu.passthrough=0",
    ] {
        let found = with(words);
        let suspect = found
            .suspects
            .iter()
            .find(|f| f.cause == "iommu-translation");
        let suspect = suspect.unwrap_or_else(|| panic!("{words}: {:?}", found.suspects));
        assert_eq!(suspect.judgement, Judgement::Indicted);
        let seen = suspect.evidence.join("; ");
        assert!(seen.contains(words), "{seen}");
        assert!(suspect.fix[0].contains("iommu=pt"), "{:?}", suspect.fix);
    }
    for words in ["iommu=pt", "intel_iommu=off"] {
        let found = with(words);
        let held = found
            .suspects
            .iter()
            .any(|f| f.cause == "iommu-translation");
        assert!(!held, "{words}: {:?}", found.suspects);
    }
}

const CUT: &str = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\tPHB\t0-63\t0\nGPU1\tPHB\t X \tPH\n";

#[test]
fn a_table_that_was_cut_is_told() {
    let pasted = inline(&[("topo.txt", CUT)]);
    let told = pasted.ticket.incomplete.join("; ");
    assert!(
        told.contains("topo.txt:1-3: rows cut in the text: GPU1"),
        "{told}"
    );
    assert!(told.contains("rows missing in the text: GPU2"), "{told}");
    let page = shown(&pasted, false);
    assert!(page.contains("rows cut in the text: GPU1"), "{page}");
    assert!(page.contains("rows missing in the text: GPU2"), "{page}");
    // A whole one is not.
    assert!(
        inline(&[("topo.txt", super::FOUR)])
            .ticket
            .incomplete
            .is_empty()
    );
}

/// A bus of `gpus` GPUs, each below a root port of its own; `pairs` puts two below one switch. `switches` are NVSwitches.
fn bus(gpus: u32, pairs: bool, switches: u32) -> String {
    let mut text = String::new();
    let port = |text: &mut String, at: &str, below: u32, kind: &str| {
        text.push_str(&format!(
            "{at} PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])\n\tBus: primary=00, secondary={below:02x}, subordinate={below:02x}, sec-latency=0\n\tCapabilities: [68] Express (v2) {kind}, MSI 00\n"
        ));
    };
    let gpu = |text: &mut String, bus: u32| {
        text.push_str(&format!(
            "{bus:02x}:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n\tKernel driver in use: nvidia\n"
        ));
    };
    for at in 0..gpus {
        let own = 0x40 + at;
        if !pairs {
            port(
                &mut text,
                &format!("00:{:02x}.0", at + 1),
                own,
                "Root Port (Slot+)",
            );
            gpu(&mut text, own);
            continue;
        }
        if at % 2 == 0 {
            let (up, inner) = (0x10 + at, 0x20 + at);
            port(
                &mut text,
                &format!("00:{:02x}.0", at + 1),
                up,
                "Root Port (Slot+)",
            );
            port(&mut text, &format!("{up:02x}:00.0"), inner, "Upstream Port");
        }
        port(
            &mut text,
            &format!("{:02x}:{:02x}.0", 0x20 + at / 2 * 2, at % 2),
            own,
            "Downstream Port (Slot+)",
        );
        gpu(&mut text, own);
    }
    for at in 0..switches {
        text.push_str(&format!(
            "{:02x}:00.0 Bridge: NVIDIA Corporation Device 22a3 (rev a1)\n",
            0x80 + at
        ));
    }
    text
}

fn matrix(gpus: usize, cell: impl Fn(usize, usize) -> &'static str) -> String {
    let mut text = String::new();
    for column in 0..gpus {
        text.push_str(&format!("\tGPU{column}"));
    }
    text.push_str("\tCPU Affinity\tNUMA Affinity\n");
    for row in 0..gpus {
        text.push_str(&format!("GPU{row}"));
        for column in 0..gpus {
            let own = match row == column {
                true => " X ",
                false => cell(row, column),
            };
            text.push_str(&format!("\t{own}"));
        }
        text.push_str("\t0-63\t0\n");
    }
    text
}

#[test]
fn a_matrix_and_a_bus_of_another_host_are_told_apart_by_their_switches() {
    let pairs = matrix(4, |a, b| if a / 2 == b / 2 { "PIX" } else { "NODE" });
    let flat = matrix(4, |_, _| "PHB");
    let permuted = matrix(4, |a, b| if a % 2 == b % 2 { "PXB" } else { "SYS" });
    for (topo, switched, same) in [
        (&pairs, true, true),
        (&pairs, false, false),
        (&flat, false, true),
        (&flat, true, false),
        // The order of the numbers says nothing.
        (&permuted, true, true),
    ] {
        let lspci = bus(4, switched, 0);
        let pasted = inline(&[("topo.txt", topo), ("lspci.txt", &lspci)]);
        assert_eq!(pasted.snapshot.gpus.len(), 4);
        let told = pasted.ticket.hosts.join("; ");
        assert_eq!(told.is_empty(), same, "{switched}: {told}\n{topo}");
        if !same {
            assert!(
                told.contains("topo.txt has") && told.contains("lspci.txt has"),
                "{told}"
            );
            let found = judge(&pasted);
            assert_eq!(found.verdict.grading, Grading::Inconclusive);
            assert!(found.suspects.is_empty());
        }
    }
    // Eighteen links between all of eight GPUs need NVSwitches, which a bus of bare metal shows.
    let links = matrix(8, |_, _| "NV18");
    for (switches, same) in [(4, true), (0, false)] {
        let lspci = bus(8, false, switches);
        let told = inline(&[("topo.txt", &links), ("lspci.txt", &lspci)])
            .ticket
            .hosts;
        assert_eq!(told.is_empty(), same, "{told:?}");
    }
}

#[test]
fn nvswitches_on_the_bus_are_told_and_the_ports_are_not_suspected() {
    let pasted = inline(&[("lspci.txt", &bus(8, false, 4))]);
    let found = judge(&pasted);
    assert!(
        found
            .verdict
            .headline
            .starts_with("4 NVSwitches: an SXM baseboard"),
        "{}",
        found.verdict.headline
    );
    assert!(found.suspects.is_empty(), "{:?}", found.suspects);
    assert!(shown(&pasted, false).contains("4 NVSwitches"));
    // Paths where NVLink should be: the fabric, or the wrong table.
    let flat = matrix(8, |_, _| "PHB");
    let found = judge(&inline(&[
        ("lspci.txt", &bus(8, false, 4)),
        ("topo.txt", &flat),
    ]));
    let told = &found.conclusions[0];
    assert_eq!(told.title, "4 NVSwitches, and no NVLink between the GPUs");
    assert!(
        told.because.contains("or the table is of another host"),
        "{}",
        told.because
    );
}
