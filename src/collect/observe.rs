//! Counters of the GPUs at one moment, read from an NVML session that stays open. It judges nothing; a GPU that cannot
//! be asked has absences.

use super::{
    deadline::{Pending, begin},
    live::Roots,
    nvml, sysfs,
};
use crate::model::{
    pci::PciAddress,
    reading::{Absence, Reading},
    snapshot::{BridgeObservation, GpuObservation, Observation, Snapshot},
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long NVML may take for one look at a GPU; it takes milliseconds.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// One GPU to look at.
struct Target {
    nvml_index: Option<u32>,
    folder: Option<PathBuf>,
    active_links: Vec<u32>,
    /// Whether a look is under way: a GPU that did not answer is not asked again as long as that look has not come back.
    asked: Arc<AtomicBool>,
}

/// Watches the GPUs of one snapshot, in its order.
pub struct Observer {
    session: Result<nvml::Session, Absence>,
    roots: Roots,
    targets: Vec<Target>,
    bridges: Vec<(PciAddress, PathBuf)>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer")
            .field("nvml", &self.session.as_ref().map(|_| "open"))
            .field("gpus", &self.targets.len())
            .finish()
    }
}

impl Observer {
    /// Takes over the NVML session (or the reason why there is none) by which `snapshot` was read.
    pub fn new(session: Result<nvml::Session, Absence>, roots: Roots, snapshot: &Snapshot) -> Self {
        let base = roots.path("sys/bus/pci/devices");
        let targets = snapshot
            .gpus
            .iter()
            .map(|gpu| Target {
                nvml_index: gpu.nvml_index.known().copied(),
                folder: gpu.pci.known().map(|pci| base.join(pci.to_string())),
                active_links: gpu.nvlinks.known().map_or_else(Vec::new, |links| {
                    let active = links.iter().filter(|link| link.active);
                    active.map(|link| link.link).collect()
                }),
                asked: Arc::default(),
            })
            .collect();
        let above = |bridge: PciAddress| {
            let chains = snapshot.gpus.iter().filter_map(|g| g.bridge_chain.known());
            chains.flatten().any(|b| *b == bridge)
        };
        let bridges = snapshot
            .bridges
            .iter()
            .filter(|b| b.aer.known().is_some() && above(b.pci))
            .map(|b| (b.pci, base.join(b.pci.to_string())))
            .collect();
        Observer {
            session,
            roots,
            targets,
            bridges,
        }
    }

    /// Looks once, all GPUs side by side. `ours` are the process ids of this run, left out of the foreign processes. Of a GPU
    /// that does not answer in time the readings are `NoAnswer`; those of the others are there all the same.
    pub fn observe(&self, moment: &str, ours: &[u32]) -> Observation {
        let looks: Vec<_> = self.targets.iter().map(|t| self.look(t, ours)).collect();
        let gpus = looks.into_iter().zip(&self.targets).map(|(look, target)| {
            let seen = look.and_then(|look| look.within(LOOK_LIMIT));
            let mut seen = seen.unwrap_or_else(|why| {
                if !matches!(why, Absence::NoAnswer(_)) {
                    target.asked.store(false, Ordering::SeqCst);
                }
                nvml::unobserved(&why)
            });
            // The kernel answers without the driver.
            if let Some(folder) = &target.folder {
                seen.aer = match sysfs::read_aer(folder) {
                    Ok(counters) => Reading::Known(counters),
                    Err(absence) => Reading::Absent(absence),
                };
                if seen.link.known().is_none()
                    && let Ok(link) = sysfs::read_link_state(folder, "current")
                {
                    seen.link = Reading::Known(link);
                }
            }
            seen
        });
        let gpus = gpus.collect();
        let bridges = self.bridges.iter().filter_map(|(pci, folder)| {
            let aer = sysfs::read_aer(folder).ok()?;
            Some(BridgeObservation { pci: *pci, aer })
        });
        Observation {
            moment: moment.to_string(),
            gpus,
            bridges: bridges.collect(),
        }
    }

    fn look(&self, target: &Target, ours: &[u32]) -> Result<Pending<GpuObservation>, Absence> {
        let session = self.session.clone()?;
        let index = target
            .nvml_index
            .ok_or_else(|| Absence::SourceMissing("NVML does not list this GPU".to_string()))?;
        if target.asked.swap(true, Ordering::SeqCst) {
            return Err(Absence::NoAnswer(
                "the time since it was last asked".to_string(),
            ));
        }
        let (roots, links, ours) = (
            self.roots.clone(),
            target.active_links.clone(),
            ours.to_vec(),
        );
        let asked = target.asked.clone();
        Ok(begin(move || {
            let seen = match session.device_by_index(index) {
                Ok(device) => nvml::observe(&device, &roots, &links, &ours),
                Err(error) => nvml::unobserved(&nvml::absence(&error)),
            };
            asked.store(false, Ordering::SeqCst);
            seen
        }))
    }
}
