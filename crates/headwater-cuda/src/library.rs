//! Finding the driver's library.

use std::error::Error;
use std::ffi::{OsStr, OsString};

use libloading::Library;

use crate::Unavailable;

/// The setting that names another library instead of the system's.
pub(crate) const LIBRARY_SETTING: &str = "HEADWATER_LIBCUDA";

/// The versioned name first. Only the driver installs it, while the toolkit also ships a stub called `libcuda.so` whose
/// every call fails, and which wins where its directory is on the library path.
const SYSTEM_NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The names to try: the one in the setting and no other, or the system's.
pub(crate) fn names(setting: Option<OsString>) -> Vec<OsString> {
    match setting {
        Some(name) if !name.is_empty() => vec![name],
        _ => SYSTEM_NAMES.iter().map(OsString::from).collect(),
    }
}

/// Loads the first of `names` that can be loaded.
///
/// # Safety
/// Running the initialisers of these libraries is sound.
pub(crate) unsafe fn load_first(names: &[impl AsRef<OsStr>]) -> Result<Library, Unavailable> {
    let mut first_reason = None;
    for name in names {
        // SAFETY: the caller vouches for it.
        match unsafe { Library::new(name.as_ref()) } {
            Ok(library) => return Ok(library),
            Err(reason) => first_reason = first_reason.or(Some(reason)),
        }
    }
    Err(Unavailable::LibraryMissing {
        tried: names.iter().map(|name| name.as_ref().to_string_lossy().into_owned()).collect(),
        reason: first_reason.map_or_else(String::new, in_words),
    })
}

/// What the system's loader said: `libloading` keeps that as the cause of its own error.
fn in_words(error: libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_replaces_the_system_library() {
        assert_eq!(names(Some("/opt/fake/libcuda.so".into())), [OsString::from("/opt/fake/libcuda.so")]);
    }

    #[test]
    #[cfg(unix)]
    fn without_a_setting_the_versioned_name_comes_first() {
        let expected = [OsString::from("libcuda.so.1"), OsString::from("libcuda.so")];
        assert_eq!(names(None), expected);
        assert_eq!(names(Some(OsString::new())), expected);
    }

    #[test]
    fn a_missing_library_names_everything_that_was_tried() {
        // SAFETY: neither of them exists.
        let error = unsafe { load_first(&["libno-such-cuda.so.1", "libno-such-cuda.so"]) }.unwrap_err();
        let Unavailable::LibraryMissing { tried, reason } = &error else { panic!("{error}") };
        assert_eq!(tried, &["libno-such-cuda.so.1", "libno-such-cuda.so"]);
        assert!(reason.contains("libno-such-cuda.so.1"), "{reason}");
    }
}
