//! What operators set while relays run, and what changed of it, in words for the log. Pure.

use crate::admin::{SetBy, Tuned};

/// What operators set for sinks, routes and the outbox itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Controls {
    /// Sinks that are paused.
    pub paused_sinks: Vec<String>,
    /// Routes that are paused.
    pub paused_routes: Vec<String>,
    /// Rate limits by sink, in events a second, over all relays.
    pub rate_limits: Vec<(String, f64)>,
    /// Who set these, and why, by kind and name: `("sink nats", …)`.
    pub set_by: Vec<(String, SetBy)>,
    /// What is laid over `[relay]`, as it is stored.
    pub tuning: Vec<Tuned>,
}

/// A row of a store's controls that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlRow {
    /// `sink`, `route`, `outbox`, or what does not concern a relay.
    pub kind: String,
    /// Whose; of an outbox, which setting.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Events a second.
    pub rate: Option<f64>,
    /// The value of a setting.
    pub settings: Option<serde_json::Value>,
    /// Who set it, and why.
    pub set_by: Option<SetBy>,
}

impl ControlRow {
    /// The value of a setting, as a store has it. What is no JSON was written by hand, and is shown as it is.
    #[must_use]
    pub fn value(text: String) -> serde_json::Value {
        serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))
    }
}

impl Controls {
    /// Those that are in these rows. Consumers ask for theirs themselves.
    #[must_use]
    pub fn of(rows: impl IntoIterator<Item = ControlRow>) -> Self {
        let mut controls = Self::default();
        for row in rows {
            controls.add(row);
        }
        controls
    }

    fn add(&mut self, row: ControlRow) {
        let ControlRow { kind, name, paused, rate, settings, set_by } = row;
        let is_set = paused || rate.is_some();
        if let (Some(set), true, "sink" | "route") = (&set_by, is_set, kind.as_str()) {
            self.set_by.push((format!("{kind} {name}"), set.clone()));
        }
        match kind.as_str() {
            "sink" => {
                self.rate_limits.extend(rate.map(|rate| (name.clone(), rate)));
                self.paused_sinks.extend(paused.then_some(name));
            }
            "route" => self.paused_routes.extend(paused.then_some(name)),
            "outbox" => {
                let value = settings.unwrap_or_default();
                self.tuning.push(Tuned { setting: name, value, set_by });
            }
            _ => {}
        }
    }

    /// By whom, until when and why, behind what is said.
    fn by(&self, what: &str) -> String {
        let found = self.set_by.iter().find(|(name, _)| name == what);
        found.map_or_else(String::new, |(_, set)| set.words())
    }

    /// A line for each thing that is set now and was not before, or the other way round.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut told = Vec::new();
        let kinds = [
            ("sink", &self.paused_sinks, &before.paused_sinks),
            ("route", &self.paused_routes, &before.paused_routes),
        ];
        for (kind, now, then) in kinds {
            told.extend(missing(now, then).map(|name| {
                let what = format!("{kind} {name}");
                format!("{what} is paused: its events wait{}", self.by(&what))
            }));
            told.extend(missing(then, now).map(|name| format!("{kind} {name} is not paused any more")));
        }
        let rate =
            |all: &Self, sink: &str| all.rate_limits.iter().find(|(name, _)| name == sink).map(|of| of.1);
        for (sink, limit) in &self.rate_limits {
            if rate(before, sink) != Some(*limit) {
                // Of a sink that is paused too it is not known which of both was set last.
                let by =
                    if self.paused_sinks.contains(sink) { "" } else { &*self.by(&format!("sink {sink}")) };
                told.push(format!("sink {sink} delivers at most {limit} events a second{by}"));
            }
        }
        let lifted = before.rate_limits.iter().filter(|(sink, _)| rate(self, sink).is_none());
        told.extend(lifted.map(|(sink, _)| format!("sink {sink} has no limit any more")));
        told
    }
}

impl SetBy {
    /// ` (by bo, until 2026-11-18T17:00:00Z: "upgrade")`, behind what was set.
    #[must_use]
    pub fn words(&self) -> String {
        let until = self.until.map_or_else(String::new, |until| format!(", until {}", until.rfc3339()));
        format!(" (by {}{until}: \"{}\")", self.actor, self.reason)
    }
}

/// An act at the lanes of a sink that took them from their relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandAct {
    /// The audit's word: `rewind`, `repair` or `lanes`.
    pub action: String,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for HandAct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let done = match self.action.as_str() {
            "rewind" => "rewound",
            "repair" => "repaired",
            _ => "set anew",
        };
        write!(f, "{done} by {}: \"{}\"", self.actor, self.reason)
    }
}

/// What is in one list and not in the other.
fn missing<'a>(one: &'a [String], other: &'a [String]) -> impl Iterator<Item = &'a String> {
    one.iter().filter(|name| !other.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timestamp;

    fn row(kind: &str, paused: bool, rate: Option<f64>) -> ControlRow {
        let until = Some(Timestamp(1_700_000_000_000_000));
        let set_by = SetBy { actor: "bo".to_owned(), reason: "upgrade".to_owned(), at: Timestamp(0), until };
        let (kind, name) = (kind.to_owned(), "billing".to_owned());
        ControlRow { kind, name, paused, rate, settings: None, set_by: Some(set_by) }
    }

    #[test]
    fn each_change_is_told_once() {
        let set = |paused: &[&str], rates: &[(&str, f64)]| Controls {
            paused_sinks: paused.iter().map(|name| (*name).to_owned()).collect(),
            rate_limits: rates.iter().map(|(name, rate)| ((*name).to_owned(), *rate)).collect(),
            ..Controls::default()
        };
        let (none, both) = (set(&[], &[]), set(&["nats"], &[("http", 5.0)]));
        let told = both.changes_since(&none);
        assert_eq!(
            told,
            ["sink nats is paused: its events wait", "sink http delivers at most 5 events a second"]
        );
        assert!(both.changes_since(&both).is_empty());
        let told = none.changes_since(&both);
        assert_eq!(told, ["sink nats is not paused any more", "sink http has no limit any more"]);
        assert_eq!(set(&["nats"], &[("http", 7.0)]).changes_since(&both).len(), 1);
    }

    #[test]
    fn who_set_it_until_when_and_why_is_told() {
        let told = Controls::of([row("route", true, None)]).changes_since(&Controls::default());
        let by = "(by bo, until 2023-11-14T22:13:20.000000Z: \"upgrade\")";
        assert_eq!(told, [format!("route billing is paused: its events wait {by}")]);
        let told = Controls::of([row("sink", false, Some(2.0))]).changes_since(&Controls::default());
        assert_eq!(told, [format!("sink billing delivers at most 2 events a second {by}")]);
    }

    #[test]
    fn a_paused_consumer_pauses_no_route_of_its_name() {
        let found = Controls::of([row("consumer", true, None)]);
        assert_eq!(found, Controls::default());
        let found = Controls::of([row("route", true, None), row("sink", true, None)]);
        assert_eq!((found.paused_routes.len(), found.paused_sinks.len()), (1, 1));
    }
}
