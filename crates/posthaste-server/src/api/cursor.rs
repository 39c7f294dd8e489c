//! Places in lists, as clients hold them: opaque, versioned, checked.
//!
//! A cursor says of which list it is. One of another list, of another outbox, of an older version, or one
//! that somebody made up is refused with a sentence instead of a page of something else. It holds no right:
//! whoever made one up would see what their token shows them anyway, so a checksum is enough.

use super::call::has_zero;
use crate::http::ApiProblem;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Goes up when places mean something else.
const VERSION: u64 = 1;
/// Bytes of the checksum.
const SUM: usize = 6;
/// No place of ours is longer.
const CHARS_MAX: usize = 4_096;

/// A place in this list of this outbox.
pub(crate) fn write(list: &str, of: &str, place: &impl Serialize) -> String {
    let text = json!({ "v": VERSION, "list": list, "of": of, "at": place }).to_string();
    let mut bytes = sum(text.as_bytes()).to_vec();
    bytes.extend_from_slice(text.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The place that it stands for, if it is one of this list.
pub(crate) fn read<T: DeserializeOwned>(list: &str, of: &str, cursor: &str) -> Result<T, ApiProblem> {
    let refused = |why: &str| {
        let advice =
            "Ask for the first page again, without a cursor, and go on with the one that it answers.";
        ApiProblem::bad("api.bad_cursor", format!("the cursor {why}"), advice)
    };
    let bytes = Some(cursor).filter(|cursor| cursor.len() <= CHARS_MAX);
    let bytes = bytes.and_then(|cursor| URL_SAFE_NO_PAD.decode(cursor).ok());
    let bytes = bytes.filter(|bytes| bytes.len() > SUM && bytes[..SUM] == sum(&bytes[SUM..]));
    let value = bytes.and_then(|bytes| serde_json::from_slice::<Value>(&bytes[SUM..]).ok());
    let value =
        value.filter(|value| !has_zero(value)).ok_or_else(|| refused("is none that this API has given"))?;
    match (&value["v"], value["list"].as_str(), value["of"].as_str()) {
        (version, ..) if *version != VERSION => Err(refused("is of another version")),
        (_, Some(known), Some(name)) if known == list && name == of => {
            serde_json::from_value(value["at"].clone()).map_err(|_| refused("is none of this list"))
        }
        (_, Some(known), _) if known == list => Err(refused("belongs to another outbox or consumer")),
        _ => Err(refused("belongs to another list")),
    }
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(&Sha256::digest(bytes)[..SUM]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cursor_is_of_one_list_of_one_outbox_and_of_one_version() {
        let cursor = write("dead", "orders", &7_i64);
        assert_eq!(read::<i64>("dead", "orders", &cursor).ok(), Some(7));
        let why = |list, of, cursor: &str| read::<i64>(list, of, cursor).expect_err("refused").detail;
        assert!(why("dead", "other", &cursor).contains("another outbox"));
        assert!(why("audit", "orders", &cursor).contains("another list"));
        let old = json!({ "v": 0, "list": "dead", "of": "orders", "at": 7 }).to_string();
        let old = URL_SAFE_NO_PAD.encode([&sum(old.as_bytes())[..], old.as_bytes()].concat());
        assert!(why("dead", "orders", &old).contains("another version"));
        let mut forged = cursor.clone().into_bytes();
        forged[20] ^= 1;
        assert!(why("dead", "orders", &String::from_utf8_lossy(&forged)).contains("none that"));
        assert!(why("dead", "orders", &write("dead", "orders", &"x")).contains("none of this list"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = read::<i64>("dead", "orders", &text);
        }
    }
}
