//! Element types: to numbers and back, rounding to nearest even.

/// ncclDataType_t, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Float16,
    Float32,
    Bfloat16,
}

impl Type {
    pub(super) fn of(number: i32) -> Option<Self> {
        Some(match number {
            6 => Self::Float16,
            7 => Self::Float32,
            9 => Self::Bfloat16,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        if self == Self::Float32 { 4 } else { 2 }
    }

    /// Adds what `bytes` say to `sums`.
    pub(super) fn add(self, bytes: &[u8], sums: &mut [f32]) {
        for (chunk, sum) in bytes.chunks_exact(self.bytes()).zip(sums) {
            *sum += self.read(chunk);
        }
    }

    fn read(self, b: &[u8]) -> f32 {
        match self {
            Self::Float32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            Self::Bfloat16 => f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16),
            Self::Float16 => half(u16::from_le_bytes([b[0], b[1]])),
        }
    }

    /// The numbers as the type writes them.
    pub(super) fn write(self, numbers: &[f32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(numbers.len() * self.bytes());
        for &number in numbers {
            match self {
                Self::Float32 => out.extend(number.to_le_bytes()),
                Self::Bfloat16 => out.extend(to_bfloat(number).to_le_bytes()),
                Self::Float16 => out.extend(to_half(number).to_le_bytes()),
            }
        }
        out
    }
}

fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

fn to_bfloat(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn to_half(number: f32) -> u16 {
    let sign = (number.to_bits() >> 16 & 0x8000) as u16;
    let size = number.abs();
    if size.is_nan() {
        return sign | 0x7e00;
    }
    if size >= 65_520.0 {
        return sign | 0x7c00;
    }
    // Units of the last place at this size; below the normal range they stay 2^-24.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (size * 2f32.powi(10 - exponent)).round_ties_even() as u32;
    // A carry into the next exponent adds up by itself.
    sign | (((exponent + 14) as u32) * 1024 + units) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let number = half(bits);
            if !number.is_nan() {
                assert_eq!(to_half(number), bits, "{number}");
            }
        }
        assert_eq!(to_half(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(to_half(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(to_bfloat(257.0), 0x4380);
    }
}
