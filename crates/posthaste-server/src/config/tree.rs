//! The configuration as a tree of plain values that remembers where each of them came from.
//!
//! Three layers meet here: the file, the environment, the flags. They are merged as plain values and read
//! into types once, at the end, so that every layer obeys the same rules and gets the same messages. The
//! price is a map from paths to lines, which a typed parse of the file alone would not need; the gain is
//! that "line 7 of posthaste.toml" and "environment variable POSTHASTE_RELAY__POLL_MIN_MS" come from one
//! place.

use super::problem::ConfigError;
use crate::lines::Lines;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

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
            let line = error.span().map(|span| Lines::of(text).at(span.start));
            let place = line.map_or_else(String::new, |line| format!(" line {line}"));
            let why = match error.span().filter(|_| error.message() == DUPLICATE) {
                Some(span) => written_twice(text, span),
                None => format!("this is not TOML: {}", error.message()),
            };
            ConfigError::new(format!("{}{place}: {why}", path.display()))
        };
        let spanned = DeTable::parse(text).map_err(wrong)?;
        let value: Value = toml::from_str(text).map_err(wrong)?;
        let mut tree = Self { value, file: Some(path.to_owned()), ..Self::empty() };
        tree.single_outbox = !tree.value["outbox"].is_array();
        let lines = Lines::of(text).of_keys(spanned.get_ref());
        tree.origins = lines.into_iter().map(|(path, line)| (path, ValueOrigin::Line(line))).collect();
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

    /// Remembers where a value came from, and forgets where what it replaced did.
    pub(crate) fn note(&mut self, path: &str, origin: ValueOrigin) {
        let is_below =
            |known: &str| known.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '[']));
        self.origins.retain(|known, _| !is_below(known));
        self.origins.insert(path.to_owned(), origin);
    }

    /// The same for a table that a value brought with it, unless it was there before.
    pub(crate) fn note_new(&mut self, path: &str, origin: ValueOrigin) {
        self.origins.entry(path.to_owned()).or_insert(origin);
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

    /// Of the keys of a table that a text names, the one to blame. The environment and flags go over the
    /// file, so they go first here, too.
    pub(crate) fn blamed(&self, table: &str, text: &str) -> String {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: Vec<String> = words.map(|word| member(table, word)).collect();
        let mut given = named.iter().filter(|path| self.origins.contains_key(*path));
        let found = given.clone().find(|path| self.is_over_file(path)).or_else(|| given.next());
        found.map_or_else(|| table.to_owned(), Clone::clone)
    }

    /// Whether a value comes from the environment or from a flag.
    pub(crate) fn is_over_file(&self, path: &str) -> bool {
        matches!(self.origins.get(path), Some(ValueOrigin::Env(_) | ValueOrigin::Flag(_)))
    }
}

/// The path of a member.
pub(crate) fn member(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// What the parser says of a key that is there already.
const DUPLICATE: &str = "duplicate key";

/// Which key it is, and where it stands first. The second one is given another name: so both are found.
fn written_twice(text: &str, second: std::ops::Range<usize>) -> String {
    const RENAMED: &str = "written-twice";
    let key = text[second.clone()].trim_matches(['"', '\'']);
    let renamed = [&text[..second.start], RENAMED, &text[second.end..]].concat();
    let lines = Lines::of(&renamed).of_keys(DeTable::parse_recoverable(&renamed).0.get_ref());
    let path = lines.keys().find_map(|path| path.strip_suffix(RENAMED)).unwrap_or_default();
    let path = format!("{path}{key}");
    match lines.get(&path) {
        Some(first) => {
            let shown = path.replacen("outbox[0]", "outbox", 1);
            format!("`{shown}` is written twice, first on line {first}: keep one of them")
        }
        _ => format!("`{key}` is written twice: keep one of them"),
    }
}

#[cfg(test)]
mod tests;
