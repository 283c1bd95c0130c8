//! Modules and launches.

use headwater_driver::{KernelArg, LaunchShape};

use crate::case::Ground;
use crate::check::{Check, refused_handle, refused_value, same, same_bytes};
use crate::fixtures::{pattern, word_of};
use crate::kernels::PTX;

const BYTES: u64 = 1 << 20;

fn what_is_no_device_code_is_not_loaded(ground: &Ground) -> Check {
    let images: [&[u8]; 3] = [b"", b"\0", b"this is not device code\0"];
    for image in images {
        refused_value(ground.driver.module_load(ground.device, image))?;
    }
    Ok(())
}

fn an_unknown_kernel_is_refused(ground: &Ground) -> Check {
    let module = ground.driver.module_load(ground.device, PTX)?;
    let answers = ["hw_nothing", "", "hw_fil", "HW_FILL"].map(|name| ground.driver.kernel_get(module, name));
    ground.driver.module_unload(module)?;
    for answer in answers {
        refused_value(answer)?;
    }
    Ok(())
}

fn every_test_kernel_is_found(ground: &Ground) -> Check {
    let module = ground.driver.module_load(ground.device, PTX)?;
    let names = ["hw_spin", "hw_fill", "hw_fill_late", "hw_add", "hw_copy", "hw_check"];
    let found = names.map(|name| ground.driver.kernel_get(module, name));
    ground.driver.module_unload(module)?;
    for kernel in found {
        same("the kernel's device", ground.device, kernel?.device())?;
    }
    Ok(())
}

fn filling_and_adding(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    kernels.fill(memory.span(), word_of(0x20), stream.id())?;
    kernels.add(memory.span().part(0, BYTES / 2)?, word_of(0x03), stream.id())?;
    ground.holds(memory.span().part(0, BYTES / 2)?, 0x23, stream.id())?;
    ground.holds(memory.span().part(BYTES / 2, BYTES / 2)?, 0x20, stream.id())
}

fn filling_late_fills_all_the_same(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0, stream.id())?;
    kernels.fill_late(memory.span(), word_of(0x71), stream.id())?;
    stream.is_busy()?;
    ground.holds(memory.span(), 0x71, stream.id())
}

fn copying(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (src, dst) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let stream = ground.stream()?;
    let content = pattern(BYTES as usize, 0x5e);
    ground.write(src.span(), &content, stream.id())?;
    kernels.copy(dst.span(), src.span(), stream.id())?;
    same_bytes("the copy", &content, &ground.read(dst.span(), stream.id())?)
}

fn checking_counts_wrong_words(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (memory, wrong) = (ground.plain(BYTES)?, ground.plain(4)?);
    let stream = ground.stream()?;
    kernels.fill(memory.span(), 7, stream.id())?;
    kernels.fill(memory.span().part(400, 44)?, 8, stream.id())?;
    ground.fill(wrong.span(), 0, stream.id())?;
    kernels.check(memory.span(), 7, wrong.span(), stream.id())?;
    same_bytes("wrong words", &11_u32.to_ne_bytes(), &ground.read(wrong.span(), stream.id())?)
}

fn kernels_use_virtual_memory(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.mapped(2 * ground.granularity()?)?;
    let stream = ground.stream()?;
    kernels.fill(memory.span(), word_of(0x15), stream.id())?;
    kernels.add(memory.span(), word_of(0x15), stream.id())?;
    ground.holds(memory.span(), 0x2a, stream.id())
}

fn a_shape_the_device_cannot_run_is_refused(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let stream = ground.stream()?;
    let module = driver.module_load(ground.device, PTX)?;
    let answers = driver.kernel_get(module, "hw_spin").map(|kernel| {
        let shapes = [
            ([0, 1, 1], [1, 1, 1]),
            ([1, 1, 0], [1, 1, 1]),
            ([1, 1, 1], [0, 1, 1]),
            ([1, 1, 1], [2048, 1, 1]),
        ];
        shapes.map(|(grid, block)| {
            let shape = LaunchShape { grid, block, shared_bytes: 0 };
            // SAFETY: the kernel takes one number and touches no memory.
            unsafe { driver.kernel_launch(kernel, shape, &[KernelArg::U64(0)], stream.id()) }
        })
    });
    driver.module_unload(module)?;
    for answer in answers? {
        refused_value(answer)?;
    }
    // The refusals left the stream as it was.
    stream.wait()
}

fn an_unloaded_module_and_its_kernels_are_refused(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let stream = ground.stream()?;
    let module = driver.module_load(ground.device, PTX)?;
    let kernel = driver.kernel_get(module, "hw_spin");
    driver.module_unload(module)?;
    // SAFETY: the kernel takes one number and touches no memory; it is gone, and so refused.
    refused_handle(unsafe {
        driver.kernel_launch(kernel?, LaunchShape::SINGLE, &[KernelArg::U64(0)], stream.id())
    })?;
    refused_handle(driver.kernel_get(module, "hw_spin"))?;
    refused_handle(driver.module_unload(module))?;
    Ok(())
}

fn a_module_can_be_loaded_twice(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let (first, second) = (ground.kernels()?, ground.kernels()?);
    let stream = ground.stream()?;
    first.fill(memory.span(), word_of(1), stream.id())?;
    stream.wait()?;
    drop(first);
    second.add(memory.span(), word_of(1), stream.id())?;
    ground.holds(memory.span(), 2, stream.id())
}

super::list![kernels:
    what_is_no_device_code_is_not_loaded,
    an_unknown_kernel_is_refused,
    every_test_kernel_is_found,
    filling_and_adding,
    filling_late_fills_all_the_same,
    copying,
    checking_counts_wrong_words,
    kernels_use_virtual_memory,
    a_shape_the_device_cannot_run_is_refused,
    an_unloaded_module_and_its_kernels_are_refused,
    a_module_can_be_loaded_twice,
];
