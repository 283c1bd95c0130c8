//! Names of spill files, and left-overs of a crash.
//!
//! Most file systems make files that never have a name, and then there is nothing to sweep. Where they do not, a file has a name
//! from its creation until it is unlinked a moment later, and a crash in between leaves it behind. Its maker holds a lock on it
//! from birth, and the system drops the lock when the maker dies: a file of this name whose lock can be had is a left-over.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};

const PREFIX: &str = "headwater-spill-";
const SUFFIX: &str = ".tmp";

/// A name that nobody else makes: process, time and a count.
pub(super) fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = time.map_or(0, |time| time.subsec_nanos());
    format!("{PREFIX}{}-{count}-{nanos:08x}{SUFFIX}", std::process::id())
}

fn is_ours(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Locks a file for as long as it is open; says whether nobody else had.
pub(super) fn try_lock(file: impl AsFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes left-overs in `directory` and says how many. What cannot be looked at or removed stays: it may be somebody
/// else's.
pub(super) fn sweep(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    // SAFETY: the call has no pre-conditions and cannot fail.
    let me = unsafe { libc::geteuid() };
    entries
        .flatten()
        .filter(|entry| is_ours(&entry.file_name()))
        .filter(|entry| is_left_over(&entry.path(), me))
        .count()
}

fn is_left_over(path: &Path, me: u32) -> bool {
    // Not through a link: a name of ours that leads elsewhere is not ours.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else { return false };
    let Ok(facts) = file.metadata() else { return false };
    facts.is_file() && facts.uid() == me && try_lock(&file) && fs::remove_file(path).is_ok()
}
