//! The market, the options on it, and what they are worth by the closed formula.
//!
//! One asset that follows geometric Brownian motion, and four European calls on it that end after each quarter of a year: one
//! set of paths prices all four.

use std::f64::consts::{LN_2, PI};

/// Observation dates, and options.
pub(crate) const QUARTERS: usize = 4;

/// The asset and the interest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Market {
    /// The price today.
    pub(crate) spot: f64,
    /// Of all four options.
    pub(crate) strike: f64,
    /// Continuously compounded, a year.
    pub(crate) rate: f64,
    /// A year.
    pub(crate) volatility: f64,
}

impl Market {
    pub(crate) const EXAMPLE: Self = Self { spot: 100.0, strike: 105.0, rate: 0.03, volatility: 0.2 };

    /// When the n-th option ends, in years.
    pub(crate) fn years(quarter: usize) -> f64 {
        (quarter + 1) as f64 / QUARTERS as f64
    }

    /// What one unit paid at the end of the n-th option is worth today.
    pub(crate) fn discount(&self, quarter: usize) -> f64 {
        (-self.rate * Self::years(quarter)).exp()
    }

    /// Drift and volatility of one step of the logarithm to base 2, which is the one that devices have.
    pub(crate) fn log2_step(&self, steps_a_quarter: u32) -> (f64, f64) {
        let step_years = 1.0 / (QUARTERS as f64 * f64::from(steps_a_quarter));
        let drift = (self.rate - self.volatility * self.volatility / 2.0) * step_years;
        (drift / LN_2, self.volatility * step_years.sqrt() / LN_2)
    }

    /// The n-th call by Black and Scholes.
    pub(crate) fn black_scholes(&self, quarter: usize) -> f64 {
        let years = Self::years(quarter);
        let spread = self.volatility * years.sqrt();
        let d1 = ((self.spot / self.strike).ln() + self.rate * years) / spread + spread / 2.0;
        let d2 = d1 - spread;
        self.spot * normal_below(d1) - self.strike * self.discount(quarter) * normal_below(d2)
    }
}

/// How likely a standard normal number is below `x`: the density times a series with positive terms only (Marsaglia,
/// "Evaluating the normal distribution", 2004), to the last few bits for the |x| < 6 that options have.
fn normal_below(x: f64) -> f64 {
    let (mut sum, mut term, mut odd) = (x, x, 1.0);
    while (sum + term).to_bits() != sum.to_bits() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

/// What simulated paths say about one option.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) paths: u64,
    pub(crate) sum: f64,
    pub(crate) squares: f64,
}

impl Estimate {
    /// The mean payoff: the price.
    pub(crate) fn price(&self) -> f64 {
        self.sum / self.paths as f64
    }

    /// The standard deviation of [`price`](Self::price) itself.
    pub(crate) fn standard_error(&self) -> f64 {
        let variance = self.squares / self.paths as f64 - self.price() * self.price();
        (variance.max(0.0) / self.paths as f64).sqrt()
    }

    /// How many standard errors the price is away from the true one.
    pub(crate) fn errors_away(&self, truth: f64) -> f64 {
        (self.price() - truth).abs() / self.standard_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_has_its_known_values() {
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.959_963_984_540_054, 0.025),
            (3.0, 0.998_650_101_968_369_9),
        ] {
            assert!((normal_below(x) - expected).abs() < 1e-14, "{x}: {}", normal_below(x));
        }
    }

    #[test]
    fn the_formula_gives_the_textbook_price() {
        // Hull, "Options, futures and other derivatives", example 15.6: spot 42, strike 40, half a year, 10 %, 20 %: 4.76.
        let market = Market { spot: 42.0, strike: 40.0, rate: 0.1, volatility: 0.2 };
        assert!((market.black_scholes(1) - 4.76).abs() < 0.005, "{}", market.black_scholes(1));
    }
}
