//! The forms by which identifying values are known in running text. All texts are lower case (ASCII), so that places are
//! those of the original.

use super::scrub::Kind;
use crate::model::report::SCRUBBED;
use core::net::{Ipv4Addr, Ipv6Addr};

/// A place that is to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
    /// The value whose placeholder stands there.
    pub(super) value: String,
}

/// Sites whose addresses stand in advice that we print ourselves.
const PUBLIC_SITES: [&str; 7] = [
    "nvidia.com",
    "github.com",
    "kernel.org",
    "pytorch.org",
    "huggingface.co",
    "vllm.ai",
    "localhost",
];

/// Words before a serial number or tag.
const SERIAL_LABELS: [&str; 7] = [
    "serial",
    "s/n",
    "sn",
    "asset tag",
    "asset_tag",
    "service tag",
    "chassis tag",
];
/// Words that may stand between such a label and its value.
const FILLERS: [&str; 7] = ["number", "num", "nr", "no.", "no", "value", "string"];

fn byte(text: &str, at: usize) -> u8 {
    text.as_bytes().get(at).copied().unwrap_or(b' ')
}

fn before(text: &str, at: usize) -> u8 {
    at.checked_sub(1).map_or(b' ', |at| byte(text, at))
}

fn is_hex(b: u8) -> bool {
    b.is_ascii_digit() || matches!(b, b'a'..=b'f')
}

/// Length of the run of bytes of a class from `at`.
fn run(text: &str, at: usize, class: impl Fn(u8) -> bool) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    rest.iter().take_while(|b| class(**b)).count()
}

/// Maximal runs of bytes of a class, as start and end.
fn runs(text: &str, class: impl Fn(u8) -> bool) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let length = run(text, at, &class);
        if length > 0 {
            found.push((at, at + length));
        }
        at += length.max(1);
    }
    found
}

/// Places where `word` stands and is not a part of a longer word.
pub(super) fn standing<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            !before(text, *at).is_ascii_alphanumeric()
                && !byte(text, at + word.len()).is_ascii_alphanumeric()
        })
}

/// Length of the domain behind a host's short name: ".corp.example".
pub(super) fn domain(text: &str, at: usize) -> usize {
    let mut end = at;
    while byte(text, end) == b'.' {
        let label = run(text, end + 1, |b| b.is_ascii_alphanumeric() || b == b'-');
        if label == 0 {
            break;
        }
        end += 1 + label;
    }
    end - at
}

struct Found<'a> {
    text: &'a str,
    marks: Vec<Mark>,
}

impl Found<'_> {
    fn add(&mut self, kind: Kind, start: usize, end: usize) {
        if let Some(value) = self.text.get(start..end)
            && !value.is_empty()
            && !value.contains(SCRUBBED)
        {
            let value = value.to_string();
            self.marks.push(Mark {
                start,
                end,
                kind,
                value,
            });
        }
    }
}

/// Everything that has the form of an identifying value.
pub(super) fn forms(text: &str) -> Vec<Mark> {
    let mut found = Found {
        text,
        marks: Vec::new(),
    };
    hexadecimal(text, &mut found);
    addresses(text, &mut found);
    labelled(text, &mut found);
    named(text, &mut found);
    found.marks
}

/// Names of users and hosts that a text gives away by its form, to be known everywhere.
pub(super) fn names(text: &str) -> Vec<(Kind, String)> {
    let mut found = Found {
        text,
        marks: Vec::new(),
    };
    folders(text, &mut found);
    prefixes(text, &mut found);
    // A word without digit, hyphen or dot may be any word of any text.
    let telling = |mark: &Mark| {
        mark.kind == Kind::User
            || mark
                .value
                .contains(|c: char| c.is_ascii_digit() || "-.".contains(c))
    };
    let marks = found.marks.into_iter().filter(telling);
    marks.map(|mark| (mark.kind, mark.value)).collect()
}

/// UUIDs, GPU UUIDs that were cut short, hardware addresses and GUIDs.
fn hexadecimal(text: &str, found: &mut Found<'_>) {
    for (start, end) in runs(text, |b| is_hex(b) || matches!(b, b':' | b'-')) {
        // A run may begin inside a word ("gpu-5eed.." has no hex before its hyphen, "node-.." has).
        let mut at = start;
        while at < end {
            let inside = before(text, at).is_ascii_alphanumeric() || !is_hex(byte(text, at));
            let length = if inside { 0 } else { form_at(text, at) };
            if length == 0 {
                at += 1;
                continue;
            }
            let uuid = uuid_at(text, at) == length;
            found.add(
                if uuid { Kind::Uuid } else { Kind::Hardware },
                at,
                at + length,
            );
            at += length;
        }
    }
    for mark in ["gpu-", "mig-"] {
        for at in standing_start(text, mark) {
            let from = at + mark.len();
            let length = run(text, from, |b| is_hex(b) || b == b'-');
            let ends = !byte(text, from + length).is_ascii_alphanumeric();
            if length >= 4
                && ends
                && text
                    .as_bytes()
                    .get(from..from + length)
                    .is_some_and(|b| b.iter().any(u8::is_ascii_digit))
            {
                found.add(Kind::Uuid, from, from + length);
            }
        }
    }
    for (at, _) in text.match_indices("enx") {
        if run(text, at + 3, is_hex) == 12 && !before(text, at).is_ascii_alphanumeric() {
            found.add(Kind::Hardware, at + 3, at + 15);
        }
    }
}

/// Places where a word begins with `mark`.
fn standing_start<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(mark)
        .map(|(at, _)| at)
        .filter(move |at| !before(text, *at).is_ascii_alphanumeric())
}

fn uuid_at(text: &str, at: usize) -> usize {
    let mut place = at;
    for (nth, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if nth > 0 {
            if byte(text, place) != b'-' {
                return 0;
            }
            place += 1;
        }
        if run(text, place, is_hex) != length {
            return 0;
        }
        place += length;
    }
    if byte(text, place).is_ascii_alphanumeric() {
        return 0;
    }
    place - at
}

/// Groups of so many hexadecimal digits, all with one separator; at least so many of them.
fn groups_at(text: &str, at: usize, digits: usize, fewest: usize, separators: &[u8]) -> usize {
    if run(text, at, is_hex) != digits {
        return 0;
    }
    let separator = byte(text, at + digits);
    if !separators.contains(&separator) {
        return 0;
    }
    let (mut place, mut groups) = (at + digits, 1);
    while byte(text, place) == separator && run(text, place + 1, is_hex) == digits {
        place += 1 + digits;
        groups += 1;
    }
    if groups < fewest || byte(text, place).is_ascii_alphanumeric() {
        return 0;
    }
    place - at
}

fn form_at(text: &str, at: usize) -> usize {
    let uuid = uuid_at(text, at);
    if uuid > 0 {
        return uuid;
    }
    let hardware = groups_at(text, at, 2, 6, b":-");
    if hardware > 0 {
        return hardware;
    }
    // A GUID has four groups of four; with eight it is an IPv6 address, which is looked for by itself.
    let guid = groups_at(text, at, 4, 4, b":");
    let alone = before(text, at) != b':' && byte(text, at + guid) != b':';
    if guid == 19 && alone { guid } else { 0 }
}

/// IPv4 and IPv6. Those that every host has say nothing.
fn addresses(text: &str, found: &mut Found<'_>) {
    for (start, end) in runs(text, |b| b.is_ascii_digit() || b == b'.') {
        let whole = text.get(start..end).unwrap_or_default();
        let trimmed = whole.trim_matches('.');
        let start = start + (whole.len() - whole.trim_start_matches('.').len());
        let end = start + trimmed.len();
        let word =
            before(text, start).is_ascii_alphabetic() || byte(text, end).is_ascii_alphabetic();
        let Ok(address) = trimmed.parse::<Ipv4Addr>() else {
            continue;
        };
        let mask = address.octets()[0] == 255;
        if !word && !mask && !address.is_loopback() && !address.is_unspecified() {
            found.add(Kind::Ipv4, start, end);
        }
    }
    for at in standing_start(text, "ip-") {
        let from = at + 3;
        let length = run(text, from, |b| b.is_ascii_digit() || b == b'-');
        let dashed = text.get(from..from + length).unwrap_or_default();
        let dashed = dashed.trim_end_matches('-');
        if dashed.replace('-', ".").parse::<Ipv4Addr>().is_ok() {
            found.add(Kind::Ipv4, from, from + dashed.len());
        }
    }
    for (start, end) in runs(text, |b| is_hex(b) || matches!(b, b':' | b'.')) {
        let whole = text.get(start..end).unwrap_or_default();
        if whole.matches(':').count() < 2 {
            continue;
        }
        let glued = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if glued(before(text, start)) || glued(byte(text, end)) {
            continue;
        }
        // An end of sentence or a colon after the address is none of it; "::" is.
        let mut address = whole.trim_end_matches('.');
        if address.ends_with(':') && !address.ends_with("::") {
            address = address.strip_suffix(':').unwrap_or(address);
        }
        let Ok(parsed) = address.parse::<Ipv6Addr>() else {
            continue;
        };
        if !parsed.is_loopback() && !parsed.is_unspecified() {
            found.add(Kind::Ipv6, start, start + address.len());
        }
    }
}

/// Values behind a label: serial numbers, tags, UUIDs of file systems, GUIDs, host names.
fn labelled(text: &str, found: &mut Found<'_>) {
    for label in SERIAL_LABELS {
        for (at, _) in text.match_indices(label) {
            let short = label.len() < 5;
            if short && before(text, at).is_ascii_alphanumeric() {
                continue;
            }
            if let Some((start, end)) = value_behind(text, at + label.len(), !short) {
                found.add(Kind::Serial, start, end);
            }
        }
    }
    for (at, mark) in text.match_indices("uuid=") {
        let start = at + mark.len();
        let length = run(text, start, |b| b.is_ascii_alphanumeric() || b == b'-');
        if length >= 4
            && !text
                .get(start..start + length)
                .is_some_and(|v| SCRUBBED.starts_with(v))
        {
            found.add(Kind::Uuid, start, start + length);
        }
    }
    for (at, mark) in text.match_indices("guid") {
        let mut start = at + mark.len();
        start += run(text, start, |b| matches!(b, b' ' | b'\t' | b':' | b'='));
        if text.get(start..).is_some_and(|rest| rest.starts_with("0x")) {
            start += 2;
        }
        let length = run(text, start, is_hex);
        if length == 16 && start > at + mark.len() {
            found.add(Kind::Hardware, start, start + length);
        }
    }
    for (at, mark) in text.match_indices("hostname") {
        let mut start = at + mark.len();
        let separated = run(text, start, |b| matches!(b, b':' | b'=' | b'"'));
        if separated == 0 {
            continue;
        }
        start += separated + run(text, start + separated, |b| b == b' ');
        let length = run(text, start, |b| {
            b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')
        });
        found.add(Kind::Host, start, start + length);
    }
}

/// The value behind a serial number's label: a separator or a filling word, then a word with a digit in it.
fn value_behind(text: &str, from: usize, fillers: bool) -> Option<(usize, usize)> {
    let mut at = from;
    let mut separated = false;
    for _ in 0..8 {
        let blanks = run(text, at, |b| {
            matches!(b, b' ' | b'\t' | b'"' | b'\'' | b'_' | b'#')
        });
        at += blanks;
        let marks = run(text, at, |b| matches!(b, b':' | b'='));
        separated |= marks > 0;
        at += marks;
        let rest = text.get(at..)?;
        let filler = FILLERS.iter().find(|filler| {
            fillers
                && rest.starts_with(*filler)
                && !byte(rest, filler.len()).is_ascii_alphanumeric()
        });
        match filler {
            Some(filler) => {
                at += filler.len();
                separated = true;
            }
            None if blanks + marks == 0 => break,
            None => {}
        }
    }
    let length = run(text, at, |b| {
        b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/' | b'.' | b'_')
    });
    let value = text.get(at..at + length)?;
    let value = value.trim_end_matches(['.', '-', '/', '_']);
    let telling = value.len() >= 4 && value.bytes().any(|b| b.is_ascii_digit());
    (separated && telling).then_some((at, at + value.len()))
}

/// User names by folders, accounts, hosts by URLs and by the lines that they write.
fn named(text: &str, found: &mut Found<'_>) {
    folders(text, found);
    prefixes(text, found);
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+');
    for (at, _) in text.match_indices('@') {
        let front = text.as_bytes().get(..at).unwrap_or_default();
        let front = front.iter().rev().take_while(|b| part(**b)).count();
        let back = run(text, at + 1, part);
        if front > 0 && back > 0 {
            found.add(Kind::Account, at - front, at + 1 + back);
        }
    }
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let length = run(text, start, |b| {
            !b.is_ascii_whitespace()
                && !matches!(b, b'/' | b'"' | b'\'' | b'<' | b'>' | b',' | b')')
        });
        let site = text.get(start..start + length).unwrap_or_default();
        let public = PUBLIC_SITES.iter().any(|known| {
            site.strip_suffix(known)
                .is_some_and(|front| front.is_empty() || front.ends_with('.'))
        });
        if !public {
            found.add(Kind::Host, start, start + length);
        }
    }
}

/// The folder of a user.
fn folders(text: &str, found: &mut Found<'_>) {
    for mark in ["/home/", "/users/"] {
        for (at, _) in text.match_indices(mark) {
            let start = at + mark.len();
            let length = run(text, start, |b| {
                !b.is_ascii_whitespace()
                    && !matches!(b, b'/' | b'"' | b'\'' | b':' | b',' | b';' | b')')
            });
            found.add(Kind::User, start, start + length);
        }
    }
}

/// Lines that begin with the host's name: NCCL's "host:pid:tid [", the system log's "time host kernel:".
fn prefixes(text: &str, found: &mut Found<'_>) {
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    for (start, end) in runs(text, name) {
        if before(text, start).is_ascii_alphanumeric() {
            continue;
        }
        let mut at = end;
        let mut numbers = 0;
        while byte(text, at) == b':' {
            let digits = run(text, at + 1, |b| b.is_ascii_digit());
            if digits == 0 {
                break;
            }
            at += 1 + digits;
            numbers += 1;
        }
        let letters = text
            .get(start..end)
            .is_some_and(|word| word.bytes().any(|b| b.is_ascii_alphabetic()));
        let nccl = numbers == 2 && text.get(at..).is_some_and(|rest| rest.starts_with(" ["));
        let logged = text
            .get(end..)
            .is_some_and(|rest| rest.starts_with(" kernel:"))
            && before(text, start) == b' '
            && start >= 9
            && text
                .as_bytes()
                .get(start - 9..start - 1)
                .is_some_and(|time| {
                    time.iter().enumerate().all(|(at, b)| match at {
                        2 | 5 => *b == b':',
                        _ => b.is_ascii_digit(),
                    })
                });
        if letters && (nccl || logged) {
            found.add(Kind::Host, start, end);
        }
    }
}
