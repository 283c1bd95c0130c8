//! The process's allocators: one driver, and memory for each of its devices, made when it is first asked for.

use std::sync::{Arc, OnceLock};

use headwater::config::{Config, ConfigError};
use headwater::{AllocError, DeviceChoice, OpenError, Opened};
use headwater_driver::{DeviceId, Driver};
use headwater_sim::SimDriver;
use parking_lot::{Mutex, MutexGuard};

use super::device_memory::DeviceMemory;

/// How the process's allocators are made.
#[derive(Clone, Debug, Default)]
pub struct ProcessOptions {
    /// Which device is the default one, and so which backend serves all of them.
    pub device: DeviceChoice,
    /// The settings; `None` reads the environment.
    pub config: Option<Config>,
}

/// The process's allocators could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The device cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The environment's settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device cannot be used.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// There is no such device.
    #[error("there is no device {asked}: the process has {present}")]
    NoSuchDevice {
        /// The ordinal asked for.
        asked: i64,
        /// How many there are.
        present: usize,
    },
    /// They were made before, on another backend.
    #[error(
        "the process's allocators were already made on {made}, and {wanted} is wanted now: ask for it first"
    )]
    MadeAlready {
        /// The backend in use.
        made: &'static str,
        /// The backend asked for.
        wanted: &'static str,
    },
}

/// Called with the memory of every device, those that are used already and those to come.
pub type Visitor = dyn Fn(&DeviceMemory) + Send + Sync;

/// The driver and the devices' memory. There is one, and it is never dropped: at a process's end the driver is gone before
/// the last tensor is.
#[derive(Debug)]
pub struct Process {
    opened: Opened,
    config: Config,
    devices: Vec<OnceLock<DeviceMemory>>,
    /// Held while a device's memory is made.
    making: Mutex<()>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
/// Held while the process's allocators are made; how they are to be made, where somebody has said so.
static PREPARED: Mutex<Option<ProcessOptions>> = Mutex::new(None);
/// What is to be done with each device's memory, where somebody has said so.
static VISITOR: Mutex<Option<Arc<Visitor>>> = Mutex::new(None);

/// The device of choice. The simulated one shows its memory to the host: Python's arrays look at it in place.
fn open(choice: DeviceChoice) -> Result<Opened, OpenError> {
    let simulated = |why| {
        let sim = SimDriver::builder().host_visible(true).build();
        Opened { driver: sim.clone(), device: DeviceId(0), why, sim: Some(sim) }
    };
    match choice {
        DeviceChoice::Cuda(_) => headwater::open(choice),
        DeviceChoice::Sim => Ok(simulated("the simulated device was asked for".to_owned())),
        DeviceChoice::Auto => Ok(headwater::open(DeviceChoice::Cuda(0))
            .unwrap_or_else(|error| simulated(format!("auto: {error}")))),
    }
}

impl Process {
    /// The process's allocators, where they were made.
    #[inline]
    pub fn get() -> Option<&'static Process> {
        PROCESS.get()
    }

    /// The process's allocators, made now by `options` if they were not before.
    ///
    /// # Errors
    /// Where they cannot be made, or were made on another backend than the one that `options` names.
    pub fn get_or_make(options: &ProcessOptions) -> Result<&'static Process, ProcessError> {
        if let Some(made) = PROCESS.get() {
            return made.serves(options.device);
        }
        let turn = PREPARED.lock();
        if let Some(made) = PROCESS.get() {
            return made.serves(options.device);
        }
        Self::make_process(options, turn)
    }

    /// Says how the process's allocators are to be made when they are first needed. Nothing is opened yet: a process that has
    /// opened CUDA cannot fork any more, and PyTorch's programs fork before they use it.
    ///
    /// # Errors
    /// [`ProcessError::MadeAlready`] where they were made on another backend.
    pub fn prepare(options: ProcessOptions) -> Result<(), ProcessError> {
        let mut prepared = PREPARED.lock();
        if let Some(made) = PROCESS.get() {
            return made.serves(options.device).map(|_| ());
        }
        *prepared = Some(options);
        Ok(())
    }

    /// The process's allocators, made now as they were [prepared](Self::prepare), or by `otherwise`.
    ///
    /// # Errors
    /// As [`get_or_make`](Self::get_or_make).
    pub fn get_or_make_prepared(
        otherwise: impl FnOnce() -> Result<ProcessOptions, ProcessError>,
    ) -> Result<&'static Process, ProcessError> {
        if let Some(made) = PROCESS.get() {
            return Ok(made);
        }
        let turn = PREPARED.lock();
        if let Some(made) = PROCESS.get() {
            return Ok(made);
        }
        let options = match &*turn {
            Some(options) => options.clone(),
            None => otherwise()?,
        };
        Self::make_process(&options, turn)
    }

    fn make_process(
        options: &ProcessOptions,
        _turn: MutexGuard<'_, Option<ProcessOptions>>,
    ) -> Result<&'static Process, ProcessError> {
        let config = match &options.config {
            Some(config) => config.clone(),
            None => Config::from_env()?,
        };
        let opened = open(options.device)?;
        let count = opened.driver.device_count() as usize;
        let devices = (0..count).map(|_| OnceLock::new()).collect();
        Ok(PROCESS.get_or_init(|| Process { opened, config, devices, making: Mutex::new(()) }))
    }

    fn serves(&'static self, choice: DeviceChoice) -> Result<&'static Process, ProcessError> {
        let wanted = match choice {
            DeviceChoice::Auto => return Ok(self),
            DeviceChoice::Sim => "sim",
            DeviceChoice::Cuda(_) => "cuda",
        };
        let made = self.opened.driver.backend();
        if made == wanted { Ok(self) } else { Err(ProcessError::MadeAlready { made, wanted }) }
    }

    /// The backend.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.opened.driver
    }

    /// The device that was opened, how and why.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The settings of its allocators.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many devices there are.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// The memory of a device where somebody has used it.
    #[inline]
    pub fn used(&self, ordinal: usize) -> Option<&DeviceMemory> {
        self.devices.get(ordinal)?.get()
    }

    /// The memory of all devices that somebody has used.
    pub fn all_used(&self) -> impl Iterator<Item = &DeviceMemory> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// The memory of a device.
    ///
    /// # Errors
    /// Where there is no such device, or it cannot be used.
    #[inline]
    pub fn memory(&self, ordinal: i64) -> Result<&DeviceMemory, ProcessError> {
        let place = usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal));
        match place {
            Some(place) => match place.get() {
                Some(memory) => Ok(memory),
                None => self.make(ordinal, place),
            },
            None => Err(ProcessError::NoSuchDevice { asked: ordinal, present: self.devices.len() }),
        }
    }

    #[cold]
    fn make<'p>(
        &'p self,
        ordinal: i64,
        place: &'p OnceLock<DeviceMemory>,
    ) -> Result<&'p DeviceMemory, ProcessError> {
        let _turn = self.making.lock();
        if let Some(memory) = place.get() {
            return Ok(memory);
        }
        let device = DeviceId(u32::try_from(ordinal).unwrap_or(u32::MAX));
        let memory = DeviceMemory::new(Arc::clone(self.driver()), device, &self.config)?;
        if let Some(visitor) = VISITOR.lock().clone() {
            visitor(&memory);
        }
        Ok(place.get_or_init(|| memory))
    }

    /// Calls `visitor` with the memory of every device: those in use now, and others when they are first used. It replaces an
    /// earlier one; `None` is none.
    pub fn visit_devices(visitor: Option<Arc<Visitor>>) {
        *VISITOR.lock() = visitor.clone();
        let Some(process) = Process::get() else { return };
        // Held, so that no device is made between the two and visited by neither or both.
        let _turn = process.making.lock();
        if let Some(visitor) = visitor {
            process.all_used().for_each(|memory| visitor(memory));
        }
    }
}
