//! The size rules: from what a caller asks for to the block it gets and the segment that block is cut from.
//!
//! Three steps, all pure. A request is rounded to a block size: at least 512 bytes, a multiple of 512, and, where
//! `roundup_power2_divisions` asks for it, a multiple of a fixed share of the power of two below it, so that sizes
//! that differ a little land on one block size. The block size names its pool: small up to 1 MiB, large above. A pool
//! without a free block asks the driver for a segment: 2 MiB (small), the large segment size (large, below 10 MiB),
//! or the size itself rounded to 2 MiB. The numbers are PyTorch's, and the recorded traces reproduce its peaks to the
//! byte with them.

use std::fmt;

use super::error::{ConfigError, Origin};
use super::keys::Key;

/// One mebibyte; every `_mb` setting counts in these, as PyTorch's do.
pub const MIB: u64 = 1 << 20;
/// The smallest block, and the unit of block sizes.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// The largest block of the small pool.
pub const SMALL_POOL_MAX_BYTES: u64 = MIB;
/// A segment of the small pool.
pub const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// From this block size on a segment is made to measure.
pub const LARGE_EXACT_MIN_BYTES: u64 = 10 * MIB;
/// A segment for large blocks below [`LARGE_EXACT_MIN_BYTES`], unless `large_segment_size_mb` says otherwise.
pub const LARGE_SEGMENT_DEFAULT_BYTES: u64 = 20 * MIB;
/// Segments made to measure are multiples of this.
pub const LARGE_SEGMENT_UNIT_BYTES: u64 = 2 * MIB;
/// Requests of this size or more (1 EiB) are refused before any rule looks at them.
pub const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// How many size intervals `roundup_power2_divisions` tells apart: one per power of two from 1 MiB to 32 GiB.
pub const ROUNDUP_INTERVALS: usize = 16;

/// The block size for a request of `bytes`: the smallest legal size that holds them.
///
/// Never less than the request, a multiple of 512, monotone, and unchanged when applied twice. Refuse requests of
/// [`MAX_REQUEST_BYTES`] and more first: near the end of the number range the result saturates at `u64::MAX`.
///
/// ```
/// use headwater::config::{RoundupDivisions, round_size};
/// assert_eq!(round_size(1, &RoundupDivisions::OFF), 512);
/// assert_eq!(round_size(513, &RoundupDivisions::OFF), 1024);
/// // Four steps between powers of two: 8 MiB, 10 MiB, 12 MiB, 14 MiB, 16 MiB.
/// let four = RoundupDivisions::uniform(4)?;
/// assert_eq!(round_size(9 << 20, &four), 10 << 20);
/// # Ok::<(), headwater::config::ConfigError>(())
/// ```
pub fn round_size(bytes: u64, divisions: &RoundupDivisions) -> u64 {
    if bytes <= MIN_BLOCK_BYTES {
        return MIN_BLOCK_BYTES;
    }
    let parts = divisions.at(bytes);
    let step = if parts > 1 && bytes > MIN_BLOCK_BYTES.saturating_mul(parts) {
        // `512 * parts` is a power of two below `bytes`, so the power of two at or below `bytes` is at least that,
        // and the step at least 512 and itself a power of two.
        (1u64 << bytes.ilog2()) / parts
    } else {
        MIN_BLOCK_BYTES
    };
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

/// Whether blocks of this (rounded) size belong to the small pool.
pub const fn is_small(block_bytes: u64) -> bool {
    block_bytes <= SMALL_POOL_MAX_BYTES
}

/// The segment to ask the driver for when no free block holds `block_bytes` (a rounded size).
///
/// ```
/// use headwater::config::{LARGE_SEGMENT_DEFAULT_BYTES, MIB, segment_bytes};
/// assert_eq!(segment_bytes(512, LARGE_SEGMENT_DEFAULT_BYTES), 2 * MIB);
/// assert_eq!(segment_bytes(3 * MIB, LARGE_SEGMENT_DEFAULT_BYTES), 20 * MIB);
/// assert_eq!(segment_bytes(11 * MIB, LARGE_SEGMENT_DEFAULT_BYTES), 12 * MIB);
/// ```
pub const fn segment_bytes(block_bytes: u64, large_segment_bytes: u64) -> u64 {
    if is_small(block_bytes) {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < LARGE_EXACT_MIN_BYTES {
        large_segment_bytes
    } else {
        match block_bytes.checked_next_multiple_of(LARGE_SEGMENT_UNIT_BYTES) {
            Some(bytes) => bytes,
            None => u64::MAX,
        }
    }
}

/// Into how many steps each power of two is divided when sizes are rounded, by size interval.
///
/// Interval `i` holds the sizes from `2^i` MiB up to twice that; the first also holds all smaller sizes, the last all
/// larger ones. 0 and 1 both leave sizes at multiples of 512.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoundupDivisions([u64; ROUNDUP_INTERVALS]);

/// The upper end of a rule of [`RoundupDivisions::by_interval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundupBound {
    /// The interval that starts at this many MiB (a power of two; above 32,768 it is the last interval).
    Mib(u64),
    /// Every interval after the one named last.
    Rest,
}

impl Default for RoundupDivisions {
    fn default() -> Self {
        Self::OFF
    }
}

impl RoundupDivisions {
    /// Sizes stay multiples of 512.
    pub const OFF: Self = Self([0; ROUNDUP_INTERVALS]);

    /// The same number of steps for every size.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] where `divisions` is no power of two.
    pub fn uniform(divisions: u64) -> Result<Self, ConfigError> {
        if !divisions.is_power_of_two() {
            return Err(bad_divisions(divisions.to_string()));
        }
        Ok(Self([divisions; ROUNDUP_INTERVALS]))
    }

    /// A number of steps (a power of two, or 0 for none) by size. The first rule also holds for everything below its
    /// interval; an interval in between that no rule names stays off; a later rule for an interval replaces an
    /// earlier one.
    ///
    /// ```
    /// use headwater::config::{MIB, RoundupBound, RoundupDivisions};
    /// // `[256:1,512:2,>:4]`
    /// let rules = [(RoundupBound::Mib(256), 1), (RoundupBound::Mib(512), 2), (RoundupBound::Rest, 4)];
    /// let divisions = RoundupDivisions::by_interval(&rules)?;
    /// assert_eq!(divisions.at(300 * MIB), 1);
    /// assert_eq!(divisions.at(600 * MIB), 2);
    /// assert_eq!(divisions.at(2048 * MIB), 4);
    /// # Ok::<(), headwater::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] where a bound is no power of two, or a number of steps neither that nor 0.
    pub fn by_interval(rules: &[(RoundupBound, u64)]) -> Result<Self, ConfigError> {
        let mut table = [0; ROUNDUP_INTERVALS];
        let mut last_named = 0;
        let mut first = true;
        for &(bound, divisions) in rules {
            if divisions != 0 && !divisions.is_power_of_two() {
                return Err(bad_divisions(divisions.to_string()));
            }
            match bound {
                RoundupBound::Rest => {
                    table.iter_mut().skip(last_named + 1).for_each(|slot| *slot = divisions)
                }
                RoundupBound::Mib(mib) if mib.is_power_of_two() => {
                    let interval = (mib.ilog2() as usize).min(ROUNDUP_INTERVALS - 1);
                    let from = if first { 0 } else { interval };
                    first = false;
                    table[from..=interval].fill(divisions);
                    last_named = interval;
                }
                RoundupBound::Mib(mib) => return Err(bad_divisions(format!("[{mib}:{divisions}]"))),
            }
        }
        Ok(Self(table))
    }

    /// The steps for a request of `bytes`.
    pub fn at(&self, bytes: u64) -> u64 {
        let interval = (bytes / MIB).checked_ilog2().unwrap_or(0) as usize;
        self.0[interval.min(ROUNDUP_INTERVALS - 1)]
    }

    /// The steps of each interval.
    pub fn table(&self) -> &[u64; ROUNDUP_INTERVALS] {
        &self.0
    }
}

fn bad_divisions(value: String) -> ConfigError {
    let key = Key::RoundupPower2Divisions;
    ConfigError::BadValue { key: key.name(), value, legal: key.legal().into(), origin: Origin::Code }
}

/// As the setting is written: `off`, one number, or the shortest list this type's own rules allow.
impl fmt::Display for RoundupDivisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::OFF {
            return f.write_str("off");
        }
        let [first, .., last] = self.0;
        let head = self.0.iter().take_while(|divisions| **divisions == first).count();
        if head == ROUNDUP_INTERVALS {
            return write!(f, "{first}");
        }
        let tail =
            ROUNDUP_INTERVALS - self.0.iter().rev().take_while(|divisions| **divisions == last).count();
        f.write_str("[")?;
        for interval in head - 1..tail {
            write!(f, "{}:{},", 1u64 << interval, self.0[interval])?;
        }
        write!(f, ">:{last}]")
    }
}

impl fmt::Debug for RoundupDivisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoundupDivisions({self})")
    }
}
