//! What can be known of the order of captured work while the capture goes on.

use headwater_driver::CaptureMode;

use super::EVERY;
use crate::case::Ground;
use crate::check::{Check, ensure, refused_value};

const BYTES: u64 = 4096;

fn the_frontier_moves_with_the_work(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        ensure(ground.driver.capture_frontier(stream.id())?.is_empty(), "a capture begins without work")?;
        ensure(ground.driver.capture_is_after(stream.id(), &[])?, "everything comes after nothing")?;
        ground.fill(memory.span(), 1, stream.id())?;
        let first = ground.driver.capture_frontier(stream.id())?;
        ground.fill(memory.span(), 2, stream.id())?;
        let second = ground.driver.capture_frontier(stream.id())?;
        ensure(
            first.len() == 1 && second.len() == 1 && first != second,
            "each piece of work is the end once",
        )?;
        ensure(ground.driver.capture_is_after(stream.id(), &first)?, "a stream comes after its own work")?;
        ensure(ground.driver.capture_is_after(stream.id(), &second)?, "and after its latest")?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn streams_of_a_capture_are_in_order_where_events_say_so(ground: &Ground) -> Check {
    let (memory, other) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let (stream, side) = (ground.stream()?, ground.stream()?);
    let (fork, join) = (ground.event()?, ground.event()?);
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    let is_after = |stream, nodes: &[_]| ground.driver.capture_is_after(stream, nodes);
    ground.fill(memory.span(), 1, stream.id())?;
    let before = ground.driver.capture_frontier(stream.id())?;
    fork.record(stream.id())?;
    fork.holds_back(side.id())?;
    ensure(is_after(side.id(), &before)?, "a stream that joins comes after what it waited for")?;
    ground.fill(other.span(), 2, side.id())?;
    let beside = ground.driver.capture_frontier(side.id())?;
    ground.fill(memory.span(), 3, stream.id())?;
    let meanwhile = ground.driver.capture_frontier(stream.id())?;
    ensure(!is_after(stream.id(), &beside)?, "nothing orders the first stream after the second")?;
    ensure(!is_after(side.id(), &meanwhile)?, "nor the second after the first")?;
    join.record(side.id())?;
    join.holds_back(stream.id())?;
    ensure(is_after(stream.id(), &beside)?, "the join does")?;
    ensure(is_after(stream.id(), &[&before[..], &beside, &meanwhile].concat())?, "and after all there was")?;
    ensure(!is_after(side.id(), &meanwhile)?, "the join orders one way only")?;
    capture.is_valid()?;
    capture.end()?;
    Ok(())
}

fn a_stream_that_is_not_captured_has_no_frontier(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    refused_value(ground.driver.capture_frontier(stream.id()))?;
    refused_value(ground.driver.capture_is_after(stream.id(), &[]))?;
    Ok(())
}

fn nodes_of_a_capture_that_is_over_are_before_nothing(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let first = ground.capture(stream.id(), CaptureMode::Global)?;
    ground.fill(memory.span(), 1, stream.id())?;
    let stale = ground.driver.capture_frontier(stream.id())?;
    let graph = first.end()?;
    let second = ground.capture(stream.id(), CaptureMode::Global)?;
    ground.fill(memory.span(), 2, stream.id())?;
    ensure(!ground.driver.capture_is_after(stream.id(), &stale)?, "another capture's work is not before")?;
    second.end()?;
    graph.destroy()?;
    Ok(())
}

super::list![capture:
    the_frontier_moves_with_the_work,
    streams_of_a_capture_are_in_order_where_events_say_so,
    a_stream_that_is_not_captured_has_no_frontier,
    nodes_of_a_capture_that_is_over_are_before_nothing,
];
