//! An entry of a stream as a delivery, as the sink writes it: fields `id`, `key`, `payload`, and `h:NAME` for
//! a header. Other fields of a foreign entry are headers under their own names.

use super::place;
use ::redis::Value;
use bytes::Bytes;
use posthaste::Timestamp;
use posthaste::source::{Delivery, Partition, Received, SourceError, Ticket};

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn bytes(value: &Value) -> Bytes {
    match value {
        Value::BulkString(bytes) => Bytes::copy_from_slice(bytes),
        Value::SimpleString(text) => Bytes::copy_from_slice(text.as_bytes()),
        Value::Int(number) => Bytes::from(number.to_string()),
        _ => Bytes::new(),
    }
}

/// The position of an id of this stream.
pub(super) fn position(stream: &str, id: &str) -> Result<i64, SourceError> {
    place::position(id).ok_or_else(|| {
        SourceError::Fatal(format!(
            "stream {stream:?} has an entry with the id {id}, which is no position: an id is a time of the server and a number \
             below 1048576. Nothing behind it can be read. Add entries with the id *, to another stream"
        ))
    })
}

/// An entry: its id, and names and values in turn.
pub(super) fn delivery(partition: &Partition, entry: &Value) -> Result<Option<Delivery>, SourceError> {
    let Value::Array(parts) = entry else { return Ok(None) };
    let (Some(id), Some(Value::Array(fields))) = (parts.first().and_then(text), parts.get(1)) else {
        // An entry that was removed while it was read has no fields.
        return Ok(None);
    };
    let position = position(&partition.topic, &id)?;
    Ok(Some(Delivery {
        ticket: Ticket { partition: partition.clone(), epoch: 0, number: position },
        position: Some(position),
        redelivery: None,
        published_at: Some(Timestamp::of_millis(place::millis(position))),
        address: None,
        message: received(fields),
    }))
}

fn received(fields: &[Value]) -> Received {
    let mut message = Received::default();
    for pair in fields.chunks_exact(2) {
        let (name, value) = (String::from_utf8_lossy(&bytes(&pair[0])).into_owned(), bytes(&pair[1]));
        match name.as_str() {
            "id" => message.id = std::str::from_utf8(&value).ok().map(str::to_owned),
            "key" => message.key = Some(value),
            "payload" => message.payload = Some(value),
            _ => {
                let name = name.strip_prefix("h:").map(str::to_owned).unwrap_or(name);
                message.headers.push((name, value));
            }
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, fields: &[&str]) -> Value {
        let word = |text: &&str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(vec![word(&id), Value::Array(fields.iter().map(word).collect())])
    }

    #[test]
    fn it_is_read_as_the_sink_writes_it() {
        let partition = Partition::new("s", 0);
        let fields = ["id", "e1", "key", "k", "payload", "body", "h:type", "T", "note", "x"];
        let read = delivery(&partition, &entry("7-1", &fields)).expect("fits").expect("an entry");
        let message = &read.message;
        assert_eq!((read.position, read.published_at), (Some((7 << 20) + 1), Some(Timestamp(7_000))));
        assert_eq!((message.id.as_deref(), message.key.as_deref()), (Some("e1"), Some(&b"k"[..])));
        assert_eq!((message.event_type(), message.header("note")), (Some("T"), Some("x")));
        let tombstone = delivery(&partition, &entry("7-2", &["id", "e2"])).expect("fits").expect("an entry");
        assert_eq!(tombstone.message.payload, None);
        assert!(delivery(&partition, &entry("1-1048576", &["id", "e"])).is_err());
        assert_eq!(delivery(&partition, &Value::Nil), Ok(None));
    }
}
