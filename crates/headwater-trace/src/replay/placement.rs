//! Where everything lay: the blocks a policy gave out and the memory behind them, with the events between which they
//! existed.
//!
//! The simulated device knows which addresses have memory behind them, whatever the policy. A real one does not tell:
//! there, what lies between blocks is unknown, and each block stands for its own memory. So it does with `direct`, where that
//! is the truth.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater::allocator::BlockState;
use headwater::{Allocator, Opened};
use headwater_driver::{Call, DeviceId, DevicePtr};
use headwater_sim::{MemoryRange, SimDriver};

use super::Policy;
use crate::ids::IdTable;
use crate::names::{LabelId, StreamId};
use crate::report::{Block, Span};

/// The calls that change which memory there is.
const MEMORY_CALLS: [Call; 4] = [Call::MemAlloc, Call::MemFree, Call::HandleMap, Call::HandleUnmap];

/// No block.
const NONE: usize = usize::MAX;

/// Blocks and memory of one run.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    blocks: Vec<Block>,
    spans: Vec<Span>,
    /// The latest block with an id.
    by_id: IdTable<usize>,
    /// Blocks given back that another stream may still use, by address.
    waiting: BTreeMap<u64, usize>,
    /// What tells where the memory is; `None` where each block stands for its own.
    sim: Option<Arc<SimDriver>>,
    /// Memory that exists now, and its place in `spans`.
    memory: BTreeMap<MemoryRange, usize>,
    arenas: BTreeMap<u64, u32>,
    /// As counted when the memory was last looked at.
    calls: [u64; MEMORY_CALLS.len()],
}

impl Placement {
    pub(super) fn new(policy: Policy, on: &Opened) -> Self {
        Self {
            blocks: Vec::new(),
            spans: Vec::new(),
            by_id: IdTable::new(NONE),
            waiting: BTreeMap::new(),
            sim: on.sim.clone().filter(|_| policy != Policy::Direct),
            memory: BTreeMap::new(),
            arenas: BTreeMap::new(),
            calls: [0; MEMORY_CALLS.len()],
        }
    }

    /// A block was given out.
    pub(super) fn given_out(
        &mut self,
        at: u64,
        id: u64,
        ptr: DevicePtr,
        allocator: &dyn Allocator,
        label: LabelId,
        stream: StreamId,
    ) {
        self.by_id.set(id, NONE);
        let Some(facts) = allocator.block_at(ptr) else { return };
        let block = Block {
            address: facts.ptr.raw(),
            bytes: facts.allocated_bytes,
            requested_bytes: facts.requested_bytes,
            stream: stream.0,
            label: label.0,
            born: index(at),
            died: None,
            completed: None,
        };
        self.show_memory_of(&block);
        self.end_waits(at, allocator);
        self.by_id.set(id, self.blocks.len());
        self.blocks.push(block);
    }

    /// A block may lie where its memory was mapped before, and then no driver call tells that it is used there again.
    fn show_memory_of(&mut self, block: &Block) {
        let Some(sim) = &self.sim else { return };
        let end = block.address + block.bytes;
        let mut covered = block.address;
        let at = |address| MemoryRange { address, bytes: 0, region: 0, device: DeviceId(0) };
        // The one that begins at or before the block, and those that begin in it.
        let before = self.memory.range(..at(block.address + 1)).next_back();
        let inside = self.memory.range(at(block.address + 1)..at(end));
        for (range, _) in before.into_iter().chain(inside) {
            if range.address <= covered {
                covered = covered.max(range.address + range.bytes);
            }
        }
        if covered < end {
            sim.show_memory_at(block.address, block.bytes);
            self.calls = [u64::MAX; MEMORY_CALLS.len()];
        }
    }

    /// Where a policy waits for a stream itself, blocks are free before the trace says so.
    fn end_waits(&mut self, at: u64, allocator: &dyn Allocator) {
        let blocks = &mut self.blocks;
        self.waiting.retain(|address, place| {
            let still = is_pending(allocator, *address);
            if !still {
                blocks[*place].completed = Some(index(at));
            }
            still
        });
    }

    /// A block was given back; `waits` where another stream still uses it by the trace.
    pub(super) fn given_back(&mut self, at: u64, id: u64, waits: bool, allocator: &dyn Allocator) {
        let place = self.by_id.get(id);
        let Some(block) = self.blocks.get_mut(place) else { return };
        block.died = Some(index(at));
        if waits && is_pending(allocator, block.address) {
            self.waiting.insert(block.address, place);
        } else {
            block.completed = Some(index(at));
        }
    }

    /// The trace's wait for another stream ended. On a real device that is when the block was given back.
    pub(super) fn completed(&mut self, at: u64, id: u64) {
        let place = self.by_id.get(id);
        let Some(block) = self.blocks.get_mut(place) else { return };
        let address = block.address;
        block.died.get_or_insert(index(at));
        block.completed.get_or_insert(index(at));
        if self.waiting.get(&address) == Some(&place) {
            self.waiting.remove(&address);
        }
    }

    /// Looks where the memory is, where a driver call may have changed that.
    pub(super) fn look_at_memory(&mut self, at: u64, allocator: &dyn Allocator) {
        let Some(sim) = self.sim.clone() else { return };
        let counts = allocator.driver().call_counts();
        let calls = MEMORY_CALLS.map(|call| counts.of(call));
        if std::mem::replace(&mut self.calls, calls) == calls {
            return;
        }
        let mut before = std::mem::take(&mut self.memory);
        for range in sim.memory_map().into_iter().filter(|range| range.device == allocator.device()) {
            let place = before.remove(&range).unwrap_or_else(|| self.add_span(at, range));
            self.memory.insert(range, place);
        }
        for place in before.into_values() {
            self.spans[place].died = Some(index(at));
        }
    }

    fn add_span(&mut self, at: u64, range: MemoryRange) -> usize {
        let next = index(self.arenas.len() as u64);
        let arena = *self.arenas.entry(range.region).or_insert(next);
        let MemoryRange { address, bytes, .. } = range;
        self.spans.push(Span { address, bytes, arena, born: index(at), died: None });
        self.spans.len() - 1
    }

    /// All blocks and spans.
    pub(super) fn into_parts(self) -> (Vec<Block>, Vec<Span>) {
        if self.sim.is_some() {
            return (self.blocks, self.spans);
        }
        let span = |(arena, block): (u32, &Block)| {
            let Block { address, bytes, born, completed, .. } = *block;
            Span { address, bytes, arena, born, died: completed }
        };
        let spans = (0..).zip(&self.blocks).map(span).collect();
        (self.blocks, spans)
    }
}

fn is_pending(allocator: &dyn Allocator, address: u64) -> bool {
    let facts = allocator.block_at(DevicePtr::new(address));
    facts.is_some_and(|facts| facts.ptr.raw() == address && facts.state == BlockState::Pending)
}

/// An event's place as a report has it. A report refuses traces with more events than that.
fn index(event: u64) -> u32 {
    u32::try_from(event).unwrap_or(u32::MAX)
}
