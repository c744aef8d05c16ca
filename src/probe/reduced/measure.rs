//! The parent's half of `peerproof reduce`: all-reduces that somebody asks for by size and algorithm, row by row. A worker
//! that is lost costs the rows that it did not bring; another one goes on with the next algorithm.

use super::{ROSTER, through_host};
use crate::{
    child::ReceiveError,
    ffi::process,
    model::{
        case::{Case, Outcome, Subject},
        group::Group,
        pair::{GpuIndex, OrderedPair},
        reduction::{AllReduce, Arrangement, Reduction},
        snapshot::{Authenticity, Snapshot},
    },
    probe::{
        cut_short,
        mechanism::Place,
        plan::Plan,
        pool::{Look, Pool, Ready, Staff},
        ranks::{Ranks, reduce_one},
        reduction::{self, Request as Wanted, Series, Sight},
        wire::{Reply, Request},
    },
};
use std::time::{Duration, Instant};

/// What is asked: every series of `request`, a rank on each of `gpus`.
#[derive(Debug, Clone)]
pub struct Order {
    /// GPU of each rank, in rank order; one that is named several times holds as many.
    pub gpus: Vec<u32>,
    /// Where the ranks run.
    pub arrangement: Arrangement,
    /// Algorithms, sizes, types, calls.
    pub request: Wanted,
}

/// Runs `order` on the GPUs of `plan` and hands over each row as it comes.
///
/// # Errors
/// No worker could start at all.
pub fn measure(
    snapshot: &Snapshot,
    plan: &Plan,
    order: &Order,
    mut emit: impl FnMut(Reduction),
) -> Result<Authenticity, String> {
    let mut pool = Pool::new(snapshot, plan);
    let mut errand = Errand {
        order,
        authenticity: Authenticity::Hardware,
        emit: &mut emit,
    };
    let done = match order.arrangement {
        Arrangement::OneProcess | Arrangement::StreamsOfOneGpu => errand.in_one(&mut pool),
        Arrangement::ProcessPerGpu | Arrangement::ProcessesOfOneGpu => errand.apart(&mut pool),
    };
    let authenticity = errand.authenticity;
    pool.close_all();
    done.map(|()| authenticity)
}

struct Errand<'o, 'e> {
    order: &'o Order,
    authenticity: Authenticity,
    emit: &'e mut dyn FnMut(Reduction),
}

impl Errand<'_, '_> {
    /// The series of one algorithm.
    fn series(&self, algorithm: &str) -> (Wanted, Vec<Series>) {
        let request = Wanted {
            algorithms: vec![algorithm.to_string()],
            ..self.order.request.clone()
        };
        let series = request.series(self.order.gpus.len() as u32);
        (request, series)
    }

    fn without(&mut self, series: &[Series], outcome: &Outcome) {
        let ranks = 0..self.order.gpus.len() as u32;
        let sights: Vec<Sight> = ranks.map(|r| Sight::lost(r, outcome.clone())).collect();
        for one in series {
            let row = reduction::conclude(one, &self.order.gpus, self.order.arrangement, &sights);
            (self.emit)(row);
        }
    }

    /// Rows of a request that brought only so many: the next one has the outcome, and the rest did not run.
    fn rest(&mut self, series: &[Series], outcome: Outcome) {
        if let Some((first, others)) = series.split_first() {
            self.without(std::slice::from_ref(first), &outcome);
            let reason = "the worker was lost in a row before it".to_string();
            self.without(others, &Outcome::NotRun { reason });
        }
    }

    /// One process over all GPUs: with peer access, or without where vectors lie in host memory and on one GPU.
    fn in_one(&mut self, pool: &mut Pool) -> Result<(), String> {
        let mut workers: [Option<Ready>; 2] = [None, None];
        for algorithm in self.order.request.algorithms.clone() {
            let (request, series) = self.series(&algorithm);
            if series.is_empty() {
                continue;
            }
            if process::interrupted() {
                let reason = cut_short::why().to_string();
                self.without(&series, &Outcome::NotRun { reason });
                continue;
            }
            let peers = self.order.arrangement == Arrangement::OneProcess
                && !series.first().is_some_and(through_host);
            let Some(slot) = workers.get_mut(usize::from(peers)) else {
                continue;
            };
            let mut ready = match slot.take() {
                Some(ready) => ready,
                None => pool.open_solo(peers)?,
            };
            self.authenticity = ready.opened.authenticity;
            if let Some(outcome) = self.hindered(&ready, peers) {
                self.without(&series, &outcome);
                *slot = Some(ready);
                continue;
            }
            if self.ask(&mut ready, request, &series, pool.factor) {
                *slot = Some(ready);
            } else {
                ready.child.kill();
            }
        }
        for ready in workers.into_iter().flatten() {
            ready.end();
        }
        Ok(())
    }

    /// Why ranks cannot reach each other, if so.
    fn hindered(&self, ready: &Ready, peers: bool) -> Option<Outcome> {
        if !peers {
            return None;
        }
        let among = |pair: &OrderedPair| {
            let here = |gpu: GpuIndex| self.order.gpus.contains(&gpu.0);
            here(pair.source) && here(pair.destination)
        };
        let refused = ready.opened.refused.iter().find(|(pair, ..)| among(pair));
        if let Some((_, name, code)) = refused {
            return Some(Outcome::Refused {
                api: "cuCtxEnablePeerAccess".to_string(),
                code: *code,
                name: name.clone(),
            });
        }
        let mut closed = ready
            .opened
            .advertised
            .iter()
            .filter(|(_, a)| !a.can_access);
        let (pair, _) = closed.find(|(pair, _)| among(pair))?;
        Some(Outcome::NotApplicable {
            reason: format!("no peer access on pair {pair}: CUDA says no"),
        })
    }

    /// Whether the worker can go on.
    fn ask(&mut self, ready: &mut Ready, request: Wanted, series: &[Series], factor: u32) -> bool {
        let gpus = self.order.gpus.clone();
        let mut sent = ready.child.send(&Request::Reduce { gpus, request });
        let mut brought = 0;
        loop {
            let next = series.get(brought).or(series.last());
            let limit = next.map_or(Duration::from_secs(5), |one| {
                time_of(one, self.order.gpus.len())
            }) * factor;
            let started = Instant::now();
            let reply = match sent {
                Ok(()) => ready.child.receive::<Reply>(started + limit),
                Err(error) => Err(error),
            };
            sent = Ok(());
            let left = series.get(brought..).unwrap_or_default();
            match reply {
                Ok(Reply::Row(row)) => {
                    brought += 1;
                    (self.emit)(*row);
                }
                Ok(Reply::Done) => {
                    let reason = "the ones before it left its GPUs in a state that proves nothing";
                    let reason = reason.to_string();
                    self.without(left, &Outcome::NotRun { reason });
                    return left.is_empty();
                }
                Ok(Reply::Failed { message, .. }) => {
                    self.without(left, &Outcome::NotRun { reason: message });
                    return false;
                }
                Ok(_) => {
                    let reason = "a worker answered out of turn".to_string();
                    self.without(left, &Outcome::NotRun { reason });
                    return false;
                }
                Err(error) => {
                    self.rest(left, ending(error, started.elapsed()));
                    return false;
                }
            }
        }
    }

    /// A process for each rank.
    fn apart(&mut self, pool: &mut Pool) -> Result<(), String> {
        let mut staff: Option<Ranks> = None;
        for algorithm in self.order.request.algorithms.clone() {
            let (_, series) = self.series(&algorithm);
            for one in &series {
                if process::interrupted() {
                    let reason = cut_short::why().to_string();
                    self.without(std::slice::from_ref(one), &Outcome::NotRun { reason });
                    continue;
                }
                let Some(case) = self.case(one) else {
                    let reason = "its vectors lie in host memory of one process".to_string();
                    self.without(
                        std::slice::from_ref(one),
                        &Outcome::NotApplicable { reason },
                    );
                    continue;
                };
                let mut ranks = match staff.take() {
                    Some(ranks) => ranks,
                    None => match pool.open(Place::Ranks)? {
                        Staff::Ranks(ranks) => ranks,
                        Staff::Solo(_) => return Err("no ranks could start".to_string()),
                    },
                };
                ranks.complete(pool, std::slice::from_ref(&case), Look::default());
                if let Some(opened) = ranks.opened().next() {
                    self.authenticity = opened.authenticity;
                }
                let deadline = Instant::now() + time_of(one, self.order.gpus.len()) * pool.factor;
                let (row, lost) = reduce_one(&mut ranks, &case, one.clone(), deadline);
                (self.emit)(row);
                match lost {
                    true => {
                        Staff::Ranks(ranks).kill();
                    }
                    false => staff = Some(ranks),
                }
            }
        }
        if let Some(ranks) = staff {
            Staff::Ranks(ranks).end();
        }
        Ok(())
    }

    /// A case with the ranks of a series; `None` where no process per GPU can carry it.
    fn case(&self, series: &Series) -> Option<Case> {
        let way = ROSTER
            .iter()
            .find(|way| way.place == Place::Ranks && way.algorithm == series.algorithm)?;
        let gpus = &self.order.gpus;
        let subject = match gpus.as_slice() {
            [a, b] if a == b => Subject::Gpu(GpuIndex(*a)),
            [a, b] => Subject::Pair(OrderedPair::new(*a, *b)?),
            _ => Subject::Group(Group::new(gpus.iter().copied())?),
        };
        Some(Case {
            id: 1,
            subject,
            mechanism: way.id.to_string(),
            rung: way.rung(),
            bytes: series.bytes,
            offset: 0,
            attempts: series.calls,
            timed: series.timing.is_some(),
            load: None,
            all_reduce: Some(AllReduce {
                dtype: series.dtype,
                in_place: series.in_place,
                launch: series.launch,
            }),
            soak: false,
        })
    }
}

/// Wall time after which a series is given up, on real hardware; with what is done before the first.
fn time_of(series: &Series, ranks: usize) -> Duration {
    reduction::rank::whole(series, ranks as u32) + Duration::from_secs(20)
}

fn ending(error: ReceiveError, after: Duration) -> Outcome {
    match error {
        ReceiveError::Ended(how) => Outcome::Died { how },
        ReceiveError::TimedOut => Outcome::TimedOut {
            after_ms: after.as_millis() as u64,
        },
        ReceiveError::Interrupted => Outcome::NotRun {
            reason: cut_short::why().to_string(),
        },
        other => Outcome::NotRun {
            reason: other.to_string(),
        },
    }
}
