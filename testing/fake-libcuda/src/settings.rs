//! What the environment says about the machine to pretend.

use std::str::FromStr;

/// The machine to pretend.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How many devices there are. None at all makes `cuInit` fail, as it does without a GPU.
    pub(crate) devices: u32,
    /// Memory of each device.
    pub(crate) memory_bytes: u64,
    /// Whether the devices have virtual memory management.
    pub(crate) virtual_memory: bool,
    /// Whether devices can be peers of each other.
    pub(crate) peer_access: bool,
}

impl Settings {
    /// Reads the environment, with the defaults of `lib.rs`.
    pub(crate) fn from_environment() -> Self {
        Self {
            devices: number("FAKE_CUDA_DEVICES", 2),
            memory_bytes: number("FAKE_CUDA_MEMORY_BYTES", 8 << 30),
            virtual_memory: number("FAKE_CUDA_NO_VMM", 0) == 0,
            peer_access: number("FAKE_CUDA_NO_PEER", 0) == 0,
        }
    }
}

/// The driver's version, `1000 * major + 10 * minor`. Asked for before `cuInit` too, so it is read by itself.
pub(crate) fn driver_version() -> i32 {
    number("FAKE_CUDA_DRIVER_VERSION", 13_000)
}

/// What `cuInit` is told to return, where not success.
pub(crate) fn init_result() -> u32 {
    number("FAKE_CUDA_INIT_RESULT", 0)
}

/// A number from the environment. One that cannot be read is reported and ignored: there is no result code for it.
fn number<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else { return default };
    text.trim().parse().unwrap_or_else(|_| {
        eprintln!("fake libcuda: {name}={text:?} is not a number in range; ignored");
        default
    })
}
