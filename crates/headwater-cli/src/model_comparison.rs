//! What driver calls took on a real device, beside what the cost model of the simulated one says.

use std::collections::BTreeSet;

use headwater_trace::replay::Figures;
use serde_json::json;

use crate::output::{grouped, json_line, table};

/// One row a call: how often, and how long each, in both replays of the same trace.
pub(crate) fn print_comparison(real: &Figures, modelled: &Figures, json: bool) {
    let names: BTreeSet<&str> = real.driver_us.keys().chain(modelled.driver_us.keys()).copied().collect();
    let mut rows = Vec::new();
    for name in names {
        let (count, us) = of(real, name);
        let (model_count, model_us) = of(modelled, name);
        if json {
            json_line(&json!({
                "comparison": name,
                "trace": real.trace,
                "policy": real.policy,
                "device": real.device,
                "calls": count,
                "us_each": each(us, count),
                "model_calls": model_count,
                "model_us_each": each(model_us, model_count),
            }));
        }
        rows.push(vec![
            name.to_owned(),
            grouped(count),
            format!("{:.2}", each(us, count)),
            grouped(model_count),
            format!("{:.2}", each(model_us, model_count)),
            format!("{:.1}", us / 1e3),
            format!("{:.1}", model_us / 1e3),
        ]);
    }
    if !json {
        println!("{} {} on {}, beside the model:", real.trace, real.policy, real.device);
        let header = ["call", "calls", "us each", "model calls", "model us each", "ms", "model ms"];
        println!("{}", table(&header, &rows));
    }
}

fn of(figures: &Figures, name: &str) -> (u64, f64) {
    let count = figures.driver_calls.get(name).copied().unwrap_or(0);
    (count, figures.driver_us.get(name).copied().unwrap_or(0.0))
}

fn each(us: f64, count: u64) -> f64 {
    us / count.max(1) as f64
}
