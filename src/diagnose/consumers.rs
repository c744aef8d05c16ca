//! Who relies on peer transfers, and what each may rely on, for a group of GPUs and for the islands in it. Veto only: one
//! broken pair condemns the group, and what was not tested is unproven, never proven. What a consumer needs is data
//! (`profiles/consumers.toml`); what became of it is read from the records.

use super::evidence::{Evidence, PeerClaim};
use crate::{
    model::{
        case::{Outcome, Record, Rung, Subject},
        fared::Fared,
        finding::{Consumer, ConsumerState, IslandConsumer, Veto},
        group::Group,
        ladder::Step,
        pair::{GpuIndex, OrderedPair},
        reduction::MOST_RANKS,
        topology::Island,
    },
    profile::{ConsumerPath, ConsumerProfile, Need, Unused, embedded_consumers},
};
use std::collections::{BTreeMap, BTreeSet};

/// The consumers that peerproof knows, judged for `group`.
pub fn consumers(evidence: &Evidence, group: &[GpuIndex]) -> Vec<Consumer> {
    consumers_of(evidence, group, embedded_consumers())
}

/// Consumers as `kinds` describe them, judged for `group`.
pub fn consumers_of(
    evidence: &Evidence,
    group: &[GpuIndex],
    kinds: &[ConsumerProfile],
) -> Vec<Consumer> {
    let court = Court {
        e: evidence,
        condemned: evidence.condemned_gpus(),
        pairs: Fares::of(evidence, group),
        groups: evidence
            .subjects()
            .filter_map(|(subject, fared)| Some((subject.group()?, fared)))
            .collect(),
    };
    let islands = islands(evidence, group);
    let judged = kinds.iter().map(|kind| {
        let whole = court.judge(kind, group);
        let failed = matches!(
            whole.state,
            ConsumerState::Vetoed | ConsumerState::NotApplicable
        );
        let parts = islands.iter().filter(|_| failed).map(|island| {
            let part = court.judge(kind, &island.gpus);
            IslandConsumer {
                joined_by: island.joined_by.clone(),
                gpus: island.gpus.clone(),
                state: part.state,
                sentence: part.sentence,
            }
        });
        Consumer {
            id: kind.id.clone(),
            name: kind.name.clone(),
            needs: rungs_of(kind),
            state: whole.state,
            sentence: whole.sentence,
            reached: whole.reached,
            as_far_as_tested: whole.as_far_as_tested,
            vetoes: whole.vetoes,
            islands: parts
                .filter(|part| part.state != ConsumerState::NotApplicable)
                .collect(),
        }
    });
    judged.collect()
}

/// Rungs that a consumer needs, each once.
fn rungs_of(kind: &ConsumerProfile) -> Vec<Rung> {
    let mut rungs: Vec<Rung> = kind.needs.iter().map(|need| need.rung).collect();
    rungs.dedup();
    rungs
}

fn pairs_of(group: &[GpuIndex]) -> Vec<OrderedPair> {
    group
        .iter()
        .flat_map(|s| group.iter().map(move |d| (*s, *d)))
        .filter_map(|(s, d)| OrderedPair::new(s.0, d.0))
        .collect()
}

/// Parts of the group that the topology joins more tightly than the rest; each set of GPUs once, under its tightest name.
fn islands(e: &Evidence, group: &[GpuIndex]) -> Vec<Island> {
    let mut seen = BTreeSet::new();
    let all = e.snapshot.topology.islands.iter();
    all.map(|island| Island {
        joined_by: island.joined_by.clone(),
        gpus: island
            .gpus
            .iter()
            .copied()
            .filter(|g| group.contains(g))
            .collect(),
    })
    .filter(|island| island.gpus.len() > 1 && island.gpus.len() < group.len())
    .filter(|island| seen.insert(island.gpus.clone()))
    .collect()
}

/// What became of a mechanism on a pair, all sizes together; the worst counts.
#[derive(Debug, Clone, Copy)]
enum Fate<'a> {
    /// Nothing of it exists here, and why.
    Absent(&'a str),
    /// All that was planned was intact.
    Intact,
    /// Something of it did not run, and why.
    NotRun(&'a str),
    /// The driver said no.
    Refused(&'a Record),
    /// Wrong data, fault, hang or death.
    Failed(&'a Record),
}

impl Fate<'_> {
    fn weight(self) -> u8 {
        match self {
            Fate::Absent(_) => 0,
            Fate::Intact => 1,
            Fate::NotRun(_) => 2,
            Fate::Refused(_) => 3,
            Fate::Failed(r) if r.outcome.corruption().is_none() => 4,
            // Wrong data seen once outranks all else.
            Fate::Failed(_) => 5,
        }
    }
}

/// What became of it.
fn fate<'a>(fared: &Fared<'a>) -> Fate<'a> {
    if let Some(record) = fared.failure() {
        Fate::Failed(record)
    } else if let Some(record) = fared.refused {
        Fate::Refused(record)
    } else if let Some(reason) = fared.open {
        Fate::NotRun(reason)
    } else if fared.answers.intact() {
        Fate::Intact
    } else {
        Fate::Absent(fared.absent.unwrap_or_default())
    }
}

/// How the pairs of a group fared. On most hosts most pairs fared alike, and what is asked of one holds for all of its
/// kind, so that each question costs what the kinds cost.
struct Fares<'e, 'a> {
    rows: BTreeMap<OrderedPair, Fare<'e, 'a>>,
}

/// How one pair fared.
struct Fare<'e, 'a> {
    rows: &'e [Fared<'a>],
    /// Pairs with the same number have the same mechanisms with the same fates; reasons and records are their own.
    kind: usize,
    /// Something of it failed.
    failed: bool,
    /// The driver offers no peer access, or refused it.
    no_peer_access: bool,
}

impl<'e, 'a> Fares<'e, 'a> {
    fn of(e: &'e Evidence<'a>, group: &[GpuIndex]) -> Self {
        let mut kinds: BTreeMap<Vec<(&str, Rung, u8)>, usize> = BTreeMap::new();
        let rows = pairs_of(group).into_iter().map(|pair| {
            let rows = e.pair_fared(pair);
            let alike = rows.iter();
            let alike = alike.map(|row| (row.mechanism, row.rung, fate(row).weight()));
            let next = kinds.len();
            let kind = *kinds.entry(alike.collect()).or_insert(next);
            let fare = Fare {
                kind,
                failed: rows.iter().any(|row| row.answers.failed()),
                no_peer_access: no_peer_access(e, pair, rows),
                rows,
            };
            (pair, fare)
        });
        Fares {
            rows: rows.collect(),
        }
    }

    fn of_pair(&self, pair: OrderedPair) -> &[Fared<'a>] {
        self.rows.get(&pair).map_or(&[], |fare| fare.rows)
    }

    /// Of each kind among `pairs` the smallest pair.
    fn one_of_each(&self, pairs: &[OrderedPair]) -> BTreeSet<OrderedPair> {
        let mut smallest: BTreeMap<Option<usize>, OrderedPair> = BTreeMap::new();
        for pair in pairs {
            let kind = self.rows.get(pair).map(|fare| fare.kind);
            let known = smallest.entry(kind).or_insert(*pair);
            *known = (*known).min(*pair);
        }
        smallest.into_values().collect()
    }
}

/// The driver offers no peer access to a pair that fared so, or refused it.
fn no_peer_access(e: &Evidence, pair: OrderedPair, rows: &[Fared]) -> bool {
    let direct = |row: &&Fared| {
        matches!(row.rung, Rung::Copied | Rung::Touched) && !row.mechanism.starts_with("pool-")
    };
    let direct = || rows.iter().filter(direct);
    let mut copied = direct().filter(|row| row.rung == Rung::Copied).peekable();
    matches!(e.claim(pair), PeerClaim::Refused(_))
        || direct().any(|row| matches!(fate(row), Fate::Refused(_)))
        || (copied.peek().is_some() && copied.all(|row| matches!(fate(row), Fate::Absent(_))))
}

/// Why a need is not proven on a pair; the later ones say more.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Gap {
    /// The version that ran does not test it.
    Version,
    /// Does not exist here, and why.
    Absent(String),
    /// Refused: mechanism and the driver's answer.
    Refused(String, String),
    /// Was not chosen, or the run ended before it: the mechanisms; none named when nothing of the need was tried.
    Untested(Vec<String>),
    /// Did not run: mechanism and why.
    NotRun(String, String),
}

impl Gap {
    fn weight(&self) -> u8 {
        match self {
            Gap::Version => 0,
            Gap::Absent(_) => 1,
            Gap::Refused(..) => 2,
            Gap::Untested(_) => 3,
            Gap::NotRun(..) => 4,
        }
    }

    /// Puts itself into `worst` when it says more; of equals the first stays.
    fn into_worst(self, worst: &mut Option<Gap>) {
        if worst.as_ref().is_none_or(|w| w.weight() < self.weight()) {
            *worst = Some(self);
        }
    }
}

struct Judged {
    state: ConsumerState,
    sentence: String,
    reached: Option<Rung>,
    as_far_as_tested: bool,
    vetoes: Vec<Veto>,
}

impl Judged {
    fn plainly(state: ConsumerState, sentence: impl Into<String>) -> Judged {
        Judged {
            state,
            sentence: sentence.into(),
            reached: None,
            as_far_as_tested: false,
            vetoes: Vec::new(),
        }
    }
}

struct Court<'e, 'a> {
    e: &'e Evidence<'a>,
    condemned: &'e BTreeSet<GpuIndex>,
    pairs: Fares<'e, 'a>,
    /// All groups of which anything was asked.
    groups: BTreeMap<Group, &'e [Fared<'a>]>,
}

impl<'a> Court<'_, 'a> {
    fn judge(&self, kind: &ConsumerProfile, group: &[GpuIndex]) -> Judged {
        let pairs = pairs_of(group);
        if pairs.is_empty() {
            return Judged::plainly(
                ConsumerState::NotApplicable,
                "does not exist with fewer than two GPUs",
            );
        }
        if let Some(gpu) = self.condemned.iter().find(|g| group.contains(g)) {
            return Judged::plainly(
                ConsumerState::Vetoed,
                format!("vetoed by GPU{gpu}, which fails by itself"),
            );
        }
        let vetoes = self.vetoes(kind, group, &pairs);
        if let Some(first) = vetoes.first() {
            let sentence = veto_words(first, vetoes.len() - 1);
            return Judged {
                vetoes,
                ..Judged::plainly(ConsumerState::Vetoed, sentence)
            };
        }
        let fare = |pair: &OrderedPair| self.pairs.rows.get(pair);
        let without = pairs
            .iter()
            .copied()
            .find(|p| fare(p).is_some_and(|fare| fare.no_peer_access));
        match (without, kind.path) {
            (Some(pair), ConsumerPath::Direct) if self.e.claim(pair) == PeerClaim::Ok => {
                return Judged::plainly(
                    ConsumerState::Unproven,
                    format!(
                        "unproven because peer access was refused on pair {pair}, which the driver advertises"
                    ),
                );
            }
            (Some(pair), ConsumerPath::Direct) => {
                return Judged::plainly(
                    ConsumerState::NotApplicable,
                    format!("does not exist here: no peer access on pair {pair}"),
                );
            }
            (Some(_), ConsumerPath::Either) => {
                let mut judged = self.prove(&kind.without_peer_access, group, &pairs);
                judged.sentence.push_str(" (copies go through the host)");
                return judged;
            }
            _ => {}
        }
        if let Some(reason) = kind
            .unused
            .iter()
            .find(|u| self.holds(u, group, &pairs))
            .map(|u| u.because.as_str())
        {
            return Judged::plainly(ConsumerState::NotApplicable, reason);
        }
        self.prove(&kind.needs, group, &pairs)
    }

    /// Failures of what the consumer needs, the lowest rung first, each pair and each group of GPUs once. A group that
    /// reaches beyond this one says nothing of it.
    fn vetoes(
        &self,
        kind: &ConsumerProfile,
        group: &[GpuIndex],
        pairs: &[OrderedPair],
    ) -> Vec<Veto> {
        let needed = |row: &Fared| {
            kind.needs.iter().any(|need| {
                if need.one_of.is_empty() {
                    row.rung == need.rung
                } else {
                    let quiet = row.rung == need.rung || row.rung == Rung::Loaded;
                    need.one_of
                        .iter()
                        .flatten()
                        .any(|pattern| fits(pattern, row.mechanism) && (quiet || !is_wild(pattern)))
                }
            })
        };
        // The place of the worst row.
        let worst = |rows: &[Fared<'a>]| -> Option<usize> {
            let failed = rows
                .iter()
                .enumerate()
                .filter(|(_, row)| row.answers.failed());
            let needed = failed.filter(|(_, row)| needed(row));
            needed.min_by_key(|(_, row)| row.rung).map(|(at, _)| at)
        };
        // It is the same one on all pairs of a kind.
        let mut of_kinds: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        let of_pairs = pairs
            .iter()
            .filter_map(|pair| self.pairs.rows.get(pair).filter(|fare| fare.failed))
            .filter_map(|fare| {
                let at = of_kinds.entry(fare.kind);
                let at = *at.or_insert_with(|| worst(fare.rows));
                fare.rows[at?].failure()
            });
        let inside = self
            .groups
            .iter()
            .filter(|(part, _)| part.gpus().all(|gpu| group.contains(&gpu)));
        let of_groups = inside.filter_map(|(_, rows)| rows[worst(rows)?].failure());
        let mut all: Vec<Veto> = of_pairs
            .chain(of_groups)
            .map(|worst| Veto {
                pair: worst.case.subject.pair(),
                group: worst.case.subject.group(),
                rung: worst.case.rung,
                mechanism: worst.case.mechanism.clone(),
                word: worst.outcome.word().to_string(),
            })
            .collect();
        all.sort_by_key(|veto| (veto.rung, veto.group, veto.pair));
        all
    }

    /// Whether engines leave the consumer off in such a group, whatever the proof.
    fn holds(&self, unused: &Unused, group: &[GpuIndex], pairs: &[OrderedPair]) -> bool {
        let links_known = || {
            pairs.iter().all(|p| {
                let path = self.e.snapshot.topology.pairs.get(*p);
                path.is_some_and(|path| path.nvlink_known)
            })
        };
        let full = pairs.iter().all(|p| self.e.has_nvlink(*p));
        let capability = |gpu: &GpuIndex| {
            let known = self.e.snapshot.gpu(*gpu)?.compute_capability.known();
            known.copied()
        };
        let fits_links = match unused.full_nvlink {
            None => true,
            Some(true) => full,
            Some(false) => !full && links_known(),
        };
        let others = &unused.compute_capability_other_than;
        let fits_capability = others.is_empty()
            || group
                .iter()
                .filter_map(capability)
                .any(|c| !others.contains(&c));
        fits_links
            && fits_capability
            && group.len() > unused.above
            && (unused.sizes_other_than.is_empty()
                || !unused.sizes_other_than.contains(&group.len()))
    }

    /// How far the needs are proven on all pairs.
    fn prove(&self, needs: &[Need], group: &[GpuIndex], pairs: &[OrderedPair]) -> Judged {
        let mut reached = None;
        let mut gaps: Vec<(Rung, Gap, Subject)> = Vec::new();
        // A gap weighs the same on all pairs of a kind, and of equals the smallest pair is named.
        let kinds = self.pairs.one_of_each(pairs);
        for need in needs {
            let worst = kinds
                .iter()
                .filter_map(|p| Some((self.gap(need, self.pairs.of_pair(*p))?, Subject::Pair(*p))))
                .chain(self.gap_together(need, group))
                .max_by_key(|(gap, subject)| (gap.weight(), std::cmp::Reverse(*subject)));
            match worst {
                None if gaps.is_empty() => reached = Some(need.rung),
                None => {}
                Some((gap, subject)) => gaps.push((need.rung, gap, subject)),
            }
        }
        let as_far = !gaps.is_empty() && gaps.iter().all(|(_, gap, _)| *gap == Gap::Version);
        let mut sentence = match (reached, gaps.is_empty()) {
            (Some(rung), true) => format!("proven up to {}", number(rung)),
            (Some(rung), false) if as_far => {
                format!("proven up to {}; {}", number(rung), words(&gaps))
            }
            (Some(rung), false) => format!(
                "unproven because {}; proven up to {}",
                words(&gaps),
                number(rung)
            ),
            (None, _) => format!("unproven because {}", words(&gaps)),
        };
        if (gaps.is_empty() || as_far) && self.loaded(needs, &kinds) {
            sentence.push_str("; right under load");
        }
        Judged {
            state: if gaps.is_empty() {
                ConsumerState::Proven
            } else {
                ConsumerState::Unproven
            },
            sentence,
            reached,
            as_far_as_tested: as_far && reached.is_some(),
            vetoes: Vec::new(),
        }
    }

    /// Whether the needed mechanisms that load was planned for were right under it on every pair, each of them.
    fn loaded(&self, needs: &[Need], pairs: &BTreeSet<OrderedPair>) -> bool {
        let needed = |mechanism: &str| {
            let patterns = needs.iter().flat_map(|n| n.one_of.iter().flatten());
            patterns.into_iter().any(|p| fits(p, mechanism))
        };
        pairs.iter().all(|p| {
            let rows = self.pairs.of_pair(*p).iter();
            let mut rows = rows
                .filter(|row| row.rung == Rung::Loaded && needed(row.mechanism))
                .filter(|row| !matches!(fate(row), Fate::Absent(_)))
                .peekable();
            rows.peek().is_some() && rows.all(|row| matches!(fate(row), Fate::Intact))
        })
    }

    /// Why a need of rung 6 is not proven on the group as a whole, beyond what its pairs say; a pair is its own group. The
    /// smallest group that was tried and holds all of this one speaks for it.
    fn gap_together(&self, need: &Need, group: &[GpuIndex]) -> Option<(Gap, Subject)> {
        let tested = |step: &Step| step.rung == Rung::Reduced;
        if need.rung != Rung::Reduced || group.len() < 3 || !self.e.ladder.iter().any(tested) {
            return None;
        }
        let whole = Subject::Group(Group::new(group.iter().map(|gpu| gpu.0))?);
        let holding = self
            .groups
            .iter()
            .filter(|(tried, _)| group.iter().all(|gpu| tried.touches(*gpu)));
        match holding.min_by_key(|(tried, _)| tried.count()) {
            Some((tried, rows)) => Some((self.gap(need, rows)?, Subject::Group(*tried))),
            None if group.len() > MOST_RANKS as usize => Some((Gap::Version, whole)),
            None => {
                let what = "the group as a whole".to_string();
                Some((Gap::Untested(vec![what]), whole))
            }
        }
    }

    /// Why `need` is not proven on a pair or group that fared so; `None` when it is.
    fn gap(&self, need: &Need, fared: &[Fared<'a>]) -> Option<Gap> {
        if need.one_of.is_empty() {
            return self.gap_of_set(need.rung, &["*".to_string()], fared).err();
        }
        let mut worst: Option<Gap> = None;
        for set in &need.one_of {
            match self.gap_of_set(need.rung, set, fared) {
                Ok(()) => return None,
                Err(gap) => gap.into_worst(&mut worst),
            }
        }
        worst
    }

    /// Whether a set of mechanisms is proven on a pair or group: each one that exists here ran and was intact, at least one
    /// did.
    fn gap_of_set(&self, rung: Rung, set: &[String], fared: &[Fared<'a>]) -> Result<(), Gap> {
        let rows: Vec<&Fared> = fared
            .iter()
            .filter(|row| row.rung != Rung::Loaded)
            .collect();
        let mut ids: Vec<&str> = Vec::new();
        for pattern in set {
            if is_wild(pattern) {
                let known = self.e.ladder.iter().map(|s| (s.mechanism.as_str(), s.rung));
                let seen = rows.iter().map(|row| (row.mechanism, row.rung));
                let here = known
                    .chain(seen)
                    .filter(|(id, at)| *at == rung && fits(pattern, id));
                ids.extend(here.map(|(id, _)| id));
            } else {
                ids.push(pattern);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        let this_version =
            |id: &str| self.e.ladder.is_empty() || self.e.ladder.iter().any(|s| s.mechanism == id);
        let (mut intact, mut absent, mut untried) = (false, None, Vec::new());
        let mut worst: Option<Gap> = None;
        for id in ids {
            match rows
                .iter()
                .find(|row| row.mechanism == id)
                .map(|row| fate(row))
            {
                Some(Fate::Intact) => intact = true,
                Some(Fate::Absent(reason)) => absent = Some(reason.to_string()),
                Some(Fate::NotRun(reason)) => {
                    Gap::NotRun(id.to_string(), reason.to_string()).into_worst(&mut worst);
                }
                Some(Fate::Refused(r) | Fate::Failed(r)) => {
                    let answer = match &r.outcome {
                        Outcome::Refused { code, name, .. } => format!("{code} {name}"),
                        other => other.word().to_string(),
                    };
                    Gap::Refused(id.to_string(), answer).into_worst(&mut worst);
                }
                None if this_version(id) => untried.push(id.to_string()),
                None => Gap::Version.into_worst(&mut worst),
            }
        }
        if !untried.is_empty() {
            let nothing = !intact && worst.is_none();
            let named = if nothing { Vec::new() } else { untried };
            Gap::Untested(named).into_worst(&mut worst);
        }
        match (worst, intact, absent) {
            (Some(gap), ..) => Err(gap),
            (None, true, _) => Ok(()),
            (None, false, Some(reason)) => Err(Gap::Absent(reason)),
            (None, false, None) if self.e.ladder.is_empty() => Err(Gap::Untested(Vec::new())),
            (None, false, None) => Err(Gap::Version),
        }
    }
}

fn is_wild(pattern: &str) -> bool {
    pattern.ends_with('*')
}

fn fits(pattern: &str, mechanism: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => mechanism.starts_with(beginning),
        None => mechanism == pattern,
    }
}

fn veto_words(first: &Veto, more: usize) -> String {
    let load = match first.rung {
        Rung::Loaded => ", only under load",
        _ => "",
    };
    let things = if first.group.is_some() {
        "group"
    } else {
        "pair"
    };
    let more = match more {
        0 => String::new(),
        1 => format!("; and 1 more {things}"),
        n => format!("; and {n} more {things}s"),
    };
    let who = match (first.pair, first.group) {
        (Some(pair), _) => format!("pair {pair}"),
        (None, Some(group)) => format!("{group} together"),
        (None, None) => "what is not named".to_string(),
    };
    format!(
        "vetoed by {who} at {} ({}: {}{load}{more})",
        number(first.rung),
        first.mechanism,
        first.word
    )
}

/// The gaps of a consumer in a sentence.
fn words(gaps: &[(Rung, Gap, Subject)]) -> String {
    let rungs = |wanted: &dyn Fn(&Gap) -> bool| -> Vec<Rung> {
        let these = gaps.iter().filter(|(_, gap, _)| wanted(gap));
        let mut rungs: Vec<Rung> = these.map(|(rung, ..)| *rung).collect();
        rungs.dedup();
        rungs
    };
    let mut parts = Vec::new();
    for (rung, gap, subject) in gaps {
        let pair = match subject {
            Subject::Pair(pair) => format!("pair {pair}"),
            other => other.to_string(),
        };
        let at = number(*rung);
        match gap {
            Gap::NotRun(mechanism, why) => {
                parts.push(format!("{mechanism} at {at} did not run on {pair} ({why})"));
            }
            Gap::Untested(some) if !some.is_empty() => {
                let were = if some.len() == 1 { "was" } else { "were" };
                parts.push(format!("{} at {at} {were} not tested", some.join(", ")));
            }
            Gap::Refused(mechanism, answer) => {
                parts.push(format!(
                    "{mechanism} at {at} was refused on {pair} ({answer})"
                ));
            }
            Gap::Absent(why) => parts.push(format!("{at} does not exist here ({why})")),
            Gap::Version | Gap::Untested(_) => {}
        }
    }
    let untested = rungs(&|g| matches!(g, Gap::Untested(some) if some.is_empty()));
    if !untested.is_empty() {
        parts.push(format!("{} not tested", ranges(&untested, "was", "were")));
    }
    let version = rungs(&|g| *g == Gap::Version);
    if !version.is_empty() {
        parts.push(format!(
            "{} not tested by this version",
            ranges(&version, "is", "are")
        ));
    }
    parts.join("; ")
}

fn number(rung: Rung) -> String {
    rung.number()
        .map_or_else(|| rung.name().to_string(), |n| format!("rung {n}"))
}

/// "rung 6 (reduced) is", "rungs 4 to 6 are", "rungs 2 and 4 to 6 are".
fn ranges(rungs: &[Rung], is: &str, are: &str) -> String {
    let numbers: Vec<u32> = rungs.iter().filter_map(|r| r.number()).collect();
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for n in &numbers {
        match spans.last_mut() {
            Some((_, end)) if *end + 1 == *n => *end = *n,
            _ => spans.push((*n, *n)),
        }
    }
    let words: Vec<String> = spans
        .iter()
        .map(|(start, end)| {
            if start == end {
                start.to_string()
            } else {
                format!("{start} to {end}")
            }
        })
        .collect();
    match rungs {
        [one] => format!("rung {} ({}) {is}", words.join(" and "), one.name()),
        _ => format!("rungs {} {are}", words.join(" and ")),
    }
}

#[cfg(test)]
mod tests;
