//! Sizes as people write them on a command line. Which of them make sense is each command's to say.

/// Bytes of '8192', '512B', '64KiB', '1 GiB' or '64K': K, M and G stand for KiB, MiB and GiB, in any case.
///
/// # Errors
/// One sentence with what is allowed.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size: bytes, or a whole number and KiB, MiB or GiB");
    let plain = text.trim();
    let end = plain
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(plain.len());
    let (number, unit) = plain.split_at(end);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(scale).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes_of) in [
            ("64MiB", 64 << 20),
            ("1 GiB", 1 << 30),
            ("8192", 8192),
            ("512B", 512),
            ("8K", 8 << 10),
            (" 1m", 1 << 20),
        ] {
            assert_eq!(bytes(text), Ok(bytes_of), "{text}");
        }
        for bad in [
            "",
            "64MB",
            "-1",
            "1.5GiB",
            "GiB",
            "99999999999999999999",
            "9999999999999GiB",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
