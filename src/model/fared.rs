//! How the cases of one mechanism fared together, whatever their sizes. A report has thousands of records and a few dozen of
//! these for each pair, and what is judged of a pair is judged of them: what stands on a rung, who may rely on it, how often it
//! was tried. Knows what became of cases, not why.

use super::{
    case::{Outcome, PeerAccess, Record, Rung, WrongKind},
    ladder::made_up_for,
};

/// Which kinds of answers came, each kind of wrong data by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers(u32);

impl Answers {
    const INTACT: Answers = Answers(1 << 12);
    const REFUSED: Answers = Answers(1 << 13);
    const FAULTED: Answers = Answers(1 << 14);
    const TIMED_OUT: Answers = Answers(1 << 15);
    const NEVER: Answers = Answers(1 << 16);
    const DIED: Answers = Answers(1 << 17);
    const NOT_APPLICABLE: Answers = Answers(1 << 18);
    const NOT_RUN: Answers = Answers(1 << 19);
    const CORRUPT: Answers = Answers((1 << WrongKind::ALL.len()) - 1);
    const BROKEN: Answers =
        Answers(Self::FAULTED.0 | Self::TIMED_OUT.0 | Self::NEVER.0 | Self::DIED.0);
    const FAILED: Answers = Answers(Self::CORRUPT.0 | Self::BROKEN.0);
    const RAN: Answers = Answers(Self::FAILED.0 | Self::INTACT.0 | Self::REFUSED.0);
    /// What a fault that lies between two GPUs looks like: bytes missing, aborted, late, seen by the writer only, or a case that
    /// never ends. Few flipped bits, shifted, spilled and misrouted words have other causes.
    const PATH_SYMPTOM: Answers = Answers(
        Self::FAILED.0
            & !Self::wrong(WrongKind::Flipped).0
            & !Self::wrong(WrongKind::Shifted).0
            & !Self::wrong(WrongKind::Spilled).0
            & !Self::wrong(WrongKind::Misrouted).0,
    );

    const fn wrong(kind: WrongKind) -> Answers {
        Answers(1 << kind as u32)
    }

    /// The one kind of answer that `outcome` is.
    pub fn of(outcome: &Outcome) -> Answers {
        match outcome {
            Outcome::Intact => Self::INTACT,
            Outcome::Corrupt(wrong) => Self::wrong(wrong.kind),
            Outcome::Refused { .. } => Self::REFUSED,
            Outcome::Faulted { .. } => Self::FAULTED,
            Outcome::TimedOut { .. } => Self::TIMED_OUT,
            Outcome::Never { .. } => Self::NEVER,
            Outcome::Died { .. } => Self::DIED,
            Outcome::NotApplicable { .. } => Self::NOT_APPLICABLE,
            Outcome::NotRun { .. } => Self::NOT_RUN,
        }
    }

    fn add(&mut self, more: Answers) {
        self.0 |= more.0;
    }

    /// Whether any of `kinds` is among them.
    pub fn any_of(self, kinds: Answers) -> bool {
        self.0 & kinds.0 != 0
    }

    /// Those that count against the host, but for `kinds`.
    pub fn failed_but_for(self, kinds: Answers) -> bool {
        self.0 & Self::FAILED.0 & !kinds.0 != 0
    }

    /// Whether some were intact.
    pub fn intact(self) -> bool {
        self.any_of(Self::INTACT)
    }

    /// Whether some ran to an answer about the hardware.
    pub fn ran(self) -> bool {
        self.any_of(Self::RAN)
    }

    /// Whether some count against the host.
    pub fn failed(self) -> bool {
        self.any_of(Self::FAILED)
    }

    /// Whether some ran, and all of those were intact.
    pub fn all_right(self) -> bool {
        self.0 & Self::RAN.0 == Self::INTACT.0
    }

    /// Whether some show what a fault of the path between two GPUs looks like.
    pub fn path_symptom(self) -> bool {
        self.any_of(Self::PATH_SYMPTOM)
    }
}

/// All cases of one mechanism on one rung of one subject.
#[derive(Debug, Clone)]
pub struct Fared<'a> {
    /// Mechanism id.
    pub mechanism: &'a str,
    /// Rung.
    pub rung: Rung,
    /// All answers.
    pub answers: Answers,
    /// The answers of cases that did not go through the host.
    pub direct: Answers,
    /// The answers of cases that did.
    pub through_host: Answers,
    /// Whether some that did not were intact, and nothing shows that there was peer access.
    pub access_unknown: bool,
    /// Wrong data: of all such cases the longest, because a few bytes cannot tell a shift from a drop.
    pub corrupt: Option<&'a Record>,
    /// What counts against the host in another way: hangs before faults and deaths, then the first of the plan.
    pub broken: Option<&'a Record>,
    /// The first case of the plan to which the driver said a clean no.
    pub refused: Option<&'a Record>,
    /// Why the first case did not run that no other made up for.
    pub open: Option<&'a str>,
    /// Why the first case does not exist here that does not.
    pub absent: Option<&'a str>,
    /// How many cases count against the host.
    pub failures: u32,
    /// Attempts of all cases that moved data, right or wrong.
    pub attempts: u64,
    /// Of the cases with wrong data: attempts that were wrong.
    pub wrong_attempts: u32,
    /// Of the cases with wrong data: attempts that ran.
    pub attempts_of_wrong: u32,
    /// The first case of the plan with wrong data, by its id.
    first_corrupt: u32,
    /// Words of the longest with wrong data.
    longest: u64,
    /// The first case that did not run, and whether one of those is of a soak.
    not_run: Option<&'a str>,
    soak: bool,
    /// The mechanism takes every byte through the host.
    by_host: bool,
}

impl<'a> Fared<'a> {
    /// Of nothing yet.
    pub(crate) fn of(mechanism: &'a str, rung: Rung) -> Self {
        Fared {
            mechanism,
            rung,
            answers: Answers::default(),
            direct: Answers::default(),
            through_host: Answers::default(),
            access_unknown: false,
            corrupt: None,
            broken: None,
            refused: None,
            open: None,
            absent: None,
            failures: 0,
            attempts: 0,
            wrong_attempts: 0,
            attempts_of_wrong: 0,
            first_corrupt: u32::MAX,
            longest: 0,
            not_run: None,
            soak: false,
            by_host: Record::is_by_host(mechanism),
        }
    }

    /// Takes one more case of its mechanism and rung in.
    pub(crate) fn add(&mut self, record: &'a Record) {
        let answer = Answers::of(&record.outcome);
        self.answers.add(answer);
        let id = record.case.id;
        let earlier = |known: Option<&Record>| known.is_none_or(|known| id < known.case.id);
        match &record.outcome {
            Outcome::Intact => self.attempts += u64::from(record.attempts_ran),
            Outcome::Corrupt(wrong) => {
                self.attempts += u64::from(record.attempts_ran);
                self.wrong_attempts += wrong.wrong_attempts;
                self.attempts_of_wrong += wrong.attempts_ran;
                self.first_corrupt = self.first_corrupt.min(id);
                let longer = wrong.units > self.longest;
                if longer || wrong.units == self.longest && earlier(self.corrupt) {
                    (self.corrupt, self.longest) = (Some(record), wrong.units);
                }
            }
            Outcome::Refused { .. } => {
                if earlier(self.refused) {
                    self.refused = Some(record);
                }
            }
            Outcome::NotApplicable { reason } => self.absent = self.absent.or(Some(reason)),
            Outcome::NotRun { reason } => {
                self.not_run = self.not_run.or(Some(reason));
                self.soak |= record.case.soak;
            }
            Outcome::Faulted { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Never { .. }
            | Outcome::Died { .. } => {
                let hang = |r: &Record| {
                    matches!(r.outcome, Outcome::TimedOut { .. } | Outcome::Never { .. })
                };
                let key = |r: &Record| (!hang(r), r.case.id);
                if self.broken.is_none_or(|known| key(record) < key(known)) {
                    self.broken = Some(record);
                }
            }
        }
        self.failures += u32::from(answer.failed());
        if self.by_host || record.was_staged_by_driver() {
            self.through_host.add(answer);
        } else {
            self.direct.add(answer);
            let without = matches!(
                record.peer_access,
                PeerAccess::Off | PeerAccess::NotApplicable
            );
            self.access_unknown |= without && answer.intact();
        }
    }

    /// When all are in: whether others made up for those that did not run. `mine` are the records of the subject.
    pub(crate) fn close(&mut self, mine: &[&'a Record]) {
        // Only what ran makes up for what did not; more of the same, which a soak is, needs a closer look.
        self.open = self.not_run;
        if self.not_run.is_none() || !self.answers.ran() && !self.soak {
            return;
        }
        let own: Vec<&'a Record> = mine
            .iter()
            .copied()
            .filter(|r| r.case.rung == self.rung && r.case.mechanism == self.mechanism)
            .collect();
        self.open = own.iter().find_map(|r| match &r.outcome {
            Outcome::NotRun { reason } if !made_up_for(r, &own) => Some(reason.as_str()),
            _ => None,
        });
    }

    /// Of the records of one subject, in the order in which mechanisms appear.
    pub fn all(records: &[&'a Record]) -> Vec<Fared<'a>> {
        let mut all: Vec<Fared> = Vec::new();
        for record in records.iter().copied() {
            let (mechanism, rung) = (record.case.mechanism.as_str(), record.case.rung);
            let same = |f: &Fared| f.rung == rung && f.mechanism == mechanism;
            // Sizes of one mechanism come one after the other.
            let at = all.iter().rposition(same).unwrap_or_else(|| {
                all.push(Fared::of(mechanism, rung));
                all.len() - 1
            });
            all[at].add(record);
        }
        all.iter_mut().for_each(|fared| fared.close(records));
        all
    }

    /// What counts against the host: wrong data before all else.
    pub fn failure(&self) -> Option<&'a Record> {
        self.corrupt.or(self.broken)
    }

    /// Words of the longest case with wrong data; 0 without any.
    pub fn longest_wrong(&self) -> u64 {
        self.longest
    }

    /// The place in the plan of its first case with wrong data.
    pub(crate) fn first_corrupt(&self) -> Option<u32> {
        self.corrupt.map(|_| self.first_corrupt)
    }
}
