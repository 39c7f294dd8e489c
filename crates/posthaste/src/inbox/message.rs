//! A message as a handler sees it.

use super::failure::{Disposition, Failure, FailureKind, HandlerError, Wish};
use super::store::Work;
use crate::event::{Event, is_header_name, is_header_value};
use crate::source::Delivery;
use crate::telemetry::{HANDLER_SPAN, HANDLER_TARGET};
use bytes::Bytes;
use std::ops::Deref;
use tracing::Span;
use tracing::field::Empty;

/// The event or message that made this one.
pub const CAUSATION_HEADER: &str = "causation-id";
/// What a whole chain of events has in common.
pub const CORRELATION_HEADER: &str = "correlation-id";
/// The trace that an event belongs to, as W3C's Trace Context has it.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// Vendors' part of the trace context.
pub const TRACESTATE_HEADER: &str = "tracestate";
/// Headers that begin so are handed on to whatever a handler makes of a message.
pub const SAGA_PREFIX: &str = "saga-";

/// A message in a handler's hand.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    work: &'a Work,
    consumer: &'a str,
}

impl<'a> Message<'a> {
    /// The message of some work.
    #[must_use]
    pub fn new(consumer: &'a str, work: &'a Work) -> Self {
        Self { work, consumer }
    }

    /// What the inbox knows it by.
    #[must_use]
    pub fn id(&self) -> &'a str {
        &self.work.id
    }

    /// The consumer that handles it.
    #[must_use]
    pub fn consumer(&self) -> &'a str {
        self.consumer
    }

    /// Which attempt this is; the first is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.work.attempts.saturating_add(1)
    }

    /// The span that its handler runs in, with the trace that the message belongs to. Whoever handles several
    /// messages at once can enter that of each. Without a listener it costs next to nothing.
    #[must_use]
    pub fn span(&self) -> Span {
        let span = tracing::info_span!(
            target: HANDLER_TARGET, HANDLER_SPAN,
            consumer = self.consumer, topic = &*self.partition().topic, message_id = self.id(),
            attempt = self.attempt(), traceparent = Empty, trace_id = Empty
        );
        if !span.is_disabled()
            && let Some(traceparent) = self.message.header(TRACEPARENT_HEADER)
        {
            span.record("traceparent", traceparent);
            if let Some(trace_id) = trace_id(traceparent) {
                span.record("trace_id", trace_id);
            }
        }
        span
    }

    /// The span of messages that are handled together: one's own, or that of the whole batch.
    #[must_use]
    pub fn span_of(batch: &[Self]) -> Span {
        match batch {
            [] => Span::none(),
            [message] => message.span(),
            [first, ..] => tracing::info_span!(
                target: HANDLER_TARGET, HANDLER_SPAN,
                consumer = first.consumer, topic = &*first.partition().topic, messages = batch.len()
            ),
        }
    }

    /// The payload as JSON. One that is none is rejected: no later attempt would find it better.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        let payload = self.work.delivery.message.payload.as_deref();
        let payload =
            payload.ok_or_else(|| HandlerError::reject("message.tombstone", "it has no payload"))?;
        serde_json::from_slice(payload).map_err(|error| HandlerError {
            wish: Wish::Reject,
            code: "message.json".into(),
            message: format!("the payload is not the JSON that was expected: {error}"),
            error: Some(Box::new(error)),
        })
    }

    /// An event that follows from this message. It says what caused it, and carries on correlation, trace and
    /// everything that belongs to a saga. What an event's headers cannot hold is left out: a foreign header
    /// must not stop the handler. `posthaste.caused` is the same in SQL.
    #[must_use]
    pub fn event(&self, topic: impl Into<String>, payload: impl Into<Bytes>) -> Event {
        let message = &self.work.delivery.message;
        let mut event = Event::new(topic, payload).with_header(CAUSATION_HEADER, self.id());
        let correlation = message.header(CORRELATION_HEADER).filter(|value| is_header_value(value));
        let correlation = correlation.unwrap_or(self.id());
        event = event.with_header(CORRELATION_HEADER, correlation);
        for (name, value) in &message.headers {
            let is_handed_on = name.eq_ignore_ascii_case(TRACEPARENT_HEADER)
                || name.eq_ignore_ascii_case(TRACESTATE_HEADER)
                || name.get(..SAGA_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(SAGA_PREFIX));
            if is_handed_on
                && is_header_name(name)
                && let Ok(value) = std::str::from_utf8(value)
                && is_header_value(value)
            {
                event = event.with_header(name.to_ascii_lowercase(), value);
            }
        }
        event
    }
}

impl Deref for Message<'_> {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.work.delivery
    }
}

/// The trace's id in a `traceparent`: `00-<trace id>-<span id>-<flags>`. All zeroes are none.
fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && id.bytes().any(|byte| byte != b'0')).then_some(id)
}

/// A message that cannot be decoded.
#[must_use]
pub fn undecodable(why: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Poison(Disposition::Decode), "message.decode", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::History;
    use crate::source::{Partition, Received, Ticket};
    use std::sync::Arc;

    fn headers_of_what_follows(headers: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), Bytes::copy_from_slice(value))).collect();
        let delivery = Delivery {
            ticket: Ticket { partition: Partition::new("orders", 0), epoch: 1, number: 1 },
            position: Some(1),
            redelivery: None,
            published_at: None,
            address: None,
            message: Received { id: Some("m1".to_owned()), key: None, headers, payload: None },
        };
        let (delivery, id) = (Arc::new(delivery), "m1".into());
        let work = Work { delivery, id, order_id: None, attempts: 0, history: History::default() };
        let event = Message::new("billing", &work).event("invoices.made", "{}");
        assert_eq!((&*event.topic, crate::event::Limits::default().check(&event)), ("invoices.made", Ok(())));
        event.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn named(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_follows_from_a_message_carries_on_its_chain_its_trace_and_its_saga() {
        let plain = [("causation-id", "m1"), ("correlation-id", "m1")];
        assert_eq!(headers_of_what_follows(&[("type", b"order")]), named(&plain), "it begins a chain");
        let found = headers_of_what_follows(&[
            ("Causation-ID", b"m0"),
            ("Correlation-Id", b"c1"),
            ("Traceparent", b"00-ab-cd-01"),
            ("tracestate", b"vendor=1"),
            ("SAGA-id", b"s1"),
            ("saga-step", b"one"),
            ("saga-step", b"two"),
            ("sagacity", b"x"),
            ("type", b"order"),
        ]);
        let carried = [
            ("causation-id", "m1"),
            ("correlation-id", "c1"),
            ("traceparent", "00-ab-cd-01"),
            ("tracestate", "vendor=1"),
            ("saga-id", "s1"),
            ("saga-step", "two"),
        ];
        assert_eq!(found, named(&carried));
        let odd: [(&str, &[u8]); 5] = [
            ("correlation-id", b"a\nb"),
            ("traceparent", b"\xff"),
            ("saga-a b", b"x"),
            ("saga-c", b"a\0b"),
            ("saga-\u{e9}", b"x"),
        ];
        assert_eq!(headers_of_what_follows(&odd), named(&plain), "no event could hold these");
    }

    #[test]
    fn a_trace_is_read_from_its_header_and_anything_else_is_none() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace_id(&format!("00-{id}-00f067aa0ba902b7-01")), Some(id));
        let zeroes = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        for other in ["", "-", "00-", "00-abc-def-01", &zeroes, "00-4bf92f3577b34da6a3ce929d0e0e47\u{e9}-1-1"]
        {
            assert_eq!(trace_id(other), None, "{other}");
        }
    }
}
