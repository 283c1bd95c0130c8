//! The statistics as a table for people.

use std::fmt;

use super::device::DeviceStats;
use super::stat::{PoolKind, Stat};
use crate::HumanBytes;

/// Rows of the table: the words of the design, the statistic behind them, and whether it counts bytes.
const ROWS: [(&str, &str, bool); 9] = [
    ("live", "requested_bytes", true),
    ("allocated", "allocated_bytes", true),
    ("active", "active_bytes", true),
    ("reserved", "reserved_bytes", true),
    ("split, unused", "inactive_split_bytes", true),
    ("allocations", "allocation", false),
    ("active blocks", "active", false),
    ("segments", "segment", false),
    ("split, unused blocks", "inactive_split", false),
];

impl DeviceStats {
    /// A table for people: every statistic for all blocks and both pools, then the shares, then the counters that are
    /// not zero.
    pub fn summary(&self) -> String {
        self.to_string()
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, label: &str, stat: &Stat, is_bytes: bool) -> fmt::Result {
    write!(f, "{label:<24}")?;
    for (_, value) in stat.parts() {
        let text = if is_bytes { HumanBytes(value).to_string() } else { grouped(value) };
        write!(f, " {text:>14}")?;
    }
    writeln!(f)
}

impl fmt::Display for DeviceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>14} {:>14} {:>14} {:>14}", "", "now", "peak", "in total", "given back")?;
        let arrays = self.arrays();
        for (label, name, is_bytes) in ROWS {
            for (_, array) in arrays.iter().filter(|(array, _)| *array == name) {
                write_row(f, label, &array.all, is_bytes)?;
                for kind in [PoolKind::SmallPool, PoolKind::LargePool] {
                    let pool = if kind == PoolKind::SmallPool { "  small pool" } else { "  large pool" };
                    write_row(f, pool, array.of(kind), is_bytes)?;
                }
            }
        }
        for (name, stat) in self.plain_stats() {
            write_row(f, &name.replace('_', " "), stat, false)?;
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        writeln!(f)?;
        writeln!(
            f,
            "fragmentation            {:>14}  (now {})",
            percent(self.fragmentation()),
            percent(self.current_fragmentation())
        )?;
        let hit_rate = self.hit_rate().map_or("no requests".to_owned(), percent);
        writeln!(f, "hit rate                 {hit_rate:>14}")?;
        for (name, value) in self.counters().into_iter().filter(|(_, value)| *value > 0) {
            let label = name.trim_start_matches("num_").replace('_', " ");
            writeln!(f, "{label:<24} {:>14}", grouped(value))?;
        }
        Ok(())
    }
}

/// Digits in groups of three: `1,234,567`.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        for (value, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(value), text);
        }
    }

    #[test]
    fn every_statistic_kept_by_pool_has_a_row() {
        let stats = DeviceStats::default();
        for (name, _) in stats.arrays() {
            assert!(
                ROWS.iter().any(|(_, row, is_bytes)| *row == name && *is_bytes == name.ends_with("bytes")),
                "{name}"
            );
        }
    }
}
