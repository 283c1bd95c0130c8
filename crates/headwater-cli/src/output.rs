//! Tables for people and JSON lines for programs.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};
use serde_json::Value;

/// A table with a header row; columns from the second on are numbers and stand right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(presets::NOTHING.header_separator(rule));
    table.set_content_arrangement(ContentArrangement::Disabled);
    let aligned = |(column, text): (usize, &str)| {
        let align = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(text).set_alignment(align)
    };
    table.set_header(header.iter().copied().enumerate().map(aligned));
    for row in rows {
        table.add_row(row.iter().map(String::as_str).enumerate().map(aligned));
    }
    table
}

/// Prints one JSON object on a line of its own.
pub(crate) fn json_line(value: &Value) {
    println!("{value}");
}

/// Digits in groups of three: `1,234,567`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
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
}
