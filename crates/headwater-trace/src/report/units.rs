//! Numbers for people. `assets/units.js` writes the same texts: a browser test compares the two.

/// Bytes in the largest binary unit they fill, three digits: `1.24 GiB`, `20 MiB`, `512 B`.
///
/// ```
/// use headwater_trace::report::human_bytes;
/// assert_eq!(human_bytes(20 << 20), "20 MiB");
/// assert_eq!(human_bytes(1_244_400_128), "1.16 GiB");
/// ```
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.6 would be written as "1024": it belongs to the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Microseconds as a time: `812 µs`, `3.2 ms`, `1.04 s`.
pub fn human_us(us: f64) -> String {
    if us < 999.5 {
        format!("{} µs", three_digits(us))
    } else if us < 999_500.0 {
        format!("{} ms", three_digits(us / 1e3))
    } else {
        format!("{} s", three_digits(us / 1e6))
    }
}

/// A share in whole percent, or with one digit below ten.
pub fn human_share(share: f64) -> String {
    let percent = share * 100.0;
    let digits = if percent.abs() < 9.95 { 1 } else { 0 };
    format!("{} %", rounded(percent, digits))
}

/// A count with commas.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn three_digits(value: f64) -> String {
    rounded(value, if value < 9.995 { 2 } else { i32::from(value < 99.95) })
}

/// Rounds half up and drops trailing zeros. `format!` alone rounds half to even and JavaScript's `toFixed` half up, and
/// the two texts must be the same.
fn rounded(value: f64, digits: i32) -> String {
    let scale = 10f64.powi(digits);
    let value = (value * scale + 0.5).floor() / scale;
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_no_idle_zeros() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (20 << 20, "20 MiB"),
            ((1 << 30) - 1, "1 GiB"),
            (3_074_424_832, "2.86 GiB"),
            (214 << 20, "214 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn times_shares_and_counts_read_well() {
        assert_eq!(
            (human_us(0.0), human_us(3200.0), human_us(1.04e6)),
            ("0 µs".into(), "3.2 ms".into(), "1.04 s".into())
        );
        assert_eq!((human_share(0.5952), human_share(0.0042)), ("60 %".into(), "0.4 %".into()));
        assert_eq!(
            (human_count(7), human_count(31_561), human_count(1_000_000)),
            ("7".into(), "31,561".into(), "1,000,000".into())
        );
    }
}
