//! Settings that are JSON at the broker, as texts and back.

use serde_json::Value;

/// A JSON value as a setting: a text as it is, anything else as JSON. A text that would be read back as
/// something else stands in quotes.
pub(crate) fn json_text(value: &Value) -> String {
    match value {
        Value::String(text) if serde_json::from_str::<Value>(text).is_err() => text.clone(),
        other => other.to_string(),
    }
}

/// The way back.
#[cfg_attr(not(feature = "all"), allow(dead_code))] // brokers that speak JSON use it
pub(crate) fn json_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn any_text_comes_back_as_a_text(text in "\\PC{0,12}|-?[0-9]{1,4}|true|null|\"\\PC{0,3}\"|\\[1\\]") {
            let value = Value::String(text);
            prop_assert_eq!(json_value(&json_text(&value)), value);
        }
    }

    #[test]
    fn values_come_back_as_they_were() {
        for (value, text) in [
            (json!(20), "20"),
            (json!("20"), "\"20\""),
            (json!("file"), "file"),
            (json!(true), "true"),
            (json!(["a", "b.>"]), r#"["a","b.>"]"#),
            (json!({ "a": 1 }), r#"{"a":1}"#),
            (json!(""), ""),
            (Value::Null, "null"),
        ] {
            assert_eq!((json_text(&value).as_str(), json_value(text)), (text, value));
        }
    }
}
