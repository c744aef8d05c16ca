//! What a choice is worth: measured on this host where it was, published by others where that fits, and otherwise unknown.
//! A published number is of another host, and is never turned into one of this.

use super::{
    choose::NCCL_LEVEL,
    conditions::Weighing,
    group::Peers,
    request::ReductionTime,
    sizing::{capture_sizes, grouped},
    steps,
};
use crate::{
    diagnose::reductions::{NCCL, NCCL_P2P_OFF, NCCL_P2P_SYS},
    model::{
        finding::{Place, Recommendation, Standing, Worth, WorthBasis},
        pair::GpuIndex,
        reduction::Launch,
    },
    profile::{Backend, EngineProfile, Moves},
};
use std::collections::BTreeSet;

pub(super) fn of(
    engine: &EngineProfile,
    weighing: &Weighing,
    answer: &Recommendation,
) -> Vec<Worth> {
    let reduces = engine
        .backend(&answer.backend)
        .is_none_or(|b| b.moves == Moves::Reductions);
    let mut all = Vec::new();
    if reduces {
        all.extend(fastest(weighing));
        all.extend(measured(weighing, answer));
        all.extend(slower(engine, weighing, answer));
    }
    for place in &answer.order {
        if !matches!(place.standing, Standing::Chosen | Standing::Possible) {
            continue;
        }
        let Some(backend) = engine.backend(&place.backend) else {
            continue;
        };
        for seen in backend.worth.iter().filter(|w| weighing.all(&w.when)) {
            all.push(Worth {
                basis: WorthBasis::Published,
                says: format!("{}: {}", backend.name, seen.says),
                source: seen.source.clone(),
            });
        }
    }
    if reduces && !all.iter().any(|w| w.basis == WorthBasis::Measured) {
        all.push(Worth {
            basis: WorthBasis::Unknown,
            says: format!(
                "no reduction of this launch's group, type and way of launching was measured: the order is the engine's own, not one of speed; '{}' measures those of this launch, and --reductions r.json takes them in",
                steps::command(weighing.request)
            ),
            source: "no measurement in the report".to_string(),
        });
    }
    all
}

/// What it costs to do without `backends`, and without NCCL's peer path where `nccl` has what was published of it: measured here
/// where the report has it, published by others otherwise.
pub(super) fn cost(weighing: &Weighing, backends: &[&Backend], nccl: Option<&Backend>) -> String {
    let mut says: Vec<String> = Vec::new();
    if nccl.is_some() {
        says.extend(peers_of_nccl(weighing));
    }
    let base = times(weighing, NCCL);
    for backend in backends {
        let own = times(weighing, &backend.id);
        let says_of = crossover(&base, &own, &backend.id);
        says.extend(says_of.map(|text| format!("{text}{}", stand_ins(&own, &backend.id))));
    }
    if !says.is_empty() {
        return format!("measured here: {}", says.join("; "));
    }
    for seen in backends
        .iter()
        .copied()
        .chain(nccl)
        .flat_map(|b| &b.worth)
        .filter(|w| weighing.all(&w.when))
    {
        says.push(format!("{} ({})", seen.says, seen.source));
    }
    if says.is_empty() {
        return format!(
            "what it costs was not measured here, and nothing published fits this host: '{}' measures it",
            steps::command(weighing.request)
        );
    }
    format!("published of other hosts: {}", says.join("; "))
}

/// NCCL with peers against NCCL without, at the sizes at which both were measured.
fn peers_of_nccl(weighing: &Weighing) -> Option<String> {
    let off = times(weighing, NCCL_P2P_OFF);
    let on = [NCCL_P2P_SYS, NCCL].map(|arm| times(weighing, arm));
    let on = on.into_iter().find(|arm| !arm.is_empty())?;
    let ratios: Vec<(u64, f64)> = on
        .iter()
        .filter_map(|with| {
            let without = off.iter().find(|t| t.bytes == with.bytes)?;
            (with.microseconds > 0.0)
                .then(|| (with.bytes, without.microseconds / with.microseconds))
        })
        .collect();
    let (first, last) = (ratios.first()?.0, ratios.last()?.0);
    let (least, most) = ratios
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(l, m), (_, r)| {
            (l.min(*r), m.max(*r))
        });
    let (least, most) = (format!("{least:.1}"), format!("{most:.1}"));
    let times = match least == most {
        true => least,
        false => format!("{least} to {most}"),
    };
    let span = match first == last {
        true => format!("at {} bytes", grouped(first)),
        false => format!(
            "{} sizes from {} to {} bytes",
            ratios.len(),
            grouped(first),
            grouped(last)
        ),
    };
    Some(format!(
        "NCCL with peers is {times} times as fast as without ({span})"
    ))
}

/// What was measured of `backend` over these GPUs, by size.
fn times<'a>(weighing: &Weighing<'a>, backend: &str) -> Vec<&'a ReductionTime> {
    let own = weighing.request.measured.iter();
    let mut own: Vec<&ReductionTime> = own
        .filter(|t| t.backend == backend && is_here(weighing, t))
        .collect();
    own.sort_by_key(|t| t.bytes);
    own
}

/// Whether a time is of this group.
fn is_here(weighing: &Weighing, time: &ReductionTime) -> bool {
    time.ranks == weighing.group.world()
        && (time.gpus.is_empty() || same_gpus(time.gpus.iter().copied(), &weighing.group.gpus))
}

/// Whether two lists name the same GPUs, in any order.
fn same_gpus(a: impl Iterator<Item = GpuIndex>, b: &[GpuIndex]) -> bool {
    let set: BTreeSet<GpuIndex> = a.collect();
    set.len() == b.len() && b.iter().all(|gpu| set.contains(gpu))
}

/// What was the fastest over these GPUs, by size, and what is odd about NCCL's own times.
fn fastest(weighing: &Weighing) -> Vec<Worth> {
    let gpus = &weighing.group.gpus;
    let own = weighing.request.crossovers.iter();
    let own = own.filter(|c| same_gpus(c.gpus.iter().copied().map(GpuIndex), gpus));
    own.flat_map(|crossover| {
        let source = format!(
            "reductions of this report: {}, {}, {}",
            crossover.arrangement.words(),
            crossover.dtype,
            match crossover.launch {
                Launch::Graph => "as CUDA graphs",
                Launch::Eager => "eager",
            }
        );
        let odd = crossover.doubts.iter();
        let odd = odd.map(|doubt| match doubt.starts_with(NCCL) {
            true => format!("NCCL's own times are odd here: {doubt}"),
            false => format!("times of this tool's own kernels are odd here: {doubt}"),
        });
        odd.chain(crossover.advice.iter().cloned())
            .map(move |says| Worth {
                basis: WorthBasis::Measured,
                says,
                source: source.clone(),
            })
            .collect::<Vec<_>>()
    })
    .collect()
}

/// The choice against NCCL: where they cross, and what either is per forward pass of one request and of a full batch.
fn measured(weighing: &Weighing, answer: &Recommendation) -> Vec<Worth> {
    let (base, nccl_is) = baseline(weighing, answer);
    let own = match answer.backend == NCCL {
        true => Vec::new(),
        false => times(weighing, &answer.backend),
    };
    let anything = weighing.request.measured.iter();
    let here: BTreeSet<u64> = anything
        .filter(|t| is_here(weighing, t))
        .map(|t| t.bytes)
        .collect();
    if here.is_empty() {
        return Vec::new();
    }
    let source = format!("{} sizes measured on this host", here.len());
    let whose = stand_ins(&own, &answer.backend);
    let mut all = Vec::new();
    if let Some(says) = crossover(&base, &own, &answer.backend) {
        all.push(Worth {
            basis: WorthBasis::Measured,
            says: format!("{says}{whose}"),
            source: source.clone(),
        });
    }
    let Some(sizing) = weighing.sizing else {
        return all;
    };
    let row = sizing.payload_bytes.checked_div(sizing.rows).unwrap_or(0);
    let one = row.saturating_mul(sizing.rows_per_request);
    let mut sizes = vec![(one, "one request"), (sizing.payload_bytes, "a full batch")];
    sizes.dedup_by_key(|(bytes, _)| *bytes);
    // A launch that was only read may not tell how many requests run together.
    sizes.retain(|(bytes, _)| *bytes > 0);
    for (bytes, of) in sizes {
        if !here.contains(&bytes) {
            all.push(Worth {
                basis: WorthBasis::Unknown,
                says: format!(
                    "a step of {of} reduces {} bytes, a size that was not measured: '{}' measures it",
                    grouped(bytes),
                    steps::command(weighing.request)
                ),
                source: source.clone(),
            });
            continue;
        }
        let (Some(nccl), Some(count)) = (at(&base, bytes), sizing.all_reduces) else {
            continue;
        };
        let reductions = format!(
            "{count} reductions of {} bytes in a forward pass, {:.1} us with {nccl_is}",
            grouped(bytes),
            nccl.microseconds
        );
        let says = match at(&own, bytes) {
            Some(mine) if level(mine, nccl) => format!(
                "{reductions} and {:.1} us with {}, which their samples do not tell apart{whose}",
                mine.microseconds, answer.backend
            ),
            Some(mine) => format!(
                "{reductions} and {:.1} us with {}: {:+.2} ms for every step of {of}{whose}",
                mine.microseconds,
                answer.backend,
                -per_forward_us(count, nccl.microseconds, mine.microseconds) / 1000.0
            ),
            None => format!(
                "{reductions}: {:.2} ms of every step of {of} are NCCL's",
                f64::from(count) * nccl.microseconds / 1000.0
            ),
        };
        all.push(Worth {
            basis: WorthBasis::Inferred,
            says,
            source: source.clone(),
        });
    }
    all
}

/// Backends that the engine uses by itself, or on this advice, for steps at which NCCL was faster: by what they are turned off, and
/// what such times cannot say. The order stays the engine's own.
fn slower(engine: &EngineProfile, weighing: &Weighing, answer: &Recommendation) -> Vec<Worth> {
    let Some(sizing) = weighing.sizing.filter(|s| s.rows_per_request > 0) else {
        return Vec::new();
    };
    let row = sizing.payload_bytes.checked_div(sizing.rows).unwrap_or(0);
    let rows = capture_sizes(sizing.batch, sizing.rows_per_request);
    let mut steps: Vec<u64> = rows.iter().map(|n| n.saturating_mul(row)).collect();
    steps.retain(|bytes| *bytes > 0);
    let (base, nccl_is) = baseline(weighing, answer);
    let runs = |p: &&Place| matches!(p.standing, Standing::Chosen | Standing::Runs);
    let order: Vec<&Place> = answer.order.iter().filter(runs).collect();
    let mut all = Vec::new();
    for (at_place, place) in order.iter().enumerate() {
        let takes = |p: &Place, bytes: u64| p.takes_bytes.is_none_or(|most| bytes <= most);
        let (own, left): (Vec<u64>, Vec<u64>) =
            steps.iter().partition(|bytes| takes(place, **bytes));
        steps = left;
        let Some(backend) = engine.backend(&place.backend).filter(|b| b.id != NCCL) else {
            continue;
        };
        let mine = times(weighing, &backend.id);
        let both: Vec<(&ReductionTime, &ReductionTime)> = own
            .iter()
            .filter_map(|bytes| Some((at(&mine, *bytes)?, at(&base, *bytes)?)))
            .collect();
        let lost: Vec<&(&ReductionTime, &ReductionTime)> = both
            .iter()
            .filter(|(mine, nccl)| faster(nccl, mine))
            .collect();
        if lost.is_empty() || both.iter().any(|(mine, nccl)| faster(mine, nccl)) {
            continue;
        }
        let told: Vec<String> = lost
            .iter()
            .map(|(mine, nccl)| {
                format!(
                    "{:.1} us against {:.1} us at {} bytes",
                    mine.microseconds,
                    nccl.microseconds,
                    grouped(mine.bytes)
                )
            })
            .collect();
        let off: Vec<String> = backend.turn_off.iter().map(super::told).collect();
        let off = match off.as_slice() {
            [] => "its profile names no switch that turns it off".to_string(),
            some => format!("{} turns it off", some.join(" with ")),
        };
        // What is asked next for the largest of them.
        let largest = own.iter().max().copied().unwrap_or(0);
        let mut behind = order.iter().skip(at_place + 1);
        let behind = behind.find(|p| takes(p, largest));
        let next = behind.map_or(String::new(), |p| {
            format!(", and {} takes them then", p.name)
        });
        all.push(Worth {
            basis: WorthBasis::Inferred,
            says: format!(
                "{} was slower than {nccl_is} at {} of the {} step sizes that it takes here, and faster at none ({}){}: {off}{next}. It stays in the order, which is the engine's own: these are times of reductions one after the other on a host without other work, of decode steps and not of prefill. Time whole steps both ways before it is left off",
                backend.name,
                lost.len(),
                own.len(),
                told.join(", "),
                stand_ins(&mine, &backend.id)
            ),
            source: "reductions measured on this host; switches of the engine's profile".to_string(),
        });
    }
    all
}

/// The time of one size.
fn at<'a>(list: &[&'a ReductionTime], bytes: u64) -> Option<&'a ReductionTime> {
    list.iter().copied().find(|t| t.bytes == bytes)
}

/// NCCL as this answer lets it run, and that in words: with its own choice of paths, told to use peers at any distance, or
/// kept off them.
fn baseline<'a>(
    weighing: &Weighing<'a>,
    answer: &Recommendation,
) -> (Vec<&'a ReductionTime>, &'static str) {
    if !matches!(weighing.group.peers, Peers::Proven(_)) {
        return (times(weighing, NCCL_P2P_OFF), "NCCL without peers");
    }
    let told = answer.environment.iter().any(|s| s.name == NCCL_LEVEL);
    let far = times(weighing, NCCL_P2P_SYS);
    match told && !far.is_empty() {
        true => (far, "NCCL with peers at any distance"),
        false => (times(weighing, NCCL), "NCCL"),
    }
}

/// Whose kernels were measured, where they are not those of `backend` itself; to follow what was measured.
fn stand_ins(own: &[&ReductionTime], backend: &str) -> String {
    let kernels: BTreeSet<&str> = own.iter().filter_map(|t| t.stand_in.as_deref()).collect();
    let kernels: Vec<&str> = kernels.into_iter().collect();
    match kernels.as_slice() {
        [] => String::new(),
        names => format!(
            ", as measured with this tool's own kernels ({}): those of {backend} were not run",
            names.join(", ")
        ),
    }
}

/// Microseconds that a forward pass of `count` reductions gains by `mine` over `nccl`; negative when it loses.
pub(super) fn per_forward_us(count: u32, nccl: f64, mine: f64) -> f64 {
    f64::from(count) * (nccl - mine)
}

/// Whether `mine` is clearly faster than `base`: the middle halves of their samples lie apart.
fn faster(mine: &ReductionTime, base: &ReductionTime) -> bool {
    mine.microseconds < base.microseconds && mine.middle.1 < base.middle.0
}

/// Whether neither is clearly faster.
fn level(a: &ReductionTime, b: &ReductionTime) -> bool {
    !faster(a, b) && !faster(b, a)
}

/// At which measured sizes `own` is faster.
fn crossover(base: &[&ReductionTime], own: &[&ReductionTime], name: &str) -> Option<String> {
    let both: Vec<(&ReductionTime, &ReductionTime)> = own
        .iter()
        .filter_map(|mine| Some((*mine, at(base, mine.bytes)?)))
        .collect();
    let (least, most) = (both.first()?.0.bytes, both.last()?.0.bytes);
    let among = match least == most {
        true => format!("measured at {} bytes only", grouped(least)),
        false => format!(
            "measured from {} to {} bytes",
            grouped(least),
            grouped(most)
        ),
    };
    let even = both.iter().filter(|(mine, nccl)| level(mine, nccl)).count();
    let among = match even {
        0 => among,
        1 => format!("{among}; at one size they are not told apart"),
        n => format!("{among}; at {n} sizes they are not told apart"),
    };
    let won: Vec<u64> = both
        .iter()
        .filter(|(mine, nccl)| faster(mine, nccl))
        .map(|(mine, _)| mine.bytes)
        .collect();
    Some(match (won.first(), won.last()) {
        (None, _) | (_, None) => format!("{name} is clearly faster than NCCL at no size ({among})"),
        (Some(_), Some(_)) if won.len() == both.len() => {
            format!("{name} is faster than NCCL at every size ({among})")
        }
        (Some(first), Some(last)) => {
            let within = |(mine, _): &&(&ReductionTime, &ReductionTime)| {
                (*first..=*last).contains(&mine.bytes)
            };
            match both.iter().filter(within).count() == won.len() {
                true if first == last => format!(
                    "{name} is faster than NCCL at {} bytes, and not at the others ({among})",
                    grouped(*first)
                ),
                true => format!(
                    "{name} is faster than NCCL from {} to {} bytes, and not outside ({among})",
                    grouped(*first),
                    grouped(*last)
                ),
                false => format!(
                    "{name} is faster than NCCL at {} of {} sizes, without one crossing ({among})",
                    won.len(),
                    both.len()
                ),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(backend: &str, list: &[(u64, f64)]) -> Vec<ReductionTime> {
        list.iter()
            .map(|(bytes, us)| ReductionTime {
                backend: backend.to_string(),
                ranks: 8,
                bytes: *bytes,
                microseconds: *us,
                middle: (*us, *us),
                gpus: Vec::new(),
                stand_in: None,
            })
            .collect()
    }

    fn cross(base: &[(u64, f64)], own: &[(u64, f64)]) -> String {
        let (base, own) = (times(NCCL, base), times("x", own));
        let refs = |list: &'_ [ReductionTime]| list.iter().collect::<Vec<_>>().len();
        assert!(refs(&base) > 0);
        crossover(
            &base.iter().collect::<Vec<_>>(),
            &own.iter().collect::<Vec<_>>(),
            "x",
        )
        .unwrap()
    }

    #[test]
    fn a_crossing_is_between_measured_sizes() {
        let base = [(256, 24.6), (32_768, 24.5), (65_536, 24.1), (262_144, 28.0)];
        let own = [(256, 7.5), (32_768, 16.5), (65_536, 25.9), (262_144, 73.6)];
        assert!(cross(&base, &own).starts_with("x is faster than NCCL from 256 to 32,768 bytes"));
        assert!(cross(&own, &base).contains("from 65,536 to 262,144 bytes"));
        assert!(cross(&base, &base).contains("at no size"));
        let odd = [(256, 7.5), (32_768, 30.0), (65_536, 1.0), (262_144, 73.6)];
        assert!(cross(&base, &odd).contains("2 of 4 sizes, without one crossing"));
    }

    #[test]
    fn a_forward_pass_gains_what_its_reductions_gain() {
        assert!((per_forward_us(157, 50.0, 20.0) - 4710.0).abs() < 1e-9);
        assert!(per_forward_us(157, 20.0, 50.0) < 0.0);
    }
}
