//! The report: one HTML file that shows what each policy did with a trace.
//!
//! A replay fills [`ReportData`]; [`render`] or [`write_html`] makes the page. It opens from disk, fetches nothing, stays
//! smooth with a million events, works by keyboard and in the dark, and says in words what its pictures show.
//!
//! Where things are: `data.rs` what a page is made of, `check.rs` what is refused, `embed.rs` and `columns.rs` how the
//! numbers get into the page, `moment.rs` and `words.rs` the state at an event and its description, `tables.rs` what needs
//! no script, `page.rs` how the parts are joined. `assets/` is the page itself: HTML, one stylesheet, and scripts of one
//! idea each, written by hand and joined as they are.

mod check;
mod columns;
mod data;
mod embed;
mod error;
mod escape;
mod moment;
mod page;
mod tables;
mod units;
mod words;

pub use data::{Block, Mark, PolicyFigures, PolicyReport, ReportData, Sample, Span};
pub use error::ReportError;
pub use moment::Moment;
pub use page::{render, write_html};
pub use units::{human_bytes, human_count, human_share, human_us};
pub use words::{describe_moment, describe_report};
