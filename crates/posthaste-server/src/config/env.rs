//! The environment overlay: `POSTHASTE_` and the path, with `__` between levels.
//!
//! ```text
//! POSTHASTE_RELAY__POLL_MIN_MS=10          relay.poll_min_ms = 10
//! POSTHASTE_OUTBOX__URL=postgres://…       the url of the only outbox
//! POSTHASTE_OUTBOX__1__URL=postgres://…    the url of the second one
//! POSTHASTE_SINKS__NATS__TOKEN_FILE=/run/x the token is in that file
//! ```
//!
//! A value is read as TOML when it is a number, `true`, `false`, a list, an inline table or a quoted text,
//! and as bare text otherwise. Secrets are always bare text: a password of digits stays a text.
//!
//! A variable without `__` counts only if it names a top-level key. Everything else is left alone, because
//! Kubernetes sets `POSTHASTE_SERVICE_HOST` and its kin beside a service of our name. With `__` in it a
//! variable is surely meant for us, and an unknown name is refused. One that lacks only the second underscore
//! is not used either, and a warning says so.

use super::problem::{ConfigError, nearest};
use super::schema::schema;
use super::tree::{Tree, ValueOrigin, member};
use crate::secret::is_secret;
use serde_json::Value;

/// Which variables lay over which file: their prefix, the keys of its top level, its schema.
pub(crate) type Overlay = (&'static str, &'static [&'static str], fn() -> Value);
pub(crate) const MAIN: Overlay = ("POSTHASTE_", &TOP_LEVEL, schema);
pub(crate) const TOPOLOGY_PREFIX: &str = "POSTHASTE_TOPOLOGY__";

/// The keys of the top level.
#[rustfmt::skip] // Thirteen lines of a word each say no more than two.
pub(crate) const TOP_LEVEL: [&str; 13] =
    ["service", "require_tls", "relay", "http", "admin", "gateway", "log", "audit", "outbox", "sinks", "sources", "consumers", "route"];

/// Lays variables over a tree, in the order of their names. Answers with warnings.
pub(crate) fn overlay(
    tree: &mut Tree,
    (prefix, top_level, schema): Overlay,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<Vec<String>, ConfigError> {
    let is_topology = |name: &str| name.starts_with(TOPOLOGY_PREFIX);
    let is_ours = |name: &str| name.starts_with(prefix) && is_topology(name) == is_topology(prefix);
    let mut variables: Vec<_> = variables.filter(|(name, _)| is_ours(name)).collect();
    variables.sort();
    let mut ignored = Vec::new();
    for (name, text) in variables {
        let levels: Vec<String> = name[prefix.len()..].split("__").map(str::to_ascii_lowercase).collect();
        if is_meant(top_level, &name, &levels)? {
            apply(tree, &name, &levels, text)?;
        } else {
            ignored.push(name);
        }
    }
    // The sinks and consumers that a variable may name are known only now.
    let schema = if ignored.is_empty() { Value::Null } else { schema() };
    let meant = |name: &String| {
        let meant = key_of(&schema, &tree.value, &name[prefix.len()..].to_ascii_lowercase())?;
        let meant = meant.to_ascii_uppercase();
        Some(format!(
            "environment variable {name} is not used: levels have two underscores between them. Write {prefix}{meant}"
        ))
    };
    Ok(ignored.iter().filter_map(meant).collect())
}

/// The key that a name with single underscores between its levels would have, spelt as a variable.
fn key_of(schema: &Value, given: &Value, name: &str) -> Option<String> {
    let behind = |key: &str| name.strip_prefix(key)?.strip_prefix('_');
    let below = |key: &str, schema: &Value, given: &Value| {
        Some(format!("{key}__{}", key_of(schema, given, behind(key)?)?))
    };
    let own = schema["properties"].as_object().into_iter().flatten();
    let own = own.map(|(key, schema)| (key.clone(), schema, &given[key.as_str()]));
    // Sinks, sources and consumers have names of their own.
    let named =
        given.as_object().filter(|_| schema["additionalProperties"].is_object()).into_iter().flatten();
    let named = named.map(|(key, given)| {
        (key.to_ascii_lowercase().replace('-', "_"), &schema["additionalProperties"], given)
    });
    let found = own.chain(named).find_map(|(key, schema, given)| match name == key {
        true => Some(key),
        false => below(&key, schema, given),
    });
    let kinds = ["anyOf", "oneOf"].into_iter().filter_map(|several| schema[several].as_array()).flatten();
    let item = || {
        let number = name.split('_').next().filter(|word| word.parse::<usize>().is_ok())?;
        below(number, &schema["items"], &Value::Null)
    };
    found.or_else(|| kinds.into_iter().find_map(|kind| key_of(kind, given, name))).or_else(item)
}

fn is_meant(known: &[&str], name: &str, levels: &[String]) -> Result<bool, ConfigError> {
    let top = levels[0].as_str();
    if known.contains(&top) {
        return Ok(true);
    }
    // `POSTHASTE__SERVICE` has two underscores where the prefix has one.
    if levels.len() == 1 && !top.starts_with('_') {
        return Ok(false);
    }
    let hint = nearest(top, known)
        .map_or_else(|| format!("known are: {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
    Err(ConfigError::new(format!("environment variable {name}: unknown key `{top}`, {hint}")))
}

fn apply(tree: &mut Tree, name: &str, levels: &[String], text: String) -> Result<(), ConfigError> {
    let (levels, text) = from_file(name, levels, text)?;
    let mut path = String::new();
    let mut above = Vec::new();
    let mut slot = &mut tree.value;
    for (depth, level) in levels.iter().enumerate() {
        above.push(path.clone());
        if depth == 1 && path == "outbox" {
            let index = outbox_index(name, slot, level)?;
            path = format!("outbox[{index}]");
            slot = list_item(slot, index);
            if level.parse::<usize>().is_ok() {
                continue;
            }
        }
        if slot.is_array() {
            let index = level.parse().map_err(|_| {
                ConfigError::new(format!(
                    "environment variable {name}: `{path}` is a list, `{level}` is no number"
                ))
            })?;
            path = format!("{path}[{index}]");
            slot = checked_item(name, slot, index)?;
        } else {
            let key = known_spelling(slot, level);
            path = member(&path, &key);
            slot = table_member(name, slot, key)?;
        }
    }
    let leaf = levels.last().map_or("", String::as_str);
    *slot = if is_secret(leaf) { Value::String(text) } else { typed(text) };
    tree.note(&path, ValueOrigin::Env(name.to_owned()));
    for table in above.iter().filter(|table| !table.is_empty()) {
        tree.note_new(table, ValueOrigin::Env(name.to_owned()));
    }
    Ok(())
}

/// Every secret has a twin `…_file`, which is a key like any other and is read by whoever uses the secret,
/// again at each connect. A broker's URL has none: `…__URL_FILE` is read here.
fn from_file(name: &str, levels: &[String], text: String) -> Result<(Vec<String>, String), ConfigError> {
    let mut levels = levels.to_vec();
    if let [top, .., leaf] = levels.as_mut_slice()
        && ["sinks", "sources", "brokers"].contains(&top.as_str())
        && leaf == "url_file"
    {
        *leaf = "url".to_owned();
        let read = std::fs::read_to_string(&text).map_err(|error| {
            ConfigError::new(format!("environment variable {name}: cannot read {text}: {error}"))
        })?;
        return Ok((levels, read.trim_end().to_owned()));
    }
    Ok((levels, text))
}

/// Which outbox a variable means: by number, or the only one.
fn outbox_index(name: &str, outboxes: &Value, level: &str) -> Result<usize, ConfigError> {
    let count = outboxes.as_array().map_or(0, Vec::len);
    match level.parse::<usize>() {
        Ok(index) if index <= count => Ok(index),
        Ok(index) => Err(ConfigError::new(format!(
            "environment variable {name}: there are {count} outboxes, and {index} is not the next number"
        ))),
        Err(_) if count <= 1 => Ok(0),
        Err(_) => Err(ConfigError::new(format!(
            "environment variable {name}: there are {count} outboxes; say which one by its number: \
             POSTHASTE_OUTBOX__0__…"
        ))),
    }
}

fn list_item(slot: &mut Value, index: usize) -> &mut Value {
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    let Value::Array(items) = slot else { unreachable!("made a list above") };
    if items.len() <= index {
        items.resize(index + 1, Value::Null);
    }
    &mut items[index]
}

fn checked_item<'a>(name: &str, slot: &'a mut Value, index: usize) -> Result<&'a mut Value, ConfigError> {
    let count = slot.as_array().map_or(0, Vec::len);
    if index > count {
        return Err(ConfigError::new(format!("environment variable {name}: the list has {count} entries")));
    }
    Ok(list_item(slot, index))
}

fn table_member<'a>(name: &str, slot: &'a mut Value, key: String) -> Result<&'a mut Value, ConfigError> {
    if slot.is_null() {
        *slot = Value::Object(serde_json::Map::new());
    }
    let Value::Object(table) = slot else {
        return Err(ConfigError::new(format!("environment variable {name}: `{key}` is below a plain value")));
    };
    Ok(table.entry(key).or_insert(Value::Null))
}

/// A variable cannot spell `my-sink`: a key that is there already and differs only in case and dashes is it.
fn known_spelling(slot: &Value, level: &str) -> String {
    let same = |key: &&String| key.to_ascii_lowercase().replace('-', "_") == level;
    let known = slot.as_object().and_then(|table| table.keys().find(same));
    known.cloned().unwrap_or_else(|| level.to_owned())
}

fn typed(text: String) -> Value {
    let looks_typed = text.starts_with(['[', '{', '"', '\'', '+', '-'])
        || text.starts_with(|c: char| c.is_ascii_digit())
        || text == "true"
        || text == "false";
    if !looks_typed {
        return Value::String(text);
    }
    let read = toml::from_str::<serde_json::Map<String, Value>>(&format!("value = {text}"));
    match read.ok().and_then(|mut table| (table.len() == 1).then(|| table.remove("value")).flatten()) {
        // A date, or something like it, comes out as an object of the parser's own: it was meant as text.
        Some(Value::Object(_)) if !text.starts_with('{') => Value::String(text),
        Some(value) => value,
        None => Value::String(text),
    }
}
