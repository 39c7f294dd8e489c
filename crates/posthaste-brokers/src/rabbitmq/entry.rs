//! An event as a message of AMQP: properties, headers, body.
//!
//! What AMQP has a place for travels there (`message_id`, `type`, `timestamp`, `app_id`, `content_type`), and
//! every header of the event travels in the table as well, so that a consumer finds the same names with every
//! broker. A text that is too long for its place (255 bytes) is in the table only.

use super::client::{Properties, Publish, SHORT_MAX, header_frame_size, put_field};
use super::verdict;
use posthaste::envelope::AMQP_BINDING;
use posthaste::sink::{Message, Verdict};

/// The header that tells a tombstone from an empty payload.
pub(super) const TOMBSTONE: &str = "Posthaste-Tombstone";
/// RabbitMQ routes by these two headers. It wants lists in them, and closes the channel over anything else.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// The message of an event, or why it can never travel. `frame_max` bounds the headers, which cannot be
/// divided.
pub(super) fn encode(
    message: &Message,
    index: usize,
    place: (&str, &str),
    frame_max: usize,
) -> Result<Publish, Verdict> {
    let id = message.id();
    let properties = properties(message, &id)?;
    let size = header_frame_size(&properties);
    if size > frame_max {
        let why = format!("the headers take {size} bytes, and a frame has {frame_max}");
        return Err(verdict::too_large(&why));
    }
    let payload = message.payload.clone().unwrap_or_default();
    let (exchange, routing_key) = (place.0.to_owned(), place.1.to_owned());
    Ok(Publish { index, exchange, routing_key, id, properties, payload })
}

fn properties(message: &Message, id: &str) -> Result<Vec<u8>, Verdict> {
    let fits = |text: &&str| !text.is_empty() && text.len() <= SHORT_MAX;
    let mut bad = None;
    let mut content_type = None;
    let mut table = Vec::with_capacity(256);
    message.each_header_for(AMQP_BINDING, |name, value| {
        match check_header(name) {
            Ok(()) => put_field(&mut table, name, value),
            Err(why) => bad = Some(verdict::bad_header(name, why)),
        }
        // The envelope decides about the content type.
        if name == "content-type" && fits(&value) {
            content_type = Some(value.to_owned());
        }
    });
    if message.payload.is_none() {
        put_field(&mut table, TOMBSTONE, "true");
    }
    let seconds = message.stored.appended_at.0.max(0) / 1_000_000;
    let properties = Properties {
        content_type: content_type.as_deref(),
        message_id: id,
        timestamp: seconds.unsigned_abs(),
        kind: Some(message.stored.event.event_type()).filter(fits),
        app_id: Some(&*message.source).filter(fits),
    };
    bad.map_or_else(|| Ok(properties.encode(|out| out.extend_from_slice(&table))), Err)
}

fn check_header(name: &str) -> Result<(), &'static str> {
    if name.len() > SHORT_MAX {
        return Err("has a name of more than 255 bytes, and AMQP takes no more");
    }
    if ROUTING_HEADERS.contains(&name) {
        return Err("is one by which RabbitMQ routes, and cannot travel as a text");
    }
    Ok(())
}
