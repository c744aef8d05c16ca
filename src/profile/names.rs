//! Which flags and variables an engine takes: `profiles/names/*.toml`. A name that is in no list may be a misspelling, and
//! nothing is known of what it does; only a list can tell that. A list may also say how the program reads its command line, and
//! which of its flags take no value: only then is it known what a value behind one of them does.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The names that one program takes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Names {
    /// Engine id; "cuda" for names that stand beside those of every engine.
    pub of: String,
    /// What was read, with its version.
    pub read_in: String,
    /// When, YYYY-MM-DD.
    pub checked: String,
    /// Whether the program takes the beginning of a flag for the flag.
    #[serde(default)]
    pub prefixes: bool,
    /// How the program reads its command line; `None` was not read.
    pub parser: Option<Parser>,
    /// Whether underscores of flags are dashes to the program.
    #[serde(default)]
    pub underscores: bool,
    /// Where its parser takes a word that is no flag.
    pub model_word: Option<ModelWord>,
    /// Flags with their dashes; underscores are dashes.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Flags that take no value and have no opposite.
    #[serde(default)]
    pub switches: Vec<String>,
    /// Flags that take no value and that a later `--no-` form of theirs undoes.
    #[serde(default)]
    pub negatable: Vec<String>,
    /// Whether `--disable-x` also undoes a negatable `--enable-x`, and the other way round.
    #[serde(default)]
    pub enable_undoes_disable: bool,
    /// Short forms of flags that take no value, and the long forms that they stand for.
    #[serde(default)]
    pub short: BTreeMap<String, String>,
    /// Short forms of flags whose value is a JSON object, and the long forms: `-cc.mode 3` is `--compilation-config.mode 3`.
    #[serde(default)]
    pub short_objects: BTreeMap<String, String>,
    /// Flags that take a value, and may stand without one.
    #[serde(default)]
    pub optional: Vec<String>,
    /// Flags whose value is JSON and nothing else.
    #[serde(default)]
    pub objects: Vec<String>,
    /// Flags whose value is a whole number and nothing else.
    #[serde(default)]
    pub integers: Vec<String>,
    /// Flags whose value is a number and nothing else.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Variables.
    #[serde(default)]
    pub variables: Vec<String>,
    /// How it reads those that switch something, where that was read.
    #[serde(default)]
    pub reads: Vec<Reads>,
}

/// Variables that a program reads in one way.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reads {
    /// In which.
    pub how: ReadAs,
    /// Their names.
    pub variables: Vec<String>,
    /// What stands for one that is not set, as a number.
    #[serde(default)]
    pub default: i64,
    /// Where that was read.
    pub source: String,
}

/// What a program makes of the text of a variable that switches something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAs {
    /// Python's `bool(int(text))`: zero is off, any other whole number on, and any other text an error where it is read.
    Integer,
    /// On where the text is 1 and nothing else; off where it is anything else.
    One,
    /// Words for yes and no, in capitals or not (1, true, yes, y; 0, false, no, n); any other text counts as not set.
    Words,
    /// C's `strtoll`: the number at its head. A text without one is 0 to some versions, and not set to others.
    Number,
}

/// How a program reads its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parser {
    /// Python's argparse: the last of several counts; a value for a flag that takes none is an error; a value may stick to a
    /// short flag of one letter only.
    Argparse,
    /// getopt_long: a value may stick to a short flag.
    Getopt,
}

/// Where a program takes its model as a word that is no flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelWord {
    /// Anywhere, once.
    Anywhere,
    /// In front of all flags only.
    First,
}

/// A flag that takes no value, as its program reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchWord {
    /// Its long form.
    pub flag: String,
    /// Whether this word sets it or undoes it.
    pub on: bool,
}

impl Names {
    /// What `word` is, if it is a flag that takes no value: `--no-x` undoes `--x`.
    pub fn switch(&self, word: &str) -> Option<SwitchWord> {
        let is = |flag: &str, on: bool| {
            Some(SwitchWord {
                flag: flag.to_string(),
                on,
            })
        };
        let has = |list: &[String], flag: &str| list.iter().any(|own| own == flag);
        if let Some(long) = self.short.get(word) {
            return is(long, true);
        }
        if has(&self.switches, word) || has(&self.negatable, word) {
            return is(word, true);
        }
        if let Some(rest) = word.strip_prefix("--no-") {
            let positive = format!("--{rest}");
            return is(&positive, false).filter(|_| has(&self.negatable, &positive));
        }
        if !self.enable_undoes_disable {
            return None;
        }
        let pairs = [("--enable-", "--disable-"), ("--disable-", "--enable-")];
        pairs.into_iter().find_map(|(prefix, inverse)| {
            let other = format!("{inverse}{}", word.strip_prefix(prefix)?);
            is(&other, false).filter(|_| has(&self.negatable, &other))
        })
    }

    /// What is wrong with a list that parses.
    pub(super) fn defect(&self) -> Option<String> {
        let unlisted = self
            .switches
            .iter()
            .chain(&self.negatable)
            .chain(self.short.keys())
            .chain(self.short.values())
            .find(|flag| !self.flags.contains(flag));
        let valued = self
            .short_objects
            .keys()
            .chain(self.short_objects.values())
            .chain(&self.optional)
            .find(|flag| !self.flags.contains(flag));
        let mut read = self.reads.iter().flat_map(|reads| &reads.variables);
        let read = read.find(|name| !self.variables.contains(name));
        unlisted
            .map(|flag| format!("'{flag}' takes no value and is not among 'flags'"))
            .or_else(|| valued.map(|flag| format!("'{flag}' is not among 'flags'")))
            .or_else(|| read.map(|name| format!("'{name}' is not among 'variables'")))
    }
}

/// Insertions, deletions and replacements from one word to the other (Levenshtein).
pub fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (place, b) in row.iter_mut().skip(1).zip(&other) {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = *place;
            left = replaced.min(diagonal + 1).min(left + 1);
            *place = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The name of `all` that is spelt most like `word`: at most two edits away, and one for short words.
pub fn nearest<'a>(word: &str, all: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = if word.chars().count() < 8 { 1 } else { 2 };
    all.into_iter()
        .filter(|name| name.len().abs_diff(word.len()) <= allowed)
        .map(|name| (edits(word, name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("iommu", "iomu"), 1);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("same", "same"), 0);
    }

    #[test]
    fn only_what_is_spelt_alike_is_near() {
        let all = ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "-tp"];
        assert_eq!(nearest("NCCL_P2P_DISABEL", all), Some("NCCL_P2P_DISABLE"));
        assert_eq!(nearest("NCLL_P2P_DISABLE", all), Some("NCCL_P2P_DISABLE"));
        assert_eq!(nearest("NCCL_DEBUG", all), None);
        assert_eq!(nearest("-pt", all), None);
    }
}
