//! Which GPU gets which rank: islands stay together, tightest inside. Kernels for eight ranks take ranks 0-3 and 4-7 for the
//! two islands of a host, and rings over a host that is cut into islands want as few crossings as there can be.

use crate::{
    diagnose::Evidence,
    model::{
        pair::{GpuIndex, OrderedPair},
        topology::PathType,
    },
};

/// How tightly two GPUs are joined, loosest first.
const LEVELS: [Level; 4] = [
    Level::Node,
    Level::Path(PathType::Phb),
    Level::Path(PathType::Pxb),
    Level::Nvlink,
];

#[derive(Clone, Copy)]
enum Level {
    /// One NUMA node, or a path that does not leave one.
    Node,
    /// A PCIe path no longer than this.
    Path(PathType),
    /// NVLink.
    Nvlink,
}

/// `gpus` so that members of an island follow each other. GPUs of which nothing is known stay in their order.
pub(super) fn contiguous(e: &Evidence, gpus: &[GpuIndex]) -> Vec<GpuIndex> {
    arrange(e, gpus.to_vec(), &LEVELS)
}

fn arrange(e: &Evidence, members: Vec<GpuIndex>, levels: &[Level]) -> Vec<GpuIndex> {
    let Some((level, tighter)) = levels.split_first() else {
        return members;
    };
    let mut islands: Vec<Vec<GpuIndex>> = Vec::new();
    for gpu in members {
        let joined =
            |island: &Vec<GpuIndex>| island.iter().any(|other| joins(e, *level, gpu, *other));
        let (mine, others): (Vec<_>, Vec<_>) = islands.into_iter().partition(joined);
        islands = others;
        let mut whole: Vec<GpuIndex> = mine.into_iter().flatten().collect();
        whole.push(gpu);
        whole.sort();
        islands.push(whole);
    }
    islands.sort();
    islands
        .into_iter()
        .flat_map(|island| arrange(e, island, tighter))
        .collect()
}

fn joins(e: &Evidence, level: Level, a: GpuIndex, b: GpuIndex) -> bool {
    let Some(pair) = OrderedPair::new(a.0, b.0) else {
        return false;
    };
    if e.has_nvlink(pair) {
        return true;
    }
    let no_longer_than = |longest: PathType| e.path_type(pair).is_some_and(|path| path <= longest);
    match level {
        Level::Nvlink => false,
        Level::Path(longest) => no_longer_than(longest),
        Level::Node => {
            let home = |gpu: GpuIndex| {
                let known = e.snapshot.gpu(gpu)?.numa_node.known().copied()?;
                (known >= 0).then_some(known)
            };
            match (home(a), home(b)) {
                (Some(one), Some(other)) => one == other,
                _ => no_longer_than(PathType::Node),
            }
        }
    }
}

/// The first `count` GPUs in a row of `ordered` without a broken pair among them.
pub(super) fn sound_window(
    e: &Evidence,
    ordered: &[GpuIndex],
    count: usize,
) -> Option<Vec<GpuIndex>> {
    let broken = e.peer_failures();
    ordered
        .windows(count.max(1))
        .find(|window| {
            !broken
                .iter()
                .any(|p| window.contains(&p.source) && window.contains(&p.destination))
        })
        .map(<[GpuIndex]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        diagnose::sample::{Host, pair},
        model::{case::WrongKind, reading::Reading},
    };

    fn order(host: &Host) -> Vec<u32> {
        let ranks = host.judge(|e| contiguous(e, &host.group()));
        ranks.into_iter().map(|gpu| gpu.0).collect()
    }

    #[test]
    fn interleaved_nodes_are_put_together() {
        let mut host = Host::root_complex(8);
        for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
            gpu.numa_node = Reading::Known(i as i32 % 2);
        }
        assert_eq!(order(&host), [0, 2, 4, 6, 1, 3, 5, 7]);
    }

    #[test]
    fn nvlink_pairs_stay_together_inside_a_node() {
        let mut host = Host::root_complex(4);
        for (a, b) in [(0, 2), (1, 3)] {
            for p in [pair(a, b), pair(b, a)] {
                host.snapshot.topology.pairs.get_mut(p).unwrap().nvlinks = 4;
            }
        }
        assert_eq!(order(&host), [0, 2, 1, 3]);
        assert_eq!(order(&Host::nvswitch(8)), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn nothing_known_changes_nothing() {
        let mut host = Host::root_complex(4);
        host.snapshot.topology.pairs = crate::model::pair::PairTable::new(4);
        assert_eq!(order(&host), [0, 1, 2, 3]);
    }

    #[test]
    fn a_sound_window_avoids_broken_pairs() {
        let mut host = Host::root_complex(4);
        host.all_intact();
        host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
        let window = |count| host.judge(|e| sound_window(e, &host.group(), count));
        assert_eq!(window(2), Some(vec![GpuIndex(1), GpuIndex(2)]));
        assert_eq!(window(4), None);
        assert_eq!(window(9), None);
    }
}
