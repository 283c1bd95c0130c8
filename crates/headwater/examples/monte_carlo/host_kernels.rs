//! The kernels of `kernels.ptx` for the simulated device, which runs no PTX: the same numbers, but for the last bits of
//! sines, logarithms and powers, and for the order in which a block adds up.
//!
//! How long they take on the device is modelled after the H200. Reading and writing are bound by memory at 4 TB/s, as the
//! simulated device has it. A path's step is assumed to take 1 ps: the loop in `mc_evolve` has 87 instructions for four
//! steps when compiled for compute capability 9.0, and 132 processors start 128 of them at 1.98 GHz.

use std::f32::consts::{LN_2, PI};
use std::ops::Range;
use std::sync::Arc;

use headwater_driver::{DevicePtr, KernelArg};
use headwater_sim::{DeviceView, Effect, KernelPlan, ParamKind, SimDriver, SimKernel};

const LAUNCH_NS: u64 = 2_000;
const MEMORY_BYTES_A_NS: u64 = 4_000;
const STEPS_A_NS: u64 = 1_000;

/// Makes the kernels known to a simulated device.
pub(crate) fn register(sim: &SimDriver) {
    use KernelArg as Arg;
    use ParamKind::{F32, Ptr, U32, U64};

    sim.register_kernel(SimKernel::new(
        "mc_evolve",
        &[Ptr, Ptr, U64, U32, U32, U32, U64, F32, F32],
        |args, _| match *args {
            [
                Arg::Ptr(dst),
                Arg::Ptr(src),
                Arg::U64(paths),
                Arg::U32(draws),
                Arg::U32(first_draw),
                Arg::U32(batch),
                Arg::U64(seed),
                Arg::F32(drift),
                Arg::F32(volatility),
            ] => {
                let walk = Walk { draws: first_draw..first_draw + draws, batch, seed, drift, volatility };
                let steps = paths.saturating_mul(4 * u64::from(draws));
                map(dst, src, paths, steps, move |path, price| price * walk.growth(path))
            }
            _ => Err(wrong_kinds()),
        },
    ));
    sim.register_kernel(SimKernel::new("mc_payoff", &[Ptr, Ptr, U64, F32, F32], |args, _| match *args {
        [Arg::Ptr(dst), Arg::Ptr(src), Arg::U64(paths), Arg::F32(strike), Arg::F32(discount)] => {
            map(dst, src, paths, 0, move |_, price| discount * (price - strike).max(0.0))
        }
        _ => Err(wrong_kinds()),
    }));
    sim.register_kernel(SimKernel::new("mc_sum", &[Ptr, Ptr, U64], |args, shape| match *args {
        [Arg::Ptr(sums), Arg::Ptr(src), Arg::U64(paths)] => {
            sum(sums, src, paths, shape.grid[0] as usize, shape.block[0] as usize)
        }
        _ => Err(wrong_kinds()),
    }));
}

/// For a caller that went past the check of the arguments' kinds.
fn wrong_kinds() -> String {
    "the arguments are not of the parameters' kinds".into()
}

/// One path's random walk over a stretch of time.
struct Walk {
    draws: Range<u32>,
    batch: u32,
    seed: u64,
    drift: f32,
    volatility: f32,
}

impl Walk {
    /// What the price is multiplied by.
    fn growth(&self, path: u64) -> f32 {
        let mut log2 = 0.0_f32;
        for draw in self.draws.clone() {
            let random = philox([path as u32, (path >> 32) as u32, draw, self.batch], self.seed);
            for pair in [[random[0], random[1]], [random[2], random[3]]] {
                for normal in box_muller(pair) {
                    log2 += self.drift + self.volatility * normal;
                }
            }
        }
        log2.exp2()
    }
}

/// Philox 4x32-10: four random words out of a counter and a key.
fn philox(mut counter: [u32; 4], seed: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let [a, b] = [u64::from(counter[0]) * 0xD251_1F53, u64::from(counter[2]) * 0xCD9E_8D57];
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Two normal numbers out of two random words.
fn box_muller([radius, angle]: [u32; 2]) -> [f32; 2] {
    let uniform = (radius as f32).mul_add(2.0_f32.powi(-32), 2.0_f32.powi(-33));
    let radius = (-2.0 * LN_2 * uniform.log2()).max(0.0).sqrt();
    let (sine, cosine) = (angle as i32 as f32 * (PI * 2.0_f32.powi(-31))).sin_cos();
    [radius * cosine, radius * sine]
}

/// A kernel that makes `dst[i]` of `src[i]` for all paths, in so many steps altogether.
fn map(
    dst: DevicePtr,
    src: DevicePtr,
    paths: u64,
    steps: u64,
    value: impl Fn(u64, f32) -> f32 + Send + Sync + 'static,
) -> Result<KernelPlan, String> {
    let (reads, writes) = (bytes_at(src, paths, 4)?, bytes_at(dst, paths, 4)?);
    let memory_ns = 2 * (reads.end - reads.start) / MEMORY_BYTES_A_NS;
    let duration_ns = LAUNCH_NS + memory_ns.max(steps / STEPS_A_NS);
    let (from, to) = (reads.clone(), writes.start);
    let effect = Effect::Custom(Arc::new(move |memory: &mut dyn DeviceView| {
        let mut bytes = vec![0; (from.end - from.start) as usize];
        memory.read(from.start, &mut bytes);
        let (values, _) = bytes.as_chunks_mut::<4>();
        for (path, bytes) in values.iter_mut().enumerate() {
            *bytes = value(path as u64, f32::from_le_bytes(*bytes)).to_le_bytes();
        }
        memory.write(to, &bytes);
    }));
    Ok(KernelPlan { reads: vec![reads], writes: vec![writes], duration_ns, effect, ..KernelPlan::default() })
}

/// `mc_sum` with `blocks` blocks of `threads` threads.
fn sum(
    sums: DevicePtr,
    src: DevicePtr,
    paths: u64,
    blocks: usize,
    threads: usize,
) -> Result<KernelPlan, String> {
    let (reads, writes) = (bytes_at(src, paths, 4)?, bytes_at(sums, blocks as u64, 16)?);
    let duration_ns = LAUNCH_NS + (reads.end - reads.start) / MEMORY_BYTES_A_NS;
    let (from, to) = (reads.clone(), writes.start);
    let effect = Effect::Custom(Arc::new(move |memory: &mut dyn DeviceView| {
        let mut bytes = vec![0; (from.end - from.start) as usize];
        memory.read(from.start, &mut bytes);
        let mut sums = vec![[0.0_f64; 2]; blocks];
        for (path, value) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let value = f64::from(f32::from_le_bytes(*value));
            let [sum, squares] = &mut sums[path / threads % blocks];
            *sum += value;
            *squares += value * value;
        }
        let sums: Vec<u8> = sums.iter().flatten().flat_map(|sum| sum.to_le_bytes()).collect();
        memory.write(to, &sums);
    }));
    Ok(KernelPlan { reads: vec![reads], writes: vec![writes], duration_ns, effect, ..KernelPlan::default() })
}

/// The addresses of `count` elements of `size` bytes.
fn bytes_at(ptr: DevicePtr, count: u64, size: u64) -> Result<Range<u64>, String> {
    let end = count.checked_mul(size).and_then(|bytes| ptr.checked_add(bytes));
    let end = end.ok_or_else(|| format!("{count} elements at {ptr} go beyond the address space"))?;
    Ok(ptr.raw()..end.raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        // Random123's kat_vectors for philox4x32 with 10 rounds.
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        for (counter, seed, expected) in [
            ([0; 4], 0, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], u64::MAX, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi, 0x299f_31d0_a409_3822, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ] {
            assert_eq!(philox(counter, seed), expected);
        }
    }

    #[test]
    fn normals_are_normal_and_every_random_word_gives_a_number() {
        let (mut count, mut sum, mut squares, mut fourths) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
        for draw in 0..50_000 {
            let [a, b, c, d] = philox([0, 0, draw, 0], 1);
            for normal in [box_muller([a, b]), box_muller([c, d])].concat().into_iter().map(f64::from) {
                count += 1.0;
                sum += normal;
                squares += normal * normal;
                fourths += normal.powi(4);
            }
        }
        // Mean 0, variance 1, fourth moment 3, each within four standard errors of 200,000 numbers.
        assert!((sum / count).abs() < 4.0 * (1.0 / count).sqrt());
        assert!((squares / count - 1.0).abs() < 4.0 * (2.0 / count).sqrt());
        assert!((fourths / count - 3.0).abs() < 4.0 * (96.0 / count).sqrt());
        for word in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
            assert!(box_muller([word, word]).iter().all(|normal| normal.is_finite() && normal.abs() < 7.0));
        }
    }
}
