//! Values as words: how each kind is read and written. Reading answers `None` for what is no value of the kind;
//! whether a value is in its setting's range is for [`limits`](super::limits).

use super::settings::{AddressReserve, Backing, FillOnFree};

/// The largest number of MiB whose bytes can be counted. PyTorch, too, takes larger ones for this.
pub(super) const MAX_MB: u64 = u64::MAX >> 20;

const BYTE_SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Exactly `True` or `False`: PyTorch refuses `true`, and a set-up that runs here must run there.
pub(super) fn read_bool(word: &str) -> Option<bool> {
    match word {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

pub(super) fn write_bool(value: bool) -> String {
    if value { "True" } else { "False" }.to_owned()
}

/// Digits only: no sign, no fraction, no unit.
pub(super) fn read_whole(word: &str) -> Option<u64> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) { word.parse().ok() } else { None }
}

/// A whole number of MiB.
pub(super) fn read_mb(word: &str) -> Option<u64> {
    read_whole(word).map(|mb| mb.min(MAX_MB))
}

/// A finite number.
pub(super) fn read_number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A value, or the word for none.
pub(super) fn read_or_word<T>(word: &str, none: &str, read: fn(&str) -> Option<T>) -> Option<Option<T>> {
    if word == none { Some(None) } else { read(word).map(Some) }
}

/// Bytes with an optional K, M, G or T, 1024 based.
pub(super) fn read_bytes(word: &str) -> Option<u64> {
    let suffix = word.chars().next_back()?.to_ascii_uppercase();
    match BYTE_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        None => read_whole(word),
        Some((_, shift)) => read_whole(&word[..word.len() - 1])?.checked_mul(1 << shift),
    }
}

/// The shortest exact form.
pub(super) fn write_bytes(bytes: u64) -> String {
    match BYTE_SUFFIXES.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift)) {
        Some((name, shift)) => format!("{}{name}", bytes >> shift),
        None => bytes.to_string(),
    }
}

pub(super) fn read_backing(word: &str) -> Option<Backing> {
    [Backing::Classic, Backing::Paged, Backing::Auto].into_iter().find(|backing| backing.name() == word)
}

pub(super) fn read_fill(word: &str) -> Option<FillOnFree> {
    match word {
        "none" => Some(FillOnFree::None),
        "zero" => Some(FillOnFree::Zero),
        _ => {
            let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
            let is_byte = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_byte { u8::from_str_radix(digits, 16).ok().map(FillOnFree::Pattern) } else { None }
        }
    }
}

pub(super) fn write_fill(fill: FillOnFree) -> String {
    match fill {
        FillOnFree::None => "none".to_owned(),
        FillOnFree::Zero => "zero".to_owned(),
        FillOnFree::Pattern(byte) => format!("0x{byte:02X}"),
    }
}

/// A share of the memory, or GiB with a `G`.
pub(super) fn read_reserve(word: &str) -> Option<AddressReserve> {
    match word.strip_suffix(['G', 'g']) {
        Some(gib) => read_number(gib).map(AddressReserve::Gib),
        None => read_number(word).map(AddressReserve::Fraction),
    }
}

pub(super) fn write_reserve(reserve: AddressReserve) -> String {
    match reserve {
        AddressReserve::Fraction(share) => share.to_string(),
        AddressReserve::Gib(gib) => format!("{gib}G"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_words_are_booleans() {
        assert_eq!(read_bool("True"), Some(true));
        assert_eq!(read_bool("False"), Some(false));
        for word in ["true", "false", "TRUE", "1", "0", "yes", ""] {
            assert_eq!(read_bool(word), None, "{word}");
        }
    }

    #[test]
    fn numbers_are_read_whole_or_not_at_all() {
        assert_eq!(read_whole("0020"), Some(20));
        assert_eq!(read_mb("18446744073709551615"), Some(MAX_MB));
        for word in ["", "-1", "+1", "1.5", "12mb", "18446744073709551616", "0x10"] {
            assert_eq!(read_whole(word), None, "{word}");
        }
        for word in ["nan", "inf", "-inf", "", "0,5", "half"] {
            assert_eq!(read_number(word), None, "{word}");
        }
    }

    #[test]
    fn bytes_keep_their_suffix_and_refuse_overflow() {
        for (word, bytes, written) in [
            ("40G", 40 << 30, "40G"),
            ("1024m", 1 << 30, "1G"),
            ("2T", 2 << 40, "2T"),
            ("1536K", 1536 << 10, "1536K"),
            ("1000", 1000, "1000"),
        ] {
            assert_eq!(read_bytes(word), Some(bytes));
            assert_eq!(write_bytes(bytes), written);
        }
        for word in ["", "G", "1.5G", "40GB", "40Gi", "16777216T", "-1"] {
            assert_eq!(read_bytes(word), None, "{word}");
        }
    }

    #[test]
    fn fills_are_words_or_two_hex_digits() {
        assert_eq!(read_fill("0xa5"), Some(FillOnFree::Pattern(0xA5)));
        assert_eq!(read_fill("FF"), Some(FillOnFree::Pattern(0xFF)));
        for word in ["", "0x", "A", "0xA5A5", "+1", "zero0"] {
            assert_eq!(read_fill(word), None, "{word}");
        }
    }
}
