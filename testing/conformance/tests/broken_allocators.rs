//! The suite finds out allocators that are wrong in the ways that allocators are.
//!
//! Each test takes [`Direct`], which passes, breaks one rule, and names the case that must notice.

use std::fmt::Debug;
use std::sync::Arc;

use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, Allocator, BlockFacts, Direct, Request};
use headwater_conformance::allocator::{self, AllocatorGround};
use headwater_conformance::{Ground, Outcome};
use headwater_driver::{DeviceId, DevicePtr, Driver, ErrorClass, Stream};
use headwater_sim::SimDriver;
use parking_lot::Mutex;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// What is given back is handed out at once, whatever stream still uses it.
    ReusesTooEarly,
    /// A limit is not looked at.
    IgnoresTheLimit,
    /// An alignment is not looked at.
    IgnoresAlignment,
    /// A second give-back is taken.
    TakesBackTwice,
    /// Give-backs are forgotten.
    Leaks,
    /// The driver is called without regard to captures.
    IgnoresCaptures,
}

#[derive(Debug)]
struct Wrong {
    inner: Direct,
    broken: Broken,
    cache: Mutex<Vec<(DevicePtr, u64)>>,
}

impl Allocator for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.inner.driver()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        let aligned = if self.broken == Broken::IgnoresAlignment { 256 } else { request.alignment_bytes };
        let mut cache = self.cache.lock();
        if let Some(place) = cache.iter().position(|(_, bytes)| *bytes == request.bytes) {
            return Ok(cache.swap_remove(place).0);
        }
        drop(cache);
        if self.broken == Broken::IgnoresCaptures {
            let scratch = self.driver().mem_alloc(self.device(), 512)?;
            self.driver().mem_free(self.device(), scratch)?;
        }
        request.check(self.device())?;
        self.inner.allocate(request.aligned_to(aligned))
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.broken {
            Broken::Leaks => Ok(()),
            Broken::ReusesTooEarly => {
                let facts = self.inner.block_at(ptr).ok_or(AllocError::ForeignPointer { ptr })?;
                self.cache.lock().push((ptr, facts.requested_bytes));
                Ok(())
            }
            // SAFETY: the caller's promise, passed on.
            _ => match unsafe { self.inner.give_back(ptr) } {
                Err(AllocError::AlreadyGivenBack { .. }) if self.broken == Broken::TakesBackTwice => Ok(()),
                answer => answer,
            },
        }
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.give_back(ptr) }
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        self.inner.record_stream(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.inner.empty_cache()
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        self.inner.block_at(ptr)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn reset_peaks(&self) {
        self.inner.reset_peaks();
    }

    fn reset_totals(&self) {
        self.inner.reset_totals();
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.inner.reconcile()
    }
}

/// Runs one case on a broken allocator, and returns what it says.
fn what_is_noticed(broken: Broken, name: &str) -> Option<String> {
    let sim = SimDriver::builder().devices(2).build();
    let ground = Ground::new(sim.clone(), sim.second_view(), DeviceId(0));
    let make: &allocator::Make = &move |driver, device, limit_bytes| {
        let inner = match limit_bytes {
            Some(limit_bytes) if broken != Broken::IgnoresTheLimit => {
                Direct::with_limit(driver, device, limit_bytes)?
            }
            _ => Direct::new(driver, device)?,
        };
        Ok(Arc::new(Wrong { inner, broken, cache: Mutex::default() }))
    };
    let case = allocator::cases().iter().find(|case| case.name == name)?;
    match case.run(&AllocatorGround { ground: &ground, make }) {
        Outcome::Failed(failure) => Some(failure.message),
        _ => None,
    }
}

#[test]
fn memory_handed_out_too_early_is_noticed() {
    for case in
        ["streams::a_recorded_stream_is_waited_for", "streams::memory_of_one_stream_is_not_early_in_another"]
    {
        let noticed = what_is_noticed(Broken::ReusesTooEarly, case).unwrap_or_default();
        assert!(noticed.contains("0x11 at byte 0, got 0xee"), "{case}: {noticed:?}");
    }
}

#[test]
fn a_limit_that_is_passed_is_noticed() {
    for case in
        ["limits::a_request_beyond_the_limit_names_both", "limits::threads_together_stay_within_the_limit"]
    {
        let noticed = what_is_noticed(Broken::IgnoresTheLimit, case);
        assert!(noticed.is_some(), "{case}");
    }
}

#[test]
fn an_alignment_that_is_not_kept_is_noticed() {
    let noticed = what_is_noticed(Broken::IgnoresAlignment, "blocks::every_alignment_is_honoured");
    assert!(noticed.is_some_and(|words| words.contains("a multiple of what was asked for")));
}

#[test]
fn a_second_give_back_that_is_taken_is_noticed() {
    for case in [
        "bad_input::a_second_give_back_is_refused",
        "threads::of_two_threads_that_give_back_the_same_block_one_is_refused",
    ] {
        assert!(what_is_noticed(Broken::TakesBackTwice, case).is_some(), "{case}");
    }
}

#[test]
fn memory_that_does_not_go_back_is_noticed() {
    for case in
        ["accounts::an_emptied_cache_is_with_the_driver_again", "blocks::given_back_memory_can_be_had_again"]
    {
        assert!(what_is_noticed(Broken::Leaks, case).is_some(), "{case}");
    }
}

#[test]
fn a_capture_that_is_lost_is_noticed() {
    for case in [
        "capture::memory_comes_and_goes_in_the_capturing_thread",
        "capture::memory_comes_and_goes_in_another_thread",
    ] {
        let noticed = what_is_noticed(Broken::IgnoresCaptures, case).unwrap_or_default();
        let illegal = ErrorClass::IllegalInCapture.describe();
        assert!(noticed.contains(illegal), "{case}: {noticed:?}");
    }
}
