//! Records sorted once, so that each question costs what its own rows cost: by what they are about, and there by mechanism and
//! rung. Knows the order of records, not what they mean.

use crate::model::{
    case::{Outcome, Record, Rung, Subject},
    fared::Fared,
    pair::OrderedPair,
};
use std::collections::{BTreeMap, HashMap};

/// Records in all the orders in which they are asked for.
#[derive(Debug, Clone)]
pub(super) struct Sorted<'a> {
    /// By what they are about, ascending.
    pub(super) by_subject: BTreeMap<Subject, Own<'a>>,
    /// Mechanisms on their rungs, as they appear, by their numbers.
    kinds: Vec<Kind<'a>>,
    /// Records that ran and were not intact, in order: on most hosts few, and most questions are about them.
    pub(super) not_right: Vec<&'a Record>,
    /// Records of cases that were not run, or do not exist here, in order.
    pub(super) without_answer: Vec<&'a Record>,
    /// Records with a rate, in order.
    pub(super) timed: Vec<&'a Record>,
}

/// A mechanism on its rung.
pub(super) type Kind<'a> = (Rung, &'a str);

/// How one mechanism fared on the subjects that have it, ascending.
pub(super) type OnSubjects<'e, 'a> = Vec<(Subject, &'e Fared<'a>)>;

/// What is about one subject.
#[derive(Debug, Clone, Default)]
pub(super) struct Own<'a> {
    /// Its records, in order.
    pub(super) records: Vec<&'a Record>,
    /// The same by mechanism and rung. Most questions are answered by these: they are few, and lie together.
    pub(super) fared: Vec<Fared<'a>>,
    /// The numbers of their mechanisms on their rungs.
    kinds: Vec<usize>,
}

impl<'a> Own<'a> {
    /// Takes a record in, which is of the mechanism and rung of this number.
    fn add(&mut self, record: &'a Record, kind: usize) {
        self.records.push(record);
        // Sizes of one mechanism come one after the other.
        let known = self.kinds.iter().rposition(|k| *k == kind);
        let at = known.unwrap_or_else(|| {
            let case = &record.case;
            self.fared.push(Fared::of(&case.mechanism, case.rung));
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        self.fared[at].add(record);
    }
}

/// Numbers of mechanisms on rungs.
#[derive(Default)]
struct Numbers<'a> {
    known: HashMap<Kind<'a>, usize>,
    all: Vec<Kind<'a>>,
    last: usize,
}

impl<'a> Numbers<'a> {
    /// Cases of one come one after the other, so that for most records one look is enough.
    fn of(&mut self, record: &'a Record) -> usize {
        let kind = (record.case.rung, record.case.mechanism.as_str());
        if self.all.get(self.last) != Some(&kind) {
            self.last = *self.known.entry(kind).or_insert_with(|| {
                self.all.push(kind);
                self.all.len() - 1
            });
        }
        self.last
    }
}

/// GPUs whose pairs have a place in the table that sorts records.
const PLACES: usize = 16;

fn place(pair: OrderedPair) -> Option<usize> {
    let (source, destination) = (pair.source.0 as usize, pair.destination.0 as usize);
    (source < PLACES && destination < PLACES).then_some(source * PLACES + destination)
}

impl<'a> Sorted<'a> {
    pub(super) fn of(records: &'a [Record]) -> Self {
        // Thousands of records are about a few dozen subjects: a table finds the place of a pair at once.
        let mut places = [const { None::<usize> }; PLACES * PLACES];
        let mut others: BTreeMap<Subject, usize> = BTreeMap::new();
        let mut all: Vec<(Subject, Own)> = Vec::new();
        let mut numbers = Numbers::default();
        let (mut not_right, mut without_answer) = (Vec::new(), Vec::new());
        let mut timed = Vec::new();
        for record in records {
            match &record.outcome {
                Outcome::Intact => {}
                outcome if outcome.ran() => not_right.push(record),
                _ => without_answer.push(record),
            }
            if record.rate.is_some() {
                timed.push(record);
            }
            let subject = record.case.subject;
            let place = subject.pair().and_then(place);
            let known = match place {
                Some(place) => places[place],
                None => others.get(&subject).copied(),
            };
            let at = known.unwrap_or(all.len());
            if known.is_none() {
                all.push((subject, Own::default()));
                match place {
                    Some(place) => places[place] = Some(at),
                    None => drop(others.insert(subject, at)),
                }
            }
            all[at].1.add(record, numbers.of(record));
        }
        for (_, own) in &mut all {
            let records = &own.records;
            own.fared.iter_mut().for_each(|fared| fared.close(records));
        }
        Sorted {
            by_subject: all.into_iter().collect(),
            kinds: numbers.all,
            not_right,
            without_answer,
            timed,
        }
    }

    /// Mechanisms on their rungs, and how each fared on the subjects that have it, ascending.
    pub(super) fn by_kind(&self) -> Vec<(Kind<'a>, OnSubjects<'_, 'a>)> {
        let mut all: Vec<_> = self.kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        for (subject, own) in &self.by_subject {
            for (kind, fared) in own.kinds.iter().zip(&own.fared) {
                all[*kind].1.push((*subject, fared));
            }
        }
        all
    }
}
