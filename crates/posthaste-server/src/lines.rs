//! On which line of a TOML text each key stands.

use std::collections::HashMap;
use toml::de::{DeTable, DeValue};

/// Where the lines of a text end. A file of many keys is counted once.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of a place, counted from 1.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.0.partition_point(|end| *end < place) + 1
    }

    /// The lines of all keys, by paths like `outbox[0].url`. One table `outbox` is a list of one.
    pub(crate) fn of_keys(&self, table: &DeTable<'_>) -> HashMap<String, usize> {
        let mut found = HashMap::new();
        self.collect(&mut found, "", table);
        found
    }

    fn collect(&self, found: &mut HashMap<String, usize>, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let mut path = crate::config::member(path, key.get_ref());
            found.insert(path.clone(), self.at(key.span().start));
            if path == "outbox" && value.get_ref().is_table() {
                path.push_str("[0]");
            }
            self.collect_value(found, &path, value.get_ref());
        }
    }

    fn collect_value(&self, found: &mut HashMap<String, usize>, path: &str, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => self.collect(found, path, table),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    found.insert(path.clone(), self.at(item.span().start));
                    self.collect_value(found, &path, item.get_ref());
                }
            }
            _ => {}
        }
    }
}
