//! Who acts, and the lines that remain of it.

use super::bounds::IDS_AUDITED;
use crate::event::Timestamp;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// Who acts, and why. Both go into the audit.
#[derive(Debug, Clone)]
pub struct Actor {
    /// A person or a program.
    pub name: String,
    /// The reason they gave.
    pub reason: String,
    /// Whether a token said who it is. Else they said so themselves.
    pub verified: bool,
    /// What the act belongs to: the trace of a request or a command.
    pub trace_id: String,
}

impl Actor {
    /// Somebody who says who they are, with a trace of their own.
    #[must_use]
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        let trace_id = Uuid::new_v4().simple().to_string();
        Self { name: name.into(), reason: reason.into(), verified: false, trace_id }
    }

    /// The same, with another trace.
    #[must_use]
    pub fn traced(self, trace_id: impl Into<String>) -> Self {
        Self { trace_id: trace_id.into(), ..self }
    }
}

/// A filter as the line of an act on so many has it. Ids that somebody named are left out where they stand
/// anyway: the line itself names all that were acted on, if those are few, and the line with which a job
/// began has its plan.
#[must_use]
pub fn audited_filter(filter: &impl Serialize, count: usize, job: Option<i64>) -> Value {
    // Names and texts alone: there is nothing that could not be written.
    let mut filter = serde_json::to_value(filter).unwrap_or_default();
    if (count <= IDS_AUDITED || job.is_some())
        && let Some(members) = filter.as_object_mut()
    {
        members.remove("ids");
    }
    filter
}

/// The trace of a `traceparent` of W3C's: version, trace, span and flags, in small hex digits. Whatever else
/// looks like one was cut or made up, and nobody finds the act by it. A later version may have more parts.
#[must_use]
pub fn trace_of(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.trim().split('-');
    let mut hex = |digits: usize| {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        parts.next().filter(|part| part.len() == digits && part.bytes().all(is_hex))
    };
    let (version, trace, span, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_nothing = |part: &str| part.bytes().all(|byte| byte == b'0');
    let fits = match version {
        "ff" => false,
        "00" => parts.next().is_none(),
        _ => true,
    };
    (fits && !is_nothing(trace) && !is_nothing(span)).then_some(trace)
}

/// Whether the audit goes where a configuration says, and what to do if not, in words: for `doctor` of every
/// store.
#[must_use]
pub fn compare_topics(there: Option<&str>, configured: Option<&str>) -> (bool, String) {
    let place = |topic: Option<&str>| topic.map_or("no topic".to_owned(), |topic| format!("topic {topic:?}"));
    let goes = format!("its lines go to {}", place(there));
    if there == configured {
        return (true, goes);
    }
    let says = format!("{goes}, and `[audit] topic` of this configuration says {}", place(configured));
    let means = match there {
        None => "whoever reads that topic hears of no act. The lines are in the table all the same",
        Some(_) => {
            "whoever reads it hears of acts that they do not expect, or of none, and without a route they are dead letters"
        }
    };
    (
        false,
        format!(
            "{says}: {means}. Run `posthaste migrate up` with the file that is right, and mend the other"
        ),
    )
}

/// One line of the audit.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditLine {
    /// Its number, and its place in the list.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// Whether a token said so. Else they said so themselves.
    pub verified: bool,
    /// What.
    pub action: String,
    /// Why.
    pub reason: String,
    /// `done` or `denied`.
    pub outcome: String,
    /// What it belongs to.
    pub trace_id: Option<String>,
    /// What it was about.
    pub detail: serde_json::Value,
}

/// Which lines.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AuditFilter {
    /// Of this person or program.
    pub actor: Option<String>,
    /// With this action.
    pub action: Option<String>,
    /// With this trace.
    pub trace_id: Option<String>,
    /// At or after.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_taken_only_from_a_whole_traceparent() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for right in [
            format!("00-{trace}-{span}-01"),
            format!(" 00-{trace}-{span}-00\n"),
            format!("cc-{trace}-{span}-01-what-comes-later"),
        ] {
            assert_eq!(trace_of(&right), Some(trace), "{right}");
        }
        let wrong = [
            String::new(),
            "00".to_owned(),
            trace.to_owned(),
            format!("00-{trace}"),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-"),
            format!("00-{trace}-{span}-1"),
            format!("00-{trace}-{span}-0g"),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{trace}-1-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", &trace[1..]),
            format!("ff-{trace}-{span}-01"),
            format!("0-{trace}-{span}-01"),
            format!("xx-{trace}-{span}-01"),
        ];
        for wrong in wrong {
            assert_eq!(trace_of(&wrong), None, "{wrong}");
        }
        assert_ne!(Actor::new("a", "b").trace_id, Actor::new("a", "b").trace_id);
        assert_eq!(Actor::new("a", "b").traced(trace).trace_id, trace);
    }
}
