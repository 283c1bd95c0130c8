//! `headwater report`: a page that shows where the memory went.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use headwater::HumanBytes;
use headwater_trace::Trace;
use headwater_trace::replay::report_on;
use headwater_trace::report::{ReportData, describe_report, write_html};
use serde_json::json;

use crate::args::{Replaying, ReportOptions};
use crate::output::json_line;
use crate::replaying::{open_traces, print_json, run_one};

pub(crate) fn run(options: &ReportOptions) -> Result<()> {
    let traces = open_traces(&options.trace)?;
    let several = traces.len() > 1;
    for (place, trace) in traces.iter().enumerate() {
        let path = options.output.clone().unwrap_or_else(|| default_path(&options.trace));
        // A page is about one device.
        let path = if several { with_number(&path, place) } else { path };
        let data = report_data(&options.replaying, trace)?;
        write_page(&data, &path)?;
        print_where(&options.replaying, &data, &path)?;
    }
    Ok(())
}

/// Replays `trace` with every policy asked for, and keeps what a page shows.
fn report_data(replaying: &Replaying, trace: &Trace) -> Result<ReportData> {
    let mut outcomes = Vec::new();
    for policy in replaying.policies() {
        let replay = replaying.replay(policy).keep_timeline().keep_placement();
        let outcome = run_one(&replay, policy, trace, replaying.device)?;
        if replaying.json {
            print_json(&outcome, None)?;
        }
        outcomes.push(outcome);
    }
    Ok(report_on(trace, outcomes))
}

/// Writes the page.
pub(crate) fn write_page(data: &ReportData, path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let sink = BufWriter::new(File::create(path).with_context(cannot)?);
    write_html(data, sink).with_context(cannot)
}

fn print_where(replaying: &Replaying, data: &ReportData, path: &Path) -> Result<()> {
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    if replaying.json {
        json_line(&json!({ "trace": data.trace, "report": path, "bytes": bytes }));
    } else {
        println!("{}", describe_report(data));
        println!("\nThe page is {} ({}): open it in a browser.", path.display(), HumanBytes(bytes));
    }
    Ok(())
}

/// Beside nothing else of the trace: in the current folder, under its name up to the first dot.
fn default_path(trace: &Path) -> PathBuf {
    let name = trace.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or("report");
    PathBuf::from(format!("{stem}.html"))
}

fn with_number(path: &Path, number: usize) -> PathBuf {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = path.extension().map_or("html".into(), |extension| extension.to_string_lossy());
    path.with_file_name(format!("{stem}-{number}.{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_after_its_trace() {
        assert_eq!(default_path(Path::new("/a/gpt2_varlen.trace.gz")), Path::new("gpt2_varlen.html"));
        assert_eq!(default_path(Path::new(".hidden.pickle")), Path::new("hidden.html"));
        assert_eq!(with_number(Path::new("out/page.html"), 1), Path::new("out/page-1.html"));
    }
}
