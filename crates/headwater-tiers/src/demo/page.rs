//! The picture and the figures on one page that needs nothing else.

use std::fmt::Write;

use headwater::HumanBytes;

use super::report::DemoReport;
use super::svg;
use crate::spill::Route;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1020px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}";

pub(super) fn write(report: &DemoReport) -> String {
    let mut page = String::new();
    // Writing into a string cannot fail, here and below.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Headwater: tiers</title>\
         <style>{STYLE}</style></head>\n<body><h1>Bytes by tier over time</h1>\n<p>{}, in {:.2} s.</p>\n{}",
        report.summary(),
        report.elapsed.as_secs_f64(),
        svg::draw(report),
    );
    routes(&mut page, report);
    steps(&mut page, report);
    let _ = writeln!(page, "<p>Disk: {}.</p></body></html>", report.disk);
    page
}

fn routes(page: &mut String, report: &DemoReport) {
    page.push_str("<h2>What was moved</h2>\n<table><tr><th>route<th>moves<th>bytes<th>seconds<th>called off<th>failed</tr>\n");
    for route in Route::ALL {
        let figures = report.figures.route(*route);
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{:.3}<td>{}<td>{}</tr>",
            route.name(),
            figures.moves,
            HumanBytes(figures.bytes),
            figures.time.as_secs_f64(),
            figures.cancelled,
            figures.failed,
        );
    }
    page.push_str("</table>\n");
}

fn steps(page: &mut String, report: &DemoReport) {
    page.push_str(
        "<details><summary>Every step</summary><table><tr><th>step<th>seconds<th>GPU<th>HOST<th>DISK</tr>\n",
    );
    for row in &report.rows {
        let [gpu, host, disk] = row.bytes_by_tier.map(HumanBytes);
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{:.4}<td>{gpu}<td>{host}<td>{disk}</tr>",
            row.what(),
            row.elapsed.as_secs_f64(),
        );
    }
    page.push_str("</table></details>\n");
}
