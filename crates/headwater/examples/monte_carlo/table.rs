//! What is printed: the prices beside the closed formula, and where the time went.

use std::io::Write;

use anyhow::Result;
use headwater::stats::DeviceStats;
use headwater::{HumanBytes, Opened, Policy};
use serde_json::json;

use super::market::{Market, QUARTERS};
use super::shared::{Clock, Common, write_table};
use super::simulator::{BUFFERS, Job, Lifetime, Simulated};

/// One simulation with one policy.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) policy: Policy,
    pub(crate) lifetime: Lifetime,
    pub(crate) simulated: Simulated,
    pub(crate) stats: DeviceStats,
}

impl Row {
    /// The share of all time that was spent in the allocator.
    fn allocation_share(&self) -> f64 {
        self.simulated.allocation_us / self.simulated.total_us
    }

    /// The share of requests that were answered from the cache.
    fn reuse_rate(&self) -> f64 {
        self.stats.hit_rate().unwrap_or(0.0)
    }

    fn name(&self) -> String {
        match self.lifetime {
            Lifetime::Batch => self.policy.name().to_owned(),
            Lifetime::Simulation => format!("{}, kept", self.policy),
        }
    }
}

pub(crate) fn write(
    out: &mut dyn Write,
    common: &Common,
    opened: &Opened,
    clock: &Clock,
    job: &Job,
    rows: &[Row],
) -> Result<()> {
    if common.json {
        write_json(out, opened, clock, job, rows)
    } else {
        write_prices(out, job, rows)?;
        write_shares(out, clock, rows)
    }
}

fn write_prices(out: &mut dyn Write, job: &Job, rows: &[Row]) -> Result<()> {
    let Market { spot, strike, rate, volatility } = job.market;
    writeln!(
        out,
        "Calls on an asset at {spot} with strike {strike}, rate {rate}, volatility {volatility}: {} batches of {} paths \
         with {} steps a quarter",
        job.batches, job.paths, job.steps_a_quarter,
    )?;
    let cells = (0..QUARTERS).map(|quarter| {
        let (estimate, truth) = (&rows[0].simulated.estimates[quarter], job.market.black_scholes(quarter));
        vec![
            format!("{} months", 3 * (quarter + 1)),
            format!("{:.5}", estimate.price()),
            format!("{:.5}", estimate.standard_error()),
            format!("{truth:.5}"),
            format!("{:.2}", estimate.errors_away(truth)),
        ]
    });
    let header = ["ends after", "Monte Carlo", "standard error", "Black-Scholes", "errors away"];
    write_table(out, &header, &cells.collect::<Vec<_>>())
}

fn write_shares(out: &mut dyn Write, clock: &Clock, rows: &[Row]) -> Result<()> {
    writeln!(
        out,
        "\nWhere the time went, {}: {BUFFERS} buffers a batch, or kept for all batches",
        clock.name()
    )?;
    let cells = rows.iter().map(|row| {
        let Simulated { total_us, allocation_us, allocations, .. } = row.simulated;
        vec![
            row.name(),
            allocations.to_string(),
            format!("{:.2} us", allocation_us / allocations as f64),
            format!("{:.3} ms", allocation_us / 1e3),
            format!("{:.3} ms", (total_us - allocation_us) / 1e3),
            format!("{:.3} %", 100.0 * row.allocation_share()),
            format!("{:.2}x", rows[0].simulated.total_us / total_us),
            format!("{:.1} %", 100.0 * row.reuse_rate()),
            HumanBytes(row.stats.reserved_bytes.all.peak).to_string(),
        ]
    });
    let header = [
        "policy",
        "allocations",
        "for each",
        "allocating",
        "computing",
        "share",
        "speed",
        "reused",
        "peak reserved",
    ];
    write_table(out, &header, &cells.collect::<Vec<_>>())?;
    writeln!(
        out,
        "\nPeak live is {}. A pair of request and give-back counts as one allocation; the first batch is included.",
        HumanBytes(rows[0].stats.requested_bytes.all.peak)
    )?;
    Ok(())
}

fn write_json(out: &mut dyn Write, opened: &Opened, clock: &Clock, job: &Job, rows: &[Row]) -> Result<()> {
    for quarter in 0..QUARTERS {
        let (estimate, truth) = (&rows[0].simulated.estimates[quarter], job.market.black_scholes(quarter));
        let line = json!({
            "example": "monte_carlo",
            "device": opened.driver.backend(),
            "months": 3 * (quarter + 1),
            "paths": estimate.paths,
            "price": estimate.price(),
            "standard_error": estimate.standard_error(),
            "black_scholes": truth,
            "errors_away": estimate.errors_away(truth),
        });
        writeln!(out, "{line}")?;
    }
    for row in rows {
        let line = json!({
            "example": "monte_carlo",
            "device": opened.driver.backend(),
            "clock": clock.name(),
            "policy": row.policy.name(),
            "buffers_kept": row.lifetime == Lifetime::Simulation,
            "batches": job.batches,
            "paths_a_batch": job.paths,
            "steps_a_quarter": job.steps_a_quarter,
            "allocations": row.simulated.allocations,
            "allocation_us": row.simulated.allocation_us,
            "total_us": row.simulated.total_us,
            "allocation_share": row.allocation_share(),
            "speed_up": rows[0].simulated.total_us / row.simulated.total_us,
            "reuse_rate": row.reuse_rate(),
            "peak_live_bytes": row.stats.requested_bytes.all.peak,
            "peak_reserved_bytes": row.stats.reserved_bytes.all.peak,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
