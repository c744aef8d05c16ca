//! A line of a log is certain of what it reports and of nothing behind it; and no fix is shown without its warning.

use super::{ACS, GUEST, TWO, inline, judge, read, shown};
use peerproof::model::{finding::Confidence, ticket::Conclusion};

/// The conclusion that cites `line`.
fn of(files: &[(&str, &str)], line: &str) -> Conclusion {
    let found = judge(&inline(files));
    let cites = |c: &&Conclusion| c.cause.is_none() && c.evidence.iter().any(|e| e.contains(line));
    let one = found.conclusions.iter().find(cites);
    one.unwrap_or_else(|| panic!("{line}: {:?}", found.conclusions))
        .clone()
}

const REFUSED: &str =
    "RuntimeError: CUDA error: peer access is not supported between these two devices\n";
const CLAIMS: &str = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tCNS\tX\n";

#[test]
fn reasons_behind_a_line_are_probable_at_most_and_not_the_only_ones() {
    let lines = [
        REFUSED,
        "RuntimeError: CUDA error: invalid device ordinal\n",
        "node:1:2 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n",
        "RuntimeError: pidfd_getfd: Operation not permitted\n",
        "node:1:2 [0] NCCL WARN Cuda failure 'invalid argument' in cuMemImportFromShareableHandle\n",
        "RuntimeError: cudaIpcOpenMemHandle Error: invalid argument\n",
        "node:1:2 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes, error: No space left on device (28)\n",
    ];
    for line in lines {
        let start = line.trim();
        let one = of(&[("topo.txt", TWO), ("app.log", line)], start);
        let sure = one
            .confidence
            .unwrap_or_else(|| panic!("{start} is told as certain"));
        assert!(sure < Confidence::Established, "{start}");
        let told = format!("{} {}", one.because, one.fix.join(" "));
        assert!(
            [" or ", "other reasons"]
                .iter()
                .any(|w| one.because.contains(w)),
            "one reason only: {told}"
        );
    }
}

/// What the driver claims tells which of the reasons it is.
#[test]
fn refused_peer_access_is_not_blamed_on_visible_devices() {
    let one = of(
        &[("topo.txt", TWO), ("app.log", REFUSED)],
        "peer access is not supported",
    );
    let told = format!("{} {}", one.because, one.fix.join(" "));
    assert!(!told.contains("CUDA_VISIBLE_DEVICES"), "{told}");
    assert!(told.contains("topo -p2p r"), "{told}");
    assert_eq!(one.confidence, Some(Confidence::Possible));
    let claims = CLAIMS.to_string();
    let one = of(
        &[("p2p.txt", &claims), ("app.log", REFUSED)],
        "peer access is not supported",
    );
    assert_eq!(one.confidence, Some(Confidence::Probable));
    assert!(
        one.because.contains("offers no peer access"),
        "{}",
        one.because
    );
}

/// Peers switched off in one file and garbage in another need not be of one run.
#[test]
fn a_switch_in_another_log_does_not_acquit_the_pairs() {
    let nccl = "node:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n";
    let one = of(
        &[
            ("topo.txt", TWO),
            ("nccl.log", nccl),
            ("mail.txt", "The model answers garbage.\n"),
        ],
        "NCCL_P2P_DISABLE",
    );
    assert!(
        one.because.contains("If the symptom is of this very run"),
        "{}",
        one.because
    );
    assert_eq!(one.confidence, None, "NCCL prints what it read");
}

#[test]
fn a_fault_of_another_device_is_not_told_of_a_gpu() {
    let smi = "==============NVSMI LOG==============\nDriver Version : 580.1\nAttached GPUs : 2\nGPU 00000000:21:00.0\n    Product Name : NVIDIA L40S\nGPU 00000000:41:00.0\n    Product Name : NVIDIA L40S\n";
    let fault = |bdf: &str| {
        format!(
            "[    2.000000] nvme {bdf}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x8a000000000 flags=0x0030]\n"
        )
    };
    let nvme = of(
        &[("q.txt", smi), ("dmesg.txt", &fault("0000:05:00.0"))],
        "IO_PAGE_FAULT",
    );
    assert!(nvme.title.contains("none of the GPUs"), "{}", nvme.title);
    let gpu = of(
        &[("q.txt", smi), ("dmesg.txt", &fault("0000:41:00.0"))],
        "IO_PAGE_FAULT",
    );
    assert!(gpu.title.contains("GPU 0000:41:00.0"), "{}", gpu.title);
}

/// GeForce of the Pascal generation had peer access with the stock driver.
#[test]
fn old_geforce_gpus_with_peer_access_need_no_patched_driver() {
    let host = |name: &str| {
        format!(
            "$ nvidia-smi -L\nGPU 0: {name} (UUID: GPU-1)\nGPU 1: {name} (UUID: GPU-2)\n{}",
            CLAIMS.replace("CNS", "OK")
        )
    };
    let patched = |name: &str| {
        let found = judge(&inline(&[("t.txt", &host(name))]));
        found
            .conclusions
            .into_iter()
            .find(|c| c.title.contains("patched"))
    };
    assert!(patched("NVIDIA GeForce GTX 1080 Ti").is_none());
    let one = patched("NVIDIA GeForce RTX 4090").unwrap();
    assert_eq!(one.confidence, Some(Confidence::Probable));
    assert!(one.fix.iter().any(|f| f.starts_with("Warning: ")));
}

/// Without -v, whatever the number of rows: a warning of a fix that is shown is shown.
#[test]
fn a_fix_is_never_shown_without_its_warning() {
    let acs = shown(&read(ACS), false);
    assert!(
        acs.contains("setpci") && acs.contains("Warning: never on a host that passes"),
        "{acs}"
    );
    let guest = shown(&read(GUEST), false);
    assert!(
        guest.contains("Warning: do not set NCCL_P2P_USE_CUDA_MEMCPY"),
        "{guest}"
    );
    let patched = CLAIMS.replace("CNS", "OK");
    let text = format!(
        "$ nvidia-smi -L\nGPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-2)\n{patched}"
    );
    let page = shown(&inline(&[("t.txt", &text)]), false);
    assert!(page.contains("Warning: a patched driver"), "{page}");
}
