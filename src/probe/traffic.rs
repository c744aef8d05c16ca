//! Timed transfers: the parent's side. One worker over all GPUs with peer access where it is granted; case after case, each
//! under a deadline. After a hang, a fault or a death the worker is replaced and its GPUs are left alone; what was measured
//! stays. Knows processes and the order of things; how a case is timed is `clocked`'s.

pub mod clocked;
pub mod plan;
mod round_trip;
pub mod stand;

use self::plan::{Part, Wish};
use super::{
    cut_short, plan as cases,
    pool::{Pool, Ready, environment_words},
    transfer,
    wire::{Layout, Reply, Request},
};
use crate::{
    child::ReceiveError,
    ffi::process,
    model::{
        case::Outcome,
        pair::OrderedPair,
        snapshot::{Authenticity, CudaClaims, Observation, Snapshot},
        traffic::Traffic,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How long links are kept busy while the observer looks.
const LOAD: Duration = Duration::from_millis(300);
/// Buffers by which they are.
const LOAD_BYTES: u64 = 8 << 20;
/// Workers that are started in all: one, and one after each of so many failures.
const MOST_WORKERS: u32 = 4;

/// What the parent is told while it goes on.
pub struct Hooks<'a> {
    /// Case number, of how many, and what it is.
    pub progress: &'a mut dyn FnMut(usize, usize, &Traffic),
    /// Looks at counters; the moment, and our own processes.
    pub observe: &'a mut dyn FnMut(&str, &[u32]) -> Option<Observation>,
}

/// What came of it.
#[derive(Debug)]
pub struct Results {
    /// The cases, in order.
    pub traffic: Vec<Traffic>,
    /// Before and after, both under load.
    pub observations: Vec<Observation>,
    /// What stood below the driver interface.
    pub authenticity: Authenticity,
    /// What CUDA claims of the pairs.
    pub cuda_claims: Vec<(OrderedPair, CudaClaims)>,
    /// The fixed environment of the worker.
    pub worker_environment: Vec<String>,
    /// Where the time went.
    pub timings_ms: Vec<(String, f64)>,
    /// What was left out.
    pub left_out: Vec<String>,
    /// Cut short by the operator.
    pub interrupted: bool,
}

/// Measures what `wish` asks for.
///
/// # Errors
/// One sentence: no worker could be started at all.
pub fn run(snapshot: &Snapshot, wish: &Wish, hooks: Hooks) -> Result<Results, String> {
    let selection = cases::Selection {
        gpus: wish.gpus.clone(),
        shared: wish.shared,
        ..Default::default()
    };
    let mut base = cases::build(snapshot, &selection);
    let span = LOAD_BYTES.min(base.layout.span).max(4096);
    base.layout = Layout {
        span,
        guard: 4096,
        pinned: 4096,
    };
    let mut pool = Pool::new(snapshot, &base);
    let mut timings = Timings::default();
    let ready = pool.open_solo(true)?;
    timings.lap("start of the worker");
    let opened = &ready.opened;
    let refused: BTreeSet<(u32, u32)> = opened
        .refused
        .iter()
        .map(|(pair, _, _)| (pair.source.0, pair.destination.0))
        .collect();
    let granted: BTreeSet<(u32, u32)> = opened
        .advertised
        .iter()
        .filter(|(_, advertised)| advertised.can_access)
        .map(|(pair, _)| (pair.source.0, pair.destination.0))
        .filter(|pair| !refused.contains(pair))
        .collect();
    let mut plan = plan::build(snapshot, wish, &|accessor, owner| {
        granted.contains(&(accessor, owner))
    });
    for (pair, why, code) in &opened.refused {
        plan.left_out.push(format!(
            "direct transfers by the GPU that reaches over {pair}: the driver claims access and refuses it ({why}, {code})"
        ));
    }
    let authenticity = opened.authenticity;
    let advertised = opened.advertised.iter();
    let cuda_claims = advertised
        .map(|(pair, advertised)| (*pair, advertised.claims.clone()))
        .collect();
    let mut run = Run {
        pool: &mut pool,
        hooks,
        gpus: &wish.gpus,
        terms: (plan.reserve, plan.patience),
        ready: Some(ready),
        started: 1,
        left_alone: BTreeMap::new(),
        observations: Vec::new(),
    };
    run.observe("before");
    timings.lap("links under load");
    let total = plan.cases.len();
    let mut traffic = Vec::new();
    let mut stopped = false;
    for (at, case) in plan.cases.into_iter().enumerate() {
        stopped |= process::interrupted();
        (run.hooks.progress)(at + 1, total, &case);
        traffic.push(match stopped {
            true => not_run(case, cut_short::why()),
            false => run.case(case),
        });
        timings.lap(part_of(&traffic));
    }
    if !stopped {
        run.observe("after");
    }
    timings.lap("links under load");
    let observations = run.observations;
    if let Some(ready) = run.ready {
        ready.end();
    }
    timings.lap("end of the worker");
    Ok(Results {
        traffic,
        observations,
        authenticity,
        cuda_claims,
        worker_environment: environment_words(&pool.environment),
        timings_ms: timings.laps,
        left_out: plan.left_out,
        interrupted: stopped || process::interrupted(),
    })
}

/// Where the time of the last case is to be booked.
fn part_of(traffic: &[Traffic]) -> &'static str {
    let last = traffic.last();
    last.map_or("cases", |case| case.shape.words())
}

/// Wall time by phase.
struct Timings {
    since: Instant,
    laps: Vec<(String, f64)>,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            since: Instant::now(),
            laps: Vec::new(),
        }
    }
}

impl Timings {
    /// Books the time since the last call under `name`, on top of what stands there.
    fn lap(&mut self, name: &str) {
        let took = self.since.elapsed().as_secs_f64() * 1e3;
        self.since = Instant::now();
        match self.laps.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += took,
            None => self.laps.push((name.to_string(), took)),
        }
    }
}

struct Run<'p, 's, 'h> {
    pool: &'p mut Pool<'s>,
    hooks: Hooks<'h>,
    gpus: &'p [u32],
    terms: (plan::Reserve, plan::Patience),
    ready: Option<Ready>,
    started: u32,
    /// GPUs on which something hung, faulted or died, and how.
    left_alone: BTreeMap<u32, String>,
    observations: Vec<Observation>,
}

fn not_run(mut case: Traffic, reason: impl Into<String>) -> Traffic {
    case.outcome = Outcome::NotRun {
        reason: reason.into(),
    };
    case
}

impl Run<'_, '_, '_> {
    /// Puts one case.
    fn case(&mut self, mut case: Traffic) -> Traffic {
        let gpus = case.gpus();
        if let Some(why) = gpus.iter().find_map(|gpu| self.left_alone.get(gpu)) {
            let why = why.clone();
            return not_run(case, why);
        }
        if self.ready.is_none()
            && let Err(why) = self.replace()
        {
            return not_run(case, why);
        }
        let Some(ready) = &mut self.ready else {
            return not_run(case, "no worker");
        };
        let (reserve, patience) = self.terms;
        let bytes = case.bytes * u64::from(case.copies) * case.flows.len() as u64;
        // Its own limits end a case long before; this one is for a worker that is stuck inside the driver.
        let limit = transfer::limit(4 * bytes, self.pool.factor)
            + (patience.time() * 50 + Duration::from_secs(60)) * self.pool.factor;
        let request = Request::Traffic {
            case: Box::new(case.clone()),
            reserve,
            patience,
        };
        let failure = match ready.ask(&request, limit) {
            Ok(Reply::Timed(answer)) => {
                case = *answer;
                match &case.outcome {
                    Outcome::TimedOut { .. } | Outcome::Faulted { .. } => None,
                    _ => return case,
                }
            }
            Ok(Reply::Failed { message, .. }) => return not_run(case, message),
            Ok(other) => {
                case.outcome = Outcome::NotRun {
                    reason: format!("a worker answered out of turn: {other:?}"),
                };
                None
            }
            Err(ReceiveError::TimedOut) => Some(Outcome::TimedOut {
                after_ms: limit.as_millis() as u64,
            }),
            Err(ReceiveError::Ended(how)) => Some(Outcome::Died { how }),
            Err(other) => Some(Outcome::NotRun {
                reason: other.to_string(),
            }),
        };
        if let Some(outcome) = failure {
            case.outcome = outcome;
        }
        let killed = self.ready.take().is_none_or(|ready| ready.child.kill());
        if case.outcome.is_failure() {
            let why = format!(
                "left alone after {} {}: {}{}",
                case.shape.words(),
                case.subject(),
                case.outcome.word(),
                if killed {
                    ""
                } else {
                    ", and its worker could not be killed"
                }
            );
            for gpu in gpus {
                self.left_alone.insert(gpu, why.clone());
            }
        }
        case
    }

    /// Starts another worker over the GPUs that are not left alone.
    fn replace(&mut self) -> Result<(), String> {
        if self.started >= MOST_WORKERS {
            return Err("several workers failed; no further one was started".to_string());
        }
        self.started += 1;
        self.pool.quarantined = self.left_alone.keys().copied().collect();
        let ready = self.pool.open_solo(true)?;
        self.ready = Some(ready);
        Ok(())
    }

    /// Has counters and links read while every host link is busy.
    fn observe(&mut self, when: &str) {
        let Some(ready) = &mut self.ready else {
            return;
        };
        let millis = LOAD.as_millis() as u64;
        if ready.child.send(&Request::Load { millis }).is_err() {
            return;
        }
        std::thread::sleep(LOAD / 2);
        let names: Vec<String> = self.gpus.iter().map(|gpu| format!("GPU{gpu}")).collect();
        let moment = format!(
            "under load: host to device on {}, {when} measuring",
            names.join(" ")
        );
        if let Some(seen) = (self.hooks.observe)(&moment, &self.pool.pids) {
            self.observations.push(seen);
        }
        let limit = Instant::now() + (LOAD + Duration::from_secs(10)) * self.pool.factor;
        let done = ready.child.receive::<Reply>(limit);
        if !matches!(done, Ok(Reply::Done))
            && let Some(open) = self.ready.take()
        {
            open.child.kill();
        }
    }
}

/// Parts by name, for the command line.
pub fn part(name: &str) -> Option<Part> {
    Part::ALL.into_iter().find(|part| part.name() == name)
}
