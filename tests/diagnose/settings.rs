//! Settings of kernel and driver that are taken for what they are not, and GPUs that talk over NVLink although no text shows the
//! links of their pairs.

use super::{fixture, inline, judge, shown};
use peerproof::{
    collect::import,
    model::{finding::Judgement, report::Grading},
};

const TWO_PORTS: &str = "\
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab (rev 01) (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), IntMsgNum 0
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedirA CmpltRedirA UpstreamFwd+ EgressCtrl- DirectTrans-

01:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)
\tCapabilities: [60] Express (v2) Endpoint, IntMsgNum 0

20:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab (rev 01) (prog-if 00 [Normal decode])
\tBus: primary=20, secondary=21, subordinate=21, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), IntMsgNum 0
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedirB CmpltRedirB UpstreamFwd+ EgressCtrl- DirectTrans-

21:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)
\tCapabilities: [60] Express (v2) Endpoint, IntMsgNum 0
";

fn ports(first: char, second: char) -> String {
    TWO_PORTS
        .replace("RedirA", &format!("Redir{first}"))
        .replace("RedirB", &format!("Redir{second}"))
}

fn ticket(words: &str, lspci: &str) -> String {
    format!(
        "$ cat /proc/cmdline\nBOOT_IMAGE=/vmlinuz-6.8 root=/dev/sda1 ro iommu=pt {words}\n$ systemd-detect-virt\nnone\n$ lspci -vvv\n{lspci}"
    )
}

/// The override changes groups: it neither clears a redirect that is read nor makes one.
#[test]
fn the_acs_override_is_no_word_on_redirects() {
    let word = "pcie_acs_override=downstream,multifunction";
    let redirecting = inline(&[("t.txt", &ticket(word, &ports('+', '+')))]);
    let found = judge(&redirecting);
    assert_eq!(found.suspects[0].cause, "acs-redirect", "{found:#?}");
    let title = format!("{word} changes IOMMU groups and leaves ACS as it is");
    assert_eq!(found.conclusions[0].title, title);
    assert!(
        found.suspects[0]
            .evidence
            .iter()
            .any(|l| l.contains("changes IOMMU groups and no control word"))
    );
    let page = shown(&redirecting, true);
    assert!(page.contains("t.txt:2"), "{page}");
    let clear = inline(&[("t.txt", &ticket(word, &ports('-', '-')))]);
    let found = judge(&clear);
    assert!(
        found.cleared.iter().any(|f| f.cause == "acs-redirect"),
        "{found:#?}"
    );
    // Alone and with nothing else, it is a command line and gets its answer.
    let alone = inline(&[("c.txt", "quiet pcie_acs_override=downstream\n")]);
    assert!(
        judge(&alone).conclusions[0]
            .title
            .contains("leaves ACS as it is")
    );
}

/// What the line asks for and what the port does are two things, and the port counts.
#[test]
fn a_redirect_that_was_asked_off_and_is_on_is_said_so() {
    let words = "pci=disable_acs_redir=0000:00:01.1;0000:20:01.1";
    let pasted = inline(&[("t.txt", &ticket(words, &ports('+', '-')))]);
    let found = judge(&pasted);
    let first = &found.suspects[0];
    assert_eq!(first.cause, "acs-redirect");
    assert!(first.fix[0].starts_with("sudo setpci"), "{first:#?}");
    assert!(
        first.fix[1].contains("asks for it at boot already"),
        "{first:#?}"
    );
    // A setting is worth knowing, and no answer where there is a suspect.
    assert!(
        found.verdict.headline.contains("suspect first: ACS"),
        "{}",
        found.verdict.headline
    );
    assert!(
        found.conclusions[0]
            .because
            .contains("the 2 devices that it names")
    );
    // Nothing was read of the ports: the line settles nothing, and the missing permission is still one.
    let denied = ports('-', '-').replace("[2a0 v1] Access Control Services", "<access denied>");
    let denied: String = denied
        .lines()
        .filter(|l| !l.contains("ACSC"))
        .map(|l| format!("{l}\n"))
        .collect();
    let found = judge(&inline(&[("t.txt", &ticket(words, &denied))]));
    assert!(
        found.cleared.iter().all(|f| f.cause != "acs-redirect"),
        "{found:#?}"
    );
    assert!(found.unknown.iter().any(|u| u.what.starts_with("ACS")));
    let on = "pci=config_acs=xx111xx@0000:00:01.1";
    let found = judge(&inline(&[("t.txt", &ticket(on, &denied))]));
    assert_eq!(found.suspects[0].cause, "acs-redirect", "{found:#?}");
    let noacs = judge(&inline(&[(
        "t.txt",
        &ticket("pci=noacs", &ports('+', '+')),
    )]));
    assert!(
        noacs.conclusions[0]
            .title
            .contains("no setting that the kernel knows")
    );
}

/// A file for the next boot is not what runs.
#[test]
fn grub_defaults_are_named_and_not_believed() {
    let grub = "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet iommu=pt pcie_acs_override=downstream\"\n";
    let pasted = inline(&[("grub.txt", grub)]);
    assert!(pasted.snapshot.host.cmdline.known().is_none());
    assert!(
        pasted.ticket.unread[0]
            .reason
            .contains("give cat /proc/cmdline")
    );
}

/// Registry words assert: where they hold, where they are merely asked for, and on a kernel line.
#[test]
fn registry_words_are_told_for_what_they_do() {
    let key = "\"ForceP2P=0x11;RMForceP2PType=1;PeerMappingOverride=1\"";
    let held = format!("RegistryDwords: {key}\n");
    let asked = format!("options nvidia NVreg_RegistryDwords={key}\n");
    let line = format!(
        "BOOT_IMAGE=/v root=/dev/sda1 ro nvidia.NVreg_RegistryDwords={}\n",
        key.trim_matches('"')
    );
    let empty = format!("RegistryDwords: \"\"\nRmMsg: \"\"\n{asked}");
    for (text, in_force) in [
        (&held, true),
        (&asked, false),
        (&line, false),
        (&empty, false),
    ] {
        let pasted = inline(&[("t.txt", text)]);
        let found = judge(&pasted);
        let told = found
            .conclusions
            .iter()
            .find(|c| c.title.starts_with("registry words"))
            .unwrap();
        assert!(
            told.because
                .contains("peer reads allowed, writes allowed, atomics forbidden"),
            "{told:#?}"
        );
        assert!(told.because.contains("because they were told to"));
        assert_eq!(
            !told.because.contains("Asked for at the next load"),
            in_force,
            "{text}"
        );
        assert_eq!(found.verdict.grading, Grading::Inconclusive);
        assert!(shown(&pasted, true).contains("(t.txt:"), "{text}");
    }
    // A claim that was told to be OK is not the driver's knowledge of the chipset.
    let table = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n";
    let text = format!(
        "$ nvidia-smi topo -p2p r\n{table}$ nvidia-smi topo -p2p w\n{table}$ cat /proc/driver/nvidia/params\n{held}"
    );
    let evidence = inline(&[("t.txt", &text)]).snapshot;
    let findings =
        peerproof::diagnose::findings(&peerproof::diagnose::Evidence::new(&evidence, &[], &[]));
    let offered = findings
        .iter()
        .find(|f| f.cause == "driver-policy")
        .unwrap();
    assert_eq!(offered.judgement, Judgement::Cleared);
    assert!(offered.because.contains("ForceP2P=0x11"), "{offered:#?}");
}

/// A complete fabric, and modules that are built for NVLink, speak for NVLink: what PCIe may do to peers is no suspect.
#[test]
fn a_complete_fabric_is_no_pcie_path() {
    let (name, bytes) = fixture("nvswitch-smi-q.txt");
    let query = String::from_utf8(bytes).unwrap();
    let guest = query.replace(
        "Virtualization Mode                               : None",
        "Virtualization Mode                               : Pass-Through",
    );
    let found = judge(&inline(&[(&name, &guest)]));
    assert!(found.suspects.is_empty(), "{:#?}", found.suspects);
    assert!(
        found.conclusions[0].title.contains("fabric is complete"),
        "{found:#?}"
    );
    let garbage = format!("{guest}\nEvery answer is garbage, only !!!!!\n");
    let found = judge(&inline(&[(&name, &garbage)]));
    assert!(found.suspects.is_empty(), "{:#?}", found.suspects);
    // It is not complete: the fabric itself is what is wrong, and nothing speaks for NVLink.
    let stuck = guest.replace("Completed", "In Progress");
    let found = judge(&inline(&[(&name, &stuck)]));
    assert!(
        found
            .conclusions
            .iter()
            .all(|c| !c.title.contains("talk over NVLink")),
        "{found:#?}"
    );
}

#[test]
fn modules_in_a_guest_are_joined_by_nvlink() {
    let tree = "-[0000:00]-+-00.0  Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n           +-01.0-[01]----00.0  Red Hat, Inc. Virtio network device\n           +-01.4-[05]----00.0  NVIDIA Corporation Device 2335\n           \\-01.5-[06]----00.0  NVIDIA Corporation Device 2335\n";
    let pasted = inline(&[("tv.txt", tree)]);
    assert_eq!(pasted.snapshot.gpus[0].name.known().unwrap(), "H200 SXM");
    let found = judge(&pasted);
    assert!(found.suspects.is_empty(), "{:#?}", found.suspects);
    assert!(
        found.conclusions[0].title.contains("SXM modules"),
        "{found:#?}"
    );
    let cards = inline(&[("tv.txt", &tree.replace("2335", "2bb5"))]);
    assert_eq!(
        judge(&cards).suspects[0].cause,
        "hypervisor-no-peer-delivery"
    );
}

/// lspci and the driver spell products differently; the driver's name stays, and lspci's is better than none.
#[test]
fn gpus_are_named_by_lspci_where_nothing_else_does() {
    let pasted = inline(&[("l.txt", &ports('-', '-'))]);
    let name = pasted.snapshot.gpus[0].name.known().unwrap();
    assert_eq!(name, "RTX PRO 6000 Blackwell Server Edition");
}

/// The link failed before the GPU was missed: the log says so, and it is not asked for again.
#[test]
fn errors_of_the_port_before_a_lost_gpu_are_cited() {
    let lost = "[ 7712.342019] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n";
    let port = "[ 7712.118410] pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)\n";
    for (text, first) in [
        (format!("{port}{lost}"), true),
        (format!("{lost}{port}"), false),
    ] {
        let found = judge(&inline(&[("d.txt", &text)]));
        let told = &found.conclusions[0];
        assert_eq!(
            told.evidence[0].contains("severity=Uncorrected"),
            first,
            "{told:#?}"
        );
        assert_eq!(
            told.fix[0].contains("before the GPU was missed"),
            first,
            "{told:#?}"
        );
    }
}

/// Nothing is said of how GPUs are joined where nothing shows it, and what a person reported was understood.
#[test]
fn a_log_without_a_topology_claims_none() {
    let log = "\
gpu17:311:640 [0] NCCL INFO comm 0x55d0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x8e2 - Init START
gpu17:312:641 [1] NCCL INFO comm 0x55d1 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 21000 commId 0x8e2 - Init START
WARNING 11-28 09:12:33 [custom_all_reduce.py:154] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.
Every answer is just \"!!!!!!!!!!\" on this machine.
";
    let pasted = import::read_all(&[("v.txt".to_string(), log.as_bytes().to_vec())], None).unwrap();
    assert!(
        pasted.ticket.unread.is_empty(),
        "{:#?}",
        pasted.ticket.unread
    );
    let found = judge(&pasted);
    let told = &found.conclusions[0];
    assert!(
        told.because
            .contains("how the GPUs are joined was not given"),
        "{told:#?}"
    );
    assert!(shown(&pasted, false).contains("!!!!!"));
}

/// Some pairs without peer access are not all.
#[test]
fn some_refused_pairs_are_not_all() {
    let table = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tCNS\n GPU2\tCNS\tCNS\tX\n";
    let found = judge(&inline(&[("p.txt", table)]));
    assert_eq!(
        found.conclusions[0].title,
        "the driver does not offer peer access on some pairs"
    );
}

/// Ids match every device that has them, and 0 any.
#[test]
fn an_acs_word_is_told_for_what_it_matches() {
    for (word, words) in [
        (
            "pci=disable_acs_redir=pci:1000:c030",
            "every device with the ids 1000:c030",
        ),
        (
            "pci=disable_acs_redir=pci:1000:c030;pci:10b5:8747",
            "every device with the ids 1000:c030 or 10b5:8747",
        ),
        (
            "pci=disable_acs_redir=0000:00:01.1;pci:10b5:8747",
            "the one device that it names and every device with the ids 10b5:8747",
        ),
        ("pci=config_acs=x00000x@pci:0:0", "every port that has ACS"),
        (
            "pci=config_acs=x0x00xx@00:01.1",
            "the one device that it names",
        ),
    ] {
        let found = judge(&inline(&[(
            "c.txt",
            &format!("BOOT_IMAGE=/v ro quiet {word}\n"),
        )]));
        let told = found.conclusions.iter().find(|c| c.title.contains(word));
        let told = told.unwrap_or_else(|| panic!("{found:#?}"));
        assert!(told.because.contains(words), "{told:#?}");
    }
}

/// Each word is taken out where it was seen.
#[test]
fn a_registry_word_is_taken_out_where_it_stands() {
    let line = "BOOT_IMAGE=/v root=/dev/sda1 ro nvidia.NVreg_RegistryDwords=ForceP2P=0x11\n";
    let file = "options nvidia NVreg_RegistryDwords=ForceP2P=0x11\n";
    let loaded = "RegistryDwords: \"ForceP2P=0x11\"\n";
    let grub = "/etc/default/grub";
    let conf = "/etc/modprobe.d";
    for (files, has, lacks) in [
        (vec![("a.txt", line)], vec![grub], vec![conf]),
        (vec![("a.txt", file)], vec![conf], vec![grub]),
        (
            vec![("a.txt", line), ("b.txt", file)],
            vec![conf, grub],
            vec![],
        ),
        (
            vec![("a.txt", loaded), ("b.txt", line)],
            vec![grub],
            vec![conf],
        ),
        (
            vec![("a.txt", loaded)],
            vec![conf, grub, "does not tell"],
            vec![],
        ),
    ] {
        let found = judge(&inline(&files));
        let told = found
            .conclusions
            .iter()
            .find(|c| c.title.starts_with("registry words"));
        let fix = told.unwrap().fix.join("\n");
        assert!(has.iter().all(|w| fix.contains(w)), "{files:?}: {fix}");
        assert!(lacks.iter().all(|w| !fix.contains(w)), "{files:?}: {fix}");
    }
}

/// A100 has twelve links a GPU and no fabric state.
#[test]
fn modules_are_asked_for_what_their_generation_shows() {
    let tree = "-[0000:00]-+-00.0  Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n           +-01.4-[05]----00.0  NVIDIA Corporation Device 20b2\n           \\-01.5-[06]----00.0  NVIDIA Corporation Device 20b2\n";
    let found = judge(&inline(&[("tv.txt", tree)]));
    let told = &found.conclusions[0];
    assert!(told.title.contains("SXM modules"), "{told:#?}");
    assert!(
        told.fix[0].contains("NV12") && !told.fix[0].contains("NV18"),
        "{told:#?}"
    );
    assert!(!told.fix[0].contains("State Completed"), "{told:#?}");
    assert!(
        found
            .unknown
            .iter()
            .all(|u| !u.what.contains("fabric") || u.shown_by.contains("fabricmanager"))
    );
    let found = judge(&inline(&[("tv.txt", &tree.replace("20b2", "2335"))]));
    let fix = &found.conclusions[0].fix[0];
    assert!(
        fix.contains("NV18") && fix.contains("State Completed"),
        "{fix}"
    );
}
