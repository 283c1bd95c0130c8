//! Where the elements of a pickle's containers lie.
//!
//! All elements are in one vector of slots. A container is filled in batches of 1,000, and others are built between its
//! batches; so it is a list of runs of slots, the first run within its own record. A dictionary of eight pairs takes 152
//! bytes, in two allocations that grow with the file and not one for each.

use super::value::{Kind, Value};

/// A run of slots, and the run after it (`u32::MAX` where none).
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    start: u32,
    pub(super) length: u32,
    pub(super) next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Container {
    /// The byte of the opcode that made it.
    offset: u64,
    first: Run,
    /// The last run; `u32::MAX` while the first is the last.
    last: u32,
}

pub(super) const NO_RUN: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Arena {
    slots: Vec<Value>,
    runs: Vec<Run>,
    containers: Vec<Container>,
}

impl Arena {
    /// Slots and containers, which a limit keeps below 2^32.
    pub(crate) fn values(&self) -> u64 {
        (self.slots.len() + self.containers.len()) as u64
    }

    /// A new container with these elements.
    pub(crate) fn container(&mut self, kind: Kind, offset: u64, elements: &[Value]) -> Value {
        let first = Run { start: self.slots.len() as u32, length: elements.len() as u32, next: NO_RUN };
        self.slots.extend_from_slice(elements);
        self.containers.push(Container { offset, first, last: NO_RUN });
        Value::new(kind, self.containers.len() as u64 - 1)
    }

    /// Adds elements to a container made here.
    pub(crate) fn extend(&mut self, container: Value, elements: &[Value]) {
        let Some(container) = self.containers.get_mut(container.payload() as usize) else { return };
        let end = self.slots.len() as u32;
        self.slots.extend_from_slice(elements);
        let (length, number) = (elements.len() as u32, self.runs.len() as u32);
        let last = match self.runs.get_mut(container.last as usize) {
            Some(run) => run,
            None => &mut container.first,
        };
        if last.length == 0 {
            last.start = end;
        }
        if last.start + last.length == end {
            last.length += length;
            return;
        }
        last.next = number;
        container.last = number;
        self.runs.push(Run { start: end, length, next: NO_RUN });
    }

    /// How many containers there are.
    pub(super) fn containers(&self) -> usize {
        self.containers.len()
    }

    /// The byte of the opcode that made a container.
    pub(super) fn offset(&self, container: usize) -> Option<u64> {
        self.containers.get(container).map(|container| container.offset)
    }

    pub(super) fn first_run(&self, container: usize) -> Option<Run> {
        self.containers.get(container).map(|container| container.first)
    }

    pub(super) fn run(&self, number: u32) -> Option<Run> {
        self.runs.get(number as usize).copied()
    }

    /// The elements of a run.
    pub(super) fn slots(&self, run: Run) -> &[Value] {
        let start = run.start as usize;
        self.slots.get(start..start + run.length as usize).unwrap_or(&[])
    }
}
