//! What the examples share: their options, a clock, a table, and a last look at what the simulated device found.
#![allow(dead_code, reason = "every example uses its own part")]

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use headwater::{DeviceChoice, Opened};
use headwater_sim::SimDriver;

/// The options of every example.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Common {
    /// Where it runs: auto, sim, cuda or cuda:N
    #[arg(long, default_value_t)]
    pub(crate) device: DeviceChoice,

    /// Prints one JSON object a line instead of words
    #[arg(long)]
    pub(crate) json: bool,
}

impl Common {
    /// Opens the device, and says which it is where people read.
    pub(crate) fn open(&self, out: &mut dyn Write) -> Result<Opened> {
        let opened = headwater::open(self.device)?;
        if !self.json {
            let name = opened.driver.device_properties(opened.device)?.name;
            writeln!(out, "{name} ({})\n", opened.why)?;
        }
        Ok(opened)
    }
}

/// The time that figures are told in: virtual on the simulated device, which models what driver calls and device work take
/// and nothing else, and real otherwise.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Virtual(Arc<SimDriver>),
    Real(Instant),
}

impl Clock {
    pub(crate) fn of(opened: &Opened) -> Self {
        match &opened.sim {
            Some(sim) => Self::Virtual(Arc::clone(sim)),
            None => Self::Real(Instant::now()),
        }
    }

    pub(crate) fn us(&self) -> f64 {
        match self {
            Self::Virtual(sim) => sim.now_ns() as f64 / 1e3,
            Self::Real(start) => start.elapsed().as_secs_f64() * 1e6,
        }
    }

    /// How the time is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Virtual(_) => "modelled",
            Self::Real(_) => "wall clock",
        }
    }
}

/// Rows under a header, in columns as wide as they need; the first stands left, the others right.
pub(crate) fn write_table(out: &mut dyn Write, header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.max().unwrap_or(0).max(header[column].chars().count())
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| -> String {
        let cells = cells.zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect()
    };
    writeln!(out, "{}", line(&mut header.iter().copied()))?;
    writeln!(out, "{}", "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
    for row in rows {
        writeln!(out, "{}", line(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}

/// The simulated device knows of mistakes that the results need not show: reuse that comes too early, reads of what nobody
/// wrote. On a real device there is nobody to ask.
pub(crate) fn fail_on_hazards(opened: &Opened) -> Result<()> {
    let Some(sim) = &opened.sim else { return Ok(()) };
    match sim.hazards().first() {
        None => Ok(()),
        Some(hazard) => bail!("the simulated device found a hazard: {hazard}"),
    }
}
