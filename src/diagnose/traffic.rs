//! What timed transfers tell: what the links should carry, what single flows promised, doubts, and a verdict. Pure: the same
//! answer from a live run and from a saved report. A rate above what its link can carry is a symptom, not a success.

use crate::{
    model::{
        case::Outcome,
        finding::Severity,
        measurement::Unit,
        pair::{GpuIndex, OrderedPair},
        pci::PcieLink,
        report::{Grading, Verdict},
        snapshot::{Observation, Snapshot},
        traffic::{Band, Caveat, Executor, Expectation, Place, Shape, Streams, Traffic, Way},
    },
    profile::{Asked, Between, Directions, HostClass, LinkKind, Mover, NvlinkRate, expected},
    stats,
};
use std::collections::BTreeMap;

/// Of NVLink's raw rate, which NVML prints, this is left for packets (facts: data.md 6.2: 25 of 26.5625).
const NVLINK_USABLE: f64 = 16.0 / 17.0;
/// Above the ceiling by this factor is more than events can be wrong by.
const ABOVE: f64 = 1.02;
/// Samples that are too few to say something of their spread.
const FEW_SAMPLES: usize = 5;
/// A spread above this share of the median is a doubt.
const WIDE_SPREAD: f64 = 0.2;
/// A clock that moved by more than this share has changed.
const CLOCK_MOVED: f64 = 0.02;

/// Fills in all that follows from the samples: promises, expectations, doubts. What an earlier call filled in is replaced.
pub fn derive(
    snapshot: &Snapshot,
    observations: &[Observation],
    traffic: &mut [Traffic],
    classes: &[HostClass],
    nvlinks: &[NvlinkRate],
) {
    let host = HostFacts {
        snapshot,
        observations,
        classes,
        nvlinks,
    };
    let singles = singles(traffic);
    for case in traffic {
        case.promised = promised(case, &singles);
        case.expected = host.expectation(case);
        case.caveats
            .retain(|c| matches!(c, Caveat::GateExpired { .. } | Caveat::HostIncluded));
        if case.outcome.is_intact() {
            doubts_of_samples(case);
            host.doubts(case);
        }
    }
}

type Flow = (Executor, Way, Place, Place, u64);

/// Medians of single flows by what they are.
fn singles(traffic: &[Traffic]) -> BTreeMap<Flow, f64> {
    let alone = traffic.iter().filter(|case| {
        case.shape == Shape::OneWay
            && case.streams == Streams::NonBlocking
            && case.unit == Unit::GbPerS
    });
    let known = alone.filter_map(|case| {
        let flow = case.flows.first()?;
        let key = (
            case.executor,
            case.way,
            flow.source,
            flow.destination,
            case.bytes,
        );
        Some((key, stats::median(&case.whole)?))
    });
    known.collect()
}

/// What single flows promise for flows at once: their sum, where no GPU sends or takes more than its best single flow does.
/// What is missing to it was lost between the links of the GPUs.
fn promised(case: &Traffic, singles: &BTreeMap<Flow, f64>) -> Option<f64> {
    if !case.shape.is_concurrent() {
        return None;
    }
    let alone = |source: Place, destination: Place| {
        // Between GPU and host the GPU works, whatever way the case is written down as.
        let ways = match (source, destination) {
            (Place::Host, _) => Way::Pull,
            (_, Place::Host) => Way::Push,
            _ => case.way,
        };
        singles.get(&(case.executor, ways, source, destination, case.bytes))
    };
    let (mut out, mut into) = (BTreeMap::new(), BTreeMap::new());
    for flow in &case.flows {
        let rate = *alone(flow.source, flow.destination)?;
        for (ends, end) in [(&mut out, flow.source), (&mut into, flow.destination)] {
            let (sum, best) = ends.entry(end).or_insert((0.0_f64, 0.0_f64));
            *sum += rate;
            *best = best.max(rate);
        }
    }
    let all = |ends: &BTreeMap<Place, (f64, f64)>| -> f64 {
        let each = ends.iter().map(|(end, (sum, best))| match end {
            Place::Host => *sum,
            Place::Gpu(_) => sum.min(*best),
        });
        each.sum()
    };
    Some(all(&out).min(all(&into)) / f64::from(case.receivers()))
}

fn doubts_of_samples(case: &mut Traffic) {
    let samples = &case.whole;
    let mut doubts = Vec::new();
    if samples.len() < FEW_SAMPLES {
        doubts.push(Caveat::FewSamples {
            samples: samples.len() as u32,
        });
    }
    if let Some(wide) = stats::spread(samples).filter(|spread| *spread > WIDE_SPREAD) {
        doubts.push(Caveat::WideSpread {
            percent: wide * 100.0,
        });
        let far = stats::outliers(samples);
        if !far.is_empty() {
            doubts.push(Caveat::Outliers {
                samples: far.len() as u32,
                first: far.contains(&0),
            });
        }
    }
    case.caveats.append(&mut doubts);
}

struct HostFacts<'a> {
    snapshot: &'a Snapshot,
    observations: &'a [Observation],
    classes: &'a [HostClass],
    nvlinks: &'a [NvlinkRate],
}

impl HostFacts<'_> {
    /// Links of a GPU in the moments under load, in order.
    fn links(&self, gpu: u32) -> Vec<PcieLink> {
        let loaded = self
            .observations
            .iter()
            .filter(|o| o.moment.contains("under load"));
        loaded
            .filter_map(|o| o.gpus.get(gpu as usize)?.link.known().copied())
            .collect()
    }

    /// The best link seen under load: one may be caught while it is still training up.
    fn link(&self, gpu: u32) -> Option<PcieLink> {
        let links = self.links(gpu).into_iter();
        links.max_by(|a, b| a.ceiling_gb_per_s().total_cmp(&b.ceiling_gb_per_s()))
    }

    /// GB/s of one NVLink of a GPU: as printed, or by its version.
    fn per_link(&self, gpu: u32) -> Option<f64> {
        let links = self.snapshot.gpu(GpuIndex(gpu))?.nvlinks.known()?;
        let active = links.iter().find(|link| link.active)?;
        let printed = active.raw_gb_per_s.map(|raw| raw * NVLINK_USABLE);
        printed.or_else(|| {
            let version = active.version?;
            let known = self.nvlinks.iter().find(|rate| rate.version == version);
            known.map(|rate| rate.gb_per_s)
        })
    }

    /// What the links of a case should carry, where a class says something of it.
    fn expectation(&self, case: &Traffic) -> Option<Expectation> {
        let directions = match case.shape {
            Shape::OneWay => Directions::OneWay,
            Shape::BothDirections => Directions::BothDirections,
            _ => return None,
        };
        let executor = match case.executor {
            Executor::CopyEngine => Mover::CopyEngine,
            Executor::Multiprocessors => Mover::Multiprocessors,
            Executor::Staged => return None,
        };
        if case.streams != Streams::NonBlocking {
            return None;
        }
        let measured = stats::median(&case.whole)?;
        let flow = case.flows.first()?;
        let (one_way, link, between, over, path) = match flow.pair() {
            Some(pair) => self.peer_link(pair)?,
            None => {
                let gpu = flow.source.gpu().or(flow.destination.gpu())?;
                let link = self.link(gpu)?;
                let words = format!("{} of GPU{gpu} under load", words(link));
                let ceiling = link.ceiling_gb_per_s();
                (ceiling, words, Between::Host, LinkKind::Pcie, None)
            }
        };
        let asked = Asked {
            cpu_model: self.snapshot.host.cpu_model.known().map(String::as_str),
            fabric: self.snapshot.topology.class,
            between,
            over,
            path,
            flows: directions,
            executor,
            bytes: case.bytes,
        };
        let (class, rate) = expected(self.classes, &asked)?;
        let ceiling = one_way
            * match directions {
                Directions::OneWay => 1.0,
                Directions::BothDirections => 2.0,
            };
        let (warn, fail) = (rate.warn_below * ceiling, rate.fail_below * ceiling);
        let band = match measured {
            rate if rate > ceiling * ABOVE => Band::Above,
            rate if rate < fail => Band::Fail,
            rate if rate < warn => Band::Warn,
            _ => Band::Usual,
        };
        Some(Expectation {
            ceiling,
            typical: rate.typical * ceiling,
            warn_below: warn,
            fail_below: fail,
            link,
            class: class.id.clone(),
            source: rate.source.clone(),
            band,
        })
    }

    /// Ceiling of one direction between two GPUs, and what it follows from.
    #[allow(clippy::type_complexity, reason = "five facts of one link, used once")]
    fn peer_link(
        &self,
        pair: OrderedPair,
    ) -> Option<(
        f64,
        String,
        Between,
        LinkKind,
        Option<crate::model::topology::PathType>,
    )> {
        let path = self.snapshot.topology.pairs.get(pair)?;
        if path.nvlinks > 0 {
            let one = self.per_link(pair.source.0)?;
            let words = format!("{} NVLinks of {one:.1} GB/s", path.nvlinks);
            let ceiling = one * f64::from(path.nvlinks);
            return Some((ceiling, words, Between::Peers, LinkKind::Nvlink, None));
        }
        // Without a path the PCIe picture says nothing: the flat tree of a virtual machine.
        let kind = path.pcie?;
        let ends = [pair.source.0, pair.destination.0].map(|gpu| self.link(gpu));
        let [Some(source), Some(destination)] = ends else {
            return None;
        };
        let weaker = match source.ceiling_gb_per_s() <= destination.ceiling_gb_per_s() {
            true => source,
            false => destination,
        };
        let words = format!("{} at the weaker end under load, {kind}", words(weaker));
        let ceiling = weaker.ceiling_gb_per_s();
        Some((ceiling, words, Between::Peers, LinkKind::Pcie, Some(kind)))
    }

    /// Doubts that follow from what the observer saw.
    fn doubts(&self, case: &mut Traffic) {
        let loaded = self
            .observations
            .iter()
            .filter(|o| o.moment.contains("under load"));
        let loaded: Vec<&Observation> = loaded.collect();
        for gpu in case.gpus() {
            let seen: Vec<_> = loaded
                .iter()
                .filter_map(|o| o.gpus.get(gpu as usize))
                .collect();
            let links = self.links(gpu);
            match (links.first(), links.last()) {
                (Some(before), Some(after)) if before != after => {
                    case.caveats.push(Caveat::LinkChanged {
                        gpu,
                        before: words(*before),
                        after: words(*after),
                    });
                }
                (None, _) if case.flows.iter().any(|flow| flow.pair().is_none()) => {
                    case.caveats.push(Caveat::LinkUnread { gpu });
                }
                _ => {}
            }
            let ends = seen.first().zip(seen.last());
            let clocks = ends.and_then(|(first, last)| {
                let moved = |before: &u32, after: &u32| {
                    f64::from(before.abs_diff(*after)) > CLOCK_MOVED * f64::from(*before)
                };
                let memory = (
                    first.memory_clock_mhz.known(),
                    last.memory_clock_mhz.known(),
                );
                let cores = (first.sm_clock_mhz.known(), last.sm_clock_mhz.known());
                [memory, cores].into_iter().find_map(|pair| match pair {
                    (Some(before), Some(after)) if moved(before, after) => Some((*before, *after)),
                    _ => None,
                })
            });
            if let Some((before_mhz, after_mhz)) = clocks {
                case.caveats.push(Caveat::ClockChanged {
                    gpu,
                    before_mhz,
                    after_mhz,
                });
            }
            let foreign = seen.iter().filter_map(|s| s.foreign_processes.known());
            if let Some(processes) = foreign.map(Vec::len).max().filter(|n| *n > 0) {
                case.caveats.push(Caveat::OtherProcesses {
                    gpu,
                    processes: processes as u32,
                });
            }
        }
    }
}

fn words(link: PcieLink) -> String {
    match link.generation() {
        Some(generation) => format!("Gen{generation} x{}", link.width),
        None => format!("{} GT/s x{}", link.speed_gts, link.width),
    }
}

/// What counts against the host, worst first.
fn worst(traffic: &[Traffic]) -> Option<(Severity, &Traffic, String)> {
    let failed = traffic.iter().find(|case| case.outcome.is_failure());
    if let Some(case) = failed {
        let detail = match case.outcome.corruption() {
            Some(corruption) => format!("{}: {}", corruption.kind, corruption.detail),
            None => case.outcome.word().to_string(),
        };
        return Some((Severity::Critical, case, detail));
    }
    let banded = |band: Band| {
        let found = traffic.iter().filter_map(|case| {
            let expected = case.expected.as_ref().filter(|e| e.band == band)?;
            Some((case, expected, stats::median(&case.whole)?))
        });
        found.min_by(|a, b| {
            let share = |x: &(&Traffic, &Expectation, f64)| x.2 / x.1.typical;
            share(a).total_cmp(&share(b))
        })
    };
    for (band, severity) in [
        (Band::Fail, Severity::Critical),
        (Band::Above, Severity::Warning),
        (Band::Warn, Severity::Warning),
    ] {
        if let Some((case, expected, rate)) = banded(band) {
            let limit = match band {
                Band::Above => format!(
                    "more than the {:.1} that the link carries",
                    expected.ceiling
                ),
                Band::Fail => format!("below {:.1}", expected.fail_below),
                _ => format!("below {:.1}", expected.warn_below),
            };
            let detail = format!("{rate:.1} GB/s, {limit} ({})", expected.link);
            return Some((severity, case, detail));
        }
    }
    let refused = traffic
        .iter()
        .find(|case| matches!(case.outcome, Outcome::Refused { .. }));
    refused.map(|case| (Severity::Warning, case, "refused by the driver".to_string()))
}

/// Three lines on a run that only measured.
pub fn verdict(traffic: &[Traffic], interrupted: bool) -> Verdict {
    let ran = traffic
        .iter()
        .filter(|case| case.outcome.is_intact())
        .count();
    let gaps = traffic
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::NotRun { .. }));
    let gaps = gaps.count();
    let judged = traffic
        .iter()
        .filter(|case| case.expected.is_some())
        .count();
    let bad = worst(traffic);
    let grading = match &bad {
        Some((Severity::Critical, ..)) => Grading::Fail,
        _ if ran == 0 || gaps > 0 || interrupted => Grading::Inconclusive,
        Some(_) => Grading::Warn,
        None => Grading::Pass,
    };
    let (headline, worst_pair) = match &bad {
        Some((_, case, detail)) => (
            format!(
                "{} {} {} by {}: {detail}",
                case.subject(),
                case.shape.words(),
                case.way.name(),
                case.executor.words()
            ),
            case.flows
                .first()
                .and_then(crate::model::traffic::Flow::pair),
        ),
        None if ran == 0 => ("nothing was measured".to_string(), None),
        None if judged == 0 => (
            format!(
                "{ran} transfers timed; nothing is expected of them: copies too small, or links not known"
            ),
            None,
        ),
        None => (
            format!("{ran} transfers timed; the {judged} of which something is expected meet it"),
            None,
        ),
    };
    let cause = match (&bad, gaps) {
        (Some((Severity::Critical, case, _)), _) if case.outcome.is_failure() => {
            "content or completion failed while a rate was taken: rates of this host mean nothing until that is settled".to_string()
        }
        (Some((_, case, _)), _)
            if case.expected.as_ref().is_some_and(|e| e.band == Band::Above) =>
        {
            "bytes that never arrive are fast: a rate above the link is a symptom of dropped writes or of a clock that lies".to_string()
        }
        (Some(_), _) => "slow is not wrong: content was right where it was looked at; link, switch or CPU limit the rate".to_string(),
        (None, 0) => "a rate proves no content: that is what 'peerproof qualify' is for".to_string(),
        (None, gaps) => {
            let first = traffic.iter().find_map(|case| match &case.outcome {
                Outcome::NotRun { reason } => Some(reason.as_str()),
                _ => None,
            });
            format!("{gaps} transfers did not run: {}", first.unwrap_or_default())
        }
    };
    let next = match grading {
        Grading::Pass => "peerproof qualify, if this host has not been tested yet".to_string(),
        _ if worst_pair.is_some() => {
            let pair = worst_pair.map_or(String::new(), |pair| format!(" --pairs '{pair}'"));
            format!("peerproof qualify{pair}")
        }
        _ => "peerproof qualify".to_string(),
    };
    Verdict {
        grading,
        headline,
        cause,
        next,
        worst_pair,
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair};
    use super::*;
    use crate::{
        model::{
            reading::Reading,
            snapshot::GpuObservation,
            traffic::{ComparedCell, Flow, OtherTable, OtherTool},
        },
        profile::Profiles,
    };

    fn case(shape: Shape, flows: &[(Place, Place)], rate: f64) -> Traffic {
        Traffic {
            shape,
            executor: Executor::CopyEngine,
            way: match flows[0].0 {
                Place::Host => Way::Pull,
                Place::Gpu(_) => Way::Push,
            },
            streams: Streams::NonBlocking,
            bytes: 64 << 20,
            copies: 4,
            flows: flows.iter().map(|(s, d)| Flow::new(*s, *d)).collect(),
            unit: Unit::GbPerS,
            whole: vec![rate; 5],
            warmup: 2,
            outcome: Outcome::Intact,
            caveats: Vec::new(),
            promised: None,
            expected: None,
        }
    }

    fn gpu(s: u32, d: u32) -> (Place, Place) {
        (Place::Gpu(s), Place::Gpu(d))
    }

    /// Root-complex host whose links were seen at Gen5 x16 under load.
    fn derived(traffic: &mut [Traffic]) {
        let host = Host::root_complex(4);
        let profiles = Profiles::embedded().unwrap();
        let seen = || GpuObservation {
            link: Reading::Known(PcieLink {
                speed_gts: 32.0,
                width: 16,
            }),
            ..GpuObservation::default()
        };
        let observation = Observation {
            moment: "under load: host to device on GPU0 GPU1 GPU2 GPU3, before measuring".into(),
            gpus: (0..4).map(|_| seen()).collect(),
            bridges: Vec::new(),
        };
        derive(
            &host.snapshot,
            &[observation],
            traffic,
            &profiles.hosts,
            &profiles.nvlinks,
        );
    }

    #[test]
    fn the_promise_counts_each_link_of_a_gpu_once() {
        let mut all: Vec<Traffic> = [(0, 1), (0, 2), (1, 0), (2, 0)]
            .iter()
            .map(|(s, d)| case(Shape::OneWay, &[gpu(*s, *d)], 50.0))
            .collect();
        all.push(case(Shape::OneToMany, &[gpu(0, 1), gpu(0, 2)], 49.0));
        all.push(case(Shape::BothDirections, &[gpu(0, 1), gpu(1, 0)], 50.0));
        all.push(case(Shape::AllGather, &[gpu(0, 1), gpu(1, 0)], 50.0));
        all.push(case(Shape::BothDirections, &[gpu(0, 3), gpu(3, 0)], 50.0));
        derived(&mut all);
        assert_eq!(all[4].promised, Some(50.0), "one link sends it all");
        assert_eq!(all[5].promised, Some(100.0));
        assert_eq!(all[6].promised, Some(50.0), "a receiver's share");
        assert_eq!(all[7].promised, None, "its single flows were not measured");
        assert_eq!(all[0].promised, None);
    }

    #[test]
    fn bands_follow_from_the_link_under_load() {
        let rate = |rate| {
            let mut one = [case(Shape::OneWay, &[(Place::Host, Place::Gpu(1))], rate)];
            derived(&mut one);
            let [one] = one;
            (one.expected.clone().unwrap().band, verdict(&[one], false))
        };
        let (band, said) = rate(55.0);
        assert_eq!((band, said.grading), (Band::Usual, Grading::Pass));
        let (band, said) = rate(40.0);
        assert_eq!((band, said.grading), (Band::Warn, Grading::Warn));
        let (band, said) = rate(13.0);
        assert_eq!((band, said.grading), (Band::Fail, Grading::Fail));
        assert!(
            said.headline.contains("Gen5 x16 of GPU1 under load"),
            "{}",
            said.headline
        );
        let (band, said) = rate(90.0);
        assert_eq!((band, said.grading), (Band::Above, Grading::Warn));
        assert!(said.cause.contains("symptom"), "{}", said.cause);
    }

    #[test]
    fn without_a_link_under_load_nothing_is_expected() {
        let mut one = [case(Shape::OneWay, &[(Place::Host, Place::Gpu(1))], 13.0)];
        let profiles = Profiles::embedded().unwrap();
        let host = Host::root_complex(2);
        derive(
            &host.snapshot,
            &[],
            &mut one,
            &profiles.hosts,
            &profiles.nvlinks,
        );
        assert_eq!(one[0].expected, None);
        assert_eq!(one[0].caveats, [Caveat::LinkUnread { gpu: 1 }]);
    }

    #[test]
    fn what_did_not_run_is_a_gap_and_wrong_content_a_failure() {
        let good = case(Shape::OneWay, &[gpu(0, 1)], 50.0);
        let mut gap = case(Shape::OneWay, &[gpu(1, 0)], 50.0);
        gap.outcome = Outcome::NotRun {
            reason: "left alone".into(),
        };
        let said = verdict(&[good.clone(), gap], false);
        assert_eq!(said.grading, Grading::Inconclusive);
        assert!(said.cause.contains("left alone"));
        let mut hung = case(Shape::OneWay, &[gpu(1, 0)], 50.0);
        hung.outcome = Outcome::TimedOut { after_ms: 5 };
        let said = verdict(&[good, hung], false);
        assert_eq!(
            (said.grading, said.worst_pair),
            (Grading::Fail, Some(pair(1, 0)))
        );
        assert_eq!(verdict(&[], false).grading, Grading::Inconclusive);
    }

    #[test]
    fn nvbandwidth_cells_are_read_by_what_its_tests_do() {
        let host = Host::root_complex(2);
        let mut pull = case(Shape::OneWay, &[gpu(1, 0)], 44.0);
        pull.way = Way::Pull;
        let ours = [
            case(Shape::OneWay, &[gpu(0, 1)], 50.0),
            pull,
            case(Shape::OneWay, &[(Place::Host, Place::Gpu(1))], 55.0),
        ];
        let table = |name: &str, rows: &[&[Option<f64>]]| OtherTable {
            name: name.into(),
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            missing: None,
        };
        let other = OtherTool {
            tool: "nvbandwidth v0.8".into(),
            devices: Vec::new(),
            tables: vec![
                table(
                    "device_to_device_memcpy_write_ce",
                    &[&[None, Some(40.0)], &[Some(41.0), None]],
                ),
                table(
                    "device_to_device_memcpy_read_ce",
                    &[&[None, Some(40.0)], &[None, None]],
                ),
                table("host_to_device_memcpy_ce", &[&[None, Some(50.0)]]),
                table("device_local_copy", &[&[Some(1.0), Some(1.0)]]),
            ],
        };
        let found = super::super::compare(&host.snapshot, &ours, &other);
        let of = |cell: &ComparedCell| (cell.subject.clone(), cell.theirs, cell.ours, cell.percent);
        let cells: Vec<_> = found.cells.iter().map(of).collect();
        assert_eq!(
            cells,
            [
                ("0->1".to_string(), 40.0, 50.0, 25.0),
                // Row 0 reads from column 1.
                ("1->0".to_string(), 40.0, 44.0, 10.0),
                ("host->1".to_string(), 50.0, 55.0, 10.0),
            ]
        );
        let left: String = found.left_out.join("\n");
        assert!(left.contains("1 of 2 cells"), "{left}");
        assert!(left.contains("device_local_copy"), "{left}");
        assert!(left.contains("PCI order"), "{left}");
    }
}
