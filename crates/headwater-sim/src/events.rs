//! Events.

use headwater_driver::{Call, DeviceId, Event, EventOptions, Events, Result, Stream};

use crate::machine::{EventPoint, EventState, Machine};
use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;

impl Events for SimDriver {
    fn event_create(&self, device: DeviceId, options: EventOptions) -> Result<Event> {
        let mut machine = self.enter_on(Call::EventCreate, device, 0)?;
        let made_at_ns = machine.now_ns;
        let state = EventState { device, timing: options.timing, made_at_ns, point: EventPoint::Never };
        Ok(Event::from_raw(device, machine.events.insert(state)))
    }

    fn event_destroy(&self, event: Event) -> Result<()> {
        let mut machine = self.enter(Call::EventDestroy, 0)?;
        machine.event(Call::EventDestroy, event)?;
        machine.events.remove(event.raw());
        Ok(())
    }

    fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        let call = Call::EventRecord;
        let mut machine = self.enter(call, 0)?;
        machine.event(call, event)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        if event.device() != stream.device() {
            let why = format!("{event} cannot be recorded in {stream}");
            return Err(Refusal::InvalidHandle.of(call).with_detail(why));
        }
        machine.forbid_implicit(call, key)?;
        machine.is_captured(call, key)?;
        let point = match machine.captured_point(key) {
            Some(point) => point,
            None => machine.point_of(key),
        };
        if let Some(state) = machine.events.get_mut(event.raw()) {
            state.point = point;
        }
        Ok(())
    }

    fn event_query(&self, event: Event) -> Result<bool> {
        let mut machine = self.enter(Call::EventQuery, 0)?;
        let time_ns = machine.waitable(Call::EventQuery, event)?;
        if time_ns > machine.now_ns {
            machine.poll();
            return Ok(false);
        }
        machine.host_knows_event(event);
        Ok(true)
    }

    fn event_synchronize(&self, event: Event) -> Result<()> {
        let call = Call::EventSynchronize;
        let mut machine = self.enter(call, 0)?;
        let time_ns = machine.waitable(call, event)?;
        machine.advance_to(time_ns);
        machine.host_knows_event(event);
        machine.device(call, event.device()).map(drop)
    }

    fn event_elapsed_us(&self, start: Event, end: Event) -> Result<f64> {
        let call = Call::EventElapsed;
        let machine = self.enter(call, 0)?;
        let time_of = |event: Event| {
            let state = machine.event(call, event)?;
            match &state.point {
                _ if !state.timing => {
                    Err(Refusal::InvalidHandle.of(call).with_detail(format!("{event} keeps no time")))
                }
                EventPoint::Never => {
                    Err(Refusal::InvalidHandle.of(call).with_detail(format!("{event} was never recorded")))
                }
                EventPoint::Captured { .. } => Err(Refusal::CapturedEvent.of(call)),
                EventPoint::At { time_ns, .. } => Ok(*time_ns),
            }
        };
        let (start_ns, end_ns) = (time_of(start)?, time_of(end)?);
        if start_ns.max(end_ns) > machine.now_ns {
            return Err(Refusal::NotReady.of(call));
        }
        Ok((end_ns as f64 - start_ns as f64) / 1000.0)
    }
}

impl Machine {
    /// The event called `event`, on a device that is not lost.
    pub(crate) fn event(&self, call: Call, event: Event) -> Result<&EventState> {
        match self.events.get(event.raw()) {
            Some(state) if state.device == event.device() => {
                self.device(call, state.device)?;
                Ok(state)
            }
            _ => Err(Refusal::InvalidHandle.of(call).with_detail(format!("{event} does not exist"))),
        }
    }

    /// When the host may go on that asks or waits for `event`; an error, and a lost capture, where it must not ask.
    fn waitable(&mut self, call: Call, event: Event) -> Result<u64> {
        let point = match &self.event(call, event)?.point {
            EventPoint::Never => Ok(0),
            EventPoint::At { time_ns, .. } => Ok(*time_ns),
            EventPoint::Captured { capture, .. } => Err(*capture),
        };
        if let Err(capture) = point
            && self.invalidate_capture(capture)
        {
            return Err(Refusal::CapturedEvent.of(call));
        }
        self.forbid_unsafe(call)?;
        point.map_err(|_| {
            let why = format!("{event} was recorded in a capture that has ended");
            Refusal::InvalidValue.of(call).with_detail(why)
        })
    }

    fn host_knows_event(&mut self, event: Event) {
        if let Some(state) = self.events.get_mut(event.raw())
            && let EventPoint::At { clock, known, .. } = &mut state.point
            && !*known
        {
            *known = true;
            self.detector.host_learns(clock);
        }
    }
}
