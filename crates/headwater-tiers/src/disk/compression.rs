//! Whether compressing pays, by measurement.
//!
//! On fast disks compressing by CPU made spilling half as fast for others (cudf-spark issue 9596), on slow ones it helps. So
//! both ways are timed on real images, as nanoseconds for each MiB of data from the first chunk to the last, and the better one is used;
//! every 32nd image goes the other way to see whether that is still so.

use std::time::Duration;

use parking_lot::Mutex;

/// Whether images are compressed (LZ4) on their way to the disk. Without the feature `lz4` none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    Off,
    /// Always, chunk by chunk where it saves an eighth or more.
    Always,
    /// Where it makes spilling faster.
    #[default]
    Measured,
}

/// How often the other way is tried.
const EXPLORE_EVERY: u64 = 32;

/// Images below this say little about a disk.
const SAMPLE_BYTES_MIN: u64 = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct Judge {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    images: u64,
    plain_ns_per_mib: Option<f64>,
    packed_ns_per_mib: Option<f64>,
}

impl Judge {
    /// Whether the next image of `raw_bytes` is compressed.
    pub(super) fn compresses(&self, setting: Compression, raw_bytes: u64) -> bool {
        match setting {
            _ if cfg!(not(feature = "lz4")) => false,
            Compression::Off => false,
            Compression::Always => true,
            Compression::Measured if raw_bytes < SAMPLE_BYTES_MIN => false,
            Compression::Measured => self.state.lock().next(),
        }
    }

    /// Takes note of how long an image took.
    pub(super) fn note(&self, was_packed: bool, raw_bytes: u64, took: Duration) {
        if raw_bytes < SAMPLE_BYTES_MIN {
            return;
        }
        let ns_per_mib = took.as_nanos() as f64 * f64::from(1 << 20) / raw_bytes as f64;
        let mut state = self.state.lock();
        let known = if was_packed { &mut state.packed_ns_per_mib } else { &mut state.plain_ns_per_mib };
        // One image in four of weight: disks change their mind when their caches fill.
        *known = Some(known.map_or(ns_per_mib, |known| known * 0.75 + ns_per_mib * 0.25));
    }
}

impl State {
    fn next(&mut self) -> bool {
        self.images += 1;
        let better = match (self.plain_ns_per_mib, self.packed_ns_per_mib) {
            (None, _) => return false,
            (Some(_), None) => return true,
            (Some(plain), Some(packed)) => packed < plain,
        };
        better != self.images.is_multiple_of(EXPLORE_EVERY)
    }
}

/// Compresses `raw` into `into` and says how long it came out; `None` where that saves less than an eighth.
#[cfg(feature = "lz4")]
pub(super) fn compress(raw: &[u8], into: &mut [u8]) -> Option<usize> {
    let bytes = lz4_flex::block::compress_into(raw, into).ok()?;
    (bytes <= raw.len() - raw.len() / 8).then_some(bytes)
}

/// The most that [`compress`] can write.
#[cfg(feature = "lz4")]
pub(super) fn compressed_bytes_max(raw_bytes: usize) -> usize {
    lz4_flex::block::get_maximum_output_size(raw_bytes)
}

/// Decompresses exactly `into.len()` bytes; says whether that is what came out.
#[cfg(feature = "lz4")]
pub(super) fn decompress(packed: &[u8], into: &mut [u8]) -> bool {
    lz4_flex::block::decompress_into(packed, into).is_ok_and(|bytes| bytes == into.len())
}

#[cfg(not(feature = "lz4"))]
pub(super) fn compress(_raw: &[u8], _into: &mut [u8]) -> Option<usize> {
    None
}

#[cfg(not(feature = "lz4"))]
pub(super) fn compressed_bytes_max(raw_bytes: usize) -> usize {
    raw_bytes
}

#[cfg(not(feature = "lz4"))]
pub(super) fn decompress(_packed: &[u8], _into: &mut [u8]) -> bool {
    false
}

#[cfg(test)]
#[cfg(feature = "lz4")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_faster_way_is_used_and_the_other_tried_now_and_then() {
        for (plain_ms, packed_ms) in [(10, 2), (2, 10)] {
            let judge = Judge::default();
            let mut packed = 0;
            for _ in 0..128 {
                let is_packed = judge.compresses(Compression::Measured, MIB);
                packed += u32::from(is_packed);
                let took = Duration::from_millis(if is_packed { packed_ms } else { plain_ms });
                judge.note(is_packed, MIB, took);
            }
            assert!(if packed_ms < plain_ms { packed > 120 } else { packed < 8 }, "{packed}");
            assert!((2..127).contains(&packed), "both were tried: {packed}");
        }
    }

    #[test]
    fn what_does_not_shrink_stays_as_it_is() {
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4096).map(|_| draw()).collect();
        let mut into = vec![0; compressed_bytes_max(noise.len())];
        assert_eq!(compress(&noise, &mut into), None);
        let zeros = [0; 4096];
        let bytes = compress(&zeros, &mut into).unwrap();
        let mut back = [1; 4096];
        assert!(decompress(&into[..bytes], &mut back));
        assert_eq!(back, zeros);
        assert!(!decompress(&into[..bytes / 2], &mut back));
    }
}
