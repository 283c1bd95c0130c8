//! Bytes by tier over time, as stacked areas.

use std::fmt::Write;

use headwater::HumanBytes;

use super::DemoReport;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 40.0;
const NAMES: [(&str, &str); 3] = [("GPU", "#2f6f4f"), ("HOST", "#d8a13a"), ("DISK", "#8a8f98")];

/// The picture, by step rather than by time: what costs nothing on one device takes long on another.
pub(super) fn draw(report: &DemoReport) -> String {
    let most = report.rows.iter().map(|row| row.bytes_by_tier.iter().sum::<u64>()).max().unwrap_or(0);
    let most = most.max(report.gpu_bytes).max(1) as f64;
    let last = report.rows.len().saturating_sub(1).max(1) as f64;
    let x = |step: usize| LEFT + WIDTH * step as f64 / last;
    let y = |bytes: u64| TOP + HEIGHT * (1.0 - bytes as f64 / most);
    let mut svg = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"13\">",
        LEFT + WIDTH + 20.0,
        TOP + HEIGHT + 50.0,
    );
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>", report.summary());
    for (tier, (_, colour)) in NAMES.iter().enumerate() {
        let level = |row: &super::DemoRow, tiers: usize| row.bytes_by_tier[..tiers].iter().sum::<u64>();
        let upper = report.rows.iter().enumerate().map(|(step, row)| (x(step), y(level(row, tier + 1))));
        let lower = report.rows.iter().enumerate().rev().map(|(step, row)| (x(step), y(level(row, tier))));
        let points = upper.chain(lower).fold(String::new(), |mut points, (x, y)| {
            let _ = write!(points, "{x:.1},{y:.1} ");
            points
        });
        let _ = writeln!(svg, "<polygon points=\"{}\" fill=\"{colour}\"/>", points.trim_end());
    }
    let limit = y(report.gpu_bytes);
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{limit:.1}\" y2=\"{limit:.1}\" stroke=\"#b03030\" stroke-dasharray=\"6 4\"/>",
        LEFT + WIDTH,
    );
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#b03030\">{}</text>",
        LEFT - 6.0,
        limit + 4.0,
        HumanBytes(report.gpu_bytes),
    );
    for (index, (name, colour)) in NAMES.iter().enumerate() {
        let (left, top) = (LEFT + index as f64 * 90.0, TOP + HEIGHT + 18.0);
        let _ =
            writeln!(svg, "<rect x=\"{left}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{name}</text>", left + 18.0, top + 11.0);
    }
    svg.push_str("</svg>\n");
    svg
}
