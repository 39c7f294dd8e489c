//! What `posthaste doctor` says about a NATS source: whether the server answers, whether the streams are
//! there and may be read, how long they keep messages, and what a power cut can take.
//!
//! The examination reads nothing and leaves nothing behind: a consumer that is made at the stream's end shows
//! that the right is there, and ends by itself.

use super::log::{info, refusal};
use super::queue::examine_queue;
use super::tail::NatsTail;
use crate::GroupMember;
use crate::findings::no_session;
use crate::nats::NatsConfig;
use crate::nats::client::link;
use crate::nats::client::session::Session;
use crate::nats::client::streams::{StreamConfig, StreamInfo};
use crate::nats::examine::durability_of;
use posthaste::consumer::Order;
use posthaste::sink::{Finding, Level};
use posthaste::source::Partition;
use std::sync::Arc;
use std::time::Duration;

/// The time for a first try at every server.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);

/// Names of all checks of a source. Each finding bears one of them.
pub const CHECKS: &[&str] = &[
    "reachable",
    "authenticated",
    "stream",
    "queue",
    "rights",
    "ack-wait",
    "max-deliver",
    "retention",
    "marks",
    "durability",
    "lag",
];

pub(super) fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

/// `marks`: how long the consumer knows what it has done; `None`: for ever.
pub(crate) async fn examine(
    config: &NatsConfig,
    member: &GroupMember,
    marks: Option<Duration>,
) -> Vec<Finding> {
    let servers = match config.check() {
        Ok(servers) => servers,
        Err(error) => return vec![finding("reachable", Level::Fail, error.to_string())],
    };
    let link = link::start(config.clone(), servers, "doctor");
    let session = match link.session_if_any(CONNECT_WAIT).await {
        Ok(session) => session,
        Err(failure) => return no_session(&failure, &["nats.auth", "nats.denied"]),
    };
    let server = &session.info;
    let mut findings = vec![
        finding(
            "reachable",
            Level::Ok,
            format!("server {:?}, version {}", server.server_name, server.version),
        ),
        finding("authenticated", Level::Ok, format!("connected as {}", session.identity)),
    ];
    for stream in &member.topics {
        findings.extend(examine_stream(&session, stream, config, member, marks).await);
    }
    link.close().await;
    findings
}

async fn examine_stream(
    session: &Arc<Session>,
    stream: &str,
    config: &NatsConfig,
    member: &GroupMember,
    marks: Option<Duration>,
) -> Vec<Finding> {
    let is_queue = member.order == Order::None;
    let info = match info(session, stream).await {
        Ok(Some(info)) => info,
        Ok(None) => {
            let text = format!("there is no stream {stream:?}: the consumer waits for it (nats stream add)");
            return vec![finding("stream", Level::Fail, text)];
        }
        Err(error) => return vec![finding("rights", Level::Fail, error.to_string())],
    };
    if let Some(why) = refusal(&info).filter(|_| !is_queue) {
        return vec![finding("stream", Level::Fail, why)];
    }
    let state = &info.state;
    let there = format!("stream {stream:?} has {} messages, up to {}", state.messages, state.last_seq);
    let mut findings = vec![finding("stream", Level::Ok, there)];
    if is_queue {
        findings.extend(examine_queue(session, config, member, &info).await);
    } else {
        findings.push(rights(session, stream, &info).await);
        let text = format!(
            "stream {stream:?} ends at {}; `posthaste consumers status` says how far the consumer is",
            state.last_seq
        );
        findings.push(finding("lag", Level::Ok, text));
    }
    findings.extend([
        retention(&info.config),
        compare_marks(&info.config, marks),
        Finding { check: "durability".to_owned(), ..durability_of(&info.config) },
    ]);
    findings
}

/// A consumer at the end, where nothing is.
async fn rights(session: &Arc<Session>, stream: &str, info: &StreamInfo) -> Finding {
    let end = i64::try_from(info.state.last_seq).unwrap_or(i64::MAX).saturating_add(1);
    match NatsTail::open(Arc::clone(session), &Partition::new(stream, 0), end, info).await {
        Ok(_) => finding("rights", Level::Ok, format!("stream {stream:?} may be read")),
        Err(error) => finding("rights", Level::Fail, error.to_string()),
    }
}

fn days(age: Duration) -> u64 {
    age.as_secs().div_ceil(DAY.as_secs())
}

/// Messages that are kept for a shorter time than a stop of the consumer are lost to it.
fn retention(config: &StreamConfig) -> Finding {
    let name = &config.name;
    let bounds: Vec<String> = [
        ("max_msgs", config.max_msgs),
        ("max_bytes", config.max_bytes),
        ("max_msgs_per_subject", config.max_msgs_per_subject),
    ]
    .into_iter()
    .filter(|(_, most)| *most > 0)
    .map(|(bound, most)| format!("{bound} {most}"))
    .collect();
    match config.max_age() {
        Some(age) if age < DAY => {
            let text = format!(
                "stream {name:?} keeps messages for {} minutes (max_age): a consumer that stops for longer loses some; use days",
                age.as_secs() / 60
            );
            finding("retention", Level::Warn, text)
        }
        _ if !bounds.is_empty() => {
            let text = format!(
                "stream {name:?} drops its oldest messages by number or size ({}): what a consumer has not read by then is lost to it",
                bounds.join(", ")
            );
            finding("retention", Level::Warn, text)
        }
        Some(age) => {
            finding("retention", Level::Ok, format!("stream {name:?} keeps messages for {} days", days(age)))
        }
        None => finding("retention", Level::Ok, format!("stream {name:?} keeps its messages for ever")),
    }
}

/// Marks that are gone while their messages are still there protect nobody who goes back to those (F69).
fn compare_marks(config: &StreamConfig, marks: Option<Duration>) -> Finding {
    let name = &config.name;
    match (marks, config.max_age()) {
        (None, _) => finding("marks", Level::Ok, "marks are never removed"),
        (Some(marks), Some(age)) if age > marks => {
            let text = format!(
                "stream {name:?} keeps messages for {} days, and marks are kept for {} (retention.marks_days): what is older and comes again, by a seek or a copy, is done again. Keep marks for {} days",
                days(age),
                days(marks),
                days(age)
            );
            finding("marks", Level::Warn, text)
        }
        (Some(marks), Some(_)) => {
            let text = format!(
                "marks are kept for {} days, which the messages of stream {name:?} are not",
                days(marks)
            );
            finding("marks", Level::Ok, text)
        }
        (Some(marks), None) => {
            let text = format!(
                "stream {name:?} keeps its messages for ever, and marks are kept for {} days: what is older is done again by a seek to it",
                days(marks)
            );
            finding("marks", Level::Ok, text)
        }
    }
}
