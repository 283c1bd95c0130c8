//! What one space has, and what of it is given away.

/// What one holder takes of an account: what it was promised, and what it allocated beyond any promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) reserved_bytes: u64,
    pub(crate) unreserved_bytes: u64,
}

impl Charge {
    pub(crate) const NONE: Self = Self { reserved_bytes: 0, unreserved_bytes: 0 };

    pub(crate) const fn reserved(bytes: u64) -> Self {
        Self { reserved_bytes: bytes, unreserved_bytes: 0 }
    }

    pub(crate) const fn unreserved(bytes: u64) -> Self {
        Self { reserved_bytes: 0, unreserved_bytes: bytes }
    }

    /// Saturating: a sum beyond `u64` is beyond every ceiling, and stays so.
    pub(crate) const fn total(self) -> u64 {
        self.reserved_bytes.saturating_add(self.unreserved_bytes)
    }
}

/// The account of one space.
///
/// Reserved and unreserved bytes share one sum, so that a reservation and what is allocated from it are never counted
/// twice. There are two ceilings: the limit for what is promised, the capacity for everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) capacity_bytes: u64,
    pub(crate) limit_bytes: u64,
    /// Promises are multiples of this: the block size of a space that hands out blocks.
    pub(crate) granule_bytes: u64,
    pub(crate) given: Charge,
    pub(crate) used_bytes_peak: u64,
}

impl Account {
    pub(crate) fn new(capacity_bytes: u64, limit_bytes: u64, granule_bytes: u64) -> Self {
        let (limit_bytes, granule_bytes) = (limit_bytes.min(capacity_bytes), granule_bytes.max(1));
        Self { capacity_bytes, limit_bytes, granule_bytes, given: Charge::NONE, used_bytes_peak: 0 }
    }

    /// The promise that covers `bytes`; saturating, like [`Charge::total`].
    pub(crate) fn rounded(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.granule_bytes).unwrap_or(u64::MAX)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.given.total()
    }

    /// What can still be promised. Nothing where the limit was lowered below what is taken.
    pub(crate) fn reservable_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// What can still be allocated outside of reservations.
    pub(crate) fn allocatable_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Whether the account, were it empty, could promise `bytes`.
    pub(crate) fn could_ever_promise(&self, bytes: u64) -> bool {
        self.rounded(bytes) <= self.limit_bytes
    }

    /// Replaces what one holder takes. Whether that is allowed has been decided.
    pub(crate) fn replace(&mut self, from: Charge, to: Charge) {
        debug_assert!(self.given.reserved_bytes >= from.reserved_bytes, "{:?} holds no {from:?}", self.given);
        debug_assert!(
            self.given.unreserved_bytes >= from.unreserved_bytes,
            "{:?} holds no {from:?}",
            self.given
        );
        let change = |given: u64, from: u64, to: u64| given.saturating_sub(from).saturating_add(to);
        self.given = Charge {
            reserved_bytes: change(self.given.reserved_bytes, from.reserved_bytes, to.reserved_bytes),
            unreserved_bytes: change(self.given.unreserved_bytes, from.unreserved_bytes, to.unreserved_bytes),
        };
        self.used_bytes_peak = self.used_bytes_peak.max(self.used_bytes());
    }
}
