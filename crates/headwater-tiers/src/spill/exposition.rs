//! What the engine counts, for Prometheus.

use super::metrics::{Route, RouteFigures, SpillFigures};
use crate::metrics::Exposition;
use crate::space::Space;
use crate::tier::Tier;

impl SpillFigures {
    /// The figures in Prometheus' text format, version 0.0.4.
    pub fn prometheus_text(&self) -> String {
        let mut text = Exposition::default();
        self.expose(&mut text);
        text.into_text()
    }

    pub(super) fn expose(&self, text: &mut Exposition) {
        self.expose_routes(text);
        text.gauge("spill_moves_in_flight", "Moves under way.").value(self.moves_in_flight);
        text.gauge("spill_disk_in_flight", "Disk transfers under way.").value(self.disk_in_flight);
        text.gauge("tiers_waiting", "Requests for room that wait.").value(self.waiting);
        text.counter("tasks_waits_total", "Waits of tasks that ended.").value(self.waits);
        let waited = self.wait_time.as_secs_f64();
        text.counter("tasks_wait_seconds_total", "Time that tasks waited.").value(waited);
        text.gauge("tasks", "Tasks there are.").value(self.tasks);
        text.counter("tasks_rollbacks_total", "Tasks asked to roll back.").value(self.rollbacks);
        text.counter("tasks_splits_total", "Tasks asked to split their work.").value(self.splits);
        text.counter("spill_callbacks_total", "Allocators that ran out and asked.").value(self.callbacks);
        let helped = self.callbacks_helped;
        text.counter("spill_callbacks_helped_total", "Allocators that got room.").value(helped);
        let refused = self.no_room_below;
        text.counter("spill_no_room_below_total", "Victims nobody had room for.").value(refused);
        text.counter("disk_rereads_total", "Chunks read twice.").value(self.disk_rereads);
        let mut tiers = text.gauge("spillable_bytes", "Spillable data by tier.");
        for (tier, bytes) in [Tier::Gpu, Tier::Host, Tier::Disk].iter().zip(self.bytes_by_tier) {
            tiers.row(&[("tier", &tier.to_string().to_lowercase())], bytes);
        }
    }

    fn expose_routes(&self, text: &mut Exposition) {
        type Read = fn(&RouteFigures) -> f64;
        let families: [(&str, &str, Read); 5] = [
            ("spill_moves_total", "Moves that succeeded.", |route| route.moves as f64),
            ("spill_bytes_total", "Bytes moved.", |route| route.bytes as f64),
            ("spill_seconds_total", "Time that moves took.", |route| route.time.as_secs_f64()),
            ("spill_failed_total", "Moves that failed.", |route| route.failed as f64),
            ("spill_cancelled_total", "Moves called off.", |route| route.cancelled as f64),
        ];
        for (name, help, read) in families {
            let mut family = text.counter(name, help);
            for route in Route::ALL {
                family.row(&[("route", route.name())], read(&self.route(*route)));
            }
        }
    }
}

/// The gauges of spaces.
pub(super) fn expose_spaces(spaces: &[Space], text: &mut Exposition) {
    let all: Vec<_> = spaces.iter().map(|space| (space.id().to_string(), space.usage())).collect();
    let mut family = |name: &str, help: &str, read: &dyn Fn(&crate::space::SpaceUse) -> u64| {
        let mut family = text.gauge(name, help);
        for (space, usage) in &all {
            family.row(&[("space", space)], read(usage));
        }
    };
    family("space_capacity_bytes", "The hard cap.", &|usage| usage.capacity_bytes);
    family("space_limit_bytes", "The most that can be promised.", &|usage| usage.limit_bytes);
    family("space_reserved_bytes", "What is promised.", &|usage| usage.reserved_bytes);
    family("space_unreserved_bytes", "What is taken without a promise.", &|usage| usage.unreserved_bytes);
    family("space_used_bytes_peak", "The most that was ever taken.", &|usage| usage.used_bytes_peak);
    family("space_waiting", "Requests that wait for the space.", &|usage| usage.waiting as u64);
    family("space_waiting_bytes", "What they want.", &|usage| usage.waiting_bytes);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use super::super::metrics::{Counters, MoveEnd};
    use super::*;

    #[test]
    fn the_text_has_one_help_and_type_a_family_and_a_number_a_row() {
        let counters = Counters::default();
        counters.note(Route::GpuToHost, MoveEnd::Done { bytes: 7 }, Duration::from_millis(1500));
        counters.note(Route::HostToDisk, MoveEnd::Cancelled, Duration::ZERO);
        let mut figures = SpillFigures::default();
        counters.fill(&mut figures);
        let text = figures.prometheus_text();
        assert!(text.contains("headwater_spill_bytes_total{route=\"gpu_to_host\"} 7\n"), "{text}");
        assert!(text.contains("headwater_spill_seconds_total{route=\"gpu_to_host\"} 1.5\n"), "{text}");
        assert!(text.contains("headwater_spill_cancelled_total{route=\"host_to_disk\"} 1\n"), "{text}");
        assert!(text.contains("headwater_spillable_bytes{tier=\"disk\"} 0\n"), "{text}");
        assert_eq!(text.matches("# HELP").count(), text.matches("# TYPE").count());
        for row in text.lines().filter(|line| !line.starts_with('#')) {
            let value = row.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{row}");
        }
    }
}
