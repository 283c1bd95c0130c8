//! The page put together: one file, with style, scripts and data inside, that opens from disk with no network.
//!
//! `assets/page.html` is the frame, with `{{name}}` where a part goes. The scripts are plain files joined in the order of
//! [`SCRIPTS`] inside one function: they share a scope, and each uses only what is above it when it loads. There is no
//! build step and nothing is fetched: the page's own content policy forbids it.

use std::io::Write;

use super::check::check;
use super::data::ReportData;
use super::embed::embed;
use super::error::ReportError;
use super::escape::{html, json_in_script};
use super::tables::{facts, policy_table};
use super::words::describe_report;

const PAGE: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");

const SCRIPTS: [&str; 19] = [
    include_str!("assets/failure.js"),
    include_str!("assets/units.js"),
    include_str!("assets/columns.js"),
    include_str!("assets/lives.js"),
    include_str!("assets/model.js"),
    include_str!("assets/moment.js"),
    include_str!("assets/words.js"),
    include_str!("assets/colours.js"),
    include_str!("assets/pyramid.js"),
    include_str!("assets/state.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/map_layout.js"),
    include_str!("assets/map.js"),
    include_str!("assets/holders.js"),
    include_str!("assets/tree.js"),
    include_str!("assets/scrubber.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/selftest.js"),
    include_str!("assets/main.js"),
];

/// The page as a text.
///
/// # Errors
/// Data that contradicts itself.
pub fn render(data: &ReportData) -> Result<String, ReportError> {
    let mut page = Vec::new();
    write_html(data, &mut page)?;
    // Every part is a `String` or a `str`.
    Ok(String::from_utf8(page).unwrap_or_default())
}

/// Writes the page. It is made part by part: a page of a million events is tens of megabytes.
///
/// # Errors
/// Data that contradicts itself, or a failed write.
pub fn write_html(data: &ReportData, mut out: impl Write) -> Result<(), ReportError> {
    check(data)?;
    let (meta, columns) = embed(data).map_err(std::io::Error::from)?;
    // One pass over the frame: what is put in is never looked at again, so no text of a trace can name a part.
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let Some((name, after)) = after.split_once("}}") else { break };
        match name {
            "title" => out.write_all(html(&data.trace).as_bytes())?,
            "facts" => out.write_all(html(&facts(data)).as_bytes())?,
            "summary" => out.write_all(html(&describe_report(data)).as_bytes())?,
            "policies" => out.write_all(policy_table(data).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
            "meta" => out.write_all(json_in_script(&meta).as_bytes())?,
            "columns" => {
                for (number, text) in columns.texts().iter().enumerate() {
                    writeln!(out, "<script type=\"text/plain\" id=\"column-{number}\">{text}</script>")?;
                }
            }
            _ => {}
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::PolicyReport;

    fn page(trace: &str, frame: &str) -> String {
        let data = ReportData {
            trace: trace.to_owned(),
            frames: vec![frame.to_owned()],
            labels: vec![vec![], vec![0]],
            policies: vec![PolicyReport::new("classic")],
            ..ReportData::default()
        };
        render(&data).unwrap()
    }

    #[test]
    fn every_part_of_the_frame_is_filled_and_nothing_is_fetched() {
        let page = page("t", "f");
        assert!(!page.contains("{{"), "a part is not filled");
        for outside in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(outside), "{outside} reaches outside the file");
        }
    }

    #[test]
    fn text_of_a_trace_ends_no_element_and_names_no_part() {
        let quiet = page("t", "f");
        let hostile = page(
            "</title><script>alert(1)</script>{{meta}}",
            "</script><script>alert(2)</script>{{columns}}",
        );
        assert_eq!(hostile.matches("<script").count(), quiet.matches("<script").count());
        assert_eq!(hostile.matches("</script").count(), quiet.matches("</script").count());
        assert!(hostile.contains("&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;{{meta}}"));
    }

    #[test]
    fn every_asset_is_short_enough_to_read() {
        for asset in SCRIPTS.iter().chain([&PAGE, &STYLE]) {
            assert!(asset.lines().count() < 300, "{}", asset.lines().next().unwrap_or_default());
        }
    }
}
