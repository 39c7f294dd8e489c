//! `KIND:NAME`, as flags take it.

use super::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A resource by its name. A flag names one, and takes no pattern: a `*` is a letter of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ResourceName {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

impl ResourceName {
    /// A name of this kind.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

impl From<ResourceName> for String {
    fn from(name: ResourceName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for ResourceName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for ResourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = || Kind::ALL.map(Kind::as_str).join(", ");
        let Some((kind, name)) = text.split_once(':').filter(|(_, name)| !name.is_empty()) else {
            return Err(format!("must be KIND:NAME, such as topic:orders; kinds are {}", kinds()));
        };
        let known = Kind::ALL.into_iter().find(|known| known.as_str() == kind);
        let kind = known.ok_or_else(|| format!("there is no kind `{kind}`; there are {}", kinds()))?;
        Ok(Self::new(kind, name))
    }
}
