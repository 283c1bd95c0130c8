//! `headwater bench`: every allocator on the same work, beside the C library's malloc.

use std::sync::Arc;

use anyhow::{Context, Result};
use headwater::{Opened, Policy};
use headwater_bench::{BenchOptions, Contestant, Row, picture};

use crate::args::BenchmarkOptions;
use crate::output::json_line;

pub(crate) fn run(options: &BenchmarkOptions) -> Result<()> {
    let opened = headwater::open(options.common.device)?;
    let json = options.common.json;
    if !json {
        let properties = opened.driver.device_properties(opened.device)?;
        println!(
            "{} on {}; ns an operation, best of interleaved rounds",
            opened.driver.backend(),
            properties.name
        );
    }
    let rows = headwater_bench::run(&contestants(options, &opened), &work(options), &mut |row| {
        print_row(json, row)
    })?;
    if let Some(path) = &options.svg {
        std::fs::write(path, picture(&rows)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Where `direct` takes part unasked: the tables that show what caching is worth, and the request that nobody can serve.
const WITHOUT_CACHING: [&str; 3] = ["miss", "seed_001", "seed_000"];

/// The policies asked for. Unless it is named, `direct` takes part where the others are shown against it and in nothing else:
/// it is a thousand times slower.
fn contestants(options: &BenchmarkOptions, opened: &Opened) -> Vec<Contestant> {
    let usual = [Policy::Binned, Policy::Classic, Policy::Paged];
    let policies = if options.policies.is_empty() { &usual[..] } else { &options.policies };
    let contestant = |policy: &Policy| {
        let (policy, driver, device) = (*policy, Arc::clone(&opened.driver), opened.device);
        Contestant::new(policy.name(), move || policy.build(Arc::clone(&driver), device, None))
    };
    let without_caching =
        options.policies.is_empty().then(|| contestant(&Policy::Direct).only_in(&WITHOUT_CACHING));
    policies.iter().map(contestant).chain(without_caching).collect()
}

fn work(options: &BenchmarkOptions) -> BenchOptions {
    let mut work = BenchOptions { only: options.benches.clone(), ..BenchOptions::default() };
    if !options.sizes.is_empty() {
        work.sizes = options.sizes.iter().map(|size| size.0).collect();
    }
    if !options.threads.is_empty() {
        work.threads = options.threads.clone();
    }
    work
}

fn print_row(json: bool, row: &Row) {
    match serde_json::to_value(row) {
        Ok(value) if json => json_line(&value),
        _ => println!("{row}"),
    }
}
