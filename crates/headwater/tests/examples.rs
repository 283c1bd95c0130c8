//! The examples, run on the simulated device by the functions that their `main` calls, and what they print.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]
#![allow(dead_code, reason = "the `main` of each example")]
#![allow(clippy::duplicate_mod, reason = "every example brings along what they share")]

#[path = "../examples/allocation_reuse.rs"]
mod allocation_reuse;
#[path = "../examples/monitoring.rs"]
mod monitoring;
#[path = "../examples/monte_carlo/main.rs"]
mod monte_carlo;
#[path = "../examples/two_streams.rs"]
mod two_streams;

use std::io::Write;

use clap::Parser;
use serde_json::Value;

/// What an example prints with these arguments, or why it failed.
fn output<O: Parser>(
    run: fn(&O, &mut dyn Write) -> anyhow::Result<()>,
    args: &[&str],
) -> anyhow::Result<String> {
    let options = O::try_parse_from(["example", "--device", "sim"].iter().chain(args))?;
    let mut out = Vec::new();
    run(&options, &mut out)?;
    Ok(String::from_utf8(out)?)
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn policies(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["policy"].as_str().unwrap()).collect()
}

#[test]
fn a_matrix_asked_for_again_comes_from_the_cache_where_there_is_one() {
    let lines = json_lines(&output(allocation_reuse::run, &["--json"]).unwrap());
    assert_eq!(policies(&lines), ["direct", "binned", "classic", "paged"]);
    for line in &lines {
        let cached = line["policy"] != "direct";
        assert_eq!(line["second_request_driver_calls"] == 0, cached, "{line}");
        assert_eq!(line["second_request_us"] == 0.0, cached, "{line}");
        assert_eq!(line["cached_bytes"].as_u64().unwrap() >= 8_000_000, cached, "{line}");
        assert!(line["first_request_driver_calls"].as_u64().unwrap() > 0, "{line}");
    }
    let text = output(allocation_reuse::run, &[]).unwrap();
    assert!(text.contains("Simulated H200") && text.contains("paged"), "{text}");
}

#[test]
fn two_streams_share_blocks_that_were_given_back_long_before() {
    let lines = json_lines(&output(two_streams::run, &["--json"]).unwrap());
    assert_eq!(policies(&lines), ["direct", "binned", "classic", "paged"]);
    for line in &lines {
        assert_eq!(line["verified_words"], 32 * 65_536, "{line}");
        // The host is far ahead of the device: blocks wait for their reader, unless every give-back waits for it.
        let (live, active) = (line["peak_live_bytes"].as_u64(), line["peak_active_bytes"].as_u64());
        assert_eq!(active > live, line["policy"] != "direct", "{line}");
    }
    assert!(output(two_streams::run, &[]).unwrap().contains("every word verified"));
}

#[test]
fn without_record_stream_the_simulated_device_names_the_race() {
    let error = output(two_streams::run, &["--forget"]).unwrap_err().to_string();
    assert!(error.contains("hazard"), "{error}");
}

#[test]
fn a_watched_program_shows_its_figures_and_a_page() {
    let page = std::env::temp_dir().join(format!("headwater-monitoring-{}.html", std::process::id()));
    let text = output(monitoring::run, &["--json", "--page", page.to_str().unwrap()]).unwrap();
    let [line] = &json_lines(&text)[..] else { unreachable!("{text}") };
    let stats = &line["stats"];
    assert_eq!(stats["requested_bytes.all.current"], 40_000_000);
    assert_eq!(stats["requested_bytes.all.peak"], 40_000_000 + 12_000_000 + 4 * 3500);
    assert_eq!(stats["allocation.all.allocated"], 10 + 2 * 8);
    assert!(line["history_events"].as_u64().unwrap() >= 10 + 4 * 8, "{line}");
    let html = std::fs::read_to_string(&page).unwrap();
    for text in ["monitoring", "step 7", "matrices", "paged", "direct"] {
        assert!(html.contains(text), "{text} is not in the page");
    }
    let text = output(monitoring::run, &["--page", page.to_str().unwrap()]).unwrap();
    std::fs::remove_file(&page).unwrap();
    for part in ["reserved_bytes.all.current", "hit rate", "free blocks", "The page is"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

#[test]
fn simulated_options_cost_what_the_formula_says_and_caching_takes_allocation_out_of_the_time() {
    let args = ["--json", "--batches", "10", "--paths", "2000", "--steps", "4"];
    let lines = json_lines(&output(monte_carlo::run, &args).unwrap());
    let (prices, shares) = lines.split_at(4);
    for price in prices {
        assert_eq!(price["paths"], 20_000);
        assert!(price["errors_away"].as_f64().unwrap() <= 4.0, "{price}");
        let (error, truth) =
            (price["standard_error"].as_f64().unwrap(), price["black_scholes"].as_f64().unwrap());
        assert!(error > 0.0 && error < 0.02 * truth, "{price}");
    }
    assert_eq!(policies(shares), ["direct", "classic", "paged", "binned", "paged"]);
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
    // Half of the time and more goes into the driver without a cache, and next to nothing but the first batch with one.
    assert!(number(&shares[0], "allocation_share") > 0.5, "{}", shares[0]);
    assert_eq!(shares[0]["reuse_rate"], 0.0);
    for line in &shares[1..] {
        assert!(number(line, "allocation_us") < number(&shares[0], "allocation_us") / 10.0, "{line}");
        assert!(number(line, "speed_up") > 2.0, "{line}");
        assert!(number(line, "reuse_rate") >= 0.8, "{line}");
    }
    assert_eq!((&shares[3]["allocations"], &shares[4]["allocations"]), (&100.into(), &10.into()));
}

#[test]
fn wrong_options_are_refused_by_name() {
    for args in [["--batches", "0"], ["--paths", "0"], ["--steps", "70000"], ["--device", "tpu"]] {
        let error = output(monte_carlo::run, &args).unwrap_err().to_string();
        assert!(error.contains(args[0]), "{error}");
    }
    assert!(output(monitoring::run, &["--page", "/nonexistent/page.html"]).is_err());
}
