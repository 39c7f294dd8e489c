//! What a run says: progress while it lasts, figures at the end.
//!
//! A figure has a name, a value and a few words. JSON holds all of them in one flat object, so that a script
//! needs no knowledge of ours; people get the same as a table. Lists and settings are for JSON only.

use crate::output::{remark, seconds, table, thousands};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write as _};
use std::time::Instant;

/// The figures of a run.
#[derive(Debug, Default)]
pub(super) struct Report {
    json: Map<String, Value>,
    rows: Vec<Vec<String>>,
    missed: Vec<String>,
}

impl Report {
    /// A figure for everybody. What could not be measured is `null`.
    pub(super) fn figure(&mut self, name: &str, value: f64, words: &str) {
        let rounded = round(value);
        let shown = match rounded {
            None => "-".to_owned(),
            Some(value) if value.abs() >= 1_000.0 => thousands(value.round() as u64),
            Some(value) => value.to_string(),
        };
        self.rows.push(vec![name.to_owned(), shown, words.to_owned()]);
        self.json.insert(name.to_owned(), rounded.map_or(Value::Null, |value| json!(value)));
    }

    /// A fact for everybody.
    pub(super) fn fact(&mut self, name: &str, value: impl Into<Value>, words: &str) {
        let value = value.into();
        let shown = match &value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), thousands),
            other => other.to_string(),
        };
        self.rows.push(vec![name.to_owned(), shown, words.to_owned()]);
        self.json.insert(name.to_owned(), value);
    }

    /// Something for JSON only.
    pub(super) fn detail(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.to_owned(), value.into());
    }

    /// Something that had to hold and does not, in a sentence.
    pub(super) fn miss(&mut self, sentence: String) {
        self.missed.push(sentence);
    }

    /// An error with all of those.
    pub(super) fn missed(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.missed.is_empty(), "{}", self.missed.join("\n"));
        Ok(())
    }

    /// Prints all of it.
    pub(super) fn print(self, as_json: bool) -> anyhow::Result<()> {
        let Self { json, rows, .. } = self;
        let text = match as_json {
            true => Value::Object(json).to_string(),
            false => table(&["figure", ">value", "what it is"], rows),
        };
        Ok(writeln!(std::io::stdout(), "{text}")?)
    }
}

/// Four digits are more than a measurement holds; from a thousand on, whole numbers.
fn round(value: f64) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    let digits = if value.abs() >= 1_000.0 { 0 } else { 4 };
    let power = 10f64.powi(digits);
    Some((value * power).round() / power)
}

/// The same for lists.
pub(super) fn rounded(values: &[f64]) -> Value {
    values.iter().map(|value| round(*value).map_or(Value::Null, |value| json!(value))).collect()
}

/// The largest, for rates: the machine's other work only ever takes away.
pub(super) fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// How far one step is: a bar on a terminal, a line at its end elsewhere.
pub(super) struct ProgressLine {
    title: String,
    total: u64,
    at: u64,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl ProgressLine {
    /// Begins a step of this many events.
    pub(super) fn start(title: impl Into<String>, total: u64) -> Self {
        let title = title.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{msg:24} {wide_bar} {human_pos}/{human_len} {per_sec}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_message(title.clone())
        });
        Self { title, total, at: 0, started: Instant::now(), bar }
    }

    pub(super) fn set(&mut self, at: u64) {
        self.at = at;
        if let Some(bar) = &self.bar {
            bar.set_position(at);
        }
    }

    /// Ends the step.
    pub(super) fn finish(mut self) {
        self.set(self.total);
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let (took, count) = (self.started.elapsed().as_secs_f64(), thousands(self.total));
        remark(&format!("bench: {}: {count} in {}", self.title, seconds(took)));
    }
}

/// A step that failed leaves no bar behind.
impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_hold_no_more_digits_than_were_measured() {
        assert_eq!(round(123_456.78), Some(123_457.0));
        assert_eq!(round(0.912_345), Some(0.9123));
        assert_eq!(round(f64::NAN), None);
        assert_eq!(rounded(&[1.0, f64::INFINITY]).to_string(), "[1.0,null]");
        assert_eq!(best(&[1.0, 3.0, 2.0]), 3.0);
        assert!(best(&[]).is_nan());
    }
}
