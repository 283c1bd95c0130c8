//! The calls of the contract by name: one vocabulary for errors, counts, the cost model and fault injection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! calls {
    ($($variant:ident $name:literal,)*) => {
        /// One call of the contract, named after the CUDA function behind it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Call {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Call {
            /// Every call, in the order of the contract.
            pub const ALL: &'static [Call] = &[$(Call::$variant,)*];

            /// The CUDA driver's name for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Call::$variant => $name,)*
                }
            }
        }
    };
}

calls! {
    Init "cuInit",
    DeviceProperties "cuDeviceGetAttribute",
    MemoryInfo "cuMemGetInfo",
    PeerAccessQuery "cuDeviceCanAccessPeer",
    PeerAccessEnable "cuCtxEnablePeerAccess",
    MemAlloc "cuMemAlloc",
    MemFree "cuMemFree",
    Granularity "cuMemGetAllocationGranularity",
    AddressReserve "cuMemAddressReserve",
    AddressFree "cuMemAddressFree",
    HandleCreate "cuMemCreate",
    HandleRelease "cuMemRelease",
    HandleMap "cuMemMap",
    HandleUnmap "cuMemUnmap",
    AccessSet "cuMemSetAccess",
    HandleExport "cuMemExportToShareableHandle",
    HandleImport "cuMemImportFromShareableHandle",
    HostAlloc "cuMemHostAlloc",
    HostFree "cuMemFreeHost",
    HostRegister "cuMemHostRegister",
    HostUnregister "cuMemHostUnregister",
    StreamCreate "cuStreamCreateWithPriority",
    StreamDestroy "cuStreamDestroy",
    StreamAdopt "cuStreamGetId",
    StreamQuery "cuStreamQuery",
    StreamSynchronize "cuStreamSynchronize",
    StreamWaitEvent "cuStreamWaitEvent",
    EventCreate "cuEventCreate",
    EventDestroy "cuEventDestroy",
    EventRecord "cuEventRecord",
    EventQuery "cuEventQuery",
    EventSynchronize "cuEventSynchronize",
    EventElapsed "cuEventElapsedTime",
    CopyToDevice "cuMemcpyHtoDAsync",
    CopyToHost "cuMemcpyDtoHAsync",
    CopyOnDevice "cuMemcpyDtoDAsync",
    CopyPeer "cuMemcpyPeerAsync",
    FillBytes "cuMemsetD8Async",
    FillWords "cuMemsetD32Async",
    CaptureBegin "cuStreamBeginCapture",
    CaptureStatus "cuStreamGetCaptureInfo",
    CaptureEnd "cuStreamEndCapture",
    CaptureModeExchange "cuThreadExchangeStreamCaptureMode",
    CaptureOrder "cuGraphNodeGetDependencies",
    GraphInstantiate "cuGraphInstantiate",
    GraphLaunch "cuGraphLaunch",
    GraphDestroy "cuGraphDestroy",
    GraphExecDestroy "cuGraphExecDestroy",
    ModuleLoad "cuModuleLoadData",
    ModuleUnload "cuModuleUnload",
    KernelGet "cuModuleGetFunction",
    KernelLaunch "cuLaunchKernel",
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each call was made, failed calls included. A backend owns one and counts as it goes.
#[derive(Debug)]
pub struct CallCounters([AtomicU64; Call::ALL.len()]);

impl Default for CallCounters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Call::ALL.len()])
    }
}

impl CallCounters {
    /// Notes one call.
    pub fn note(&self, call: Call) {
        if let Some(counter) = self.0.get(call as usize) {
            // Relaxed: a count orders nothing.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts as they stand.
    pub fn read(&self) -> CallCounts {
        let counts =
            Call::ALL.iter().zip(&self.0).map(|(call, count)| (*call, count.load(Ordering::Relaxed)));
        CallCounts(counts.filter(|(_, count)| *count > 0).collect())
    }
}

/// How often each call had been made at one moment; calls never made are absent.
///
/// ```
/// use headwater_driver::{Call, CallCounters};
/// let counters = CallCounters::default();
/// let before = counters.read();
/// counters.note(Call::MemAlloc);
/// let since = counters.read().since(&before);
/// assert_eq!(since.of(Call::MemAlloc), 1);
/// assert_eq!(since.total(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts(BTreeMap<Call, u64>);

impl CallCounts {
    /// How often `call` was made.
    pub fn of(&self, call: Call) -> u64 {
        self.0.get(&call).copied().unwrap_or(0)
    }

    /// How many calls were made in all.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The calls made at least once, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        self.0.iter().map(|(call, count)| (*call, *count))
    }

    /// What was counted after `earlier` was read from the same counters.
    pub fn since(&self, earlier: &CallCounts) -> CallCounts {
        let counts = self.iter().map(|(call, count)| (call, count.saturating_sub(earlier.of(call))));
        CallCounts(counts.filter(|(_, count)| *count > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_have_their_own_name_and_place() {
        for (place, call) in Call::ALL.iter().enumerate() {
            assert_eq!(*call as usize, place);
        }
        let names: std::collections::BTreeSet<_> = Call::ALL.iter().map(|call| call.name()).collect();
        assert_eq!(names.len(), Call::ALL.len());
    }
}
