//! The trees of all shipped scenarios, as the readers of a topology see them.
use simhost::scenario::{Fault, Scenario, shipped};
use simhost::topology::{PathType, Topology};
use std::fs;
use std::path::Path;
use std::process::Command;

fn shipped_scenarios() -> impl Iterator<Item = (&'static str, Scenario)> {
    shipped::names().map(|n| (n, Scenario::resolve(n, &[], &[]).unwrap()))
}

#[test]
fn every_shipped_scenario_survives_its_own_text() {
    // Every file of the folder is shipped.
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    assert_eq!(
        shipped::names().count(),
        std::fs::read_dir(folder).unwrap().count()
    );
    assert!(shipped::names().count() >= 15);
    for (name, scenario) in shipped_scenarios() {
        let text = scenario.to_toml().unwrap();
        let again = Scenario::from_text(name, &text).unwrap();
        assert_eq!(again.to_toml().unwrap(), text, "{name}");
    }
}

#[test]
fn path_types_are_those_of_the_hosts() {
    let types = |name: &str| {
        let scenario = Scenario::resolve(name, &[], &[]).unwrap();
        let topology = Topology::new(&scenario).unwrap();
        (0..scenario.gpus.len())
            .map(|b| {
                if b == 0 {
                    None
                } else {
                    Some(topology.path_type(0, b))
                }
            })
            .collect::<Vec<_>>()
    };
    use PathType::{Node, Phb, Pix, Sys};
    assert_eq!(
        types("switch-pairs-x8")[1..],
        [
            Some(Pix),
            Some(Node),
            Some(Node),
            Some(Sys),
            Some(Sys),
            Some(Sys),
            Some(Sys)
        ]
    );
    assert_eq!(
        types("hgx-h200-x8")[1..],
        [
            Some(Node),
            Some(Node),
            Some(Node),
            Some(Sys),
            Some(Sys),
            Some(Sys),
            Some(Sys)
        ]
    );
    assert_eq!(types("two-gpus-no-p2p")[1..], [Some(Phb)]);
    assert_eq!(
        types("sixteen-gpus")[1..5],
        [Some(Pix), Some(Pix), Some(Pix), Some(Node)]
    );
}

#[test]
fn redirection_halves_a_switch_pair_both_ways() {
    let route = |name: &str| {
        let scenario = Scenario::resolve(name, &[], &[]).unwrap();
        let topology = Topology::new(&scenario).unwrap();
        let engine = simhost::topology::Engine::Copy;
        let (there, back) = (
            topology.peer_route(0, 1, engine),
            topology.peer_route(1, 0, engine),
        );
        there
            .links
            .iter()
            .filter(|l| back.links.contains(l))
            .count()
    };
    assert_eq!(route("switch-pairs-x8"), 0);
    assert!(
        route("acs-redirect") >= 2,
        "the uplink is crossed both ways by both directions"
    );
}

#[test]
fn trees_are_whole() {
    for (name, scenario) in shipped_scenarios() {
        let folder = tempfile::tempdir().unwrap();
        simhost::tree::write(&scenario, folder.path()).unwrap();
        let devices = folder.path().join("sys/bus/pci/devices");
        for gpu in &scenario.gpus {
            let at = devices.join(&gpu.at);
            let real = fs::canonicalize(&at).unwrap();
            assert!(
                real.starts_with(fs::canonicalize(folder.path().join("sys/devices")).unwrap()),
                "{name}: {}",
                real.display()
            );
            let read = |file: &str| {
                fs::read_to_string(at.join(file))
                    .unwrap()
                    .trim()
                    .to_string()
            };
            assert_eq!(read("vendor"), "0x10de");
            assert!(read("class").starts_with("0x03"));
            assert!(read("current_link_speed").ends_with("GT/s PCIe"));
            let config = fs::read(at.join("config")).unwrap();
            assert_eq!(config[..2], [0xde, 0x10]);
            assert_eq!(
                config[config[0x34] as usize], 0x10,
                "PCI Express capability"
            );
            let grouped = at.join("iommu_group/type").exists();
            assert_eq!(grouped, scenario.iommu.domain.is_some(), "{name}");
        }
        links_resolve(folder.path());
        let log = fs::read_to_string(folder.path().join("dev/kmsg")).unwrap();
        assert_eq!(log.lines().count(), scenario.kernel_log.len());
        assert_eq!(
            fs::read_to_string(folder.path().join("proc/cpuinfo"))
                .unwrap()
                .contains("hypervisor"),
            scenario.host.hypervisor
        );
    }
}

fn links_resolve(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            assert!(
                fs::metadata(&path).is_ok(),
                "{} leads nowhere",
                path.display()
            );
        } else if kind.is_dir() {
            links_resolve(&path);
        }
    }
}

/// Word at an offset of an extended capability, found by walking the list as readers do.
fn acs_control(config: &[u8]) -> Option<u16> {
    let mut at = 0x100;
    while at >= 0x100 {
        let head = u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?);
        if head & 0xffff == 0x000d {
            return Some(u16::from_le_bytes(config[at + 6..at + 8].try_into().ok()?));
        }
        at = (head >> 20) as usize;
    }
    None
}

#[test]
fn acs_words_are_in_configuration_space() {
    for (name, want) in [("switch-pairs-x8", 0x00), ("acs-redirect", 0x1d)] {
        let folder = tempfile::tempdir().unwrap();
        simhost::tree::write(&Scenario::resolve(name, &[], &[]).unwrap(), folder.path()).unwrap();
        let config = |at: &str| {
            fs::read(
                folder
                    .path()
                    .join("sys/bus/pci/devices")
                    .join(at)
                    .join("config"),
            )
            .unwrap()
        };
        assert_eq!(acs_control(&config("0000:02:00.0")), Some(want));
        assert_eq!(
            acs_control(&config("0000:01:00.0")),
            None,
            "upstream ports have none"
        );
        assert_eq!(config("0000:02:00.0")[0x18..0x1b], [0x02, 0x03, 0x03]);
    }
    let folder = tempfile::tempdir().unwrap();
    let scenario =
        Scenario::resolve("acs-redirect", &["host.unprivileged=true".into()], &[]).unwrap();
    simhost::tree::write(&scenario, folder.path()).unwrap();
    assert_eq!(
        fs::read(
            folder
                .path()
                .join("sys/bus/pci/devices/0000:02:00.0/config")
        )
        .unwrap()
        .len(),
        64
    );
}

#[test]
fn hwloc_reads_every_tree() {
    if Command::new("lstopo-no-graphics")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("not run: lstopo-no-graphics is not installed");
        return;
    }
    for (name, scenario) in shipped_scenarios() {
        let folder = tempfile::tempdir().unwrap();
        simhost::tree::write(&scenario, folder.path()).unwrap();
        let file = folder.path().join("hwloc.xml");
        let output = Command::new("lstopo-no-graphics")
            .arg("-i")
            .arg(&file)
            .args(["--of", "console", "--whole-io", "--no-collapse", "-v"])
            .output()
            .unwrap();
        let (said, complaint) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success() && complaint.is_empty(),
            "{name}: {complaint}"
        );
        let gpus = said
            .lines()
            .filter(|l| {
                l.contains("PCI") && l.contains("10de:") && (l.contains("3D") || l.contains("VGA"))
            })
            .count();
        assert_eq!(gpus, scenario.gpus.len(), "{name}: {said}");
        let cpus: u32 = scenario
            .packages
            .iter()
            .flat_map(|p| &p.nodes)
            .map(|n| n.cpus[1] - n.cpus[0] + 1)
            .sum();
        assert_eq!(
            said.lines().filter(|l| l.contains("PU L#")).count(),
            cpus as usize,
            "{name}"
        );
    }
}

#[test]
fn bad_scenarios_are_refused_with_the_place() {
    let with = |settings: &[&str], faults: &[&str]| {
        let text = |l: &[&str]| l.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        Scenario::resolve("one-gpu", &text(settings), &text(faults))
            .unwrap_err()
            .to_string()
    };
    for (settings, faults, reason) in [
        (vec!["gpu.colour=3"], vec![], "colour"),
        (vec!["gpus.0.at=7"], vec![], "invalid type"),
        (
            vec!["gpus.0.at=\"nowhere\""],
            vec![],
            "`nowhere` is not a PCI address",
        ),
        (
            vec!["gpus.0.at=\"0000:77:00.0\""],
            vec![],
            "leads to bus 77",
        ),
        (vec!["gpus.9.at=1"], vec![], "leads nowhere"),
        (vec!["gpu"], vec![], "expected key.path=value"),
        (vec![], vec!["0>3:ce=zeroed"], "names GPU 3"),
        (vec![], vec!["0>*:ce=melted"], "no kind `melted`"),
    ] {
        let error = with(&settings, &faults);
        assert!(error.contains(reason), "{error}");
    }
    let error = Scenario::resolve("dgx", &[], &[]).unwrap_err().to_string();
    assert!(
        error.contains("no scenario `dgx`") && error.contains("hgx-h200-x8"),
        "{error}"
    );
    assert!("0>1:ce=zeroed".parse::<Fault>().is_ok());
}
