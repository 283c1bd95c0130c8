//! What calls and copies cost: the measured H200, as a table.
//!
//! Two kinds of time. *Host time* is what the calling thread spends in a driver call ([`CostModel::cost_ns`]); a replay
//! adds it up as modelled driver time. *Device time* is how long a copy or fill runs in its stream
//! ([`CostModel::copy_duration_ns`]).
//!
//! Every figure below says where it comes from: *measured* on one H200 with driver 580 and CUDA 13.0, or *assumed*
//! where there is no measurement. Measured are: reserve, create, map, set access, unmap, release, export, import; plain
//! alloc and free as a pair; pinned allocation; event create, record, query and destroy; stream wait; launch; and copies
//! over the bus. Everything else is assumed, also the host time of copies and fills and the speed of the device's own
//! memory. Where a range was measured, the model has about its middle. Handles cost here what private ones do; that
//! those for export cost more (docs/sharing.md) is not modelled.
//!
//! Measured points that rise with size are joined by straight lines, and the end pieces extended. Points that scatter
//! without a trend (`cuMemCreate`) are replaced by their least-squares line: a model that kept their bumps would reward
//! a policy for liking 20 MiB handles, which five points do not support.

use headwater_driver::Call;

const MIB: u64 = 1 << 20;

/// Host time of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// The same for every size.
    Fixed { ns: u64 },
    /// A base and a slope.
    Line { base_ns: u64, ns_per_mib: u64 },
    /// Points (bytes, ns), rising in both, at least two; straight lines between them and beyond both ends.
    Points(&'static [(u64, u64)]),
}

impl Cost {
    fn ns(self, size_bytes: u64) -> u64 {
        match self {
            Self::Fixed { ns } => ns,
            Self::Line { base_ns, ns_per_mib } => base_ns.saturating_add(scale(size_bytes, ns_per_mib, MIB)),
            Self::Points(points) => on_the_lines(points, size_bytes),
        }
    }
}

/// `amount * times / over` without overflow on the way; the largest number where the result has no room.
fn scale(amount: u64, times: u64, over: u64) -> u64 {
    u64::try_from(u128::from(amount) * u128::from(times) / u128::from(over.max(1))).unwrap_or(u64::MAX)
}

fn on_the_lines(points: &[(u64, u64)], size_bytes: u64) -> u64 {
    // The first piece that reaches as far as the size, or else the last one.
    let piece = points.windows(2).find(|piece| size_bytes <= piece[1].0).or_else(|| points.windows(2).last());
    let Some(&[(from_bytes, from_ns), (to_bytes, to_ns)]) = piece else { return 0 };
    let (rise_ns, run_bytes) = (to_ns - from_ns, to_bytes - from_bytes);
    if size_bytes >= from_bytes {
        from_ns.saturating_add(scale(size_bytes - from_bytes, rise_ns, run_bytes))
    } else {
        from_ns.saturating_sub(scale(from_bytes - size_bytes, rise_ns, run_bytes))
    }
}

/// `cuMemRelease`, measured.
const RELEASE: &[(u64, u64)] =
    &[(2 * MIB, 17_000), (20 * MIB, 32_000), (256 * MIB, 187_000), (512 * MIB, 308_000)];

/// `cuMemHostAlloc`, measured.
const PINNED_ALLOC: &[(u64, u64)] =
    &[(MIB, 1_600_000), (16 * MIB, 9_400_000), (256 * MIB, 148_000_000), (1024 * MIB, 406_000_000)];

/// Unpinning, assumed: half of pinning, because no page has to be found and cleared.
const UNPIN: &[(u64, u64)] =
    &[(MIB, 800_000), (16 * MIB, 4_700_000), (256 * MIB, 74_000_000), (1024 * MIB, 203_000_000)];

/// Assumed for short calls that were not measured: what measured short calls (events) cost.
const SHORT: Cost = Cost::Fixed { ns: 400 };

/// Host time of each call on the H200.
const fn h200(call: Call) -> Cost {
    match call {
        // Measured, 33 to 52 us. Giving addresses back is assumed to cost the same.
        Call::AddressReserve | Call::AddressFree => Cost::Fixed { ns: 42_000 },
        // Measured 15, 13, 24, 17, 25 us at 2, 20, 64, 256, 512 MiB; the line is off by 7 us at most.
        Call::HandleCreate => Cost::Line { base_ns: 16_100, ns_per_mib: 16 },
        Call::HandleRelease => Cost::Points(RELEASE),
        // Measured, any size, 1.3 to 1.8 us.
        Call::HandleMap => Cost::Fixed { ns: 1_500 },
        // Measured, any size, per handle also where one call covers several: 22 to 30 and 32 to 44 us.
        Call::HandleUnmap => Cost::Fixed { ns: 26_000 },
        Call::AccessSet => Cost::Fixed { ns: 38_000 },
        // Measured, any size: 604 to 824 us, and 38 us.
        Call::HandleExport => Cost::Fixed { ns: 600_000 },
        Call::HandleImport => Cost::Fixed { ns: 38_000 },
        // Only the pair was measured: 60.7, 62.7, 61.7, 72.4, 95.2 us at 512 B, 64 KiB, 1 MiB, 16 MiB, 64 MiB, which is
        // 61.4 us and 0.53 us/MiB. The fixed part is split evenly. The slope goes to the free: handles behave so, where
        // creating is flat and releasing rises by 0.58 us/MiB.
        Call::MemAlloc => Cost::Fixed { ns: 30_700 },
        Call::MemFree => Cost::Line { base_ns: 30_700, ns_per_mib: 530 },
        // Measured; registering is assumed to cost the same, since it pins as many pages.
        Call::HostAlloc | Call::HostRegister => Cost::Points(PINNED_ALLOC),
        Call::HostFree | Call::HostUnregister => Cost::Points(UNPIN),
        // Measured; record 0.25 to 0.5 us, stream wait 0.34 to 0.53 us.
        Call::EventCreate => Cost::Fixed { ns: 280 },
        Call::EventRecord => Cost::Fixed { ns: 370 },
        Call::EventQuery => Cost::Fixed { ns: 400 },
        Call::EventDestroy => Cost::Fixed { ns: 300 },
        Call::StreamWaitEvent => Cost::Fixed { ns: 430 },
        Call::KernelLaunch => Cost::Fixed { ns: 4_000 },
        // Assumed: putting other work into a stream costs what a launch costs.
        Call::CopyToDevice | Call::CopyToHost | Call::CopyOnDevice | Call::CopyPeer => {
            Cost::Fixed { ns: 4_000 }
        }
        Call::FillBytes | Call::FillWords | Call::GraphLaunch => Cost::Fixed { ns: 4_000 },
        // Assumed: the short calls. Those that wait cost this much besides the waiting, which the machine adds.
        Call::DeviceProperties | Call::PeerAccessQuery | Call::Granularity => SHORT,
        Call::StreamAdopt | Call::StreamQuery | Call::StreamSynchronize => SHORT,
        Call::EventSynchronize | Call::EventElapsed => SHORT,
        Call::CaptureBegin | Call::CaptureStatus | Call::CaptureEnd | Call::CaptureModeExchange => SHORT,
        Call::CaptureOrder => SHORT,
        Call::KernelGet => SHORT,
        // Assumed: asks the kernel-mode driver, as mapping does.
        Call::MemoryInfo => Cost::Fixed { ns: 1_500 },
        // Assumed, of the order of creating a handle.
        Call::StreamCreate | Call::StreamDestroy | Call::PeerAccessEnable => Cost::Fixed { ns: 15_000 },
        Call::GraphInstantiate | Call::GraphDestroy | Call::GraphExecDestroy => Cost::Fixed { ns: 15_000 },
        // Assumed: code is compiled and moved; once a program.
        Call::ModuleLoad | Call::ModuleUnload => Cost::Fixed { ns: 100_000 },
        Call::Init => Cost::Fixed { ns: 100_000_000 },
    }
}

/// Device time of moving bytes: a fixed latency, then bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Speed {
    latency_ns: u64,
    /// The same number as MB/s; 1,000 are one GB/s.
    bytes_per_us: u64,
}

impl Speed {
    const fn duration_ns(self, bytes: u64) -> u64 {
        // Divided first above 2^50 bytes, where the product would overflow and a byte no longer matters.
        let moving_ns = match bytes.checked_mul(1000) {
            Some(product) => product / self.bytes_per_us,
            None => (bytes / self.bytes_per_us).saturating_mul(1000),
        };
        self.latency_ns.saturating_add(moving_ns)
    }
}

/// Measured: pinned copies of 256 MiB run at 55.2 GB/s, chunks of 64 KiB, 256 KiB, 1, 2 and 8 MiB at 18, 39, 50, 52 and
/// 54. Taking 55.2 GB/s off those durations leaves 2.5, 2.0, 2.0, 2.3 and 3.4 us; 2.3 us reproduces all five within 5 %.
const BUS_LATENCY_NS: u64 = 2_300;
/// What the device needs to start and end a piece of work that touches only its own memory; assumed.
const DEVICE_LATENCY_NS: u64 = 2_000;

const TO_DEVICE_PINNED: Speed = Speed { latency_ns: BUS_LATENCY_NS, bytes_per_us: 55_400 };
const TO_HOST_PINNED: Speed = Speed { latency_ns: BUS_LATENCY_NS, bytes_per_us: 55_200 };
const TO_DEVICE_PAGEABLE: Speed = Speed { latency_ns: BUS_LATENCY_NS, bytes_per_us: 6_800 };
const TO_HOST_PAGEABLE: Speed = Speed { latency_ns: BUS_LATENCY_NS, bytes_per_us: 12_300 };
/// Assumed: every byte crosses the memory bus twice, so half of about 4.3 TB/s.
const ON_DEVICE: Speed = Speed { latency_ns: DEVICE_LATENCY_NS, bytes_per_us: 2_150_000 };
/// Assumed: fills and kernels touch a byte once, at about 4 TB/s.
const DEVICE_MEMORY: Speed = Speed { latency_ns: DEVICE_LATENCY_NS, bytes_per_us: 4_000_000 };

/// Device time of a kernel that does nothing but touch `bytes` of device memory.
pub(crate) const fn memory_bound_kernel_ns(bytes: u64) -> u64 {
    DEVICE_MEMORY.duration_ns(bytes)
}

/// What calls and copies cost. The default is the measured H200.
///
/// ```
/// use headwater_driver::Call;
/// use headwater_sim::CostModel;
///
/// let h200 = CostModel::h200();
/// // Access to a run of eight handles costs eight times as much as to one.
/// assert_eq!(h200.cost_ns(Call::AccessSet, 2 << 20, 8), 8 * 38_000);
///
/// // What if launches were cheaper?
/// let quick = CostModel::h200().with_cost_ns(Call::KernelLaunch, 2_000);
/// assert_eq!(quick.cost_ns(Call::KernelLaunch, 0, 1), 2_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// By `call as usize`.
    host: [Cost; Call::ALL.len()],
}

impl CostModel {
    /// The measured H200; the table in this file's source says which figures are measured and which assumed.
    pub fn h200() -> Self {
        let mut host = [SHORT; Call::ALL.len()];
        for (cost, call) in host.iter_mut().zip(Call::ALL) {
            *cost = h200(*call);
        }
        Self { host }
    }

    /// Calls cost the host nothing. Copies and fills still take their time on the device, so that work is seen to be
    /// pending.
    pub fn free_of_charge() -> Self {
        Self { host: [Cost::Fixed { ns: 0 }; Call::ALL.len()] }
    }

    /// The same model, but `call` costs `ns` whatever the size (for each handle, where it takes several).
    #[must_use]
    pub fn with_cost_ns(mut self, call: Call, ns: u64) -> Self {
        self.host[call as usize] = Cost::Fixed { ns };
        self
    }

    /// Host time of one `call` on `count` things of `size_bytes` each: the handles of an unmap or a set access, and one
    /// thing for every other call. Waiting for the device is not included.
    pub fn cost_ns(&self, call: Call, size_bytes: u64, count: u64) -> u64 {
        self.host[call as usize].ns(size_bytes).saturating_mul(count)
    }

    /// Device time of a copy or fill of `bytes`, alone on its way; zero for a call that is neither. `pinned` says whether
    /// the host side is pinned, where there is one.
    ///
    /// Both directions at once are modelled as independent (measured: 101.6 GB/s together, 8 % less than that). Copies
    /// between devices were not measured and are taken as pinned copies over the bus.
    pub fn copy_duration_ns(&self, call: Call, bytes: u64, pinned: bool) -> u64 {
        let speed = match (call, pinned) {
            (Call::CopyToDevice, true) => TO_DEVICE_PINNED,
            (Call::CopyToDevice, false) => TO_DEVICE_PAGEABLE,
            (Call::CopyToHost, true) => TO_HOST_PINNED,
            (Call::CopyToHost, false) => TO_HOST_PAGEABLE,
            (Call::CopyPeer, _) => TO_HOST_PINNED,
            (Call::CopyOnDevice, _) => ON_DEVICE,
            (Call::FillBytes | Call::FillWords, _) => DEVICE_MEMORY,
            _ => return 0,
        };
        speed.duration_ns(bytes)
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self::h200()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;

    /// Whether `modelled` is within `percent` of `measured`.
    fn is_near(modelled: f64, measured: f64, percent: f64) -> bool {
        (modelled - measured).abs() <= measured * percent / 100.0
    }

    fn us(call: Call, size_bytes: u64) -> f64 {
        CostModel::h200().cost_ns(call, size_bytes, 1) as f64 / 1e3
    }

    #[test]
    fn handles_cost_what_was_measured() {
        // A line through points that scatter: within 30 %.
        for (mib, measured) in [(2, 15.0), (20, 13.0), (64, 24.0), (256, 17.0), (512, 25.0)] {
            let modelled = us(Call::HandleCreate, mib * MIB);
            assert!(is_near(modelled, measured, 30.0), "{mib} MiB: {modelled} us, measured {measured}");
        }
        for (mib, measured) in [(2, 17.0), (20, 32.0), (256, 187.0), (512, 308.0)] {
            assert!(is_near(us(Call::HandleRelease, mib * MIB), measured, 0.1));
        }
        assert!((33.0..=52.0).contains(&us(Call::AddressReserve, 64 << 30)));
        assert!((1.3..=1.8).contains(&us(Call::HandleMap, 2 * MIB)));
        assert!((32.0..=44.0).contains(&us(Call::AccessSet, 2 * MIB)));
        assert!((22.0..=30.0).contains(&us(Call::HandleUnmap, 2 * MIB)));
    }

    #[test]
    fn a_run_of_handles_costs_as_much_as_its_handles() {
        let model = CostModel::h200();
        for call in [Call::AccessSet, Call::HandleUnmap] {
            assert_eq!(model.cost_ns(call, 2 * MIB, 10), 10 * model.cost_ns(call, 2 * MIB, 1));
        }
    }

    #[test]
    fn a_plain_pair_costs_what_was_measured() {
        for (bytes, measured) in
            [(512, 60.7), (64 * KIB, 62.7), (MIB, 61.7), (16 * MIB, 72.4), (64 * MIB, 95.2)]
        {
            let modelled = us(Call::MemAlloc, bytes) + us(Call::MemFree, bytes);
            assert!(is_near(modelled, measured, 4.0), "{bytes} B: {modelled} us, measured {measured}");
        }
    }

    #[test]
    fn pinned_memory_costs_what_was_measured_and_goes_on_beyond() {
        for (mib, measured_ms) in [(1, 1.6), (16, 9.4), (256, 148.0), (1024, 406.0)] {
            assert!(is_near(us(Call::HostAlloc, mib * MIB) / 1e3, measured_ms, 0.1));
        }
        assert!(us(Call::HostAlloc, 4096) > 1000.0 && us(Call::HostAlloc, 4096) < 1600.0);
        assert!(is_near(us(Call::HostAlloc, 1792 * MIB) / 1e3, 406.0 + 258.0, 0.1));
    }

    #[test]
    fn short_calls_cost_what_was_measured() {
        for (call, measured_us) in [
            (Call::EventCreate, 0.28),
            (Call::EventQuery, 0.40),
            (Call::EventDestroy, 0.30),
            (Call::KernelLaunch, 4.0),
        ] {
            assert!(is_near(us(call, 0), measured_us, 0.1), "{call}");
        }
        assert!((0.25..=0.5).contains(&us(Call::EventRecord, 0)));
        assert!((0.34..=0.53).contains(&us(Call::StreamWaitEvent, 0)));
    }

    #[test]
    fn copies_run_as_fast_as_measured() {
        let rate = |call, bytes: u64, pinned| {
            bytes as f64 / CostModel::h200().copy_duration_ns(call, bytes, pinned) as f64
        };
        for (call, pinned, measured) in [
            (Call::CopyToDevice, true, 55.4),
            (Call::CopyToHost, true, 55.2),
            (Call::CopyToDevice, false, 6.8),
            (Call::CopyToHost, false, 12.3),
        ] {
            assert!(is_near(rate(call, 256 * MIB, pinned), measured, 0.1));
        }
        for (bytes, measured) in
            [(64 * KIB, 18.0), (256 * KIB, 39.0), (MIB, 50.0), (2 * MIB, 52.0), (8 * MIB, 54.0)]
        {
            let modelled = rate(Call::CopyToHost, bytes, true);
            assert!(is_near(modelled, measured, 5.0), "{bytes} B: {modelled} GB/s, measured {measured}");
        }
        assert!(is_near(rate(Call::CopyOnDevice, 1 << 30, true), 2150.0, 1.0));
        assert!(is_near(rate(Call::FillWords, 1 << 30, true), 4000.0, 1.0));
    }

    #[test]
    fn free_of_charge_is_free_and_one_call_can_be_priced() {
        let model = CostModel::free_of_charge().with_cost_ns(Call::MemAlloc, 7);
        for call in Call::ALL {
            assert_eq!(model.cost_ns(*call, MIB, 3), if *call == Call::MemAlloc { 21 } else { 0 });
        }
        assert_eq!(CostModel::default(), CostModel::h200());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn more_never_costs_less(at in 0..Call::ALL.len(), a in any::<u64>(), b in any::<u64>(), shift in 0u32..60) {
            let (call, model) = (Call::ALL[at], CostModel::h200());
            let (less, more) = ((a.min(b)) >> shift, a.max(b) >> shift);
            prop_assert!(model.cost_ns(call, less, 1) <= model.cost_ns(call, more, 1));
            prop_assert!(model.copy_duration_ns(call, less, true) <= model.copy_duration_ns(call, more, true));
            prop_assert!(model.copy_duration_ns(call, less, true) <= model.copy_duration_ns(call, less, false));
        }
    }
}
