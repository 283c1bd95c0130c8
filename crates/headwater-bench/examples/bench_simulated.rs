//! The whole benchmark on the simulated device, for those who have no command at hand:
//! `cargo run --release -p headwater-bench --example bench_simulated [BENCH...]`.

use std::sync::Arc;

use headwater::{Binned, DeviceChoice};
use headwater_bench::{BenchOptions, Contestant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let opened = headwater::open(DeviceChoice::Sim)?;
    let (driver, device) = (opened.driver, opened.device);
    let contestants = [Contestant::new("binned", move || Ok(Arc::new(Binned::new(driver.clone(), device)?)))];
    let options = BenchOptions { only: std::env::args().skip(1).collect(), ..BenchOptions::default() };
    headwater_bench::run(&contestants, &options, &mut |row| println!("{row}"))?;
    Ok(())
}
