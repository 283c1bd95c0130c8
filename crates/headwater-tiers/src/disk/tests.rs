//! Images there and back, on the real file system of the machine and on the twin with faults.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;

const KIB: usize = 1024;

/// A directory of one's own that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("headwater-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(io: IoChoice, compression: Compression) -> DiskOptions {
    DiskOptions { io, compression, keep_free_bytes: 0, idle_bytes_max: 0, depth: 8 }
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Chunks in aligned memory.
struct Memory {
    chunks: Vec<(AlignedBuffer, usize)>,
}

impl Memory {
    fn of(data: &[u8], chunk_bytes: usize) -> Self {
        let chunk = |part: &[u8]| {
            let mut buffer = AlignedBuffer::new(chunk_bytes);
            buffer.as_mut_slice()[..part.len()].copy_from_slice(part);
            (buffer, part.len())
        };
        Self { chunks: data.chunks(chunk_bytes).map(chunk).collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|(buffer, bytes)| buffer.as_slice()[..*bytes].to_vec()).collect()
    }
}

fn write(store: &DiskStore, data: &[u8], chunk_bytes: usize) -> Result<StoredImage, DiskError> {
    let memory = Memory::of(data, chunk_bytes);
    let mut writer = store.writer(data.len() as u64, chunk_bytes as u64)?;
    for (chunk, (buffer, bytes)) in memory.chunks.iter().enumerate() {
        // SAFETY: the memory is declared before the writer, and is not written.
        unsafe { writer.write(chunk, ChunkMemory::of(buffer, *bytes))? };
    }
    writer.finish()
}

fn read(store: &DiskStore, image: &StoredImage, chunk_bytes: usize) -> Result<Vec<u8>, DiskError> {
    let memory = Memory::of(&vec![0; image.raw_bytes() as usize], chunk_bytes);
    let mut reader = store.reader(image)?;
    for (chunk, (buffer, bytes)) in memory.chunks.iter().enumerate() {
        // SAFETY: the memory is declared before the reader, and is not touched.
        unsafe { reader.read(chunk, ChunkMemory::of(buffer, *bytes))? };
    }
    reader.finish()?;
    Ok(memory.bytes())
}

#[test]
fn images_come_back_as_they_went_by_every_way_that_works_here() {
    let scratch = Scratch::new("ways");
    for choice in [IoChoice::Best, IoChoice::DirectUring, IoChoice::DirectThreads, IoChoice::Buffered] {
        for compression in [Compression::Off, Compression::Always] {
            let store = match DiskStore::open(&scratch.0, options(choice, compression)) {
                Ok(store) => store,
                // A machine without io_uring or direct I/O has fewer ways, but always the best and the last.
                Err(_) if matches!(choice, IoChoice::DirectUring | IoChoice::DirectThreads) => continue,
                Err(error) => panic!("{choice:?}: {error}"),
            };
            let mut images = Vec::new();
            for bytes in [0, 1, 4095, 4096, 4097, 300 * KIB + 17, 2048 * KIB] {
                let mut data = pattern(bytes, bytes as u64);
                // Half of it can be compressed.
                data[..bytes / 2].fill(7);
                images.push((write(&store, &data, 64 * KIB).unwrap(), data));
            }
            assert_eq!(store.usage().images, images.len() as u64);
            for (image, data) in &images {
                assert!(read(&store, image, 64 * KIB).unwrap() == *data, "{} bytes", data.len());
            }
            if cfg!(feature = "lz4") && compression == Compression::Always {
                assert!(store.usage().stored_bytes < store.usage().raw_bytes, "{}", store.describe());
            }
            assert_eq!(scratch.entries(), 0, "the file has no name: {}", store.describe());
            drop(images);
            assert_eq!(store.usage(), DiskUse { rereads: 0, ..DiskUse::default() });
            assert_eq!(store.in_flight(), 0);
        }
    }
}

#[test]
fn left_overs_of_a_crash_are_removed_and_what_is_in_use_or_foreign_is_not() {
    let scratch = Scratch::new("sweep");
    let touch = |name: &str| {
        let path = scratch.0.join(name);
        std::fs::write(&path, b"x").unwrap();
        path
    };
    let left_over = touch(&super::sweep::fresh_name());
    let in_use = touch(&super::sweep::fresh_name());
    let foreign = touch("headwater-spill-notes.txt");
    let linked = scratch.0.join(super::sweep::fresh_name());
    std::os::unix::fs::symlink(&foreign, &linked).unwrap();
    let owner = std::fs::File::open(&in_use).unwrap();
    assert!(super::sweep::try_lock(&owner));

    let _store = DiskStore::open(&scratch.0, options(IoChoice::Best, Compression::Off)).unwrap();
    let there = |path: &Path| path.symlink_metadata().is_ok();
    assert_eq!([&left_over, &in_use, &foreign, &linked].map(|path| there(path)), [false, true, true, true]);
}

#[test]
fn the_file_is_the_owners_alone() {
    let scratch = Scratch::new("mode");
    for is_direct in [true, false] {
        let Ok(file) = super::file::SpillFile::create(&scratch.0, is_direct) else { continue };
        assert_eq!(file.file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_directory_that_is_not_there_is_named_and_one_that_goes_away_takes_nothing_along() {
    let scratch = Scratch::new("gone");
    let missing = scratch.0.join("missing");
    let error = DiskStore::open(&missing, DiskOptions::default()).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");

    let inside = scratch.0.join("inside");
    std::fs::create_dir(&inside).unwrap();
    let store = DiskStore::open(&inside, options(IoChoice::Best, Compression::Off)).unwrap();
    let data = pattern(100 * KIB, 1);
    let image = write(&store, &data, 64 * KIB).unwrap();
    std::fs::remove_dir(&inside).unwrap();
    assert!(read(&store, &image, 64 * KIB).unwrap() == data);
}

#[test]
fn a_full_disk_and_a_floor_of_free_space_are_errors_with_numbers() {
    let io = Arc::new(MemoryIo::new(1 << 20, 1));
    let store = DiskStore::with_io(io.clone(), options(IoChoice::Best, Compression::Off));
    let kept = write(&store, &pattern(600 * KIB, 1), 64 * KIB).unwrap();
    let error = write(&store, &pattern(600 * KIB, 2), 64 * KIB).unwrap_err();
    assert!(
        matches!(error, DiskError::Full { requested_bytes: 614_400, free_bytes: 434_176, .. }),
        "{error:?}"
    );
    assert!(read(&store, &kept, 64 * KIB).unwrap() == pattern(600 * KIB, 1));
    drop(kept);
    assert_eq!(io.taken_bytes(), 0);

    let careful = DiskOptions { keep_free_bytes: 1 << 20, ..options(IoChoice::Best, Compression::Off) };
    let error = write(&DiskStore::with_io(io, careful), &[1], 4096).unwrap_err();
    assert!(matches!(error, DiskError::Full { keep_free_bytes: 1_048_576, .. }), "{error:?}");
}

#[test]
fn a_flipped_bit_is_an_error_if_it_stays_and_read_again_if_it_does_not() {
    let io = Arc::new(MemoryIo::new(1 << 22, 3));
    for compression in [Compression::Off, Compression::Always] {
        let store = DiskStore::with_io(io.clone(), options(IoChoice::Best, compression));
        let data = vec![5; 256 * KIB];
        let image = write(&store, &data, 64 * KIB).unwrap();
        io.set_faults(DiskFaults { flipped_in_flight: 0.2, ..DiskFaults::default() });
        let mut good = 0;
        for _ in 0..50 {
            match read(&store, &image, 64 * KIB) {
                Ok(back) => {
                    good += 1;
                    assert!(back == data);
                }
                Err(error) => assert!(matches!(error, DiskError::Corrupt { .. }), "{error}"),
            }
        }
        assert!(good > 0 && store.usage().rereads > 0);
        io.set_faults(DiskFaults::default());
        io.flip_bit(image.offset() + 40, 3);
        let error = read(&store, &image, 64 * KIB).unwrap_err();
        assert!(matches!(error, DiskError::Corrupt { chunk: 0, .. }), "{error}");
    }
}

#[test]
fn whatever_goes_wrong_no_read_succeeds_with_wrong_bytes_and_all_room_comes_back() {
    let (mut written, mut back) = (0, 0);
    for seed in 0..20 {
        let io = Arc::new(MemoryIo::new(1 << 22, seed));
        let store = DiskStore::with_io(io.clone(), options(IoChoice::Best, Compression::Measured));
        io.set_faults(DiskFaults::every(0.02));
        for round in 0..40 {
            let data = pattern(1 + (round * 7919) % (300 * KIB), seed ^ round as u64);
            let Ok(image) = write(&store, &data, 32 * KIB) else { continue };
            written += 1;
            if let Ok(bytes) = read(&store, &image, 32 * KIB) {
                back += 1;
                assert!(bytes == data, "seed {seed}, round {round}");
            }
        }
        assert_eq!(
            (io.taken_bytes(), store.usage().stored_bytes, store.in_flight()),
            (0, 0, 0),
            "seed {seed}"
        );
    }
    assert!(written > 400 && back > 300 && back < written, "{written} {back}");
}

#[test]
fn a_mount_that_vanishes_fails_every_transfer_with_its_code() {
    let io = Arc::new(MemoryIo::new(1 << 22, 1));
    let store = DiskStore::with_io(io.clone(), options(IoChoice::Best, Compression::Off));
    let image = write(&store, &pattern(64 * KIB, 1), 64 * KIB).unwrap();
    io.remove();
    match read(&store, &image, 64 * KIB).unwrap_err() {
        DiskError::Transfer { cause, .. } => assert_eq!(cause.os_code, Some(libc::ENODEV)),
        error => panic!("{error}"),
    }
    assert!(matches!(write(&store, &[1], 4096).unwrap_err(), DiskError::Space { .. }));
}

#[test]
fn misaligned_memory_is_refused_before_the_kernel_sees_it() {
    let scratch = Scratch::new("aligned");
    let Ok(store) = DiskStore::open(&scratch.0, options(IoChoice::DirectThreads, Compression::Off)) else {
        return;
    };
    let page = AlignedBuffer::new(16 * KIB);
    // SAFETY: the address is inside the page.
    let odd = ChunkMemory::new(unsafe { page.start().add(1) }, 4096, 8192);
    let mut writer = store.writer(4096, 4096).unwrap();
    // SAFETY: the page is declared before the writer.
    let error = unsafe { writer.write(0, odd) }.unwrap_err();
    assert!(matches!(error, DiskError::Misaligned { .. }), "{error}");
    drop(writer);
    let mut writer = store.writer(100, 4096).unwrap();
    // SAFETY: as above.
    let error = unsafe { writer.write(0, ChunkMemory::new(page.start(), 100, 100)) }.unwrap_err();
    assert!(matches!(error, DiskError::Misaligned { .. }), "there is no room to round up: {error}");
}

#[test]
fn an_image_abandoned_half_way_leaves_nothing() {
    let io = Arc::new(MemoryIo::new(1 << 22, 1));
    let store = DiskStore::with_io(io.clone(), options(IoChoice::Best, Compression::Off));
    let page = AlignedBuffer::new(4096);
    let mut writer = store.writer(8192, 4096).unwrap();
    // SAFETY: the page is declared before the writer.
    unsafe { writer.write(0, ChunkMemory::of(&page, 4096)).unwrap() };
    assert_eq!(store.in_flight(), 1);
    assert!(matches!(writer.finish(), Err(DiskError::Unfinished { written: 1, chunks: 2 })));
    assert_eq!((io.taken_bytes(), store.in_flight()), (0, 0));
    let mut writer = store.writer(8192, 4096).unwrap();
    // SAFETY: as above.
    unsafe { writer.write(1, ChunkMemory::of(&page, 4096)).unwrap() };
    drop(writer);
    assert_eq!((io.taken_bytes(), store.in_flight()), (0, 0));
}

#[test]
fn room_of_images_that_went_is_used_again_and_given_up_when_the_disk_is_full() {
    let io = Arc::new(MemoryIo::new(1 << 20, 1));
    let keeping = DiskOptions { idle_bytes_max: 512 << 10, ..options(IoChoice::Best, Compression::Off) };
    let store = DiskStore::with_io(io.clone(), keeping);
    drop(write(&store, &pattern(300 * KIB, 1), 64 * KIB).unwrap());
    assert_eq!((store.usage().idle_bytes, io.taken_bytes()), (300 << 10, 300 << 10));
    let again = write(&store, &pattern(200 * KIB, 2), 64 * KIB).unwrap();
    assert_eq!((store.usage().idle_bytes, io.taken_bytes()), (100 << 10, 300 << 10));
    let large = write(&store, &pattern(800 * KIB, 3), 64 * KIB).unwrap();
    assert_eq!(store.usage().idle_bytes, 0, "the disk would have been full");
    assert!(read(&store, &again, 64 * KIB).unwrap() == pattern(200 * KIB, 2));
    assert!(read(&store, &large, 64 * KIB).unwrap() == pattern(800 * KIB, 3));
    drop((again, large, store));
    assert_eq!(io.taken_bytes(), 0);
}
