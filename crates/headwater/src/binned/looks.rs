//! How often a class looks for blocks in other threads and streams before it grows.
//!
//! A look stops every thread for a moment (`thread_cache::slots`), and asks events about other streams. That is right before
//! memory is asked of the driver, which takes longer still. But threads whose demand goes up and down always have a block
//! that they did not need just now, so a look nearly always finds one, its thread misses it soon after, and looks in turn:
//! 16 threads with 256 live blocks each made 9,600 looks in 6.5 million calls, and ran at a third of the speed of four.
//!
//! So looks have to be paid for. A growth pays for two: what was found and was missed again becomes memory of the pool's
//! own, and looks come to an end where the memory is enough. Visits to the depot pay as well, a thousand of them for one
//! look: in a pool that does not grow any more, what idle threads hold is still found, and looks cost no more than the visits
//! that paid for them. Both are counts, not times: the same program does the same on every machine.
//!
//! Under pressure, when the limit or the device has said no, nothing is asked about the cost.

/// Visits that pay for one look.
const VISITS_A_LOOK: u32 = 1024;

/// Looks that a growth pays for.
const LOOKS_A_GROWTH: u32 = 2;

/// The most looks that can be saved up. A class starts with this many.
const LOOKS_SAVED: u32 = 8;

/// What one class has to spend on looks.
#[derive(Debug)]
pub(super) struct Looks {
    saved_visits: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Self { saved_visits: LOOKS_SAVED * VISITS_A_LOOK }
    }
}

impl Looks {
    /// A thread came to the depot.
    pub(super) fn visit(&mut self) {
        self.save(1);
    }

    /// The class has grown.
    pub(super) fn grown(&mut self) {
        self.save(LOOKS_A_GROWTH * VISITS_A_LOOK);
    }

    /// Pays for a look. Says whether there was enough.
    pub(super) fn pay(&mut self) -> bool {
        let rest = self.saved_visits.checked_sub(VISITS_A_LOOK);
        self.saved_visits = rest.unwrap_or(self.saved_visits);
        rest.is_some()
    }

    fn save(&mut self, visits: u32) {
        self.saved_visits = (self.saved_visits + visits).min(LOOKS_SAVED * VISITS_A_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_end_unless_growth_or_visits_pay_for_more() {
        let mut looks = Looks::default();
        assert_eq!((0..100).filter(|_| looks.pay()).count(), LOOKS_SAVED as usize);
        looks.grown();
        assert_eq!((0..100).filter(|_| looks.pay()).count(), LOOKS_A_GROWTH as usize);
        (0..VISITS_A_LOOK - 1).for_each(|_| looks.visit());
        assert!(!looks.pay());
        looks.visit();
        assert!(looks.pay() && !looks.pay());
    }

    #[test]
    fn what_is_saved_up_is_bounded() {
        let mut looks = Looks::default();
        (0..1000).for_each(|_| looks.grown());
        assert_eq!((0..100).filter(|_| looks.pay()).count(), LOOKS_SAVED as usize);
    }
}
