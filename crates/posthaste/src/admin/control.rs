//! Pause, resume, rate limit: what an operator may set, and what is written down for it.

use super::error::{AdminCode, AdminError};
use crate::event::Timestamp;
use crate::tuning::Ends;
use serde_json::{Value, json};

/// What an operator sets.
#[derive(Debug, Clone, PartialEq)]
pub enum Control {
    /// Stop delivering.
    Pause,
    /// Go on.
    Resume,
    /// At most this many events a second; `None` lifts the limit.
    RateLimit(Option<f64>),
}

/// What a control is set for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlTarget {
    /// A sink.
    Sink(String),
    /// A route.
    Route(String),
    /// A consumer.
    Consumer(String),
}

/// What is set already for the same sink, route or consumer, and has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Beside {
    /// Whether it is paused.
    pub paused: bool,
    /// Its rate limit.
    pub rate: Option<f64>,
    /// When both end.
    pub until: Option<Timestamp>,
}

/// A control as a store writes it: what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// `sink`, `route` or `consumer`.
    pub kind: &'static str,
    /// Whose.
    pub name: String,
    /// Whether it is paused.
    pub paused: Option<bool>,
    /// The rate; the inner `None` lifts it.
    pub rate: Option<Option<f64>>,
    /// The audit's word.
    pub action: &'static str,
}

impl Setting {
    /// What is to be written, or why it is refused.
    pub fn new(target: &ControlTarget, control: &Control) -> Result<Self, AdminError> {
        let (kind, name) = match target {
            ControlTarget::Sink(name) => ("sink", name),
            ControlTarget::Route(name) => ("route", name),
            ControlTarget::Consumer(name) => ("consumer", name),
        };
        let (action, paused, rate) = match control {
            Control::Pause => ("pause", Some(true), None),
            Control::Resume => ("resume", Some(false), None),
            Control::RateLimit(rate) => ("rate", None, Some(*rate)),
        };
        if rate.is_some() && kind == "route" {
            let why = format!("a rate limit is set for a sink or a consumer; {name} is a route");
            return Err(AdminError::invalid(AdminCode::RouteRate, why));
        }
        if let Some(Some(rate)) = rate
            && !(rate.is_finite() && rate > 0.0)
        {
            let why = format!("{rate} events a second is no limit; to stop a {kind}, pause it");
            return Err(AdminError::invalid(AdminCode::BadRate, why));
        }
        Ok(Self { kind, name: name.clone(), paused, rate, action })
    }

    /// The sink whose name has to be checked. Routes and consumers live in the configuration: any name may be
    /// one.
    #[must_use]
    pub fn sink(&self) -> Option<&str> {
        (self.kind == "sink").then_some(self.name.as_str())
    }

    /// When it ends, by the store's clock. A pause and a rate limit of one sink stand in one row and end
    /// together: setting one never prolongs or shortens the other unasked, so that is refused.
    pub fn until(
        &self,
        ends: Option<Ends>,
        now: Timestamp,
        beside: Beside,
    ) -> Result<Option<Timestamp>, AdminError> {
        let other = match self.paused {
            Some(_) => beside.rate.map(|_| "limited"),
            None => beside.paused.then_some("paused"),
        };
        let kept = other.and(beside.until);
        if self.paused == Some(false) || self.rate == Some(None) {
            return Ok(kept);
        }
        let until = ends.map(|ends| ends.at(now)).transpose()?;
        let Some(other) = other.filter(|_| until != kept) else { return Ok(until) };
        let end = kept.map_or_else(|| "for good".to_owned(), |end| format!("until {}", end.rfc3339()));
        let (kind, name) = (self.kind, &self.name);
        let why = format!(
            "{kind} {name} is {other} {end}, and its pause and its limit end together. Give this one the same end, or lift \
             the other one first. Nothing was changed"
        );
        Err(AdminError::conflict(AdminCode::EndsApart, why))
    }

    /// The audit's detail; `until` is when it ends.
    #[must_use]
    pub fn detail(&self, until: Option<Timestamp>) -> Value {
        let mut detail = json!({ self.kind: self.name });
        if let Some(until) = until {
            detail["until"] = until.rfc3339().into();
        }
        if let Some(rate) = self.rate {
            detail["events_per_second"] = rate.into();
        }
        detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_says_what_is_written_and_what_stays() {
        let (sink, route) = (ControlTarget::Sink("s".to_owned()), ControlTarget::Route("r".to_owned()));
        let set = |target: &ControlTarget, control| Setting::new(target, &control);
        let paused = set(&route, Control::Pause).expect("a route is paused");
        assert_eq!((paused.paused, paused.rate, paused.sink()), (Some(true), None, None));
        let lifted = set(&sink, Control::RateLimit(None)).expect("lifted");
        assert_eq!((lifted.paused, lifted.rate, lifted.sink()), (None, Some(None), Some("s")));
        assert_eq!(lifted.detail(None), json!({ "sink": "s", "events_per_second": null }));
        let consumer =
            set(&ControlTarget::Consumer("c".to_owned()), Control::RateLimit(Some(5.0))).expect("a rate");
        assert_eq!((consumer.kind, consumer.rate, consumer.sink()), ("consumer", Some(Some(5.0)), None));
        let (now, end) = (Timestamp(0), Timestamp(5));
        let until = |control, ends, beside| set(&sink, control).expect("a control").until(ends, now, beside);
        let limited = Beside { rate: Some(5.0), until: Some(end), ..Beside::default() };
        let (ends, slow) = (Some(Ends::At(end)), Control::RateLimit(Some(5.0)));
        assert_eq!(until(Control::Pause, ends, Beside::default()).ok(), Some(Some(end)));
        assert_eq!(until(Control::Pause, ends, limited).ok(), Some(Some(end)));
        assert_eq!(until(Control::Resume, None, limited).ok(), Some(Some(end)), "the limit keeps its end");
        assert_eq!(until(slow, None, limited).ok(), Some(None), "a new limit replaces the old one");
        let refused = until(Control::Pause, None, limited).expect_err("they would end apart");
        assert_eq!(refused.code(), "admin.ends_apart");
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = set(&sink, Control::RateLimit(Some(rate))).expect_err("no limit");
            assert_eq!(refused.code(), "admin.bad_rate", "{rate}");
        }
        let refused = set(&route, Control::RateLimit(None)).expect_err("a route has no rate");
        assert_eq!(refused.code(), "admin.route_rate");
    }
}
