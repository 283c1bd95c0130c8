//! Events.

use headwater_driver::{Call, DeviceId, Event, EventOptions, Events, Result, Stream};

use crate::CudaDriver;
use crate::abi::{CuEvent, CuResult, EVENT_DISABLE_TIMING};
use crate::objects::EventObject;
use crate::registry::Owned;

impl Events for CudaDriver {
    fn event_create(&self, device: DeviceId, options: EventOptions) -> Result<Event> {
        let site = self.call(Call::EventCreate);
        let context = site.context(device)?;
        let flags = if options.timing { 0 } else { EVENT_DISABLE_TIMING };
        let mut raw = CuEvent::default();
        // SAFETY: `raw` lives through the call.
        site.run(context, |cuda| unsafe { (cuda.event_create)(&mut raw, flags) })?;
        let key = self.new_key(device);
        self.events.insert(key, Owned::new(EventObject { context: context.clone(), raw }));
        Ok(Event::from_raw(key.0, key.1))
    }

    fn event_destroy(&self, event: Event) -> Result<()> {
        let site = self.call(Call::EventDestroy);
        site.destroyed(site.timed(|| self.events.destroy((event.device(), event.raw()))), event)
    }

    fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        let site = self.call(Call::EventRecord);
        let (held_event, held_stream) = (site.event(event)?, site.stream(stream)?);
        if event.device() != stream.device() {
            return Err(
                site.refuse(CuResult::INVALID_HANDLE, format!("{event} cannot be recorded in {stream}"))
            );
        }
        // SAFETY: both are held.
        site.run(held_stream.context, |cuda| unsafe { (cuda.event_record)(held_event.raw, held_stream.raw) })
    }

    fn event_query(&self, event: Event) -> Result<bool> {
        let site = self.call(Call::EventQuery);
        let event = site.event(event)?;
        // SAFETY: the event is held.
        site.ask(&event.context, |cuda| unsafe { (cuda.event_query)(event.raw) })
    }

    fn event_synchronize(&self, event: Event) -> Result<()> {
        let site = self.call(Call::EventSynchronize);
        let event = site.event(event)?;
        // SAFETY: the event is held.
        site.run(&event.context, |cuda| unsafe { (cuda.event_synchronize)(event.raw) })
    }

    fn event_elapsed_us(&self, start: Event, end: Event) -> Result<f64> {
        let site = self.call(Call::EventElapsed);
        let (first, last) = (site.event(start)?, site.event(end)?);
        if start.device() != end.device() {
            return Err(
                site.refuse(CuResult::INVALID_HANDLE, format!("{start} and {end} have different clocks"))
            );
        }
        let mut elapsed_ms = 0_f32;
        // SAFETY: both are held; `elapsed_ms` lives through the call.
        site.run(&first.context, |cuda| unsafe {
            (cuda.event_elapsed_time)(&mut elapsed_ms, first.raw, last.raw)
        })?;
        Ok(f64::from(elapsed_ms) * 1000.0)
    }
}
