//! The result as a picture: bars on a logarithmic scale, one group a benchmark and size, one colour an allocator. Plain SVG,
//! no script, readable in any browser.

use std::fmt::Write;

use crate::row::Row;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 260.0;
const BAR: f64 = 14.0;
const GAP: f64 = 12.0;
const TOP: f64 = 48.0;

/// Told apart also by those who see fewer colours (Okabe and Ito's set).
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];

/// A picture of the nanoseconds in `rows`, in the order of `rows`.
///
/// ```
/// let svg = headwater_bench::picture(&[]);
/// assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
/// ```
pub fn picture(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.ns > 0.0).collect();
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        if !names.contains(&row.allocator.as_str()) {
            names.push(&row.allocator);
        }
    }
    let groups: Vec<&[&Row]> = rows.chunk_by(|one, other| label(one) == label(other)).collect();
    let height = TOP + 40.0 + rows.len() as f64 * BAR + groups.len() as f64 * GAP;
    let most = rows.iter().map(|row| row.ns).fold(10.0, f64::max).log10().ceil();
    let x = |ns: f64| LEFT + (WIDTH - LEFT - 80.0) * ns.max(1.0).log10() / most;

    let mut svg = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\">Nanoseconds an operation (logarithmic; shorter is better)</text>"
    );
    for (place, name) in names.iter().enumerate() {
        let (left, colour) = (LEFT + 90.0 * place as f64, COLOURS[place % COLOURS.len()]);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" \
             y=\"37\">{}</text>",
            left + 14.0,
            escaped(name)
        );
    }
    for power in 0..=most as i32 {
        let (at, value) = (x(10_f64.powi(power)), 10_f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            height - 24.0,
            height - 10.0
        );
    }
    let mut y = TOP;
    for group in groups {
        for (place, row) in group.iter().enumerate() {
            if place == 0 {
                let text = escaped(&label(row));
                let _ = writeln!(
                    svg,
                    "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                    LEFT - 8.0,
                    y + 10.0
                );
            }
            let colour = names.iter().position(|name| *name == row.allocator).unwrap_or(0) % COLOURS.len();
            let end = x(row.ns);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\">{:.1}</text>",
                (end - LEFT).max(1.0),
                BAR - 2.0,
                COLOURS[colour],
                end + 4.0,
                y + 10.0,
                row.ns
            );
            y += BAR;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn label(row: &Row) -> String {
    let [bench, _, size, threads, ..] = row.cells();
    format!("{bench}, {size}, {threads} thread{}", if row.threads == 1 { "" } else { "s" })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Seen;

    #[test]
    fn every_row_has_a_bar_and_names_are_escaped() {
        let mut seen = [Seen::default(), Seen::default()];
        seen.iter_mut().for_each(|seen| seen.note_round(20.0));
        let [one, other] = seen;
        let rows = [one.row("pair", "a<b", 512, 1), other.row("pair", "binned", 512, 1)];
        let svg = picture(&rows);
        assert_eq!(svg.matches("width=\"10\" height=\"10\"").count(), 2);
        assert_eq!(svg.matches(">20.0</text>").count(), 2);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }
}
