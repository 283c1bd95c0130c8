//! The benchmark behind `headwater bench`: every allocator on the same work, with the C library's malloc as the yardstick.
//!
//! | file | what |
//! |---|---|
//! | `contestant.rs` | what is measured: a name and a way to make an allocator |
//! | `options.rs` | what to measure, and how long |
//! | `row.rs` | one line of the result |
//! | `rounds.rs` | measuring on a machine that others use too: interleaved rounds, the best of them, and the clock's own cost |
//! | `benches/` | the work, one kind a file |
//! | `picture.rs` | the result as SVG |
//!
//! ```
//! use std::sync::Arc;
//! use headwater::{Binned, Direct};
//! use headwater_bench::{BenchOptions, Contestant, Effort};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let opened = headwater::open(headwater::DeviceChoice::Sim)?;
//! let (driver, device) = (opened.driver, opened.device);
//! let contestants = [Contestant::new("binned", move || Ok(Arc::new(Binned::new(driver.clone(), device)?)))];
//! let options = BenchOptions { sizes: vec![4096], threads: vec![1], effort: Effort::Glance, ..Default::default() };
//! let rows = headwater_bench::run(&contestants, &options, &mut |row| println!("{row}"))?;
//! assert!(rows.iter().any(|row| row.bench == "pair" && row.allocator == "malloc"));
//! # Ok(())
//! # }
//! ```

mod benches;
mod contestant;
mod options;
mod picture;
mod rounds;
mod row;

pub use benches::{BENCHES, run};
pub use contestant::{BenchError, Contestant};
pub use options::{BenchOptions, Effort};
pub use picture::picture;
pub use row::Row;
