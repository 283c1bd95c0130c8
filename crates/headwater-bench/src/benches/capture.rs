//! `capture_outside` and `capture_inside`: the same pair through the same `GraphAllocator`, outside of a capture, where the
//! allocator inside serves it, and in a stream that is being captured, where a private pool does. In turns, so that both see the
//! same machine.

use std::hint::black_box;

use headwater::graph::{GraphAllocator, GraphError};
use headwater::{AllocError, Request};
use headwater_driver::{Call, CaptureMode, DriverError, ErrorClass};

use super::pair::pair;
use super::{Ground, Streams};
use crate::contestant::BenchError;
use crate::rounds::Seen;

const SIZES: [u64; 3] = [512, 64 << 10, 4 << 20];

pub(super) fn run(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    let effort = ground.options.effort;
    for contestant in ground.contestants {
        let failed = |error: GraphError| contestant.failed("capture", as_alloc_error(error));
        let inner = contestant.make("capture")?;
        if !inner.driver().device_properties(inner.device())?.capabilities.capture {
            return Ok(());
        }
        let graphs = GraphAllocator::builder(inner.clone()).build().map_err(failed)?;
        let streams = Streams::new(&*inner, 1)?;
        let stream = streams.get(0);
        let allocator: &dyn headwater::Allocator = black_box(&*graphs);
        for bytes in SIZES {
            let (mut outside, mut inside) = (Seen::default(), Seen::default());
            let step = || pair(allocator, Request::new(bytes, stream));
            for _ in 0..effort.rounds() {
                let operations = effort.operations(contestant.is_slow());
                let measure = |seen: &mut Seen, operations| {
                    // Once unmeasured: the first request of a size is a miss.
                    let measured = step().and_then(|()| seen.round(operations, step));
                    let measured = measured.and_then(|()| seen.singles(operations / 5, step));
                    measured.map_err(|error| contestant.failed("capture", error))
                };
                measure(&mut outside, operations)?;
                graphs.begin_capture(stream, CaptureMode::ThreadLocal, None).map_err(failed)?;
                // A pool caches whatever the allocator inside does.
                let measured = measure(&mut inside, effort.operations(false));
                drop(graphs.end_capture(stream).map_err(failed)?);
                measured?;
            }
            (ground.report)(outside.row("capture_outside", contestant.name(), bytes, 1));
            (ground.report)(inside.row("capture_inside", contestant.name(), bytes, 1));
        }
    }
    Ok(())
}

/// What an allocator says, also where it is about graphs.
fn as_alloc_error(error: GraphError) -> AllocError {
    match error {
        GraphError::Alloc(error) => error,
        other => DriverError::new(Call::CaptureBegin, ErrorClass::Other, 999, "CUDA_ERROR_UNKNOWN")
            .with_detail(other.to_string())
            .into(),
    }
}
