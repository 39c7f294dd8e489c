//! The configuration as a tree of plain values that remembers where each of them came from.
//!
//! Three layers meet here: the file, the environment, the flags. They are merged as plain values and read
//! into types once, at the end, so that every layer obeys the same rules and gets the same messages. The
//! price is a map from paths to lines, which a typed parse of the file alone would not need; the gain is
//! that "line 7 of posthaste.toml" and "environment variable POSTHASTE_RELAY__POLL_MIN_MS" come from one
//! place.

use super::problem::ConfigError;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Where a value came from.
#[derive(Debug, Clone)]
pub(crate) enum ValueOrigin {
    /// A line of the file, counted from 1.
    Line(usize),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
}

/// Values and their origins. Paths are written `outbox[0].url`.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) value: Value,
    origins: HashMap<String, ValueOrigin>,
    file: Option<PathBuf>,
    /// The file has one `[outbox]` table instead of a list: paths are shown the way they were written.
    single_outbox: bool,
}

impl Tree {
    /// No file at all.
    pub(crate) fn empty() -> Self {
        let value = Value::Object(serde_json::Map::new());
        Self { value, origins: HashMap::new(), file: None, single_outbox: true }
    }

    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::new(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(path, &text)
    }

    /// Reads the text of a file. The message of a syntax error never quotes the line: it may hold a password.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: toml::de::Error| {
            let line =
                error.span().map_or_else(String::new, |span| format!(" line {}", line_of(text, span.start)));
            ConfigError::new(format!("{}{line}: this is not TOML: {}", path.display(), error.message()))
        };
        let spanned = DeTable::parse(text).map_err(wrong)?;
        let value: Value = toml::from_str(text).map_err(wrong)?;
        let mut tree = Self { value, file: Some(path.to_owned()), ..Self::empty() };
        tree.single_outbox = !tree.value["outbox"].is_array();
        collect(&mut tree.origins, text, "", spanned.get_ref());
        tree.list_outbox();
        Ok(tree)
    }

    /// `[outbox]` becomes a list of one.
    fn list_outbox(&mut self) {
        if let Some(outbox) = self.value.get_mut("outbox")
            && outbox.is_object()
        {
            *outbox = Value::Array(vec![outbox.take()]);
        }
    }

    /// Remembers where a value came from.
    pub(crate) fn note(&mut self, path: &str, origin: ValueOrigin) {
        self.origins.insert(path.to_owned(), origin);
    }

    /// Sets a value under a key of the top level, from a flag.
    pub(crate) fn set(&mut self, key: &str, value: Value, origin: ValueOrigin) {
        self.value[key] = value;
        self.note(key, origin);
        self.list_outbox();
    }

    /// The file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// A path the way its author wrote it.
    pub(crate) fn shown(&self, path: &str) -> String {
        if self.single_outbox { path.replacen("outbox[0]", "outbox", 1) } else { path.to_owned() }
    }

    /// Where a path came from, for the beginning of a message; its nearest known parent if need be.
    pub(crate) fn place(&self, path: &str) -> String {
        let file = self.file.as_ref().map_or_else(|| "configuration".to_owned(), |f| f.display().to_string());
        let mut path = path;
        loop {
            match self.origins.get(path) {
                Some(ValueOrigin::Line(line)) => return format!("{file} line {line}"),
                Some(ValueOrigin::Env(name)) => return format!("environment variable {name}"),
                Some(ValueOrigin::Flag(name)) => return format!("flag {name}"),
                None => match path.rfind(['.', '[']) {
                    Some(end) => path = &path[..end],
                    None => return file,
                },
            }
        }
    }
}

/// The path of a member.
pub(crate) fn member(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn collect(origins: &mut HashMap<String, ValueOrigin>, text: &str, path: &str, table: &DeTable<'_>) {
    for (key, value) in table {
        let mut path = member(path, key.get_ref());
        origins.insert(path.clone(), ValueOrigin::Line(line_of(text, key.span().start)));
        if path == "outbox" && value.get_ref().is_table() {
            path.push_str("[0]");
        }
        collect_value(origins, text, &path, value.get_ref());
    }
}

fn collect_value(origins: &mut HashMap<String, ValueOrigin>, text: &str, path: &str, value: &DeValue<'_>) {
    match value {
        DeValue::Table(table) => collect(origins, text, path, table),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                origins.insert(path.clone(), ValueOrigin::Line(line_of(text, item.span().start)));
                collect_value(origins, text, &path, item.get_ref());
            }
        }
        _ => {}
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}
