//! Streams: ours, the default ones, and somebody else's.

use headwater_driver::{Call, DeviceId, Event, Result, Stream, StreamOptions, Streams};

use crate::CudaDriver;
use crate::abi::{CuContext, CuResult, CuStream, STREAM_NON_BLOCKING};
use crate::call_site::{CallSite, is_default};
use crate::objects::StreamObject;
use crate::registry::Owned;

impl Streams for CudaDriver {
    fn stream_create(&self, device: DeviceId, options: StreamOptions) -> Result<Stream> {
        let site = self.call(Call::StreamCreate);
        let context = site.context(device)?;
        let flags = if options.non_blocking { STREAM_NON_BLOCKING } else { 0 };
        let mut raw = CuStream::default();
        // SAFETY: `raw` lives through the call; the driver clamps the priority.
        site.run(context, |cuda| unsafe { (cuda.stream_create)(&mut raw, flags, options.priority) })?;
        let stream = Stream::from_raw(device, raw.0 as u64);
        let object = StreamObject { context: context.clone(), raw, adopted: false };
        // In place of an adopted stream that was destroyed without being forgotten, where CUDA uses its value again.
        self.streams.insert((device, stream.raw()), Owned::new(object));
        Ok(stream)
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        let site = self.call(Call::StreamDestroy);
        if is_default(stream) {
            return Err(site.refuse(CuResult::INVALID_HANDLE, format!("{stream} cannot be destroyed")));
        }
        let key = (stream.device(), stream.raw());
        let answer = self.streams.destroy_if(key, |object| !object.adopted);
        if answer.is_none() && self.streams.contains(key) {
            let detail = format!("{stream} was adopted: who made it destroys it");
            return Err(site.refuse(CuResult::INVALID_HANDLE, detail));
        }
        site.destroyed(answer, stream)
    }

    unsafe fn stream_adopt(&self, device: DeviceId, raw: u64) -> Result<Stream> {
        let site = self.call(Call::StreamAdopt);
        let context = site.context(device)?;
        let stream = Stream::from_raw(device, raw);
        let key = (device, stream.raw());
        if is_default(stream) || self.streams.contains(key) {
            return Ok(stream);
        }
        let raw = usize::try_from(raw).map(CuStream).map_err(|_| site.no_such(stream))?;
        if let Some(stream_get_id) = self.table.stream_get_id {
            let mut id = 0;
            // SAFETY: the caller vouches that the stream is alive; `id` lives through the call.
            site.run(context, |_| unsafe { stream_get_id(raw, &mut id) })?;
        }
        if let Some(stream_get_ctx) = self.table.stream_get_ctx {
            let mut owner = CuContext::default();
            // SAFETY: as above.
            match context.run(|_| unsafe { stream_get_ctx(raw, &mut owner) }) {
                CuResult::SUCCESS if owner != context.raw() => {
                    let detail = format!("{stream} is not in the primary context of {device}");
                    return Err(site.refuse(CuResult::INVALID_HANDLE, detail));
                }
                // Not an answer for streams of green contexts in some versions; the caller has vouched for it.
                CuResult::SUCCESS | CuResult::NOT_SUPPORTED => {}
                code => return Err(site.failure(code, Some(context))),
            }
        }
        let object = StreamObject { context: context.clone(), raw, adopted: true };
        // Another thread may have adopted it meanwhile, which is as good.
        self.streams.insert_new(key, Owned::new(object));
        Ok(stream)
    }

    fn stream_forget(&self, stream: Stream) -> Result<()> {
        // Nothing of the driver's is called, so nothing is counted; the error has to name a call nevertheless.
        let site = CallSite::uncounted(self, Call::StreamAdopt);
        let forgotten = self.streams.remove_if((stream.device(), stream.raw()), |object| object.adopted);
        match forgotten {
            Some(_) => Ok(()),
            None => Err(site.refuse(CuResult::INVALID_HANDLE, format!("{stream} was not adopted"))),
        }
    }

    fn stream_query(&self, stream: Stream) -> Result<bool> {
        let site = self.call(Call::StreamQuery);
        let stream = site.stream(stream)?;
        // SAFETY: the stream is held.
        site.ask(stream.context, |cuda| unsafe { (cuda.stream_query)(stream.raw) })
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let site = self.call(Call::StreamSynchronize);
        let stream = site.stream(stream)?;
        // SAFETY: the stream is held.
        site.run(stream.context, |cuda| unsafe { (cuda.stream_synchronize)(stream.raw) })
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        let site = self.call(Call::StreamWaitEvent);
        let (stream, event) = (site.stream(stream)?, site.event(event)?);
        // SAFETY: both are held; zero: wait as usual.
        site.run(stream.context, |cuda| unsafe { (cuda.stream_wait_event)(stream.raw, event.raw, 0) })
    }
}
