//! Arguments from C: checked before anything is done with them.
//!
//! Structs grow with versions. Each begins with `struct_bytes`, which the caller sets to the size it was compiled with. A shorter
//! struct of an older program is taken with defaults for the rest, and answered as far as it goes; a longer one of a newer
//! program is taken where the part that is not known here is zero.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;

use crate::status::Failure;

/// Where a result goes. Checked first, so that nothing is done whose result could not be told.
///
/// # Safety
/// Null, or good for one write.
#[inline]
pub unsafe fn out<'a, T>(place: *mut T, name: &str) -> Result<&'a mut MaybeUninit<T>, Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(bad_place(place.is_null(), name));
    }
    // SAFETY: neither null nor misaligned, and good for a write by the caller's promise; `MaybeUninit` needs no value.
    Ok(unsafe { &mut *place.cast() })
}

#[cold]
fn bad_place(is_null: bool, name: &str) -> Failure {
    Failure::argument(format!("`{name}` is {}", if is_null { "null" } else { "misaligned" }))
}

/// A text.
///
/// # Safety
/// Null, or a text that ends with a zero byte and does not change meanwhile.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: passed on.
    unsafe { optional_text(text, name) }?.ok_or_else(|| bad_place(true, name))
}

/// A text, or none where it is null.
///
/// # Safety
/// As [`text`].
pub unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and a text by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let bad = |error| Failure::argument(format!("`{name}` is not UTF-8: {error}"));
    text.to_str().map(Some).map_err(bad)
}

/// `count` values at `values`.
///
/// # Safety
/// Null, or good for reading `count` values that do not change meanwhile.
pub unsafe fn slice<'a, T>(values: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if values.is_null() || !values.is_aligned() {
        return Err(bad_place(values.is_null(), name));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("`{name}` has {count} elements, beyond the address space")));
    }
    // SAFETY: neither null nor misaligned nor too long, and good for reading by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(values, count) })
}

/// A struct whose first field is its size in bytes and of which every pattern of bits is a value.
///
/// # Safety
/// `repr(C)`, begins with a `u64` for the size, and consists of numbers, raw pointers and optional functions alone.
pub unsafe trait Versioned: Copy {}

/// The size that a caller's struct says it has.
///
/// # Safety
/// `given` is null, or good for reading a number.
unsafe fn declared_bytes<T: Versioned>(given: *const T, name: &str) -> Result<usize, Failure> {
    if given.is_null() || !given.is_aligned() {
        return Err(bad_place(given.is_null(), name));
    }
    // SAFETY: a versioned struct begins with its size.
    let struct_bytes = usize::try_from(unsafe { given.cast::<u64>().read() }).unwrap_or(usize::MAX);
    if !(size_of::<u64>()..=1 << 16).contains(&struct_bytes) {
        let problem = format!("`{name}` says that it has {struct_bytes} bytes: set struct_bytes to its size");
        return Err(Failure::argument(problem));
    }
    Ok(struct_bytes)
}

/// Reads a caller's struct over `defaults`.
///
/// # Safety
/// `given` is null, or good for reading the number of bytes that it begins with.
pub unsafe fn read_versioned<T: Versioned>(given: *const T, defaults: T, name: &str) -> Result<T, Failure> {
    // SAFETY: passed on.
    let struct_bytes = unsafe { declared_bytes(given, name) }?;
    let known = struct_bytes.min(size_of::<T>());
    // SAFETY: the caller's struct is as long as it says.
    let rest = unsafe { std::slice::from_raw_parts(given.cast::<u8>().add(known), struct_bytes - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format!("`{name}` uses fields that this version does not know")));
    }
    let mut read = defaults;
    // SAFETY: both are good for `known` bytes, and any bytes make a value of a versioned struct.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut read).cast(), known) };
    Ok(read)
}

/// Whether a caller's struct can be filled: asked before the work whose result goes there.
///
/// # Safety
/// As [`fill_versioned`].
pub unsafe fn check_versioned<T: Versioned>(place: *mut T, name: &str) -> Result<(), Failure> {
    // SAFETY: passed on.
    unsafe { declared_bytes(place, name) }.map(drop)
}

/// Fills a caller's struct as far as it goes, and with zeros where it goes further. Its size stays what it was.
///
/// # Safety
/// `place` is null, or good for reading and writing the number of bytes that it begins with.
pub unsafe fn fill_versioned<T: Versioned>(place: *mut T, found: &T, name: &str) -> Result<(), Failure> {
    // SAFETY: passed on.
    let struct_bytes = unsafe { declared_bytes(place, name) }?;
    let known = struct_bytes.min(size_of::<T>());
    let size_field = size_of::<u64>();
    // SAFETY: the caller's struct is as long as it says, ours has `known` bytes; the size field is left alone.
    unsafe {
        let (from, to) = ((&raw const *found).cast::<u8>(), place.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(size_field), to.add(size_field), known - size_field);
        to.add(known).write_bytes(0, struct_bytes - known);
    }
    Ok(())
}

/// A text for the caller, who gives it back with `hw_string_free`.
pub fn owned_text(text: &str) -> Result<*mut c_char, Failure> {
    let bad = |_| Failure::argument("the text has a zero byte in it");
    Ok(CString::new(text).map_err(bad)?.into_raw())
}

/// Gives back a text that Headwater gave out. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `owned_text`, and given back once: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Bytes for the caller, who gives them back with `hw_bytes_free`.
pub fn owned_bytes(bytes: Vec<u8>) -> (*mut u8, usize) {
    let bytes = Box::leak(bytes.into_boxed_slice());
    (bytes.as_mut_ptr(), bytes.len())
}

/// Gives back bytes that Headwater gave out, with the count it gave with them. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_bytes_free(bytes: *mut u8, count: usize) {
    if !bytes.is_null() {
        // SAFETY: made by `owned_bytes`, with this length, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes, count)) });
    }
}
