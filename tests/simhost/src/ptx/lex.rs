//! Words of PTX text. Knows comments, numbers and punctuation; knows no instruction.

use super::parse::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    /// A name, directive, opcode or register, with the dots in it.
    Word(String),
    /// An integer literal, as its 64 bits.
    Int(u64),
    /// `0f` and eight digits: the bits of an f32.
    F32(u32),
    /// `0d` and sixteen digits, or a decimal fraction: the bits of an f64.
    F64(u64),
    Str,
    Punct(char),
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) tok: Tok,
    pub(super) line: u32,
}

fn word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn word_part(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'.')
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let s = text.as_bytes();
    let mut out = Vec::new();
    let (mut i, mut line) = (0usize, 1u32);
    while i < s.len() {
        let c = s[i];
        let at = |k: usize| s.get(k).copied().unwrap_or(0);
        if c == b'\n' {
            line += 1;
            i += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            i += 1;
        } else if c == b'/' && at(i + 1) == b'/' {
            while i < s.len() && s[i] != b'\n' {
                i += 1;
            }
        } else if c == b'/' && at(i + 1) == b'*' {
            let opened = line;
            i += 2;
            while !(at(i) == b'*' && at(i + 1) == b'/') {
                if i >= s.len() {
                    return Err(ParseError::new(opened, "comment is not closed"));
                }
                line += u32::from(s[i] == b'\n');
                i += 1;
            }
            i += 2;
        } else if c == b'"' {
            i += 1;
            while at(i) != b'"' {
                if i >= s.len() || s[i] == b'\n' {
                    return Err(ParseError::new(line, "string is not closed"));
                }
                i += 1;
            }
            i += 1;
            out.push(Token {
                tok: Tok::Str,
                line,
            });
        } else if word_start(c) {
            let from = i;
            i += 1;
            loop {
                if i < s.len() && word_part(s[i]) {
                    i += 1;
                } else if at(i) == b':' && at(i + 1) == b':' {
                    i += 2;
                } else {
                    break;
                }
            }
            out.push(Token {
                tok: Tok::Word(text[from..i].to_owned()),
                line,
            });
        } else if c.is_ascii_digit() {
            let from = i;
            while i < s.len() && (s[i].is_ascii_alphanumeric() || s[i] == b'.') {
                i += 1;
            }
            out.push(Token {
                tok: number(&text[from..i], line)?,
                line,
            });
        } else if c.is_ascii_punctuation() {
            out.push(Token {
                tok: Tok::Punct(c as char),
                line,
            });
            i += 1;
        } else {
            return Err(ParseError::new(line, format!("unexpected byte 0x{c:02x}")));
        }
    }
    Ok(out)
}

fn number(t: &str, line: u32) -> Result<Tok, ParseError> {
    let bad = || ParseError::new(line, format!("number `{t}` is not understood"));
    let hex = |d: &str| u64::from_str_radix(d, 16).map_err(|_| bad());
    let lower = t.to_ascii_lowercase();
    if let Some(d) = lower.strip_prefix("0f").filter(|d| d.len() == 8) {
        return Ok(Tok::F32(hex(d)? as u32));
    }
    if let Some(d) = lower.strip_prefix("0d").filter(|d| d.len() == 16) {
        return Ok(Tok::F64(hex(d)?));
    }
    if t.contains('.') {
        return t
            .parse::<f64>()
            .map(|v| Tok::F64(v.to_bits()))
            .map_err(|_| bad());
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    if let Some(d) = digits.strip_prefix("0x") {
        return Ok(Tok::Int(hex(d)?));
    }
    let (d, radix) = match digits.strip_prefix("0b") {
        Some(d) => (d, 2),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    u64::from_str_radix(d, radix)
        .map(Tok::Int)
        .map_err(|_| bad())
}
