//! Which types can be copied to a device and back as bytes.

/// A type whose values are plain bytes: no padding, and every pattern of bits is a value.
///
/// # Safety
/// Every byte of a value is initialised (no padding), every pattern of bits is a valid value, and there is nothing in
/// it that only means something on the host, such as a reference.
pub unsafe trait Plain: Copy + Send + Sync + 'static {
    /// The value whose bytes are all zero.
    const ZERO: Self;
}

macro_rules! plain {
    ($zero:literal: $($type:ty)*) => {$(
        // SAFETY: a number has no padding and a value for every pattern of bits.
        unsafe impl Plain for $type {
            const ZERO: Self = $zero;
        }
    )*};
}

plain!(0: u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
plain!(0.0: f32 f64);

// SAFETY: an array has no padding between its elements, which are plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}
