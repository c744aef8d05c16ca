//! Which flags and variables an engine takes: `profiles/names/*.toml`. A name that is in no list may be a misspelling, and
//! nothing is known of what it does; only a list can tell that.

use serde::Deserialize;

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
    /// Flags with their dashes; underscores are dashes.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Variables.
    #[serde(default)]
    pub variables: Vec<String>,
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
