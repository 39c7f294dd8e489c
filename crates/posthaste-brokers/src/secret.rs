//! A secret that does not print.
//!
//! Configuration is logged, shown by `doctor` and served by the admin API. A newtype makes leaking a
//! password an act (`expose`) instead of an accident. Memory is not wiped: the broker's client copies the
//! value anyway, and a process that can be read has lost more than this.

use crate::BuildError;
use serde::{Deserialize, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// A text that shows as `***` wherever it is printed or serialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_it() {
        let secret: Secret = serde_json::from_str("\"hunter2\"").expect("a string");
        assert_eq!(secret.expose(), "hunter2");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(serde_json::to_string(&secret).expect("serializes"), "\"***\"");
    }
}
