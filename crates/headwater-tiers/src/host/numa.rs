//! Memory on a chosen NUMA node: the operating system's side.
//!
//! Every system call of the crate that has to do with pages is here, behind functions that return errors.

use std::io;
use std::ptr::NonNull;

/// Nodes that a mask of one word can name.
const NODES_MAX: u32 = 64;

/// Pages whose place is asked for in one call.
const SAMPLE_PAGES_MAX: usize = 64;

fn page_bytes() -> usize {
    // SAFETY: no pointers, no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(4096)
}

/// Fresh pages, bound to `node` and present.
///
/// # Errors
/// The system's; then nothing is left mapped.
pub(super) fn map_on_node(bytes: usize, node: u32) -> io::Result<NonNull<u8>> {
    if node >= NODES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no node {node}: at most {NODES_MAX}"),
        ));
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the system's choice touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let Some(start) = NonNull::new(start.cast::<u8>()) else {
        return Err(io::Error::other("the system mapped the null page"));
    };
    if let Err(error) = bind(start, bytes, node) {
        unmap(start, bytes);
        return Err(error);
    }
    // A page gets its place when it is first written.
    for offset in (0..bytes).step_by(page_bytes()) {
        // SAFETY: inside the mapping made above, which nobody else knows of.
        unsafe { start.as_ptr().add(offset).write_volatile(0) };
    }
    Ok(start)
}

fn bind(start: NonNull<u8>, bytes: usize, node: u32) -> io::Result<()> {
    let mask: libc::c_ulong = 1 << node;
    // The kernel reads one bit less than it is told.
    let bits = libc::c_ulong::from(NODES_MAX) + 1;
    // SAFETY: the range is a mapping of ours, and the mask outlives the call and has as many bits as are read.
    let answer = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, libc::MPOL_BIND, &raw const mask, bits, 0)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives back what [`map_on_node`] mapped. Nothing may use it any more.
pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: by the function's contract the range is a whole mapping of ours that nothing uses.
    let answer = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    debug_assert_eq!(answer, 0, "{}", io::Error::last_os_error());
}

/// On how many of the pages asked about `node` is the place, and how many were asked about: a sample, evenly spread.
///
/// # Errors
/// The system's: not all of them tell.
pub(super) fn pages_on_node(start: NonNull<u8>, bytes: usize, node: u32) -> io::Result<(usize, usize)> {
    let page_bytes = page_bytes();
    let pages = (bytes / page_bytes).max(1);
    let sampled = pages.min(SAMPLE_PAGES_MAX);
    let addresses: Vec<*mut libc::c_void> = (0..sampled)
        .map(|index| start.as_ptr().wrapping_add(index * (pages / sampled) * page_bytes).cast())
        .collect();
    let mut places = vec![-1_i32; sampled];
    let no_target = std::ptr::null::<libc::c_int>();
    // SAFETY: both arrays have `sampled` entries; with no target nodes the call only reads page tables.
    let answer = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, sampled, addresses.as_ptr(), no_target, places.as_mut_ptr(), 0)
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let there = places.iter().filter(|place| u32::try_from(**place) == Ok(node)).count();
    Ok((there, sampled))
}
