//! Schemas: whether a payload is what was agreed on.
//!
//! A route asks before it publishes, a consumer before its handler runs. Neither knows what a schema is: they
//! ask a [`Validator`], and whoever assembles them brings one. No crate for schemas is linked here.
//!
//! Checking is split in two, because one of its callers cannot wait. [`Validator::check`] computes, from
//! what is in memory. [`Validator::prepare`] may wait for something outside, a registry of schemas for
//! example. A consumer calls both, a route the first alone. Refused: one `async` check. A relay's lane makes
//! messages of a whole page in one go, and a page that waits for somebody outside holds up its sink.
//!
//! **A tombstone is not asked about**: it has no payload that could break a schema, and whoever compacts a
//! topic needs it to pass. A payload of no bytes is a payload, and hardly one that any schema takes.

use crate::event::Event;
use crate::inbox::failure::{Failure, HandlerError, Wish};
use crate::inbox::filter::Filter;
use crate::inbox::message::Message;
use crate::inbox::remote::RemoteHandler;
use crate::source::Delivery;
use async_trait::async_trait;
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The code of a check that nobody can make, because something outside is away.
pub const UNAVAILABLE: &str = "schema.unavailable";

/// Whether a payload keeps a schema.
#[async_trait]
pub trait Validator: Debug + Send + Sync + 'static {
    /// Checks a payload by what is in memory. It neither waits nor panics, whatever the bytes are.
    fn check(&self, payload: &[u8]) -> Checked;

    /// Fetches what the check of this payload needs, if that is not in memory yet. It ends within some
    /// seconds.
    async fn prepare(&self, _payload: &[u8]) -> Result<(), Away> {
        Ok(())
    }
}

/// What became of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// It keeps the schema.
    Fine,
    /// It never will.
    Poison(Violation),
    /// Nobody can say while something outside is away.
    Unavailable(Away),
}

/// Why a payload is poison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Stable code.
    pub code: Cow<'static, str>,
    /// Where and why, for people. It holds names of the payload's members, and none of its values.
    pub message: String,
}

impl Violation {
    /// With this code, and these words.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// Something outside that a check needs and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// Its name.
    pub dependency: Arc<str>,
    /// Why.
    pub why: String,
}

/// What a route checks payloads with. Two of them are the same if they are one and the same validator.
#[derive(Debug, Clone)]
pub struct SharedValidator(pub Arc<dyn Validator>);

impl PartialEq for SharedValidator {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The schemas of a consumer's messages: of those that take a message, the first applies. A message that none
/// takes is not checked.
#[derive(Debug, Clone, Default)]
pub struct SchemaChecks {
    schemas: Vec<(Filter, Arc<dyn Validator>)>,
}

impl SchemaChecks {
    /// Of these, the first that takes a message.
    #[must_use]
    pub fn new(schemas: Vec<(Filter, Arc<dyn Validator>)>) -> Self {
        Self { schemas }
    }

    /// Whether there is nothing to check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.schemas.is_empty()
    }

    /// Checks a message, and fetches first what that needs. The error is what a handler would answer: poison
    /// is dead at once, with the disposition `schema`, and what is away is a dependency.
    pub async fn pass(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let Some(payload) = &delivery.message.payload else { return Ok(()) };
        let mut schemas = self.schemas.iter();
        let Some((_, validator)) = schemas.find(|(filter, _)| filter.takes_delivery(delivery)) else {
            return Ok(());
        };
        let checked = match validator.prepare(payload).await {
            Ok(()) => validator.check(payload),
            Err(away) => Checked::Unavailable(away),
        };
        let (wish, code, message) = match checked {
            Checked::Fine => return Ok(()),
            Checked::Poison(violation) => (Wish::Invalid, violation.code, violation.message),
            Checked::Unavailable(away) => {
                (Wish::Unavailable(away.dependency), Cow::Borrowed(UNAVAILABLE), away.why)
            }
        };
        Err(HandlerError { wish, code, message, error: None })
    }
}

/// A handler in another process behind schemas: it is not asked about what breaks one.
pub struct CheckedRemote {
    checks: Arc<SchemaChecks>,
    inner: Arc<dyn RemoteHandler>,
}

impl CheckedRemote {
    /// The handler behind these schemas, or the handler itself if there are none.
    #[must_use]
    pub fn around(inner: Arc<dyn RemoteHandler>, checks: &Arc<SchemaChecks>) -> Arc<dyn RemoteHandler> {
        match checks.is_empty() {
            true => inner,
            false => Arc::new(Self { checks: Arc::clone(checks), inner }),
        }
    }
}

#[async_trait]
impl RemoteHandler for CheckedRemote {
    async fn call(&self, message: &Message<'_>, within: Duration) -> Result<Vec<Event>, Failure> {
        let began = Instant::now();
        self.checks.pass(message).await.map_err(Failure::of_handler)?;
        self.inner.call(message, within.saturating_sub(began.elapsed())).await
    }

    fn calls_max(&self) -> usize {
        self.inner.calls_max()
    }
}
