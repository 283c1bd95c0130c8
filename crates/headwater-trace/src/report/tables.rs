//! The parts of the page that no moment changes, written as HTML here so that they need no script: the table of what each
//! policy did, and the facts of the trace.

use std::fmt::Write as _;

use super::data::{PolicyFigures, ReportData};
use super::escape::html;
use super::units::{human_bytes, human_count, human_share, human_us};

/// One row for each policy. Every cell of figures carries the exact number of `replay --json` as `data-value`.
pub(super) fn policy_table(data: &ReportData) -> String {
    let mut out = String::from(
        "<table id=\"policies\"><thead><tr><th scope=\"col\">Policy</th><th scope=\"col\">Device</th>\
         <th scope=\"col\" class=\"n\">Peak live</th><th scope=\"col\" class=\"n\">Peak allocated</th>\
         <th scope=\"col\" class=\"n\">Peak active</th><th scope=\"col\" class=\"n\">Peak reserved</th>\
         <th scope=\"col\" class=\"n\">Fragmentation</th><th scope=\"col\" class=\"n\">Driver calls</th>\
         <th scope=\"col\" class=\"n\">Modelled driver time</th><th scope=\"col\" class=\"n\">Host time an event</th>\
         <th scope=\"col\" class=\"n\">Failed requests</th></tr></thead><tbody>",
    );
    reported_row(&mut out, data);
    for policy in &data.policies {
        policy_row(&mut out, &policy.figures);
    }
    out.push_str("</tbody></table>");
    out
}

fn reported_row(out: &mut String, data: &ReportData) {
    let said = &data.reported;
    let peaks = [said.peak_requested, said.peak_allocated, said.peak_active, said.peak_reserved];
    if peaks.iter().all(Option::is_none) {
        return;
    }
    out.push_str("<tr class=\"reported\"><th scope=\"row\">as recorded</th><td>—</td>");
    for peak in peaks {
        cell(out, "", peak.map(|bytes| (bytes.to_string(), human_bytes(bytes))));
    }
    let lost = match (said.peak_requested.or(said.peak_allocated), said.peak_reserved) {
        (Some(live), Some(reserved)) if reserved > 0 => Some(1.0 - live as f64 / reserved as f64),
        _ => None,
    };
    cell(out, "", lost.map(|share| (share.to_string(), human_share(share))));
    let calls = said.device_alloc.map(|allocs| allocs + said.device_free.unwrap_or(0));
    cell(out, "", calls.map(|calls| (calls.to_string(), human_count(calls))));
    for _ in 0..3 {
        cell(out, "", None);
    }
    out.push_str("</tr>");
}

fn policy_row(out: &mut String, f: &PolicyFigures) {
    let _ = write!(
        out,
        "<tr data-policy=\"{0}\"><th scope=\"row\">{0}</th><td>{1}</td>",
        html(&f.policy),
        html(&f.device)
    );
    let bytes = |bytes: u64| Some((bytes.to_string(), human_bytes(bytes)));
    cell(out, "peak_live_bytes", bytes(f.peak_live_bytes));
    cell(out, "peak_allocated_bytes", bytes(f.peak_allocated_bytes));
    cell(out, "peak_active_bytes", bytes(f.peak_active_bytes));
    cell(out, "peak_reserved_bytes", bytes(f.peak_reserved_bytes));
    cell(out, "fragmentation", Some((f.fragmentation.to_string(), human_share(f.fragmentation))));
    driver_calls(out, f);
    cell(out, "modelled_driver_us", Some((f.modelled_driver_us.to_string(), human_us(f.modelled_driver_us))));
    let host =
        f.host_ns_per_event.map(|ns| (ns.to_string(), format!("{} ns", human_count(ns.round() as u64))));
    cell(out, "host_ns_per_event", host);
    cell(out, "ooms", Some((f.ooms.to_string(), human_count(f.ooms))));
    out.push_str("</tr>");
}

/// The sum, and behind it each call by name: the sum alone hides that one call can cost a thousand times another.
fn driver_calls(out: &mut String, f: &PolicyFigures) {
    let total: u64 = f.driver_calls.values().sum();
    let _ = write!(out, "<td class=\"n\" data-key=\"driver_calls\" data-value=\"{total}\">");
    if f.driver_calls.is_empty() {
        out.push_str("0</td>");
        return;
    }
    let _ = write!(out, "<details><summary>{}</summary><ul>", human_count(total));
    for (name, count) in &f.driver_calls {
        let _ = write!(out, "<li><code>{}</code> {}</li>", html(name), human_count(*count));
    }
    out.push_str("</ul></details></td>");
}

/// A cell with its exact value and its text, or a dash.
fn cell(out: &mut String, key: &str, value: Option<(String, String)>) {
    let _ = match value {
        None => write!(out, "<td class=\"n\">—</td>"),
        Some((exact, text)) if key.is_empty() => write!(out, "<td class=\"n\" title=\"{exact}\">{text}</td>"),
        Some((exact, text)) => {
            write!(
                out,
                "<td class=\"n\" data-key=\"{key}\" data-value=\"{exact}\" title=\"{exact}\">{text}</td>"
            )
        }
    };
}

/// The line under the title.
pub(super) fn facts(data: &ReportData) -> String {
    let first = data.event_times_us.iter().min().copied().unwrap_or(0);
    let last = data.event_times_us.iter().max().copied().unwrap_or(0);
    let seconds = data.reported.seconds.map_or((last - first) as f64, |seconds| seconds * 1e6);
    format!(
        "{} events · {} · {} stream{}",
        human_count(data.events() as u64),
        human_us(seconds),
        human_count(data.streams.len() as u64),
        if data.streams.len() == 1 { "" } else { "s" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::PolicyReport;

    #[test]
    fn cells_carry_the_exact_figures_and_escaped_names() {
        let mut policy = PolicyReport::new("<i>classic</i>");
        policy.figures.peak_reserved_bytes = 3_074_424_832;
        policy.figures.driver_calls = [("mem_alloc".to_owned(), 23)].into();
        let table = policy_table(&ReportData { policies: vec![policy], ..ReportData::default() });
        assert!(table.contains(
            "data-key=\"peak_reserved_bytes\" data-value=\"3074424832\" title=\"3074424832\">2.86 GiB"
        ));
        assert!(table.contains("&lt;i&gt;classic&lt;/i&gt;") && !table.contains("<i>"));
        assert!(table.contains("<code>mem_alloc</code> 23"));
        assert!(!table.contains("as recorded"));
    }
}
