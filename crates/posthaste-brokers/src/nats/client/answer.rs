//! What comes back for a message: the word of a stream, or that nobody listens.

use serde::Deserialize;
use std::borrow::Cow;

/// What the server answered to one message.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::nats) enum PublishReply {
    /// A stream has it.
    Stored,
    /// Status 503: nobody listens on the subject.
    NoResponders,
    /// JetStream refused it.
    Refused(ApiError),
}

/// JetStream's error: an HTTP-like class, a stable number and words.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(in crate::nats) struct ApiError {
    #[serde(default)]
    pub(in crate::nats) code: u16,
    #[serde(default)]
    pub(in crate::nats) err_code: u32,
    #[serde(default)]
    pub(in crate::nats) description: String,
}

impl PublishReply {
    /// Reads a reply. It is `None` for what is no word of JetStream's. A service that listens on the same
    /// subject may answer too, and must not be taken for a stream.
    pub(in crate::nats) fn read(status: Option<u16>, payload: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Ack<'a> {
            error: Option<ApiError>,
            #[serde(default, borrow)]
            stream: Cow<'a, str>,
            #[serde(default)]
            seq: u64,
        }
        if status == Some(503) {
            return Some(Self::NoResponders);
        }
        let ack: Ack<'_> = serde_json::from_slice(payload).ok()?;
        match ack.error {
            Some(error) => Some(Self::Refused(error)),
            None if !ack.stream.is_empty() && ack.seq > 0 => Some(Self::Stored),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_streams_own_word_is_an_answer() {
        let read = |text: &str| PublishReply::read(None, text.as_bytes());
        assert_eq!(read(r#"{"stream":"S","seq":7}"#), Some(PublishReply::Stored));
        assert_eq!(
            read(r#"{"stream":"S","domain":"d","seq":7,"duplicate":true}"#),
            Some(PublishReply::Stored)
        );
        assert_eq!(PublishReply::read(Some(503), b""), Some(PublishReply::NoResponders));
        let refused =
            read(r#"{"error":{"code":503,"err_code":10077,"description":"no"},"stream":"S","seq":0}"#);
        assert!(matches!(refused, Some(PublishReply::Refused(ApiError { err_code: 10077, .. }))));
        for foreign in [
            "",
            "{",
            "+OK",
            "{}",
            "[]",
            r#"{"stream":"S"}"#,
            r#"{"stream":"","seq":1}"#,
            r#"{"stream":"S","seq":0}"#,
            r#"{"stream":"S","seq":-1}"#,
            r#"{"stream":"S","seq":1.5}"#,
            r#"{"stream":"S","seq":1}}"#,
            r#"{"stream":"S","seq":99999999999999999999}"#,
            r#"{"ok":true}"#,
        ] {
            assert_eq!(read(foreign), None, "{foreign}");
        }
        let whole = r#"{"stream":"S", "domain":"d", "seq":7,"duplicate": true}"#;
        assert!((0..whole.len()).all(|end| read(&whole[..end]).is_none()), "half of one is none");
    }
}
