//! Bytes by tier over time, as stacked areas.

use std::fmt::Write;
use std::time::Duration;

use headwater::HumanBytes;

use super::report::{DemoReport, DemoRow, Phase};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
/// Told apart in grey and by those who see fewer colours, too.
pub(super) const TIERS: [(&str, &str); 3] = [("GPU", "#2f6f4f"), ("HOST", "#d8a13a"), ("DISK", "#8a8f98")];

/// Where times and bytes are in the picture.
struct Scale {
    end: Duration,
    most_bytes: u64,
}

impl Scale {
    fn of(report: &DemoReport) -> Self {
        let most = report.rows.iter().map(|row| row.bytes_by_tier.iter().sum::<u64>()).max().unwrap_or(0);
        let end = report.rows.last().map_or(Duration::ZERO, |row| row.elapsed);
        Self { end: end.max(Duration::from_nanos(1)), most_bytes: most.max(report.gpu_bytes).max(1) }
    }

    fn x(&self, at: Duration) -> f64 {
        LEFT + WIDTH * at.as_secs_f64() / self.end.as_secs_f64()
    }

    fn y(&self, bytes: u64) -> f64 {
        TOP + HEIGHT * (1.0 - bytes as f64 / self.most_bytes as f64)
    }
}

pub(super) fn draw(report: &DemoReport) -> String {
    let scale = Scale::of(report);
    let mut svg = String::new();
    // Writing into a string cannot fail, here and below.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"13\">",
        LEFT + WIDTH + 30.0,
        TOP + HEIGHT + 60.0,
    );
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>", report.summary());
    areas(&mut svg, report, &scale);
    phases(&mut svg, report, &scale);
    limit(&mut svg, report.gpu_bytes, &scale);
    axis(&mut svg, &scale);
    legend(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn areas(svg: &mut String, report: &DemoReport, scale: &Scale) {
    for (tier, (_, colour)) in TIERS.iter().enumerate() {
        let level = |row: &DemoRow, tiers: usize| row.bytes_by_tier[..tiers].iter().sum::<u64>();
        let point = |row: &DemoRow, tiers: usize| (scale.x(row.elapsed), scale.y(level(row, tiers)));
        let upper = report.rows.iter().map(|row| point(row, tier + 1));
        let lower = report.rows.iter().rev().map(|row| point(row, tier));
        let points = upper.chain(lower).fold(String::new(), |mut points, (x, y)| {
            let _ = write!(points, "{x:.1},{y:.1} ");
            points
        });
        let _ = writeln!(svg, "<polygon points=\"{}\" fill=\"{colour}\"/>", points.trim_end());
    }
}

/// A line where each phase begins, with its name.
fn phases(svg: &mut String, report: &DemoReport, scale: &Scale) {
    let mut last: Option<Phase> = None;
    for row in &report.rows {
        if last != Some(row.phase) {
            last = Some(row.phase);
            let x = scale.x(row.elapsed);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#444\" stroke-width=\"0.7\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"11\">{}</text>",
                TOP - 12.0,
                TOP + HEIGHT,
                x + 3.0,
                TOP - 4.0,
                row.phase,
            );
        }
    }
}

/// What the GPU space holds.
fn limit(svg: &mut String, gpu_bytes: u64, scale: &Scale) {
    let y = scale.y(gpu_bytes);
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#b03030\" stroke-dasharray=\"6 4\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#b03030\">{}</text>",
        LEFT + WIDTH,
        LEFT - 6.0,
        y + 4.0,
        HumanBytes(gpu_bytes),
    );
}

fn axis(svg: &mut String, scale: &Scale) {
    for quarter in 0..=4 {
        let at = scale.end * quarter / 4;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\">{:.2} s</text>",
            scale.x(at),
            TOP + HEIGHT + 16.0,
            at.as_secs_f64(),
        );
    }
}

fn legend(svg: &mut String) {
    for (index, (name, colour)) in TIERS.iter().enumerate() {
        let (left, top) = (LEFT + index as f64 * 90.0, TOP + HEIGHT + 32.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            left + 18.0,
            top + 11.0,
        );
    }
}
