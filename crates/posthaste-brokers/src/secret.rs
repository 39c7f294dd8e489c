//! Secrets that do not print, and URLs that may hold some.
//!
//! Configuration is logged, shown by `doctor` and served by the admin API. A newtype makes leaking a
//! password an act (`expose`) instead of an accident. Memory is not wiped: the broker's client copies the
//! value anyway, and a process that can be read has lost more than this.

use crate::BuildError;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// A text that shows as `***` wherever it is printed or serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// serde's own words about a wrong type quote the value, and that may be a password without quotes.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer) {
            Ok(serde_json::Value::String(text)) => Ok(Self(text)),
            _ => Err(D::Error::custom("must be a text")),
        }
    }
}

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the broker's client and nobody else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A secret that is written down or lies in a file. A file's trailing line break is no part of it.
    pub(crate) fn read(
        text: Option<&Self>,
        file: Option<&PathBuf>,
        option: &'static str,
    ) -> Result<Option<Self>, BuildError> {
        match (text, file) {
            (_, None) => Ok(text.cloned()),
            (None, Some(path)) => read_text(option, path).map(|text| Some(Self(text.trim_end().to_owned()))),
            (Some(_), Some(_)) => Err(BuildError::option(
                option,
                "the secret is given twice, in the configuration and as a file",
            )),
        }
    }
}

/// A text file that an option names.
pub(crate) fn read_text(option: &'static str, path: &Path) -> Result<String, BuildError> {
    std::fs::read_to_string(path).map_err(|error| BuildError::file(option, path, error))
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// Addresses of servers: a string, or a list of strings. A URL is printed in logs, findings and errors, so
/// its credentials are left out there. Whoever uses it should refuse credentials altogether.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct Urls(Vec<String>);

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "must be a string, or a list of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Urls {
    fn from(given: OneOrMany) -> Self {
        match given {
            OneOrMany::One(url) => Self(vec![url]),
            OneOrMany::Many(urls) => Self(urls),
        }
    }
}

impl Urls {
    /// One URL, or several with commas between them.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.split(',').map(|url| url.trim().to_owned()).collect())
    }

    /// The URLs as they were given.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    fn redacted(&self) -> Vec<String> {
        let redact = |url: &String| match url.rsplit_once('@') {
            Some((before, host)) => {
                let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
                format!("{}***@{host}", scheme.unwrap_or_default())
            }
            None => url.clone(),
        };
        self.0.iter().map(redact).collect()
    }
}

impl std::fmt::Display for Urls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted().join(", "))
    }
}

impl std::fmt::Debug for Urls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.redacted(), f)
    }
}

impl Serialize for Urls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.redacted().as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_urls_credentials_are_left_out() {
        let urls: Urls = serde_json::from_str(r#"["nats://u:p@a:1", "u:p@b", "nats://c"]"#).expect("valid");
        let shown = "nats://***@a:1, ***@b, nats://c";
        assert_eq!(urls.to_string(), shown);
        assert_eq!(format!("{urls:?}").replace('"', ""), format!("[{shown}]"));
        assert_eq!(serde_json::to_string(&Urls::new("nats://u@h")).expect("serializes"), "\"nats://***@h\"");
    }

    #[test]
    fn a_secret_that_is_no_text_is_not_quoted() {
        for wrong in ["12345", "[12345]", "true"] {
            let error = serde_json::from_str::<Secret>(wrong).expect_err("no text").to_string();
            assert!(error.contains("must be a text") && !error.contains("12345"), "{error}");
        }
    }

    #[test]
    fn nothing_prints_it() {
        let secret: Secret = serde_json::from_str("\"hunter2\"").expect("a string");
        assert_eq!(secret.expose(), "hunter2");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(serde_json::to_string(&secret).expect("serializes"), "\"***\"");
    }
}
