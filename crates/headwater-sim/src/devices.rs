//! Devices: properties, memory, peers, counts.

use headwater_driver::{
    Call, CallCounts, CallTimes, DeviceId, DeviceProperties, Devices, DriverError, MemoryInfo, Result,
};

use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;

impl SimDriver {
    fn no_device(&self, call: Call, device: DeviceId) -> DriverError {
        let there_are = format!("{device} of {} devices", self.properties().len());
        Refusal::InvalidDevice.of(call).with_detail(there_are)
    }
}

impl Devices for SimDriver {
    fn backend(&self) -> &'static str {
        "sim"
    }

    fn version(&self) -> String {
        format!("Headwater simulated device {}", env!("CARGO_PKG_VERSION"))
    }

    fn device_count(&self) -> u32 {
        self.properties().len() as u32
    }

    fn device_properties(&self, device: DeviceId) -> Result<DeviceProperties> {
        let properties = self.properties().get(device.0 as usize);
        properties.cloned().ok_or_else(|| self.no_device(Call::DeviceProperties, device))
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let machine = self.enter_on(Call::MemoryInfo, device, 0)?;
        Ok(machine.device(Call::MemoryInfo, device)?.memory())
    }

    fn peer_access_possible(&self, from: DeviceId, to: DeviceId) -> Result<bool> {
        let call = Call::PeerAccessQuery;
        let machine = self.enter(call, 0)?;
        machine.known_device(call, from)?;
        machine.known_device(call, to)?;
        Ok(machine.can_be_peers(from, to))
    }

    fn peer_access_enable(&self, from: DeviceId, to: DeviceId) -> Result<()> {
        let call = Call::PeerAccessEnable;
        let mut machine = self.enter_on(call, from, 0)?;
        machine.device(call, to)?;
        if from == to {
            return Err(Refusal::InvalidDevice.of(call).with_detail("a device is no peer of itself"));
        }
        if !machine.can_be_peers(from, to) {
            return Err(Refusal::PeerAccessUnsupported.of(call));
        }
        machine.space.enable_peer(from, to);
        Ok(())
    }

    fn call_counts(&self) -> CallCounts {
        self.counters().read()
    }

    fn call_times(&self) -> CallTimes {
        self.machine().clocks.read()
    }

    /// Virtual time costs nothing to read: it always does.
    fn measure_calls(&self, _: bool) {}
}

#[cfg(test)]
mod tests {
    use headwater_driver::ErrorClass;

    use super::*;

    #[test]
    fn a_device_that_does_not_exist_is_an_invalid_value_everywhere() {
        let sim = SimDriver::new();
        let none = DeviceId(1);
        let errors = [
            sim.device_properties(none).map(drop),
            sim.memory_info(none).map(drop),
            sim.peer_access_possible(DeviceId(0), none).map(drop),
            sim.peer_access_enable(DeviceId(0), none),
        ];
        for error in errors {
            assert_eq!(error.unwrap_err().class(), ErrorClass::InvalidValue);
        }
    }

    #[test]
    fn only_different_devices_are_peers() {
        let sim = SimDriver::builder().devices(2).build();
        let (one, other) = (DeviceId(0), DeviceId(1));
        assert!(sim.peer_access_possible(one, other).unwrap());
        assert!(!sim.peer_access_possible(one, one).unwrap());
        assert!(sim.peer_access_enable(one, other).is_ok());
        assert!(sim.peer_access_enable(one, other).is_ok(), "twice is no error");
        assert_eq!(sim.peer_access_enable(one, one).unwrap_err().class(), ErrorClass::InvalidValue);
    }

    #[test]
    fn memory_that_somebody_else_took_is_not_free() {
        let sim = SimDriver::builder().memory_bytes(1 << 30).build();
        sim.shrink_memory(DeviceId(0), 1 << 29);
        assert_eq!(sim.memory_info(DeviceId(0)).unwrap().free_bytes, 1 << 29);
        sim.shrink_memory(DeviceId(0), u64::MAX);
        assert_eq!(sim.memory_info(DeviceId(0)).unwrap().free_bytes, 0);
        sim.restore_memory(DeviceId(0));
        assert_eq!(sim.memory_info(DeviceId(0)).unwrap().free_bytes, 1 << 30);
    }
}
