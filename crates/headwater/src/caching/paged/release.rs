//! Which handles to return to the driver, and returning them.
//!
//! Only whole handles can go, and only those that nothing uses any more: removing a mapping does not wait for the device. The
//! addresses stay reserved, and are filled again when they are needed.

use headwater_driver::{DevicePtr, Handle};

use super::plan::Taken;
use super::{Core, Loose};
use crate::caching::classic::Tag;
use crate::stats::PoolKind;

/// Memory on its way to the driver.
#[derive(Debug)]
pub(crate) enum Offer {
    /// A handle with its mapping.
    Mapped(Taken),
    /// A handle that is mapped nowhere.
    Loose(Loose),
}

impl Offer {
    /// Where it was mapped.
    pub(crate) fn address(&self) -> Option<DevicePtr> {
        match self {
            Self::Mapped(taken) => Some(DevicePtr::new(taken.range.start)),
            Self::Loose(_) => None,
        }
    }

    fn handle(&self) -> Handle {
        match self {
            Self::Mapped(taken) => taken.handle,
            Self::Loose(loose) => loose.handle,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(taken) => taken.bytes(),
            Self::Loose(loose) => loose.bytes,
        }
    }
}

impl Core {
    /// Offers at least `bytes`, where there is so much: loose handles, then the largest, because a release costs little more
    /// for a large one.
    pub(crate) fn offer(&mut self, bytes: u64) -> Vec<Offer> {
        let (mut offers, mut offered_bytes) = (Vec::new(), 0);
        let (stuck, loose) =
            std::mem::take(&mut self.loose).into_iter().partition(|loose| self.views.has(loose.handle));
        self.loose = stuck;
        let loose: Vec<Loose> = loose;
        for loose in loose {
            if offered_bytes < bytes {
                offered_bytes += loose.bytes;
                offers.push(Offer::Loose(loose));
            } else {
                self.loose.push(loose);
            }
        }
        let whole: Vec<_> = self.handles.whole_free().rev().collect();
        for id in whole {
            if offered_bytes >= bytes {
                break;
            }
            if self.can_be_released(id)
                && let Some(taken) = self.speak_for(id, Tag::ANY)
            {
                offered_bytes += taken.bytes();
                offers.push(Offer::Mapped(taken));
            }
        }
        offers
    }

    /// Enters what became of an offer.
    pub(crate) fn settle_offer(&mut self, offer: Offer, done: Released) {
        if done == Released::Gone {
            self.exportable.remove(&offer.handle());
        }
        match (offer, done) {
            (Offer::Mapped(taken), Released::Gone) => {
                self.depart(taken, Tag::ANY, false);
                self.stats.num_device_free += 1;
            }
            (Offer::Loose(loose), Released::Gone) => {
                self.uncount(PoolKind::All, loose.bytes);
                self.stats.num_device_free += 1;
            }
            (Offer::Mapped(taken), Released::Unmapped) => {
                let (handle, bytes) = (taken.handle, taken.bytes());
                self.depart(taken, Tag::ANY, false);
                self.loosen(handle, bytes);
            }
            (Offer::Mapped(taken), Released::Kept) => {
                self.untake(taken);
                self.stats.num_owed_give_backs += 1;
            }
            (Offer::Loose(loose), Released::Kept | Released::Unmapped) => {
                self.loose.push(loose);
                self.stats.num_owed_give_backs += 1;
            }
        }
    }

    /// What could be returned to the driver now.
    pub(crate) fn releasable_bytes(&self) -> u64 {
        let whole = self.handles.whole_free().filter(|id| self.can_be_released(*id));
        let mapped_bytes: u64 = whole.filter_map(|id| self.handles.get(id)).map(|mapped| mapped.bytes).sum();
        mapped_bytes + self.loose.iter().map(|loose| loose.bytes).sum::<u64>()
    }
}

/// What the driver did with an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// It took it.
    Gone,
    /// It removed the mapping, and kept the handle.
    Unmapped,
    /// It did nothing.
    Kept,
}
