//! Prints each event as one line of JSON: the quickest way to see what a route does.
//!
//! The payload is shown as text when it is UTF-8 and as base16 otherwise. A line is acknowledged when it
//! was written and flushed; a closed pipe is the sink's outage, not the event's fault.

use super::{Capabilities, Failure, Message, Ordering, Sink, Verdict};
use async_trait::async_trait;
use std::io::Write;

/// Writes JSON lines to standard output.
#[derive(Debug, Default)]
pub struct StdoutSink;

#[async_trait]
impl Sink for StdoutSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let mut text = String::new();
        for message in messages {
            text.push_str(&line(message));
            text.push('\n');
        }
        // One write under the lock: lines of two calls never mix.
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => vec![Verdict::Delivered; messages.len()],
            Err(error) => {
                let failure = Failure::of_sink("stdout.write", format!("standard output: {error}"));
                vec![Verdict::Unknown(failure); messages.len()]
            }
        }
    }
}

fn line(message: &Message) -> String {
    let mut headers = serde_json::Map::new();
    message.each_header(|name, value| {
        headers.insert(name.to_owned(), value.into());
    });
    let payload = message.payload.as_ref().map(|bytes| match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::Value::from(text),
        Err(_) => bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into(),
    });
    serde_json::json!({
        "id": message.id(),
        "seq": message.stored.seq,
        "destination": message.destination,
        "key": message.stored.event.key,
        "headers": headers,
        "payload": payload,
    })
    .to_string()
}
