//! What of an answer a token may not see is taken out, in one place and by name, so that no route forgets it.
//!
//! `hidden` sees sizes, names of headers, codes and causes. `masked` sees keys and error texts beside them.
//! `shown` sees everything. The texts of brokers and handlers quote what they were given, so they are hidden
//! like payloads.

use crate::access::PayloadRight;
use serde_json::Value;

/// In place of what is not shown.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Members that hold what an event carries.
const CONTENTS: [&str; 4] = ["payload", "payload_base16", "stack", "header_value"];
/// Members that quote it.
const QUOTES: [&str; 5] = ["error", "last_error", "text", "broker_error", "message"];

/// The same without what this right does not see.
pub(crate) fn masked(value: Value, right: PayloadRight, show_keys: bool) -> Value {
    if right == PayloadRight::Shown {
        return value;
    }
    match value {
        Value::Array(items) => items.into_iter().map(|item| masked(item, right, show_keys)).collect(),
        Value::Object(members) => {
            let member = |(name, value): (String, Value)| {
                let value = hide(&name, value, right, show_keys);
                (name, value)
            };
            Value::Object(members.into_iter().map(member).collect())
        }
        other => other,
    }
}

fn hide(name: &str, value: Value, right: PayloadRight, show_keys: bool) -> Value {
    let is_hidden = right == PayloadRight::Hidden;
    match name {
        _ if value.is_null() => value,
        "headers" => names_only(value),
        _ if CONTENTS.contains(&name) => HIDDEN.into(),
        "key" if is_hidden && !show_keys => HIDDEN.into(),
        _ if is_hidden && QUOTES.contains(&name) && value.is_string() => HIDDEN.into(),
        _ => masked(value, right, show_keys),
    }
}

/// Headers are a table, or pairs of names and values.
fn names_only(headers: Value) -> Value {
    match headers {
        Value::Object(table) => {
            Value::Object(table.into_iter().map(|(name, _)| (name, HIDDEN.into())).collect())
        }
        Value::Array(pairs) => {
            let pair = |pair: Value| Value::Array(vec![pair[0].clone(), HIDDEN.into()]);
            pairs.into_iter().map(pair).collect()
        }
        _ => HIDDEN.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_right_sees_more_than_the_one_before() {
        let letter = json!({
            "id": "1", "key": "k", "headers": { "a": "secret" }, "error": "secret", "error_code": "c", "payload": "secret",
            "history": [{ "code": "c", "error": "secret" }], "dead": null, "error_code_count": 3,
            "pairs": { "headers": [["a", "secret"]] }, "filter": { "header": "a", "header_value": "secret" },
        });
        let hidden = masked(letter.clone(), PayloadRight::Hidden, false);
        assert!(!hidden.to_string().contains("secret"), "{hidden}");
        assert_eq!((&hidden["key"], &hidden["headers"]["a"]), (&HIDDEN.into(), &HIDDEN.into()));
        assert_eq!(masked(letter.clone(), PayloadRight::Hidden, true)["key"], "k");
        let some = masked(letter.clone(), PayloadRight::Masked, false);
        assert_eq!((&some["key"], &some["error"]), (&"k".into(), &"secret".into()));
        assert_eq!(some["filter"], json!({ "header": "a", "header_value": HIDDEN }));
        assert_eq!((&some["payload"], &some["headers"]["a"]), (&HIDDEN.into(), &HIDDEN.into()));
        assert_eq!(masked(letter.clone(), PayloadRight::Shown, false), letter);
    }
}
