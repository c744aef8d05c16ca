//! Rung 5: two kernels that stay resident, one on each GPU of a pair, exchange payload and then flag both ways, for many
//! rounds. Content that is wrong and stays wrong, content that comes after its flag, and a flag that never comes are three
//! outcomes, told for each direction by the kernel that owns the memory.
//!
//! Everything is allocated, loaded and launched once before the first kernel waits; until both have ended, this process
//! calls nothing but queries of their streams. Here are both sides in one process, and what a side of an exchange between
//! processes shares with them: `rank` has that side, `ranks` leads the two.

use super::{
    examine::{self, Keys, Target},
    integrity::{self, Evidence},
    mechanism::{Place, StartError},
    seat::{Seat, SeatError},
    transfer::Setting,
    wire::Answer,
};
use crate::{
    gpu::{
        DeviceMemory, PinnedMemory, Stream, WaitError,
        memory::Region,
        resident::{
            CHANNELS, EVIDENCE_SLOTS, End, Ended, FLAG_STRIDE, Mailbox, REPORT_BYTES, Report,
            Terms, fresh_report, read_report,
        },
    },
    model::{
        case::{Case, Corruption, Outcome, PeerAccess, Subject, WrongKind},
        pair::OrderedPair,
    },
    words::{self, Key, Role, UNIT},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A way of exchanging.
pub struct Exchange {
    /// As in `--mechanism` and in records.
    pub id: &'static str,
    /// In words.
    pub title: &'static str,
    /// Which worker processes carry it.
    pub place: Place,
}

/// All of them. Their numbers inside words follow those of pair mechanisms and of tests of one GPU.
pub const ROSTER: [Exchange; 2] = [
    Exchange {
        id: "resident",
        title: "resident kernels exchange payload and flag, both ways, many rounds",
        place: Place::On,
    },
    Exchange {
        id: "ipc-resident",
        title: "the same between two processes, over memory opened by CUDA IPC handle",
        place: Place::Ranks,
    },
];

/// Numbers inside words from here on.
const FIRST_NUMBER: u8 = 48;
/// Numbers of the two directions of an exchange on one GPU.
const SAME_GPU: [u8; 2] = [56, 57];
/// The same between two processes on it: what the first receives, what the second does.
pub(super) const BETWEEN_PROCESSES: [u8; 2] = [58, 59];

/// How long a kernel waits for a flag by its own clock. A flag takes microseconds; a fabric that stalls for a second is
/// one that programs with deadlines of their own give up on.
const LIMIT: Duration = Duration::from_secs(1);
/// How long a payload that was wrong at its flag may take to become right.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same between processes, whose kernels start when each was told to; and between two on one GPU, of which one waits
/// while the other has its slice of time.
const APART: Duration = Duration::from_secs(2);
const SLICED: Duration = Duration::from_secs(10);
/// Wall time of a round on a slow link, far above what any link needs.
const ROUND: Duration = Duration::from_millis(2);
/// The same where both sides share a GPU by slices of time.
const SLICED_ROUND: Duration = Duration::from_millis(200);
/// What a stream may take to end once it was told to stop.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Flags count through zero in the middle of an exchange: a comparison that is not signed would hang there.
fn epoch(rounds: u32) -> u32 {
    0u32.wrapping_sub(rounds / 2)
}
/// Room for a side's flags, and for its reports, bytes; also where its images lie in pinned memory.
const PAGE: u64 = 4096;

/// The exchange with this id.
pub fn by_id(id: &str) -> Option<&'static Exchange> {
    ROSTER.iter().find(|exchange| exchange.id == id)
}

/// How long a kernel of this case waits for a flag, by its own clock.
pub(super) fn patience_for_flags(case: &Case) -> Duration {
    match (by_id(&case.mechanism), case.subject) {
        (Some(exchange), Subject::Pair(_)) if exchange.place == Place::Ranks => APART,
        (Some(exchange), Subject::Gpu(_)) if exchange.place == Place::Ranks => SLICED,
        _ => LIMIT,
    }
}

/// Wall time after which an exchange that has not ended by itself is told to stop, on real hardware.
pub(super) fn whole(case: &Case) -> Duration {
    let limit = patience_for_flags(case);
    let round = if limit == SLICED { SLICED_ROUND } else { ROUND };
    2 * limit + round * case.attempts + GRACE
}

/// Its number inside words.
pub(super) fn number(id: &str) -> u8 {
    let at = ROSTER.iter().position(|exchange| exchange.id == id);
    at.map_or(63, |at| FIRST_NUMBER + at as u8)
}

/// The id that a number inside words stands for. Their attempts are rounds.
pub(super) fn of_number(number: u8) -> Option<&'static str> {
    let at = number.checked_sub(FIRST_NUMBER)?;
    ROSTER.get(usize::from(at)).map(|exchange| exchange.id)
}

/// Who executes a direction, for records.
pub fn executor(subject: Subject) -> String {
    match subject {
        Subject::Pair(pair) => format!(
            "multiprocessors of GPU{}; those of GPU{} wait and judge",
            pair.source, pair.destination
        ),
        Subject::Gpu(gpu) => format!("multiprocessors of GPU{gpu}, between two processes on it"),
        Subject::Group(group) => format!("multiprocessors of {group}"),
    }
}

/// Bytes that a side's buffer holds for slots of `slot` bytes.
pub(super) fn inbox_bytes(slot: u64) -> u64 {
    2 * u64::from(CHANNELS) * slot
}

/// Where the peer writes in the buffer `room` of a side, with guard bands of `guard` bytes; `None` when it is too small.
pub(super) fn mailbox(room: Region, guard: u64, slot: u64) -> Option<(Target, Mailbox)> {
    let inbox = inbox_bytes(slot);
    let target = Target::of(room, guard, 0, inbox)?;
    let flags = room.part(2 * guard + inbox, PAGE)?;
    let mailbox = Mailbox {
        inbox: target.to,
        flags: flags.part(0, u64::from(CHANNELS) * FLAG_STRIDE)?,
    };
    Some((target, mailbox))
}

/// The other side, as one of them knows it: where it receives, and the key of what arrives there.
pub(super) type Peer = (Mailbox, Key);

/// One side: a kernel, and the memory that it owns.
pub(super) struct Side<'a> {
    seat: &'a Seat,
    stream: &'a Stream,
    target: Target,
    end: End,
    /// Where its flags and reports are made in pinned memory.
    image: usize,
    /// Keys of what arrives here.
    keys: Keys,
}

/// How a side's kernel ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// By itself or when it was told to, with the report of each channel.
    Ended(Vec<Report>),
    /// Not within this time, though it was told to stop.
    Hung(Duration),
    /// In an error, or it was not begun.
    Failed(Outcome),
}

impl<'a> Side<'a> {
    /// In the buffers of a seat, what the peer writes all in one of them; `None` when they are too small.
    pub(super) fn of(seat: &'a Seat, guard: u64, keys: Keys, slot: u64) -> Option<Side<'a>> {
        let (room, own) = (seat.destination.region(), seat.scratch.region());
        let place = mailbox(room, guard, slot)?;
        Side::with(seat, &seat.stream, (place, own), keys, (slot, 0))
    }

    fn with(
        seat: &'a Seat,
        stream: &'a Stream,
        ((target, mailbox), own): ((Target, Mailbox), Region),
        keys: Keys,
        (slot, nth): (u64, u64),
    ) -> Option<Side<'a>> {
        let channels = u64::from(CHANNELS);
        let end = End {
            mailbox,
            reports: own.part(0, channels * REPORT_BYTES)?,
            evidence: own.part(PAGE, EVIDENCE_SLOTS * channels * slot)?,
        };
        Some(Side {
            seat,
            stream,
            target,
            end,
            image: ((1 + 2 * nth) * PAGE) as usize,
            keys,
        })
    }

    /// What the other side has to know of this one.
    fn as_peer(&self) -> Peer {
        (self.end.mailbox, self.keys.payload)
    }

    /// Launches the kernel once for nothing, then poisons the inbox and sets flags and reports to their start.
    pub(super) fn prepare(
        &self,
        peer: Peer,
        terms: &Terms,
        limit: Duration,
    ) -> Result<(), SeatError> {
        let nothing = Terms {
            rounds: 0,
            ..*terms
        };
        self.launch(peer, &nothing)?;
        self.stream.wait(limit)?;
        let (seat, target) = (self.seat, self.target);
        // Both slots with the same units, as payloads come: what was never written to is then told as such.
        let half = target.to.bytes() / 2;
        for slot in 0..2 {
            let part = target.to.part(slot * half, half).ok_or(SeatError::Layout)?;
            seat.fill(part, target.first, self.keys.poison, limit)?;
        }
        seat.fill(target.before, 0, self.keys.guard, limit)?;
        seat.fill(target.after, 1 << 32, self.keys.guard, limit)?;
        let start = epoch(terms.rounds);
        let mut flags = vec![0; self.end.mailbox.flags.bytes() as usize];
        for flag in flags.chunks_mut(FLAG_STRIDE as usize) {
            if let Some(word) = flag.first_chunk_mut::<4>() {
                *word = start.to_le_bytes();
            }
        }
        self.put(self.image, self.end.mailbox.flags, &flags)?;
        let reports = fresh_report(start).repeat(CHANNELS as usize);
        self.put(self.image + PAGE as usize, self.end.reports, &reports)?;
        Ok(self.seat.stream.wait(limit)?)
    }

    /// Queues a copy of `data` to device memory, through pinned memory at `at`.
    fn put(&self, at: usize, to: Region, data: &[u8]) -> Result<(), SeatError> {
        let pinned = &self.seat.pinned;
        let words = data.as_chunks::<4>().0;
        let stored = words
            .iter()
            .enumerate()
            .all(|(n, word)| pinned.store_u32(at + 4 * n, u32::from_le_bytes(*word)));
        let from = pinned.region().part(at as u64, data.len() as u64);
        match (stored, from) {
            (true, Some(from)) => Ok(self.seat.stream.copy(to, from)?),
            _ => Err(SeatError::Layout),
        }
    }

    pub(super) fn launch(&self, peer: Peer, terms: &Terms) -> Result<(), SeatError> {
        let kernel = self
            .seat
            .resident()
            .map_err(|why| SeatError::Start(StartError::CannotRun(why.reason.clone())))?;
        let (mailbox, sent) = peer;
        let keys = (self.keys.payload, sent);
        let queued = kernel.exchange(self.stream, (&self.end, &mailbox), keys, terms);
        queued.map_err(|error| SeatError::Start(error.into()))
    }

    pub(super) fn reports(&self, rounds: u32, limit: Duration) -> Result<Vec<Report>, SeatError> {
        let bytes = self.end.reports.bytes();
        let seen = self.seat.read_back(self.end.reports, bytes, limit)?;
        seen.chunks(REPORT_BYTES as usize)
            .map(|channel| read_report(channel, epoch(rounds)).ok_or(SeatError::Layout))
            .collect()
    }

    /// What is wrong with what arrived here, if anything.
    pub(super) fn corruption(
        &self,
        reports: &[Report],
        terms: &Terms,
        limit: Duration,
    ) -> Result<Option<Corruption>, SeatError> {
        let damage =
            |band: Region, first: u64| self.seat.verify(band, first, self.keys.guard, limit);
        let guard_damage =
            damage(self.target.before, 0)?.wrong + damage(self.target.after, 1 << 32)?.wrong;
        let units = terms.slot / UNIT;
        let kept = reports.iter().enumerate().filter_map(|(channel, report)| {
            let (round, late, after) = report.kept?;
            Some((late, round, channel as u64, after))
        });
        // What stayed wrong before what was late, the earliest round first.
        let Some((late, round, channel, after)) = kept.min() else {
            let odd = reports
                .iter()
                .filter_map(|report| report.odd)
                .min_by_key(|odd| odd.1);
            return Ok(match odd {
                None if guard_damage == 0 => None,
                odd => Some(self.bare(odd, guard_damage, (units, judged(reports)))),
            });
        };
        let plane = |nth: u64| {
            let at = (channel * EVIDENCE_SLOTS + nth) * terms.slot;
            let part = self
                .end
                .evidence
                .part(at, terms.slot)
                .ok_or(SeatError::Layout)?;
            self.seat.read_back(part, terms.slot, limit)
        };
        let (seen, again) = (plane(1)?, plane(2)?);
        let key = Key {
            attempt: round as u16,
            ..self.keys.payload
        };
        let first = channel * units;
        let census = integrity::census(&seen, first, key, self.keys.poison);
        let (kind, detail) = integrity::name(&Evidence {
            key,
            target: &census,
            accessor_sees_right: None,
            spilled: None,
            guard_damage,
            found_in: None,
        });
        let place = format!("round {round} of {}, block {channel}", terms.rounds);
        let (kind, detail) = match late {
            true => (
                WrongKind::Late,
                format!(
                    "{place}: when its flag was there, {detail}; all right {} us later",
                    after.as_micros().max(1)
                ),
            ),
            false => (kind, format!("{place}: {detail}")),
        };
        let expected = words::stream(key.pack(), first, seen.len());
        let (samples, bits) =
            examine::differing((&seen, &again), (&expected, 0), channel * terms.slot, key);
        let detail = match bits.filter(|_| kind == WrongKind::Flipped) {
            Some(bits) => format!("{detail}: {bits}"),
            None => detail,
        };
        let wrong_units = units - census.counts.equal.min(units);
        let offset = examine::first_wrong(&census);
        Ok(Some(Corruption {
            kind,
            detail,
            attempt: round,
            wrong_attempts: reports.iter().map(|r| r.wrong_rounds).max().unwrap_or(1),
            attempts_ran: judged(reports),
            first_offset: channel * terms.slot + offset,
            last_offset: channel * terms.slot + (census.last_wrong + 1) * UNIT,
            wrong_units,
            units,
            counts: census.counts,
            samples,
            accessor_sees_right: None,
            source_intact: None,
            owner_views_agree: None,
        }))
    }

    /// Wrong without a wrong payload: a flag word that was never sent, or damage around the slots.
    fn bare(
        &self,
        odd: Option<(u32, u32)>,
        guard_damage: u64,
        (units, rounds): (u64, u32),
    ) -> Corruption {
        let (kind, attempt, detail) = match odd {
            Some((flag, round)) => (
                WrongKind::Mixed,
                round,
                format!("the flag of round {round} read {flag} where {round} or the next belongs"),
            ),
            None => (
                WrongKind::Spilled,
                1,
                format!(
                    "no payload wrong in {rounds} rounds judged, but {guard_damage} guard units around them were overwritten"
                ),
            ),
        };
        Corruption {
            kind,
            detail,
            attempt,
            wrong_attempts: 1,
            attempts_ran: rounds.max(1),
            first_offset: 0,
            last_offset: 0,
            wrong_units: 0,
            units,
            counts: crate::model::case::UnitCounts {
                equal: units,
                ..Default::default()
            },
            samples: Vec::new(),
            accessor_sees_right: None,
            source_intact: None,
            owner_views_agree: None,
        }
    }
}

/// Rounds that every channel judged.
fn judged(reports: &[Report]) -> u32 {
    reports
        .iter()
        .map(|report| report.judged)
        .min()
        .unwrap_or(0)
}

/// Two sides and how they ended.
struct Meeting<'a> {
    sides: [Side<'a>; 2],
    terms: Terms,
    limit: Duration,
    launched: Result<(), SeatError>,
    ends: Option<[Result<(), WaitError>; 2]>,
    states: Vec<State>,
}

impl<'a> Meeting<'a> {
    fn new(setting: &Setting, sides: [Side<'a>; 2], case: &Case) -> Option<Meeting<'a>> {
        Some(Meeting {
            terms: terms(sides[0].seat, case)?,
            limit: super::transfer::limit(inbox_bytes(slot(case)), setting.factor),
            launched: Ok(()),
            ends: None,
            states: Vec::new(),
            sides,
        })
    }

    fn stop(&self) -> &'a PinnedMemory {
        &self.sides[0].seat.pinned
    }

    /// Everything that must not happen while a kernel waits.
    fn prepare(&mut self) {
        self.stop().store_u32(0, 0);
        let [a, b] = &self.sides;
        self.launched = a
            .prepare(b.as_peer(), &self.terms, self.limit)
            .and_then(|()| b.prepare(a.as_peer(), &self.terms, self.limit));
    }

    fn launch(&mut self) {
        if self.launched.is_err() {
            return;
        }
        let [a, b] = &self.sides;
        self.launched = a
            .launch(b.as_peer(), &self.terms)
            .and_then(|()| b.launch(a.as_peer(), &self.terms));
        if self.launched.is_err() {
            self.stop().store_u32(0, 1);
        }
    }

    /// Waits until both kernels have ended.
    fn finish(&mut self, deadline: Instant, factor: u32) {
        self.ends = Some(self.await_both(deadline, factor));
    }

    /// Reads what the kernels report. Not while any kernel waits.
    fn read(&mut self, started: Instant) {
        let Some(ends) = self.ends.take() else {
            return;
        };
        let (launched, terms, limit) = (&self.launched, &self.terms, self.limit);
        let read = |side: &Side, end: Result<(), WaitError>| {
            end?;
            launched.clone()?;
            side.reports(terms.rounds, limit)
        };
        let states = self.sides.iter().zip(ends);
        self.states = states
            .map(|(side, end)| match read(side, end) {
                Ok(reports) => State::Ended(reports),
                Err(SeatError::Wait(WaitError::TimedOut(_))) => State::Hung(started.elapsed()),
                Err(error) => State::Failed(failure(error)),
            })
            .collect();
    }

    /// Waits for both kernels. One that still runs well after the other gave up, or after `deadline`, is told to stop; one
    /// that does not even then hangs.
    fn await_both(&self, deadline: Instant, factor: u32) -> [Result<(), WaitError>; 2] {
        let mut deadline = deadline;
        let mut one_ended = false;
        loop {
            let done = self.sides.each_ref().map(|side| side.stream.is_done());
            let running = |done: &Result<bool, _>| matches!(done, Ok(false));
            if !done.iter().any(running) {
                break;
            }
            if !one_ended && !done.iter().all(running) {
                one_ended = true;
                deadline = deadline.min(Instant::now() + (LIMIT + GRACE) * factor);
            }
            if Instant::now() > deadline {
                self.stop().store_u32(0, 1);
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.sides
            .each_ref()
            .map(|side| side.stream.wait(GRACE * factor))
    }

    /// What the side `to` saw of what the other one sent, the rounds judged, and whether this process is done for.
    fn outcome(&self, to: usize) -> (Outcome, u32, bool) {
        let (Some(side), Some(owner), Some(sender)) = (
            self.sides.get(to),
            self.states.get(to),
            self.states.get(1 - to),
        ) else {
            return (not_run("the exchange was not begun"), 0, false);
        };
        let found = match owner {
            State::Ended(reports) => side
                .corruption(reports, &self.terms, self.limit)
                .map_err(failure),
            State::Hung(_) | State::Failed(_) => Ok(None),
        };
        conclude((sender, owner), found, self.terms.rounds)
    }
}

/// What a direction comes to by how its two sides ended and what its owner found wrong: the outcome, the rounds judged, and
/// whether the processes that carried it are done for.
pub(super) fn conclude(
    (sender, owner): (&State, &State),
    found: Result<Option<Corruption>, Outcome>,
    rounds: u32,
) -> (Outcome, u32, bool) {
    let retire = [owner, sender]
        .iter()
        .any(|s| !matches!(s, State::Ended(_)));
    let seen = match owner {
        State::Ended(reports) => match found {
            // Corruption seen once outranks whatever else happened.
            Ok(Some(found)) => {
                return (Outcome::Corrupt(Box::new(found)), judged(reports), retire);
            }
            Ok(None) => Ok(reports),
            Err(outcome) => Err(outcome),
        },
        State::Hung(_) => Err(not_run(
            "the kernel that judges this direction did not end, so nothing that it saw can be read",
        )),
        State::Failed(_) => Err(not_run("the kernel that judges this direction failed")),
    };
    let outcome = match (sender, seen) {
        // The sender's own stores hang or fault.
        (State::Hung(after), _) => Outcome::TimedOut {
            after_ms: after.as_millis() as u64,
        },
        (State::Failed(outcome), _) => outcome.clone(),
        (State::Ended(_), Err(outcome)) => outcome,
        (State::Ended(sent), Ok(seen)) => {
            return (ending(sent, seen, rounds), judged(seen), retire);
        }
    };
    (outcome, 0, retire)
}

/// Of both directions of an exchange on one GPU, the worse one.
pub(super) fn worse(a: (Outcome, u32, bool), b: (Outcome, u32, bool)) -> (Outcome, u32, bool) {
    match (a.0.is_failure(), b.0.is_intact()) {
        (false, false) => b,
        _ => a,
    }
}

/// The terms of a case for a side on `seat`, in whose pinned memory the stop word lies.
pub(super) fn terms(seat: &Seat, case: &Case) -> Option<Terms> {
    Some(Terms {
        stop: seat.pinned.region().part(0, 4)?,
        slot: slot(case),
        rounds: case.attempts,
        limit: patience_for_flags(case),
        patience: PATIENCE,
    })
}

/// What it means that payloads were right as far as they came. Of two sides that wait for each other, the one that lacks
/// the earlier round was let down; the other only stopped because of that.
fn ending(sent: &[Report], seen: &[Report], rounds: u32) -> Outcome {
    let waits = |report: &Report| match report.ended {
        Ended::Done => u32::MAX,
        _ => report.judged + 1,
    };
    let let_down = sent.iter().zip(seen).filter_map(|(there, here)| {
        let by_clock = [there, here].iter().any(|r| r.ended == Ended::Never);
        (by_clock && waits(here) <= waits(there)).then_some((waits(here), here.waited))
    });
    if let Some((round, waited)) = let_down.min() {
        return Outcome::Never {
            round,
            rounds,
            after_ms: waited.as_millis() as u64,
            missing: None,
        };
    }
    if seen.iter().all(|report| report.ended == Ended::Done) {
        return Outcome::Intact;
    }
    let round = seen.iter().map(waits).min().unwrap_or(0);
    not_run(&format!(
        "the exchange ended in round {round} of {rounds}, for want of the other direction; right until then"
    ))
}

/// Bytes of one channel in a round.
pub(super) fn slot(case: &Case) -> u64 {
    case.bytes / u64::from(CHANNELS)
}

pub(super) fn not_run(reason: &str) -> Outcome {
    Outcome::NotRun {
        reason: reason.to_string(),
    }
}

pub(super) fn failure(error: SeatError) -> Outcome {
    match error {
        SeatError::Wait(WaitError::TimedOut(_)) => {
            not_run("its GPUs did not answer before or after the exchange")
        }
        SeatError::Wait(WaitError::Driver(error)) | SeatError::Start(StartError::Driver(error)) => {
            Outcome::Faulted {
                api: error.api.to_string(),
                code: error.code,
                name: error.name,
            }
        }
        other => not_run(&other.to_string()),
    }
}

pub(super) fn keys(run: u32, source: u32, destination: u32, mechanism: u8) -> Keys {
    let key = |role| Key {
        run,
        source: source as u8,
        destination: destination as u8,
        mechanism,
        attempt: 0,
        role,
    };
    Keys {
        payload: key(Role::Payload),
        poison: key(Role::Poison),
        guard: key(Role::Guard),
    }
}

/// Runs the exchanges of disjoint pairs side by side and answers each case. A case of one direction runs both and answers
/// its own.
pub fn run(setting: &Setting, cases: &[&Case], mut emit: impl FnMut(Answer)) {
    let mut meetings: Vec<(OrderedPair, Result<Meeting, Outcome>, Vec<&Case>)> = Vec::new();
    let started = Instant::now();
    for case in cases {
        let Some(pair) = case.subject.pair() else {
            continue;
        };
        let same = meetings
            .iter_mut()
            .find(|(known, _, _)| *known == pair || *known == pair.reversed());
        match same {
            Some((_, _, cases)) => cases.push(case),
            None => meetings.push((pair, arrange(setting, pair, case), vec![case])),
        }
    }
    let mut live: Vec<&mut Meeting> = meetings
        .iter_mut()
        .filter_map(|(_, meeting, _)| meeting.as_mut().ok())
        .collect();
    live.iter_mut().for_each(|meeting| meeting.prepare());
    let launched = Instant::now();
    let longest = cases.iter().map(|case| whole(case)).max();
    let deadline = launched + longest.unwrap_or_default() * setting.factor;
    live.iter_mut().for_each(|meeting| meeting.launch());
    // Nothing is read back before all have ended: a copy may wait for a resident kernel of another pair.
    live.iter_mut()
        .for_each(|meeting| meeting.finish(deadline, setting.factor));
    live.iter_mut().for_each(|meeting| meeting.read(launched));
    for (pair, meeting, cases) in meetings {
        for case in cases {
            let (outcome, ran, retire) = match &meeting {
                Ok(meeting) => meeting.outcome(usize::from(case.subject.pair() == Some(pair))),
                Err(outcome) => (outcome.clone(), 0, false),
            };
            emit(Answer {
                id: case.id,
                outcome,
                peer_access: match setting.peer_access {
                    true => PeerAccess::Both,
                    false => PeerAccess::Off,
                },
                executor: executor(case.subject),
                attempts_ran: ran,
                rate: None,
                took_ms: started.elapsed().as_secs_f64() * 1e3,
                notes: Vec::new(),
                retire,
                reductions: Vec::new(),
            });
        }
    }
}

/// The two sides of a pair: the source's first. Loads the kernels, which must not be done once one of them waits.
fn arrange<'a>(
    setting: &Setting<'a>,
    pair: OrderedPair,
    case: &Case,
) -> Result<Meeting<'a>, Outcome> {
    let seat = |gpu: u32| setting.seats.iter().find(|seat| seat.gpu == gpu);
    let (Some(source), Some(destination)) = (seat(pair.source.0), seat(pair.destination.0)) else {
        return Err(not_run("a GPU of the pair is not open in this worker"));
    };
    for seat in [source, destination] {
        room(seat, 1)?;
    }
    let number = number(&case.mechanism);
    let (there, here) = (pair.source.0, pair.destination.0);
    let side = |seat: &'a Seat, from, to| {
        let keys = keys(setting.run, from, to, number);
        Side::of(seat, seat.guard(), keys, slot(case))
    };
    let sides = side(source, here, there).zip(side(destination, there, here));
    sides
        .and_then(|(a, b)| Meeting::new(setting, [a, b], case))
        .ok_or_else(|| not_run("the case does not fit the worker's buffers"))
}

/// Whether `sides` resident kernels fit the GPU of `seat` at once.
pub(super) fn room(seat: &Seat, sides: u32) -> Result<(), Outcome> {
    let kernel = seat.resident().map_err(|why| why.outcome())?;
    match kernel.fits(sides) {
        Ok(true) => Ok(()),
        Ok(false) => Err(not_run(
            "the kernels that wait for each other do not fit the GPU at once",
        )),
        Err(error) => Err(failure(SeatError::Start(error.into()))),
    }
}

/// The same on one GPU: two streams of one process whose blocks fit the device at once. The worse direction answers.
pub fn same_gpu(setting: &Setting, seat: &Seat, case: &Case) -> (Outcome, u32, bool) {
    let slot = slot(case);
    let (guard, inbox) = (seat.guard(), inbox_bytes(slot));
    let evidence = EVIDENCE_SLOTS * u64::from(CHANNELS) * slot;
    let made = room(seat, 2).and_then(|()| {
        let arena = DeviceMemory::new(&seat.context, 2 * guard + inbox + 2 * PAGE + evidence);
        let stream = Stream::new(&seat.context);
        arena
            .and_then(|arena| Ok((arena, stream?)))
            .map_err(|error| failure(error.into()))
    });
    let (arena, stream) = match made {
        Ok(made) => made,
        Err(outcome) => return (outcome, 0, false),
    };
    let all = arena.region();
    let second = || {
        let place = mailbox(all, guard, slot)?;
        let own = all.part(2 * guard + inbox + PAGE, PAGE + evidence)?;
        let keys = keys(setting.run, seat.gpu, seat.gpu, SAME_GPU[1]);
        Side::with(seat, &stream, (place, own), keys, (slot, 1))
    };
    let keys = keys(setting.run, seat.gpu, seat.gpu, SAME_GPU[0]);
    let first = Side::of(seat, guard, keys, slot);
    let meeting = first
        .zip(second())
        .and_then(|(a, b)| Meeting::new(setting, [a, b], case));
    let Some(mut meeting) = meeting else {
        return (
            not_run("the case does not fit the worker's buffers"),
            0,
            false,
        );
    };
    meeting.prepare();
    let launched = Instant::now();
    meeting.launch();
    meeting.finish(launched + whole(case) * setting.factor, setting.factor);
    meeting.read(launched);
    worse(meeting.outcome(0), meeting.outcome(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ended: Ended, judged: u32) -> Report {
        Report {
            ended,
            judged,
            wrong_rounds: 0,
            late_rounds: 0,
            kept: None,
            odd: None,
            waited: Duration::from_millis(if ended == Ended::Never { 1000 } else { 1 }),
        }
    }

    #[test]
    fn the_side_that_lacks_the_earlier_round_was_let_down() {
        use Ended::{Done, Never, Stopped};
        let never = |round| Outcome::Never {
            round,
            rounds: 9,
            after_ms: 1000,
            missing: None,
        };
        // Here round 5 never came; there round 6 did not, because this side stopped.
        let (here, there) = ([report(Never, 4)], [report(Stopped, 5)]);
        assert_eq!(ending(&there, &here, 9), never(5));
        assert!(matches!(ending(&here, &there, 9), Outcome::NotRun { .. }));
        // The clock that ran out first may be the other one's.
        let (here, there) = ([report(Stopped, 4)], [report(Never, 5)]);
        assert!(matches!(
            ending(&there, &here, 9),
            Outcome::Never { round: 5, .. }
        ));
        assert!(matches!(ending(&here, &there, 9), Outcome::NotRun { .. }));
        // Both lack the same round: both were let down.
        let both = [report(Never, 4)];
        assert_eq!(ending(&both, &both, 9), never(5));
        // A channel that was merely stopped says nothing.
        let (here, there) = (
            [report(Never, 4), report(Stopped, 7)],
            [report(Stopped, 5), report(Stopped, 6)],
        );
        assert_eq!(ending(&there, &here, 9), never(5));
        assert!(matches!(ending(&here, &there, 9), Outcome::NotRun { .. }));
        let done = [report(Done, 9)];
        assert_eq!(ending(&done, &done, 9), Outcome::Intact);
    }

    #[test]
    fn words_name_the_exchange_and_the_round() {
        let expected = Key {
            run: 7,
            source: 0,
            destination: 1,
            mechanism: number("resident"),
            attempt: 300,
            role: Role::Payload,
        };
        let found = Key {
            attempt: 298,
            ..expected
        };
        assert_eq!(
            integrity::origin_text(found, expected),
            "payload of 0->1 by resident, round 298"
        );
    }

    #[test]
    fn flags_pass_zero_in_the_middle() {
        for rounds in [32, 256, 4096] {
            let start = epoch(rounds);
            assert!(start.wrapping_add(rounds) < start);
            assert_eq!(start.wrapping_add(rounds / 2), 0);
        }
    }
}
