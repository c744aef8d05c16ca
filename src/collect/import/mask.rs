//! CPU and node masks as hwloc and the kernel print them: hexadecimal words of 32 bits, highest first, with commas.
//! Tolerant where writers differ: empty words, words of fewer digits, 0x or none, `0xf...f` for "all from here".

/// Most words accepted: 32,768 bits, beyond any kernel's NR_CPUS.
const MAX_WORDS: usize = 1024;

/// A set of small numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mask {
    /// Lowest word first.
    words: Vec<u32>,
    /// Everything above the written words is in the set too.
    pub(super) unbounded: bool,
}

impl Mask {
    /// Reads a mask; `None` when a word is not hexadecimal, has more than eight digits, or there are too many.
    pub(super) fn parse(text: &str) -> Option<Mask> {
        let mut parts: Vec<&str> = text.trim().split(',').collect();
        if parts.len() > MAX_WORDS || text.trim().is_empty() {
            return None;
        }
        let unbounded = parts.first().is_some_and(|p| p.trim() == "0xf...f");
        if unbounded {
            parts.remove(0);
        }
        let words = parts
            .iter()
            .rev()
            .map(|part| word(part))
            .collect::<Option<Vec<u32>>>()?;
        Some(Mask { words, unbounded })
    }

    /// Members, ascending; what lies above the written words is not listed.
    pub(super) fn members(&self) -> Vec<u32> {
        self.words
            .iter()
            .zip(0_u32..)
            .flat_map(|(word, n)| {
                (0..32)
                    .filter(move |b| word >> b & 1 == 1)
                    .map(move |b| n * 32 + b)
            })
            .collect()
    }

    /// Whether `member` is in the set.
    pub(super) fn contains(&self, member: u32) -> bool {
        match self.words.get(member as usize / 32) {
            Some(word) => word >> (member % 32) & 1 == 1,
            None => self.unbounded,
        }
    }

    /// Whether the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        !self.unbounded && self.words.iter().all(|w| *w == 0)
    }

    /// As a kernel list: "0-31,64-95".
    pub(super) fn list(&self) -> String {
        let mut out: Vec<(u32, u32)> = Vec::new();
        for member in self.members() {
            match out.last_mut() {
                Some((_, end)) if *end + 1 == member => *end = member,
                _ => out.push((member, member)),
            }
        }
        let parts: Vec<String> = out
            .iter()
            .map(|(a, b)| {
                if a == b {
                    a.to_string()
                } else {
                    format!("{a}-{b}")
                }
            })
            .collect();
        parts.join(",")
    }
}

fn word(part: &str) -> Option<u32> {
    let digits = part.trim().trim_start_matches("0x");
    if digits.is_empty() {
        // hwloc leaves out zero words between commas.
        return part.trim().is_empty().then_some(0);
    }
    let plain = digits.len() <= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Number of CPUs that a kernel mask is wide: four per hexadecimal digit, as the kernel pads to its CPU count.
pub(super) fn width(text: &str) -> u32 {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    u32::try_from(digits * 4).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_as_tools_write_them() {
        let list = |t: &str| Mask::parse(t).unwrap().list();
        assert_eq!(
            list("0x00000303,0x03030000,,0x03030303").split(',').next(),
            Some("0-1")
        );
        assert_eq!(list("c0c0"), "6-7,14-15");
        assert_eq!(list("fff0000,00000000"), "48-59");
        assert_eq!(list("0x0"), "");
        assert!(Mask::parse("0x0").unwrap().is_empty());
        assert!(Mask::parse("0xf...f").unwrap().contains(900));
        assert!(Mask::parse("0x10000000,,,,,,,0x0").unwrap().contains(252));
        for bad in ["", "zz", "123456789", "0x1,+2"] {
            assert!(Mask::parse(bad).is_none(), "{bad}");
        }
        assert_eq!(width("c0c0"), 16);
    }
}
