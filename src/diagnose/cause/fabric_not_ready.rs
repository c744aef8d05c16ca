//! The NVLink fabric is not registered (decision rows D15 and D16): fabric manager absent, of another version than the
//! driver, without NVLSM, or a partition gone stale. Links train in hardware whatever the fabric's state, so green links
//! prove nothing; "completed" counts only with success on every GPU and one clique.

use super::super::{
    evidence::{Evidence, NOT_READY},
    weigh::Cause,
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::GpuIndex,
    reading::Reading,
    snapshot::{FabricState, NvLinkEnd},
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "fabric-not-ready",
    title: "the NVLink fabric is not registered",
    judge,
    wants: None,
};

/// Parts of the health mask: first bit, mask, value that means trouble, words (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*).
const HEALTH: [(u32, u32, u32, &str); 4] = [
    (0, 3, 1, "degraded bandwidth"),
    (2, 3, 1, "route recovery under way"),
    (4, 3, 1, "route unhealthy"),
    (6, 3, 1, "access timeout recovery under way"),
];

fn judge(e: &Evidence) -> Vec<Finding> {
    let refused = not_ready(e);
    let registered: Vec<(GpuIndex, &FabricState)> = e
        .gpus()
        .filter_map(|(i, g)| Some((i, g.fabric.known()?)))
        .filter(|(_, f)| f.state != "not_supported")
        .collect();
    let switches = has_switches(e);
    if e.snapshot.gpus.len() < 2 && refused.is_empty() {
        return vec![CAUSE.says(Judgement::NotApplicable, "fewer than two GPUs")];
    }
    if registered.is_empty() && !switches {
        return vec![if refused.is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "no GPU here registers with a fabric",
            )
        } else {
            without_switches(e, refused)
        }];
    }
    let mut trouble: Vec<(GpuIndex, String)> = Vec::new();
    for (index, fabric) in &registered {
        if fabric.state != "completed" {
            trouble.push((*index, format!("state {}", fabric.state)));
        } else if fabric.status != 0 {
            trouble.push((
                *index,
                format!("completed with status {}, not success", fabric.status),
            ));
        } else if let Some(mask) = fabric.health_mask {
            let ill = HEALTH
                .iter()
                .filter(|(shift, width, bad, _)| mask >> shift & width == *bad)
                .map(|(_, _, _, words)| *words);
            let ill: Vec<&str> = ill.collect();
            if !ill.is_empty() {
                trouble.push((*index, format!("health {mask:#x}: {}", ill.join(", "))));
            }
        }
    }
    let done = || registered.iter().filter(|(_, f)| f.state == "completed");
    let groups: BTreeSet<(&str, u32)> = done()
        .map(|(_, f)| (f.cluster.as_str(), f.clique))
        .collect();
    if groups.len() > 1 {
        trouble.extend(
            done().map(|(i, f)| (*i, format!("clique {} of cluster {}", f.clique, f.cluster))),
        );
    }
    if trouble.is_empty() && refused.is_empty() {
        return vec![if registered.is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "NVSwitches are there, and the driver tells no fabric state (before Hopper it has none)",
            )
        } else {
            CAUSE.says(
                Judgement::Cleared,
                "every GPU is registered with success, and all are of one clique",
            )
        }];
    }
    vec![indict(e, trouble, refused, groups.len() > 1)]
}

/// Answers that CUDA is not ready: of a call, of a worker that could not open its GPUs, of an application.
fn not_ready(e: &Evidence) -> Vec<String> {
    let mut seen: Vec<String> = e
        .answered(&[NOT_READY])
        .map(|r| {
            format!(
                "{} {}: error {NOT_READY} (system not ready)",
                r.case.subject, r.case.mechanism
            )
        })
        .take(2)
        .collect();
    let reason = e
        .reasons()
        .find(|reason| reason.contains("SYSTEM_NOT_READY"));
    seen.extend(reason.map(str::to_string));
    let said = e.said(|line| {
        line.contains("system not yet initialized")
            || line.contains("SYSTEM_NOT_READY")
            || line.contains("Error 802")
    });
    seen.extend(said.into_iter().take(2));
    seen
}

fn has_switches(e: &Evidence) -> bool {
    !e.snapshot.nvswitches.is_empty()
        || e.gpus().any(|(_, g)| {
            let links = g.nvlinks.known().into_iter().flatten();
            links
                .into_iter()
                .any(|l| l.remote_kind == NvLinkEnd::Switch)
        })
}

fn indict(
    e: &Evidence,
    trouble: Vec<(GpuIndex, String)>,
    refused: Vec<String>,
    split: bool,
) -> Finding {
    let gpus: BTreeSet<GpuIndex> = trouble.iter().map(|(i, _)| *i).collect();
    let mut because = if refused.is_empty() {
        "the GPUs' links may be up, and NVLink between GPUs needs a registered fabric: until then CUDA mostly answers error 802 (system not yet initialized) to every program; where it runs all the same, collectives fall back to PCIe without an error, many times slower".to_string()
    } else {
        "CUDA answers 'system not ready': the NVSwitch fabric was not set up, and nothing runs until it is".to_string()
    };
    if split {
        because.push_str("; the GPUs are of different cliques, between which there is no NVLink");
    }
    // The state is the driver's own word on itself; only a rate or an answer of CUDA shows what it costs.
    let confidence = if !refused.is_empty() && !trouble.is_empty() {
        Confidence::Established
    } else {
        Confidence::Probable
    };
    let severity = if refused.is_empty() {
        Severity::Warning
    } else {
        Severity::Critical
    };
    let mut finding = CAUSE.indicts(severity, confidence, because);
    const SHOWN: usize = 8;
    finding.evidence = trouble
        .iter()
        .take(SHOWN)
        .map(|(i, words)| format!("NVML fabric, GPU{i}: {words}"))
        .chain(refused)
        .collect();
    let version = e.snapshot.driver.version.known();
    let version = version.map_or("the driver's own version".to_string(), |v| {
        format!("version {v} (the driver's)")
    });
    finding.fix = vec![
        format!("install nvidia-fabricmanager of exactly {version}; sudo systemctl enable --now nvidia-fabricmanager (in a guest the host runs it)"),
        "HGX B200 and later need NVLSM (nvlsm) beside it; read 'journalctl -u nvidia-fabricmanager'".to_string(),
        "a state left over from before a restart: stop all GPU processes, sudo systemctl restart nvidia-fabricmanager, sudo nvidia-smi -r".to_string(),
    ];
    finding.next_test = Some(
        "systemctl status nvidia-fabricmanager; nv-fabricmanager --version; nvidia-smi -q | grep -A4 -i fabric".into(),
    );
    finding.gpus = gpus.into_iter().collect();
    finding
}

/// Not ready without any NVSwitch: a kernel matter (HMM beside address randomisation), not a fabric's.
fn without_switches(e: &Evidence, refused: Vec<String>) -> Finding {
    let hmm = &e.snapshot.driver.hmm_disabled;
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        if *hmm == Reading::Known(false) {
            Confidence::Probable
        } else {
            Confidence::Possible
        },
        "CUDA answers 'system not ready' on a host without a visible NVSwitch: HMM in nvidia_uvm, or switches that this container or guest does not show",
    );
    finding.evidence = refused;
    finding.evidence.push(match hmm {
        Reading::Known(off) => format!(
            "nvidia_uvm: uvm_disable_hmm={}",
            if *off { "Y" } else { "N" }
        ),
        Reading::Absent(why) => format!("nvidia_uvm: uvm_disable_hmm not known: {why}"),
    });
    finding.fix = vec![
        "'options nvidia_uvm uvm_disable_hmm=1' in /etc/modprobe.d/nvidia-uvm.conf, sudo update-initramfs -u, reboot".to_string(),
        "in a container or guest: start the fabric manager on the host".to_string(),
    ];
    finding.next_test = Some(
        "lspci -d 10de: | grep -i bridge; cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
            .into(),
    );
    finding
}
