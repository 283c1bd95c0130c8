//! Choosing a device: the real one where there is one, the simulated one otherwise, and saying which and why.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headwater_cuda::{CudaDriver, Unavailable};
use headwater_driver::{DeviceId, Driver};
use headwater_sim::SimDriver;

/// Which device a program asks for.
///
/// ```
/// use headwater::DeviceChoice;
/// assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(1)));
/// assert!("tpu".parse::<DeviceChoice>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// CUDA device 0 where CUDA works, the simulated device otherwise.
    #[default]
    Auto,
    /// The simulated device.
    Sim,
    /// The CUDA device with this ordinal, or an error.
    Cuda(u32),
}

/// A device choice that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`: use auto, sim, cuda or cuda:N")]
pub struct UnknownDevice(String);

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "sim" => Ok(Self::Sim),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
                ordinal.map(Self::Cuda).ok_or_else(|| UnknownDevice(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Sim => f.write_str("sim"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A device that was chosen and opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The backend it belongs to.
    pub driver: Arc<dyn Driver>,
    /// The device itself.
    pub device: DeviceId,
    /// Why it is this one, in one sentence.
    pub why: String,
    /// The simulated machine behind `driver`, where it is one: it tells virtual time and hazards.
    pub sim: Option<Arc<SimDriver>>,
}

/// A device that cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// CUDA does not work here. The reason is part of the message, so it is not told again as a source.
    #[error("CUDA is not available: {reason}")]
    Cuda {
        /// What is missing.
        reason: Unavailable,
    },
    /// CUDA works, but has no device with this ordinal.
    #[error("there is no device cuda:{asked}: CUDA shows {present} device(s), see CUDA_VISIBLE_DEVICES")]
    NoSuchDevice {
        /// The ordinal asked for.
        asked: u32,
        /// How many devices there are.
        present: u32,
    },
}

/// Opens the chosen device.
///
/// ```
/// let opened = headwater::open(headwater::DeviceChoice::Sim)?;
/// assert_eq!(opened.driver.backend(), "sim");
/// # Ok::<(), headwater::OpenError>(())
/// ```
///
/// # Errors
/// Where CUDA was asked for by name and does not work here. `Auto` and `Sim` always open.
pub fn open(choice: DeviceChoice) -> Result<Opened, OpenError> {
    match choice {
        DeviceChoice::Sim => Ok(simulated("the simulated device was asked for".to_owned())),
        DeviceChoice::Cuda(ordinal) => cuda(ordinal, format!("cuda:{ordinal} was asked for")),
        DeviceChoice::Auto => match cuda(0, "auto: CUDA works here".to_owned()) {
            Ok(opened) => Ok(opened),
            Err(error) => Ok(simulated(format!("auto: {error}"))),
        },
    }
}

fn simulated(why: String) -> Opened {
    let sim = SimDriver::new();
    Opened { driver: sim.clone(), device: DeviceId(0), why, sim: Some(sim) }
}

fn cuda(ordinal: u32, why: String) -> Result<Opened, OpenError> {
    let driver: Arc<dyn Driver> = CudaDriver::open().map_err(|reason| OpenError::Cuda { reason })?;
    let present = driver.device_count();
    if ordinal >= present {
        return Err(OpenError::NoSuchDevice { asked: ordinal, present });
    }
    Ok(Opened { driver, device: DeviceId(ordinal), why, sim: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_back_as_they_are_written() {
        for choice in [DeviceChoice::Auto, DeviceChoice::Sim, DeviceChoice::Cuda(0), DeviceChoice::Cuda(7)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn what_is_no_device_is_named_in_the_error() {
        for text in ["", "cuda:", "cuda:-1", "cuda:x", "CUDA", "sim:0"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
