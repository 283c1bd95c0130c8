//! A block's address and what it is doing, in one word.
//!
//! Addresses have 48 bits, so the high byte is free for a [`State`]. Because the address is part of the word, one
//! comparison answers every question a give-back has: is this address the first of a block, of a block of ours, and does
//! somebody hold it? A word that was put to another use meanwhile has another address in it and does not match.
//!
//! Who changes a word: while a block is live, the thread that owns it by a plain store ([`Word::give_back_own`]), any other
//! thread by a compare-and-exchange ([`Word::give_back_foreign`]). In every other state the word belongs to whoever has the
//! block in hand. A plain store can therefore hide an exchange of another thread that gives back the same block *in the same
//! nanoseconds*: then both are told that it worked, the other's message is found to be about a block that is not
//! [`Sent`](State::Sent), and is dropped. The block is still taken back exactly once. A second give-back that comes after the
//! first, in any thread, is always refused.

use super::sync::{AtomicU64, Ordering};

/// What the high byte says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// There is no block.
    Gone = 0,
    /// A caller holds it.
    Live = 1,
    /// Ready to be handed out, wherever it is.
    Cached = 2,
    /// Given back by a thread that does not own it, and on its way.
    Sent = 3,
    /// Given back, and waits for streams.
    Pending = 4,
    /// Offered to the driver, who may refuse.
    Offered = 5,
}

const STATE_SHIFT: u32 = 56;
const ADDRESS_MASK: u64 = (1 << STATE_SHIFT) - 1;

const fn word(address: u64, state: State) -> u64 {
    address | (state as u64) << STATE_SHIFT
}

/// The word.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn gone() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Address and state.
    #[inline]
    pub(crate) fn read(&self) -> (u64, State) {
        let word = self.0.load(Ordering::Acquire);
        let state = match word >> STATE_SHIFT {
            1 => State::Live,
            2 => State::Cached,
            3 => State::Sent,
            4 => State::Pending,
            5 => State::Offered,
            _ => State::Gone,
        };
        (word & ADDRESS_MASK, state)
    }

    /// The address alone.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ADDRESS_MASK
    }

    /// Whether this is exactly the block at `address` (of at most 48 bits), and it is live.
    #[inline(always)]
    pub(crate) fn is_live_at(&self, address: u64) -> bool {
        // Acquire: what the thread did that handed it out is seen.
        self.0.load(Ordering::Acquire) == word(address, State::Live)
    }

    /// Sets the word. For whoever has the block in hand.
    #[inline(always)]
    pub(crate) fn set(&self, address: u64, state: State) {
        debug_assert!(address & !ADDRESS_MASK == 0);
        self.0.store(word(address, state), Ordering::Release);
    }

    /// The owner gives back a live block. Says whether it was one.
    #[inline(always)]
    pub(crate) fn give_back_own(&self, address: u64, to: State) -> bool {
        let live = self.is_live_at(address);
        if live {
            self.set(address, to);
        }
        live
    }

    /// A thread that is not the owner gives back a live block. Of several that do, one succeeds.
    #[inline]
    pub(crate) fn give_back_foreign(&self, address: u64, to: State) -> bool {
        self.exchange((address, State::Live), (address, to))
    }

    /// Changes the word from one address and state to another. Of several threads that do, one succeeds.
    #[inline(always)]
    pub(crate) fn exchange(&self, from: (u64, State), to: (u64, State)) -> bool {
        let (from, to) = (word(from.0, from.1), word(to.0, to.1));
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whoever received the message about a sent block takes it in hand. Says whether there was a block to take.
    pub(crate) fn receive(&self) -> bool {
        let (address, state) = self.read();
        if state == State::Sent {
            self.set(address, State::Cached);
        }
        state == State::Sent
    }
}
