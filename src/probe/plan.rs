//! Which cases, of what size, in which rounds, for which budget. Pure: scales to the memory of the smallest GPU.

mod budget;
mod loaded;
mod reduced;
mod resident;
mod rounds;
mod sizes;

pub use budget::{Budget, Needs};
pub use rounds::tournament;

use self::sizes::{PAGE, Shapes};
use super::{
    alone,
    mechanism::{self, Memory, Place},
    wire::Layout,
};
use crate::model::{
    case::{Case, Rung, Subject},
    pair::{GpuIndex, OrderedPair},
    reduction::MOST_RANKS,
    snapshot::Snapshot,
};
use std::collections::BTreeSet;

/// In this order. What never enables peer access comes first and shares its processes.
const PLACES: [Place; 4] = [Place::Off, Place::Granted, Place::On, Place::Ranks];
/// Samples of a rate.
pub const RATE_SAMPLES: u32 = 5;
/// Attempts of a single-GPU case.
const ATTEMPTS: u32 = 3;
/// Memory assumed where the driver does not tell, bytes.
const UNKNOWN_MEMORY: u64 = 1 << 30;
/// CUDA shares device memory between processes in blocks of this size.
pub const IPC_BLOCK: u64 = 2 << 20;
/// Attempts of a soak case in one round: below the 256 that words can tell apart.
const SOAK_ATTEMPTS: u32 = 100;

/// What the operator chose; `None` = everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// GPU indices.
    pub gpus: Vec<u32>,
    /// Ordered pairs.
    pub pairs: Option<Vec<OrderedPair>>,
    /// Mechanism ids.
    pub mechanisms: Option<Vec<String>>,
    /// What may be spent.
    pub budget: Budget,
    /// Waiting kernels and load also on pairs that failed below.
    pub force: bool,
    /// The GPUs are in use by others: a quarter of what is free must do.
    pub shared: bool,
}

/// Cases that run side by side: both directions of disjoint pairs, one mechanism, one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The cases.
    pub cases: Vec<Case>,
}

/// Rounds that one set of worker processes carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Name, for progress and timings.
    pub name: String,
    /// Which workers.
    pub place: Place,
    /// In order.
    pub rounds: Vec<Round>,
    /// Repeated with moving seeds until this much wall time is over; each case is then one record for all its attempts.
    pub soak: Option<std::time::Duration>,
}

impl Phase {
    /// Its cases.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.rounds.iter().flat_map(|round| &round.cases)
    }
}

/// A case that somebody asks for beside the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// GPU or ordered pair.
    pub subject: Subject,
    /// Mechanism id.
    pub mechanism: &'static str,
    /// Bytes of one attempt; `None` = a quarter of the buffers.
    pub bytes: Option<u64>,
    /// Offset in the buffers, bytes.
    pub offset: u64,
    /// Whether its rate is what is wanted.
    pub timed: bool,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Chosen GPUs, ascending.
    pub gpus: Vec<u32>,
    /// Buffers of each GPU.
    pub layout: Layout,
    /// Bytes of source, destination and scratch in a worker of its own GPU: less where two kinds of memory must fit.
    pub rank_span: u64,
    /// Whether memory allows all sets of workers at once: then all start at the beginning, side by side, and none waits for
    /// the end of another.
    pub ahead: bool,
    /// What may be spent.
    pub budget: Budget,
    /// Waiting kernels and load also on pairs that failed below.
    pub force: bool,
    /// Single-GPU cases.
    pub alone: Vec<Case>,
    /// Advertised claims, one per ordered pair.
    pub claims: Vec<Case>,
    /// Pair cases, lowest rung first.
    pub phases: Vec<Phase>,
    /// What was left out, in words.
    pub left_out: Vec<String>,
}

impl Plan {
    /// How much longer than the budget's limit a run may take on real hardware, when what was begun before it hangs: the
    /// longest request, the end of its workers, and the looks for GPUs that stay busy.
    pub fn longest_hang(&self) -> std::time::Duration {
        const AFTERWARDS: std::time::Duration = std::time::Duration::from_secs(10);
        let together = std::iter::once(self.alone.as_slice());
        let rounds = self.phases.iter().flat_map(|p| &p.rounds);
        together
            .chain(rounds.map(|r| r.cases.as_slice()))
            .map(|cases| super::pool::limit(cases, 1))
            .max()
            .unwrap_or_default()
            + AFTERWARDS
    }

    /// Further cases on the same GPUs and in buffers of the same size, put after this plan; `None` when none of them can be
    /// put. Only copies, loads and stores, which end by themselves.
    pub fn further(&self, questions: &[Question]) -> Option<Plan> {
        let mut make = Cases {
            next: self.cases().map(|case| case.id).max().unwrap_or(0),
        };
        let mut phases: Vec<Phase> = Vec::new();
        for question in questions {
            let Some(mechanism) = mechanism::by_id(question.mechanism) else {
                continue;
            };
            let bytes = question
                .bytes
                .unwrap_or(PAGE.max(self.layout.span / 4 / PAGE * PAGE));
            let span = match mechanism.place() {
                Place::Ranks => self.rank_span,
                _ => self.layout.span,
            };
            if question.offset.saturating_add(bytes) > span
                || !mechanism.takes(question.offset, bytes)
            {
                continue;
            }
            let what = (mechanism.id(), mechanism.rung());
            let timed = question.timed && mechanism.timed();
            let attempts = if timed { 1 } else { ATTEMPTS };
            let case = make.make(
                question.subject,
                what,
                (question.offset, bytes),
                attempts,
                timed,
            );
            let round = Round { cases: vec![case] };
            match phases
                .iter_mut()
                .find(|phase| phase.place == mechanism.place())
            {
                Some(phase) => phase.rounds.push(round),
                None => phases.push(Phase {
                    name: format!("further questions, {}", mechanism.place().words()),
                    place: mechanism.place(),
                    rounds: vec![round],
                    soak: None,
                }),
            }
        }
        phases.sort_by_key(|phase| phase.place);
        (!phases.is_empty()).then(|| Plan {
            alone: Vec::new(),
            claims: Vec::new(),
            phases,
            left_out: Vec::new(),
            ahead: false,
            ..self.clone()
        })
    }

    /// All cases, in order.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.alone
            .iter()
            .chain(&self.claims)
            .chain(self.phases.iter().flat_map(Phase::cases))
    }

    /// What it will take.
    pub fn needs(&self) -> Needs {
        let gpus = self.gpus.len() as u64;
        let layout = self.layout;
        // Usual rates of a PCIe host, bytes per second; a step costs launches and read-backs besides.
        let (link, step) = (15e9, 2e-3);
        let round = |round: &Round| {
            let longest = round.cases.iter().map(|c| {
                let attempts = f64::from(c.attempts + if c.timed { RATE_SAMPLES } else { 0 });
                match (c.load, c.rung) {
                    _ if c.all_reduce.is_some() => reduced::seconds(c, link),
                    // Flows of one GPU share its link.
                    (Some(_), _) => {
                        let shared = (round.cases.len() as u64).div_ceil(gpus.max(1));
                        let bytes = c.bytes * u64::from(super::loaded::BURST) * shared;
                        attempts * (bytes as f64 / link + 4.0 * step)
                    }
                    // A round costs latency and its payload.
                    (None, Rung::Resident) => attempts * (c.bytes as f64 / link + 1e-5),
                    (None, _) => attempts * (c.bytes as f64 / link + step),
                }
            });
            longest.fold(0.0, f64::max)
        };
        let soaks = self.phases.iter().filter_map(|phase| phase.soak);
        let soak: f64 = soaks.map(|time| time.as_secs_f64()).sum();
        let rounds = self.phases.iter().filter(|phase| phase.soak.is_none());
        let work: f64 = rounds.flat_map(|phase| &phase.rounds).map(round).sum();
        let flows = self.cases().filter(|case| case.load.is_some());
        let flow = flows
            .map(|case| super::loaded::device_bytes(case.bytes))
            .max();
        let ends = 2 * gpus.saturating_sub(1);
        let reductions = self.cases().map(reduced::device_bytes).max();
        let reductions = reductions.unwrap_or(0);
        let solo = 3 * layout.span + 2 * layout.guard + ends * flow.unwrap_or(0) + reductions;
        let places: BTreeSet<Place> = self.phases.iter().map(|phase| phase.place).collect();
        let ranks = places.contains(&Place::Ranks);
        // Mapped memory of its own beside what is shared by handle; with one GPU, two processes on it.
        let span = self.rank_span.next_multiple_of(IPC_BLOCK);
        let rank = (5 * span + 2 * IPC_BLOCK) * if gpus == 1 { 2 } else { 1 } + reductions;
        let rank = if ranks { rank } else { 0 };
        Needs {
            device_bytes: match self.ahead {
                // Those without and those with peer access.
                true => 2 * solo + rank,
                false => solo.max(rank),
            },
            host_bytes: gpus * layout.pinned,
            seconds: 2.0 + work + soak,
        }
    }
}

/// Makes cases with ids of their own.
struct Cases {
    next: u32,
}

impl Cases {
    fn make(
        &mut self,
        subject: Subject,
        (mechanism, rung): (&str, Rung),
        (offset, bytes): (u64, u64),
        attempts: u32,
        timed: bool,
    ) -> Case {
        self.next += 1;
        Case {
            id: self.next,
            subject,
            mechanism: mechanism.to_string(),
            rung,
            bytes,
            offset,
            attempts,
            timed,
            load: None,
            all_reduce: None,
            soak: false,
        }
    }
}

/// Plans a run over `selection` of the snapshot's GPUs.
pub fn build(snapshot: &Snapshot, selection: &Selection) -> Plan {
    let chosen: Vec<u32> = selection.gpus.clone();
    let budget = selection.budget;
    let (free, bar1) = smallest(snapshot, &chosen);
    let memory = if selection.shared { free / 4 } else { free };
    let shapes = Shapes::of(memory, bar1, budget);
    let layout = Layout {
        span: shapes.span(),
        guard: PAGE,
        pinned: shapes.timed.min(16 << 20),
    };
    let wanted = |id: &str| {
        let only = selection.mechanisms.as_ref();
        only.is_none_or(|only| only.iter().any(|m| m == id))
    };
    let wanted_pair = |pair: &OrderedPair| {
        let only = selection.pairs.as_ref();
        only.is_none_or(|only| only.contains(pair))
    };
    let mut make = Cases { next: 0 };
    let alone = alone_cases(
        &mut make,
        &chosen,
        (memory, budget),
        (shapes.timed, layout),
        &wanted,
    );
    let rank_span = layout.span.min((memory / 16).max(shapes.timed));
    let ordered: Vec<OrderedPair> = chosen
        .iter()
        .flat_map(|s| chosen.iter().filter_map(move |d| OrderedPair::new(*s, *d)))
        .filter(wanted_pair)
        .collect();
    let claims = ordered
        .iter()
        .map(|pair| {
            let what = (ADVERTISED, Rung::Advertised);
            make.make(Subject::Pair(*pair), what, (0, 0), 1, false)
        })
        .collect();
    let disjoint: Vec<Vec<OrderedPair>> = tournament(&chosen)
        .into_iter()
        .map(|round| {
            let both = round
                .into_iter()
                .flat_map(|(a, b)| [OrderedPair::new(a, b), OrderedPair::new(b, a)]);
            both.flatten().filter(wanted_pair).collect()
        })
        .filter(|round: &Vec<OrderedPair>| !round.is_empty())
        .collect();
    let of_pairs: Vec<Vec<Subject>> = disjoint
        .iter()
        .map(|round| round.iter().copied().map(Subject::Pair).collect())
        .collect();
    // Between processes there is something to prove with one GPU, too: two of them on it.
    let between_two = match chosen.as_slice() {
        [only] => vec![vec![Subject::Gpu(GpuIndex(*only))]],
        _ => Vec::new(),
    };
    // Pairs that were chosen are asked for themselves.
    let groups = match selection.pairs {
        None => reduced::groups(&snapshot.topology, &chosen),
        Some(_) => Vec::new(),
    };
    let rounds = |place: Place| match place {
        Place::Ranks if !between_two.is_empty() => between_two.iter(),
        _ => of_pairs.iter(),
    };

    let shapes_of_load = loaded::shapes(&snapshot.topology, &chosen, &disjoint, &ordered, budget);
    let under_load = |make: &mut Cases, place: Place, loads: &[loaded::Shape], attempts: u32| {
        let roster = mechanism::ROSTER.iter().filter(|m| {
            m.place() == place && wanted(m.id()) && super::loaded::MECHANISMS.contains(&m.id())
        });
        let what = (0, loaded::bytes(memory, chosen.len()));
        let rounds: Vec<Round> = roster
            .flat_map(|mechanism| loads.iter().map(move |shape| (mechanism, shape)))
            .map(|(mechanism, shape)| {
                let case = |pair: &OrderedPair| Case {
                    load: Some(shape.load),
                    ..make.make(
                        Subject::Pair(*pair),
                        (mechanism.id(), Rung::Loaded),
                        what,
                        attempts,
                        false,
                    )
                };
                Round {
                    cases: shape.flows.iter().map(case).collect(),
                }
            })
            .collect();
        rounds
    };
    let mut phases = Vec::new();
    // Plain memory is numbered before pools: where both fail, the simpler one speaks for the pair.
    for place in [Place::Off, Place::On, Place::Granted, Place::Ranks] {
        let here = || {
            let roster = mechanism::ROSTER.iter();
            roster.filter(move |m| m.place() == place && wanted(m.id()))
        };
        let mut content = Vec::new();
        let mut rates = Vec::new();
        for mechanism in here() {
            let what = (mechanism.id(), mechanism.rung());
            // What differs with a fabric handle is the handle, not the engine: one size tells.
            let one = mechanism.memory() == Memory::Fabric;
            let few = if one { 1 } else { usize::MAX };
            let sizes = shapes.fitting(*mechanism).into_iter();
            let sizes = sizes.filter(|s| place != Place::Ranks || s.offset + s.bytes <= rank_span);
            for shape in sizes.filter(|s| !one || s.bytes >= PAGE).take(few) {
                content.extend(rounds(place).map(|subjects| {
                    Round {
                        cases: subjects
                            .iter()
                            .map(|subject| {
                                let place = (shape.offset, shape.bytes);
                                make.make(*subject, what, place, shape.attempts, false)
                            })
                            .collect(),
                    }
                }));
            }
            // A rate is taken of one flow at a time.
            let flows = ordered.iter().filter(|_| mechanism.timed());
            rates.extend(flows.map(|pair| Round {
                cases: vec![make.make(Subject::Pair(*pair), what, (0, shapes.timed), 1, true)],
            }));
        }
        let (size, attempts) = (resident::bytes(memory), resident::rounds(budget));
        let exchanges = super::resident::ROSTER.iter();
        let waiting: Vec<Round> = exchanges
            .filter(|exchange| exchange.place == place && wanted(exchange.id))
            .flat_map(|exchange| rounds(place).map(move |subjects| (exchange, subjects)))
            .map(|(exchange, subjects)| {
                let what = (exchange.id, Rung::Resident);
                let case = |subject: &Subject| {
                    let attempts = match subject {
                        Subject::Gpu(_) => resident::SLICED,
                        Subject::Pair(_) | Subject::Group(_) => attempts,
                    };
                    make.make(*subject, what, (0, size), attempts, false)
                };
                Round {
                    cases: subjects.iter().map(case).collect(),
                }
            })
            .collect();
        let reductions = reduced::Asked {
            pairs: match place {
                Place::Ranks if !between_two.is_empty() => &between_two,
                _ => &of_pairs,
            },
            groups: &groups,
            memory,
            budget,
        };
        let reduced = reductions.phase(&mut make, place, wanted);
        let loaded = under_load(&mut make, place, &shapes_of_load, loaded::attempts(budget));
        let phase = |name: &str, rounds: Vec<Round>| {
            (!rounds.is_empty()).then(|| Phase {
                name: format!("{name}, {}", place.words()),
                place,
                rounds,
                soak: None,
            })
        };
        phases.extend(phase("content", content));
        phases.extend(phase("resident", waiting));
        phases.extend(reduced);
        phases.extend(phase("rates", rates));
        // At the end of a place, not of the run: the same workers need not start again.
        phases.extend(phase("loaded", loaded));
    }
    phases.sort_by_key(|phase| phase.place);
    if let Budget::Deep { soak } = budget {
        let share = phases
            .iter()
            .filter(|p| p.name.starts_with("content"))
            .count() as u32;
        // The shape with most flows comes last.
        let most = shapes_of_load
            .last()
            .map(std::slice::from_ref)
            .unwrap_or_default();
        let soaks: Vec<Phase> = PLACES
            .into_iter()
            .filter_map(|place| {
                let roster = mechanism::ROSTER.iter();
                let here = roster.filter(|m| m.place() == place && wanted(m.id()));
                let small = (0, (64 << 10).min(shapes.timed));
                let quiet: Vec<Round> = here
                    .filter(|m| m.memory() != Memory::Fabric)
                    .flat_map(|m| rounds(place).map(move |subjects| (m, subjects)))
                    .map(|(m, subjects)| Round {
                        cases: subjects
                            .iter()
                            .map(|subject| {
                                let what = (m.id(), m.rung());
                                let small = match m.takes(0, small.1) {
                                    true => small,
                                    false => (0, PAGE),
                                };
                                make.make(*subject, what, small, SOAK_ATTEMPTS, false)
                            })
                            .collect(),
                    })
                    .collect();
                let loaded = under_load(&mut make, place, most, loaded::attempts(budget));
                let mut rounds = [quiet, loaded].concat();
                let cases = rounds.iter_mut().flat_map(|round| &mut round.cases);
                cases.for_each(|case| case.soak = true);
                (!rounds.is_empty()).then(|| Phase {
                    name: format!("soak, {}", place.words()),
                    place,
                    rounds,
                    soak: Some(soak / share.max(1)),
                })
            })
            .collect();
        phases.extend(soaks);
    }
    let mut left_out = left_out(selection, ordered.len());
    left_out.extend(shapes.left_out.iter().cloned());
    let mut plan = Plan {
        gpus: chosen,
        layout,
        rank_span,
        ahead: true,
        budget,
        force: selection.force,
        alone,
        claims,
        phases,
        left_out,
    };
    plan.ahead = !selection.shared && plan.needs().device_bytes <= free / 4;
    plan
}

/// Free memory and BAR1 window of the GPU that has least.
fn smallest(snapshot: &Snapshot, gpus: &[u32]) -> (u64, Option<u64>) {
    let seen = |gpu: &u32| snapshot.gpu(GpuIndex(*gpu));
    let free = |gpu: &u32| {
        let known =
            |reading: fn(&crate::model::snapshot::Gpu) -> Option<u64>| seen(gpu).and_then(reading);
        let total = known(|g| g.memory_bytes.known().copied()).unwrap_or(UNKNOWN_MEMORY);
        total.saturating_sub(known(|g| g.memory_used_bytes.known().copied()).unwrap_or(0))
    };
    let memory = gpus.iter().map(free).min().unwrap_or(UNKNOWN_MEMORY);
    let bar1 = gpus
        .iter()
        .filter_map(|gpu| seen(gpu)?.bar1_bytes.known().copied())
        .min();
    (memory, bar1)
}

/// Single GPUs: a piece of memory that takes well under a second, the host link at a size that fills it. A GPU is proven
/// alone before its pairs are blamed, whatever pair mechanism was chosen.
fn alone_cases(
    make: &mut Cases,
    gpus: &[u32],
    (memory, budget): (u64, Budget),
    (big, layout): (u64, Layout),
    wanted: &impl Fn(&str) -> bool,
) -> Vec<Case> {
    let exchanges = super::resident::ROSTER.iter().map(|exchange| exchange.id);
    let reductions = super::reduced::ROSTER.iter().map(|way| way.id);
    let pairs_chosen = mechanism::ROSTER
        .iter()
        .map(|m| m.id())
        .chain(exchanges)
        .chain(reductions)
        .any(wanted);
    let wanted = |id: &str| wanted(id) || pairs_chosen;
    let memory_bytes = (memory / 8).clamp(PAGE, 4 << 30) / PAGE * PAGE;
    let tests = [
        (alone::MEMORY, memory_bytes, 2),
        (alone::HOST_WRITE, big.min(layout.pinned), ATTEMPTS),
        (alone::HOST_READ, big.min(layout.pinned), ATTEMPTS),
        (alone::PINNED, (1 << 20).min(big), ATTEMPTS),
    ];
    let mut cases = Vec::new();
    for (id, bytes, attempts) in tests.into_iter().filter(|(id, ..)| wanted(id)) {
        cases.extend(gpus.iter().map(|gpu| {
            let subject = Subject::Gpu(GpuIndex(*gpu));
            make.make(subject, (id, Rung::Alone), (0, bytes), attempts, false)
        }));
    }
    if let ([only], true) = (gpus, wanted(alone::RESIDENT_SAME_GPU)) {
        let subject = Subject::Gpu(GpuIndex(*only));
        let what = (alone::RESIDENT_SAME_GPU, Rung::Resident);
        let (size, rounds) = (resident::bytes(memory), resident::rounds(budget));
        cases.push(make.make(subject, what, (0, size), rounds, false));
    }
    if let ([only], true) = (gpus, wanted(alone::REDUCE_SAME_GPU)) {
        let subject = Subject::Gpu(GpuIndex(*only));
        let what = (alone::REDUCE_SAME_GPU, Rung::Reduced);
        let case = make.make(subject, what, (0, 0), 1, false);
        cases.push(reduced::same_gpu(case, memory, budget));
    }
    cases
}

/// What selection, budget and this version leave out, in words.
fn left_out(selection: &Selection, pairs: usize) -> Vec<String> {
    let mut words = Vec::new();
    let gpus = selection.gpus.len();
    if let Some(only) = &selection.mechanisms {
        let every = super::supervisor::mechanism_ids();
        if every.iter().any(|id| !only.iter().any(|m| m == id)) {
            let mut text = format!("mechanisms other than {}", only.join(", "));
            if mechanism::ROSTER
                .iter()
                .any(|m| only.iter().any(|id| id == m.id()))
            {
                text.push_str(" (GPUs alone are tested in any case)");
            }
            words.push(text);
        }
    }
    if selection.pairs.is_some() {
        let all = gpus * gpus.saturating_sub(1);
        let missing = all - pairs;
        if missing > 0 {
            words.push(format!("{missing} of {all} ordered pairs by --pairs"));
        }
    }
    if selection.budget == Budget::Quick && gpus > 2 {
        words.push("load other than every ordered pair at once, by --quick".to_string());
    }
    if gpus > loaded::MOST_TOGETHER {
        words.push(format!(
            "every ordered pair at once: a device has access to {} peers at most",
            loaded::MOST_TOGETHER - 1
        ));
    }
    if gpus > MOST_RANKS as usize {
        words.push(format!(
            "an all-reduce over all {gpus} GPUs: algorithms take {MOST_RANKS} ranks at most"
        ));
    }
    if gpus > 2 && selection.pairs.is_some() {
        words.push("all-reduces over more than two GPUs, by --pairs".to_string());
    }
    if gpus < 2 {
        words.push(
            "rungs 0 to 7 need a second GPU (with one, what rungs 4 to 6 do is tried between two processes on it)"
                .to_string(),
        );
    }
    words
}

/// Pseudo mechanism of rung 0.
pub const ADVERTISED: &str = "advertised";
