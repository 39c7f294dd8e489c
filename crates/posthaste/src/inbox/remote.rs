//! Handlers in another process: whatever answers a request.
//!
//! Such a handler cannot take part in the transaction of a mark. So it is asked first, without one, and the
//! mark is written when it has answered. Who keeps the marks decides what is promised ([`MarkedBy`]).
//!
//! Refused: a request inside of the open transaction. It would pin a connection of the database for as long
//! as somebody else likes, and a request that times out breaks the promise all the same.

use super::failure::Failure;
use super::message::Message;
use crate::event::Event;
use async_trait::async_trait;
use std::time::Duration;

/// Who keeps the marks of messages that are handled outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MarkedBy {
    /// We do, after the answer, together with the events of the answer: effects happen at least once, the
    /// events once.
    #[default]
    Posthaste,
    /// The application does, by `admit` in its own transaction: its effects happen once.
    App,
}

/// A handler in another process.
#[async_trait]
pub trait RemoteHandler: Send + Sync + 'static {
    /// Asks it to handle this message, and answers with the events that follow from it. It ends within the
    /// time that is given. The failure says whose fault it was: nobody here knows the database's errors.
    async fn call(&self, message: &Message<'_>, within: Duration) -> Result<Vec<Event>, Failure>;

    /// Requests at once.
    fn calls_max(&self) -> usize;
}
