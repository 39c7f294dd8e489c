//! Secrets never reach a log, an error, `config show` or a `Debug` text.
//!
//! Two things are secret: the value of a key with a telling name, and the password inside a URL or a
//! connection string. Masking errs on the side of too much: between `://` and the last `@` of a word,
//! nothing but the user name is shown.

use serde_json::Value;

const MASK: &str = "***";

/// Whether a key's value is a secret.
pub(crate) fn is_secret(key: &str) -> bool {
    const NAMES: [&str; 8] =
        ["password", "token", "secret", "secrets", "seed", "nkey", "passphrase", "credentials"];
    NAMES.iter().any(|name| key == *name || key.strip_suffix(name).is_some_and(|rest| rest.ends_with('_')))
}

/// A copy for people: secrets masked.
pub(crate) fn masked(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(scrub(text)),
        Value::Array(items) => items.iter().map(masked).collect(),
        Value::Object(table) => {
            let hide = |key: &str, value: &Value| {
                match value {
                    Value::Null => Value::Null,
                    _ if is_secret(key) => MASK.into(),
                    // Of a request: a key for somebody's API is one of them.
                    Value::Object(headers) if key == "headers" => {
                        headers.keys().map(|name| (name.clone(), Value::from(MASK))).collect()
                    }
                    _ => masked(value),
                }
            };
            Value::Object(table.iter().map(|(key, value)| (key.clone(), hide(key, value))).collect())
        }
        other => other.clone(),
    }
}

/// A single value for people.
pub(crate) fn shown_value(key: &str, value: &Value) -> String {
    if is_secret(key) { MASK.to_owned() } else { masked(value).to_string() }
}

/// A text without the passwords of URLs and connection strings in it.
pub(crate) fn scrub(text: &str) -> String {
    scrub_assignments(&scrub_urls(text))
}

fn scrub_urls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, tail) = rest.split_at(at + 3);
        out.push_str(scheme);
        let end = tail.find(|c: char| c.is_whitespace() || matches!(c, '"' | '`')).unwrap_or(tail.len());
        let (word, after) = tail.split_at(end);
        out.push_str(&scrub_authority(scheme, word));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `user:password@host` or, except for PostgreSQL, `token@host`.
fn scrub_authority(scheme: &str, word: &str) -> String {
    let Some(at) = word.rfind('@') else { return word.to_owned() };
    let (userinfo, host) = word.split_at(at);
    match userinfo.split_once(':') {
        Some((user, _)) => format!("{user}:{MASK}{host}"),
        None if scheme.ends_with("postgres://") || scheme.ends_with("postgresql://") => word.to_owned(),
        None => format!("{MASK}{host}"),
    }
}

/// `password=…` in a query or a key-value string.
fn scrub_assignments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // ASCII lowering keeps every byte offset.
    while let Some(at) = rest.to_ascii_lowercase().find("password") {
        let (before, tail) = rest.split_at(at + "password".len());
        out.push_str(before);
        let Some(value) = tail.trim_start().strip_prefix('=') else {
            rest = tail;
            continue;
        };
        let value = value.trim_start();
        let end = match value.strip_prefix('\'') {
            Some(quoted) => end_of_quoted(quoted).map_or(value.len(), |end| end + 2),
            None => {
                value.find(|c: char| c.is_whitespace() || matches!(c, '&' | '"' | '`')).unwrap_or(value.len())
            }
        };
        out.push('=');
        out.push_str(MASK);
        rest = &value[end..];
    }
    out.push_str(rest);
    out
}

/// Where a quoted value ends: a backslash escapes.
fn end_of_quoted(quoted: &str) -> Option<usize> {
    let mut escaped = false;
    quoted.char_indices().find_map(|(index, c)| {
        let ends = c == '\'' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_vanish_and_the_rest_stays() {
        let table = [
            ("postgres://app:hunter2@db:5432/orders", "postgres://app:***@db:5432/orders"),
            ("postgres://app@db/orders", "postgres://app@db/orders"),
            ("postgres://app:p@ss/w@db/orders", "postgres://app:***@db/orders"),
            ("postgres://db/o?user=a&password=hunter2&x=1", "postgres://db/o?user=a&password=***&x=1"),
            ("host=db user=app password=hunter2 dbname=o", "host=db user=app password=*** dbname=o"),
            ("host=db password = 'hun\\'ter2' dbname=o", "host=db password=*** dbname=o"),
            ("nats://t0ken@broker:4222", "nats://***@broker:4222"),
            ("nats://a:b@h1,nats://c:d@h2", "nats://a:***@h2"),
            ("cannot reach \"nats://a:b@h:1\": refused", "cannot reach \"nats://a:***@h:1\": refused"),
            ("password authentication failed", "password authentication failed"),
        ];
        for (text, expected) in table {
            assert_eq!(scrub(text), expected);
        }
    }

    #[test]
    fn telling_keys_are_masked_whatever_they_hold() {
        let value = serde_json::json!({
            "password": "hunter2", "api_token": 5, "password_file": "/run/x", "list": [{"seed": "S"}], "token": null,
            "secrets": ["whsec_1"], "headers": { "X-Api-Key": "k" },
        });
        let expected = serde_json::json!({
            "password": "***", "api_token": "***", "password_file": "/run/x", "list": [{"seed": "***"}], "token": null,
            "secrets": "***", "headers": { "X-Api-Key": "***" },
        });
        assert_eq!(masked(&value), expected);
    }
}
