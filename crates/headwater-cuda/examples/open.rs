//! Opens the machine's CUDA driver and prints its devices, or what is missing.
//!
//! `cargo run -p headwater-cuda --example open`

use headwater_cuda::CudaDriver;
use headwater_driver::{DeviceId, Devices};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = match CudaDriver::open() {
        Ok(driver) => driver,
        Err(why) => {
            println!("{why}");
            return Ok(());
        }
    };
    println!("{}", driver.version());
    for device in (0..driver.device_count()).map(DeviceId) {
        let properties = driver.device_properties(device)?;
        let memory = driver.memory_info(device)?;
        println!("{device}: {} at {}", properties.name, properties.pci_address);
        println!(
            "  compute capability {:?}, {} multiprocessors",
            properties.compute_capability, properties.multiprocessors
        );
        println!("  {} of {} bytes free", memory.free_bytes, memory.total_bytes);
        println!("  {:?}", properties.capabilities);
    }
    Ok(())
}
