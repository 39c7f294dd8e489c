//! Headers: names and values, in order, and their stored form.

use serde::de::{MapAccess, Visitor};

/// Header names and values, in the order they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header, replacing one of the same name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Name and value pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The stored form: a JSON object of strings, or `None` when there are no headers.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let map: serde_json::Map<String, serde_json::Value> =
            self.0.iter().map(|(n, v)| (n.clone(), v.clone().into())).collect();
        Some(serde_json::Value::Object(map).to_string())
    }

    /// Reads the stored form. Anything but an object of strings is a defect of that event, told in words.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Headers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object whose values are strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Headers::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    headers.set(name, value);
                }
                Ok(headers)
            }
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        serde::Deserializer::deserialize_map(&mut reader, Pairs)
            .map_err(|error| format!("headers are not an object of strings: {error}"))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.set(name, value);
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn any_headers_survive_their_stored_form(pairs: BTreeMap<String, String>) {
            let headers: Headers = pairs.into_iter().collect();
            let stored = headers.to_json();
            prop_assert_eq!(stored.is_none(), headers.is_empty());
            prop_assert_eq!(Headers::from_json(stored.as_deref().unwrap_or("{}").as_bytes()), Ok(headers));
        }

        /// A row may hold anything; what is understood of it can be stored again.
        #[test]
        fn any_bytes_are_headers_or_refused(text in "[\\[{}\":,a\\\\0\\]]{0,24}", tail: Vec<u8>) {
            for bytes in [text.as_bytes(), &tail] {
                if let Ok(headers) = Headers::from_json(bytes) {
                    let stored = headers.to_json().unwrap_or_else(|| "{}".to_owned());
                    prop_assert_eq!(Headers::from_json(stored.as_bytes()).map(|read| read.len()), Ok(headers.len()));
                }
            }
        }
    }

    #[test]
    fn headers_survive_their_stored_form_and_refuse_anything_else() {
        let headers: Headers = [("traceparent", "00-ab"), ("x", "\"q\"")].into_iter().collect();
        let json = headers.to_json().unwrap_or_default();
        assert_eq!(Headers::from_json(json.as_bytes()), Ok(headers));
        for bad in ["[1]", "3", "{\"a\":1}", "{", "\"s\""] {
            assert!(Headers::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
