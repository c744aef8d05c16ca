//! Values of two sides, sorted into same, different and not comparable. Equal differences of several subjects become one.

use crate::model::{
    comparison::{Difference, NotCompared},
    reading::{Absence, Reading},
};

/// One section of a comparison.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) differences: Vec<Difference>,
    pub(super) same: u32,
    pub(super) not_compared: Vec<NotCompared>,
}

/// Why a value is missing, in words that do not differ from device to device.
fn reason(absence: &Absence) -> &'static str {
    match absence {
        Absence::NotSupported(_) => "not supported",
        Absence::NoPermission(_) => "no permission to read it",
        Absence::SourceMissing(_) => "its source is missing",
        Absence::Unparsed(_) => "its source was not understood",
        Absence::Failed(_) => "reading it failed",
        Absence::NoAnswer(_) => "it did not answer",
        Absence::NotInInput => "not in the input",
    }
}

impl Tally {
    /// Two values that are known, `None` being "there is no such thing".
    pub(super) fn values(&mut self, what: &str, of: &str, a: Option<String>, b: Option<String>) {
        if a == b {
            self.same += 1;
            return;
        }
        let known = self
            .differences
            .iter_mut()
            .find(|d| d.what == what && d.a == a && d.b == b && !d.of.is_empty());
        match known {
            Some(difference) if !of.is_empty() => difference.of.push(of.to_string()),
            _ => self.differences.push(Difference {
                what: what.to_string(),
                of: if of.is_empty() {
                    Vec::new()
                } else {
                    vec![of.to_string()]
                },
                a,
                b,
            }),
        }
    }

    /// Two known texts.
    pub(super) fn texts(&mut self, what: &str, of: &str, a: &str, b: &str) {
        self.values(what, of, Some(a.to_string()), Some(b.to_string()));
    }

    /// What came of something on both sides; `None` = it did not run there.
    pub(super) fn ran(&mut self, what: &str, of: &str, sides: (Option<&str>, Option<&str>)) {
        match sides {
            (Some(a), Some(b)) => self.texts(what, of, a, b),
            (Some(_), None) => self.one_sided(what, "B", "not run"),
            (None, Some(_)) => self.one_sided(what, "A", "not run"),
            (None, None) => {}
        }
    }

    /// Two readings. "Not supported" is an answer; any other absence is no value, and what only one side could read is
    /// neither the same nor different.
    pub(super) fn readings<T>(
        &mut self,
        what: &str,
        of: &str,
        a: &Reading<T>,
        b: &Reading<T>,
        show: impl Fn(&T) -> String,
    ) {
        let said = |reading: &Reading<T>| match reading {
            Reading::Known(value) => Ok(show(value)),
            Reading::Absent(Absence::NotSupported(_)) => Ok("not supported".to_string()),
            Reading::Absent(absence) => Err(reason(absence)),
        };
        match (said(a), said(b)) {
            (Ok(a), Ok(b)) => self.texts(what, of, &a, &b),
            (Err(why), Ok(_)) => self.one_sided(what, "A", why),
            (Ok(_), Err(why)) => self.one_sided(what, "B", why),
            (Err(_), Err(_)) => {}
        }
    }

    /// A whole part of a report that only one of the two has: told once, whatever it holds.
    pub(super) fn only_in(&mut self, what: &str, count: usize, has: &str, why: &str) {
        let known = self.not_compared.len();
        self.leave(what, format!("only {has} has it: {why}"), true);
        if let Some(left) = self.not_compared.get_mut(known) {
            left.count = u32::try_from(count).unwrap_or(u32::MAX);
        }
    }

    /// A value that `side` lacks and the other has.
    pub(super) fn one_sided(&mut self, what: &str, side: &str, why: &str) {
        self.leave(what, format!("not known of {side} ({why})"), true);
    }

    /// Something that was not compared.
    pub(super) fn leave(&mut self, what: &str, why: String, one_sided: bool) {
        let known = self.not_compared.iter_mut();
        match known.into_iter().find(|n| n.what == what && n.why == why) {
            Some(known) => known.count += 1,
            None => self.not_compared.push(NotCompared {
                what: what.to_string(),
                why,
                count: 1,
                one_sided,
            }),
        }
    }
}
