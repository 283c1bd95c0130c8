//! How fast data moves through the tiers, against the same bytes moved raw in the same run.
//!
//! ```text
//! cargo run --release -p headwater-tiers --example spill_bandwidth -- --device cuda --mib 1024 --directory /mnt/nvme
//! ```
//!
//! GPU and HOST: one buffer through `spill_to` and `prefetch` against plain pinned copies of as many bytes, one way each and both ways at
//! once. DISK: the same from and to pinned memory against bare direct transfers into a file of the same kind, without checksums.
//! On the simulated device the copies are timed by its virtual clock, which knows the measured H200; the disk is always the real one.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use headwater::config::Config;
use headwater::{CachingAllocator, DeviceChoice, Opened};
use headwater_driver::StreamOptions;
use headwater_tiers::disk::{
    AlignedBuffer, Compression, Direction, DiskIo, DiskOptions, IoChoice, Transfer, open_io,
};
use headwater_tiers::{
    DiskConfig, Fraction, GpuConfig, HostConfig, SpaceId, Spill, SpillBuffer, SpillConfig, Thresholds, Tier,
    Tiers, TiersConfig, Wait,
};

type Failure = Box<dyn Error + Send + Sync>;

const ROUNDS: usize = 5;

struct Options {
    device: DeviceChoice,
    bytes: u64,
    directory: PathBuf,
    block_bytes: u64,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options {
        device: DeviceChoice::Auto,
        bytes: 1 << 30,
        directory: std::env::temp_dir(),
        block_bytes: 2 << 20,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--device" => options.device = value.parse()?,
            "--mib" => options.bytes = value.parse::<u64>()? << 20,
            "--block-mib" => options.block_bytes = value.parse::<u64>()? << 20,
            "--directory" => options.directory = value.into(),
            _ => {
                return Err(
                    format!("unknown option {flag}: --device, --mib, --block-mib, --directory").into()
                );
            }
        }
    }
    Ok(options)
}

/// Times by the clock that the copies run on.
struct Stopwatch<'a>(&'a Opened);

impl Stopwatch<'_> {
    fn now(&self) -> Duration {
        match &self.0.sim {
            Some(sim) => Duration::from_nanos(sim.now_ns()),
            None => {
                static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
                START.get_or_init(Instant::now).elapsed()
            }
        }
    }

    /// The best of some rounds, in GB/s; `reset` runs untimed before each.
    fn best(
        &self,
        bytes: u64,
        mut reset: impl FnMut() -> Result<(), Failure>,
        mut act: impl FnMut() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let mut best = f64::MAX;
        // The first round warms caches up and is not counted.
        for round in 0..=ROUNDS {
            reset()?;
            let begun = self.now();
            act()?;
            let took = (self.now() - begun).as_secs_f64();
            if round > 0 {
                best = best.min(took);
            }
        }
        Ok(bytes as f64 / best / 1e9)
    }
}

fn row(what: &str, raw: f64, tiers: f64) {
    println!("{what:<22} {raw:>9.2} {tiers:>9.2} {:>8.1} %", 100.0 * tiers / raw);
}

/// Raw pinned copies: to the host, to the device, both at once.
fn raw_copies(watch: &Stopwatch<'_>, bytes: u64) -> Result<[f64; 3], Failure> {
    let (driver, device) = (&watch.0.driver, watch.0.device);
    let stream = || driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 });
    let (down, up) = (stream()?, stream()?);
    let (from, to) = (driver.mem_alloc(device, bytes)?, driver.mem_alloc(device, bytes)?);
    let (host_to, host_from) = (driver.host_alloc(bytes)?, driver.host_alloc(bytes)?);
    // SAFETY: both device ranges are ours, as long, and nothing uses them.
    unsafe {
        driver.fill_bytes(from, 1, bytes, down)?;
        driver.fill_bytes(to, 1, bytes, down)?;
    }
    driver.stream_synchronize(down)?;
    let ready = || Ok(());
    // SAFETY: all ranges are ours and as long, and every copy is waited for before the next.
    let copy_down = || unsafe { driver.copy_to_host(host_to.as_ptr(), from, bytes, down) };
    // SAFETY: as above.
    let copy_up = || unsafe { driver.copy_to_device(to, host_from.as_ptr(), bytes, up) };
    let speed_down = watch.best(bytes, ready, || {
        copy_down()?;
        Ok(driver.stream_synchronize(down)?)
    })?;
    let speed_up = watch.best(bytes, ready, || {
        copy_up()?;
        Ok(driver.stream_synchronize(up)?)
    })?;
    let both = watch.best(2 * bytes, ready, || {
        copy_down()?;
        copy_up()?;
        driver.stream_synchronize(down)?;
        Ok(driver.stream_synchronize(up)?)
    })?;
    for ptr in [from, to] {
        driver.mem_free(device, ptr)?;
    }
    for ptr in [host_to, host_from] {
        // SAFETY: all copies were waited for, and nobody uses the memory any more.
        unsafe { driver.host_free(ptr)? };
    }
    driver.stream_destroy(down)?;
    driver.stream_destroy(up)?;
    Ok([speed_down, speed_up, both])
}

/// Bare direct transfers of 4 MiB, as deep as the store's: writing, reading.
fn raw_disk(options: &Options, bytes: u64) -> Result<[f64; 2], Failure> {
    const PIECE: usize = 4 << 20;
    let (io, _) = open_io(&options.directory, IoChoice::Best, DiskOptions::default().depth)?;
    let depth = io.describe().depth.min(16);
    let buffers: Vec<AlignedBuffer> = (0..depth)
        .map(|_| {
            let mut buffer = AlignedBuffer::new(PIECE);
            buffer.as_mut_slice().fill(7);
            buffer
        })
        .collect();
    // As the store does once it is warm: room that is there already is written again.
    io.allocate(0, bytes)?;
    let run = |direction| -> Result<f64, Failure> {
        let mut best = f64::MAX;
        for _ in 0..4 {
            let begun = Instant::now();
            transfers(&*io, &buffers, direction, bytes)?;
            best = best.min(begun.elapsed().as_secs_f64());
        }
        Ok(bytes as f64 / best / 1e9)
    };
    Ok([run(Direction::Write)?, run(Direction::Read)?])
}

fn transfers(
    io: &dyn DiskIo,
    buffers: &[AlignedBuffer],
    direction: Direction,
    bytes: u64,
) -> Result<(), Failure> {
    let mut queue = io.queue()?;
    let mut idle: Vec<usize> = (0..buffers.len()).collect();
    let (mut offset, mut under_way) = (0, 0);
    while offset < bytes || under_way > 0 {
        if offset < bytes
            && let Some(slot) = idle.pop()
        {
            let len = (bytes - offset).min(buffers[slot].bytes() as u64) as usize;
            let transfer =
                Transfer { direction, memory: buffers[slot].start(), bytes: len, offset, tag: slot as u64 };
            // SAFETY: each buffer has one transfer at a time, and outlives the queue.
            unsafe { queue.push(transfer)? };
            (offset, under_way) = (offset + len as u64, under_way + 1);
        } else if let Some(done) = queue.pop() {
            done.result?;
            idle.push(done.tag as usize);
            under_way -= 1;
        }
    }
    Ok(())
}

fn engine(opened: &Opened, options: &Options) -> Result<Spill, Failure> {
    let marks = Thresholds {
        reservation_limit: Fraction::WHOLE,
        downgrade_trigger: Fraction::WHOLE,
        downgrade_stop: Fraction::WHOLE,
    };
    let allocator = CachingAllocator::new(opened.driver.clone(), opened.device, Config::default())?;
    let mut gpu = GpuConfig::new(allocator, 4 * options.bytes);
    gpu.thresholds = marks;
    let staging = 32 * options.block_bytes;
    let mut host = HostConfig::new(0, 3 * options.bytes + staging);
    host.thresholds = marks;
    host.pinned.block_bytes = options.block_bytes;
    host.pinned.blocks_per_slab = u32::try_from((options.bytes / options.block_bytes).max(1))?;
    host.pinned.initial_slabs = 4;
    let mut disk = DiskConfig::new(&options.directory, 4 * options.bytes);
    disk.options =
        DiskOptions { compression: Compression::Off, keep_free_bytes: 64 << 20, ..DiskOptions::default() };
    let tiers = TiersConfig::default().driver(opened.driver.clone()).gpu(gpu).host(host).disk(disk);
    Ok(Spill::new(Tiers::new(tiers)?, SpillConfig { background: false, ..SpillConfig::default() })?)
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    let opened = headwater::open(options.device)?;
    let (device, bytes) = (opened.device, options.bytes);
    println!("{}: {}", opened.driver.backend(), opened.why);
    let watch = Stopwatch(&opened);
    let patience = Wait::at_most(Duration::from_secs(600));
    let raw = raw_copies(&watch, bytes)?;
    let spill = engine(&opened, &options)?;
    if let Some(store) = spill.store(SpaceId::disk(0)) {
        println!("disk: {} in {}", store.describe(), options.directory.display());
    }
    println!("\n{:<22} {:>9} {:>9} {:>10}", format!("{} MiB, GB/s", bytes >> 20), "raw", "tiers", "ratio");
    let buffer: SpillBuffer<u8> = spill.buffer(bytes as usize, device, &patience)?;
    let other: SpillBuffer<u8> = spill.buffer(bytes as usize, device, &patience)?;
    let down = |buffer: &SpillBuffer<u8>| Ok(buffer.spill_to(Tier::Host, &patience)?);
    // A restore is over when the device has the bytes: the access's stream waits for them, and the host for the stream.
    let stream = opened.driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
    let up = |buffer: &SpillBuffer<u8>| -> Result<(), Failure> {
        drop(buffer.read_on_gpu(stream, &patience)?);
        Ok(opened.driver.stream_synchronize(stream)?)
    };
    row("GPU to HOST", raw[0], watch.best(bytes, || up(&buffer), || down(&buffer))?);
    row("HOST to GPU", raw[1], watch.best(bytes, || down(&buffer), || up(&buffer))?);
    let both = watch.best(
        2 * bytes,
        || down(&other).and_then(|()| up(&buffer)),
        || {
            std::thread::scope(|scope| {
                let going_up = scope.spawn(|| up(&other));
                down(&buffer)?;
                going_up.join().map_err(|_| "a mover panicked")?
            })
        },
    )?;
    row("both ways", raw[2], both);
    drop(other);
    disk_rows(&options, &spill, &buffer, &patience)?;
    drop(buffer);
    Ok(opened.driver.stream_destroy(stream)?)
}

fn disk_rows(
    options: &Options,
    spill: &Spill,
    buffer: &SpillBuffer<u8>,
    patience: &Wait,
) -> Result<(), Failure> {
    let bytes = options.bytes;
    // Bytes that no disk can guess.
    let noise: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8).collect();
    buffer.write_on_host(patience)?.copy_from_slice(&noise)?;
    let raw = raw_disk(options, bytes)?;
    let best = |reset: &dyn Fn() -> Result<(), Failure>, act: &dyn Fn() -> Result<(), Failure>| {
        let mut best = f64::MAX;
        for _ in 0..4 {
            reset()?;
            let begun = Instant::now();
            act()?;
            best = best.min(begun.elapsed().as_secs_f64());
        }
        Ok::<_, Failure>(bytes as f64 / best / 1e9)
    };
    let to_disk = || Ok(buffer.spill_to(Tier::Disk, patience)?);
    let to_host = || Ok(buffer.read_on_host(patience).map(drop)?);
    row("HOST to DISK", raw[0], best(&to_host, &to_disk)?);
    row("DISK to HOST", raw[1], best(&to_disk, &to_host)?);
    let device = spill.tiers().spaces()[0].id().place();
    let to_gpu = || Ok(buffer.prefetch(headwater_driver::DeviceId(device), patience)?);
    row("GPU to DISK", raw[0], best(&to_gpu, &to_disk)?);
    row("DISK to GPU", raw[1], best(&to_disk, &to_gpu)?);
    to_gpu()?;
    let back = buffer.read_on_host(patience)?.to_vec()?;
    if back != noise {
        return Err("wrong bytes came back".into());
    }
    println!();
    let text = spill.figures().prometheus_text();
    for line in text.lines().filter(|line| line.contains("spill_bytes_total{")) {
        println!("{line}");
    }
    Ok(())
}
