//! The spill file: without a name, readable by its owner alone, preallocated.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::io::Alignment;
use super::sweep::{fresh_name, try_lock};

/// What a device with unknown demands is sure to accept.
const ALIGNMENT_UNKNOWN: Alignment = Alignment { memory_bytes: 4096, offset_bytes: 4096 };

/// How often a name is tried that a sweeper got hold of first.
const NAMES_MAX: u32 = 16;

/// One file, closed and so gone with the last user.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    pub(super) is_direct: bool,
    pub(super) is_anonymous: bool,
    pub(super) alignment: Alignment,
    /// Cleared when the file system turns out not to preallocate.
    preallocates: AtomicBool,
}

impl SpillFile {
    /// Makes a file in `directory`.
    pub(super) fn create(directory: &Path, is_direct: bool) -> io::Result<Self> {
        let flags = if is_direct { OFlags::DIRECT } else { OFlags::empty() } | OFlags::RDWR | OFlags::CLOEXEC;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let (file, is_anonymous) = match rustix::fs::open(directory, flags | OFlags::TMPFILE, owner_only) {
            Ok(file) => (File::from(file), true),
            // What file systems without nameless files answer, and what old kernels do.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) if directory.is_dir() => {
                (create_and_unlink(directory, flags, owner_only)?, false)
            }
            Err(error) => return Err(error.into()),
        };
        let alignment = if is_direct { direct_alignment(&file)? } else { Alignment::NONE };
        Ok(Self { file, is_direct, is_anonymous, alignment, preallocates: AtomicBool::new(true) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn is_preallocated(&self) -> bool {
        self.preallocates.load(Ordering::Relaxed)
    }

    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let facts = rustix::fs::fstatvfs(self.fd())?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    pub(super) fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if self.is_preallocated() {
            match retry_interrupted(|| {
                rustix::fs::fallocate(self.fd(), FallocateFlags::empty(), offset, bytes)
            }) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.preallocates.store(false, Ordering::Relaxed),
                answer => return Ok(answer?),
            }
        }
        // Without preallocation a full disk shows when writing; the file must still be long enough to be written directly.
        let end = offset.saturating_add(bytes);
        if self.file.metadata()?.len() < end {
            rustix::fs::ftruncate(self.fd(), end)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_interrupted(|| rustix::fs::fallocate(self.fd(), punch, offset, bytes)) {
            // Then the room is reused with the range, and goes back with the file.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            answer => Ok(answer?),
        }
    }
}

fn retry_interrupted(call: impl Fn() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// A file that has a name for a moment, and a lock from birth so that no sweeper mistakes it for a left-over.
fn create_and_unlink(directory: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    for _ in 0..NAMES_MAX {
        let path = directory.join(fresh_name());
        let file = File::from(rustix::fs::open(
            &path,
            flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
            mode,
        )?);
        // A sweeper that came between has the lock, and removes the file.
        if try_lock(&file) {
            return std::fs::remove_file(&path).map(|()| file);
        }
    }
    Err(io::Error::other("every new spill file was taken for a left-over"))
}

/// What direct transfers must be aligned to, as the file system says.
fn direct_alignment(file: &File) -> io::Result<Alignment> {
    let mut facts = MaybeUninit::<libc::statx>::zeroed();
    let flags = AtFlags::EMPTY_PATH.bits() as libc::c_int;
    // SAFETY: the descriptor is open, the path is an empty C string as EMPTY_PATH wants, and `facts` has room for a `statx`.
    let answer = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_DIOALIGN, facts.as_mut_ptr())
    };
    if answer != 0 {
        return Ok(ALIGNMENT_UNKNOWN);
    }
    // SAFETY: zero is a value of every field, and the kernel filled in what it knows.
    let facts = unsafe { facts.assume_init() };
    if facts.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(ALIGNMENT_UNKNOWN);
    }
    let (memory_bytes, offset_bytes) =
        (u64::from(facts.stx_dio_mem_align), u64::from(facts.stx_dio_offset_align));
    if !memory_bytes.is_power_of_two() || !offset_bytes.is_power_of_two() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the file system does no direct I/O for this file",
        ));
    }
    // Pages at least: what the kernel lets through is not always what the device does without copying.
    Ok(Alignment { memory_bytes: memory_bytes.max(512), offset_bytes: offset_bytes.max(4096) })
}
