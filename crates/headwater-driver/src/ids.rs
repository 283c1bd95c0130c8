//! Names of things a driver knows: plain values, cheap to copy, meaningless without their driver.
//!
//! None of them owns anything. A value that outlives its object is not dangerous: backends answer a stale id with
//! [`ErrorClass::InvalidHandle`](crate::ErrorClass::InvalidHandle).

use std::fmt;

/// A device by its ordinal, as `CUDA_VISIBLE_DEVICES` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// An address in the unified virtual address space of all devices. Zero is no address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The address that is none: what a request of zero bytes gets.
    pub const NULL: Self = Self(0);

    /// The address `raw`.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The address as a number.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whether this is [`DevicePtr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on, or `None` beyond the end of the address space.
    ///
    /// ```
    /// use headwater_driver::DevicePtr;
    /// assert_eq!(DevicePtr::new(512).checked_add(8), Some(DevicePtr::new(520)));
    /// assert_eq!(DevicePtr::new(u64::MAX).checked_add(1), None);
    /// ```
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `alignment_bytes` (a power of two).
    pub const fn is_aligned_to(self, alignment_bytes: u64) -> bool {
        self.0 & (alignment_bytes - 1) == 0
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A stream of a device: an order in which work runs.
///
/// The raw value is CUDA's `CUstream`, so that streams made by somebody else (PyTorch, CuPy) can be named; before
/// such a stream is used it is adopted, see [`Streams::stream_adopt`](crate::Streams::stream_adopt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream {
    device: DeviceId,
    raw: u64,
}

impl Stream {
    /// `CU_STREAM_LEGACY`.
    const LEGACY: u64 = 1;
    /// `CU_STREAM_PER_THREAD`.
    const PER_THREAD: u64 = 2;

    /// The device's default stream, ordered against all of its blocking streams.
    pub const fn legacy_default(device: DeviceId) -> Self {
        Self { device, raw: Self::LEGACY }
    }

    /// The calling thread's own default stream: the same value names another stream in every thread.
    pub const fn per_thread_default(device: DeviceId) -> Self {
        Self { device, raw: Self::PER_THREAD }
    }

    /// The stream with CUDA's raw value. Zero (the null stream) is the legacy default stream, so that one stream
    /// never has two names.
    pub const fn from_raw(device: DeviceId, raw: u64) -> Self {
        Self { device, raw: if raw == 0 { Self::LEGACY } else { raw } }
    }

    /// The device the stream belongs to.
    pub const fn device(self) -> DeviceId {
        self.device
    }

    /// CUDA's value for the stream.
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// Whether this is the device's legacy default stream.
    pub const fn is_legacy_default(self) -> bool {
        self.raw == Self::LEGACY
    }

    /// Whether this names the calling thread's default stream.
    pub const fn is_per_thread_default(self) -> bool {
        self.raw == Self::PER_THREAD
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.raw {
            Self::LEGACY => write!(f, "the default stream of {}", self.device),
            Self::PER_THREAD => write!(f, "the per-thread default stream of {}", self.device),
            raw => write!(f, "stream {raw:#x} of {}", self.device),
        }
    }
}

macro_rules! raw_ids {
    ($($(#[$doc:meta])* $name:ident, $noun:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            device: DeviceId,
            raw: u64,
        }

        impl $name {
            /// The value a backend gives out: its device and the driver's own number for it.
            pub const fn from_raw(device: DeviceId, raw: u64) -> Self {
                Self { device, raw }
            }

            /// The device it belongs to.
            pub const fn device(self) -> DeviceId {
                self.device
            }

            /// The driver's own number for it.
            pub const fn raw(self) -> u64 {
                self.raw
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($noun, " {:#x} of {}"), self.raw, self.device)
            }
        }
    )*};
}

raw_ids! {
    /// An event: a point in a stream that hosts and other streams can wait for.
    Event, "event";
    /// One piece of physical device memory (`cuMemCreate`), mapped nowhere, once or several times.
    Handle, "handle";
    /// A captured graph that cannot run yet.
    Graph, "graph";
    /// An instantiated graph that can be launched.
    GraphExec, "executable graph";
    /// A loaded module of device code.
    Module, "module";
    /// A kernel of a module.
    Kernel, "kernel";
}

/// Tells one capture from every other of the process, as `cuStreamGetCaptureInfo` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_null_stream_and_the_legacy_stream_are_one() {
        let device = DeviceId(1);
        assert_eq!(Stream::from_raw(device, 0), Stream::legacy_default(device));
        assert_ne!(Stream::from_raw(DeviceId(0), 0), Stream::legacy_default(device));
    }

    #[test]
    fn ids_say_what_they_are() {
        let device = DeviceId(0);
        assert_eq!(Event::from_raw(device, 16).to_string(), "event 0x10 of device 0");
        assert_eq!(
            Stream::per_thread_default(device).to_string(),
            "the per-thread default stream of device 0"
        );
    }
}
