//! One call of the contract under way: what all of them have in common.
//!
//! A method of the nine traits begins with [`CudaDriver::call`], which counts it. It then turns ids into objects it
//! holds, refuses what the driver must not see, and runs the driver's call in the right context.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use headwater_driver::{
    Call, DeviceId, DevicePtr, DriverError, ErrorClass, Event, MemoryInfo, Result, Stream,
};

use crate::CudaDriver;
use crate::abi::{CuResult, CuStream};
use crate::context::PrimaryContext;
use crate::driver::Device;
use crate::error::{driver_error, name_of, refusal};
use crate::objects::{EventObject, StreamObject};
use crate::registry::Owned;
use crate::table::Table;

/// One call under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSite<'d> {
    driver: &'d CudaDriver,
    call: Call,
    requested_bytes: u64,
}

impl<'d> CallSite<'d> {
    pub(crate) fn uncounted(driver: &'d CudaDriver, call: Call) -> Self {
        Self { driver, call, requested_bytes: 0 }
    }

    /// What to name in an out of memory.
    pub(crate) fn asking_for(mut self, bytes: u64) -> Self {
        self.requested_bytes = bytes;
        self
    }

    pub(crate) fn device(&self, id: DeviceId) -> Result<&'d Device> {
        self.driver.devices.get(id.0 as usize).ok_or_else(|| {
            let count = self.driver.devices.len();
            self.refuse(CuResult::INVALID_DEVICE, format!("there is no {id}; there are {count}"))
        })
    }

    pub(crate) fn context(&self, id: DeviceId) -> Result<&'d Arc<PrimaryContext>> {
        let device = self.device(id)?;
        device.context(&self.driver.table).map_err(|code| self.failure(code, None))
    }

    pub(crate) fn stream(&self, stream: Stream) -> Result<StreamInUse<'d>> {
        let object = if is_default(stream) {
            None
        } else {
            let found = self.driver.streams.get((stream.device(), stream.raw()));
            Some(found.ok_or_else(|| self.no_such(stream))?)
        };
        // A default stream of a device that does not exist ends here.
        let context = self.context(stream.device())?;
        let raw = object.as_ref().map_or(CuStream(stream.raw() as usize), |object| object.raw);
        Ok(StreamInUse { raw, context, _object: object })
    }

    pub(crate) fn event(&self, event: Event) -> Result<Arc<Owned<EventObject>>> {
        self.driver.events.get((event.device(), event.raw())).ok_or_else(|| self.no_such(event))
    }

    /// Runs what talks to the driver, by the clock where that was asked for.
    pub(crate) fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.driver.is_measuring.load(Ordering::Relaxed) {
            return work();
        }
        let began = Instant::now();
        let done = work();
        // A call that takes 500 years has other troubles.
        self.driver.clocks.add(self.call, began.elapsed().as_nanos() as u64);
        done
    }

    /// Makes the driver's call in `context`.
    pub(crate) fn run(&self, context: &PrimaryContext, call: impl FnOnce(&Table) -> CuResult) -> Result<()> {
        let code = self.timed(|| context.run(call));
        if code.is_success() { Ok(()) } else { Err(self.failure(code, Some(context))) }
    }

    /// As [`run`](Self::run), for a question that the driver answers with "yes" or "not ready".
    pub(crate) fn ask(
        &self,
        context: &PrimaryContext,
        call: impl FnOnce(&Table) -> CuResult,
    ) -> Result<bool> {
        match self.timed(|| context.run(call)) {
            CuResult::SUCCESS => Ok(true),
            CuResult::NOT_READY => Ok(false),
            code => Err(self.failure(code, Some(context))),
        }
    }

    /// The end of a call that destroys an object: what the registry made of it.
    pub(crate) fn destroyed(&self, answer: Option<CuResult>, id: impl std::fmt::Display) -> Result<()> {
        match answer {
            Some(CuResult::SUCCESS) => Ok(()),
            Some(code) => Err(self.failure(code, None)),
            None => Err(self.no_such(id)),
        }
    }

    /// The error for a code that the driver answered.
    pub(crate) fn failure(&self, code: CuResult, context: Option<&PrimaryContext>) -> DriverError {
        let device_memory_ran_out = code == CuResult::OUT_OF_MEMORY
            && !matches!(self.call, Call::HostAlloc | Call::HostRegister | Call::AddressReserve);
        let memory = context.filter(|_| device_memory_ran_out).and_then(memory_now);
        driver_error(&self.driver.table, self.call, code, (self.requested_bytes, memory))
    }

    /// The error for something that the driver is not asked for.
    pub(crate) fn refuse(&self, code: CuResult, detail: impl Into<String>) -> DriverError {
        refusal(self.call, code, detail)
    }

    pub(crate) fn no_such(&self, id: impl std::fmt::Display) -> DriverError {
        self.refuse(CuResult::INVALID_HANDLE, format!("{id} does not exist (any more)"))
    }

    pub(crate) fn invalid(&self, detail: impl Into<String>) -> DriverError {
        self.refuse(CuResult::INVALID_VALUE, detail)
    }

    /// The driver was shown a descriptor that stands for no memory, and answered as it does to nothing else.
    pub(crate) fn refused_descriptor(&self, number: i32) -> DriverError {
        let code = CuResult::UNKNOWN;
        let name = name_of(&self.driver.table, code);
        DriverError::new(self.call, ErrorClass::InvalidValue, code.0, name)
            .with_detail(format!("file descriptor {number} stands for no memory that can be imported here"))
    }

    /// A call that a newer driver would have.
    pub(crate) fn too_old(&self, name: &str, since: &str) -> DriverError {
        self.refuse(
            CuResult::NOT_SUPPORTED,
            format!("this driver has no {name}, which came with CUDA {since}"),
        )
    }

    /// A size that is not zero, as the driver takes it.
    pub(crate) fn size(&self, bytes: u64) -> Result<usize> {
        match usize::try_from(bytes) {
            Ok(0) => Err(self.invalid("a size of 0 bytes")),
            Ok(size) => Ok(size),
            Err(_) => Err(self.invalid(format!("a size of {bytes} bytes is beyond the address space"))),
        }
    }

    pub(crate) fn not_null(&self, ptr: DevicePtr) -> Result<u64> {
        if ptr.is_null() { Err(self.invalid("a null device address")) } else { Ok(ptr.raw()) }
    }
}

/// Whether the stream exists without anybody having made it.
pub(crate) fn is_default(stream: Stream) -> bool {
    stream.is_legacy_default() || stream.is_per_thread_default()
}

/// Free and total memory of the context's device, where it can still be asked.
fn memory_now(context: &PrimaryContext) -> Option<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both live through the call.
    let code = context.run(|cuda| unsafe { (cuda.mem_get_info)(&mut free, &mut total) });
    code.is_success().then_some(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
}

/// A stream that a call uses: it is not destroyed before the call is over.
#[derive(Debug)]
pub(crate) struct StreamInUse<'d> {
    pub(crate) raw: CuStream,
    pub(crate) context: &'d Arc<PrimaryContext>,
    _object: Option<Arc<Owned<StreamObject>>>,
}
