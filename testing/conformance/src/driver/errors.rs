//! What an error says: the call, the driver's number and name, and the numbers of the request.

use headwater_driver::{Call, CaptureMode, DevicePtr, DriverError};

use crate::case::Ground;
use crate::check::{Check, ensure, out_of_memory, refused_handle, refused_in_capture, refused_value, same};

const MIB: u64 = 1 << 20;

/// The error names `call`, and the driver's own number and name for what happened.
#[track_caller]
fn tells(error: &DriverError, call: Call) -> Check {
    same("the call", call, error.call())?;
    ensure(error.code() != 0, "the error has the driver's number (zero is success)")?;
    ensure(error.name().starts_with("CUDA_ERROR_"), "the error has the driver's name")?;
    let words = error.to_string();
    ensure(words.contains(call.name()), "the message names the call")?;
    ensure(words.contains(error.name()), "the message gives the driver's name")
}

fn a_refused_value_names_its_call(ground: &Ground) -> Check {
    let (driver, device) = (&ground.driver, ground.device);
    let nowhere = DevicePtr::new(0x1000);
    tells(&refused_value(driver.mem_alloc(device, 0))?, Call::MemAlloc)?;
    tells(&refused_value(driver.mem_free(device, nowhere))?, Call::MemFree)?;
    if ground.granularity().is_ok() {
        tells(&refused_value(driver.address_reserve(device, 0, 0))?, Call::AddressReserve)?;
        tells(&refused_value(driver.address_free(device, nowhere, 2 * MIB))?, Call::AddressFree)?;
        tells(&refused_value(driver.handle_create(device, 0))?, Call::HandleCreate)?;
        tells(&refused_value(driver.handle_unmap(device, nowhere, 2 * MIB))?, Call::HandleUnmap)?;
        tells(&refused_value(driver.access_set(nowhere, 2 * MIB, &[device]))?, Call::AccessSet)?;
    }
    tells(&refused_value(driver.host_alloc(0))?, Call::HostAlloc)?;
    tells(&refused_value(driver.module_load(device, b"nonsense\0"))?, Call::ModuleLoad)
}

fn a_stale_handle_names_its_call(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let stream = ground.stream()?.destroy()?;
    tells(&refused_handle(driver.stream_query(stream))?, Call::StreamQuery)?;
    tells(&refused_handle(driver.stream_synchronize(stream))?, Call::StreamSynchronize)?;
    tells(&refused_handle(driver.stream_destroy(stream))?, Call::StreamDestroy)?;
    let event = ground.event()?.destroy()?;
    tells(&refused_handle(driver.event_query(event))?, Call::EventQuery)?;
    tells(&refused_handle(driver.event_destroy(event))?, Call::EventDestroy)
}

fn out_of_memory_says_how_much_was_asked_and_left(ground: &Ground) -> Check {
    let total_bytes = ground.driver.memory_info(ground.device)?.total_bytes;
    let asked = total_bytes + 512 * MIB;
    let (_, error) = out_of_memory(ground.driver.mem_alloc(ground.device, asked))?;
    tells(&error, Call::MemAlloc)?;
    ensure(error.is_out_of_memory(), "the error says that freeing may help")?;
    ensure(error.to_string().contains(&asked.to_string()), "the message says how much was asked for")?;
    ensure(error.to_string().contains(&total_bytes.to_string()), "the message says how much there is")
}

fn a_refusal_in_capture_names_its_call(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    tells(&refused_in_capture(ground.driver.mem_alloc(ground.device, MIB))?, Call::MemAlloc)?;
    capture.was_lost()
}

fn a_failed_call_is_no_sticky_error(ground: &Ground) -> Check {
    let memory = ground.plain(MIB)?;
    let stream = ground.stream()?;
    refused_value(ground.driver.mem_alloc(ground.device, 0))?;
    refused_value(ground.driver.mem_free(ground.device, DevicePtr::new(0x1000)))?;
    ground.fill(memory.span(), 0x0d, stream.id())?;
    ground.holds(memory.span(), 0x0d, stream.id())
}

super::list![errors:
    a_refused_value_names_its_call,
    a_stale_handle_names_its_call,
    out_of_memory_says_how_much_was_asked_and_left,
    a_refusal_in_capture_names_its_call,
    a_failed_call_is_no_sticky_error,
];
