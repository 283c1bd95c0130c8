//! Tables: several buffers with column metadata that move as one.
//!
//! On the GPU each buffer has a block of its own. Below, a table is *direct* (each buffer in its own blocks: quick, and good for large
//! columns) or *packed* (one image: the metadata, then the buffers one behind the other; good for many small ones, since a pinned block
//! is not shared). A packed image begins with the metadata in bytes, which is compared when the table comes back.

use std::fmt;
use std::sync::Arc;

use headwater_driver::{DeviceId, Stream};

use super::Spill;
use super::access::{GpuAccess, HostRead, HostWrite};
use super::buffer::Owner;
use super::layout::Layout;
use super::node::Want;
use crate::error::TierError;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// Values of a fixed size.
    Fixed {
        /// The size of one.
        bytes: u32,
    },
    /// Text or bytes: 32-bit offsets, then characters.
    Text,
    /// Lists: 32-bit offsets; the elements are the only child.
    List,
    /// Fields side by side: the children; no data of its own.
    Struct,
}

/// One column: what it is, how long, and how large its buffers are.
///
/// ```
/// use headwater_tiers::spill::{Column, ColumnType};
/// let numbers = Column::fixed(8, 1000).with_nulls(12);
/// let names = Column::text(1000, 8192);
/// let rows = Column::of(ColumnType::Struct, 1000).with_children(vec![numbers, names]);
/// // Validity and values; offsets and characters.
/// assert_eq!(rows.buffer_bytes(), [125, 8000, 4004, 8192]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// What it holds.
    pub column_type: ColumnType,
    /// How many rows.
    pub rows: u64,
    /// How many of them are null.
    pub nulls: u64,
    /// Whether it has a bit a row that says which.
    pub has_validity: bool,
    /// Characters, where it holds text.
    pub text_bytes: u64,
    /// Columns inside it.
    pub children: Vec<Self>,
}

impl Column {
    /// A column without nulls and children.
    pub const fn of(column_type: ColumnType, rows: u64) -> Self {
        Self { column_type, rows, nulls: 0, has_validity: false, text_bytes: 0, children: Vec::new() }
    }

    /// `rows` values of `bytes` each.
    pub const fn fixed(bytes: u32, rows: u64) -> Self {
        Self::of(ColumnType::Fixed { bytes }, rows)
    }

    /// `rows` texts with `text_bytes` characters in all.
    pub const fn text(rows: u64, text_bytes: u64) -> Self {
        let mut column = Self::of(ColumnType::Text, rows);
        column.text_bytes = text_bytes;
        column
    }

    /// The same, with `nulls` nulls.
    #[must_use]
    pub fn with_nulls(mut self, nulls: u64) -> Self {
        (self.nulls, self.has_validity) = (nulls, true);
        self
    }

    /// The same, with columns inside.
    #[must_use]
    pub fn with_children(mut self, children: Vec<Self>) -> Self {
        self.children = children;
        self
    }

    /// How large its buffers are, those of its children behind its own: validity, offsets or values, characters.
    pub fn buffer_bytes(&self) -> Vec<u64> {
        let mut buffers = Vec::new();
        self.add_buffers(&mut buffers);
        buffers
    }

    fn add_buffers(&self, buffers: &mut Vec<u64>) {
        if self.has_validity {
            buffers.push(self.rows.div_ceil(8));
        }
        let offsets_bytes = self.rows.saturating_add(1).saturating_mul(4);
        match self.column_type {
            ColumnType::Fixed { bytes } => buffers.push(self.rows.saturating_mul(u64::from(bytes))),
            ColumnType::Text => buffers.extend([offsets_bytes, self.text_bytes]),
            ColumnType::List => buffers.push(offsets_bytes),
            ColumnType::Struct => {}
        }
        for child in &self.children {
            child.add_buffers(buffers);
        }
    }

    /// The metadata in bytes, for the head of a packed image.
    fn encode(&self, into: &mut Vec<u8>) {
        let (kind, width) = match self.column_type {
            ColumnType::Fixed { bytes } => (0u32, bytes),
            ColumnType::Text => (1, 0),
            ColumnType::List => (2, 0),
            ColumnType::Struct => (3, 0),
        };
        for word in [kind, width, u32::from(self.has_validity), self.children.len() as u32] {
            into.extend(word.to_le_bytes());
        }
        for number in [self.rows, self.nulls, self.text_bytes] {
            into.extend(number.to_le_bytes());
        }
        for child in &self.children {
            child.encode(into);
        }
    }
}

/// What a packed image begins with.
const MAGIC: &[u8; 8] = b"HWTABLE1";

fn encode(columns: &[Column]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((columns.len() as u64).to_le_bytes());
    for column in columns {
        column.encode(&mut bytes);
    }
    bytes
}

/// How a table lies below the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableForm {
    /// Each buffer in its own blocks.
    #[default]
    Direct,
    /// One image with its metadata.
    Packed,
}

/// A table whose buffers are all in one tier at a time. Cheap to clone; the data goes with the last clone.
#[derive(Clone)]
pub struct SpillTable {
    owner: Arc<Owner>,
    columns: Arc<[Column]>,
    form: TableForm,
}

impl Spill {
    /// A table of zeros on `device`; waits for room there.
    ///
    /// # Errors
    /// As [`Spill::buffer`].
    pub fn table(
        &self,
        columns: Vec<Column>,
        form: TableForm,
        device: DeviceId,
        wait: &Wait,
    ) -> Result<SpillTable, TierError> {
        let parts: Vec<u64> = columns.iter().flat_map(Column::buffer_bytes).collect();
        let layout = match form {
            TableForm::Direct => Layout::direct(&parts),
            TableForm::Packed => Layout::packed(&parts, encode(&columns)),
        };
        let node = self.node_on_gpu(layout, device, wait)?;
        Ok(SpillTable { owner: Arc::new(Owner(node)), columns: columns.into(), form })
    }
}

impl SpillTable {
    #[cfg(test)]
    pub(super) fn layout_for_tests(&self) -> Layout {
        self.owner.0.layout.clone()
    }

    /// Its columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// How it lies below the GPU.
    pub fn form(&self) -> TableForm {
        self.form
    }

    /// How many buffers it has; they are numbered through all columns.
    pub fn buffers(&self) -> usize {
        self.owner.0.layout.parts().len()
    }

    /// Where the table is now.
    pub fn space(&self) -> SpaceId {
        self.owner.0.space()
    }

    /// Who stays longer when room is needed: higher.
    pub fn set_priority(&self, priority: i32) {
        self.owner.0.set_priority(priority);
    }

    /// Pins all buffers on the device of `stream` for work that only reads.
    ///
    /// # Errors
    /// As [`SpillBuffer::read_on_gpu`](super::SpillBuffer::read_on_gpu); [`TierError::WrongImage`].
    pub fn read_on_gpu(&self, stream: Stream, wait: &Wait) -> Result<GpuAccess, TierError> {
        GpuAccess::new(&self.owner.0, stream, false, wait)
    }

    /// The same for work that writes.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn write_on_gpu(&self, stream: Stream, wait: &Wait) -> Result<GpuAccess, TierError> {
        GpuAccess::new(&self.owner.0, stream, true, wait)
    }

    /// Pins all buffers in host memory to be read.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn read_on_host(&self, wait: &Wait) -> Result<HostRead, TierError> {
        HostRead::new(&self.owner.0, wait)
    }

    /// The same, to be written.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn write_on_host(&self, wait: &Wait) -> Result<HostWrite, TierError> {
        HostWrite::new(&self.owner.0, wait)
    }

    /// Moves the table up to `device` without using it yet.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn prefetch(&self, device: DeviceId, wait: &Wait) -> Result<(), TierError> {
        let held = self.owner.0.pin(Want::Gpu(device), false, wait)?;
        self.owner.0.unpin(held);
        Ok(())
    }

    /// Has it moved up to `device` in the background, as soon as there is room that nobody waits for; says whether the request
    /// was taken, which it is not where there are no movers or too many requests.
    pub fn prefetch_soon(&self, device: DeviceId) -> bool {
        self.owner.0.core.prefetch_soon(&self.owner.0, device)
    }

    /// Moves the table down to `tier`; nothing happens where it is there or below.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn spill_to(&self, tier: Tier, wait: &Wait) -> Result<(), TierError> {
        self.owner.0.spill_to(tier, wait)
    }
}

impl fmt::Debug for SpillTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillTable")
            .field("columns", &self.columns.len())
            .field("form", &self.form)
            .field("space", &self.space())
            .finish()
    }
}
