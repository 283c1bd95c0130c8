//! Why there is no CUDA here.

use headwater_driver::{DeviceId, DriverError};

/// Why [`CudaDriver::open`](crate::CudaDriver::open) could not: one line, with what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The driver's library is not on this machine, or cannot be loaded.
    #[error(
        "no CUDA driver library: tried {}: {reason}; install the NVIDIA driver, or name its libcuda in HEADWATER_LIBCUDA",
        tried.join(", ")
    )]
    LibraryMissing {
        /// The names and paths that were tried, in order.
        tried: Vec<String>,
        /// What the system's loader said to the first of them.
        reason: String,
    },
    /// The library lacks a call that every supported driver has.
    #[error(
        "the CUDA driver library has no {name}, which drivers have since CUDA {since}: it is no libcuda, or a broken one"
    )]
    SymbolMissing {
        /// The missing call.
        name: &'static str,
        /// The CUDA version that brought it.
        since: &'static str,
    },
    /// The driver is older than the oldest supported one.
    #[error(
        "the NVIDIA driver supports CUDA {}, and at least {} is needed: update the driver",
        version_words(*found), version_words(*needed)
    )]
    DriverTooOld {
        /// What the driver says it supports, as `cuDriverGetVersion` says it (12.4 is 12040).
        found: i32,
        /// The oldest version that will do.
        needed: i32,
    },
    /// There is a driver and no device for this process.
    #[error("the NVIDIA driver sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver refused to start.
    #[error("the NVIDIA driver did not start: {name} ({code}); {}", init_advice(*code))]
    Init {
        /// The driver's number for the reason.
        code: u32,
        /// The driver's name for the reason.
        name: String,
    },
    /// A device would not say what it is.
    #[error("{device} does not answer: {error}")]
    DeviceSilent {
        /// Which device.
        device: DeviceId,
        /// What it said instead.
        error: DriverError,
    },
}

/// `12040` as `12.4`.
pub(crate) fn version_words(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What helps against a failed `cuInit`. The codes are those seen in the field when driver, container and device do not
/// fit together.
fn init_advice(code: u32) -> &'static str {
    match code {
        3 => "CUDA does not work in a child after fork(): start the process anew (spawn)",
        34 => "this is the toolkit's stub library: take its directory off the library path",
        46 => "another process holds the device exclusively",
        802 => "the fabric manager is not running or not ready yet",
        803 => "kernel module and library have different versions: reboot after a driver update",
        804 => "a compatibility libcuda is on the library path and this device does not take it",
        999 => "the kernel module may be missing in this container: check nvidia-smi",
        _ => "check nvidia-smi",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_line_that_says_what_would_help() {
        let reasons = [
            (
                Unavailable::LibraryMissing {
                    tried: vec!["libcuda.so.1".into()],
                    reason: "not found".into(),
                },
                "HEADWATER_LIBCUDA",
            ),
            (Unavailable::SymbolMissing { name: "cuInit", since: "2.0" }, "cuInit"),
            (
                Unavailable::DriverTooOld { found: 10_020, needed: 11_000 },
                "supports CUDA 10.2, and at least 11.0",
            ),
            (Unavailable::NoDevice, "CUDA_VISIBLE_DEVICES"),
            (Unavailable::Init { code: 34, name: "CUDA_ERROR_STUB_LIBRARY".into() }, "stub library"),
        ];
        for (reason, expected) in reasons {
            let text = reason.to_string();
            assert!(text.contains(expected) && !text.contains('\n'), "{text}");
        }
    }
}
