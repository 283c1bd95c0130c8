//! Events.

use std::ffi::c_uint;

use headwater_driver::{Event, EventOptions, Events};

use crate::abi::{CUevent, CUresult, CUstream};
use crate::context::Context;
use crate::entry::{Answer, Out, in_context};
use crate::machine::Machine;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;
/// All flags there are; `CU_EVENT_BLOCKING_SYNC` is the one.
const FLAGS: c_uint = 1 | DISABLE_TIMING | INTERPROCESS;

impl Machine {
    /// The event that a caller names.
    pub(crate) fn event(&self, event: CUevent) -> Answer<Event> {
        self.live(&self.objects().events, event.raw(), CUresult::INVALID_HANDLE)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    in_context("cuEventCreate", |machine, context| {
        // SAFETY: the caller's place for the event.
        let out = unsafe { Out::required(event) }?;
        if flags & !FLAGS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let options = EventOptions { timing: flags & DISABLE_TIMING == 0 };
        let event = machine.sim.event_create(context.device, options)?;
        out.put(CUevent::from_raw(machine.objects().events.insert(event)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    in_context("cuEventDestroy_v2", |machine, _| {
        machine.sim.event_destroy(machine.event(event)?)?;
        machine.objects().events.remove(event.raw());
        Ok(())
    })
}

fn record(machine: &Machine, context: Context, event: CUevent, stream: CUstream) -> Answer {
    let (event, stream) = (machine.event(event)?, machine.stream(context, stream)?);
    Ok(machine.sim.event_record(event, stream)?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    in_context("cuEventRecord", |machine, context| record(machine, context, event, stream))
}

/// `CU_EVENT_RECORD_EXTERNAL` makes a graph node that the simulator does not have.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) -> CUresult {
    in_context("cuEventRecordWithFlags", |machine, context| match flags {
        0 => record(machine, context, event, stream),
        1 => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    in_context("cuEventQuery", |machine, _| match machine.sim.event_query(machine.event(event)?)? {
        true => Ok(()),
        false => Err(CUresult::NOT_READY),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    in_context("cuEventSynchronize", |machine, _| Ok(machine.sim.event_synchronize(machine.event(event)?)?))
}

/// CUDA answers in milliseconds, in single precision.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    in_context("cuEventElapsedTime", |machine, _| {
        // SAFETY: the caller's place for the time.
        let out = unsafe { Out::required(ms) }?;
        let (start, end) = (machine.event(start)?, machine.event(end)?);
        out.put((machine.sim.event_elapsed_us(start, end)? / 1000.0) as f32);
        Ok(())
    })
}

/// The same since CUDA 12.8, under a new name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    // SAFETY: the same promises by the same caller.
    unsafe { cuEventElapsedTime(ms, start, end) }
}
