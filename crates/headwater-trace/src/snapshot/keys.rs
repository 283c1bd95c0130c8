//! The dictionary keys of a snapshot, recognised quickly.
//!
//! PyTorch shares one string object for each key, so in the pickle a key is a reference to the same value every time,
//! and dictionaries of one kind have their keys in the same order. A key is therefore looked for among the few seen
//! before, starting after the one found last; only a new one is compared as text.

use crate::pickle::{Node, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Segments,
    DeviceTraces,
    AllocatorSettings,
    ExternalAnnotations,
    Device,
    Address,
    TotalSize,
    AllocatedSize,
    ActiveSize,
    RequestedSize,
    Stream,
    SegmentType,
    SegmentPoolId,
    IsExpandable,
    Frames,
    Blocks,
    Size,
    State,
    Action,
    Addr,
    DeviceFree,
    TimeUs,
    CompileContext,
    UserMetadata,
    PoolId,
    Filename,
    Line,
    Name,
    /// Any other; dictionaries may have more keys than we know.
    Other,
}

impl Key {
    pub(super) fn of(text: &[u8]) -> Self {
        match text {
            b"segments" => Self::Segments,
            b"device_traces" => Self::DeviceTraces,
            b"allocator_settings" => Self::AllocatorSettings,
            b"external_annotations" => Self::ExternalAnnotations,
            b"device" => Self::Device,
            b"address" => Self::Address,
            b"total_size" => Self::TotalSize,
            b"allocated_size" => Self::AllocatedSize,
            b"active_size" => Self::ActiveSize,
            b"requested_size" => Self::RequestedSize,
            b"stream" => Self::Stream,
            b"segment_type" => Self::SegmentType,
            b"segment_pool_id" => Self::SegmentPoolId,
            b"is_expandable" => Self::IsExpandable,
            b"frames" => Self::Frames,
            b"blocks" => Self::Blocks,
            b"size" => Self::Size,
            b"state" => Self::State,
            b"action" => Self::Action,
            b"addr" => Self::Addr,
            b"device_free" => Self::DeviceFree,
            b"time_us" => Self::TimeUs,
            b"compile_context" => Self::CompileContext,
            b"user_metadata" => Self::UserMetadata,
            b"pool_id" => Self::PoolId,
            b"filename" => Self::Filename,
            b"line" => Self::Line,
            b"name" => Self::Name,
            _ => Self::Other,
        }
    }
}

/// Meanings of values met before. Used for keys, and for the few words that are values (actions, states).
#[derive(Debug)]
pub(super) struct Seen<T> {
    entries: Vec<(Value, T)>,
    hint: usize,
}

/// A file whose strings are not shared would fill any memory of them; it is read without.
const SEEN_LIMIT: usize = 64;

impl<T: Copy> Seen<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), hint: 0 }
    }

    /// What `node` means: as it did before, or as `meaning` says.
    pub(super) fn get<E>(&mut self, node: Node<'_>, meaning: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let value = node.value();
        let (before, after) = self.entries.split_at(self.hint);
        let found = after.iter().chain(before).position(|&(seen, _)| seen == value);
        if let Some(steps) = found {
            let mut at = self.hint + steps;
            if at >= self.entries.len() {
                at -= self.entries.len();
            }
            self.hint = at + 1;
            return Ok(self.entries[at].1);
        }
        let meaning = meaning()?;
        if self.entries.len() < SEEN_LIMIT {
            self.entries.push((value, meaning));
            self.hint = self.entries.len();
        }
        Ok(meaning)
    }
}
