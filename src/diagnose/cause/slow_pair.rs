//! A pair whose bytes are right and late: far slower than other pairs of its path, or slower directly than through the host.
//! Only rates measured alone count, and a pair of a GPU whose link is narrow is left to `link-downtrained`.

use super::super::{
    evidence::Evidence,
    weigh::{Cause, requalify},
};
use crate::{
    model::{
        case::{Rung, STAGED},
        finding::{Confidence, Finding, Judgement, Severity},
        measurement::Unit,
        pair::{GpuIndex, OrderedPair},
        topology::PathType,
    },
    stats::median,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "slow-pair",
    title: "a pair is slower than its path should be",
    judge,
    wants: None,
};

/// A rate below this share of that of its like is a finding: noise and NUMA distance stay above it.
const SHARE: f64 = 0.5;

/// A rate of one pair, mechanism and size, in GB/s.
struct Rate<'a> {
    pair: OrderedPair,
    mechanism: &'a str,
    bytes: u64,
    rung: Rung,
    median: f64,
    best: f64,
    /// One of the two GPUs has a link with fewer lanes than it could have.
    narrow: bool,
    /// What joins the two, where it is known: PCIe path and NVLinks.
    path: Option<(PathType, u32)>,
}

/// Rates of one mechanism and size.
type Like<'a> = BTreeMap<(&'a str, u64), Alike<'a>>;

#[derive(Default)]
struct Alike<'a> {
    /// Of the copies through the host, the first of each pair.
    staged: BTreeMap<OrderedPair, &'a Rate<'a>>,
    /// Of pairs whose links are not narrow: medians by path, ascending, with the pair that each is of.
    by_path: BTreeMap<(PathType, u32), Vec<(f64, OrderedPair)>>,
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let rates = rates(e);
    if rates.is_empty() {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "no rate of a pair was measured alone",
        )];
    }
    let mut slow: BTreeMap<OrderedPair, Vec<String>> = BTreeMap::new();
    let mut mechanisms: BTreeSet<&str> = BTreeSet::new();
    let mut like: Like = BTreeMap::new();
    for rate in &rates {
        let alike = like.entry((rate.mechanism, rate.bytes)).or_default();
        if rate.mechanism == STAGED {
            alike.staged.entry(rate.pair).or_insert(rate);
        }
        if let Some(path) = rate.path.filter(|_| !rate.narrow) {
            let medians = alike.by_path.entry(path).or_default();
            medians.push((rate.median, rate.pair));
        }
    }
    let medians = like
        .values_mut()
        .flat_map(|alike| alike.by_path.values_mut());
    medians.for_each(|medians| medians.sort_by(|a, b| a.0.total_cmp(&b.0)));
    for rate in rates.iter().filter(|r| !r.narrow) {
        if let Some(line) = beside_its_like(rate, &like).or_else(|| beside_staged(rate, &like)) {
            slow.entry(rate.pair).or_default().push(line);
            mechanisms.insert(rate.mechanism);
        }
    }
    let Some(first) = slow.keys().next() else {
        return vec![match rates.iter().any(|rate| rate.mechanism != STAGED) {
            true => CAUSE.says(
                Judgement::Cleared,
                "no pair is far slower than others of its path, or slower directly than through the host",
            ),
            false => CAUSE.says(
                Judgement::NotApplicable,
                "through the host no pair is far slower than others of its path; no direct rate was taken",
            ),
        }];
    };
    let mut again = vec![STAGED];
    again.extend(mechanisms.iter().copied().filter(|m| *m != STAGED));
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        Confidence::Probable,
        format!(
            "{} ordered {}, first {first}: the content was right in every timed copy, and the rate was not",
            slow.len(),
            if slow.len() == 1 { "pair" } else { "pairs" }
        ),
    );
    finding.next_test = Some(requalify(&[*first], &again));
    finding.fix = vec![
        "test the pair again by itself with nothing else on the host; if it stays slow, compare width and speed of every link on its path ('peerproof map') and the replay and AER counters".to_string(),
        "direct slower than through the host: the path redirects or retries; look at ACS and the IOMMU, and keep NCCL off the pair with NCCL_P2P_LEVEL until it is settled".to_string(),
    ];
    finding.pairs = slow.keys().copied().collect();
    finding.evidence = slow.into_values().flatten().collect();
    vec![finding]
}

fn rates<'a>(e: &Evidence<'a>) -> Vec<Rate<'a>> {
    let path = |p: OrderedPair| {
        let path = e.snapshot.topology.pairs.get(p)?;
        Some((path.pcie?, path.nvlinks))
    };
    let mut known = BTreeMap::new();
    e.timed()
        .filter(|r| r.alone && r.case.load.is_none() && r.outcome.is_intact())
        .filter_map(|r| {
            let pair = r.case.subject.pair()?;
            let rate = r.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
            let (narrow, path) = *known
                .entry(pair)
                .or_insert_with(|| (narrow(e, pair), path(pair)));
            Some(Rate {
                pair,
                mechanism: &r.case.mechanism,
                bytes: r.case.bytes,
                rung: r.case.rung,
                median: median(&rate.samples)?,
                best: rate.samples.iter().copied().fold(0.0, f64::max),
                narrow,
                path,
            })
        })
        .collect()
}

fn narrow(e: &Evidence, pair: OrderedPair) -> bool {
    [pair.source, pair.destination].iter().any(|g: &GpuIndex| {
        let links = e
            .snapshot
            .gpu(*g)
            .and_then(|gpu| Some((gpu.link_now.known()?, gpu.link_max.known()?)));
        links.is_some_and(|(now, max)| now.width < max.width)
    })
}

/// Against other pairs of the same path; with two GPUs that is the other direction.
fn beside_its_like(rate: &Rate, like: &Like) -> Option<String> {
    let own = rate.path?;
    let alike = like.get(&(rate.mechanism, rate.bytes))?;
    let all = alike.by_path.get(&own)?;
    // The middle of the others is at most the one past the middle of all: most rates need no closer look.
    let most = all.get(all.len() / 2 + 1).or(all.last())?.0;
    if rate.median >= SHARE * most {
        return None;
    }
    let others: Vec<f64> = all
        .iter()
        .filter(|(_, pair)| *pair != rate.pair)
        .map(|(median, _)| *median)
        .collect();
    let like = median(&others)?;
    // Not even its best sample comes near: a median that a busy host pulled down is no finding.
    (rate.median < SHARE * like && rate.best < like).then(|| {
        format!(
            "{} {}: this pair {:.2} GB/s; median of {} of path {}: {:.2} GB/s ({} bytes, each pair timed alone)",
            rate.pair,
            rate.mechanism,
            rate.median,
            match others.len() {
                1 => "the 1 other pair".to_string(),
                n => format!("the {n} other pairs"),
            },
            own.0,
            like,
            rate.bytes
        )
    })
}

/// A direct copy against the driver's own copy of the same bytes through the host.
fn beside_staged(rate: &Rate, like: &Like) -> Option<String> {
    if rate.rung != Rung::Copied {
        return None;
    }
    let staged = like.get(&(STAGED, rate.bytes))?.staged.get(&rate.pair)?;
    (rate.best < staged.median).then(|| {
        format!(
            "{} {}: this pair directly {:.2} GB/s, through the host (staged) {:.2} GB/s ({} bytes, both timed alone)",
            rate.pair, rate.mechanism, rate.median, staged.median, rate.bytes
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::{measurement::Measurement, pci::PcieLink, reading::Reading};

    /// All rates 50 GB/s, staged ones 20; the chosen ones as given.
    fn timed(count: u32, chosen: &[(OrderedPair, &str, f64)]) -> Host {
        let mut host = Host::root_complex(count);
        host.all_intact();
        for record in &mut host.records {
            let usual = if record.case.rung == Rung::Staged {
                20.0
            } else {
                50.0
            };
            let own = chosen.iter().find(|(p, m, _)| {
                record.case.subject.pair() == Some(*p) && record.case.mechanism == *m
            });
            let rate = own.map_or(usual, |(_, _, rate)| *rate);
            record.rate = Some(Measurement {
                samples: vec![rate * 0.98, rate, rate * 1.02],
                unit: Unit::GbPerS,
                warmup: 1,
                method: String::new(),
                caveats: Vec::new(),
            });
        }
        host
    }

    #[test]
    fn far_below_its_like_is_a_warning_with_numbers() {
        for count in [2, 8] {
            let host = timed(count, &[(pair(0, 1), "sm-store", 20.0)]);
            let found = host.judge(judge);
            assert_eq!(found[0].severity, Severity::Warning);
            assert_eq!(found[0].confidence, Confidence::Probable);
            assert_eq!(found[0].pairs, [pair(0, 1)]);
            assert!(
                found[0].evidence[0].contains("20.00 GB/s")
                    && found[0].evidence[0].contains("50.00 GB/s"),
                "{:?}",
                found[0].evidence
            );
            assert!(found[0].because.contains("the content was right"));
            assert_eq!(
                found[0].next_test.as_deref(),
                Some("peerproof qualify --pairs '0->1' --mechanism memory,staged,sm-store")
            );
        }
    }

    #[test]
    fn direct_below_staged_is_a_warning_even_where_all_pairs_are() {
        let all = [(pair(0, 1), "ce-push", 15.0), (pair(1, 0), "ce-push", 15.0)];
        let found = timed(2, &all).judge(judge);
        assert_eq!(found[0].pairs, [pair(0, 1), pair(1, 0)]);
        assert!(found[0].evidence[0].contains("through the host (staged) 20.00 GB/s"));
    }

    #[test]
    fn usual_rates_narrow_links_and_hosts_without_rates_are_left_alone() {
        let usual = timed(4, &[(pair(2, 3), "ce-pull", 30.0)]);
        assert_eq!(usual.judge(judge)[0].judgement, Judgement::Cleared);
        let mut narrow = timed(2, &[(pair(0, 1), "ce-push", 5.0)]);
        narrow.snapshot.gpus[0].link_now = Reading::Known(PcieLink {
            speed_gts: 32.0,
            width: 4,
        });
        assert_eq!(narrow.judge(judge)[0].judgement, Judgement::Cleared);
        let mut untimed = Host::root_complex(2);
        untimed.all_intact();
        assert_eq!(untimed.judge(judge)[0].judgement, Judgement::NotApplicable);
    }
}
