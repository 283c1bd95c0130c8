//! What the calls on a physical handle cost, for handles that can be exported and for those that cannot; and what an export and
//! an import cost. Medians of 64, in microseconds. Needs a GPU.
//!
//! ```sh
//! cargo run --release -p headwater-cuda --example handle_costs
//! ```

use std::os::fd::AsFd;
use std::time::Instant;

use headwater_cuda::CudaDriver;
use headwater_driver::{Call, DeviceId, Devices, VirtualMemory};

const MIB: u64 = 1 << 20;
const ROUNDS: usize = 64;
const DEVICE: DeviceId = DeviceId(0);

/// The calls in the order in which a round makes them.
const CALLS: [Call; 7] = [
    Call::HandleCreate,
    Call::HandleExport,
    Call::HandleImport,
    Call::HandleMap,
    Call::AccessSet,
    Call::HandleUnmap,
    Call::HandleRelease,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = CudaDriver::open()?;
    println!("{} on {}", driver.version(), driver.device_properties(DEVICE)?.name);
    println!("{:<12} {:>5} {}", "handles", "MiB", CALLS.map(|call| format!("{:>14}", short(call))).concat());
    for mib in [2, 20, 64, 256, 512] {
        for exportable in [false, true] {
            let medians = measure(&driver, mib * MIB, exportable)?;
            let name = if exportable { "exportable" } else { "private" };
            let cells: String = medians
                .iter()
                .map(|us| us.map_or_else(|| format!("{:>14}", "-"), |us| format!("{us:>14.2}")))
                .collect();
            println!("{name:<12} {mib:>5} {cells}");
        }
    }
    Ok(())
}

fn short(call: Call) -> &'static str {
    match call {
        Call::HandleExport => "export",
        Call::HandleImport => "import",
        call => call.name().trim_start_matches("cuMem"),
    }
}

fn measure(
    driver: &CudaDriver,
    bytes: u64,
    exportable: bool,
) -> headwater_driver::Result<[Option<f64>; CALLS.len()]> {
    let range = driver.address_reserve(DEVICE, bytes, 0)?;
    let mut times: [Vec<f64>; CALLS.len()] = Default::default();
    let mut timed = |place: usize, began: Instant| times[place].push(began.elapsed().as_secs_f64() * 1e6);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let handle = if exportable {
            driver.handle_create_exportable(DEVICE, bytes)?
        } else {
            driver.handle_create(DEVICE, bytes)?
        };
        timed(0, began);
        if exportable {
            let began = Instant::now();
            let fd = driver.handle_export(handle)?;
            timed(1, began);
            let began = Instant::now();
            let imported = driver.handle_import(DEVICE, fd.as_fd(), bytes)?;
            timed(2, began);
            driver.handle_release(imported)?;
        }
        let began = Instant::now();
        driver.handle_map(range, bytes, handle)?;
        timed(3, began);
        let began = Instant::now();
        driver.access_set(range, bytes, &[DEVICE])?;
        timed(4, began);
        let began = Instant::now();
        driver.handle_unmap(DEVICE, range, bytes)?;
        timed(5, began);
        let began = Instant::now();
        driver.handle_release(handle)?;
        timed(6, began);
    }
    driver.address_free(DEVICE, range, bytes)?;
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }))
}
