//! One suite of behaviours for every backend, and one for every allocator.
//!
//! The suites say what must be seen from outside, not how it is done inside. Each is library code that takes what it
//! judges as an argument, so that the same cases, under the same names, run in continuous integration on the simulated
//! device, on the CUDA backend over `testing/fake-libcuda`, and on a real GPU by `headwater conformance --device cuda`.
//!
//! | module | what is in it |
//! |---|---|
//! | [`case`] | a case, what it stands on, how it ends |
//! | [`driver`] | the suite for every [`Driver`](headwater_driver::Driver) |
//! | [`allocator`] | the suite for every allocator |
//! | [`kernels`] | the test kernels, for the suites, the stress tests and the demo |
//! | [`graph_stress`] | graphs launched again and again while other memory comes and goes, with the figures |
//! | [`proofs`] | what is claimed of the paged backing and shown on a real device |
//! | [`stress`] | a random program on several streams that finds premature reuse by its bytes |
//!
//! ```
//! use headwater_conformance::{Ground, driver};
//! use headwater_driver::{DeviceId, Driver};
//! use std::sync::Arc;
//!
//! /// Prints what fails on a machine that was opened twice.
//! fn judge(machine: Arc<dyn Driver>, again: Arc<dyn Driver>) -> bool {
//!     let ground = Ground::new(machine, again, DeviceId(0));
//!     let summary = driver::run_all(&ground, Some("capture::"), &mut |report| println!("{report}"));
//!     println!("{summary}");
//!     summary.all_passed()
//! }
//! ```

pub mod allocator;
pub mod case;
mod check;
pub mod driver;
mod fixtures;
pub mod graph_stress;
pub mod kernels;
pub mod proofs;
pub mod stress;

pub use case::{Case, CaseReport, Failure, Ground, Outcome, Summary};
