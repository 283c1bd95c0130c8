//! Which blocks are exported, and which of them were given back meanwhile.
//!
//! Exports are few and long: one lock, one small map, and a count that tells every other give-back that there are none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_driver::DevicePtr;
use parking_lot::Mutex;

use crate::AllocError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pin {
    exports: u32,
    /// Its owner gave it back: done when the last export ends.
    is_given_back: bool,
}

/// The exported blocks of one allocator.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// As many as the map has.
    blocks: AtomicUsize,
    by_address: Mutex<BTreeMap<DevicePtr, Pin>>,
}

impl Pins {
    /// Whether anything is exported. Relaxed: whoever gives a block back has heard of its export from the thread that made it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) == 0
    }

    /// One export more of a live block.
    pub(crate) fn pin(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        let mut by_address = self.by_address.lock();
        let pin = by_address.entry(ptr).or_default();
        if pin.is_given_back {
            return Err(AllocError::AlreadyGivenBack { ptr });
        }
        pin.exports += 1;
        self.blocks.store(by_address.len(), Ordering::Relaxed);
        Ok(())
    }

    /// One export less. Says whether the block is to be given back now.
    #[must_use]
    pub(crate) fn unpin(&self, ptr: DevicePtr) -> bool {
        let mut by_address = self.by_address.lock();
        let Some(pin) = by_address.get_mut(&ptr) else { return false };
        pin.exports = pin.exports.saturating_sub(1);
        let is_due = pin.exports == 0 && pin.is_given_back;
        if pin.exports == 0 {
            by_address.remove(&ptr);
            self.blocks.store(by_address.len(), Ordering::Relaxed);
        }
        is_due
    }

    /// Puts the give-back of an exported block off. Nothing where it is not exported.
    pub(crate) fn put_off(&self, ptr: DevicePtr) -> Option<Result<(), AllocError>> {
        if self.is_empty() {
            return None;
        }
        let mut by_address = self.by_address.lock();
        let pin = by_address.get_mut(&ptr)?;
        if std::mem::replace(&mut pin.is_given_back, true) {
            return Some(Err(AllocError::AlreadyGivenBack { ptr }));
        }
        Some(Ok(()))
    }

    /// Refuses where one of the blocks is exported.
    pub(crate) fn check_none(&self, ptrs: &[DevicePtr]) -> Result<(), AllocError> {
        if self.is_empty() {
            return Ok(());
        }
        let by_address = self.by_address.lock();
        match ptrs.iter().find(|ptr| by_address.contains_key(ptr)) {
            Some(ptr) => Err(AllocError::Exported { ptr: *ptr }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: DevicePtr = DevicePtr::new(0x1000);

    #[test]
    fn a_give_back_is_due_when_the_last_export_ends() {
        let pins = Pins::default();
        assert_eq!(pins.put_off(BLOCK), None);
        pins.pin(BLOCK).unwrap();
        pins.pin(BLOCK).unwrap();
        assert_eq!(pins.put_off(BLOCK), Some(Ok(())));
        assert_eq!(pins.put_off(BLOCK), Some(Err(AllocError::AlreadyGivenBack { ptr: BLOCK })));
        assert!(pins.pin(BLOCK).is_err(), "what was given back is not exported again");
        assert!(!pins.unpin(BLOCK));
        assert!(pins.unpin(BLOCK));
        assert!(pins.is_empty());
    }

    #[test]
    fn an_export_that_ends_first_leaves_the_block_alone() {
        let pins = Pins::default();
        pins.pin(BLOCK).unwrap();
        assert_eq!(pins.check_none(&[BLOCK]), Err(AllocError::Exported { ptr: BLOCK }));
        assert!(!pins.unpin(BLOCK));
        assert_eq!(pins.check_none(&[BLOCK]), Ok(()));
    }
}
