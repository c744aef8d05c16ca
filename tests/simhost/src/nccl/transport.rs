//! Which transport joins two ranks, by NCCL's rules on one host (2.28): P2P as far as the path class allows, and where NVML says
//! that the pair can; shared memory otherwise.
use crate::topology::{PathType, Topology};
use crate::world::World;

/// Way between two neighbours of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Peer,
    SharedMemory,
}

/// NCCL's path classes, nearest first.
const LOC: u32 = 0;
const NVL: u32 = 1;
const PIX: u32 = 4;
const PXB: u32 = 5;
const PHB: u32 = 8;
const SYS: u32 = 9;

/// NCCL_P2P_LEVEL: a name, or a number of old.
fn level(word: &str) -> Option<u32> {
    Some(match word.trim().to_ascii_uppercase().as_str() {
        "LOC" | "0" => LOC,
        "NVL" => NVL,
        "PIX" | "1" => PIX,
        "PXB" | "2" => PXB,
        "PHB" | "3" => PHB,
        "SYS" => SYS,
        number => number.parse::<u32>().ok().map(|_| SYS)?,
    })
}

fn class(topology: &Topology, a: usize, b: usize) -> u32 {
    if topology.nvlinks(a, b) > 0 {
        return NVL;
    }
    match topology.path_type(a, b) {
        PathType::Pix => PIX,
        PathType::Pxb => PXB,
        // Anything through one CPU node is one class to NCCL.
        PathType::Phb | PathType::Node => PHB,
        PathType::Sys => SYS,
    }
}

/// The farthest class over which P2P is used, with the lines that NCCL's log has about it.
pub(super) fn farthest(
    world: &World,
    ranks: usize,
    variable: impl Fn(&str) -> Option<String>,
) -> (u32, Vec<String>) {
    let mut says = Vec::new();
    let disabled = variable("NCCL_P2P_DISABLE");
    if let Some(value) = &disabled {
        says.push(format!("NCCL_P2P_DISABLE set by environment to {value}."));
    }
    let wanted = variable("NCCL_P2P_LEVEL");
    if let Some(value) = &wanted {
        says.push(format!("NCCL_P2P_LEVEL set by environment to {value}"));
    }
    let amd = world.scenario.host.cpu_vendor == "AuthenticAMD";
    let usual = if amd && ranks <= 2 { SYS } else { PXB };
    let farthest = match (disabled.as_deref(), wanted.as_deref().and_then(level)) {
        (Some("1"), _) => LOC,
        (_, Some(level)) => level,
        (_, None) => usual,
    };
    (farthest, says)
}

/// How two GPUs are joined.
pub(super) fn between(topology: &Topology, farthest: u32, (a, b): (usize, usize)) -> Transport {
    let granted = |a, b| topology.stated_p2p(a, b) == 0 && topology.enable_result(a, b) == 0;
    match class(topology, a, b) <= farthest && granted(a, b) && granted(b, a) {
        true => Transport::Peer,
        false => Transport::SharedMemory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_names_or_old_numbers() {
        assert_eq!(level("sys"), Some(SYS));
        assert_eq!(level("2"), Some(PXB));
        assert_eq!(level("7"), Some(SYS));
        assert_eq!(level("far"), None);
    }
}
