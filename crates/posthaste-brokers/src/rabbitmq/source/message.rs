//! A delivery of AMQP as a consumer sees it: the other way of `entry`.
//!
//! Headers of the table come as they are, numbers and lists as text. What AMQP has a place of its own for
//! (`content_type`, `type`) is a header too, unless the table has it: consumers find the same names with
//! every broker. The key is the header `key`, as our sink writes it. A routing key is no key: it says where a
//! message goes, and many orders share one.

use super::super::entry::TOMBSTONE;
use bytes::Bytes;
use lapin::message::Delivery as Delivered;
use lapin::types::{AMQPValue, FieldTable};
use posthaste::event::{KEY_HEADER, MESSAGE_ID_HEADER, TYPE_HEADER, Timestamp};
use posthaste::source::{Delivery, Received, Ticket};
use serde_json::{Value, json};

/// The quorum queue's own count of returns.
const RETURNS: &str = "x-delivery-count";

/// A delivery with this ticket.
pub(super) fn delivery(delivered: Delivered, ticket: Ticket) -> Delivery {
    let properties = delivered.properties;
    let table = properties.headers().clone().unwrap_or_default();
    let returns = table.inner().iter().find(|(name, _)| name.as_str() == RETURNS);
    let returns = returns.and_then(|(_, value)| number(value));
    let is_tombstone =
        delivered.data.is_empty() && table.inner().keys().any(|name| name.as_str() == TOMBSTONE);
    let mut headers = headers(&table);
    let named = |name: &str, headers: &[(String, Bytes)]| {
        headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let places = [
        ("content-type", properties.content_type()),
        (TYPE_HEADER, properties.kind()),
        ("correlation-id", properties.correlation_id()),
        ("reply-to", properties.reply_to()),
    ];
    for (name, value) in places {
        if let Some(value) = value.as_ref().filter(|_| !named(name, &headers)) {
            headers.push((name.to_owned(), Bytes::copy_from_slice(value.as_str().as_bytes())));
        }
    }
    let first =
        |name: &str| headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, v)| v);
    let id = properties.message_id().as_ref().map(|id| id.as_str().to_owned());
    let id = id.or_else(|| first(MESSAGE_ID_HEADER).and_then(|id| String::from_utf8(id.to_vec()).ok()));
    let seconds = properties.timestamp().and_then(|seconds| i64::try_from(seconds).ok());
    let published_at = seconds.and_then(|seconds| seconds.checked_mul(1_000_000)).map(Timestamp);
    let message = Received {
        id: id.filter(|id| !id.is_empty()),
        key: first(KEY_HEADER).cloned(),
        headers,
        payload: (!is_tombstone).then(|| delivered.data.into()),
    };
    Delivery {
        ticket,
        position: None,
        // A broker that says nothing of a count says at least that it is not the first time.
        redelivery: Some(returns.unwrap_or(u32::from(delivered.redelivered))),
        published_at: published_at.filter(|at| (Timestamp::FIRST..=Timestamp::LAST).contains(at)),
        address: Some(delivered.routing_key.as_str().to_owned()),
        message,
    }
}

fn headers(table: &FieldTable) -> Vec<(String, Bytes)> {
    let ours = |name: &str| matches!(name, RETURNS | TOMBSTONE);
    let told = table.inner().iter().filter(|(name, _)| !ours(name.as_str()));
    told.map(|(name, value)| (name.as_str().to_owned(), bytes(value))).collect()
}

fn bytes(value: &AMQPValue) -> Bytes {
    match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        AMQPValue::ShortString(text) => Bytes::copy_from_slice(text.as_str().as_bytes()),
        AMQPValue::ByteArray(bytes) => Bytes::copy_from_slice(bytes.as_slice()),
        AMQPValue::Void => Bytes::new(),
        other => other_value(other).to_string().into_bytes().into(),
    }
}

/// What is no text, as JSON.
fn other_value(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::Timestamp(value) => json!(value),
        AMQPValue::DecimalValue(decimal) => json!({ "scale": decimal.scale, "value": decimal.value }),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(other_value).collect(),
        AMQPValue::FieldTable(table) => {
            let fields =
                table.inner().iter().map(|(name, value)| (name.as_str().to_owned(), other_value(value)));
            Value::Object(fields.collect())
        }
        AMQPValue::LongString(_) | AMQPValue::ShortString(_) | AMQPValue::ByteArray(_) => {
            json!(String::from_utf8_lossy(&bytes(value)))
        }
        AMQPValue::Void => Value::Null,
        number => json!(integer(number)),
    }
}

fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match *value {
        AMQPValue::ShortShortInt(value) => value.into(),
        AMQPValue::ShortShortUInt(value) => value.into(),
        AMQPValue::ShortInt(value) => value.into(),
        AMQPValue::ShortUInt(value) => value.into(),
        AMQPValue::LongInt(value) => value.into(),
        AMQPValue::LongUInt(value) => value.into(),
        AMQPValue::LongLongInt(value) => value,
        _ => return None,
    })
}

fn number(value: &AMQPValue) -> Option<u32> {
    integer(value).and_then(|value| u32::try_from(value).ok())
}
