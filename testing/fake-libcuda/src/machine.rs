//! The pretended machine: one for the process, from `cuInit` to `fake_cuda_reset`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::Devices;
use headwater_sim::SimDriver;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::abi::CUresult;
use crate::addresses::Addresses;
use crate::context::Contexts;
use crate::entry::Answer;
use crate::objects::{Objects, Registry};
use crate::settings::Settings;

/// The machine, once `cuInit` has succeeded.
static MACHINE: RwLock<Option<Arc<Machine>>> = RwLock::new(None);

/// Counts machines, so that what a thread remembers of an earlier one is known to be old.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The simulator, and what the C ABI needs to know beyond it.
pub(crate) struct Machine {
    pub(crate) sim: Arc<SimDriver>,
    pub(crate) settings: Settings,
    pub(crate) generation: u64,
    objects: Mutex<Objects>,
    addresses: Mutex<Addresses>,
    contexts: Mutex<Contexts>,
    undefined_uses: AtomicU64,
}

impl Machine {
    /// A machine as the settings say, on which nothing has happened yet.
    pub(crate) fn new(mut settings: Settings) -> Self {
        let sim = SimDriver::builder().devices(settings.devices).memory_bytes(settings.memory_bytes).build();
        // The simulator has an upper limit.
        settings.devices = sim.device_count();
        Self {
            sim,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed) + 1,
            objects: Mutex::new(Objects::new()),
            addresses: Mutex::new(Addresses::new()),
            contexts: Mutex::new(Contexts::new(settings.devices)),
            undefined_uses: AtomicU64::new(0),
            settings,
        }
    }

    /// The objects callers hold. Give the guard back before the simulator is called.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// The addresses in use, as [`objects`](Self::objects).
    pub(crate) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock()
    }

    /// The primary contexts, as [`objects`](Self::objects).
    pub(crate) fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock()
    }

    /// The live object that a caller names. Null is an ordinary error; any other value that names nothing is a
    /// destroyed object or garbage, which libcuda would follow: undefined behaviour, counted.
    pub(crate) fn live<T: Clone>(&self, registry: &Registry<T>, value: u64, error: CUresult) -> Answer<T> {
        match registry.get(value) {
            Some(object) => Ok(object.clone()),
            None if value == 0 => Err(error),
            None => Err(self.undefined(error)),
        }
    }

    /// Counts one use of what does not exist (any more), and returns the code to answer with.
    pub(crate) fn undefined(&self, code: CUresult) -> CUresult {
        self.undefined_uses.fetch_add(1, Ordering::Relaxed);
        code
    }

    /// How many there were.
    pub(crate) fn undefined_uses(&self) -> u64 {
        self.undefined_uses.load(Ordering::Relaxed)
    }

    /// What its owners have not given back.
    pub(crate) fn leaked(&self) -> u64 {
        let objects = self.objects().leaked();
        objects + self.addresses().leaked()
    }
}

/// The machine there is.
pub(crate) fn current() -> Option<Arc<Machine>> {
    MACHINE.read().clone()
}

/// Makes the machine, unless there is one.
pub(crate) fn initialise() -> Answer {
    let mut place = MACHINE.write();
    if place.is_none() {
        let settings = Settings::from_environment();
        if settings.devices == 0 {
            return Err(CUresult::NO_DEVICE);
        }
        *place = Some(Arc::new(Machine::new(settings)));
    }
    Ok(())
}

/// Forgets the machine and everything on it. Calls that are under way finish on the old one.
pub(crate) fn reset() {
    *MACHINE.write() = None;
}
