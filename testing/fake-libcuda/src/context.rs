//! Contexts: one primary context a device, and a stack of current ones in each thread.
//!
//! There are no other contexts: Headwater uses primary ones only, because those are what the runtime API, PyTorch and
//! CuPy share. A primary context lives while it is retained; with the last release everything made in it goes, and
//! what its owner had not destroyed by then counts as leaked.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;

use headwater_driver::{
    Capture, CaptureMode, DeviceId, DevicePtr, Devices, Events, HostMemory, Kernels, PlainMemory, Stream,
    Streams,
};

use crate::abi::{CUcontext, CUdevice, CUresult};
use crate::entry::{Answer, Out, in_context, initialised};
use crate::machine::Machine;

/// The first context's value; the next device's is [`STEP`] further on.
const FIRST: u64 = 0x7f00_0000_0000;
const STEP: u64 = 64;

/// The context that a call runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) device: DeviceId,
}

impl Context {
    /// The value callers hold.
    pub(crate) fn handle(self) -> CUcontext {
        CUcontext::from_raw(FIRST + u64::from(self.device.0) * STEP)
    }
}

/// The primary contexts of all devices.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// How often each device's is retained.
    retained: Vec<u32>,
    /// Who was given access to whose memory.
    peers: BTreeSet<(DeviceId, DeviceId)>,
}

impl Contexts {
    /// Of `devices` devices, none of them retained.
    pub(crate) fn new(devices: u32) -> Self {
        Self { retained: vec![0; devices as usize], peers: BTreeSet::new() }
    }

    fn retain_count(&mut self, device: DeviceId) -> Answer<&mut u32> {
        self.retained.get_mut(device.0 as usize).ok_or(CUresult::INVALID_DEVICE)
    }
}

thread_local! {
    /// The calling thread's contexts, the current one last, and the machine they are of.
    static STACK: RefCell<(u64, Vec<Context>)> = const { RefCell::new((0, Vec::new())) };
}

/// Lets `body` at the calling thread's stack. Contexts of an earlier machine are gone.
fn with_stack<T>(machine: &Machine, body: impl FnOnce(&mut Vec<Context>) -> T) -> T {
    STACK.with_borrow_mut(|(generation, stack)| {
        if *generation != machine.generation {
            *generation = machine.generation;
            stack.clear();
        }
        body(stack)
    })
}

/// How many contexts the calling thread has on its stack.
pub(crate) fn depth(machine: &Machine) -> u64 {
    with_stack(machine, |stack| stack.len() as u64)
}

/// The calling thread's current context, which must be alive.
pub(crate) fn current(machine: &Machine) -> Answer<Context> {
    let top = with_stack(machine, |stack| stack.last().copied()).ok_or(CUresult::INVALID_CONTEXT)?;
    alive(machine, top)
}

/// `context`, where it is retained by somebody.
fn alive(machine: &Machine, context: Context) -> Answer<Context> {
    match *machine.contexts().retain_count(context.device)? {
        0 => Err(CUresult::CONTEXT_IS_DESTROYED),
        _ => Ok(context),
    }
}

/// The context that a caller names; garbage is undefined behaviour.
pub(crate) fn named(machine: &Machine, handle: CUcontext) -> Answer<Context> {
    let place = handle.raw().wrapping_sub(FIRST);
    let device = DeviceId(u32::try_from(place / STEP).unwrap_or(u32::MAX));
    if handle.raw() == 0 {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if !place.is_multiple_of(STEP) || device.0 >= machine.settings.devices {
        return Err(machine.undefined(CUresult::INVALID_CONTEXT));
    }
    Ok(Context { device })
}

/// The device a caller names by its ordinal.
pub(crate) fn device(machine: &Machine, ordinal: CUdevice) -> Answer<DeviceId> {
    match u32::try_from(ordinal) {
        Ok(ordinal) if ordinal < machine.settings.devices => Ok(DeviceId(ordinal)),
        _ => Err(CUresult::INVALID_DEVICE),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    initialised("cuDevicePrimaryCtxRetain", |machine| {
        // SAFETY: the caller's place for the context.
        let out = unsafe { Out::required(pctx) }?;
        let device = device(machine, dev)?;
        *machine.contexts().retain_count(device)? += 1;
        out.put(Context { device }.handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    initialised("cuDevicePrimaryCtxRelease_v2", |machine| {
        let device = device(machine, dev)?;
        let last = {
            let mut contexts = machine.contexts();
            let count = contexts.retain_count(device)?;
            *count = count.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
            *count == 0
        };
        if last {
            destroy_everything_of(machine, device)?;
        }
        Ok(())
    })
}

/// What the end of a context takes with it. Physical handles and reserved addresses belong to no context and stay.
fn destroy_everything_of(machine: &Machine, device: DeviceId) -> Answer {
    let sim = &machine.sim;
    machine.contexts().peers.retain(|(from, to)| *from != device && *to != device);
    let (streams, events, modules) = machine.objects().take_of(device);
    let (plain, pinned) = {
        let mut addresses = machine.addresses();
        (
            addresses.plain.take(|owner| *owner == device),
            addresses.pinned.take(|pinned| pinned.device == device),
        )
    };
    machine.objects().abandoned += (plain.len() + pinned.len()) as u64;

    // A capture somewhere must not forbid it: the context dies whatever anybody captures.
    let mode = sim.capture_mode_exchange(CaptureMode::Relaxed)?;
    let mut first_error = None;
    let mut note = |result: headwater_driver::Result<()>| {
        if let Err(error) = result {
            first_error.get_or_insert(CUresult::from(error));
        }
    };
    for span in plain {
        note(sim.mem_free(device, DevicePtr::new(span.start)));
    }
    for span in pinned {
        let Some(ptr) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(span.start as usize)) else {
            continue;
        };
        // SAFETY: whoever releases a context has stopped using its memory, on the host and on the device.
        note(unsafe { if span.about.registered { sim.host_unregister(ptr) } else { sim.host_free(ptr) } });
    }
    for object in streams {
        note(sim.stream_destroy(object.stream));
    }
    for event in events {
        note(sim.event_destroy(event));
    }
    for module in modules {
        note(sim.module_unload(module));
    }
    sim.capture_mode_exchange(mode)?;
    first_error.map_or(Ok(()), Err)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> CUresult {
    initialised("cuDevicePrimaryCtxGetState", |machine| {
        // SAFETY: the caller's places for the answers.
        let (flags, active) = unsafe { (Out::required(flags)?, Out::required(active)?) };
        let device = device(machine, dev)?;
        let retained = *machine.contexts().retain_count(device)?;
        flags.put(0);
        active.put(c_int::from(retained > 0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(pctx: *mut CUcontext) -> CUresult {
    initialised("cuCtxGetCurrent", |machine| {
        // SAFETY: the caller's place for the context.
        let out = unsafe { Out::required(pctx) }?;
        let top = with_stack(machine, |stack| stack.last().copied());
        out.put(top.map_or(CUcontext::from_raw(0), Context::handle));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    initialised("cuCtxSetCurrent", |machine| {
        // Null takes the top away; anything else takes its place, or becomes the first.
        let context = if ctx.raw() == 0 { None } else { Some(named(machine, ctx)?) };
        with_stack(machine, |stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    initialised("cuCtxPushCurrent_v2", |machine| {
        let context = named(machine, ctx)?;
        with_stack(machine, |stack| stack.push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> CUresult {
    initialised("cuCtxPopCurrent_v2", |machine| {
        let context = with_stack(machine, Vec::pop).ok_or(CUresult::INVALID_CONTEXT)?;
        // SAFETY: the caller's place for the context, which may be left out.
        if let Some(out) = unsafe { Out::optional(pctx) } {
            out.put(context.handle());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(dev: *mut CUdevice) -> CUresult {
    in_context("cuCtxGetDevice", |_, context| {
        // SAFETY: the caller's place for the device.
        unsafe { Out::required(dev) }?.put(context.device.0 as CUdevice);
        Ok(())
    })
}

/// Waits for every stream of the device that can be named from here: other threads' default streams cannot.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    in_context("cuCtxSynchronize", |machine, context| {
        let mut streams =
            vec![Stream::legacy_default(context.device), Stream::per_thread_default(context.device)];
        let made: Vec<Stream> = machine.objects().streams.iter().map(|(_, object)| object.stream).collect();
        streams.extend(made.into_iter().filter(|stream| stream.device() == context.device));
        for stream in streams {
            machine.sim.stream_synchronize(stream)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> CUresult {
    in_context("cuCtxEnablePeerAccess", |machine, context| {
        let peer = alive(machine, named(machine, peer)?)?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if peer == context {
            return Err(CUresult::INVALID_CONTEXT);
        }
        if !machine.settings.peer_access || !machine.sim.peer_access_possible(context.device, peer.device)? {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        // The contract calls a second time no error; libcuda does.
        if !machine.contexts().peers.insert((context.device, peer.device)) {
            return Err(CUresult::PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(machine.sim.peer_access_enable(context.device, peer.device)?)
    })
}
