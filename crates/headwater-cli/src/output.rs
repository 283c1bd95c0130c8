//! Tables for people and JSON lines for programs.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};
use serde_json::Value;

/// A table with a header row; columns from the second on are numbers and stand right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(presets::NOTHING.header_separator(rule));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(column, text)| {
            let align = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(align)
        }));
    }
    table
}

/// Prints one JSON object on a line of its own.
pub(crate) fn json_line(value: &Value) {
    println!("{value}");
}
