//! How long calls took: by the clock on a real device, by the cost model on the simulated one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Call;

/// Host time spent in each call. A backend owns one and adds to it as it goes.
#[derive(Debug)]
pub struct CallClocks([AtomicU64; Call::ALL.len()]);

impl Default for CallClocks {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Call::ALL.len()])
    }
}

impl CallClocks {
    /// One `call` took so long.
    pub fn add(&self, call: Call, ns: u64) {
        if let Some(clock) = self.0.get(call as usize) {
            // Relaxed: a sum orders nothing.
            clock.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// The times as they stand.
    pub fn read(&self) -> CallTimes {
        let times = Call::ALL.iter().zip(&self.0).map(|(call, ns)| (*call, ns.load(Ordering::Relaxed)));
        CallTimes(times.filter(|(_, ns)| *ns > 0).collect())
    }
}

/// Host time spent in each call up to one moment; calls that took none are absent.
///
/// ```
/// use headwater_driver::{Call, CallClocks};
/// let clocks = CallClocks::default();
/// clocks.add(Call::HandleCreate, 15_000);
/// let before = clocks.read();
/// clocks.add(Call::HandleMap, 1_500);
/// assert_eq!(clocks.read().since(&before).iter().collect::<Vec<_>>(), [(Call::HandleMap, 1_500)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTimes(BTreeMap<Call, u64>);

impl CallTimes {
    /// Nanoseconds spent in `call`.
    pub fn of(&self, call: Call) -> u64 {
        self.0.get(&call).copied().unwrap_or(0)
    }

    /// Nanoseconds spent in all calls.
    pub fn total_ns(&self) -> u64 {
        self.0.values().sum()
    }

    /// The calls that took time, and how many nanoseconds, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        self.0.iter().map(|(call, ns)| (*call, *ns))
    }

    /// What was spent after `earlier` was read from the same clocks.
    pub fn since(&self, earlier: &CallTimes) -> CallTimes {
        let times = self.iter().map(|(call, ns)| (call, ns.saturating_sub(earlier.of(call))));
        CallTimes(times.filter(|(_, ns)| *ns > 0).collect())
    }
}
