//! A value that may be missing, and why. Absence is never zero, and a missing permission is never "off".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that was read, or the reason why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The value as the source gave it.
    Known(T),
    /// Not available, and why.
    Absent(Absence),
}

/// Why a reading is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "reason", content = "detail", rename_all = "snake_case")]
pub enum Absence {
    /// The device or driver says that it has no such thing. The text is the source's own word.
    NotSupported(String),
    /// The source exists but this user may not read it.
    NoPermission(String),
    /// The file, library or function is not there.
    SourceMissing(String),
    /// The source answered with something that could not be understood: where, and what.
    Unparsed(String),
    /// The source answered with an error.
    Failed(String),
    /// The source was asked and has not answered in so long a time: it, or what it asks in turn, is stuck.
    NoAnswer(String),
    /// Nobody asked: the input (a pasted table, another tool's file) does not carry it.
    NotInInput,
}

impl<T> Reading<T> {
    /// The value, if known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Reading::Known(value) => Some(value),
            Reading::Absent(_) => None,
        }
    }

    /// The value by move, if known.
    pub fn into_known(self) -> Option<T> {
        match self {
            Reading::Known(value) => Some(value),
            Reading::Absent(_) => None,
        }
    }

    /// Why it is absent, if it is.
    pub fn absence(&self) -> Option<&Absence> {
        match self {
            Reading::Known(_) => None,
            Reading::Absent(absence) => Some(absence),
        }
    }

    /// Whether nobody asked.
    pub fn is_unasked(&self) -> bool {
        matches!(self, Reading::Absent(Absence::NotInInput))
    }

    /// Why it is absent, if the source was asked and is stuck.
    pub fn unanswered(&self) -> Option<&Absence> {
        self.absence()
            .filter(|absence| matches!(absence, Absence::NoAnswer(_)))
    }

    /// Applies `f` to a known value; an absence stays what it is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Reading::Known(value) => Reading::Known(f(value)),
            Reading::Absent(absence) => Reading::Absent(absence),
        }
    }
}

/// The default is "nobody asked": a snapshot read from an old or foreign file says so for what that file lacks.
impl<T> Default for Reading<T> {
    fn default() -> Self {
        Reading::Absent(Absence::NotInInput)
    }
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absence::NotSupported(what) => write!(f, "not supported ({what})"),
            Absence::NoPermission(what) => write!(f, "no permission ({what})"),
            Absence::SourceMissing(what) => write!(f, "source missing ({what})"),
            Absence::Unparsed(what) => write!(f, "not understood ({what})"),
            Absence::Failed(what) => write!(f, "failed ({what})"),
            Absence::NoAnswer(time) => write!(f, "no answer within {time}"),
            Absence::NotInInput => write!(f, "not in the input"),
        }
    }
}

/// How a statement is known.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// A profile or a default says so.
    Assumed,
    /// An API or a configuration register says so. A claim, not a proof.
    Advertised,
    /// A cause concluded it from other statements.
    Inferred,
    /// We did it and saw it.
    Observed,
}
