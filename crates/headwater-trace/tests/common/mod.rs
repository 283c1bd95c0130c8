//! Random traces that can have happened.

use headwater_trace::{Event, LabelId, Reported, StreamId, Trace};
use proptest::prelude::*;

/// What a trace may contain, after what the formats can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Richness {
    /// What `alloctrace 1` holds: allocations, frees and completions on one device.
    Plain,
    /// What an RMM log holds: allocations, frees and failures within a day.
    Rmm,
    /// What a snapshot holds: labels, devices, failures, annotations; times in order.
    Labels,
    /// What `.hwt` holds: all of that, segments, and any ids, times and sizes.
    Everything,
}

/// One step of the making of a trace: what to do, and numbers to do it with.
type Step = (u8, u64, u16, u8, u8, u8);

pub(crate) fn trace_strategy(richness: Richness) -> impl Strategy<Value = Trace> {
    let step = (0u8..100, any::<u64>(), 0u16..2_000, 0u8..6, 0u8..8, 0u8..3);
    let reported = (proptest::option::of(any::<u64>()), proptest::option::of(0u32..1_000_000));
    (proptest::collection::vec(step, 0..200), reported, "[a-z ]{0,12}").prop_map(
        move |(steps, (peak_reserved, millis), name)| {
            let mut trace = build(&steps, richness);
            let seconds = millis.map(|millis| f64::from(millis) / 1000.0);
            trace.header.name = name;
            trace.header.reported = Reported { peak_reserved, seconds, ..Reported::default() };
            trace.header.extra.insert("conf".into(), "expandable_segments:True".into());
            trace
        },
    )
}

fn build(steps: &[Step], richness: Richness) -> Trace {
    let mut trace = Trace::new("");
    let mut live: Vec<(u64, StreamId, u8)> = Vec::new();
    let mut waiting: Vec<(u64, u8)> = Vec::new();
    let (mut t_us, mut next_id) = (1_000u64, 0u64);
    let wild = richness == Richness::Everything;
    for &(what, number, step_us, stream, label, device) in steps {
        t_us = if wild && number % 7 == 0 { number } else { t_us.wrapping_add(u64::from(step_us)) };
        let device = if matches!(richness, Richness::Labels | Richness::Everything) { device } else { 0 };
        let raw = if wild { u64::from(stream) * (u64::MAX / 5) } else { u64::from(stream) * 0x5555_1000 };
        let stream = trace.names.stream(raw).unwrap();
        let label = make_label(&mut trace, label, richness);
        let bytes = if wild { number >> (number % 64) >> 10 } else { 1 + number % (1 << 30) };
        match what {
            0..50 => {
                let id = if wild && what == 0 { number } else { next_id };
                next_id += 1;
                if live.iter().any(|&(known, ..)| known == id)
                    || waiting.iter().any(|&(known, _)| known == id)
                {
                    continue;
                }
                live.push((id, stream, device));
                trace.events.push(Event::Alloc { id, bytes, t_us, label, stream, device });
            }
            50..85 if !live.is_empty() => {
                let (id, stream, device) = live.swap_remove(number as usize % live.len());
                trace.events.push(Event::Free { id, t_us, label, stream, device });
                if what >= 75 && richness != Richness::Rmm {
                    waiting.push((id, device));
                }
            }
            85..90 if !waiting.is_empty() => {
                let (id, device) = waiting.swap_remove(number as usize % waiting.len());
                // A snapshot cannot tell a completion right after the give-back from none.
                let of_history =
                    |event: &&Event| event.device() == device && !matches!(event, Event::Annotation { .. });
                let last = trace.events.iter().rfind(of_history);
                if matches!(last, Some(Event::Free { id: last, .. }) if *last == id) {
                    continue;
                }
                trace.events.push(Event::Complete { id, t_us, device });
            }
            90..93 if richness != Richness::Plain => {
                let free_bytes = if richness == Richness::Rmm { 0 } else { bytes / 2 };
                trace.events.push(Event::Oom { bytes, free_bytes, t_us, label, stream, device });
            }
            93..96 if matches!(richness, Richness::Labels | Richness::Everything) => {
                // Strictly later than anything, so that merging by time keeps its place.
                t_us = t_us.wrapping_add(1);
                let label = trace.names.text("a mark").unwrap();
                trace.events.push(Event::Annotation { label, t_us, device });
                t_us = t_us.wrapping_add(1);
            }
            96.. if wild => {
                let address = number;
                trace.events.push(match what {
                    96 => Event::SegmentAlloc { address, bytes, t_us, label, stream, device },
                    97 => Event::SegmentFree { address, bytes, t_us, label, stream, device },
                    98 => Event::SegmentMap { address, bytes, t_us, label, stream, device },
                    _ => Event::SegmentUnmap { address, bytes, t_us, label, stream, device },
                });
            }
            _ => {}
        }
        if richness == Richness::Labels {
            // Devices are merged by time, so times must differ for their order to be kept.
            t_us += 1;
        }
    }
    trace
}

fn make_label(trace: &mut Trace, label: u8, richness: Richness) -> LabelId {
    if matches!(richness, Richness::Plain | Richness::Rmm) || label < 2 {
        return LabelId::NONE;
    }
    if label < 4 {
        return trace.names.text(&format!("text {label} \u{1f980}")).unwrap();
    }
    let frames: Vec<_> = (0..label)
        .map(|line| trace.names.frame("model.py", u32::from(line), &format!("f{}", line % 3)).unwrap())
        .collect();
    trace.names.stack(&frames).unwrap()
}
