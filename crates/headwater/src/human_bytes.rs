//! Byte counts for people: binary units, one decimal.

use std::fmt;

/// Shows a number of bytes in the largest binary unit that it fills.
///
/// ```
/// use headwater::HumanBytes;
/// assert_eq!(HumanBytes(20 << 20).to_string(), "20.0 MiB");
/// assert_eq!(HumanBytes(512).to_string(), "512 B");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 1023.95 would be printed as "1024.0": it belongs to the next unit.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::HumanBytes;

    #[test]
    fn every_size_gets_the_unit_it_fills() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (1 << 47, "128.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(HumanBytes(bytes).to_string(), text);
        }
    }
}
