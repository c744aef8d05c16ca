//! Faults that cannot strike on a scenario, and why: a test that plants one proves nothing, so the launcher says it.
use super::fault::{Fault, Kind, Mechanism, Occurrence, Via};
use super::spec::Scenario;
use crate::topology::Topology;

/// Why a fault can never strike; None where it can.
pub fn never_strikes(fault: &Fault, scenario: &Scenario, topology: &Topology) -> Option<String> {
    let memory = scenario.gpu.memory_mib << 20;
    if fault.min_offset >= memory || fault.min_bytes > memory {
        return Some(format!("a GPU has {memory} bytes of memory"));
    }
    if matches!(fault.when, Occurrence::Random { probability, .. } if probability <= 0.0) {
        return Some("its probability is 0".into());
    }
    if fault.only == Some(Via::VMM) && !scenario.driver.vmm {
        return Some("driver.vmm is false".into());
    }
    if fault.only == Some(Via::POOL) && !scenario.driver.pools {
        return Some("driver.pools is false".into());
    }
    let all: Vec<Option<usize>> = (0..scenario.gpus.len()).map(Some).chain([None]).collect();
    let via = fault.only.unwrap_or(Via::NONE);
    let pairs: Vec<(Mechanism, Option<usize>, Option<usize>)> = fault
        .mechanisms
        .iter()
        .flat_map(|&m| all.iter().map(move |&s| (m, s)))
        .flat_map(|(m, s)| all.iter().map(move |&d| (m, s, d)))
        .filter(|&(m, s, d)| fault.concerns(s, d, m, via) && ends_fit(m, s, d))
        .collect();
    if pairs.is_empty() {
        return Some("no pair of the host has these ends and this mechanism".into());
    }
    let open = |&&(m, s, d): &&(Mechanism, Option<usize>, Option<usize>)| match (executor(m), s, d)
    {
        (Executor::Source, Some(s), Some(d)) => topology.enable_result(s, d) == 0,
        (Executor::Destination, Some(s), Some(d)) => topology.enable_result(d, s) == 0,
        _ => true,
    };
    let open: Vec<_> = pairs.iter().filter(open).collect();
    if open.is_empty() {
        return Some("the pair has no peer access".into());
    }
    if !open.iter().any(|(m, ..)| has_effect(&fault.kind, *m)) {
        return Some("this kind changes nothing on this mechanism".into());
    }
    None
}

/// Who needs peer access for it.
enum Executor {
    Source,
    Destination,
    Nobody,
}

fn executor(mechanism: Mechanism) -> Executor {
    match mechanism {
        Mechanism::CePush
        | Mechanism::SmStore
        | Mechanism::SmStore4
        | Mechanism::SmStore16
        | Mechanism::Atomic => Executor::Source,
        Mechanism::CePull | Mechanism::SmLoad => Executor::Destination,
        _ => Executor::Nobody,
    }
}

/// Whether the mechanism has such ends at all; None is host memory.
fn ends_fit(mechanism: Mechanism, source: Option<usize>, destination: Option<usize>) -> bool {
    match mechanism {
        Mechanism::BounceD2h | Mechanism::HostStore | Mechanism::HostAtomic => {
            source.is_some() && destination.is_none()
        }
        Mechanism::BounceH2d | Mechanism::HostLoad => source.is_none() && destination.is_some(),
        Mechanism::Own => source.is_some() && source == destination,
        _ => source.is_some() && destination.is_some() && source != destination,
    }
}

fn has_effect(kind: &Kind, mechanism: Mechanism) -> bool {
    match mechanism {
        Mechanism::SmLoad | Mechanism::HostLoad => {
            !matches!(kind, Kind::Mirrored | Kind::Spilled { .. })
        }
        Mechanism::CePull | Mechanism::BounceH2d => !matches!(kind, Kind::Mirrored),
        Mechanism::Atomic | Mechanism::HostAtomic => !matches!(kind, Kind::Spilled { .. }),
        _ => true,
    }
}
