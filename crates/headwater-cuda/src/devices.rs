//! Devices: what was read of them at the start, what they have left, who reaches whom.

use std::sync::atomic::Ordering;

use headwater_driver::{
    Call, CallCounts, CallTimes, DeviceId, DeviceProperties, Devices, MemoryInfo, Result,
};

use crate::CudaDriver;
use crate::abi::CuResult;
use crate::unavailable::version_words;

impl Devices for CudaDriver {
    fn backend(&self) -> &'static str {
        "cuda"
    }

    fn version(&self) -> String {
        format!("CUDA {}", version_words(self.version))
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_properties(&self, device: DeviceId) -> Result<DeviceProperties> {
        let site = self.call(Call::DeviceProperties);
        Ok(site.device(device)?.properties.clone())
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let site = self.call(Call::MemoryInfo);
        let context = site.context(device)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both live through the call.
        site.run(context, |cuda| unsafe { (cuda.mem_get_info)(&mut free, &mut total) })?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn peer_access_possible(&self, from: DeviceId, to: DeviceId) -> Result<bool> {
        let site = self.call(Call::PeerAccessQuery);
        let (from, to) = (site.device(from)?, site.device(to)?);
        if from.id == to.id {
            return Ok(false);
        }
        let mut can = 0;
        // SAFETY: `can` lives through the call, which needs no context.
        let code = unsafe { (self.table.device_can_access_peer)(&mut can, from.cu, to.cu) };
        if code.is_success() { Ok(can != 0) } else { Err(site.failure(code, None)) }
    }

    fn peer_access_enable(&self, from: DeviceId, to: DeviceId) -> Result<()> {
        let site = self.call(Call::PeerAccessEnable);
        site.device(from)?;
        site.device(to)?;
        if from == to {
            return Err(site.invalid(format!("{from} is no peer of itself")));
        }
        let (context, peer) = (site.context(from)?, site.context(to)?);
        // SAFETY: both contexts are retained; zero is the only flag there is.
        match context.run(|cuda| unsafe { (cuda.ctx_enable_peer_access)(peer.raw(), 0) }) {
            // PyTorch, or we, did it before.
            CuResult::SUCCESS | CuResult::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => Err(site.failure(code, Some(context))),
        }
    }

    fn call_counts(&self) -> CallCounts {
        self.counters.read()
    }

    fn call_times(&self) -> CallTimes {
        self.clocks.read()
    }

    fn measure_calls(&self, measure: bool) {
        // Relaxed: a call that begins at this moment is measured or not.
        self.is_measuring.store(measure, Ordering::Relaxed);
    }
}
