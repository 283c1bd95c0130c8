//! Kernels of the simulated device: how one is described, and those it always knows.
//!
//! The device runs no code. A kernel is a function from its arguments to a *plan*: which ranges it reads and writes, how
//! long it takes, and what it does to memory. The ranges feed the race detector when the launch is queued in its stream;
//! the effect is applied when it runs.
//!
//! The built-in ones do what the CUDA kernels of the same names do that the conformance suite brings along, so that one
//! suite runs on both devices:
//!
//! | kernel | arguments | effect |
//! |---|---|---|
//! | `hw_spin` | us | keeps its stream busy for `us` |
//! | `hw_fill` | p, n, value | `p[i] = value` |
//! | `hw_fill_late` | p, n, value, us | the same, after `us` |
//! | `hw_add` | p, n, value | `p[i] += value`, wrapping |
//! | `hw_copy` | dst, src, n | `dst[i] = src[i]` |
//! | `hw_check` | p, n, value, wrong | atomically `*wrong +=` how many `p[i]` are not `value` |
//!
//! Elements are 32-bit words. The loops in them stride over the grid, so the result does not depend on the launch shape.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use headwater_driver::{DevicePtr, KernelArg, LaunchShape};

use crate::cost::memory_bound_kernel_ns;

/// The type of one kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A device address.
    Ptr,
    /// A 32-bit number.
    U32,
    /// A 64-bit number.
    U64,
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
}

impl ParamKind {
    /// What the parameter takes in a parameter buffer; also its alignment.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U32 | Self::F32 => 4,
            Self::Ptr | Self::U64 | Self::F64 => 8,
        }
    }

    /// The kind of `arg`.
    pub const fn of(arg: &KernelArg) -> Self {
        match arg {
            KernelArg::Ptr(_) => Self::Ptr,
            KernelArg::U32(_) => Self::U32,
            KernelArg::U64(_) => Self::U64,
            KernelArg::F32(_) => Self::F32,
            KernelArg::F64(_) => Self::F64,
        }
    }
}

/// Makes the plan of one launch; an error says in words what is wrong with the arguments.
pub type PlanFn = dyn Fn(&[KernelArg], LaunchShape) -> Result<KernelPlan, String> + Send + Sync;

/// What a custom kernel does to memory when it runs.
pub type CustomEffect = dyn Fn(&mut dyn DeviceView) + Send + Sync;

/// A kernel the simulated device can run: its name in PTX, its parameters, and how a launch is planned.
///
/// ```
/// use std::sync::Arc;
/// use headwater_driver::{DevicePtr, KernelArg, LaunchShape};
/// use headwater_sim::{Effect, KernelPlan, ParamKind, SimKernel};
///
/// // Doubles one float in place.
/// let double = SimKernel::new("double", &[ParamKind::Ptr], |args, _shape| {
///     let [KernelArg::Ptr(ptr)] = *args else { return Err("one address expected".into()) };
///     let at = ptr.raw();
///     Ok(KernelPlan {
///         reads: vec![at..at + 4],
///         writes: vec![at..at + 4],
///         duration_ns: 2_000,
///         effect: Effect::Custom(Arc::new(move |memory| {
///             let mut bytes = [0; 4];
///             memory.read(at, &mut bytes);
///             memory.write(at, &(2.0 * f32::from_le_bytes(bytes)).to_le_bytes());
///         })),
///         ..KernelPlan::default()
///     })
/// });
/// let plan = double.plan_launch(&[KernelArg::Ptr(DevicePtr::new(512))], LaunchShape::SINGLE);
/// assert_eq!(plan.map(|plan| plan.writes), Ok(vec![512..516]));
/// assert!(double.plan_launch(&[KernelArg::U32(1)], LaunchShape::SINGLE).is_err());
/// ```
#[derive(Clone)]
pub struct SimKernel {
    /// The name of its entry point in PTX.
    pub name: Cow<'static, str>,
    /// Its parameters in order.
    pub params: Vec<ParamKind>,
    /// Plans a launch. Called through [`plan_launch`](Self::plan_launch), which has checked the arguments' kinds.
    pub plan: Arc<PlanFn>,
}

impl SimKernel {
    /// A kernel called `name` that takes `params` and does what `plan` says.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        params: &[ParamKind],
        plan: impl Fn(&[KernelArg], LaunchShape) -> Result<KernelPlan, String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), params: params.to_vec(), plan: Arc::new(plan) }
    }

    /// Plans a launch with these arguments.
    ///
    /// # Errors
    /// A text that names the kernel and the argument where their number or kinds are not those of `params`, or where
    /// the kernel itself cannot use them.
    pub fn plan_launch(&self, args: &[KernelArg], shape: LaunchShape) -> Result<KernelPlan, String> {
        let kinds: Vec<_> = args.iter().map(ParamKind::of).collect();
        if kinds != self.params {
            return Err(format!("{} takes {:?}, not {kinds:?}", self.name, self.params));
        }
        (self.plan)(args, shape).map_err(|why| format!("{}: {why}", self.name))
    }
}

impl fmt::Debug for SimKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimKernel")
            .field("name", &self.name)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

/// What one launch will do. Ranges are device addresses.
#[derive(Clone, Debug, Default)]
pub struct KernelPlan {
    /// What it reads: must be written before, and nobody may write it meanwhile.
    pub reads: Vec<Range<u64>>,
    /// What it writes: nobody may touch it meanwhile. A range that is read and then written is in both.
    pub writes: Vec<Range<u64>>,
    /// What it changes by atomic read-modify-write: as a read and a write, but other kernels may do the same meanwhile.
    pub atomics: Vec<Range<u64>>,
    /// How long it runs on the device.
    pub duration_ns: u64,
    /// What it does to memory.
    pub effect: Effect,
}

/// What a kernel does to memory. Addresses are device addresses; words are 32 bits, little-endian.
#[derive(Clone, Default)]
pub enum Effect {
    /// Nothing.
    #[default]
    Nothing,
    /// Sets words to a value.
    FillWords {
        /// The first word.
        dst: u64,
        /// How many.
        words: u64,
        /// What they become.
        value: u32,
    },
    /// Adds a value to words, wrapping.
    AddWords {
        /// The first word.
        ptr: u64,
        /// How many.
        words: u64,
        /// What is added.
        value: u32,
    },
    /// Copies words.
    CopyWords {
        /// Where to.
        dst: u64,
        /// Where from.
        src: u64,
        /// How many.
        words: u64,
    },
    /// Counts the words that are not as they should be.
    CheckWords {
        /// The first word.
        ptr: u64,
        /// How many.
        words: u64,
        /// What they should be.
        value: u32,
        /// The word to which the number of others is added.
        wrong: u64,
    },
    /// Anything else.
    Custom(Arc<CustomEffect>),
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::FillWords { dst, words, value } => {
                write!(f, "FillWords({dst:#x}, {words} words, {value:#x})")
            }
            Self::AddWords { ptr, words, value } => {
                write!(f, "AddWords({ptr:#x}, {words} words, {value:#x})")
            }
            Self::CopyWords { dst, src, words } => {
                write!(f, "CopyWords({dst:#x} from {src:#x}, {words} words)")
            }
            Self::CheckWords { ptr, words, value, wrong } => {
                write!(f, "CheckWords({ptr:#x}, {words} words, {value:#x}, into {wrong:#x})")
            }
            Self::Custom(_) => f.write_str("Custom(..)"),
        }
    }
}

/// Device memory as a running kernel sees it.
pub trait DeviceView {
    /// Reads `out.len()` bytes from `addr` on.
    fn read(&mut self, addr: u64, out: &mut [u8]);

    /// Writes `data` from `addr` on.
    fn write(&mut self, addr: u64, data: &[u8]);
}

/// The kernels every simulated device knows.
pub(crate) fn builtin_kernels() -> Vec<SimKernel> {
    use KernelArg as Arg;
    use ParamKind::{Ptr, U32, U64};

    vec![
        SimKernel::new("hw_spin", &[U64], |args, _| match *args {
            [Arg::U64(us)] => Ok(KernelPlan { duration_ns: spin_ns(0, us), ..KernelPlan::default() }),
            _ => Err(wrong_kinds()),
        }),
        SimKernel::new("hw_fill", &[Ptr, U64, U32], |args, _| match *args {
            [Arg::Ptr(p), Arg::U64(n), Arg::U32(value)] => fill(p, n, value, 0),
            _ => Err(wrong_kinds()),
        }),
        SimKernel::new("hw_fill_late", &[Ptr, U64, U32, U64], |args, _| match *args {
            [Arg::Ptr(p), Arg::U64(n), Arg::U32(value), Arg::U64(us)] => fill(p, n, value, us),
            _ => Err(wrong_kinds()),
        }),
        SimKernel::new("hw_add", &[Ptr, U64, U32], |args, _| match *args {
            [Arg::Ptr(p), Arg::U64(n), Arg::U32(value)] => add(p, n, value),
            _ => Err(wrong_kinds()),
        }),
        SimKernel::new("hw_copy", &[Ptr, Ptr, U64], |args, _| match *args {
            [Arg::Ptr(dst), Arg::Ptr(src), Arg::U64(n)] => copy(dst, src, n),
            _ => Err(wrong_kinds()),
        }),
        SimKernel::new("hw_check", &[Ptr, U64, U32, Ptr], |args, _| match *args {
            [Arg::Ptr(p), Arg::U64(n), Arg::U32(value), Arg::Ptr(wrong)] => check(p, n, value, wrong),
            _ => Err(wrong_kinds()),
        }),
    ]
}

/// For a caller that went past [`SimKernel::plan_launch`] and its check.
fn wrong_kinds() -> String {
    "the arguments are not of the parameters' kinds".into()
}

fn spin_ns(bytes_touched: u64, us: u64) -> u64 {
    memory_bound_kernel_ns(bytes_touched).saturating_add(us.saturating_mul(1000))
}

/// The addresses of `n` words from `ptr` on; none for no words, whatever the address.
fn words_at(ptr: DevicePtr, n: u64) -> Result<Vec<Range<u64>>, String> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if ptr.is_null() || !ptr.is_aligned_to(4) {
        return Err(format!("{ptr} is no address of 32-bit words"));
    }
    let end = n.checked_mul(4).and_then(|bytes| ptr.checked_add(bytes));
    let end = end.ok_or_else(|| format!("{n} words at {ptr} go beyond the address space"))?;
    Ok(std::iter::once(ptr.raw()..end.raw()).collect())
}

fn bytes_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}

fn fill(p: DevicePtr, n: u64, value: u32, us: u64) -> Result<KernelPlan, String> {
    let writes = words_at(p, n)?;
    let duration_ns = spin_ns(bytes_of(&writes), us);
    let effect = Effect::FillWords { dst: p.raw(), words: n, value };
    Ok(KernelPlan { writes, duration_ns, effect, ..KernelPlan::default() })
}

fn add(p: DevicePtr, n: u64, value: u32) -> Result<KernelPlan, String> {
    let touched = words_at(p, n)?;
    let duration_ns = memory_bound_kernel_ns(bytes_of(&touched).saturating_mul(2));
    let effect = Effect::AddWords { ptr: p.raw(), words: n, value };
    Ok(KernelPlan { reads: touched.clone(), writes: touched, duration_ns, effect, ..KernelPlan::default() })
}

fn copy(dst: DevicePtr, src: DevicePtr, n: u64) -> Result<KernelPlan, String> {
    let (reads, writes) = (words_at(src, n)?, words_at(dst, n)?);
    let duration_ns = memory_bound_kernel_ns(bytes_of(&reads).saturating_add(bytes_of(&writes)));
    let effect = Effect::CopyWords { dst: dst.raw(), src: src.raw(), words: n };
    Ok(KernelPlan { reads, writes, duration_ns, effect, ..KernelPlan::default() })
}

fn check(p: DevicePtr, n: u64, value: u32, wrong: DevicePtr) -> Result<KernelPlan, String> {
    // Stated also where nothing will be wrong: the plan is made before the content is known.
    let (reads, atomics) = (words_at(p, n)?, words_at(wrong, n.min(1))?);
    let duration_ns = memory_bound_kernel_ns(bytes_of(&reads).saturating_add(bytes_of(&atomics)));
    let effect = Effect::CheckWords { ptr: p.raw(), words: n, value, wrong: wrong.raw() };
    Ok(KernelPlan { reads, atomics, duration_ns, effect, ..KernelPlan::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str, args: &[KernelArg]) -> Result<KernelPlan, String> {
        let kernels = builtin_kernels();
        let kernel = kernels.iter().find(|kernel| kernel.name == name).unwrap();
        kernel.plan_launch(args, LaunchShape::SINGLE)
    }

    fn ptr(raw: u64) -> KernelArg {
        KernelArg::Ptr(DevicePtr::new(raw))
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn a_spin_lasts_as_long_as_asked_and_touches_nothing() {
        let plan = plan("hw_spin", &[KernelArg::U64(100)]).unwrap();
        assert_eq!(plan.duration_ns, 2_000 + 100_000);
        assert!(plan.reads.is_empty() && plan.writes.is_empty() && plan.atomics.is_empty());
        assert!(matches!(plan.effect, Effect::Nothing));
    }

    #[test]
    fn a_late_fill_is_a_fill_after_a_spin() {
        let now = plan("hw_fill", &[ptr(512), KernelArg::U64(1 << 20), KernelArg::U32(7)]).unwrap();
        let args = [ptr(512), KernelArg::U64(1 << 20), KernelArg::U32(7), KernelArg::U64(50)];
        let late = plan("hw_fill_late", &args).unwrap();
        // 4 MiB at 4 TB/s.
        assert_eq!(now.duration_ns, 2_000 + 1_048);
        assert_eq!(late.duration_ns, now.duration_ns + 50_000);
        assert_eq!((now.writes, now.reads), (one(512..512 + (4 << 20)), vec![]));
        assert_eq!(format!("{:?}", now.effect), format!("{:?}", late.effect));
        assert_eq!(format!("{:?}", now.effect), "FillWords(0x200, 1048576 words, 0x7)");
    }

    #[test]
    fn plans_name_what_is_read_and_written() {
        let added = plan("hw_add", &[ptr(512), KernelArg::U64(2), KernelArg::U32(7)]).unwrap();
        assert_eq!((added.reads, added.writes), (one(512..520), one(512..520)));
        let copied = plan("hw_copy", &[ptr(512), ptr(1024), KernelArg::U64(2)]).unwrap();
        assert_eq!((copied.reads, copied.writes), (one(1024..1032), one(512..520)));
        let args = [ptr(512), KernelArg::U64(2), KernelArg::U32(7), ptr(1024)];
        let checked = plan("hw_check", &args).unwrap();
        assert_eq!((checked.reads, checked.writes), (one(512..520), vec![]));
        assert_eq!(checked.atomics, one(1024..1028));
    }

    #[test]
    fn wrong_arguments_are_refused_by_name() {
        let said = plan("hw_spin", &[KernelArg::U32(1)]).unwrap_err();
        assert_eq!(said, "hw_spin takes [U64], not [U32]");
        assert!(plan("hw_fill", &[ptr(512), KernelArg::U64(1)]).unwrap_err().contains("hw_fill takes"));
        for (at, n) in [(0, 1), (514, 1), (512, u64::MAX), (512, u64::MAX / 4)] {
            let refused = plan("hw_fill", &[ptr(at), KernelArg::U64(n), KernelArg::U32(0)]);
            assert!(refused.is_err(), "{n} words at {at}");
        }
    }

    #[test]
    fn no_elements_touch_nothing_even_at_no_address() {
        let plan = plan("hw_check", &[ptr(0), KernelArg::U64(0), KernelArg::U32(7), ptr(0)]).unwrap();
        assert!(plan.reads.is_empty() && plan.writes.is_empty() && plan.atomics.is_empty());
    }

    #[test]
    fn parameters_take_what_the_abi_says() {
        assert_eq!(ParamKind::U32.size_bytes() + ParamKind::F32.size_bytes(), 8);
        assert_eq!([ParamKind::Ptr, ParamKind::U64, ParamKind::F64].map(ParamKind::size_bytes), [8; 3]);
    }
}
