//! Asks JetStream which stream takes a subject, and how that stream is configured; and anything else of its
//! API.
//!
//! Questions go over the connection that publishes, as the same user. They are rare, so they are plain JSON.

use super::answer::ApiError;
use super::session::{Note, Session};
use async_nats::RequestErrorKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(2);

/// What we want to know of a stream.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::nats) struct StreamConfig {
    pub(in crate::nats) name: String,
    /// `file` or `memory`.
    pub(in crate::nats) storage: String,
    pub(in crate::nats) num_replicas: usize,
    /// `limits`, `interest` or `workqueue`.
    pub(in crate::nats) retention: String,
    pub(in crate::nats) no_ack: bool,
    pub(in crate::nats) sealed: bool,
    /// `async` if a message is acknowledged before it is written, and empty otherwise.
    pub(in crate::nats) persist_mode: String,
    /// In nanoseconds.
    duplicate_window: u64,
    /// How long messages are kept, in nanoseconds; 0: for ever.
    max_age: u64,
    /// Bounds by number and size, -1 for none.
    pub(in crate::nats) max_msgs: i64,
    pub(in crate::nats) max_bytes: i64,
    pub(in crate::nats) max_msgs_per_subject: i64,
}

impl StreamConfig {
    pub(in crate::nats) fn duplicate_window(&self) -> Duration {
        Duration::from_nanos(self.duplicate_window)
    }

    /// How long messages are kept, if that has an end.
    pub(in crate::nats) fn max_age(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.max_age)).filter(|age| !age.is_zero())
    }
}

/// What is in a stream.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::nats) struct StreamState {
    pub(in crate::nats) messages: u64,
    pub(in crate::nats) bytes: u64,
    pub(in crate::nats) first_seq: u64,
    pub(in crate::nats) last_seq: u64,
}

/// A stream as JetStream describes it.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::nats) struct StreamInfo {
    pub(in crate::nats) config: StreamConfig,
    #[serde(default)]
    pub(in crate::nats) state: StreamState,
    /// When it was made.
    #[serde(default)]
    pub(in crate::nats) created: String,
}

/// Why a stream cannot be seen.
#[derive(Debug)]
pub(in crate::nats) enum Unseen {
    /// No stream takes the subject.
    NoStream,
    /// There is no answer, for this reason.
    NoAnswer(String),
}

/// The stream that takes this subject.
pub(in crate::nats) async fn stream_by_subject(
    session: &Arc<Session>,
    subject: &str,
) -> Result<StreamConfig, Unseen> {
    #[derive(Deserialize)]
    struct Names {
        streams: Option<Vec<String>>,
    }
    let body = serde_json::json!({ "subject": subject }).to_string();
    let names: Names = ask(session, "$JS.API.STREAM.NAMES", &body).await.map_err(Unseen::NoAnswer)?;
    let name = names.streams.and_then(|names| names.into_iter().next()).ok_or(Unseen::NoStream)?;
    if !is_name(&name) {
        return Err(Unseen::NoAnswer("a strange answer: a stream that has no name".to_owned()));
    }
    let subject = format!("$JS.API.STREAM.INFO.{name}");
    let found: StreamInfo = ask(session, &subject, "").await.map_err(Unseen::NoAnswer)?;
    Ok(found.config)
}

async fn ask<T: DeserializeOwned>(session: &Arc<Session>, subject: &str, body: &str) -> Result<T, String> {
    ask_api(session, subject, body, PATIENCE).await.map_err(|error| match error {
        AskError::Denied => format!("not allowed to ask {subject}"),
        other => other.to_string(),
    })
}

/// Why JetStream did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(in crate::nats) enum AskError {
    /// Nobody listens to such questions.
    #[error("the server runs without JetStream")]
    NoJetStream,
    /// We may not publish to the subject of the question.
    #[error("not allowed to ask")]
    Denied,
    /// JetStream refuses.
    #[error("{}", .0.description)]
    Refused(ApiError),
    /// It may have been done, and there is no answer, for this reason.
    #[error("{0}")]
    NoAnswer(String),
}

/// Asks JetStream's API.
pub(in crate::nats) async fn ask_api<T: DeserializeOwned>(
    session: &Arc<Session>,
    subject: &str,
    body: &str,
    patience: Duration,
) -> Result<T, AskError> {
    #[derive(Deserialize)]
    struct ErrorResponse {
        error: ApiError,
    }
    let asked = timeout(patience, session.client.request(subject.to_owned(), body.to_owned().into()));
    let words = tokio::select! {
        answer = asked => match answer {
            Ok(Ok(answer)) => answer.payload,
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(AskError::NoJetStream);
            }
            Ok(Err(error)) => return Err(AskError::NoAnswer(error.to_string())),
            Err(_) => return Err(AskError::NoAnswer("no answer in time".to_owned())),
        },
        () = denied(session, subject) => return Err(AskError::Denied),
    };
    if let Ok(ErrorResponse { error }) = serde_json::from_slice(&words) {
        return Err(AskError::Refused(error));
    }
    serde_json::from_slice(&words).map_err(|error| AskError::NoAnswer(format!("a strange answer: {error}")))
}

/// Waits until the server says that we may not publish to this subject.
fn denied(session: &Arc<Session>, subject: &str) -> impl Future<Output = ()> {
    heard(session, move |note| matches!(note, Note::Denied(denied) if *denied == *subject).then_some(()))
}

/// Waits until the server says that we may not publish to a subject that begins like one of these.
pub(in crate::nats) fn refused(
    session: &Arc<Session>,
    subjects: &[String],
) -> impl Future<Output = Arc<str>> {
    heard(session, move |note| match note {
        Note::Denied(denied) => {
            subjects.iter().any(|subject| denied.starts_with(&**subject)).then_some(denied)
        }
        Note::Reply(..) | Note::Leaving | Note::Ended(_) => None,
    })
}

/// Waits until the connection is gone, or is to be left. Answers why.
pub(in crate::nats) fn ended(session: &Arc<Session>) -> impl Future<Output = String> + use<> {
    heard(session, |note| match note {
        Note::Ended(why) => Some(why.to_string()),
        Note::Leaving => Some("the server is about to stop".to_owned()),
        Note::Reply(..) | Note::Denied(_) => None,
    })
}

/// Waits for a certain word beside the messages, from now on: also for one that comes before the first poll.
fn heard<T, F: Fn(Note) -> Option<T>>(
    session: &Arc<Session>,
    is_it: F,
) -> impl Future<Output = T> + use<T, F> {
    let (call, mut notes) = (session.register(0), Vec::new());
    poll_fn(move |context| {
        loop {
            ready!(call.poll_notes(context, &mut notes));
            if let Some(it) = notes.drain(..).find_map(&is_it) {
                return Poll::Ready(it);
            }
        }
    })
}

/// Whether the name can be a part of a subject. The client writes a subject as it is, and a line break would
/// begin another line.
pub(in crate::nats) fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.bytes().any(|byte| byte <= b' ' || byte == 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_become_another_line() {
        assert!(is_name("S") && is_name("ORDERS-1"));
        for name in ["", "S\r\nPUB x 0\r\n", "S x", "S\t", "S\u{7f}"] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
