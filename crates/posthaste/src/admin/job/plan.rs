//! What a job does, and to what.

use crate::admin::error::{AdminCode, AdminError};
use crate::admin::{DeadAct, DeadFilter, DeferredFilter, EventFilter};
use crate::inbox::kept::KeptHeaders;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kinds of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobKind {
    /// Dead letters of sinks go back to their places.
    #[serde(rename = "dead.replay")]
    DeadReplay,
    /// Dead letters of sinks go for good.
    #[serde(rename = "dead.discard")]
    DeadDiscard,
    /// Deferred events are tried now.
    #[serde(rename = "deferred.retry")]
    DeferredRetry,
    /// Events of the log are sent to a sink again.
    #[serde(rename = "events.replay")]
    EventsReplay,
    /// Dead letters of a consumer are handled again.
    #[serde(rename = "consumer.replay")]
    ConsumerReplay,
    /// Dead letters of a consumer go for good.
    #[serde(rename = "consumer.discard")]
    ConsumerDiscard,
    /// Deferred messages of a consumer are tried now.
    #[serde(rename = "consumer.deferred_retry")]
    ConsumerRetry,
}

impl JobKind {
    /// As it is stored, and as people see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadReplay => "dead.replay",
            Self::DeadDiscard => "dead.discard",
            Self::DeferredRetry => "deferred.retry",
            Self::EventsReplay => "events.replay",
            Self::ConsumerReplay => "consumer.replay",
            Self::ConsumerDiscard => "consumer.discard",
            Self::ConsumerRetry => "consumer.deferred_retry",
        }
    }
}

/// What a job does, and to what. What it does to a consumer's letters names the consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobPlan {
    /// Dead letters of sinks go back to their places.
    #[serde(rename = "dead.replay")]
    DeadReplay {
        /// Which.
        filter: DeadFilter,
    },
    /// Dead letters of sinks go for good.
    #[serde(rename = "dead.discard")]
    DeadDiscard {
        /// Which.
        filter: DeadFilter,
    },
    /// Deferred events are tried now.
    #[serde(rename = "deferred.retry")]
    DeferredRetry {
        /// Which.
        filter: DeferredFilter,
    },
    /// Events of the log are sent to a sink again.
    #[serde(rename = "events.replay")]
    EventsReplay {
        /// To which sink.
        sink: String,
        /// Which.
        filter: EventFilter,
    },
    /// Dead letters of a consumer are handled again.
    #[serde(rename = "consumer.replay")]
    ConsumerReplay {
        /// Whose.
        consumer: String,
        /// Which; `ids` are letters.
        filter: DeadFilter,
        /// With which of their headers.
        #[serde(default, skip_serializing_if = "KeptHeaders::is_all")]
        headers: KeptHeaders,
    },
    /// Dead letters of a consumer go for good.
    #[serde(rename = "consumer.discard")]
    ConsumerDiscard {
        /// Whose.
        consumer: String,
        /// Which; `ids` are letters.
        filter: DeadFilter,
    },
    /// Deferred messages of a consumer are tried now.
    #[serde(rename = "consumer.deferred_retry")]
    ConsumerRetry {
        /// Whose.
        consumer: String,
        /// Which.
        filter: DeferredFilter,
    },
}

/// The earlier one of two places. `None`: the first is no place.
fn earlier<T: std::str::FromStr + Ord + ToString>(asked: &str, seen: &str) -> Option<String> {
    let asked: T = asked.parse().ok()?;
    let end = match seen.parse::<T>() {
        Ok(seen) => seen.min(asked),
        Err(_) => asked,
    };
    Some(end.to_string())
}

impl JobPlan {
    /// Dead letters of sinks, to be dealt with so.
    #[must_use]
    pub fn dead(act: DeadAct, filter: DeadFilter) -> Self {
        match act {
            DeadAct::Replay => Self::DeadReplay { filter },
            DeadAct::Discard => Self::DeadDiscard { filter },
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self {
            Self::DeadReplay { .. } => JobKind::DeadReplay,
            Self::DeadDiscard { .. } => JobKind::DeadDiscard,
            Self::DeferredRetry { .. } => JobKind::DeferredRetry,
            Self::EventsReplay { .. } => JobKind::EventsReplay,
            Self::ConsumerReplay { .. } => JobKind::ConsumerReplay,
            Self::ConsumerDiscard { .. } => JobKind::ConsumerDiscard,
            Self::ConsumerRetry { .. } => JobKind::ConsumerRetry,
        }
    }

    /// Where a job ends that was to end at `asked`, where `seen` is the last one that is there now: never
    /// beyond what there is, or it would take what dies again while it runs. `None`: `asked` is no place.
    /// Stores compare the texts of places, so it is answered in the form in which they are kept.
    #[must_use]
    pub fn end(&self, asked: &str, seen: &str) -> Option<String> {
        match self {
            // Letters of consumers are known by UUIDs in the order of their texts.
            Self::ConsumerReplay { .. } | Self::ConsumerDiscard { .. } => earlier::<uuid::Uuid>(asked, seen),
            _ => earlier::<i64>(asked, seen),
        }
    }

    /// The consumer that it is about.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        match self {
            Self::ConsumerReplay { consumer, .. }
            | Self::ConsumerDiscard { consumer, .. }
            | Self::ConsumerRetry { consumer, .. } => Some(consumer),
            _ => None,
        }
    }

    /// A job on everything is asked for in words, not by leaving them out.
    pub fn check(&self) -> Result<(), AdminError> {
        match self {
            Self::DeadReplay { filter } | Self::DeadDiscard { filter } => filter.check(),
            Self::ConsumerReplay { filter, .. } | Self::ConsumerDiscard { filter, .. } => {
                no_sink(filter.sink.is_some() || filter.route.is_some())?;
                filter.check()
            }
            Self::ConsumerRetry { filter, .. } => {
                no_sink(filter.sink.is_some() || filter.destination.is_some())?;
                filter.check()
            }
            Self::DeferredRetry { filter } => filter.check(),
            Self::EventsReplay { filter, .. } => filter.check(),
        }
    }

    /// As it is stored.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Names and texts alone: there is nothing that could not be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From what is stored. A plan of a newer version is refused, and not guessed at: a member that this
    /// version does not know may be a condition, and without it the act would be wider than whoever asked
    /// meant. That holds for one that says nothing, too: what `null` means, only the newer version knows.
    ///
    /// Such a job is left as it is, for a newer process. It has not failed: what it was asked to do can be
    /// done, only not by us. It can be paused and cancelled by any version.
    pub fn read(stored: &str) -> Result<Self, String> {
        let stored: Value = serde_json::from_str(stored).map_err(unreadable)?;
        let plan = Self::deserialize(&stored).map_err(unreadable)?;
        match plan.strange_member(&stored) {
            None => Ok(plan),
            Some(member) => Err(unreadable(format!("it does not know `{member}`"))),
        }
    }

    /// The first member of a document that this plan was read from and that it has not kept: one of another
    /// version, a misspelt one, or one of another kind.
    #[must_use]
    pub fn strange_member(&self, document: &Value) -> Option<String> {
        // Names and texts alone: there is nothing that could not be written.
        let mut kept = serde_json::to_value(self).unwrap_or_default();
        // All headers are not written down, and may be said.
        if let Self::ConsumerReplay { headers, .. } = self {
            kept["headers"] = serde_json::to_value(headers).unwrap_or_default();
        }
        strange_member(document, &kept)
    }
}

fn unreadable(why: impl std::fmt::Display) -> String {
    format!("its plan cannot be read by this version: {why}; a newer one runs it")
}

fn strange_member(document: &Value, kept: &Value) -> Option<String> {
    document.as_object()?.iter().find_map(|(name, value)| match kept.get(name) {
        None => Some(name.clone()),
        Some(kept) => strange_member(value, kept),
    })
}

/// Messages of a consumer go to no sink. A filter that names one means something else, and without it the act
/// would be wider than whoever asks believes.
fn no_sink(is_named: bool) -> Result<(), AdminError> {
    if !is_named {
        return Ok(());
    }
    let message =
        "messages of a consumer have no sink, no route and no destination: leave them out of the filter";
    Err(AdminError::Invalid { code: AdminCode::BadFilter, message: message.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timestamp;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let dead = DeadFilter {
            sink: Some("nats".to_owned()),
            fingerprint: Some(-7),
            error: Some("no field".to_owned()),
            holds_key: Some(false),
            since: Some(Timestamp(1_709_210_096_000_001)),
            ..DeadFilter::default()
        };
        let letters = DeadFilter { sink: None, ..dead.clone() };
        let headers = KeptHeaders::but(&["x-old".to_owned()], &["x-id".to_owned()]).expect("a list");
        let waiting = DeferredFilter { all: true, ..DeferredFilter::default() };
        let plans = [
            JobPlan::dead(DeadAct::Replay, dead.clone()),
            JobPlan::dead(DeadAct::Discard, dead.clone()),
            JobPlan::DeferredRetry { filter: waiting.clone() },
            JobPlan::EventsReplay {
                sink: "nats".to_owned(),
                filter: EventFilter { key: Some("k".to_owned()), ..EventFilter::default() },
            },
            JobPlan::ConsumerReplay { consumer: "c".to_owned(), filter: letters.clone(), headers },
            JobPlan::ConsumerDiscard { consumer: "c".to_owned(), filter: letters },
            JobPlan::ConsumerRetry { consumer: "c".to_owned(), filter: waiting },
        ];
        for plan in plans {
            assert_eq!(JobPlan::read(&plan.to_json()).as_ref(), Ok(&plan));
            assert!(plan.to_json().contains(plan.kind().as_str()));
            assert!(plan.check().is_ok());
        }
        let newer = r#"{"kind":"dead.paint","filter":{}}"#;
        assert!(JobPlan::read(newer).is_err());
        // What an older version wrote lacks members, and is read.
        let older = JobPlan::read(r#"{"kind":"dead.replay","filter":{"all":true}}"#).expect("an older plan");
        let all = DeadFilter { all: true, ..DeadFilter::default() };
        assert_eq!(older, JobPlan::dead(DeadAct::Replay, all));
        let empty = JobPlan::dead(DeadAct::Replay, DeadFilter::default());
        assert_eq!(empty.check().expect_err("empty").code(), "admin.empty_filter");
        let every = DeadFilter { error: Some(String::new()), ..DeadFilter::default() };
        let every = JobPlan::dead(DeadAct::Discard, every);
        assert_eq!(every.check().expect_err("in every error").code(), "admin.empty_filter");
    }

    #[test]
    fn what_only_a_newer_version_knows_makes_no_act_wider() {
        for stored in [
            r#"{"kind":"dead.discard","filter":{"all":true,"attempts_over":5}}"#,
            r#"{"kind":"dead.discard","filter":{"all":true,"attempts_over":null}}"#,
            r#"{"kind":"dead.replay","filter":{"all":true},"only":"s"}"#,
            r#"{"kind":"dead.replay","filter":{"all":true},"headers":{"list":"all","identity":[]}}"#,
            r#"{"kind":"deferred.retry","filter":{"all":true,"sinks":["s"]}}"#,
            r#"{"kind":"events.replay","sink":"s","filter":{"key":"k","lane":1}}"#,
            r#"{"kind":"consumer.discard","consumer":"c","filter":{"all":true,"disposition":"exhausted"}}"#,
            r#"{"kind":"consumer.replay","consumer":"c","filter":{"all":true},
                "headers":{"list":{"but":["x"]},"identity":[],"values":["y"]}}"#,
        ] {
            let refused = JobPlan::read(stored).expect_err(stored);
            assert!(refused.contains("a newer one runs it"), "{refused}");
        }
        let all = r#"{"kind":"consumer.replay","consumer":"c","filter":{"all":true},
                      "headers":{"list":"all","identity":[]}}"#;
        assert!(JobPlan::read(all).is_ok(), "all headers may be said");
    }

    #[test]
    fn what_a_consumer_does_not_have_makes_no_act_wider() {
        let sink = || Some("nats".to_owned());
        let letters = DeadFilter { sink: sink(), code: sink(), ..DeadFilter::default() };
        let waiting = DeferredFilter { destination: sink(), code: sink(), ..DeferredFilter::default() };
        let consumer = || "c".to_owned();
        let plans = [
            JobPlan::ConsumerReplay {
                consumer: consumer(),
                filter: letters.clone(),
                headers: KeptHeaders::default(),
            },
            JobPlan::ConsumerDiscard { consumer: consumer(), filter: letters },
            JobPlan::ConsumerRetry { consumer: consumer(), filter: waiting },
        ];
        for plan in plans {
            assert_eq!(plan.check().expect_err("it names a sink").code(), "admin.bad_filter");
        }
    }

    #[test]
    fn a_job_never_goes_beyond_what_is_there() {
        let letters = JobPlan::dead(DeadAct::Replay, DeadFilter::default());
        assert_eq!(letters.end("9", "10").as_deref(), Some("9"));
        assert_eq!(letters.end("9223372036854775807", "10").as_deref(), Some("10"));
        assert_eq!(letters.end("zzz", "10"), None);
        let waiting = JobPlan::DeferredRetry { filter: DeferredFilter::default() };
        assert_eq!(waiting.end("9", "10").as_deref(), Some("9"));
        assert_eq!(waiting.end("[\"a\",7]", "10"), None);
        let consumer = "billing".to_owned();
        let theirs = JobPlan::ConsumerDiscard { consumer, filter: DeadFilter::default() };
        let (low, high) = ("01990000-0000-7000-8000-000000000000", "01990000-0000-7000-8000-0000000000ff");
        assert_eq!(theirs.end(high, low).as_deref(), Some(low));
        assert_eq!(theirs.end("zzz", low), None);
        let written_otherwise = format!("{{{}}}", low.to_uppercase());
        assert_eq!(theirs.end(&written_otherwise, high).as_deref(), Some(low), "as stores compare it");
    }
}
