//! GPU and HOST: one buffer through the tiers against one plain copy of pinned memory.

use std::ptr::NonNull;

use headwater_driver::{DevicePtr, Stream};
use headwater_tiers::{Spill, SpillBuffer, Tier};

use crate::setting::{Compared, Failure, Setting, median};

/// Raw speeds in GB/s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCopies {
    pub(crate) down: f64,
    pub(crate) up: f64,
    pub(crate) both: f64,
}

/// Memory and streams for plain copies.
struct Plain<'a> {
    setting: &'a Setting,
    down: Stream,
    up: Stream,
    device_from: DevicePtr,
    device_to: DevicePtr,
    host_from: NonNull<u8>,
    host_to: NonNull<u8>,
}

impl<'a> Plain<'a> {
    fn new(setting: &'a Setting) -> Result<Self, Failure> {
        let (driver, device, bytes) = (&setting.opened.driver, setting.opened.device, setting.bytes);
        let plain = Self {
            setting,
            down: setting.stream()?,
            up: setting.stream()?,
            device_from: driver.mem_alloc(device, bytes)?,
            device_to: driver.mem_alloc(device, bytes)?,
            host_from: driver.host_alloc(bytes)?,
            host_to: driver.host_alloc(bytes)?,
        };
        // SAFETY: the ranges are ours and as long. Host memory is written once so that its pages are there.
        unsafe {
            setting.fill(plain.device_from, bytes, 1, plain.down)?;
            driver.fill_bytes(plain.device_to, 0, bytes, plain.down)?;
            plain.host_from.write_bytes(1, bytes as usize);
            plain.host_to.write_bytes(1, bytes as usize);
        }
        driver.stream_synchronize(plain.down)?;
        Ok(plain)
    }

    fn copy(&self, down: bool, up: bool) -> Result<(), Failure> {
        let (driver, bytes) = (&self.setting.opened.driver, self.setting.bytes);
        if down {
            // SAFETY: both ranges are ours and as long, and the copy is waited for below.
            unsafe { driver.copy_to_host(self.host_to.as_ptr(), self.device_from, bytes, self.down)? };
        }
        if up {
            // SAFETY: as above.
            unsafe { driver.copy_to_device(self.device_to, self.host_from.as_ptr(), bytes, self.up)? };
        }
        driver.stream_synchronize(self.down)?;
        Ok(driver.stream_synchronize(self.up)?)
    }

    fn end(self) -> Result<(), Failure> {
        let (driver, device) = (&self.setting.opened.driver, self.setting.opened.device);
        for ptr in [self.device_from, self.device_to] {
            driver.mem_free(device, ptr)?;
        }
        for ptr in [self.host_from, self.host_to] {
            // SAFETY: every copy was waited for, and nobody uses the memory any more.
            unsafe { driver.host_free(ptr)? };
        }
        driver.stream_destroy(self.down)?;
        Ok(driver.stream_destroy(self.up)?)
    }
}

/// Both ways from one thread, for a clock that all threads share: a small buffer is sent up without waiting for it, and another
/// down meanwhile.
struct Pieces {
    buffers: [SpillBuffer<u8>; 2],
    bytes: u64,
}

impl Pieces {
    fn new(setting: &Setting, spill: &Spill) -> Result<Self, Failure> {
        let bytes = setting.bytes / 8;
        let make = || spill.buffer(bytes as usize, setting.opened.device, &Setting::patience());
        Ok(Self { buffers: [make()?, make()?], bytes })
    }

    fn both_ways(&self, setting: &Setting, stream: Stream) -> Result<f64, Failure> {
        let patience = Setting::patience();
        let [one, two] = &self.buffers;
        two.spill_to(Tier::Host, &patience)?;
        drop(one.read_on_gpu(stream, &patience)?);
        setting.opened.driver.stream_synchronize(stream)?;
        setting.time(|| {
            drop(two.read_on_gpu(stream, &patience)?);
            one.spill_to(Tier::Host, &patience)?;
            Ok(setting.opened.driver.stream_synchronize(stream)?)
        })
    }
}

pub(crate) fn measure(setting: &Setting) -> Result<RawCopies, Failure> {
    let (bytes, patience) = (setting.bytes, Setting::patience());
    let (driver, device) = (&setting.opened.driver, setting.opened.device);
    let plain = Plain::new(setting)?;
    let spill = setting.engine(3 * bytes, 3 * bytes)?;
    let one: SpillBuffer<u8> = spill.buffer(bytes as usize, device, &patience)?;
    let two: SpillBuffer<u8> = spill.buffer(bytes as usize, device, &patience)?;
    let stream = setting.stream()?;
    for (buffer, seed) in [(&one, 1_000_000), (&two, 2_000_000)] {
        let access = buffer.write_on_gpu(stream, &patience)?;
        // SAFETY: the access has pinned the bytes for this stream.
        unsafe { setting.fill(access.ptr(), bytes, seed, stream)? };
    }
    driver.stream_synchronize(stream)?;
    let down =
        |buffer: &SpillBuffer<u8>| -> Result<(), Failure> { Ok(buffer.spill_to(Tier::Host, &patience)?) };
    // A restore is over when the device has the bytes: the access's stream waits for them, and the host for the stream.
    let up = |buffer: &SpillBuffer<u8>| -> Result<(), Failure> {
        drop(buffer.read_on_gpu(stream, &patience)?);
        Ok(driver.stream_synchronize(stream)?)
    };
    let pieces = Pieces::new(setting, &spill)?;
    let mut seconds: [Vec<f64>; 6] = Default::default();
    // The first round warms caches up and is not counted.
    for round in 0..=setting.rounds {
        let raw_down = setting.time(|| plain.copy(true, false))?;
        let tiers_down = setting.time(|| down(&one))?;
        let raw_up = setting.time(|| plain.copy(false, true))?;
        let tiers_up = setting.time(|| up(&one))?;
        down(&two)?;
        let raw_both = setting.time(|| plain.copy(true, true))?;
        let tiers_both = if setting.is_simulated() {
            pieces.both_ways(setting, stream)? * bytes as f64 / pieces.bytes as f64
        } else {
            setting.time(|| {
                std::thread::scope(|scope| {
                    let going_up = scope.spawn(|| up(&two));
                    down(&one)?;
                    going_up.join().map_err(|_| "a mover panicked")?
                })
            })?
        };
        up(&one)?;
        up(&two)?;
        if round > 0 {
            let times = [raw_down, tiers_down, raw_up, tiers_up, raw_both, tiers_both];
            seconds.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
    }
    for (buffer, seed) in [(&one, 1_000_000), (&two, 2_000_000)] {
        let access = buffer.read_on_gpu(stream, &patience)?;
        // SAFETY: the access has pinned the bytes for this stream.
        unsafe { setting.check(access.ptr(), bytes, seed, stream)? };
    }
    drop((one, two, pieces, spill));
    plain.end()?;
    driver.stream_destroy(stream)?;
    let [raw_down, tiers_down, raw_up, tiers_up, raw_both, tiers_both] = seconds.map(median);
    let speed = |bytes: u64, seconds: f64| bytes as f64 / seconds / 1e9;
    let raw = RawCopies {
        down: speed(bytes, raw_down),
        up: speed(bytes, raw_up),
        both: speed(2 * bytes, raw_both),
    };
    setting.say(&format!(
        "\n{:<22} {:>9} {:>9} {:>10}   target",
        format!("{} MiB, GB/s", bytes >> 20),
        "raw",
        "tiers",
        "share"
    ));
    let row = |what, raw, tiers| setting.print(&Compared { what, raw, tiers, target: 0.95 });
    row("GPU to HOST", raw.down, speed(bytes, tiers_down));
    row("HOST to GPU", raw.up, speed(bytes, tiers_up));
    row("both ways", raw.both, speed(2 * bytes, tiers_both));
    Ok(raw)
}
