//! Blocks that a thread gave back for others, gathered by whom they go to.
//!
//! A block goes back to the thread that handed it out, because there it will be asked for again: a thread that only gives
//! back would otherwise gather what another goes on asking the engine for. Sent in batches, a message costs a fraction of an
//! exchange and wakes nobody.

use super::counts::Amounts;
use super::ticket::Ticket;
use super::{Cache, Slot};
use crate::thread_cache::Message;

/// How many blocks of one owner are sent together.
const BATCH_BLOCKS: usize = 16;

/// How many owners a thread gathers for at once.
const BATCHES: usize = 4;

/// Blocks for one thread.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) owner: *const Slot,
    pub(crate) messages: Vec<Message<Ticket>>,
}

impl Default for Batch {
    fn default() -> Self {
        Self { owner: std::ptr::null(), messages: Vec::new() }
    }
}

// SAFETY: the pointers are to slots and tickets, which may be used from any thread.
unsafe impl Send for Batch {}

/// All that waits to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    batches: [Batch; BATCHES],
}

impl Outgoing {
    /// Puts a block with others of the same owner, and returns those that are to be sent now.
    pub(crate) fn post(&mut self, owner: *const Slot, ticket: &Ticket) -> Option<Batch> {
        // Slots are 128 bytes or more apart.
        let batch = &mut self.batches[owner as usize / 128 % BATCHES];
        let is_due = batch.messages.len() >= BATCH_BLOCKS || batch.owner != owner;
        let due = (is_due && !batch.messages.is_empty()).then(|| std::mem::take(batch));
        batch.owner = owner;
        if batch.messages.capacity() == 0 {
            batch.messages.reserve_exact(BATCH_BLOCKS);
        }
        batch.messages.push(Message { about: ticket, note: note(ticket) });
        due
    }

    /// Everything.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Batch> + '_ {
        self.batches.iter_mut().filter(|batch| !batch.messages.is_empty()).map(std::mem::take)
    }
}

/// What the sender counted, for the case that it has to be taken back: the pool in the lowest bit, 31 bits for what was asked
/// for, and above them what the block takes up. Both are far below 2 GiB.
fn note(ticket: &Ticket) -> u64 {
    ticket.block_bytes() << 32 | (ticket.requested_bytes() & 0x7FFF_FFFF) << 1 | ticket.pool_place() as u64
}

impl Cache {
    /// Takes the block that a message is about in hand; or, where its owner had taken it back in the same moment, corrects what
    /// the sender counted.
    pub(super) fn receive(&mut self, message: Message<Ticket>) -> Option<&'static Ticket> {
        // SAFETY: messages are about tickets, which live as long as the allocator, inside of whose calls this is used.
        let ticket = unsafe { message.about.as_ref() }?;
        if ticket.receive() {
            return Some(ticket);
        }
        let amounts = Amounts::one(message.note >> 32, message.note >> 1 & 0x7FFF_FFFF);
        self.counts.undo_take_back((message.note & 1) as usize, amounts);
        None
    }
}
