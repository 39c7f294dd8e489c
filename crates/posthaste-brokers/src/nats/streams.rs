//! Questions to JetStream: which stream takes a subject, and what is it like?
//!
//! They go over the connection that publishes, as the same user. They are rare, so they are plain JSON.

use super::session::{Reply, Session};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// What we want to know of a stream.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) name: String,
    /// `file` or `memory`.
    pub(super) storage: String,
    pub(super) num_replicas: usize,
    /// `limits`, `interest` or `workqueue`.
    pub(super) retention: String,
    pub(super) no_ack: bool,
    pub(super) sealed: bool,
    /// `async`: acknowledged before it is written. Empty otherwise.
    pub(super) persist_mode: String,
    /// In nanoseconds.
    duplicate_window: u64,
}

impl Config {
    pub(super) fn duplicate_window(&self) -> Duration {
        Duration::from_nanos(self.duplicate_window)
    }
}

/// Why a stream cannot be seen.
#[derive(Debug)]
pub(super) enum Unseen {
    /// None takes the subject.
    NoStream,
    /// Nobody says so.
    NoAnswer(String),
}

/// The stream that takes this subject.
pub(super) async fn stream_by_subject(session: &Session, subject: &str) -> Result<Config, Unseen> {
    #[derive(Deserialize)]
    struct Names {
        streams: Option<Vec<String>>,
    }
    #[derive(Deserialize)]
    struct Found {
        config: Config,
    }
    let body = serde_json::json!({ "subject": subject }).to_string();
    let names: Names = ask(session, "$JS.API.STREAM.NAMES", &body).await.map_err(Unseen::NoAnswer)?;
    let name = names.streams.and_then(|names| names.into_iter().next()).ok_or(Unseen::NoStream)?;
    // It becomes a part of a line of ours.
    if name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(Unseen::NoAnswer("a strange answer: a stream that has no name".to_owned()));
    }
    let subject = format!("$JS.API.STREAM.INFO.{name}");
    let found: Found = ask(session, &subject, "").await.map_err(Unseen::NoAnswer)?;
    Ok(found.config)
}

async fn ask<T: DeserializeOwned>(session: &Session, subject: &str, body: &str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Refused {
        error: Error,
    }
    #[derive(Deserialize)]
    struct Error {
        #[serde(default)]
        description: String,
    }
    let words = match session.ask(subject, body, PATIENCE).await {
        Some(Reply::Words(words)) => words,
        Some(Reply::Nobody) => return Err("the server runs without JetStream".to_owned()),
        Some(Reply::Denied) => return Err(format!("not allowed to ask {subject}")),
        None => return Err("no answer in time".to_owned()),
    };
    if let Ok(Refused { error }) = serde_json::from_slice(&words) {
        return Err(error.description);
    }
    serde_json::from_slice(&words).map_err(|error| format!("a strange answer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::dial::Info;
    use super::super::frame::Message;
    use super::super::session::Round;
    use super::*;
    use std::task::{Context, Poll, Waker};

    /// What is sent after this answer to the question for names.
    async fn asked_after(names: &str) -> String {
        let session = Session::new("I.".to_owned(), "a user".to_owned(), Info::default());
        let mut question = std::pin::pin!(stream_by_subject(&session, "s"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(question.as_mut().poll(&mut context).is_pending());
        let mut bytes = Vec::new();
        assert_eq!(session.outbox.poll_take(&mut context, &mut bytes), Poll::Ready(()));
        let answer = Message { subject: b"I.q1", head: b"", payload: names.as_bytes() };
        session.deliver(&answer, &mut Round::default());
        let _ = question.as_mut().poll(&mut context);
        let _ = session.outbox.poll_take(&mut context, &mut bytes);
        String::from_utf8(bytes).expect("text")
    }

    #[tokio::test]
    async fn a_name_cannot_become_another_line() {
        let asked = asked_after(r#"{"streams":["S"]}"#).await;
        assert_eq!(asked, "PUB $JS.API.STREAM.INFO.S I.q2 0\r\n\r\n");
        for name in [r"S\r\nPUB x 0\r\n", "S x", r"S\t"] {
            assert_eq!(asked_after(&format!(r#"{{"streams":["{name}"]}}"#)).await, "", "{name}");
        }
    }
}
