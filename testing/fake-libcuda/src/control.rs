//! What tests read and set: symbols that no real libcuda has.
//!
//! ```c
//! uint64_t fake_cuda_undefined_uses(void);  // uses of destroyed objects and garbage handles so far
//! uint64_t fake_cuda_context_depth(void);   // contexts on the calling thread's stack
//! uint64_t fake_cuda_hazard_count(void);    // races and bad accesses that the simulator found
//! uint64_t fake_cuda_leak_count(void);      // objects and allocations that nobody has given back
//! void fake_cuda_fail_nth(const char *call, uint64_t n, uint32_t code);
//! void fake_cuda_reset(void);               // back to before cuInit; forgets everything
//! ```

use std::ffi::c_char;

use parking_lot::Mutex;

use crate::abi::CUresult;
use crate::context;
use crate::entry::text;
use crate::machine::{self, Machine};

/// A call that is to fail once.
#[derive(Debug)]
struct Fault {
    call: String,
    /// How many calls from now it is; the next call is the first.
    calls_left: u64,
    code: u32,
}

/// Faults that have not struck. They outlive no reset, but need no `cuInit`: that too can be made to fail.
static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

/// Counts a call of `name`, and returns the fault that strikes it, if any.
pub(crate) fn injected(name: &str) -> Option<CUresult> {
    let mut faults = FAULTS.lock();
    let mut struck = None;
    for (place, fault) in faults.iter_mut().enumerate().filter(|(_, fault)| fault.call == name) {
        fault.calls_left = fault.calls_left.saturating_sub(1);
        if fault.calls_left == 0 && struck.is_none() {
            struck = Some(place);
        }
    }
    struck.map(|place| CUresult(faults.remove(place).code))
}

/// A number of the machine; zero before `cuInit`.
fn read(number: impl FnOnce(&Machine) -> u64) -> u64 {
    machine::current().map_or(0, |machine| number(&machine))
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_undefined_uses() -> u64 {
    read(Machine::undefined_uses)
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_context_depth() -> u64 {
    read(context::depth)
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_hazard_count() -> u64 {
    read(|machine| machine.sim.hazards().len() as u64 + machine.sim.hazards_dropped())
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_leak_count() -> u64 {
    read(Machine::leaked)
}

/// Makes the `n`-th call from now of the symbol `call` (with its version suffix, as exported) fail with `code` and do
/// nothing. The next call is the first; zero takes back what was set for that symbol.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_fail_nth(call: *const c_char, n: u64, code: u32) {
    // SAFETY: the caller's C string, which outlives the call.
    let Ok(call) = (unsafe { text(call) }) else {
        eprintln!("fake libcuda: fake_cuda_fail_nth without the name of a call");
        return;
    };
    let mut faults = FAULTS.lock();
    if n == 0 {
        faults.retain(|fault| fault.call != call);
    } else {
        faults.push(Fault { call: call.to_owned(), calls_left: n, code });
    }
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_reset() {
    FAULTS.lock().clear();
    machine::reset();
}
