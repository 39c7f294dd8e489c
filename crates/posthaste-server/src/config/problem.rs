//! Words for a configuration that cannot be used.
//!
//! serde names what it did not expect in a fixed form of words. They are taken apart here and put together
//! again as a sentence with the place, the path and the nearest known name, so that no section, and no sink
//! of another crate, has to list its keys twice.

use super::tree::{Tree, member};
use crate::secret::{is_secret, scrub};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What is wrong, in words for an operator. The process ends with code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(scrub(&text.into()))
    }
}

/// Reads a part of the tree into a type. `base` is its path; `siblings` are keys that belong to the same
/// table but to another reader.
pub(crate) fn read<T: DeserializeOwned>(
    tree: &Tree,
    base: &str,
    value: Value,
    siblings: &[&str],
) -> Result<T, ConfigError> {
    let keys: Vec<String> = value.as_object().into_iter().flat_map(|table| table.keys().cloned()).collect();
    serde_path_to_error::deserialize(value).map_err(|error| {
        let inner = error.path().to_string();
        let path = match (base, inner.as_str()) {
            (_, "." | "?") => base.to_owned(),
            ("", _) => inner,
            _ => format!("{base}.{inner}"),
        };
        let message = error.into_inner().to_string();
        // A table that is read in several parts names the key in its words.
        match message.split_once(": ") {
            Some((key, rest)) if keys.iter().any(|known| key.split(['.', '[']).next() == Some(known)) => {
                misplaced(tree, base, &member(&path, key), rest, siblings)
            }
            _ => misplaced(tree, base, &path, &message, siblings),
        }
    })
}

/// The same for the whole file, and on behind keys and words that are not known: each of them is a problem
/// for the list. What is wrong in another way ends the list, because nobody knows what was meant.
pub(crate) fn read_whole<T: DeserializeOwned>(
    tree: &Tree,
    problems: &mut Vec<String>,
) -> Result<T, ConfigError> {
    let mut value = tree.value.clone();
    loop {
        let error = match serde_path_to_error::deserialize(value.clone()) {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        let (path, message) = (error.path().to_string(), error.into_inner().to_string());
        let path = if path == "." || path == "?" { String::new() } else { path };
        problems.push(explain(tree, &path, &message, &[]).to_string());
        let unknown = match quoted(&message).first() {
            Some(key) if message.starts_with("unknown field") => member(parent(&path, key), key),
            _ if message.starts_with("unknown variant") => path,
            _ => String::new(),
        };
        if unknown.is_empty() || !drop_at(&mut value, &unknown) {
            return Err(ConfigError::new(problems.join("\n")));
        }
    }
}

/// Takes a value out of a table; `false` if it is not there.
fn drop_at(value: &mut Value, path: &str) -> bool {
    let mut steps: Vec<&str> = path.split(['.', '[']).map(|step| step.trim_end_matches(']')).collect();
    let last = steps.pop().unwrap_or_default();
    let found = steps.into_iter().try_fold(value, |value, step| match value {
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        other => other.get_mut(step),
    });
    found.and_then(Value::as_object_mut).is_some_and(|table| table.remove(last).is_some())
}

/// The table that an unknown key is in: serde may or may not have stepped into the key already.
fn parent<'a>(path: &'a str, unknown: &str) -> &'a str {
    path.strip_suffix(unknown).map_or(path, |parent| parent.trim_end_matches('.'))
}

/// What is wrong in a table with siblings, or in one below it. Below it their keys are unknown, too.
fn misplaced(tree: &Tree, base: &str, path: &str, message: &str, siblings: &[&str]) -> ConfigError {
    let unknown = quoted(message).first().copied().filter(|_| message.starts_with("unknown field"));
    match unknown.filter(|key| parent(path, key) != base) {
        None => explain(tree, path, message, siblings),
        Some(key) if siblings.contains(&key) => {
            let full = member(parent(path, key), key);
            let (place, shown, base) = (tree.place(&full), tree.shown(&full), tree.shown(base));
            ConfigError::new(format!("{place}: unknown key `{shown}`: `{key}` belongs to [{base}]"))
        }
        Some(_) => explain(tree, path, message, &[]),
    }
}

fn explain(tree: &Tree, path: &str, message: &str, siblings: &[&str]) -> ConfigError {
    let names = quoted(message);
    if message.starts_with("unknown field") && !names.is_empty() {
        return unknown_key(tree, path, &names, siblings);
    }
    let (place, shown) = (tree.place(path), tree.shown(path));
    if message.starts_with("unknown variant") && !names.is_empty() {
        let hint = hint(names[0], &names[1..]);
        return ConfigError::new(format!("{place}: `{shown}` cannot be `{}`, {hint}", names[0]));
    }
    if message.starts_with("missing field") && !names.is_empty() {
        let shown = tree.shown(&member(path, names[0]));
        return ConfigError::new(format!("{place}: `{shown}` is missing"));
    }
    if path.rsplit(['.', ']']).next().is_some_and(is_secret) {
        return ConfigError::new(format!("{place}: `{shown}` must be a string"));
    }
    if message.starts_with("invalid type: map, expected a sequence") {
        return ConfigError::new(format!(
            "{place}: `{shown}` is a list: write [[{shown}]] instead of [{shown}]"
        ));
    }
    match wrong_type(message) {
        Some(words) => ConfigError::new(format!("{place}: `{shown}` {words}")),
        None => ConfigError::new(format!("{place}: `{shown}`: {message}")),
    }
}

/// "invalid type: string \"soon\", expected u64" in words of TOML. The value is left out: it may be a secret.
fn wrong_type(message: &str) -> Option<String> {
    let (given, expected) =
        message.strip_prefix("invalid ")?.split_once(": ")?.1.rsplit_once(", expected ")?;
    let given = given.split(' ').next().unwrap_or_default();
    let whole = |max: u64| format!("a whole number from 0 to {max}");
    let expected = match expected {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" if given == "integer" => "a whole number, 0 or above".to_owned(),
        "u64" | "usize" | "i64" | "i32" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list of strings".to_owned(),
        "a map" => "a table".to_owned(),
        words if words.starts_with("struct ") => "a table".to_owned(),
        words if words.contains("string") || words.contains("variant") || words.starts_with("enum ") => {
            "a string".to_owned()
        }
        words => words.to_owned(),
    };
    let given = match given {
        "integer" if expected.starts_with("a whole number") => return Some(format!("must be {expected}")),
        "string" => "a string",
        "integer" => "a whole number",
        "floating" => "a number with a fraction",
        "boolean" => "true or false",
        "sequence" => "a list",
        "map" => "a table",
        _ => return Some(format!("must be {expected}")),
    };
    Some(format!("must be {expected}, not {given}"))
}

fn unknown_key(tree: &Tree, path: &str, names: &[&str], siblings: &[&str]) -> ConfigError {
    let unknown = names[0];
    let full = member(parent(path, unknown), unknown);
    let known: Vec<&str> = names[1..].iter().chain(siblings).copied().collect();
    let (place, shown) = (tree.place(&full), tree.shown(&full));
    ConfigError::new(format!("{place}: unknown key `{shown}`, {}", hint(unknown, &known)))
}

fn hint(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "there are no keys here".to_owned(),
        None => format!("known are: {}", known.join(", ")),
    }
}

/// The known name that a slip of the finger turns into this one.
pub(crate) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = |name: &&&str| {
        let allowed = 1 + name.len().min(wrong.len()) / 4;
        strsim::damerau_levenshtein(wrong, name) <= allowed || strsim::jaro_winkler(wrong, name) > 0.9
    };
    known.iter().filter(near).min_by_key(|name| strsim::damerau_levenshtein(wrong, name)).copied()
}

/// The names between backticks.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}
