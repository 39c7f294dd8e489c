//! What `posthaste doctor` says about a Redis source: whether the servers answer, whether the streams are
//! there and may be read, what can be lost, and how long marks should live.
//!
//! It reads nothing but one look at each stream, and one read behind its end.

use super::group::examine_group;
use super::log::{RedisLog, refused};
use crate::GroupMember;
use crate::findings::no_session;
use crate::redis::RedisConfig;
use crate::redis::client;
use crate::redis::examine::durability_of;
use ::redis::{Pipeline, Value};
use posthaste::consumer::Order;
use posthaste::sink::{Finding, Level};
use posthaste::source::Partition;
use posthaste::source::leased::PlainLog;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const CONNECT_WAIT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(2);

/// Names of all checks of a source. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["reachable", "authenticated", "stream", "queue", "rights", "retention", "marks", "durability", "lag"];

pub(super) fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

/// `marks`: how long the consumer knows what it has done; `None`: for ever.
pub(crate) async fn examine(
    config: &RedisConfig,
    member: &GroupMember,
    marks: Option<Duration>,
) -> Vec<Finding> {
    let (topology, log) = match config.check().and_then(|topology| Ok((topology, RedisLog::new(config)?))) {
        Ok(made) => made,
        Err(error) => return vec![finding("reachable", Level::Fail, error.to_string())],
    };
    let servers = client::connect(&Arc::new(config.clone()), topology, "doctor");
    let mut findings = Vec::new();
    for session in servers.sessions(CONNECT_WAIT).await {
        match session {
            Ok(session) => {
                findings.push(finding("reachable", Level::Ok, format!("{} answers", session.server)));
                let who = format!("connected as {}", session.identity);
                findings.push(finding("authenticated", Level::Ok, who));
                findings.extend(durability_of(&session).await);
            }
            Err(failure) => findings.extend(no_session(&failure, &["redis.auth", "redis.denied"])),
        }
    }
    if findings.iter().all(|finding| finding.level == Level::Fail) {
        return findings;
    }
    for stream in &member.topics {
        let partition = Partition::new(stream.as_str(), 0);
        match log.look(&partition).await {
            Ok(Some(look)) => {
                let (first, end) = (super::place::id(look.log.first), super::place::id(look.log.end - 1));
                findings.push(finding(
                    "stream",
                    Level::Ok,
                    format!("stream {stream:?} goes from {first} to {end}"),
                ));
                findings.extend(reading(config, &servers, member, stream, &end).await);
                findings.push(retention(stream, look.removed_max));
            }
            Ok(None) => {
                let text = format!("there is no stream {stream:?}: the consumer waits for its first entry");
                findings.push(finding("stream", Level::Warn, text));
            }
            Err(error) => findings.push(finding("rights", Level::Fail, error.to_string())),
        }
    }
    let text = match marks {
        None => "marks are never removed".to_owned(),
        Some(marks) => format!(
            "marks are kept for {} days (retention.marks_days): trim no entry later than that, or a seek to it does it again",
            marks.as_secs() / 86_400
        ),
    };
    findings.push(finding("marks", Level::Ok, text));
    servers.close().await;
    findings
}

/// Whether the stream may be read, and how far that is.
async fn reading(
    config: &RedisConfig,
    servers: &client::Servers,
    member: &GroupMember,
    stream: &str,
    end: &str,
) -> Vec<Finding> {
    if member.order != Order::None {
        let text = format!(
            "stream {stream:?} ends at {end}; `posthaste consumers status` says how far the consumer is"
        );
        return vec![finding("lag", Level::Ok, text), rights(servers, stream).await];
    }
    match servers.session(stream, CONNECT_WAIT).await {
        Ok(session) => examine_group(&session, config, stream, &member.group).await,
        Err(failure) => vec![finding("rights", Level::Fail, failure.message.to_string())],
    }
}

/// Reads behind the end, where nothing is.
async fn rights(servers: &client::Servers, stream: &str) -> Finding {
    let mut questions = Pipeline::new();
    questions.cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS").arg(stream).arg("$");
    let asked = async {
        let session = servers.session(stream, CONNECT_WAIT).await.map_err(|failure| failure.message)?;
        let asked = timeout(ANSWER, session.ask(&questions)).await.map_err(|_| "no answer".to_owned())?;
        asked.map_err(|error| error.to_string())
    };
    match asked.await.map(|replies| replies.into_iter().next()) {
        Ok(Some(Value::ServerError(error))) => {
            finding("rights", Level::Fail, refused(stream, &error).to_string())
        }
        Ok(_) => finding("rights", Level::Ok, format!("stream {stream:?} may be read")),
        Err(why) => finding("rights", Level::Fail, format!("stream {stream:?} cannot be read: {why}")),
    }
}

fn retention(stream: &str, removed: i64) -> Finding {
    if removed == 0 {
        return finding("retention", Level::Ok, format!("nothing was ever removed from stream {stream:?}"));
    }
    let text = format!(
        "{removed} entries of stream {stream:?} were removed (MAXLEN, XTRIM, XDEL): what a consumer has not read by then is lost to it"
    );
    finding("retention", Level::Warn, text)
}
