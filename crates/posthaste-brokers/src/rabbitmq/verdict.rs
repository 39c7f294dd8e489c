//! The table of [`super`] in code: what the relay is told about a message.
//!
//! The functions are pure, so each row can be read and tested without a server. The one rule behind the rows:
//! an event may only be rejected for something that is its own. What an operator can heal (a missing
//! exchange, a full queue, a missing right) stays a `Retry` of its destination.

use super::client::{
    ACCESS_REFUSED, CONTENT_TOO_LARGE, Close, NOT_FOUND, PRECONDITION_FAILED, PublishOutcome,
};
use crate::call::Silence;
use posthaste::sink::{Failure, Verdict};
use std::time::Duration;

/// What the relay is told of a message. `identity` says as whom we are connected.
pub(super) fn of(answer: PublishOutcome, exchange: &str, routing_key: &str, identity: &str) -> Verdict {
    let place = place(exchange, routing_key);
    match answer {
        PublishOutcome::Stored => Verdict::Delivered,
        PublishOutcome::Returned(close) => Verdict::Retry(Failure::of_destination(
            "rabbitmq.unroutable",
            format!(
                "no queue takes {place}: {}; its events wait until one is bound (or declared, for the default exchange)",
                close.text
            ),
        )),
        PublishOutcome::Nacked => Verdict::Retry(Failure::of_destination(
            "rabbitmq.nacked",
            format!(
                "a queue behind {place} refused it: it is full (x-overflow reject-publish), or could not store it"
            ),
        )),
        PublishOutcome::Closed { close, culprit: true } => refused(&close, &place, identity),
        PublishOutcome::Closed { close, culprit: false } => collateral(&close, exchange, &place),
        PublishOutcome::Lost { left, why } => connection_lost(&why).verdict(left),
    }
}

/// A destination in words.
pub(super) fn place(exchange: &str, routing_key: &str) -> String {
    if exchange.is_empty() {
        return format!("the queue {routing_key:?}");
    }
    format!("the exchange {exchange:?} with routing key {routing_key:?}")
}

/// The broker closed the channel because of this message.
fn refused(close: &Close, place: &str, identity: &str) -> Verdict {
    let text = &close.text;
    match close.code {
        NOT_FOUND => Verdict::Retry(Failure::of_destination(
            "rabbitmq.no_exchange",
            format!("{place} cannot be published to: {text}; its events wait until the exchange is declared"),
        )),
        ACCESS_REFUSED => Verdict::Retry(Failure::of_destination(
            "rabbitmq.denied",
            format!(
                "{identity} may not publish to {place} (permission write): {text}; its events wait until it may"
            ),
        )),
        CONTENT_TOO_LARGE => too_large(text),
        PRECONDITION_FAILED if close.bytes_max().is_some() => too_large(text),
        _ => Verdict::Retry(Failure::of_event(
            "rabbitmq.refused",
            format!("the broker refused {place}: {text}"),
        )),
    }
}

/// The broker closed the channel because of another message that was on it.
fn collateral(close: &Close, exchange: &str, place: &str) -> Verdict {
    let named = !exchange.is_empty() && close.names(exchange);
    let code = match close.code {
        NOT_FOUND if named => "rabbitmq.no_exchange",
        ACCESS_REFUSED if named => "rabbitmq.denied",
        _ => "rabbitmq.channel_closed",
    };
    let text =
        format!("the broker closed the channel before it confirmed the message for {place}: {}", close.text);
    Verdict::Unknown(Failure::of_destination(code, text))
}

/// The connection ended, for this reason.
pub(super) fn connection_lost(why: &str) -> Silence {
    Silence::Absent(Failure::of_sink("rabbitmq.connection_lost", why))
}

/// Time is up. The broker did or did not answer a question, and may have blocked the connection.
pub(super) fn timeout(after: Duration, answers: bool, blocked: Option<String>) -> Silence {
    let after_ms = after.as_millis();
    match (blocked, answers) {
        (Some(reason), _) => {
            let text = format!(
                "the broker takes no messages ({reason}), and has not for {after_ms} ms: see its alarms for memory and disk"
            );
            Silence::Absent(Failure::of_sink("rabbitmq.blocked", text))
        }
        (None, true) => {
            let text = format!("the broker answers, but did not confirm the message within {after_ms} ms");
            Silence::Present(Failure::of_destination("rabbitmq.confirm_timeout", text))
        }
        (None, false) => {
            let text =
                format!("no confirmation within {after_ms} ms, and the broker does not answer a question");
            Silence::Absent(Failure::of_sink("rabbitmq.confirm_timeout", text))
        }
    }
}

pub(super) fn too_large(why: &str) -> Verdict {
    Verdict::Rejected(Failure::of_event("rabbitmq.too_large", format!("the broker takes less: {why}")))
}

pub(super) fn bad_header(name: &str, why: &str) -> Verdict {
    let shown: String = name.chars().take(64).collect();
    Verdict::Rejected(Failure::of_event("rabbitmq.bad_header", format!("header {shown:?} {why}")))
}

pub(super) fn bad_destination(destination: &str, why: &str) -> Verdict {
    let shown: String = destination.chars().take(64).collect();
    Verdict::Rejected(Failure::of_event("rabbitmq.bad_destination", format!("destination {shown:?} {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seen;
    use posthaste::sink::Scope;

    fn close(code: u16, text: &str) -> Close {
        Close { code, text: text.to_owned() }
    }

    #[test]
    fn every_row_of_refusals() {
        let too_large = "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000";
        let rows = [
            (
                404,
                "NOT_FOUND - no exchange 'x' in vhost '/'",
                "retry",
                "rabbitmq.no_exchange",
                Scope::Destination,
            ),
            (403, "ACCESS_REFUSED - access to exchange 'x'", "retry", "rabbitmq.denied", Scope::Destination),
            (406, too_large, "rejected", "rabbitmq.too_large", Scope::Event),
            (311, "CONTENT_TOO_LARGE", "rejected", "rabbitmq.too_large", Scope::Event),
            (406, "PRECONDITION_FAILED - other", "retry", "rabbitmq.refused", Scope::Event),
        ];
        for (code, text, verdict, name, scope) in rows {
            let answer = PublishOutcome::Closed { close: close(code, text), culprit: true };
            assert_eq!(seen(&of(answer, "x", "k", "user")), (verdict, name.to_owned(), scope), "{text}");
        }
    }

    #[test]
    fn those_beside_a_refused_message_may_have_arrived() {
        let gone = close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'");
        let verdict = |exchange: &str| {
            of(PublishOutcome::Closed { close: gone.clone(), culprit: false }, exchange, "k", "user")
        };
        let of = |code: &str| ("unknown", code.to_owned(), Scope::Destination);
        assert_eq!(seen(&verdict("gone")), of("rabbitmq.no_exchange"));
        assert_eq!(seen(&verdict("other")), of("rabbitmq.channel_closed"));
        assert_eq!(seen(&verdict("")), of("rabbitmq.channel_closed"));
    }

    #[test]
    fn silence_is_unknown_once_the_message_had_left() {
        let lost = connection_lost("gone");
        assert_eq!(
            seen(&lost.verdict(true)),
            ("unknown", "rabbitmq.connection_lost".to_owned(), Scope::Sink)
        );
        assert_eq!(seen(&lost.verdict(false)), ("retry", "rabbitmq.connection_lost".to_owned(), Scope::Sink));
        let blocked = timeout(Duration::from_millis(1), true, Some("low on memory".to_owned()));
        assert_eq!(seen(&blocked.verdict(true)), ("unknown", "rabbitmq.blocked".to_owned(), Scope::Sink));
        assert_eq!(seen(&blocked.verdict(false)), ("retry", "rabbitmq.blocked".to_owned(), Scope::Sink));
        let alive = timeout(Duration::from_millis(1), true, None);
        let expected = ("unknown", "rabbitmq.confirm_timeout".to_owned(), Scope::Destination);
        assert_eq!((seen(&alive.verdict(true)), alive.verdict(false)), (expected, Verdict::Held));
        let dead = timeout(Duration::from_millis(1), false, None);
        assert_eq!(
            seen(&dead.verdict(true)),
            ("unknown", "rabbitmq.confirm_timeout".to_owned(), Scope::Sink)
        );
        assert_eq!(seen(&dead.verdict(false)), ("retry", "rabbitmq.confirm_timeout".to_owned(), Scope::Sink));
    }
}
