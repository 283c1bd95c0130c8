//! Exported and imported handles in the CUDA backend: what the driver's own answers become.

#![cfg(target_os = "linux")]

mod common;

use std::os::fd::{AsFd, AsRawFd};

use common::Fake;
use headwater_driver::{Call, DeviceId, ErrorClass, VirtualMemory};

const MIB: u64 = 1 << 20;
const DEVICE: DeviceId = DeviceId(0);

#[test]
fn an_unknown_error_of_an_import_is_a_refused_descriptor_and_not_a_lost_device() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let (reader, _writer) = std::io::pipe().unwrap();
    let error = driver.handle_import(DEVICE, reader.as_fd(), 2 * MIB).unwrap_err();
    assert_eq!(
        (error.call(), error.class(), error.code()),
        (Call::HandleImport, ErrorClass::InvalidValue, 999)
    );
    let text = error.to_string();
    assert!(text.contains(&format!("file descriptor {} stands for no memory", reader.as_raw_fd())), "{text}");
    // Any other code means what it always means.
    fake.fail_nth("cuMemImportFromShareableHandle", 1, 719);
    let error = driver.handle_import(DEVICE, reader.as_fd(), 2 * MIB).unwrap_err();
    assert_eq!(error.class(), ErrorClass::DeviceLost);
    drop(driver);
    assert_eq!((fake.undefined_uses(), fake.context_depth(), fake.leak_count()), (0, 0, 0));
}

#[test]
fn a_driver_that_makes_no_handles_for_export_is_told_from_one_that_is_out_of_memory() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    // What containers answer: not permitted, or not supported.
    for code in [800, 801] {
        fake.fail_nth("cuMemCreate", 1, code);
        let error = driver.handle_create_exportable(DEVICE, 2 * MIB).unwrap_err();
        assert_eq!((error.call(), error.class()), (Call::HandleCreate, ErrorClass::NotSupported));
        assert!(error.to_string().contains("containers"), "{error}");
    }
    let error = driver.handle_create_exportable(DEVICE, 1 << 50).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    drop(driver);
    assert_eq!((fake.undefined_uses(), fake.leak_count()), (0, 0));
}

#[test]
fn an_import_whose_memory_cannot_be_looked_at_leaves_nothing_behind() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let handle = driver.handle_create_exportable(DEVICE, 2 * MIB).unwrap();
    let fd = driver.handle_export(handle).unwrap();
    let held = fake.leak_count();
    fake.fail_nth("cuMemGetAllocationPropertiesFromHandle", 1, 1);
    assert!(driver.handle_import(DEVICE, fd.as_fd(), 2 * MIB).is_err());
    assert_eq!(fake.leak_count(), held);
    let imported = driver.handle_import(DEVICE, fd.as_fd(), 2 * MIB).unwrap();
    driver.handle_release(imported).unwrap();
    driver.handle_release(handle).unwrap();
    drop(driver);
    assert_eq!((fake.undefined_uses(), fake.leak_count()), (0, 0));
}
