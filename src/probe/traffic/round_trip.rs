//! A flag to the other GPU and back, between two kernels that stay. Each flag lies in the memory of the GPU that waits for
//! it, so every trip is one store over the link.

use super::{
    clocked::{self, Terms},
    plan::ROUND_TRIPS,
    stand::Stand,
};
use crate::{
    gpu::gate::{Ended, RoundTrip, Side},
    model::{
        case::Outcome,
        traffic::{Place, Traffic},
    },
    probe::{
        mechanism::StartError,
        seat::SeatError,
        transfer::{self, Setting},
    },
};
use std::time::{Duration, Instant};

/// Round trips of a launch that do not count.
const SKIP: u64 = 32;
/// How long a side waits for a flag, by its own clock.
const LIMIT: Duration = Duration::from_secs(1);

fn failed(error: impl Into<SeatError>) -> Outcome {
    transfer::failure(error.into(), true)
}

/// Times round trips between the ends of the first flow; its source leads.
pub(super) fn run(
    setting: &Setting,
    stand: &mut Stand,
    case: &mut Traffic,
    terms: &Terms,
) -> Result<Outcome, Outcome> {
    clocked::open(setting, stand, terms)?;
    let ends = case
        .flows
        .first()
        .map(|flow| (flow.source, flow.destination));
    let Some((Place::Gpu(leader), Place::Gpu(follower))) = ends else {
        return Err(clocked::misfit());
    };
    let seats = [leader, follower].map(|gpu| clocked::seat(setting, gpu));
    let [leading, following] = seats;
    let (leading, following) = (leading?, following?);
    clocked::reach(leading, following)?;
    clocked::reach(following, leading)?;
    for seat in [leading, following] {
        if let Some(why) = seat.no_kernels() {
            return Err(why.outcome());
        }
        let desk = stand.desk_mut(seat.gpu).ok_or_else(clocked::misfit)?;
        desk.equip(seat, 1, 2).map_err(failed)?;
    }
    let begun = Instant::now();
    let mut kept = 0;
    // The first launch is the warm-up.
    loop {
        let took = launch(setting, stand, (leader, follower))?;
        if kept > 0 {
            let us = took.as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS);
            case.whole.push(us);
        }
        kept += 1;
        case.warmup = 1;
        if clocked::enough(&case.whole, terms.patience, begun.elapsed()) {
            return Ok(Outcome::Intact);
        }
    }
}

/// One launch of both sides; the time of the rounds that count.
fn launch(
    setting: &Setting,
    stand: &mut Stand,
    (leader, follower): (u32, u32),
) -> Result<Duration, Outcome> {
    let limit = transfer::limit(0, setting.factor) + 2 * LIMIT * setting.factor;
    for gpu in [leader, follower] {
        let seat = clocked::seat(setting, gpu)?;
        let desk = stand.desk_mut(gpu).ok_or_else(clocked::misfit)?;
        desk.reset();
        seat.stream
            .set_bytes(desk.flag.region(), 0)
            .map_err(failed)?;
        seat.stream.wait(limit).map_err(failed)?;
    }
    let desk = |gpu: u32| stand.desk(gpu).ok_or_else(clocked::misfit);
    // One stop word for both: who gives up ends the other.
    let (stop, _) = desk(leader)?.control().ok_or_else(clocked::misfit)?;
    for (gpu, peer, leads) in [(follower, leader, false), (leader, follower, true)] {
        let own = desk(gpu)?;
        let (_, report) = own.control().ok_or_else(clocked::misfit)?;
        let side = Side {
            flag: own.flag.region(),
            peer_flag: desk(peer)?.flag.region(),
            stop,
            report,
            leads,
        };
        let stream = own
            .stream(crate::model::traffic::Streams::NonBlocking, 0)
            .ok_or_else(clocked::misfit)?;
        let gate = own.gate.as_ref().ok_or_else(clocked::misfit)?;
        let rounds = (u64::from(ROUND_TRIPS) + SKIP, SKIP);
        gate.round_trip(stream, &side, rounds, LIMIT)
            .map_err(|error| failed(StartError::from(error)))?;
    }
    for gpu in [leader, follower] {
        let stream = desk(gpu)?.stream(crate::model::traffic::Streams::NonBlocking, 0);
        stream
            .ok_or_else(clocked::misfit)?
            .wait(limit)
            .map_err(failed)?;
    }
    let reports = (desk(leader)?.report(), desk(follower)?.report());
    match reports {
        (Some(led), Some(echoed)) if led.ended == Ended::Done && echoed.ended == Ended::Done => {
            Ok(led.took)
        }
        (led, echoed) => Err(never(led, echoed)),
    }
}

/// Which round never came: that of the side that got less far.
fn never(led: Option<RoundTrip>, echoed: Option<RoundTrip>) -> Outcome {
    let reports = [led, echoed].into_iter().flatten();
    let done = reports.map(|report| report.rounds).min().unwrap_or(0);
    Outcome::Never {
        round: done as u32 + 1,
        rounds: ROUND_TRIPS + SKIP as u32,
        after_ms: LIMIT.as_millis() as u64,
        missing: None,
    }
}
