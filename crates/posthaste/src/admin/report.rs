//! What a relay says about itself, as it is stored and read.
//!
//! Which destinations are out of reach, and since when, lives in the memory of a relay. It writes that down
//! with its heartbeat, and everybody who looks at the database reads it: `status`, the API, the page. A
//! reader may be older than the relay: what it does not know it leaves out, and a report of another shape is
//! [`Said::Newer`].

use crate::event::Timestamp;
use serde::{Deserialize, Serialize};

/// Destinations of a sink that a report names.
pub const DESTINATIONS_NAMED: usize = 20;
/// Characters that are kept of a text.
const TEXT_MAX: usize = 200;
/// The shape that this version writes and reads.
const SHAPE: u32 = 1;

/// What a relay says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RelayReport {
    /// The shape of this report.
    pub shape: u32,
    /// Why it makes no progress, if it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// Its sinks, by name.
    pub sinks: Vec<SinkReport>,
}

/// What a relay says about one sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SinkReport {
    /// Its name.
    pub sink: String,
    /// Lanes of it that this relay has.
    pub lanes: usize,
    /// Set while the whole sink is out of reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_reach: Option<OutOfReach>,
    /// Destinations that are out of reach, the longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationReport>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_destinations: usize,
    /// What it did in the last minute; absent if nothing was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulse: Option<Pulse>,
}

/// Since when something is out of reach, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutOfReach {
    /// Since when, by the store's clock.
    pub since: Timestamp,
    /// Code of the last failure.
    pub code: String,
    /// The last failure.
    pub error: String,
}

/// A destination that is out of reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DestinationReport {
    /// Its address.
    pub destination: String,
    /// Since when, and why.
    #[serde(flatten)]
    pub out_of_reach: OutOfReach,
}

/// What a relay delivered to a sink in about the last minute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pulse {
    /// Events delivered, a second.
    pub delivered_per_s: f64,
    /// Half of them took at most this long, from append to acknowledgement.
    pub p50_ms: f64,
    /// 95 of 100.
    pub p95_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
}

/// A report as a reader finds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "report")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Said {
    /// One that this version reads.
    Known(RelayReport),
    /// One of another shape: its relay is of another version.
    Newer,
}

impl OutOfReach {
    /// Since an instant, with a failure's code and text.
    #[must_use]
    pub fn new(since: Timestamp, code: &str, error: &str) -> Self {
        let code = code.chars().take(TEXT_MAX).collect();
        Self { since, code, error: error.chars().take(TEXT_MAX).collect() }
    }
}

impl RelayReport {
    /// Of these sinks.
    #[must_use]
    pub fn new(sinks: Vec<SinkReport>, stalled: Option<String>) -> Self {
        let stalled = stalled.map(|why| why.chars().take(TEXT_MAX).collect());
        Self { shape: SHAPE, stalled, sinks }
    }

    /// As it is stored, in at most so many bytes: what does not fit loses its texts first, then its names.
    #[must_use]
    pub fn to_json(&self, bytes_max: usize) -> String {
        let written = |report: &Self| serde_json::to_string(report).unwrap_or_default();
        let fits = |text: &String| !text.is_empty() && text.len() <= bytes_max;
        let mut report = self.clone();
        let whole = written(&report);
        if fits(&whole) {
            return whole;
        }
        for sink in &mut report.sinks {
            sink.destinations.iter_mut().for_each(|at| at.out_of_reach.error.clear());
        }
        let textless = written(&report);
        if fits(&textless) {
            return textless;
        }
        for sink in &mut report.sinks {
            sink.more_destinations += sink.destinations.len();
            sink.destinations.clear();
        }
        let nameless = written(&report);
        if fits(&nameless) { nameless } else { written(&Self::new(Vec::new(), report.stalled)) }
    }

    /// The same without what changes all the time: two that are equal so tell nothing new.
    #[must_use]
    pub fn without_figures(&self) -> Self {
        let mut report = self.clone();
        report.sinks.iter_mut().for_each(|sink| sink.pulse = None);
        report
    }

    /// What is said of a sink.
    #[must_use]
    pub fn sink(&self, name: &str) -> Option<&SinkReport> {
        self.sinks.iter().find(|sink| sink.sink == name)
    }
}

impl Said {
    /// From what is stored.
    #[must_use]
    pub fn read(stored: serde_json::Value) -> Self {
        match serde_json::from_value::<RelayReport>(stored) {
            Ok(report) if report.shape == SHAPE => Self::Known(report),
            _ => Self::Newer,
        }
    }

    /// The report, if this version reads it.
    #[must_use]
    pub fn known(&self) -> Option<&RelayReport> {
        match self {
            Self::Known(report) => Some(report),
            Self::Newer => None,
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(destinations: usize, error: &str) -> RelayReport {
        let away = |n: usize| DestinationReport {
            destination: format!("destination.{n}"),
            out_of_reach: OutOfReach::new(Timestamp(1_709_210_096_000_001), "nats.no_stream", error),
        };
        let destinations = (0..destinations).map(away).collect();
        let sink = SinkReport { sink: "nats".to_owned(), lanes: 1, destinations, ..SinkReport::default() };
        RelayReport::new(vec![sink], None)
    }

    #[test]
    fn it_is_read_as_it_was_written_and_another_shape_is_newer() {
        let mut said = report(2, "no \"stream\"");
        said.sinks[0].pulse = Some(Pulse { delivered_per_s: 1.5, p50_ms: 3.0, p95_ms: 4.0, p99_ms: 11.0 });
        let stored: serde_json::Value = serde_json::from_str(&said.to_json(6_144)).expect("JSON");
        assert_eq!(Said::read(stored.clone()), Said::Known(said.clone()));
        let mut more = stored.clone();
        more["sinks"][0]["colour"] = json!("red");
        assert_eq!(Said::read(more), Said::Known(said), "a member more is left out");
        for other in [json!({}), json!([1]), json!({ "shape": 2, "sinks": [] })] {
            assert_eq!(Said::read(other), Said::Newer);
        }
    }

    #[test]
    fn what_does_not_fit_loses_texts_then_names_and_counts_them() {
        let long = "x".repeat(5_000);
        let whole = report(20, &long);
        assert_eq!(whole.sinks[0].destinations[0].out_of_reach.error.len(), TEXT_MAX);
        let textless: RelayReport = serde_json::from_str(&whole.to_json(4_000)).expect("JSON");
        assert_eq!(textless.sinks[0].destinations.len(), 20);
        assert!(textless.sinks[0].destinations[0].out_of_reach.error.is_empty());
        let nameless: RelayReport = serde_json::from_str(&whole.to_json(300)).expect("JSON");
        assert_eq!((nameless.sinks[0].destinations.len(), nameless.sinks[0].more_destinations), (0, 20));
        assert!(whole.to_json(60).len() <= 60);
    }
}
