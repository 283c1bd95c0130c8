//! Sizes as people write them: `40G`, `512M`, `1.5GiB`, `4096`.

use std::str::FromStr;

/// A number of bytes from the command line. Units are binary, with or without `iB` or `B`, in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no size: use a number of bytes, or one with K, M, G or T");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(bad()),
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(1 << shift),
            // A fraction of a unit; `as` would hide what is too large.
            Err(_) => {
                let bytes = number.parse::<f64>().map_err(|_| bad())? * (1u64 << shift) as f64;
                (bytes < u64::MAX as f64).then_some(bytes as u64)
            }
        };
        bytes.map(Self).ok_or_else(|| format!("`{text}` does not fit 64 bits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("40G", 40 << 30),
            ("1.5GiB", 3 << 29),
            ("2 kb", 2048),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "G", "-1", "12Q", "1.2.3M", "20000000000T", "1e9", "9999999999999999999999"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
