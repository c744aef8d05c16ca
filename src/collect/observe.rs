//! Counters of the GPUs at one moment, read from an NVML session that stays open. It judges nothing; a GPU that cannot
//! be asked has absences.

use super::{live::Roots, nvml, sysfs};
use crate::model::{
    pci::PciAddress,
    reading::{Absence, Reading},
    snapshot::{BridgeObservation, GpuObservation, Observation, Snapshot},
};
use nvml_wrapper::Nvml;
use std::{path::PathBuf, thread};

/// One GPU to look at.
struct Target {
    nvml_index: Option<u32>,
    folder: Option<PathBuf>,
    active_links: Vec<u32>,
}

/// Watches the GPUs of one snapshot, in its order.
pub struct Observer {
    session: Result<Nvml, Absence>,
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
    pub fn new(session: Result<Nvml, Absence>, roots: Roots, snapshot: &Snapshot) -> Self {
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

    /// Looks once, all GPUs side by side. `ours` are the process ids of this run, left out of the foreign processes.
    pub fn observe(&self, moment: &str, ours: &[u32]) -> Observation {
        let gpus = thread::scope(|scope| {
            let looks: Vec<_> = self
                .targets
                .iter()
                .map(|target| scope.spawn(|| self.look(target, ours)))
                .collect();
            looks
                .into_iter()
                .map(|look| {
                    look.join().unwrap_or_else(|_| {
                        nvml::unobserved(&Absence::Failed("the observer panicked".to_string()))
                    })
                })
                .collect()
        });
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

    fn look(&self, target: &Target, ours: &[u32]) -> GpuObservation {
        let mut seen = match (&self.session, target.nvml_index) {
            (Ok(session), Some(index)) => match session.device_by_index(index) {
                Ok(device) => nvml::observe(&device, &self.roots, &target.active_links, ours),
                Err(error) => nvml::unobserved(&nvml::absence(&error)),
            },
            (Err(absence), _) => nvml::unobserved(absence),
            (Ok(_), None) => nvml::unobserved(&Absence::SourceMissing(
                "NVML does not list this GPU".to_string(),
            )),
        };
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
    }
}
