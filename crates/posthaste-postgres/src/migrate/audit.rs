//! Where the audit goes: a topic of the configuration, written into the database.
//!
//! The trigger on the audit asks the function `audit_topic()`, so that whoever acts, with a command, in psql
//! or by a declared retention, is heard of in the act's own transaction. Like the limits it is a function and
//! no row: reading it costs nothing, and whoever may write rows cannot send the audit elsewhere.

use crate::error::store_error;
use crate::session::{Session, Sessions, SqlResult};
use posthaste::store::StoreError;
use serde::Serialize;

/// The version that brought it.
pub(super) const SINCE: i32 = 4;

/// The audit goes elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicChange {
    /// The topic before; `None`: it went nowhere.
    pub before: Option<String>,
    /// The topic now.
    pub now: Option<String>,
}

/// What became of the topic.
pub(super) enum Set {
    /// It was there already.
    Same,
    /// It is another one now.
    Changed(TopicChange),
    /// The function belongs to somebody else, who has to run this.
    ByHand(String),
}

/// The statement that sets it: a literal within the literal of the body. The schema's name goes in before the
/// topic, which may look like one.
fn statement(sessions: &Sessions, topic: Option<&str>) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let body = quoted(&format!("select {}::text", topic.map_or_else(|| "null".to_owned(), quoted)));
    let head = sessions.sql("create or replace function posthaste.audit_topic() returns text");
    format!("{head} language sql stable parallel safe as {body}")
}

/// The topic in the database.
pub(crate) async fn topic(sessions: &Sessions, session: &mut Session) -> SqlResult<Option<String>> {
    let rows = session.query_alone(&sessions.sql("select posthaste.audit_topic()"), &[]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Brings the topic in the database up to date.
pub(super) async fn set_topic(sessions: &Sessions, session: &mut Session) -> Result<Set, StoreError> {
    let now = sessions.config().audit_topic.clone();
    let before = topic(sessions, session).await.map_err(store_error)?;
    if before == now {
        return Ok(Set::Same);
    }
    let statement = statement(sessions, now.as_deref());
    Ok(match super::attempt(session, &statement).await? {
        true => Set::Changed(TopicChange { before, now }),
        false => Set::ByHand(statement),
    })
}
