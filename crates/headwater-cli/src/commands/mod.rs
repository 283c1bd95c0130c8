//! One file a subcommand.

pub(crate) mod bench;
pub(crate) mod conformance;
pub(crate) mod demo;
pub(crate) mod info;
pub(crate) mod proofs;
pub(crate) mod replay;
pub(crate) mod report;
