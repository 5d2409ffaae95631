//! Formats numbers as the decimal text that they are hashed and looked up by, without allocating.

use std::io::Write;

/// The longest number: the smallest subnormal f64 has 326 digits and points, and a sign.
const ROOM: usize = 344;

/// The digits of 0 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut value = 0;
    while value < 100 {
        pairs[value] = [b'0' + value as u8 / 10, b'0' + value as u8 % 10];
        value += 1;
    }
    pairs
};

/// A number's decimal text, on the stack.
pub(crate) struct Decimal {
    bytes: [u8; ROOM],
    start: usize,
    end: usize,
}

impl Decimal {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; ROOM], start: 0, end: 0 }
    }

    /// The decimal text of an integer, as `tf.as_string` writes it.
    #[inline]
    pub(crate) fn integer(&mut self, magnitude: u64, negative: bool) -> &[u8] {
        self.end = ROOM;
        self.start = ROOM;
        let mut rest = magnitude;
        while rest >= 100 {
            self.pair(rest % 100);
            rest /= 100;
        }
        if rest >= 10 {
            self.pair(rest);
        } else {
            self.start -= 1;
            // A digit is below 10.
            self.bytes[self.start] = b'0' + rest as u8;
        }
        if negative {
            self.start -= 1;
            self.bytes[self.start] = b'-';
        }
        &self.bytes[self.start..self.end]
    }

    /// Prepends two digits.
    #[inline]
    fn pair(&mut self, value: u64) {
        self.start -= 2;
        self.bytes[self.start..self.start + 2].copy_from_slice(&PAIRS[value as usize]);
    }

    /// The shortest text that parses back to the same number, in positional notation: `1.5`, and `2` for
    /// 2.0, so that integral values have the same text in every column type.
    pub(crate) fn float(&mut self, value: impl std::fmt::Display) -> &[u8] {
        let mut room = &mut self.bytes[..];
        // Cannot fail: every f32 and f64 fits.
        let written = write!(room, "{value}").map(|()| ROOM - room.len()).unwrap_or(0);
        self.start = 0;
        self.end = written;
        let text = &self.bytes[..written];
        if text == b"-0" { b"0" } else { text }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_match_the_standard_library(value: i64) {
            let mut decimal = Decimal::new();
            let text = decimal.integer(value.unsigned_abs(), value < 0);
            prop_assert_eq!(std::str::from_utf8(text).unwrap(), value.to_string());
        }

        #[test]
        fn floats_parse_back_to_the_same_value(value: f64) {
            let mut decimal = Decimal::new();
            let text = std::str::from_utf8(decimal.float(value)).unwrap();
            prop_assert!(text.parse::<f64>().unwrap() == value || value.is_nan());
        }
    }

    #[test]
    fn extremes() {
        let mut decimal = Decimal::new();
        assert_eq!(decimal.integer(u64::MAX, false), b"18446744073709551615");
        assert_eq!(decimal.integer(i64::MIN.unsigned_abs(), true), b"-9223372036854775808");
        assert_eq!(decimal.integer(0, false), b"0");
        assert_eq!(decimal.float(-0.0_f64), b"0");
        assert_eq!(decimal.float(2.0_f32), b"2");
        assert_eq!(decimal.float(0.1_f32), b"0.1");
        assert_eq!(decimal.float(-f64::from_bits(1)).len(), 327);
        assert_eq!(decimal.float(f64::MIN).len(), 310);
    }
}
