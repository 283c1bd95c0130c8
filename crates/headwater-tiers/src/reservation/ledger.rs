//! One space's line in the book, and the news of it.

use std::sync::Arc;

use crate::error::{Shortage, TierError};
use crate::space::NotificationChannel;
use crate::tier::SpaceId;
use crate::waiting::{Account, Ask, Ceiling, Charge, Gate, Refused, Wait, WaitRefused};

/// What would help when the limit stands in the way.
const RAISE_LIMIT: &str = "raise the space's reservation_limit or capacity_bytes, or ask for less at a time";
/// What would help when others hold the room.
const GIVE_BACK: &str = "give reservations back, spill, wait longer, or raise the space's reservation_limit";
/// What would help when the hard cap stands in the way.
const RAISE_CAPACITY: &str = "give memory back, spill, or raise the space's capacity_bytes";

/// Everything that changes what a space has given away goes through here: the book is kept and the news is spread in
/// one place.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) id: SpaceId,
    pub(crate) account: usize,
    /// Promises are multiples of this.
    pub(crate) granule_bytes: u64,
    pub(crate) gate: Arc<Gate>,
    pub(crate) channel: Arc<NotificationChannel>,
}

impl Ledger {
    /// A copy of the account as it stands.
    pub(crate) fn account(&self) -> Account {
        self.gate.read(|book| book.account(self.account).clone())
    }

    /// Promises `bytes` now, or says why not.
    pub(crate) fn try_reserve(&self, bytes: u64) -> Result<u64, TierError> {
        let grant = self.gate.write(|book| book.try_ask(&Ask::of(self.account, bytes)));
        grant.map(|grant| grant.bytes).map_err(|refused| self.explain(refused, bytes))
    }

    /// Promises `bytes`, or less where there is less.
    pub(crate) fn reserve_up_to(&self, bytes: u64) -> Result<u64, TierError> {
        let grant = self.gate.write(|book| book.ask_up_to(self.account, bytes));
        grant.map(|grant| grant.bytes).map_err(|refused| self.explain(refused, bytes))
    }

    /// Promises `bytes` as soon as they are there.
    pub(crate) fn reserve(&self, bytes: u64, wait: &Wait) -> Result<u64, TierError> {
        let grant = self.gate.wait_for(Ask::of(self.account, bytes), wait);
        grant.map(|grant| grant.bytes).map_err(|refused| wait.explain(self.explain_wait(refused, bytes)))
    }

    /// Replaces what a holder takes by something larger or equal.
    pub(crate) fn take_more(&self, from: Charge, to: Charge, ceiling: Ceiling) -> Result<(), TierError> {
        let settled = self.gate.settle(|book| book.recharge(self.account, from, to, ceiling));
        settled.map_err(|refused| {
            let more_bytes = to.total().saturating_sub(from.total());
            match (ceiling, refused) {
                (Ceiling::Capacity, Refused::NoRoom) => {
                    TierError::OverCapacity(Box::new(self.shortage(more_bytes, RAISE_CAPACITY)))
                }
                (_, refused) => self.explain(refused, more_bytes),
            }
        })
    }

    /// Replaces what a holder takes by something that is not more, and spreads the news.
    pub(crate) fn take_less(&self, from: Charge, to: Charge) {
        debug_assert!(to.total() <= from.total(), "{from:?} {to:?}");
        let settled = self.gate.settle(|book| book.recharge(self.account, from, to, Ceiling::Capacity));
        debug_assert!(settled.is_ok(), "taking less is never refused: {settled:?}");
        if to.total() < from.total() {
            self.channel.signal();
        }
    }

    /// Sets the ceilings; raised ones serve waiters, lowered ones refuse those that can never be served.
    pub(crate) fn set_ceilings(&self, capacity_bytes: u64, limit_bytes: u64) {
        let change = self
            .gate
            .settle(|book| Ok::<_, Refused>(book.set_ceilings(self.account, capacity_bytes, limit_bytes)));
        debug_assert!(change.is_ok(), "a ceiling can always be set");
        self.channel.signal();
    }

    /// How the space stands, for an error.
    pub(crate) fn shortage(&self, requested_bytes: u64, remedy: &'static str) -> Shortage {
        self.gate.read(|book| {
            let account = book.account(self.account);
            Shortage {
                space: self.id,
                requested_bytes,
                used_bytes: account.used_bytes(),
                reserved_bytes: account.given.reserved_bytes,
                limit_bytes: account.limit_bytes,
                capacity_bytes: account.capacity_bytes,
                waiting: book.waiting_for(self.account).0,
                remedy,
            }
        })
    }

    /// A refusal in a caller's words.
    pub(crate) fn explain(&self, refused: Refused, bytes: u64) -> TierError {
        match refused {
            Refused::NeverFits => TierError::NeverFits(Box::new(self.shortage(bytes, RAISE_LIMIT))),
            Refused::NoRoom => TierError::NoRoom(Box::new(self.shortage(bytes, GIVE_BACK))),
            Refused::ShutDown => TierError::ShutDown,
            Refused::QueueFull { waiters_max } => TierError::QueueFull { waiters_max },
        }
    }

    /// The end of a wait in a caller's words.
    pub(crate) fn explain_wait(&self, refused: WaitRefused, bytes: u64) -> TierError {
        match refused {
            WaitRefused::AtOnce(refused) => self.explain(refused, bytes),
            WaitRefused::TimedOut { waited } => {
                TierError::TimedOut { waited, shortage: Box::new(self.shortage(bytes, GIVE_BACK)) }
            }
            WaitRefused::Cancelled => TierError::Cancelled,
        }
    }
}
