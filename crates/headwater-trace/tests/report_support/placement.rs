//! A crude best fit: free ranges by size, joined with their neighbours, in segments or in one growing arena.

use std::collections::{BTreeMap, BTreeSet};

use headwater_trace::report::{Block, PolicyReport, Sample, Span};
use headwater_trace::{Event, LabelId, StreamId, Trace};

use super::{Growth, MIB};

pub(super) struct Placement {
    growth: Growth,
    out: PolicyReport,
    /// Free ranges: address to end and arena.
    free: BTreeMap<u64, (u64, u32)>,
    /// The same by pool, bytes and address.
    by_bytes: BTreeSet<(bool, u64, u64)>,
    small_arenas: Vec<bool>,
    next_address: u64,
    held: BTreeMap<u64, usize>,
    span_of: BTreeMap<u64, usize>,
    now: Sample,
}

impl Placement {
    pub(super) fn new(growth: Growth) -> Self {
        let mut out = PolicyReport::new(match growth {
            Growth::Segments => "segments",
            Growth::Arena => "arena",
            Growth::Direct => "direct",
        });
        out.figures.device = "sim".into();
        Self {
            growth,
            out,
            free: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
            small_arenas: Vec::new(),
            next_address: 0x7f30_0000_0000,
            held: BTreeMap::new(),
            span_of: BTreeMap::new(),
            now: Sample::default(),
        }
    }

    pub(super) fn run(mut self, trace: &Trace) -> PolicyReport {
        let waits = trace.completed_frees();
        for (event, what) in (0u32..).zip(&trace.events) {
            match *what {
                Event::Alloc { id, bytes, stream, label, .. } => self.alloc(event, id, bytes, stream, label),
                Event::Free { id, .. } => self.give_back(event, id, waits[event as usize]),
                Event::Complete { id, .. } => self.complete(event, id),
                _ => continue,
            }
            self.now.event = event;
            self.out.timeline.push(self.now);
            let figures = &mut self.out.figures;
            figures.peak_live_bytes = figures.peak_live_bytes.max(self.now.live);
            figures.peak_allocated_bytes = figures.peak_allocated_bytes.max(self.now.allocated);
            figures.peak_active_bytes = figures.peak_active_bytes.max(self.now.active);
            figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(self.now.reserved);
        }
        let figures = &mut self.out.figures;
        figures.fragmentation =
            1.0 - figures.peak_live_bytes as f64 / figures.peak_reserved_bytes.max(1) as f64;
        figures.modelled_driver_us = 250.0 * figures.driver_calls.values().sum::<u64>() as f64;
        self.out
    }

    fn alloc(&mut self, event: u32, id: u64, requested_bytes: u64, stream: StreamId, label: LabelId) {
        let bytes = requested_bytes.next_multiple_of(512).max(512);
        let address = self.take(event, bytes);
        let block = Block {
            address,
            bytes,
            requested_bytes,
            stream: stream.0,
            label: label.0,
            born: event,
            died: None,
            completed: None,
        };
        self.held.insert(id, self.out.blocks.len());
        self.out.blocks.push(block);
        self.now.live += requested_bytes;
        self.now.allocated += bytes;
        self.now.active += bytes;
    }

    fn take(&mut self, event: u32, bytes: u64) -> u64 {
        let small = self.growth == Growth::Segments && bytes <= MIB;
        let fits = self.by_bytes.range((small, bytes, 0)..(small, u64::MAX, 0)).next().copied();
        if let Some((_, found_bytes, address)) = fits {
            let arena = self.remove_free(address);
            self.insert_free(address + bytes, address + found_bytes, arena);
            return address;
        }
        let grown = match self.growth {
            Growth::Direct => bytes.next_multiple_of(2 * MIB),
            Growth::Arena => return self.take_from_arena(event, bytes),
            Growth::Segments if small => 2 * MIB,
            Growth::Segments if bytes < 10 * MIB => 20 * MIB,
            Growth::Segments => bytes.next_multiple_of(2 * MIB),
        };
        let arena = self.small_arenas.len() as u32;
        self.small_arenas.push(small);
        let address = self.map(event, grown, arena, "mem_alloc");
        // Segments do not touch, as those of a driver seldom do.
        self.next_address += 2 * MIB;
        if self.growth == Growth::Segments {
            self.insert_free(address + bytes, address + grown, arena);
        }
        address
    }

    /// Grows by what is missing behind the free range at the end, if there is one.
    fn take_from_arena(&mut self, event: u32, bytes: u64) -> u64 {
        if self.small_arenas.is_empty() {
            self.small_arenas.push(false);
        }
        let last = self.free.last_key_value().filter(|(_, free)| free.0 == self.next_address);
        let begin = last.map_or(self.next_address, |(&address, _)| address);
        if begin < self.next_address {
            self.remove_free(begin);
        }
        while self.next_address < begin + bytes {
            self.map(event, 2 * MIB, 0, "mem_map");
        }
        self.insert_free(begin + bytes, self.next_address, 0);
        begin
    }

    fn map(&mut self, event: u32, bytes: u64, arena: u32, call: &str) -> u64 {
        let address = self.next_address;
        self.next_address += bytes;
        self.now.reserved += bytes;
        *self.out.figures.driver_calls.entry(call.into()).or_default() += 1;
        self.span_of.insert(address, self.out.spans.len());
        self.out.spans.push(Span { address, bytes, arena, born: event, died: None });
        address
    }

    fn give_back(&mut self, event: u32, id: u64, waits: bool) {
        let block = &mut self.out.blocks[self.held[&id]];
        block.died = Some(event);
        self.now.live -= block.requested_bytes;
        self.now.allocated -= block.bytes;
        if !waits {
            self.complete(event, id);
        }
    }

    fn complete(&mut self, event: u32, id: u64) {
        let block = &mut self.out.blocks[self.held[&id]];
        block.completed = Some(event);
        let (begin, bytes) = (block.address, block.bytes);
        self.now.active -= bytes;
        if self.growth == Growth::Direct {
            let span = &mut self.out.spans[self.span_of[&begin]];
            span.died = Some(event);
            self.now.reserved -= span.bytes;
            *self.out.figures.driver_calls.entry("mem_free".into()).or_default() += 1;
            return;
        }
        let (_, &span) = self.span_of.range(..=begin).next_back().expect("every block lies in a span");
        self.insert_free(begin, begin + bytes, self.out.spans[span].arena);
    }

    /// Adds a free range, joined with its neighbours of the same arena.
    fn insert_free(&mut self, mut begin: u64, mut end: u64, arena: u32) {
        if begin == end {
            return;
        }
        if let Some((&address, &free)) = self.free.range(..begin).next_back()
            && free == (begin, arena)
        {
            self.remove_free(address);
            begin = address;
        }
        if let Some(&(free_end, free_arena)) = self.free.get(&end)
            && free_arena == arena
        {
            self.remove_free(end);
            end = free_end;
        }
        self.free.insert(begin, (end, arena));
        self.by_bytes.insert((self.small_arenas[arena as usize], end - begin, begin));
    }

    fn remove_free(&mut self, address: u64) -> u32 {
        let (end, arena) = self.free.remove(&address).expect("the range is free");
        self.by_bytes.remove(&(self.small_arenas[arena as usize], end - address, address));
        arena
    }
}
