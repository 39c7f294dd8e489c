//! Headers: names and values, in order, and their stored form.

use serde::de::{MapAccess, Visitor};
use std::collections::HashMap;

/// Up to here looking through all names is quicker than an index of them. Beyond it a stranger's thousands of
/// headers would cost the square of their number (F86).
const FEW: usize = 32;

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

    /// These pairs, as if each had been [`set`](Self::set).
    fn of(pairs: Vec<(String, String)>) -> Self {
        let mut headers = Self(Vec::with_capacity(pairs.len()));
        if pairs.len() <= FEW {
            pairs.into_iter().for_each(|(name, value)| headers.set(name, value));
            return headers;
        }
        let mut places = HashMap::with_capacity(pairs.len());
        for (name, value) in pairs {
            match places.get(&name) {
                Some(place) => headers.0[*place] = (name, value),
                None => {
                    places.insert(name.clone(), headers.0.len());
                    headers.0.push((name, value));
                }
            }
        }
        headers
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
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry::<String, String>()? {
                    pairs.push(pair);
                }
                Ok(Headers::of(pairs))
            }
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        serde::Deserializer::deserialize_map(&mut reader, Pairs)
            .map_err(|error| format!("headers are not an object of strings: {error}"))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self::of(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
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

        /// With few of them and with many: the last value of a name, at its first place.
        #[test]
        fn many_headers_are_what_setting_each_of_them_makes(names in prop::collection::vec(0..40, 0..99)) {
            let pairs = || names.iter().enumerate().map(|(at, name)| (format!("h{name}"), at.to_string()));
            let mut one_by_one = Headers::new();
            pairs().for_each(|(name, value)| one_by_one.set(name, value));
            prop_assert_eq!(pairs().collect::<Headers>(), one_by_one);
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
