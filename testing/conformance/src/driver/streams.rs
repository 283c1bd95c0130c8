//! Streams: the order of work in and between them, and whose they are.

pub(super) mod names;
pub(super) mod order;

use super::list;
