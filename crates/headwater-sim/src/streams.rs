//! Streams.

use headwater_driver::{Call, DeviceId, Event, Result, Stream, StreamOptions, Streams};

use crate::machine::EventPoint;
use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;

impl Streams for SimDriver {
    /// Priorities are accepted and change nothing: simulated streams never compete.
    fn stream_create(&self, device: DeviceId, options: StreamOptions) -> Result<Stream> {
        let mut machine = self.enter_on(Call::StreamCreate, device, 0)?;
        Ok(machine.create_stream(self.view(), device, options.non_blocking))
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.enter(Call::StreamDestroy, 0)?.destroy_stream(Call::StreamDestroy, self.view(), stream)
    }

    unsafe fn stream_adopt(&self, device: DeviceId, raw: u64) -> Result<Stream> {
        let mut machine = self.enter(Call::StreamAdopt, 0)?;
        machine.adopt_stream(Call::StreamAdopt, self.view(), Stream::from_raw(device, raw))
    }

    fn stream_forget(&self, stream: Stream) -> Result<()> {
        // No call of CUDA's: the stream only leaves our table.
        self.machine().forget_stream(Call::StreamAdopt, self.view(), stream)
    }

    fn stream_query(&self, stream: Stream) -> Result<bool> {
        let call = Call::StreamQuery;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        machine.forbid_asking(call, key)?;
        Ok(machine.stream_is_done(key))
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let call = Call::StreamSynchronize;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        machine.forbid_asking(call, key)?;
        machine.wait_for_stream(key);
        // What ended just now may have used an address it may not.
        machine.device(call, stream.device()).map(drop)
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        let call = Call::StreamWaitEvent;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        let point = machine.event(call, event)?.point.clone();
        machine.forbid_implicit(call, key)?;
        let captured = machine.is_captured(call, key)?;
        match point {
            EventPoint::Never => Ok(()),
            EventPoint::At { .. } if captured => machine.forbid_captured(call, key).map_err(|_| {
                Refusal::CaptureIsolation.of(call).with_detail(format!("{event} was recorded outside"))
            }),
            EventPoint::At { time_ns, clock, .. } => {
                machine.wait_for_point(key, time_ns, &clock);
                Ok(())
            }
            EventPoint::Captured { capture, frontier } => {
                machine.wait_for_captured(call, key, capture, &frontier)
            }
        }
    }
}
