//! What `posthaste doctor` says about a stream that is read as a queue. Nothing is taken and nothing is made.

use super::{ask, denied};
use crate::redis::RedisConfig;
use crate::redis::client::Session;
use crate::redis::source::examine::finding;
use crate::redis::source::record::text;
use ::redis::{Pipeline, Value};
use posthaste::sink::{Finding, Level};

/// The group that a consumer has of this stream.
pub(in crate::redis::source) async fn examine_group(
    session: &Session,
    config: &RedisConfig,
    stream: &str,
    group: &str,
) -> Vec<Finding> {
    let mut questions = Pipeline::new();
    questions.cmd("XINFO").arg("GROUPS").arg(stream);
    // The id is none, so nothing is read. Whether we may is looked at before.
    questions.cmd("XREADGROUP").arg("GROUP").arg(group).arg("doctor").arg("STREAMS").arg(stream).arg("none");
    let replies = match ask(session, &questions).await {
        Ok(replies) => replies,
        Err(error) => return vec![finding("queue", Level::Fail, error.to_string())],
    };
    let groups = match replies.first() {
        Some(Value::Array(groups)) => groups.as_slice(),
        Some(Value::ServerError(error)) => {
            return vec![finding("rights", Level::Fail, denied(stream, error).to_string())];
        }
        _ => &[],
    };
    let Some(found) =
        groups.iter().find(|found| field(found, "name").and_then(text).as_deref() == Some(group))
    else {
        let text = format!("stream {stream:?} has no group {group:?} yet: the first member makes it");
        return vec![finding("queue", Level::Warn, text)];
    };
    let number =
        |name: &str| if let Some(Value::Int(number)) = field(found, name) { Some(*number) } else { None };
    let text = format!(
        "stream {stream:?} is read by its group {group:?}. What a dead member had comes to others after {} s (claim_after_ms)",
        config.claim_after_ms as f64 / 1_000.0
    );
    let mut findings = vec![finding("queue", Level::Ok, text)];
    findings.push(match replies.get(1) {
        Some(Value::ServerError(error)) if error.code() == "NOPERM" => {
            finding("rights", Level::Fail, denied(stream, error).to_string())
        }
        _ => finding("rights", Level::Ok, format!("group {group:?} of stream {stream:?} may be read")),
    });
    let in_hand = number("pending").unwrap_or(0);
    let waiting = number("lag").map_or_else(|| "an unknown number of".to_owned(), |lag| lag.to_string());
    let text =
        format!("{waiting} entries of stream {stream:?} wait for group {group:?}, and {in_hand} are in hand");
    findings.push(finding("lag", Level::Ok, text));
    findings
}

fn field<'a>(found: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Array(parts) = found else { return None };
    let mut pairs = parts.chunks_exact(2);
    pairs.find(|pair| text(&pair[0]).as_deref() == Some(name)).map(|pair| &pair[1])
}
