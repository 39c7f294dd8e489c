//! Looks at one outbox or all: state, events, what waits, what is dead.

mod config;
mod dead;
mod deferred;
mod events;
mod gateway;
mod outboxes;

pub(crate) use config::config;
pub(crate) use dead::{LetterCausesQuery, LettersQuery, ShownLetter, dead_causes, dead_list, dead_show};
pub(crate) use deferred::{MessageCausesQuery, MessagesQuery, deferred_causes, deferred_list};
pub(crate) use events::{check_seen, event, events, payload};
pub(crate) use gateway::gateway;
pub(crate) use outboxes::{doctor, me, openapi, outbox, outboxes, shown_outbox};

use crate::http::ApiProblem;
use posthaste::admin::fingerprint_of_text;

/// The number of a cause, as a query says it.
pub(crate) fn fingerprint(text: Option<&str>) -> Result<Option<i64>, ApiProblem> {
    let Some(text) = text else { return Ok(None) };
    fingerprint_of_text(text).map(Some).ok_or_else(|| {
        let why = format!("fingerprint = {text:?} is no cause's number");
        ApiProblem::bad("api.bad_query", why, "Give up to 16 hex digits, as `causes` shows them.")
    })
}
