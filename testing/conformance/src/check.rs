//! The suite's few words for saying what must be so. Each knows the line it was said on.

use std::fmt::Debug;

use headwater_driver::{DriverError, ErrorClass};

use crate::case::{Failure, Stop};

/// What a case and the helpers of cases return.
pub(crate) type Check<T = ()> = Result<T, Stop>;

/// `claim` holds.
#[track_caller]
pub(crate) fn ensure(claim: bool, words: &str) -> Check {
    if claim { Ok(()) } else { Err(Failure::new(format!("expected that {words}, got the opposite")).into()) }
}

/// `got` is `expected`.
#[track_caller]
pub(crate) fn same<T: Debug + PartialEq>(what: &str, expected: T, got: T) -> Check {
    if expected == got {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: expected {expected:?}, got {got:?}")).into())
}

/// The call was refused, in one of the `allowed` classes. Returns the error for a closer look.
#[track_caller]
pub(crate) fn refused_as<T: Debug>(
    answer: Result<T, DriverError>,
    allowed: &[ErrorClass],
) -> Check<DriverError> {
    match answer {
        Err(error) if allowed.contains(&error.class()) => Ok(error),
        Err(error) => {
            Err(Failure::new(format!("expected a refusal as {allowed:?}, got {:?}: {error}", error.class()))
                .into())
        }
        Ok(value) => {
            Err(Failure::new(format!("expected a refusal as {allowed:?}, got success: {value:?}")).into())
        }
    }
}

/// The call was refused because of an argument out of its range.
#[track_caller]
pub(crate) fn refused_value<T: Debug>(answer: Result<T, DriverError>) -> Check<DriverError> {
    refused_as(answer, &[ErrorClass::InvalidValue])
}

/// The call was refused because something does not exist (any more).
#[track_caller]
pub(crate) fn refused_handle<T: Debug>(answer: Result<T, DriverError>) -> Check<DriverError> {
    refused_as(answer, &[ErrorClass::InvalidHandle])
}

/// The call was refused because of a capture.
#[track_caller]
pub(crate) fn refused_in_capture<T: Debug>(answer: Result<T, DriverError>) -> Check<DriverError> {
    refused_as(answer, &[ErrorClass::IllegalInCapture])
}

/// The call was refused for want of memory. Returns the bytes that the error says were asked for, and the error.
#[track_caller]
pub(crate) fn out_of_memory<T: Debug>(answer: Result<T, DriverError>) -> Check<(u64, DriverError)> {
    match answer {
        Err(error) => match error.class() {
            ErrorClass::OutOfMemory { requested_bytes, .. } => Ok((requested_bytes, error)),
            class => Err(Failure::new(format!("expected OutOfMemory, got {class:?}: {error}")).into()),
        },
        Ok(value) => Err(Failure::new(format!("expected OutOfMemory, got success: {value:?}")).into()),
    }
}

/// `got` is `expected`, byte by byte; a difference is named by its place, not by printing megabytes.
#[track_caller]
pub(crate) fn same_bytes(what: &str, expected: &[u8], got: &[u8]) -> Check {
    // Slices compare as one block of memory, which is quick in an unoptimised build too.
    if expected == got {
        return Ok(());
    }
    same(&format!("{what}: bytes"), expected.len(), got.len())?;
    let Some(place) = expected.iter().zip(got).position(|(expected, got)| expected != got) else {
        return Ok(());
    };
    let wrong = expected.iter().zip(got).filter(|(expected, got)| expected != got).count();
    Err(Failure::new(format!(
        "{what}: expected {:#04x} at byte {place}, got {:#04x} ({wrong} of {} bytes differ)",
        expected[place],
        got[place],
        got.len()
    ))
    .into())
}

/// Every byte of `got` is `value`.
#[track_caller]
pub(crate) fn all_bytes(what: &str, value: u8, got: &[u8]) -> Check {
    same_bytes(what, &vec![value; got.len()], got)
}

/// The value, or a failure that names what is missing.
#[track_caller]
pub(crate) fn some<T>(what: &str, value: Option<T>) -> Check<T> {
    match value {
        Some(value) => Ok(value),
        None => Err(Failure::new(format!("{what}: expected one, got none")).into()),
    }
}

/// Joins a thread of a case and hands on what it found.
#[track_caller]
pub(crate) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Check<T>>) -> Check<T> {
    match thread.join() {
        Ok(found) => found,
        Err(_) => Err(Failure::new("expected an answer, got a panic in a thread of the case").into()),
    }
}
