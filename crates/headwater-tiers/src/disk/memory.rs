//! The twin in memory: a disk that does what it is told, and fails as told.
//!
//! Transfers run when they are popped, in an order drawn by the seed, so that whoever relies on an order is found out. Faults are
//! drawn by the same seed: a failing run is the same run again. (With several threads the draws come in the threads' order.)

use std::io;

use parking_lot::Mutex;

use super::io::{Alignment, Completion, Direction, DiskIo, IoDescription, IoKind, IoQueue, Transfer};

/// Which share of operations goes wrong, and how; each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskFaults {
    /// Transfers that fail with an I/O error.
    pub failed: f64,
    /// Transfers that stop before their end.
    pub short: f64,
    /// Writes after which one bit on the disk is another.
    pub flipped_on_disk: f64,
    /// Reads that deliver one bit wrong, and would deliver it right the next time.
    pub flipped_in_flight: f64,
    /// Preallocations that find the disk full.
    pub full: f64,
}

impl DiskFaults {
    /// The same share of everything.
    pub const fn every(share: f64) -> Self {
        Self { failed: share, short: share, flipped_on_disk: share, flipped_in_flight: share, full: share }
    }
}

/// A disk in memory.
#[derive(Debug)]
pub struct MemoryIo {
    capacity_bytes: u64,
    alignment: Alignment,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    content: Vec<u8>,
    /// Room taken, counted as the file system would.
    taken_bytes: u64,
    faults: DiskFaults,
    random: u64,
    is_gone: bool,
}

/// How many transfers a queue holds.
const DEPTH: usize = 32;

impl MemoryIo {
    /// An empty disk of `capacity_bytes` on which nothing fails.
    pub fn new(capacity_bytes: u64, seed: u64) -> Self {
        let alignment = Alignment { memory_bytes: 512, offset_bytes: 4096 };
        let (faults, random) = (DiskFaults::default(), seed ^ 0x9e37_79b9_7f4a_7c15);
        let state = State { content: Vec::new(), taken_bytes: 0, faults, random, is_gone: false };
        Self { capacity_bytes, alignment, state: Mutex::new(state) }
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state.lock().faults = faults;
    }

    /// Takes the mount away: from now on everything fails.
    pub fn remove(&self) {
        self.state.lock().is_gone = true;
    }

    /// Room taken and not given back.
    pub fn taken_bytes(&self) -> u64 {
        self.state.lock().taken_bytes
    }

    /// Turns one bit of what is stored.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        if let Some(byte) = self.state.lock().content.get_mut(offset as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn run(&self, transfer: &Transfer) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.check_there()?;
        let faults = state.faults;
        if state.draws(faults.failed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut bytes = transfer.bytes;
        if state.draws(faults.short) {
            let granule = self.alignment.offset_bytes as usize;
            bytes = state.below((bytes / granule) as u64 + 1) as usize * granule;
        }
        let from = transfer.offset as usize;
        let Some(range) =
            from.checked_add(bytes).map(|end| from..end).filter(|range| range.end <= state.content.len())
        else {
            return Ok(0);
        };
        match transfer.direction {
            Direction::Write => {
                // SAFETY: whoever pushed the transfer promised that the memory is valid and not written until it ends.
                let memory = unsafe { std::slice::from_raw_parts(transfer.memory.as_ptr(), bytes) };
                state.content[range.clone()].copy_from_slice(memory);
                if bytes > 0 && state.draws(faults.flipped_on_disk) {
                    let place = range.start + state.below(bytes as u64) as usize;
                    state.content[place] ^= 1 << state.below(8);
                }
            }
            Direction::Read => {
                // SAFETY: as above, and that it is nobody else's.
                let memory = unsafe { std::slice::from_raw_parts_mut(transfer.memory.as_ptr(), bytes) };
                memory.copy_from_slice(&state.content[range]);
                if bytes > 0 && state.draws(faults.flipped_in_flight) {
                    let place = state.below(bytes as u64) as usize;
                    memory[place] ^= 1 << state.below(8);
                }
            }
        }
        Ok(bytes)
    }
}

impl State {
    fn check_there(&self) -> io::Result<()> {
        if self.is_gone { Err(io::Error::from_raw_os_error(libc::ENODEV)) } else { Ok(()) }
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn draws(&mut self, share: f64) -> bool {
        share > 0.0 && ((self.next() >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

impl DiskIo for MemoryIo {
    fn describe(&self) -> IoDescription {
        IoDescription::new(IoKind::Memory, DEPTH, self.alignment)
    }

    fn alignment(&self) -> Alignment {
        self.alignment
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state.lock();
        state.check_there()?;
        Ok(self.capacity_bytes.saturating_sub(state.taken_bytes))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check_there()?;
        let share = state.faults.full;
        if state.draws(share) || bytes > self.capacity_bytes.saturating_sub(state.taken_bytes) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.taken_bytes += bytes;
        let end = (offset + bytes) as usize;
        if state.content.len() < end {
            state.content.resize(end, 0);
        }
        Ok(())
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.taken_bytes = state.taken_bytes.saturating_sub(bytes);
        // What was there is gone: reading it later is found out.
        let end = ((offset + bytes) as usize).min(state.content.len());
        if let Some(range) = state.content.get_mut(offset as usize..end) {
            range.fill(0);
        }
        Ok(())
    }

    fn queue(&self) -> io::Result<Box<dyn IoQueue + '_>> {
        Ok(Box::new(MemoryQueue { io: self, waiting: Vec::new() }))
    }
}

struct MemoryQueue<'a> {
    io: &'a MemoryIo,
    waiting: Vec<Transfer>,
}

impl IoQueue for MemoryQueue<'_> {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    unsafe fn push(&mut self, transfer: Transfer) -> io::Result<()> {
        self.waiting.push(transfer);
        Ok(())
    }

    fn pop(&mut self) -> Option<Completion> {
        if self.waiting.is_empty() {
            return None;
        }
        let which = self.io.state.lock().below(self.waiting.len() as u64) as usize;
        let transfer = self.waiting.swap_remove(which);
        Some(Completion { tag: transfer.tag, result: self.io.run(&transfer) })
    }
}
