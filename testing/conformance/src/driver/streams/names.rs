//! Whose a stream is: ours until destroyed, somebody else's while adopted, the driver's for ever.

use headwater_driver::{CaptureMode, KernelArg, LaunchShape, Stream, StreamOptions};

use crate::case::Ground;
use crate::check::{Check, ensure, refused_handle, same};
use crate::fixtures::Plain;
use crate::kernels::PTX;

const BYTES: u64 = 1 << 20;

/// Every call that takes a stream refuses this one.
#[track_caller]
fn is_refused_everywhere(ground: &Ground, memory: &Plain<'_>, stream: Stream) -> Check {
    let driver = &ground.driver;
    let event = ground.event()?;
    let mut host = [0_u8; 64];
    refused_handle(driver.stream_query(stream))?;
    refused_handle(driver.stream_synchronize(stream))?;
    refused_handle(driver.stream_wait_event(stream, event.id()))?;
    refused_handle(driver.event_record(event.id(), stream))?;
    refused_handle(driver.capture_begin(stream, CaptureMode::Relaxed))?;
    refused_handle(driver.capture_status(stream))?;
    // SAFETY: memory and host buffer are long enough and held; a refused call does nothing with them.
    unsafe {
        refused_handle(driver.fill_bytes(memory.ptr(), 1, 64, stream))?;
        refused_handle(driver.fill_words(memory.ptr(), 1, 16, stream))?;
        refused_handle(driver.copy_to_device(memory.ptr(), host.as_ptr(), 64, stream))?;
        refused_handle(driver.copy_to_host(host.as_mut_ptr(), memory.ptr(), 64, stream))?;
        let upper = memory.span().part(BYTES / 2, 64)?;
        refused_handle(driver.copy_on_device(upper.ptr(), memory.ptr(), 64, stream))?;
    }
    refused_handle(driver.stream_destroy(stream))?;
    refused_handle(driver.stream_forget(stream))?;
    Ok(())
}

fn a_destroyed_stream_is_refused_everywhere(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let stale = ground.stream()?.destroy()?;
    is_refused_everywhere(ground, &memory, stale)
}

fn a_destroyed_stream_takes_no_launches(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let memory = ground.plain(BYTES)?;
    let graph = {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
        ground.fill(memory.span(), 1, stream.id())?;
        capture.end()?
    };
    let exec = graph.instantiate()?;
    let module = driver.module_load(ground.device, PTX)?;
    let kernel = driver.kernel_get(module, "hw_spin");
    let stale = ground.stream()?.destroy()?;
    // SAFETY: the kernel takes one number; the graph writes memory that is held. Both are refused.
    let answers = unsafe {
        let launched = kernel.and_then(|kernel| {
            driver.kernel_launch(kernel, LaunchShape::SINGLE, &[KernelArg::U64(0)], stale)
        });
        (launched, driver.graph_launch(exec.id(), stale))
    };
    driver.module_unload(module)?;
    refused_handle(answers.0)?;
    refused_handle(answers.1)?;
    Ok(())
}

fn a_stream_that_was_not_adopted_is_refused(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let foreign = ground.other.stream_create(ground.device, StreamOptions::default())?;
    let refused = is_refused_everywhere(ground, &memory, foreign);
    ground.other.stream_destroy(foreign)?;
    refused
}

fn an_adopted_stream_works_like_our_own(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let foreign =
        ground.other.stream_create(ground.device, StreamOptions { non_blocking: true, priority: 0 })?;
    let used = (|| -> Check {
        // SAFETY: `other` made the stream on this device, and destroys it only after it was forgotten.
        let adopted = unsafe { ground.driver.stream_adopt(ground.device, foreign.raw()) }?;
        same("the adopted stream", foreign, adopted)?;
        // SAFETY: as above. Twice is once.
        same("adopted twice", adopted, unsafe { ground.driver.stream_adopt(ground.device, foreign.raw()) }?)?;
        kernels.fill_late(memory.span(), 0x0404_0404, adopted)?;
        ensure(!ground.driver.stream_query(adopted)?, "the adopted stream is busy")?;
        ensure(!ground.other.stream_query(foreign)?, "its owner sees our work in it")?;
        let event = ground.event_at(adopted)?;
        let mine = ground.stream()?;
        event.holds_back(mine.id())?;
        ground.holds(memory.span(), 4, mine.id())?;
        ground.driver.stream_synchronize(adopted)?;
        Ok(ground.driver.stream_forget(adopted)?)
    })();
    ground.other.stream_destroy(foreign)?;
    used
}

fn an_adopted_stream_is_not_ours_to_destroy(ground: &Ground) -> Check {
    let foreign = ground.other.stream_create(ground.device, StreamOptions::default())?;
    let refused = (|| -> Check {
        // SAFETY: `other` made the stream on this device, and destroys it only after it was forgotten.
        let adopted = unsafe { ground.driver.stream_adopt(ground.device, foreign.raw()) }?;
        refused_handle(ground.driver.stream_destroy(adopted))?;
        ensure(ground.driver.stream_query(adopted)?, "it is still there")?;
        Ok(ground.driver.stream_forget(adopted)?)
    })();
    ground.other.stream_destroy(foreign)?;
    refused
}

fn a_forgotten_stream_is_refused_everywhere(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let foreign = ground.other.stream_create(ground.device, StreamOptions::default())?;
    let refused = (|| -> Check {
        // SAFETY: `other` made the stream on this device, and destroys it only after it was forgotten.
        let adopted = unsafe { ground.driver.stream_adopt(ground.device, foreign.raw()) }?;
        ground.driver.stream_forget(adopted)?;
        is_refused_everywhere(ground, &memory, adopted)?;
        // Its owner is not concerned.
        ensure(ground.other.stream_query(foreign)?, "its owner still has it")
    })();
    ground.other.stream_destroy(foreign)?;
    refused
}

fn what_was_not_adopted_cannot_be_forgotten(ground: &Ground) -> Check {
    let mine = ground.stream()?;
    refused_handle(ground.driver.stream_forget(mine.id()))?;
    ensure(ground.driver.stream_query(mine.id())?, "our own stream is still there")
}

fn the_default_streams_cannot_be_destroyed(ground: &Ground) -> Check {
    for stream in [Stream::legacy_default(ground.device), Stream::per_thread_default(ground.device)] {
        refused_handle(ground.driver.stream_destroy(stream))?;
        ensure(ground.driver.stream_query(stream)?, "it is still there")?;
    }
    Ok(())
}

fn streams_have_names_of_their_own(ground: &Ground) -> Check {
    let streams = (0..16).map(|_| ground.stream()).collect::<Check<Vec<_>>>()?;
    let names: std::collections::BTreeSet<_> = streams.iter().map(|stream| stream.id()).collect();
    same("different streams", streams.len(), names.len())?;
    let on_device = streams.iter().all(|stream| stream.id().device() == ground.device);
    ensure(on_device, "a stream names the device it was made on")
}

super::list![streams:
    a_destroyed_stream_is_refused_everywhere,
    a_destroyed_stream_takes_no_launches,
    a_stream_that_was_not_adopted_is_refused,
    an_adopted_stream_works_like_our_own,
    an_adopted_stream_is_not_ours_to_destroy,
    a_forgotten_stream_is_refused_everywhere,
    what_was_not_adopted_cannot_be_forgotten,
    the_default_streams_cannot_be_destroyed,
    streams_have_names_of_their_own,
];
