//! How spaces are set up.

use std::path::PathBuf;
use std::sync::Arc;

use headwater::Allocator;

use super::streams::{STREAMS_DEFAULT, STREAMS_MAX_DEFAULT};
use crate::disk::DiskOptions;
use crate::host::PinnedConfig;
use crate::thresholds::Thresholds;

/// A GPU space: the memory of one device, given out by an allocator.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// Gives out the memory; its device is the space's.
    pub allocator: Arc<dyn Allocator>,
    /// The hard cap on what the space gives out.
    pub capacity_bytes: u64,
    /// The marks.
    pub thresholds: Thresholds,
    /// Streams at first.
    pub streams: u64,
    /// Streams at most.
    pub streams_max: u64,
    /// The NUMA node next to the device, where known: its memory is preferred when data moves.
    pub numa_node: Option<u32>,
}

impl GpuConfig {
    /// `capacity_bytes` of what `allocator` gives out, with default marks and 16 streams.
    pub fn new(allocator: Arc<dyn Allocator>, capacity_bytes: u64) -> Self {
        Self {
            allocator,
            capacity_bytes,
            thresholds: Thresholds::default(),
            streams: STREAMS_DEFAULT,
            streams_max: STREAMS_MAX_DEFAULT,
            numa_node: None,
        }
    }
}

/// A HOST space: pinned memory of one NUMA node, in blocks.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The node.
    pub numa_node: u32,
    /// The hard cap on what the space gives out; in whole blocks, rounded down.
    pub capacity_bytes: u64,
    /// The marks.
    pub thresholds: Thresholds,
    /// Blocks and slabs.
    pub pinned: PinnedConfig,
}

impl HostConfig {
    /// `capacity_bytes` of pinned memory of `numa_node`, with default marks and blocks.
    pub fn new(numa_node: u32, capacity_bytes: u64) -> Self {
        Self { numa_node, capacity_bytes, thresholds: Thresholds::default(), pinned: PinnedConfig::default() }
    }
}

/// A DISK space: one mount.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// A directory on it.
    pub mount: PathBuf,
    /// The hard cap on what the space gives out.
    pub capacity_bytes: u64,
    /// The marks.
    pub thresholds: Thresholds,
    /// How the disk is reached, for whoever keeps data there.
    pub options: DiskOptions,
}

impl DiskConfig {
    /// `capacity_bytes` on the file system that `mount` is on, with default marks.
    pub fn new(mount: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        let (thresholds, options) = (Thresholds::default(), DiskOptions::default());
        Self { mount: mount.into(), capacity_bytes, thresholds, options }
    }
}
