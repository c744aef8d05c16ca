//! PCIe errors in kernel logs are symptoms of a link: they are told with their lines, whether or not another text shows the GPU.

use super::{fixture, inline, judge, shown};

const CORRECTED: &str = "\
[  900.1] pcieport 0000:00:01.1: AER: Corrected error received: 0000:06:00.0
[  900.2] nvidia 0000:06:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
[  900.3] nvidia 0000:06:00.0:   device [10de:2bb1] error status/mask=00000001/0000a000
[  900.4] nvidia 0000:06:00.0:    [ 0] RxErr                  (First)
";
const FATAL: &str = "\
[ 1000.1] pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:06:00.0
[ 1000.2] pcieport 0000:00:01.1: DPC: containment event, status:0x1f01 source:0x0000
[ 1000.3] nvidia 0000:06:00.0:    [ 5] SDES                   (First)
";

fn query(address: &str) -> String {
    let (_, bytes) = fixture("zeroed-smi-q.txt");
    let text = String::from_utf8(bytes).unwrap();
    let first = text
        .lines()
        .find_map(|l| l.strip_prefix("GPU ")?.split_whitespace().next())
        .unwrap()
        .to_string();
    text.replace(&first, address)
}

#[test]
fn errors_of_a_gpu_that_is_shown_are_a_finding_with_its_lines() {
    let query = query("00000000:06:00.0");
    for (log, severe, words) in [
        (CORRECTED.repeat(20), false, "that were corrected"),
        (format!("{CORRECTED}{FATAL}"), true, "went down"),
    ] {
        let pasted = inline(&[("q.txt", &query), ("d.txt", &log)]);
        let found = judge(&pasted);
        let told = found
            .conclusions
            .iter()
            .find(|c| c.cause.as_deref() == Some("link-errors"))
            .unwrap_or_else(|| panic!("{found:#?}"));
        assert!(told.title.contains(words), "{told:#?}");
        assert_eq!(
            told.because.contains("no retry corrects"),
            severe,
            "{told:#?}"
        );
        assert!(told.fix[0].contains("reseat"), "{told:#?}");
        assert!(
            !found
                .verdict
                .headline
                .contains("nothing that was read speaks"),
            "{}",
            found.verdict.headline
        );
        assert!(found.verdict.next.contains("LnkSta"), "{:?}", found.verdict);
        assert!(
            shown(&pasted, true).contains("(d.txt:"),
            "{}",
            shown(&pasted, true)
        );
    }
}

#[test]
fn errors_alone_are_told_of_the_device_that_they_name() {
    let found = judge(&inline(&[("d.txt", &format!("{CORRECTED}{FATAL}"))]));
    assert!(
        found.verdict.headline.contains("0000:06:00.0"),
        "{:?}",
        found.verdict
    );
    assert_eq!(found.conclusions.len(), 1, "{:#?}", found.conclusions);
    assert!(
        found.conclusions[0].evidence[0].contains("SDES"),
        "{found:#?}"
    );
    assert_eq!(found.verdict.next, "sudo lspci -vvv");
    // Without NVIDIA's driver the ids name it; without times the lines are the kernel's all the same.
    let bare = CORRECTED.replace("nvidia 0000", "vfio-pci 0000");
    let bare: Vec<&str> = bare
        .lines()
        .filter_map(|l| l.split_once("] "))
        .map(|(_, l)| l)
        .collect();
    let found = judge(&inline(&[("d.txt", &bare.join("\n"))]));
    assert!(
        found.conclusions[0].title.contains("a device of NVIDIA"),
        "{found:#?}"
    );
    // A port of which nothing is known is asked about, and boot messages are no errors.
    let port =
        "[ 1.0] pcieport 0000:40:01.1: DPC: containment event, status:0x1f01 source:0x0000\n";
    let found = judge(&inline(&[("d.txt", port)]));
    assert!(
        found.conclusions[0]
            .title
            .contains("whether a GPU is at or below"),
        "{found:#?}"
    );
    let boot = "[ 1.0] pcieport 0000:40:01.1: AER: enabled with IRQ 37\n[ 1.1] pcieport 0000:40:01.1: DPC: enabled with IRQ 37\n";
    assert!(judge(&inline(&[("d.txt", boot)])).conclusions.is_empty());
}

/// What the file holds is not asked for.
#[test]
fn a_lost_gpu_beside_errors_is_told_with_their_order() {
    let lost =
        "[  950.0] NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', GPU has fallen off the bus.\n";
    for (log, words) in [
        (
            format!("{CORRECTED}{lost}"),
            "corrected ones, when the GPU was missed",
        ),
        (format!("{FATAL}{lost}"), "before the GPU was missed"),
        (format!("{lost}{FATAL}"), "come after the loss"),
        (lost.to_string(), "no AER line is among these texts"),
    ] {
        let found = judge(&inline(&[("d.txt", &log)]));
        let told = &found.conclusions[0];
        assert!(told.title.contains("does not answer"), "{found:#?}");
        assert!(told.fix[0].contains(words), "{words}: {told:#?}");
    }
}

#[test]
fn a_reboot_that_the_driver_asks_for_is_the_next_step() {
    let log = "[ 1.0] NVRM: Xid (PCI:0000:06:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n";
    let found = judge(&inline(&[("d.txt", log)]));
    assert!(
        !found.verdict.next.contains("nvidia-smi -q"),
        "{:?}",
        found.verdict
    );
    assert!(found.next_because.contains("reboot"), "{found:#?}");
}
