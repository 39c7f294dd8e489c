//! What a message is known by, and what it is kept in order with. Pure.
//!
//! An identity decides about effects once: two messages with one identity are one message. So nothing merges
//! by default what is not one: the id that a producer gave, else the place in the log (F72).

use crate::inbox::MESSAGE_ID_BYTES_MAX;
use crate::source::Delivery;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use uuid::Uuid;

/// Where an identity is looked for. The first of the list that is there is it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum IdentityFrom {
    /// The header `Message-ID`, or the broker's dedup id.
    Id,
    /// A header.
    Header(String),
    /// A text or a number in a JSON payload, by JSON pointer.
    Json(String),
    /// Topic, partition, position and the record's time.
    Position,
    /// A hash of key and payload. It merges equal messages.
    Sha256,
}

impl TryFrom<String> for IdentityFrom {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "id" => Ok(Self::Id),
            None if text == "position" => Ok(Self::Position),
            None if text == "sha256" => Ok(Self::Sha256),
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            Some(("json", pointer)) if pointer.starts_with('/') => Ok(Self::Json(pointer.to_owned())),
            _ => Err(format!(
                "{text:?} is no identity: write \"id\", \"position\", \"sha256\", \"header:NAME\" or \"json:/pointer\""
            )),
        }
    }
}

impl From<IdentityFrom> for String {
    fn from(from: IdentityFrom) -> Self {
        match from {
            IdentityFrom::Id => "id".to_owned(),
            IdentityFrom::Position => "position".to_owned(),
            IdentityFrom::Sha256 => "sha256".to_owned(),
            IdentityFrom::Header(name) => format!("header:{name}"),
            IdentityFrom::Json(pointer) => format!("json:{pointer}"),
        }
    }
}

/// How far an identity reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IdentityScope {
    /// One event that comes over two topics is handled once.
    #[default]
    Consumer,
    /// The topic is part of the identity.
    Topic,
}

/// What is kept in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Messages of one key of one topic. Those without a key have no order.
    #[default]
    Key,
    /// All messages of a partition.
    Partition,
    /// Nothing.
    None,
}

/// How a consumer names messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Where it is looked for, in turn.
    pub from: Vec<IdentityFrom>,
    /// How far it reaches.
    pub scope: IdentityScope,
}

impl Default for Identity {
    fn default() -> Self {
        Self { from: vec![IdentityFrom::Id, IdentityFrom::Position], scope: IdentityScope::Consumer }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An identity.
    Known(Arc<str>),
    /// None of the places has anything.
    Nothing,
    /// One that no mark can hold: too long, or with a zero byte. The text stands in for it, so that the dead
    /// letter has an identity of its own.
    Unfit(Arc<str>),
}

impl Identity {
    /// What this message is known by.
    #[must_use]
    pub fn of(&self, delivery: &Delivery) -> Found {
        let Some(found) = self.from.iter().find_map(|from| look(from, delivery)) else {
            return Found::Nothing;
        };
        let scoped = match self.scope {
            IdentityScope::Consumer => found,
            IdentityScope::Topic => format!("{}:{found}", delivery.partition().topic),
        };
        if scoped.len() > MESSAGE_ID_BYTES_MAX || scoped.contains('\0') {
            let hash = || format!("sha256:{}", hex(&Sha256::digest(scoped.as_bytes())));
            let place = delivery.place().filter(|place| place.len() <= MESSAGE_ID_BYTES_MAX);
            return Found::Unfit(place.unwrap_or_else(hash).into());
        }
        Found::Known(scoped.into())
    }
}

fn look(from: &IdentityFrom, delivery: &Delivery) -> Option<String> {
    let message = &delivery.message;
    let text = match from {
        IdentityFrom::Id => message.id.clone(),
        IdentityFrom::Header(name) => message.header(name).map(str::to_owned),
        IdentityFrom::Json(pointer) => {
            let value: serde_json::Value = serde_json::from_slice(message.payload.as_deref()?).ok()?;
            match value.pointer(pointer)? {
                serde_json::Value::String(text) => Some(text.clone()),
                serde_json::Value::Number(number) => Some(number.to_string()),
                _ => None,
            }
        }
        IdentityFrom::Position => delivery.place(),
        IdentityFrom::Sha256 => Some(hash_of(delivery)),
    };
    text.filter(|text| !text.is_empty())
}

/// A hash of key and payload.
pub(crate) fn hash_of(delivery: &Delivery) -> String {
    let mut hash = Sha256::new();
    for part in [delivery.message.key.as_deref(), delivery.message.payload.as_deref()] {
        // The length goes first: "ab" + "c" is not "a" + "bc", and nothing is not an empty text.
        hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    format!("sha256:{}", hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a message is kept in order with, as the tables have it: the first 16 bytes of a SHA-256. `None`:
/// nothing waits for it. The topic is a column of its own.
#[must_use]
pub fn order_id(order: Order, delivery: &Delivery) -> Option<Uuid> {
    let mut hash = Sha256::new();
    match order {
        Order::None => return None,
        Order::Key => {
            hash.update(b"key");
            hash.update(delivery.message.key.as_deref()?);
        }
        Order::Partition => {
            hash.update(b"partition");
            hash.update(delivery.partition().number.to_be_bytes());
        }
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Some(Uuid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::source::{Partition, Received, Ticket};
    use bytes::Bytes;

    fn delivery(message: Received) -> Delivery {
        Delivery {
            ticket: Ticket { partition: Partition::new("orders", 3), epoch: 1, number: 7 },
            position: Some(7),
            redelivery: None,
            published_at: Some(Timestamp(1_763_280_000_123_000)),
            address: None,
            message,
        }
    }

    fn identity(from: &[&str]) -> Identity {
        let from = from.iter().map(|from| IdentityFrom::try_from((*from).to_owned()).expect("one")).collect();
        Identity { from, scope: IdentityScope::Consumer }
    }

    #[test]
    fn the_first_that_is_there_is_the_identity() {
        let payload = Bytes::from_static(br#"{"messageId": "m-1", "n": 5}"#);
        let headers = vec![("X-Id".to_owned(), Bytes::from_static(b"h-1"))];
        let message =
            Received { id: Some("a".into()), payload: Some(payload), headers, ..Received::default() };
        let delivery = delivery(message);
        let of = |from: &[&str]| identity(from).of(&delivery);
        assert_eq!(of(&["id", "position"]), Found::Known("a".into()));
        assert_eq!(of(&["header:x-id"]), Found::Known("h-1".into()));
        assert_eq!(of(&["header:absent", "json:/messageId"]), Found::Known("m-1".into()));
        assert_eq!(of(&["json:/n"]), Found::Known("5".into()));
        assert_eq!(of(&["json:/absent", "position"]), Found::Known("orders/3@7#1763280000123".into()));
        assert_eq!(of(&["header:absent"]), Found::Nothing);
        let scoped = Identity { scope: IdentityScope::Topic, ..Identity::default() };
        assert_eq!(scoped.of(&delivery), Found::Known("orders:a".into()));
        for wrong in ["", "Id", "json:x", "header:", "key"] {
            assert!(IdentityFrom::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_no_mark_can_hold_is_unfit_and_has_a_name_of_its_own() {
        let long =
            |id: String| Identity::default().of(&delivery(Received { id: Some(id), ..Received::default() }));
        for id in ["x".repeat(1025), "a\0b".to_owned()] {
            assert_eq!(long(id), Found::Unfit("orders/3@7#1763280000123".into()));
        }
        let queue = Delivery {
            position: None,
            ..delivery(Received { id: Some("x".repeat(2000)), ..Received::default() })
        };
        let Found::Unfit(name) = Identity::default().of(&queue) else { panic!("unfit") };
        assert!(name.starts_with("sha256:") && name.len() == 71, "{name}");
    }

    #[test]
    fn f72_a_hash_keeps_key_and_payload_apart() {
        let hashed = |key: Option<&'static str>, payload: Option<&'static str>| {
            let message = Received {
                key: key.map(|key| Bytes::from_static(key.as_bytes())),
                payload: payload.map(|payload| Bytes::from_static(payload.as_bytes())),
                ..Received::default()
            };
            identity(&["sha256"]).of(&delivery(message))
        };
        assert_eq!(hashed(Some("a"), Some("b")), hashed(Some("a"), Some("b")));
        assert_ne!(hashed(Some("ab"), Some("c")), hashed(Some("a"), Some("bc")));
        assert_ne!(hashed(None, Some("")), hashed(None, None), "a tombstone is not an empty payload");
    }

    #[test]
    fn order_is_by_key_by_partition_or_not_at_all() {
        let keyed = |key| delivery(Received { key, ..Received::default() });
        let key = keyed(Some(Bytes::from_static(b"k")));
        assert!(order_id(Order::Key, &key).is_some() && order_id(Order::Key, &keyed(None)).is_none());
        assert_eq!(order_id(Order::Partition, &key), order_id(Order::Partition, &keyed(None)));
        assert_eq!(order_id(Order::None, &key), None);
    }
}
