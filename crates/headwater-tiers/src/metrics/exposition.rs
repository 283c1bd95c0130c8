//! Prometheus' text format, version 0.0.4: families one behind the other, each with its help, its type and its rows.

use std::fmt::{Display, Write};

/// A text that families of figures are added to. All names begin with `headwater_`.
///
/// ```
/// use headwater_tiers::metrics::Exposition;
/// let mut text = Exposition::default();
/// text.gauge("space_bytes", "What is taken.").row(&[("space", "GPU 0")], 7);
/// assert!(text.into_text().ends_with("headwater_space_bytes{space=\"GPU 0\"} 7\n"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
}

/// One family; rows are added to it.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Exposition {
    /// What is sent as the type of the content.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// A family of figures that only rise; its name ends in `_total`.
    pub fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, "counter", help)
    }

    /// A family of figures that rise and fall.
    pub fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, "gauge", help)
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn family<'a>(&'a mut self, name: &'a str, kind: &str, help: &str) -> Family<'a> {
        // Writing into a string cannot fail.
        let _ = write!(self.text, "# HELP headwater_{name} ");
        escape(&mut self.text, help, false);
        let _ = writeln!(self.text, "\n# TYPE headwater_{name} {kind}");
        Family { text: &mut self.text, name }
    }
}

impl Family<'_> {
    /// Adds a row.
    pub fn row(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        // As above.
        let _ = write!(self.text, "headwater_{}", self.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"", if index == 0 { '{' } else { ',' });
            escape(self.text, text, true);
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
        self
    }

    /// Adds the only row.
    pub fn value(&mut self, value: impl Display) {
        self.row(&[], value);
    }
}

/// Quotes are special in the value of a label only.
fn escape(into: &mut String, text: &str, is_label: bool) {
    for character in text.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '"' if is_label => into.push_str("\\\""),
            other => into.push(other),
        }
    }
}
