//! What must be at the brokers, what is there, and the difference between the two.
//!
//! ```text
//! topology.toml ─► file.rs ─► WantedResource ─┐
//!                                     ├─► plan (pure) ─► TopologyPlan ─► BrokerAdmin.apply, in order
//! the broker ──► BrokerAdmin.look ────┘                     │
//!                                                           └─ shown to people, or written to a file
//! ```
//!
//! There is no state of our own. What the file does not name is somebody else's: it is counted and never
//! touched. Inside a resource only the settings that the file names are ours. A state file was refused: it
//! drifts from the cluster, and then a plan is wrong in a way that nobody can see.
//!
//! A difference has a [`Risk`]. Nothing that destroys data and nothing that hurts is done unless the command
//! line names the resource. What cannot be changed in place is blocked: nothing is ever made anew, because
//! that is to remove it.

mod broker;
mod file;
mod json;
mod name;
mod order;
mod plan;
#[cfg(feature = "broker")]
#[cfg_attr(not(feature = "all"), allow(dead_code))]
mod read_back;
#[cfg(test)]
mod tests;
mod units;
mod words;

#[cfg(feature = "broker")]
#[cfg_attr(not(feature = "all"), allow(unused_imports))]
pub(crate) use self::{
    json::{json_text, json_value},
    read_back::{Sent, read_back},
    words::binding_name,
};
pub use broker::{BrokerTable, BrokerTopology, FileProblem, resolve};
pub use file::TopologyFile;
pub use name::ResourceName;
pub use order::in_order;
pub use plan::{Allowed, Missing, PlanRequest, TopologyPlan, plan};
pub use units::{Unit, duration_ms, in_words, size_bytes};

use crate::Secret;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A user with a password, at Kafka.
    User,
    /// A topic, at Kafka.
    Topic,
    /// One right of one principal, at Kafka. Its name is the principal's.
    Acl,
    /// A stream, at JetStream.
    Stream,
    /// An exchange, at RabbitMQ.
    Exchange,
    /// A queue, at RabbitMQ.
    Queue,
    /// A binding of a queue to an exchange, at RabbitMQ.
    Binding,
}

impl Kind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] =
        [Self::Topic, Self::User, Self::Acl, Self::Stream, Self::Exchange, Self::Queue, Self::Binding];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Topic => "topic",
            Self::Acl => "acl",
            Self::Stream => "stream",
            Self::Exchange => "exchange",
            Self::Queue => "queue",
            Self::Binding => "binding",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Settings by their names, each with its value as the broker writes it.
pub type Settings = BTreeMap<String, String>;

/// One topic, right, user, stream, exchange, queue or binding, as it is at a broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// What it is.
    pub kind: Kind,
    /// Its name; the principal's for a right.
    pub name: String,
    /// Its settings.
    pub settings: Settings,
    /// Those of them that nobody has set: the broker's own defaults.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub defaults: BTreeSet<String>,
    /// It is the broker's own, and no file should name it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
}

impl Resource {
    /// A resource with these settings.
    pub fn new(kind: Kind, name: impl Into<String>, settings: Settings) -> Self {
        Self { kind, name: name.into(), settings, defaults: BTreeSet::new(), internal: false }
    }

    /// What tells it from all others of its broker. A right is all that is written in it.
    #[must_use]
    pub fn identity(&self) -> (Kind, &str, Option<&Settings>) {
        (self.kind, &self.name, (self.kind == Kind::Acl).then_some(&self.settings))
    }

    /// The name that a flag of the command line takes.
    #[must_use]
    pub fn flag_name(&self) -> ResourceName {
        ResourceName { kind: self.kind, name: self.name.clone() }
    }
}

/// A resource as a file wants it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WantedResource {
    /// What it is.
    pub kind: Kind,
    /// Its name; the principal's for a right.
    pub name: String,
    /// The settings that the file names. None is the broker's own default.
    pub settings: BTreeMap<String, Option<String>>,
}

impl WantedResource {
    /// As it would be made.
    #[must_use]
    pub fn resource(&self) -> Resource {
        let set = |(name, value): (&String, &Option<String>)| Some((name.clone(), value.clone()?));
        Resource::new(self.kind, self.name.clone(), self.settings.iter().filter_map(set).collect())
    }
}

/// The setting of a user that stands for its password, and its values: no broker shows a password.
pub const PASSWORD: &str = "password";
/// The password is the one of the file.
pub const PASSWORD_AS_WANTED: &str = "as in the file";
/// It is another one.
pub const PASSWORD_OTHER: &str = "another one";
/// Nobody could try it.
pub const PASSWORD_NOT_COMPARED: &str = "not compared";

/// The password of a user, which no broker shows and no plan holds.
#[derive(Debug, Clone)]
pub struct WantedSecret {
    /// The user.
    pub user: String,
    /// How it is kept, by the setting that names it.
    pub mechanism: String,
    /// The password.
    pub password: Secret,
}

/// How bad a difference is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "risk", content = "why", rename_all = "lowercase")]
pub enum Risk {
    /// Nobody is hurt.
    Plain,
    /// It works, and hurts.
    Hazard(String),
    /// It deletes data, or what somebody needs.
    Destroys(String),
    /// It cannot be done in place. The text says what to do by hand.
    Blocked(String),
}

impl Risk {
    /// Why it is no plain one.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Plain => None,
            Self::Hazard(why) | Self::Destroys(why) | Self::Blocked(why) => Some(why),
        }
    }
}

/// What is to be done about a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeAct {
    /// It is not there.
    Add,
    /// Some of its settings are others.
    Change,
    /// It is there, and should not be.
    Remove,
}

/// One setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// Its name.
    pub name: String,
    /// Its value now.
    pub was: Option<String>,
    /// Its value afterwards; none is the broker's default.
    pub to: Option<String>,
    /// How bad that is.
    #[serde(flatten)]
    pub risk: Risk,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyChange {
    /// What is to be done.
    pub act: ChangeAct,
    /// The resource: as it is to be made, or as it is now.
    pub resource: Resource,
    /// The settings that differ, where it is changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingChange>,
    /// How bad the worst of it is.
    #[serde(flatten)]
    pub risk: Risk,
}

/// The rules of a kind of broker. They are pure: the plan asks them about each difference.
pub trait Rules {
    /// Whether two values of a setting mean the same.
    fn is_same(&self, kind: Kind, setting: &str, one: &str, other: &str) -> bool {
        let _ = (kind, setting);
        one == other
    }

    /// How bad it is to make this resource at this cluster.
    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        let _ = (resource, look);
        Risk::Plain
    }

    /// How bad it is to give a setting another value. `was` is the whole resource as it is now.
    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk;

    /// How bad it is to remove it.
    fn risk_of_removing(&self, resource: &Resource) -> Risk;
}

/// Why a broker has no place in the file.
pub(crate) fn needs_nothing(kind: &str) -> String {
    match kind {
        "redis" => {
            "Redis needs nothing: a stream is made by its first entry, a group by the consumer that owns it"
        }
        _ => "there is nothing to set up at a broker of this type",
    }
    .to_owned()
}

/// What a look at a broker is about.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The resources whose settings are needed.
    pub named: BTreeSet<ResourceName>,
    /// Whether the settings of all others are needed, too.
    pub everything: bool,
    /// Kinds that are looked at.
    pub kinds: BTreeSet<Kind>,
    /// Passwords of users, to be tried.
    pub secrets: Vec<WantedSecret>,
}

/// What a look has found.
#[derive(Debug, Clone, Default)]
pub struct TopologyLook {
    /// Which cluster answered, by its own name.
    pub cluster: String,
    /// The cluster in a few words, for people.
    pub words: String,
    /// How many servers it has, where that is known.
    pub servers: Option<usize>,
    /// What is there.
    pub resources: Vec<Resource>,
    /// What could not be seen, and why.
    pub unseen: Vec<Unseen>,
    /// What could not be compared, and why.
    pub notes: Vec<String>,
}

impl TopologyLook {
    /// Whether this resource would have been seen.
    #[must_use]
    pub fn sees(&self, kind: Kind, name: &str) -> bool {
        let hides =
            |unseen: &Unseen| unseen.kind == kind && unseen.name.as_deref().is_none_or(|it| it == name);
        !self.unseen.iter().any(hides)
    }
}

/// Something that a look could not see. Nothing is known about it, and nothing is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// What it is.
    pub kind: Kind,
    /// Which one; all of them, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it could not be seen.
    pub why: String,
}

/// Why a question or a change failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdminFailure {
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// It was refused: a right is missing, or a value is wrong. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// It was sent, and nobody knows what came of it.
    #[error("{0}")]
    Unknown(String),
}

/// A broker as its administrator sees it.
#[async_trait]
pub trait BrokerAdmin: Rules + Send + Sync {
    /// What is there. A missing right for one kind hides that kind alone.
    async fn look(&self, scope: &Scope) -> Result<TopologyLook, AdminFailure>;

    /// Asks the broker whether it would take a change, without making it. `Ok(false)`: it cannot be asked.
    async fn validate(&self, change: &TopologyChange) -> Result<bool, AdminFailure>;

    /// Makes changes of one kind, all at once. Each is harmless when repeated, and is done when a look shows
    /// it. One answer for each.
    async fn apply(
        &self,
        changes: &[TopologyChange],
        secrets: &[WantedSecret],
    ) -> Vec<Result<(), AdminFailure>>;

    /// Ends it. To be called before the process ends.
    async fn end(self: Box<Self>) {}
}
