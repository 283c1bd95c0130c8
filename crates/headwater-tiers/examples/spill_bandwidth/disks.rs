//! DISK: one buffer through the tiers against bare direct transfers, as large and as many at once, without checksums.

use std::sync::Arc;
use std::time::Instant;

use headwater_tiers::disk::{AlignedBuffer, Direction, DiskIo, DiskOptions, IoChoice, Transfer, open_io};
use headwater_tiers::{SpaceId, SpillBuffer, Tier};

use crate::setting::{Compared, Failure, Setting, median};

/// Raw speeds in GB/s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawDisk {
    pub(crate) write: f64,
    pub(crate) read: f64,
}

/// A file of the same kind as the store's, and memory to fill it from.
struct Plain {
    io: Arc<dyn DiskIo>,
    buffers: Vec<AlignedBuffer>,
    bytes: u64,
}

impl Plain {
    fn new(setting: &Setting) -> Result<Self, Failure> {
        let depth = DiskOptions::default().depth;
        let (io, _) = open_io(&setting.directory, IoChoice::Best, depth)?;
        let buffer = |slot| {
            let mut buffer = AlignedBuffer::new(setting.block_bytes as usize);
            let noise = buffer.as_mut_slice().iter_mut().zip(noise(slot));
            noise.for_each(|(byte, noise)| *byte = noise);
            buffer
        };
        let buffers = (0..depth as u64).map(buffer).collect();
        // As the store does once it is warm: room that is there already is written again.
        io.allocate(0, setting.bytes)?;
        Ok(Self { io, buffers, bytes: setting.bytes })
    }

    /// Moves all bytes, and says how long that took.
    fn run(&self, direction: Direction) -> Result<f64, Failure> {
        let begun = Instant::now();
        let mut queue = self.io.queue()?;
        let mut idle: Vec<usize> = (0..self.buffers.len()).collect();
        let (mut offset, mut under_way) = (0, 0);
        while offset < self.bytes || under_way > 0 {
            if offset < self.bytes
                && queue.in_flight() < queue.depth()
                && let Some(slot) = idle.pop()
            {
                let buffer = &self.buffers[slot];
                let bytes = (self.bytes - offset).min(buffer.bytes() as u64) as usize;
                let transfer =
                    Transfer { direction, memory: buffer.start(), bytes, offset, tag: slot as u64 };
                // SAFETY: each buffer has one transfer at a time, and outlives the queue.
                unsafe { queue.push(transfer)? };
                (offset, under_way) = (offset + bytes as u64, under_way + 1);
            } else if let Some(done) = queue.pop() {
                let slot = done.tag as usize;
                done.result?;
                idle.push(slot);
                under_way -= 1;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Bytes that no disk can guess.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    (0..u64::MAX).map(move |i| ((i ^ (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8)
}

pub(crate) fn measure(setting: &Setting) -> Result<RawDisk, Failure> {
    let (bytes, patience, device) = (setting.bytes, Setting::patience(), setting.opened.device);
    let spill = setting.engine(2 * bytes, 2 * bytes)?;
    if let Some(store) = spill.store(SpaceId::disk(0)) {
        setting.say(&format!("\ndisk: {} in {}", store.describe(), setting.directory.display()));
    }
    let buffer: SpillBuffer<u8> = spill.buffer(bytes as usize, device, &patience)?;
    let written: Vec<u8> = noise(99).take(bytes as usize).collect();
    buffer.write_on_host(&patience)?.copy_from_slice(&written)?;
    let plain = Plain::new(setting)?;
    let to_disk = || -> Result<(), Failure> { Ok(buffer.spill_to(Tier::Disk, &patience)?) };
    let to_host = || -> Result<(), Failure> { Ok(buffer.read_on_host(&patience).map(drop)?) };
    let to_gpu = || -> Result<(), Failure> {
        buffer.prefetch(device, &patience)?;
        Ok(())
    };
    let time = |act: &dyn Fn() -> Result<(), Failure>| -> Result<f64, Failure> {
        let begun = Instant::now();
        act()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut seconds: [Vec<f64>; 6] = Default::default();
    for round in 0..=setting.disk_rounds {
        let raw_write = plain.run(Direction::Write)?;
        let host_to_disk = time(&to_disk)?;
        let raw_read = plain.run(Direction::Read)?;
        let disk_to_host = time(&to_host)?;
        to_gpu()?;
        let gpu_to_disk = time(&to_disk)?;
        let disk_to_gpu = time(&to_gpu)?;
        to_host()?;
        // The first round writes room that was never written before.
        if round > 0 {
            let times = [raw_write, host_to_disk, raw_read, disk_to_host, gpu_to_disk, disk_to_gpu];
            seconds.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
    }
    if buffer.read_on_host(&patience)?.to_vec()? != written {
        return Err("wrong bytes came back from the disk".into());
    }
    let speeds = seconds.map(|seconds| bytes as f64 / median(seconds) / 1e9);
    let [raw_write, host_to_disk, raw_read, disk_to_host, gpu_to_disk, disk_to_gpu] = speeds;
    let row = |what, raw, tiers| setting.print(&Compared { what, raw, tiers, target: 0.90 });
    row("HOST to DISK", raw_write, host_to_disk);
    row("DISK to HOST", raw_read, disk_to_host);
    row("GPU to DISK", raw_write, gpu_to_disk);
    row("DISK to GPU", raw_read, disk_to_gpu);
    Ok(RawDisk { write: raw_write, read: raw_read })
}
