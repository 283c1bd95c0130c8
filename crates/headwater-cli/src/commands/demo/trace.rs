//! The first half: a real program's requests, replayed and drawn.

use anyhow::Result;
use headwater::{DeviceChoice, HumanBytes, Opened};
use headwater_trace::Trace;
use headwater_trace::replay::{Outcome, Policy, Replay, report_on};
use headwater_trace::report::describe_report;
use serde_json::json;

use crate::args::DemoOptions;
use crate::commands::report::write_page;
use crate::output::json_line;
use crate::replaying::{print_json, print_table, run_one};

pub(super) fn run(options: &DemoOptions, opened: &Opened) -> Result<()> {
    let json = options.common.json;
    let trace = headwater_trace::bundled_trace()?;
    if !json {
        println!("A real PyTorch program, asked again of every policy on the simulated device:\n");
    }
    let outcomes = replay_all(&trace, DeviceChoice::Sim, json, |replay| {
        // What the page shows.
        replay.keep_timeline().keep_placement()
    })?;
    if opened.sim.is_none() {
        if !json {
            println!("The same on the GPU, with measured times:\n");
        }
        replay_all(&trace, options.common.device, json, |replay| replay)?;
    }
    let data = report_on(&trace, outcomes);
    let page = options.output.clone().unwrap_or_else(|| "headwater-demo.html".into());
    write_page(&data, &page)?;
    let bytes = std::fs::metadata(&page)?.len();
    if json {
        json_line(&json!({ "trace": data.trace, "report": page, "bytes": bytes }));
    } else {
        println!("{}", describe_report(&data));
        println!("\nWhere it went: {} ({}), a page for your browser.", page.display(), HumanBytes(bytes));
    }
    Ok(())
}

fn replay_all(
    trace: &Trace,
    device: DeviceChoice,
    json: bool,
    keep: impl Fn(Replay) -> Replay,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for policy in Policy::ALL {
        let outcome = run_one(&keep(Replay::new(policy)), policy, trace, device)?;
        if json {
            print_json(&outcome, None)?;
        }
        outcomes.push(outcome);
    }
    if !json {
        print_table(trace, &outcomes, &[]);
    }
    Ok(outcomes)
}
