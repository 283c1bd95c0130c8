//! What an allocation owns of the accounts.

use std::sync::Arc;

use super::ledger::Ledger;
use super::policy::OverPolicy;
use super::promise::Promise;
use crate::error::TierError;
use crate::tier::SpaceId;
use crate::waiting::{Ceiling, Charge};

/// Bytes in use: of a reservation, or of a space directly. Goes back there when dropped, whichever thread drops it.
#[derive(Debug)]
#[must_use = "a claim that is dropped at once claims nothing"]
pub struct Claim {
    owner: Owner,
    bytes: u64,
}

#[derive(Debug)]
enum Owner {
    Reservation(Arc<Promise>),
    Space(Arc<Ledger>),
}

impl Claim {
    pub(crate) fn within(promise: &Arc<Promise>, bytes: u64, policy: OverPolicy) -> Result<Self, TierError> {
        promise.put_to_use(bytes, policy)?;
        Ok(Self { owner: Owner::Reservation(promise.clone()), bytes })
    }

    pub(crate) fn outside(ledger: &Arc<Ledger>, bytes: u64) -> Result<Self, TierError> {
        ledger.take_more(Charge::NONE, Charge::unreserved(bytes), Ceiling::Capacity)?;
        Ok(Self { owner: Owner::Space(ledger.clone()), bytes })
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The space they are in.
    pub fn space(&self) -> SpaceId {
        self.ledger().id
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        match &self.owner {
            Owner::Reservation(promise) => promise.ledger(),
            Owner::Space(ledger) => ledger,
        }
    }

    /// Claims `bytes` more from the same owner.
    pub(crate) fn grow(&mut self, bytes: u64, policy: OverPolicy) -> Result<(), TierError> {
        match &self.owner {
            Owner::Reservation(promise) => promise.put_to_use(bytes, policy)?,
            Owner::Space(ledger) => {
                ledger.take_more(Charge::NONE, Charge::unreserved(bytes), Ceiling::Capacity)?;
            }
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Lets go of all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.let_go(less);
    }

    fn let_go(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match &self.owner {
            Owner::Reservation(promise) => promise.take_out_of_use(bytes),
            Owner::Space(ledger) => ledger.take_less(Charge::unreserved(bytes), Charge::NONE),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.let_go(self.bytes);
    }
}
