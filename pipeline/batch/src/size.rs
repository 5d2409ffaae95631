//! Sizes in bytes, as messages and tables show them.

use std::fmt;

/// A number of bytes, displayed with a binary unit: `1.5 KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let Self(bytes) = *self;
        if bytes < 1024 {
            return write!(f, "{bytes} B");
        }
        let mut value = bytes as f64 / 1024.0;
        let mut unit = 0;
        // Values that round to 1024.0 print as 1.0 of the next unit.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_have_binary_units() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (2 << 30, "2.0 GiB")];
        for (number, wanted) in cases {
            assert_eq!(Size(number).to_string(), wanted);
        }
        assert_eq!(Size((1 << 20) - 1).to_string(), "1.0 MiB");
        assert_eq!(Size(u64::MAX).to_string(), "16.0 EiB");
    }
}
