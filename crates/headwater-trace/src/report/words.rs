//! What a picture shows, in words: of a moment, and of the whole report.
//!
//! `assets/words.js` writes the first in the browser while the scrubber moves; a browser test compares the two texts.

use super::data::ReportData;
use super::moment::Moment;
use super::units::{human_bytes, human_count, human_share, human_us};

/// What a moment shows.
///
/// ```
/// use headwater_trace::report::{Moment, describe_moment};
/// let moment = Moment {
///     policy: "classic".into(),
///     runs: 23,
///     mapped_bytes: 100 << 20,
///     free_bytes: 59 << 20,
///     holes: 214,
///     largest_hole_bytes: 20 << 20,
///     ..Moment::default()
/// };
/// assert!(describe_moment(&moment).contains(
///     "59 % of reserved memory (59 MiB) is free but split among 214 holes; the largest is 20 MiB."
/// ));
/// ```
pub fn describe_moment(moment: &Moment) -> String {
    let mut text = format!(
        "At event {} ({}) the program holds {}{}. ",
        human_count(u64::from(moment.event)),
        human_us(moment.time_us as f64),
        if moment.sample.live == 0 { "nothing".into() } else { human_bytes(moment.sample.live) },
        if moment.blocks == 0 { String::new() } else { format!(" in {}", plural(moment.blocks, "block")) },
    );
    if moment.mapped_bytes == 0 {
        text.push_str(&format!("{} has nothing reserved.", moment.policy));
        return text;
    }
    text.push_str(&format!(
        "{} has {} reserved in {}. ",
        moment.policy,
        human_bytes(moment.mapped_bytes),
        plural(moment.runs, "piece"),
    ));
    let pending_bytes = moment.sample.active.saturating_sub(moment.sample.allocated);
    if pending_bytes > 0 {
        text.push_str(&format!(
            "{} was given back but is still used by a stream. ",
            human_bytes(pending_bytes)
        ));
    }
    text.push_str(&describe_holes(moment));
    text
}

fn describe_holes(moment: &Moment) -> String {
    if moment.holes == 0 {
        return "All of it is in use.".to_owned();
    }
    let share = human_share(moment.free_bytes as f64 / moment.mapped_bytes as f64);
    let free = format!("{share} of reserved memory ({}) is free", human_bytes(moment.free_bytes));
    if moment.holes == 1 {
        return format!("{free}, in one hole.");
    }
    let largest = human_bytes(moment.largest_hole_bytes);
    let holes = human_count(moment.holes);
    format!(
        "{free} but split among {holes} holes; the largest is {largest}. A larger request fits none of them."
    )
}

/// What the report as a whole shows: what the program held, and what each policy reserved for it.
pub fn describe_report(data: &ReportData) -> String {
    let figures = || data.policies.iter().map(|policy| &policy.figures);
    let Some(peak_live_bytes) = figures().map(|f| f.peak_live_bytes).max() else {
        return "No policy was replayed.".to_owned();
    };
    let mut text = format!("The program held at most {} at once. ", human_bytes(peak_live_bytes));
    let mut policies: Vec<_> = figures().collect();
    policies.sort_by_key(|f| (f.ooms, f.peak_reserved_bytes));
    let costs: Vec<String> = policies
        .iter()
        .map(|f| {
            let failed =
                if f.ooms == 0 { String::new() } else { format!(", {} failed", plural(f.ooms, "request")) };
            let lost = human_share(f.fragmentation);
            format!("{} reserved {} ({lost} lost{failed})", f.policy, human_bytes(f.peak_reserved_bytes))
        })
        .collect();
    text.push_str(&format!("For that, {}.", listing(&costs)));
    if let Some(bytes) = data.reported.peak_reserved {
        text.push_str(&format!(" When it was recorded, its own allocator reserved {}.", human_bytes(bytes)));
    }
    text
}

fn listing(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn plural(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", human_count(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{PolicyReport, Sample};

    fn moment(mapped_bytes: u64, free_bytes: u64, holes: u64) -> Moment {
        let sample = Sample { live: 3 << 20, ..Sample::default() };
        Moment {
            policy: "paged".into(),
            sample,
            blocks: 1,
            runs: 1,
            mapped_bytes,
            free_bytes,
            holes,
            ..Moment::default()
        }
    }

    #[test]
    fn known_situations_have_known_words() {
        let before = "At event 0 (0 µs) the program holds 3 MiB in 1 block. ";
        let reserved = format!("{before}paged has 4 MiB reserved in 1 piece. ");
        assert_eq!(describe_moment(&moment(0, 0, 0)), format!("{before}paged has nothing reserved."));
        assert_eq!(describe_moment(&moment(4 << 20, 0, 0)), format!("{reserved}All of it is in use."));
        let one = format!("{reserved}25 % of reserved memory (1 MiB) is free, in one hole.");
        assert_eq!(describe_moment(&moment(4 << 20, 1 << 20, 1)), one);
    }

    #[test]
    fn memory_that_a_stream_still_uses_is_said() {
        let mut waiting = moment(4 << 20, 0, 0);
        waiting.sample.active = 1 << 20;
        assert!(describe_moment(&waiting).contains("1 MiB was given back but is still used by a stream."));
    }

    #[test]
    fn the_report_orders_policies_by_what_they_cost() {
        let policy = |name: &str, reserved, ooms| {
            let mut policy = PolicyReport::new(name);
            policy.figures.peak_live_bytes = 1 << 20;
            policy.figures.peak_reserved_bytes = reserved;
            policy.figures.fragmentation = 1.0 - (1 << 20) as f64 / reserved as f64;
            policy.figures.ooms = ooms;
            policy
        };
        let policies =
            vec![policy("binned", 1 << 20, 2), policy("classic", 4 << 20, 0), policy("paged", 2 << 20, 0)];
        let data = ReportData { policies, ..ReportData::default() };
        assert_eq!(
            describe_report(&data),
            "The program held at most 1 MiB at once. For that, paged reserved 2 MiB (50 % lost), \
             classic reserved 4 MiB (75 % lost) and binned reserved 1 MiB (0 % lost, 2 requests failed)."
        );
    }
}
