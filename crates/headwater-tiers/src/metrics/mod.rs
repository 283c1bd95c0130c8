//! Figures for others to read: Prometheus' text format, and a small server that hands it out.
//!
//! | file | what |
//! |---|---|
//! | `exposition.rs` | the text format, version 0.0.4 |
//! | `request.rs` | the head of an HTTP request: pure, never reads more than it is given |
//! | `endpoint.rs` | [`MetricsEndpoint`], the server: everything it does is bounded |
//! | `address.rs` | [`metrics_address`], where it listens: this machine only unless told otherwise |

mod address;
mod endpoint;
mod exposition;
mod request;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use address::metrics_address;
pub use endpoint::MetricsEndpoint;
pub use exposition::Exposition;
