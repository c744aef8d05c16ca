//! What a program makes of the text of a variable that switches something: a yes, a no, nothing at all, or an error. Only for
//! those whose reading is known (`reads` in `profiles/names`); behind this they hold 1 or 0, so that 'false' is never taken for a
//! wish.

use super::read::Invocation;
use crate::{
    model::{finding::Severity, launch::LaunchProblem},
    profile::{Names, ReadAs, Reads},
};
use std::collections::BTreeMap;

/// What became of the texts that are no plain 0 or 1.
#[derive(Default)]
pub(super) struct Read {
    /// Texts that stop whoever reads them (the ranks of a group), by the variable's name.
    pub(super) refused: BTreeMap<String, LaunchProblem>,
    /// Texts that count otherwise than they look.
    pub(super) notes: Vec<LaunchProblem>,
}

/// What a text is to its reader.
enum Meaning {
    Yes,
    No,
    /// A number that is neither 0 nor 1, to a reader that tells numbers apart.
    Other(i64),
    /// As if the variable were not set.
    Unset,
    /// An error.
    Refused,
    /// Versions differ.
    Open,
}

/// Puts what is read in the place of what is written. `lists`: those of the engine and of what stands beside it.
pub(super) fn as_read(lists: &[&Names], invocation: &mut Invocation) -> Read {
    let mut read = Read::default();
    for reads in lists.iter().flat_map(|list| &list.reads) {
        for name in &reads.variables {
            let known = !invocation.unknown.contains_key(name);
            if let Some(text) = invocation.variables.get(name).filter(|_| known).cloned() {
                one(reads, name, &text, invocation, &mut read);
            }
        }
    }
    read
}

fn one(reads: &Reads, name: &str, text: &str, invocation: &mut Invocation, read: &mut Read) {
    let problem =
        |id: &str, severity: Severity, wrong: String, settings: Vec<String>| LaunchProblem {
            id: id.to_string(),
            severity,
            wrong,
            change: "say 1 or 0, or leave it out".to_string(),
            settings,
            source: reads.source.clone(),
        };
    let meaning = meaning(reads, text);
    let value = match &meaning {
        Meaning::Yes => Some("1".to_string()),
        Meaning::No => Some("0".to_string()),
        Meaning::Other(number) => Some(number.to_string()),
        Meaning::Unset | Meaning::Refused | Meaning::Open => None,
    };
    match value {
        Some(value) => invocation.variables.insert(name.to_string(), value),
        None => invocation.variables.remove(name),
    };
    if matches!(meaning, Meaning::No) {
        invocation.switched_off.insert(name.to_string());
    }
    let meant = Wish::of(text);
    match meaning {
        Meaning::Refused => {
            let wrong = format!("{name}='{text}' is no whole number, and is read as one");
            let settings = match meant {
                Some(Wish::Yes) => vec![format!("{name}=1")],
                Some(Wish::No) => vec![format!("{name}=0")],
                None => Vec::new(),
            };
            let problem = problem("engine-refuses", Severity::Critical, wrong.clone(), settings);
            read.refused.insert(name.to_string(), problem);
            // No clause about it is met: it switches nothing.
            invocation.unknown.insert(name.to_string(), wrong);
        }
        Meaning::No if meant == Some(Wish::Yes) => read.notes.push(problem(
            "switch-by-another-word",
            Severity::Warning,
            match reads.how {
                ReadAs::One => format!("{name}='{text}' switches nothing on: only the text 1 does"),
                _ => format!("{name}='{text}' switches nothing on: it is read as the number 0"),
            },
            vec![format!("{name}=1")],
        )),
        Meaning::Unset if reads.how == ReadAs::Words => read.notes.push(problem(
            "switch-by-another-word",
            Severity::Warning,
            format!(
                "{name}='{text}' is no word that is known (1, true, yes, y; 0, false, no, n): it is warned of and counts as not set"
            ),
            match meant {
                Some(Wish::Yes) => vec![format!("{name}=1")],
                _ => vec![format!("unset {name}")],
            },
        )),
        Meaning::Open => {
            let said = format!(
                "{name}='{text}' is no number: older versions read it as 0, newer ones as not set; say the number"
            );
            invocation.unknown.insert(name.to_string(), said);
        }
        _ => {}
    }
}

fn meaning(reads: &Reads, text: &str) -> Meaning {
    let number = |number: Option<bool>, none: Meaning| match number {
        Some(true) => Meaning::Yes,
        Some(false) => Meaning::No,
        None => none,
    };
    match reads.how {
        ReadAs::Integer => number(python_integer(text).map(|zero| !zero), Meaning::Refused),
        ReadAs::One => number(Some(text == "1"), Meaning::No),
        ReadAs::Words => match text.to_lowercase().as_str() {
            "1" | "true" | "yes" | "y" => Meaning::Yes,
            "0" | "false" | "no" | "n" => Meaning::No,
            _ => Meaning::Unset,
        },
        ReadAs::Number => match (c_number(text), reads.default) {
            (Some(0), _) => Meaning::No,
            (Some(1), _) => Meaning::Yes,
            (Some(other), _) => Meaning::Other(other),
            // Empty is not set, whatever the version.
            (None, _) if text.is_empty() => Meaning::Unset,
            (None, 0) => Meaning::No,
            (None, _) => Meaning::Open,
        },
    }
}

/// What a person means by a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Yes,
    No,
}

impl Wish {
    fn of(text: &str) -> Option<Wish> {
        match text.trim().to_lowercase().as_str() {
            "1" | "true" | "yes" | "y" | "on" | "enable" | "enabled" => Some(Wish::Yes),
            "0" | "false" | "no" | "n" | "off" | "disable" | "disabled" | "none" => Some(Wish::No),
            _ => None,
        }
    }
}

/// Whether Python's `int()` makes 0 of it; `None` where it makes an error.
fn python_integer(text: &str) -> Option<bool> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    // Underscores may stand between digits.
    let mut parts = digits.split('_');
    let sound = parts.all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    sound.then(|| digits.bytes().all(|b| matches!(b, b'0' | b'_')))
}

/// The number at the head of a text, as C's `strtoll` with base 0 finds it.
fn c_number(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"));
    let hexadecimal = hexadecimal.filter(|r| r.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (base, rest) = match hexadecimal {
        Some(rest) => (16, rest),
        None if rest.starts_with('0') => (8, rest),
        None => (10, rest),
    };
    let digits = rest.find(|c: char| !c.is_digit(base)).unwrap_or(rest.len());
    let number = i64::from_str_radix(rest.get(..digits)?, base).ok()?;
    Some(sign * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_their_readers_find_them() {
        for (text, zero) in [
            ("0", Some(true)),
            (" 00 ", Some(true)),
            ("-0", Some(true)),
            ("1", Some(false)),
            ("1_0", Some(false)),
            ("99999999999999999999", Some(false)),
            ("", None),
            ("false", None),
            ("1.0", None),
            ("1_", None),
            ("0x1", None),
            ("- 1", None),
        ] {
            assert_eq!(python_integer(text), zero, "{text}");
        }
        for (text, number) in [
            ("0", Some(0)),
            ("01", Some(1)),
            (" 1x", Some(1)),
            ("0x1f", Some(31)),
            ("0x", Some(0)),
            ("-2", Some(-2)),
            ("", None),
            ("true", None),
        ] {
            assert_eq!(c_number(text), number, "{text}");
        }
    }
}
