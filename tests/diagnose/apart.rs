//! Files of different hosts are noticed, named and kept apart; files of one host are not suspected.

use super::{FOUR, TRANSLATED, TWO, inline, judge, shown};
use peerproof::{
    collect::import,
    model::{
        pair::{OrderedPair, PairTable},
        reading::Reading,
        report::Grading,
        snapshot::{Gpu, Origin, PairClaims, Snapshot},
    },
};

/// `nvidia-smi -q` of GPUs at these buses.
fn query(driver: &str, name: &str, buses: &[u32]) -> String {
    let mut text = format!(
        "==============NVSMI LOG==============\n\nDriver Version                            : {driver}\nCUDA Version                              : 13.0\n\nAttached GPUs                             : {}\n",
        buses.len()
    );
    for bus in buses {
        text.push_str(&format!(
            "GPU 00000000:{bus:02X}:00.0\n    Product Name                          : {name}\n    GPU UUID                              : GPU-00000000-0000-0000-0000-{driver}{bus:02x}\n"
        ));
    }
    text
}

fn hosts(files: &[(&str, &str)]) -> Vec<String> {
    inline(files).ticket.hosts
}

/// Both names stand in one sentence about `matter`.
fn contradict(matter: &str, files: &[(&str, &str)]) {
    let pasted = inline(files);
    let told = pasted.ticket.hosts.iter().find(|h| h.starts_with(matter));
    let told = told.unwrap_or_else(|| panic!("{matter}: {:?}", pasted.ticket.hosts));
    for (name, _) in files {
        assert!(told.contains(name), "{told}");
    }
    let found = judge(&pasted);
    assert_eq!(found.grading(), Grading::Inconclusive);
    assert!(
        found.suspects.is_empty() && found.conclusions.is_empty(),
        "{matter}"
    );
    let page = shown(&pasted, false);
    assert!(page.contains("Not of one host"), "{page}");
    assert!(page.contains(files[1].0), "{page}");
}

const LINE: &str = "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1 ro quiet iommu=pt\n";

#[test]
fn what_cannot_be_of_one_host_is_named_by_file() {
    let one = query("580.1", "NVIDIA H200", &[1]);
    contradict("number of GPUs", &[("q.txt", &one), ("topo.txt", TWO)]);
    let two = query("580.1", "NVIDIA H200", &[1, 2]);
    let other = query("580.1", "NVIDIA H200", &[0x41, 0x42]);
    contradict("PCI addresses", &[("a.txt", &two), ("b.txt", &other)]);
    let newer = query("595.2", "NVIDIA H200", &[1, 2]);
    contradict("driver version", &[("a.txt", &two), ("b.txt", &newer)]);
    contradict("UUIDs of the GPUs", &[("a.txt", &two), ("b.txt", &newer)]);
    let cards = query("580.1", "NVIDIA L40S", &[1, 2]);
    contradict("products", &[("a.txt", &two), ("b.txt", &cards)]);
    let list = "GPU 0: NVIDIA L40S (UUID: GPU-1)\nGPU 1: NVIDIA L40S (UUID: GPU-2)\n";
    contradict("products", &[("a.txt", &two), ("list.txt", list)]);
    let sys = TWO.replace("PHB", "SYS");
    contradict("paths between the GPUs", &[("a.txt", TWO), ("b.txt", &sys)]);
    let linked = TWO.replace("PHB", "NV4");
    let nvlinks = "NVLinks between the GPUs";
    contradict(nvlinks, &[("a.txt", &linked), ("b.txt", TWO)]);
    contradict(nvlinks, &[("a.txt", TWO), ("b.txt", &linked)]);
    let moved = LINE.replace("UUID=1", "UUID=2");
    contradict("kernel command line", &[("a.txt", LINE), ("b.txt", &moved)]);
    contradict(
        "host name",
        &[
            ("a.txt", "$ hostname\nnode-1\n"),
            ("b.txt", "$ hostname\nnode-2\n"),
        ],
    );
    contradict(
        "kernel",
        &[
            ("a.txt", "$ uname -r\n6.8.0-60\n"),
            ("b.txt", "$ uname -r\n6.8.0-71\n"),
        ],
    );
    contradict(
        "virtual machine",
        &[
            ("a.txt", "$ systemd-detect-virt\nnone\n"),
            ("b.txt", "$ systemd-detect-virt\nkvm\n"),
        ],
    );
}

#[test]
fn two_hosts_in_one_file_are_told_by_their_lines() {
    let text = format!(
        "{}\n$ nvidia-smi topo -m\n{FOUR}",
        query("580.1", "NVIDIA H200", &[1, 2])
    );
    let told = hosts(&[("ticket.txt", &text)]);
    assert!(
        told[0].contains("ticket.txt:2-12 shows 2 GPUs")
            || told[0].contains("shows 2 GPUs; ticket.txt:"),
        "{told:?}"
    );
}

#[test]
fn files_of_one_host_are_not_suspected() {
    let two = query("580.1", "NVIDIA H200", &[1, 2]);
    let cut = "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1 ro qui\n";
    let log = format!("[    0.000000] Command line: {LINE}{TRANSLATED}");
    // The bus shows GPUs that a container is not given, and a log may know of one rank only.
    let bus = "01:00.0 3D controller: NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)\n02:00.0 3D controller: NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)\n03:00.0 3D controller: NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)\n";
    let rank = "node-1:11:22 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 1 busId 2000 commId 0x1 - Init START\n";
    // Chosen cards (-i 1), and the same cards in a container's order.
    let chosen = query("580.1", "NVIDIA H200", &[2]).replace(": 1\n", ": 2\n");
    let list = "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-580.102)\nGPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-580.101)\n";
    for files in [
        [("a.txt", two.as_str()), ("b.txt", LINE), ("c.txt", cut)],
        [("a.txt", &two), ("b.txt", LINE), ("c.txt", &log)],
        [("a.txt", &two), ("b.txt", bus), ("c.txt", rank)],
        [("a.txt", &two), ("b.txt", &chosen), ("c.txt", list)],
        [
            ("a.txt", TWO),
            ("b.txt", &two),
            ("c.txt", "$ hostname\nnode-1\n"),
        ],
        [
            ("a.txt", "$ hostname\nnode-1.example.com\n"),
            ("b.txt", TWO),
            ("c.txt", "$ hostname\nnode-1\n"),
        ],
    ] {
        assert!(hosts(&files).is_empty(), "{:?}", hosts(&files));
    }
}

/// A table without names may be of any host that has as many GPUs.
#[test]
fn what_is_joined_by_number_alone_is_said_to_be_assumed() {
    let two = query("580.1", "NVIDIA H200", &[1, 2]);
    let pasted = inline(&[("topo.txt", TWO), ("q.txt", &two)]);
    assert_eq!(pasted.ticket.assumed, ["topo.txt"]);
    let page = shown(&pasted, false);
    assert!(
        page.contains("topo.txt names no GPU") && page.contains("assumed"),
        "{page}"
    );
    assert!(inline(&[("topo.txt", TWO)]).ticket.assumed.is_empty());
    let together = format!("{two}\n$ nvidia-smi topo -m\n{TWO}");
    assert!(inline(&[("all.txt", &together)]).ticket.assumed.is_empty());
}

fn report(count: u32) -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Live);
    snapshot.driver.version = Reading::Known("580.1".to_string());
    for at in 0..count {
        snapshot.gpus.push(Gpu {
            pci: format!("0000:{:02x}:00.0", at + 1)
                .parse()
                .map_or_else(|_| Reading::default(), Reading::Known),
            nvml_index: Reading::Known(at),
            name: Reading::Known("NVIDIA H200".to_string()),
            uuid: Reading::Known(format!("GPU-{at}")),
            numa_node: Reading::Known(-1),
            ..Gpu::default()
        });
    }
    snapshot.claims = PairTable::new(count);
    for pair in OrderedPair::all(count) {
        snapshot.claims.set(
            pair,
            PairClaims {
                common_ancestor: Reading::Known(30),
                ..PairClaims::default()
            },
        );
    }
    snapshot
}

fn beside(report: Snapshot, files: &[(&str, &str)]) -> import::Pasted {
    let files: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()))
        .collect();
    import::read_all(&files, Some(("report.json".to_string(), report))).unwrap()
}

/// The report's verdict stands; a text of another host adds nothing to it.
#[test]
fn a_text_of_another_host_is_kept_out_of_a_report() {
    let pasted = beside(report(2), &[("topo.txt", FOUR), ("cmdline.txt", LINE)]);
    assert_eq!(pasted.ticket.left_out, ["topo.txt"]);
    assert!(
        pasted.ticket.hosts[0].contains("report.json shows 2 GPUs; topo.txt shows 4 GPUs"),
        "{:?}",
        pasted.ticket.hosts
    );
    assert_eq!(pasted.snapshot.gpus.len(), 2);
    assert!(
        pasted.snapshot.numa_nodes.is_empty()
            && pasted.snapshot.gpus[0].cpu_affinity.known().is_none()
    );
    assert!(
        pasted.snapshot.host.cmdline.known().is_some(),
        "the other text is of it"
    );
}

/// -1 is no NUMA node; and what a report said has its file for a source.
#[test]
fn a_node_that_the_firmware_does_not_tell_disagrees_with_none() {
    let pasted = beside(report(2), &[("topo.txt", TWO)]);
    assert_eq!(pasted.snapshot.gpus[0].numa_node.known(), Some(&0));
    assert!(
        pasted.snapshot.topology.disagreements.is_empty(),
        "{:?}",
        pasted.snapshot.topology.disagreements
    );
    let mut told = report(2);
    told.gpus
        .iter_mut()
        .for_each(|gpu| gpu.numa_node = Reading::Known(1));
    let pasted = beside(told, &[("topo.txt", TWO)]);
    let disagreement = &pasted.snapshot.topology.disagreements[0];
    assert_eq!(
        disagreement.claims[0],
        ("report.json".to_string(), "1".to_string())
    );
}
