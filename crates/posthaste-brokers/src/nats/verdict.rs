//! The table of [`super`] in code: what the relay is told about a message.
//!
//! The functions are pure, so each row can be read and tested without a server. The one rule behind the rows:
//! an event may only be rejected for something that is its own. What an operator can heal (a missing stream,
//! a full disk, a missing right) stays a `Retry` of its destination.

use super::client::{ApiError, PublishReply};
use crate::call::Silence;
use async_nats::{PublishError, PublishErrorKind};
use posthaste::sink::{Failure, Verdict};
use std::time::Duration;

/// What an answer means. The subject is only asked for where words are made of it.
pub(super) fn answered<'a>(answer: PublishReply, subject: impl FnOnce() -> &'a str) -> Verdict {
    match answer {
        PublishReply::Stored => Verdict::Delivered,
        PublishReply::NoResponders => Verdict::Retry(nobody(subject())),
        PublishReply::Refused(error) => refused(&error, subject()),
    }
}

/// Nobody answered at all: no stream, or no JetStream.
fn nobody(subject: &str) -> Failure {
    let mut failure = no_stream(subject);
    failure.message.push_str(", or the server runs without JetStream (nats-server -js)");
    failure
}

fn no_stream(subject: &str) -> Failure {
    let text = format!(
        "no stream of JetStream takes the subject {subject:?}; its events wait until one does (nats stream add)"
    );
    Failure::of_destination("nats.no_stream", text)
}

fn refused(error: &ApiError, subject: &str) -> Verdict {
    let text = format!("JetStream refused {subject:?}: {} (error {})", error.description, error.err_code);
    let retry = |code| Verdict::Retry(Failure::of_destination(code, text.clone()));
    let retry_event = |code| Verdict::Retry(Failure::of_event(code, text.clone()));
    let reject = |code| Verdict::Rejected(Failure::of_event(code, text.clone()));
    match error.err_code {
        // Message size, header size.
        10054 | 10097 => reject("nats.too_large"),
        10059 => Verdict::Retry(no_stream(subject)),
        // One number stands for two things: a limit with `discard: new`, or a disk that does not write.
        10077 if error.description.contains("exceeded") => retry("nats.stream_full"),
        10077 => retry("nats.store_failed"),
        // Account, memory and storage limits, and a stream's own queue that is full.
        10002 | 10023 | 10028 | 10047 | 10120 | 10122 | 10167 => retry("nats.resources"),
        // No leader yet, offline, JetStream switched off.
        10005..=10010 | 10039 | 10041 | 10076 | 10118 | 10194 => retry("nats.unavailable"),
        10109 => Verdict::Rejected(Failure::of_destination("nats.sealed", text)),
        // A copy with the same id is still being committed in a replicated stream, and the next try is told
        // "duplicate". That is the stream's affair, not the event's.
        10158 => retry("nats.in_process"),
        10060 | 10063 | 10070 | 10071 | 10164 | 10193 => reject("nats.expectation"),
        // Expected sequence of a subject that is being written just now.
        10163 => retry_event("nats.expectation"),
        // Rollup, time to live, counters, batches and schedules: headers of the event's own.
        10111 | 10165 | 10166 | 10168..=10172 | 10174..=10177 | 10179 | 10188..=10192 | 10199..=10201 => {
            reject("nats.bad_header")
        }
        _ if error.code >= 500 => retry("nats.api_error"),
        _ => retry_event("nats.api_error"),
    }
}

/// The connection ended, for this reason if one is known.
pub(super) fn connection_lost(why: &str) -> Silence {
    Silence::Absent(Failure::of_sink("nats.connection_lost", why))
}

/// Time is up, and the server did or did not answer a ping.
pub(super) fn timeout(after: Duration, answers: bool) -> Silence {
    let after_ms = after.as_millis();
    if answers {
        let text = format!("the server answers, but no stream acknowledged the message within {after_ms} ms");
        return Silence::Present(Failure::of_destination("nats.ack_timeout", text));
    }
    let text = format!("no acknowledgement within {after_ms} ms, and the server does not answer a ping");
    Silence::Absent(Failure::of_sink("nats.ack_timeout", text))
}

pub(super) fn denied(subject: &str, identity: &str) -> Verdict {
    let text = format!("{identity} may not publish to {subject:?}; its events wait until it may");
    Verdict::Retry(Failure::of_destination("nats.denied", text))
}

pub(super) fn too_large(bytes: usize, most: usize) -> Verdict {
    let text = format!("{bytes} bytes with their headers; the server takes {most} (max_payload)");
    Verdict::Rejected(Failure::of_event("nats.too_large", text))
}

/// The client did not take the message.
pub(super) fn not_taken(error: &PublishError) -> Verdict {
    match error.kind() {
        // The client takes a missing limit for zero, so this is no reason to reject the event.
        PublishErrorKind::MaxPayloadExceeded => {
            Verdict::Retry(Failure::of_event("nats.too_large", error.to_string()))
        }
        _ => connection_lost("the connection was lost").verdict(false),
    }
}

pub(super) fn is_too_large(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Rejected(failure) if failure.code == "nats.too_large")
}

/// The event is not given up, unless it stays too large.
pub(super) fn doubted(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Rejected(failure) => Verdict::Retry(failure),
        other => other,
    }
}

/// Whether the server's last words say that a message was larger than it takes.
pub(super) fn is_payload_violation(words: &str) -> bool {
    words.to_ascii_lowercase().contains("maximum payload violation")
}

/// The message over which the server ended the connection.
pub(super) fn broke_the_connection(why: &str) -> Verdict {
    Verdict::Unknown(Failure::of_event("nats.connection_lost", why))
}

pub(super) fn bad_header(name: &str) -> Verdict {
    let text = format!("header {name:?} holds a line break and cannot travel with NATS");
    Verdict::Rejected(Failure::of_event("nats.bad_header", text))
}

pub(super) fn bad_subject(subject: &str, why: &str) -> Verdict {
    Verdict::Rejected(Failure::of_event("nats.bad_subject", format!("subject {subject:?} {why}")))
}

/// A server takes a line of 4,096 bytes by default (`max_control_line`), and hangs up at a longer one.
const SUBJECT_BYTES_MAX: usize = 3_800;

/// Whether a message can be published under this subject. The server checks little of this by itself. It
/// would store a message under `a..b` that no consumer can ever ask for.
pub(crate) fn check_subject(subject: &str) -> Result<(), &'static str> {
    if subject.len() > SUBJECT_BYTES_MAX {
        return Err("is longer than a server takes");
    }
    if subject.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err("holds a space or a control character");
    }
    // These subjects are the server's own. With the right to use its API, a topic could delete streams.
    if subject.starts_with("$JS.") || subject.starts_with("$SYS.") {
        return Err("belongs to the server itself");
    }
    for token in subject.split('.') {
        match token {
            "" => return Err("is empty or has an empty part"),
            "*" | ">" => return Err("holds a wildcard"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seen;
    use posthaste::sink::Scope;

    #[test]
    fn every_row_of_jetstreams_errors() {
        let rows = [
            (400, 10054, "", "rejected", "nats.too_large", Scope::Event),
            (400, 10097, "", "rejected", "nats.too_large", Scope::Event),
            (404, 10059, "", "retry", "nats.no_stream", Scope::Destination),
            (503, 10077, "maximum messages exceeded", "retry", "nats.stream_full", Scope::Destination),
            (503, 10077, "write: no space", "retry", "nats.store_failed", Scope::Destination),
            (503, 10023, "", "retry", "nats.resources", Scope::Destination),
            (500, 10047, "", "retry", "nats.resources", Scope::Destination),
            (429, 10167, "", "retry", "nats.resources", Scope::Destination),
            (503, 10008, "", "retry", "nats.unavailable", Scope::Destination),
            (400, 10109, "", "rejected", "nats.sealed", Scope::Destination),
            (400, 10071, "", "rejected", "nats.expectation", Scope::Event),
            (409, 10158, "", "retry", "nats.in_process", Scope::Destination),
            (400, 10166, "", "rejected", "nats.bad_header", Scope::Event),
            (400, 10999, "", "retry", "nats.api_error", Scope::Event),
            (500, 10999, "", "retry", "nats.api_error", Scope::Destination),
        ];
        for (code, err_code, description, verdict, name, scope) in rows {
            let error = ApiError { code, err_code, description: description.to_owned() };
            let found = answered(PublishReply::Refused(error), || "s");
            assert_eq!(seen(&found), (verdict, name.to_owned(), scope), "{err_code}");
        }
    }

    #[test]
    fn subjects() {
        for good in ["a", "orders.placed", "grün.x", "a*b.c>", "$KV.bucket.key"] {
            assert_eq!(check_subject(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".",
            ".a",
            "a.",
            "a..b",
            "a b",
            "a\tb",
            "a\r\nb",
            "a.*",
            "*",
            "a.>",
            "$JS.API.INFO",
            "$SYS.x",
        ] {
            assert!(check_subject(bad).is_err(), "{bad}");
        }
        assert!(check_subject(&"s".repeat(SUBJECT_BYTES_MAX)).is_ok());
        assert!(check_subject(&"s".repeat(SUBJECT_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn silence_is_unknown_once_the_message_had_left() {
        let lost = connection_lost("gone");
        assert_eq!(seen(&lost.verdict(true)), ("unknown", "nats.connection_lost".to_owned(), Scope::Sink));
        assert_eq!(seen(&lost.verdict(false)), ("retry", "nats.connection_lost".to_owned(), Scope::Sink));
        let alive = timeout(Duration::from_millis(1), true);
        let expected = ("unknown", "nats.ack_timeout".to_owned(), Scope::Destination);
        assert_eq!((seen(&alive.verdict(true)), alive.verdict(false)), (expected, Verdict::Held));
        let dead = timeout(Duration::from_millis(1), false);
        assert_eq!(seen(&dead.verdict(true)), ("unknown", "nats.ack_timeout".to_owned(), Scope::Sink));
        assert_eq!(seen(&dead.verdict(false)), ("retry", "nats.ack_timeout".to_owned(), Scope::Sink));
    }
}
