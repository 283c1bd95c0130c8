//! The stress program finds nothing on our allocators, and finds what is wrong with one that reuses memory too early.

use std::sync::Arc;

use headwater::config::Config;
use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, Allocator, BlockFacts, CachingAllocator, Policy, Request};
use headwater_conformance::stress::{StressOptions, run};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use headwater_sim::SimDriver;

fn finds_nothing(policy: Policy) {
    for seed in 1..=3 {
        let sim = SimDriver::new();
        let options = StressOptions { steps: 600, seed, ..StressOptions::default() };
        let allocator = policy.build(sim.clone(), DeviceId(0), None).expect("the policy builds");
        let report = run(&allocator, &options).expect("the program runs");
        drop(allocator);
        assert_eq!(report.words_wrong, 0, "seed {seed}");
        assert_eq!(report.requests, 600);
        assert!(report.shared > 100, "seed {seed}: {} blocks were shared", report.shared);
        assert_eq!(sim.hazards(), [], "seed {seed}");
        assert_eq!(sim.leaks(), [], "seed {seed}");
    }
}

#[test]
fn direct_reuses_nothing_too_early() {
    finds_nothing(Policy::Direct);
}

#[test]
fn binned_reuses_nothing_too_early() {
    finds_nothing(Policy::Binned);
}

#[test]
fn classic_reuses_nothing_too_early() {
    finds_nothing(Policy::Classic);
}

#[test]
fn paged_reuses_nothing_too_early() {
    finds_nothing(Policy::Paged);
}

/// An allocator that forgets who else uses a block.
#[derive(Debug)]
struct Forgetful(Arc<CachingAllocator>);

impl Allocator for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }
    fn driver(&self) -> &Arc<dyn Driver> {
        self.0.driver()
    }
    fn device(&self) -> DeviceId {
        self.0.device()
    }
    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        self.0.allocate(request)
    }
    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise is the inner allocator's.
        unsafe { self.0.give_back(ptr) }
    }
    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise is the inner allocator's.
        unsafe { self.0.give_back_or_owe(ptr) }
    }
    fn record_stream(&self, _: DevicePtr, _: Stream) -> Result<(), AllocError> {
        Ok(())
    }
    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.0.empty_cache()
    }
    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        self.0.block_at(ptr)
    }
    fn stats(&self) -> DeviceStats {
        self.0.stats()
    }
    fn reset_peaks(&self) {
        self.0.reset_peaks();
    }
    fn reset_totals(&self) {
        self.0.reset_totals();
    }
    fn reconcile(&self) -> Result<(), Differences> {
        self.0.reconcile()
    }
}

#[test]
fn premature_reuse_shows_as_wrong_words() {
    let sim = SimDriver::new();
    let inner =
        CachingAllocator::new(sim.clone(), DeviceId(0), Config::parse("backing:classic").unwrap()).unwrap();
    let forgetful: Arc<dyn Allocator> = Arc::new(Forgetful(inner));
    let report = run(&forgetful, &StressOptions { steps: 600, ..StressOptions::default() }).unwrap();
    assert!(report.words_wrong > 0, "an allocator that ignores record_stream went unnoticed");
    assert!(!sim.hazards().is_empty());
}
