//! Which cases, of what size, in which rounds. Pure: scales to the memory of the smallest GPU, so the same plan fits a
//! 141 GB card and a simulated one of a few MiB.

use super::{alone, mechanism, wire::Layout};
use crate::model::{
    case::{Case, Rung, Subject},
    pair::{GpuIndex, OrderedPair},
    snapshot::Snapshot,
};

/// Samples of a rate.
pub const RATE_SAMPLES: u32 = 5;
/// Attempts of a content case: fresh poison and fresh words each time.
const ATTEMPTS: u32 = 3;
/// Memory assumed where the driver does not tell, bytes.
const UNKNOWN_MEMORY: u64 = 1 << 30;
/// Alignment of sizes that are not chosen to be odd.
const PAGE: u64 = 4096;
/// CUDA shares device memory between processes in blocks of this size.
pub const IPC_BLOCK: u64 = 2 << 20;

/// What the operator chose; `None` = everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// GPU indices.
    pub gpus: Vec<u32>,
    /// Ordered pairs.
    pub pairs: Option<Vec<OrderedPair>>,
    /// Mechanism ids.
    pub mechanisms: Option<Vec<String>>,
}

/// Cases that run side by side: both directions of disjoint pairs, one mechanism, one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The cases.
    pub cases: Vec<Case>,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Chosen GPUs, ascending.
    pub gpus: Vec<u32>,
    /// Buffers of each GPU.
    pub layout: Layout,
    /// Single-GPU cases.
    pub alone: Vec<Case>,
    /// Memory shared between two processes on the only GPU.
    pub ipc: Option<Case>,
    /// Advertised claims, one per ordered pair.
    pub claims: Vec<Case>,
    /// Content cases without peer access.
    pub off: Vec<Round>,
    /// Content cases with peer access.
    pub on: Vec<Round>,
    /// Rates without peer access, one flow at a time.
    pub off_rates: Vec<Case>,
    /// Rates with peer access.
    pub on_rates: Vec<Case>,
    /// What was left out, in words.
    pub left_out: Vec<String>,
}

impl Plan {
    /// All cases, in order.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.alone
            .iter()
            .chain(&self.ipc)
            .chain(&self.claims)
            .chain(self.off.iter().flat_map(|round| &round.cases))
            .chain(self.on.iter().flat_map(|round| &round.cases))
            .chain(&self.off_rates)
            .chain(&self.on_rates)
    }
}

/// Sizes of one transfer, offset first.
fn shapes(memory: u64, bar1: Option<u64>) -> (Vec<(u64, u64)>, u64) {
    let scaled = |share: u64, low: u64, high: u64| (memory / share).clamp(low, high) / PAGE * PAGE;
    let middle = scaled(256, 64 << 10, 1 << 20);
    let big = scaled(64, 128 << 10, 64 << 20);
    // 4 bytes: less than a unit. The tail of the middle size is odd on purpose.
    let mut shapes = vec![(0, 4), (0, PAGE), (PAGE, middle - 3), (0, big)];
    if let Some(bar1) = bar1.filter(|bar1| *bar1 > 0 && bar1.saturating_add(middle) <= memory / 8) {
        shapes.push((bar1, middle));
    }
    (shapes, big)
}

/// Rounds of a round-robin tournament (circle method): every unordered pair once, each GPU at most once a round.
pub fn tournament(gpus: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let mut circle: Vec<Option<u32>> = gpus.iter().copied().map(Some).collect();
    if circle.len() % 2 == 1 {
        circle.push(None);
    }
    let count = circle.len();
    let mut rounds = Vec::new();
    for _ in 1..count {
        let (front, back) = circle.split_at(count / 2);
        let pairs = front
            .iter()
            .zip(back.iter().rev())
            .filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        rounds.push(pairs.collect());
        if let Some(rest) = circle.get_mut(1..) {
            rest.rotate_right(1);
        }
    }
    rounds
}

/// Plans a run over `selection` of the snapshot's GPUs.
pub fn build(snapshot: &Snapshot, selection: &Selection) -> Plan {
    let chosen: Vec<u32> = selection.gpus.clone();
    let seen = |gpu: &u32| snapshot.gpu(GpuIndex(*gpu));
    let free = |gpu: &u32| {
        let gpu = seen(gpu);
        let total = gpu
            .and_then(|g| g.memory_bytes.known().copied())
            .unwrap_or(UNKNOWN_MEMORY);
        total.saturating_sub(
            gpu.and_then(|g| g.memory_used_bytes.known().copied())
                .unwrap_or(0),
        )
    };
    let memory = chosen.iter().map(free).min().unwrap_or(UNKNOWN_MEMORY);
    let bar1 = chosen
        .iter()
        .filter_map(|gpu| seen(gpu)?.bar1_bytes.known().copied())
        .min();
    let (shapes, big) = shapes(memory, bar1);
    let span = shapes
        .iter()
        .map(|(offset, bytes)| offset + bytes)
        .max()
        .unwrap_or(PAGE)
        .next_multiple_of(PAGE);
    let layout = Layout {
        span,
        guard: PAGE,
        pinned: big.min(16 << 20),
    };
    let mut plan = Plan {
        gpus: chosen.clone(),
        layout,
        alone: Vec::new(),
        ipc: None,
        claims: Vec::new(),
        off: Vec::new(),
        on: Vec::new(),
        off_rates: Vec::new(),
        on_rates: Vec::new(),
        left_out: Vec::new(),
    };
    let mut next = 0;
    let mut case = |subject, mechanism: &str, rung, (offset, bytes), attempts, timed| {
        next += 1;
        Case {
            id: next,
            subject,
            mechanism: mechanism.to_string(),
            rung,
            bytes,
            offset,
            attempts,
            timed,
        }
    };
    let wanted = |id: &str| {
        selection
            .mechanisms
            .as_ref()
            .is_none_or(|only| only.iter().any(|m| m == id))
    };
    // A GPU is proven alone before its pairs are blamed, whatever mechanism was chosen.
    let pairs_chosen = mechanism::ROSTER.iter().any(|m| wanted(m.id()));
    let wanted_alone = |id: &str| wanted(id) || pairs_chosen;
    let wanted_pair = |pair: OrderedPair| {
        selection
            .pairs
            .as_ref()
            .is_none_or(|only| only.contains(&pair))
    };

    // Single GPUs: a piece of memory that takes well under a second, the host link at a size that fills it.
    let memory_bytes = (memory / 8).clamp(PAGE, 4 << 30) / PAGE * PAGE;
    for (id, bytes, attempts) in [
        (alone::MEMORY, memory_bytes, 2),
        (alone::HOST_WRITE, big.min(layout.pinned), ATTEMPTS),
        (alone::HOST_READ, big.min(layout.pinned), ATTEMPTS),
        (alone::PINNED, (1 << 20).min(big), ATTEMPTS),
    ] {
        if !wanted_alone(id) {
            continue;
        }
        let cases = chosen.iter().map(|gpu| {
            case(
                Subject::Gpu(GpuIndex(*gpu)),
                id,
                Rung::Alone,
                (0, bytes),
                attempts,
                false,
            )
        });
        plan.alone.extend(cases);
    }
    if let ([only], true) = (chosen.as_slice(), wanted_alone(alone::IPC_SAME_GPU)) {
        let subject = Subject::Gpu(GpuIndex(*only));
        plan.ipc = Some(case(
            subject,
            alone::IPC_SAME_GPU,
            Rung::Shared,
            (0, IPC_BLOCK),
            1,
            false,
        ));
    }

    let ordered: Vec<OrderedPair> = chosen
        .iter()
        .flat_map(|s| chosen.iter().filter_map(move |d| OrderedPair::new(*s, *d)))
        .filter(|pair| wanted_pair(*pair))
        .collect();
    for pair in &ordered {
        plan.claims.push(case(
            Subject::Pair(*pair),
            ADVERTISED,
            Rung::Advertised,
            (0, 0),
            1,
            false,
        ));
    }
    let rounds = tournament(&chosen);
    for mechanism in mechanism::ROSTER.iter().filter(|m| wanted(m.id())) {
        for shape in &shapes {
            for round in &rounds {
                let both = round
                    .iter()
                    .flat_map(|(a, b)| [OrderedPair::new(*a, *b), OrderedPair::new(*b, *a)]);
                let cases: Vec<Case> = both
                    .flatten()
                    .filter(|pair| wanted_pair(*pair))
                    .map(|pair| {
                        case(
                            Subject::Pair(pair),
                            mechanism.id(),
                            mechanism.rung(),
                            *shape,
                            ATTEMPTS,
                            false,
                        )
                    })
                    .collect();
                if !cases.is_empty() {
                    let list = if mechanism.needs_peer_access() {
                        &mut plan.on
                    } else {
                        &mut plan.off
                    };
                    list.push(Round { cases });
                }
            }
        }
        // Two streams of two contexts: no event can time a bounce.
        if mechanism.id() == "bounce" {
            continue;
        }
        let list = if mechanism.needs_peer_access() {
            &mut plan.on_rates
        } else {
            &mut plan.off_rates
        };
        for pair in &ordered {
            list.push(case(
                Subject::Pair(*pair),
                mechanism.id(),
                mechanism.rung(),
                (0, big),
                1,
                true,
            ));
        }
    }
    if let Some(only) = &selection.mechanisms {
        let every = super::supervisor::mechanism_ids();
        if every.iter().any(|id| !only.iter().any(|m| m == id)) {
            let mut text = format!("mechanisms other than {}", only.join(", "));
            if pairs_chosen {
                text.push_str(" (GPUs alone are tested in any case)");
            }
            plan.left_out.push(text);
        }
    }
    if let Some(only) = &selection.pairs {
        let all = chosen.len() * chosen.len().saturating_sub(1);
        let missing = all - only.len().min(ordered.len());
        if missing > 0 {
            plan.left_out
                .push(format!("{missing} of {all} ordered pairs by --pairs"));
        }
    }
    if chosen.len() > 1 {
        plan.left_out.push(
            "rungs 4 shared, 5 resident, 6 reduced and 7 loaded: this version does not test them"
                .into(),
        );
    } else {
        plan.left_out
            .push("rungs 0 to 7 need a second GPU".to_string());
    }
    plan
}

/// Pseudo mechanism of rung 0.
pub const ADVERTISED: &str = "advertised";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tournament_meets_every_pair_once() {
        for count in [2u32, 3, 4, 7, 8, 9, 16] {
            let gpus: Vec<u32> = (0..count).collect();
            let rounds = tournament(&gpus);
            assert_eq!(
                rounds.len() as u32,
                count - 1 + count % 2,
                "rounds grow with N"
            );
            let mut met = std::collections::BTreeSet::new();
            for round in &rounds {
                let mut busy = std::collections::BTreeSet::new();
                for (a, b) in round {
                    assert!(
                        busy.insert(*a) && busy.insert(*b),
                        "a GPU plays twice in a round"
                    );
                    assert!(met.insert((*a.min(b), *a.max(b))));
                }
            }
            assert_eq!(met.len() as u32, count * (count - 1) / 2);
        }
    }

    #[test]
    fn sizes_scale_with_memory_and_pass_bar1() {
        let (real, big) = shapes(140 << 30, Some(256 << 30));
        assert_eq!(big, 64 << 20);
        assert_eq!(
            real.len(),
            4,
            "BAR1 larger than memory: nothing lies beyond it"
        );
        let (small, _) = shapes(32 << 20, Some(2 << 20));
        assert!(
            small.iter().any(|(offset, _)| *offset == 2 << 20),
            "{small:?}"
        );
        let (ada, _) = shapes(48 << 30, Some(256 << 20));
        assert!(ada.iter().any(|(offset, _)| *offset == 256 << 20));
    }
}
