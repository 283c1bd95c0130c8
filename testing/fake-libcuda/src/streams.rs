//! Streams: made ones, and the two default ones that every context has.

use std::ffi::{c_int, c_uint, c_ulonglong};

use headwater_driver::{Stream, StreamOptions, Streams};

use crate::abi::{CUcontext, CUdevice, CUevent, CUresult, CUstream};
use crate::context::Context;
use crate::entry::{Answer, Out, in_context};
use crate::machine::Machine;
use crate::objects::StreamObject;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// The numerically greatest, that is least urgent, priority and the most urgent one of an H200.
const PRIORITIES: (c_int, c_int) = (0, -5);

impl Machine {
    /// The stream that a caller names: 0 and 1 are the legacy default stream of the current context, 2 is the calling
    /// thread's own.
    pub(crate) fn stream(&self, context: Context, stream: CUstream) -> Answer<Stream> {
        Ok(self.stream_object(context, stream)?.stream)
    }

    fn stream_object(&self, context: Context, stream: CUstream) -> Answer<StreamObject> {
        match stream.raw() {
            0 | 1 => Ok(default_stream(Stream::legacy_default(context.device))),
            2 => Ok(default_stream(Stream::per_thread_default(context.device))),
            raw => self.live(&self.objects().streams, raw, CUresult::INVALID_HANDLE),
        }
    }
}

fn default_stream(stream: Stream) -> StreamObject {
    StreamObject { stream, flags: 0, priority: 0 }
}

fn create(machine: &Machine, context: Context, out: Out<CUstream>, flags: c_uint, priority: c_int) -> Answer {
    if flags & !NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let options = StreamOptions { non_blocking: flags & NON_BLOCKING != 0, priority };
    let stream = machine.sim.stream_create(context.device, options)?;
    let value = machine.objects().streams.insert(StreamObject { stream, flags, priority });
    out.put(CUstream::from_raw(value));
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    in_context("cuStreamCreate", |machine, context| {
        // SAFETY: the caller's place for the stream.
        create(machine, context, unsafe { Out::required(stream) }?, flags, 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    in_context("cuStreamCreateWithPriority", |machine, context| {
        // SAFETY: the caller's place for the stream.
        create(machine, context, unsafe { Out::required(stream) }?, flags, priority)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    in_context("cuStreamDestroy_v2", |machine, context| {
        // The default streams are nobody's to destroy; the simulator says so.
        machine.sim.stream_destroy(machine.stream(context, stream)?)?;
        machine.objects().streams.remove(stream.raw());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    in_context("cuStreamQuery", |machine, context| {
        match machine.sim.stream_query(machine.stream(context, stream)?)? {
            true => Ok(()),
            false => Err(CUresult::NOT_READY),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    in_context("cuStreamSynchronize", |machine, context| {
        Ok(machine.sim.stream_synchronize(machine.stream(context, stream)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
    in_context("cuStreamWaitEvent", |machine, context| {
        let (stream, event) = (machine.stream(context, stream)?, machine.event(event)?);
        // CU_EVENT_WAIT_EXTERNAL (1) makes a graph node that the simulator does not have.
        if flags != 0 {
            return Err(if flags == 1 { CUresult::NOT_SUPPORTED } else { CUresult::INVALID_VALUE });
        }
        Ok(machine.sim.stream_wait_event(stream, event)?)
    })
}

/// An id that no other stream of the process has. The per-thread stream gets one id in all threads, for want of a way
/// to ask which thread's it is.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong) -> CUresult {
    in_context("cuStreamGetId", |machine, context| {
        // SAFETY: the caller's place for the id.
        let out = unsafe { Out::required(id) }?;
        let object = machine.stream_object(context, stream)?;
        let raw = object.stream.raw();
        let default = object.stream.is_legacy_default() || object.stream.is_per_thread_default();
        out.put(if default { u64::from(context.device.0) * 2 + raw } else { stream.raw() });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, ctx: *mut CUcontext) -> CUresult {
    in_context("cuStreamGetCtx", |machine, context| {
        // SAFETY: the caller's place for the context.
        let out = unsafe { Out::required(ctx) }?;
        out.put(Context { device: machine.stream(context, stream)?.device() }.handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetDevice(stream: CUstream, dev: *mut CUdevice) -> CUresult {
    in_context("cuStreamGetDevice", |machine, context| {
        // SAFETY: the caller's place for the device.
        let out = unsafe { Out::required(dev) }?;
        out.put(machine.stream(context, stream)?.device().0 as CUdevice);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> CUresult {
    in_context("cuStreamGetFlags", |machine, context| {
        // SAFETY: the caller's place for the flags.
        let out = unsafe { Out::required(flags) }?;
        out.put(machine.stream_object(context, stream)?.flags);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) -> CUresult {
    in_context("cuStreamGetPriority", |machine, context| {
        // SAFETY: the caller's place for the priority.
        let out = unsafe { Out::required(priority) }?;
        out.put(machine.stream_object(context, stream)?.priority);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult {
    in_context("cuCtxGetStreamPriorityRange", |_, _| {
        // SAFETY: the caller's places for the answers, which may be left out.
        let (least, greatest) = unsafe { (Out::optional(least), Out::optional(greatest)) };
        if let Some(least) = least {
            least.put(PRIORITIES.0);
        }
        if let Some(greatest) = greatest {
            greatest.put(PRIORITIES.1);
        }
        Ok(())
    })
}
