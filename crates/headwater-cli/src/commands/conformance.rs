//! `headwater conformance`: the two suites, on a device of one's choice; the proofs are in `proofs.rs`.

use std::sync::Arc;

use anyhow::{Result, bail};
use headwater::{HumanBytes, Opened, Policy};
use headwater_conformance::stress::{self, StressOptions};
use headwater_conformance::{CaseReport, Ground, Outcome, Summary, allocator, driver, graph_stress};
use headwater_driver::Driver;
use headwater_sim::SimDriver;
use serde_json::json;

use crate::args::ConformanceOptions;
use crate::commands::proofs;
use crate::output::json_line;

pub(crate) fn run(options: &ConformanceOptions) -> Result<()> {
    if let Some(guest) = options.guest {
        return proofs::visit(options, guest);
    }
    if !options.prove.is_empty() {
        return proofs::run(options);
    }
    let (opened, somebody_else) = open_twice(options)?;
    let json = options.common.json;
    if !json {
        let properties = opened.driver.device_properties(opened.device)?;
        println!("{} on {} ({})", opened.driver.backend(), properties.name, opened.driver.version());
    }
    let ground = Ground::new(opened.driver.clone(), somebody_else, opened.device);
    let filter = options.filter.as_deref();
    let mut suites =
        vec![("driver", driver::run_all(&ground, filter, &mut |case| print_case(json, "driver", case)))];
    for policy in Policy::ALL {
        let make = move |driver, device, limit_bytes| policy.build(driver, device, limit_bytes);
        let mut print = |case: &CaseReport| print_case(json, policy.name(), case);
        suites.push((policy.name(), allocator::run_all(&ground, &make, filter, &mut print)));
    }
    for (suite, summary) in &suites {
        print_summary(json, &opened, suite, summary);
    }
    let failed: usize = suites.iter().map(|(_, summary)| summary.failed.len()).sum();
    let total: usize = suites.iter().map(|(_, summary)| summary.total()).sum();
    match (failed, total) {
        (_, 0) => bail!("no conformance case has `{}` in its name", filter.unwrap_or_default()),
        (0, _) => stress_all(options, &opened),
        (failed, total) => bail!("{failed} of {total} conformance cases failed"),
    }
}

/// The random program, on every allocator.
fn stress_all(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    if options.stress == 0 {
        return Ok(());
    }
    for policy in Policy::ALL {
        let name = policy.name();
        let allocator = policy.build(opened.driver.clone(), opened.device, None)?;
        let program = StressOptions { steps: options.stress, seed: options.seed, ..StressOptions::default() };
        let report = stress::run(&allocator, &program)?;
        if options.common.json {
            json_line(&json!({
                "stress": name,
                "seed": options.seed,
                "requests": report.requests,
                "shared": report.shared,
                "words_checked": report.words_checked,
                "words_wrong": report.words_wrong,
            }));
        } else {
            println!(
                "stress {name}: {} requests on {} streams, {} blocks shared, {} words checked, {} wrong (seed {})",
                report.requests,
                program.streams,
                report.shared,
                report.words_checked,
                report.words_wrong,
                options.seed
            );
        }
        if report.words_wrong > 0 {
            bail!("{name} handed memory out too early: {} words were overwritten", report.words_wrong);
        }
    }
    stress_graphs(options, opened)
}

/// Captured graphs launched again and again while other memory comes and goes.
fn stress_graphs(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    let report = graph_stress::run(&opened.driver, opened.device, options.stress.min(1_000))?;
    if options.common.json {
        json_line(&json!({
            "stress": "graphs",
            "launches": report.launches,
            "words_checked": report.words_checked,
            "words_wrong": report.words_wrong,
        }));
    } else {
        println!(
            "stress graphs: {} launches beside {} requests of other threads, {} words checked, {} wrong; ten graphs that \
             take turns reserve {} in one pool and {} in ten (the largest needs {})",
            report.launches,
            report.churn_requests,
            report.words_checked,
            report.words_wrong,
            HumanBytes(report.ten_in_one_pool_bytes),
            HumanBytes(report.ten_in_ten_pools_bytes),
            HumanBytes(report.ten_largest_bytes)
        );
    }
    if report.words_wrong > 0 {
        bail!("a graph's memory was used by somebody else: {} words were overwritten", report.words_wrong);
    }
    Ok(())
}

/// The same machine opened twice: the second opening plays somebody else in the process.
fn open_twice(options: &ConformanceOptions) -> Result<(Opened, Arc<dyn Driver>)> {
    let opened = headwater::open(options.common.device)?;
    let somebody_else: Arc<dyn Driver> = match &opened.sim {
        // Two devices, so that the cases about several devices have something to show.
        Some(_) => {
            let sim = SimDriver::builder().devices(2).build();
            let view = sim.second_view();
            let opened = Opened { driver: sim.clone(), sim: Some(sim), ..opened };
            return Ok((opened, view));
        }
        None => headwater::open(options.common.device)?.driver,
    };
    Ok((opened, somebody_else))
}

fn print_case(json: bool, suite: &str, report: &CaseReport) {
    if !json {
        return println!("{suite:<7} {report}");
    }
    let (outcome, detail) = match &report.outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Failed(failure) => ("failed", Some(failure.to_string())),
        Outcome::NotApplicable(reason) => ("not_applicable", Some((*reason).to_owned())),
    };
    json_line(&json!({
        "suite": suite,
        "case": report.name,
        "area": report.area,
        "outcome": outcome,
        "detail": detail,
        "us": report.elapsed.as_micros() as u64,
    }));
}

fn print_summary(json: bool, opened: &Opened, suite: &str, summary: &Summary) {
    if !json {
        return println!("{suite}: {summary}");
    }
    json_line(&json!({
        "suite": suite,
        "backend": opened.driver.backend(),
        "version": opened.driver.version(),
        "passed": summary.passed,
        "failed": summary.failed.len(),
        "not_applicable": summary.not_applicable.len(),
    }));
}
