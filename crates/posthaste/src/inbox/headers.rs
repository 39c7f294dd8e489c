//! A foreign message's headers as tables keep them: `[[name, text | {"base64": …}], …]`, as they came.
//!
//! Names repeat, values need not be text, and a zero byte is text that PostgreSQL's JSON cannot hold. What is
//! no text there is base64, so every header comes back byte for byte (F86).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

/// The stored form.
#[must_use]
pub fn to_json(headers: &[(String, Bytes)]) -> String {
    let pairs = headers.iter().map(|(name, value)| json!([store(name.as_bytes()), store(value)]));
    Value::Array(pairs.collect()).to_string()
}

/// Reads the stored form. What is not of it is left out: a person's edit must not stop a consumer.
#[must_use]
pub fn from_json(text: &str) -> Vec<(String, Bytes)> {
    let pairs: Vec<(Value, Value)> = serde_json::from_str(text).unwrap_or_default();
    let read = |(name, value): &(Value, Value)| {
        Some((String::from_utf8(load(name)?).ok()?, Bytes::from(load(value)?)))
    };
    pairs.iter().filter_map(read).collect()
}

fn store(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.into(),
        _ => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

fn load(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => STANDARD.decode(other.get("base64")?.as_str()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn f86_every_header_comes_back_as_it_was(
            headers in prop::collection::vec((any::<String>(), prop::collection::vec(any::<u8>(), 0..20)), 0..8),
        ) {
            let headers: Vec<(String, Bytes)> =
                headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let text = to_json(&headers);
            prop_assert!(!text.contains("\\u0000"));
            prop_assert_eq!(from_json(&text), headers);
        }
    }

    #[test]
    fn what_is_not_of_the_stored_form_is_left_out() {
        assert_eq!(from_json("{}"), []);
        assert_eq!(from_json("nonsense"), []);
        let kept = [("a".to_owned(), Bytes::from_static(b"b"))];
        assert_eq!(from_json(r#"[["a","b"],["c",5],["d",{"base64":"?"}]]"#), kept);
    }
}
