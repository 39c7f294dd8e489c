//! The connection of a task, and what became of a commit whose answer was lost.
//!
//! It is no one of the pool's: it hears notices, and it is never asked to cancel anything. A cancelled wait
//! for a synchronous standby commits all the same, with a warning.

use super::call::{CallEnd, GroupCall, judge};
use crate::config::PostgresConfig;
use crate::connect::{Connection, open_hearing};
use crate::error::{describe, is_code, store_error};
use crate::session::{Param, SqlResult, params, quote};
use posthaste::store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Row};
use uuid::Uuid;

/// The function of the server that waits for a standby: its warnings say that a commit is not durable there.
/// Messages are translated, this is not.
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";

/// Around a look. What holds the row is a commit under way: it ends soon, or its backend is stuck.
const BEGIN_LOOK: &str = "begin isolation level read committed; set local lock_timeout = '250ms'";

/// How to connect, and what is said there.
pub(super) struct Dial {
    config: PostgresConfig,
    settings: String,
    /// Longest wait for an answer: half of what a request waits, so that half is left for a look.
    answer_max: Duration,
    append: String,
    look: String,
    fenced: String,
    requests: String,
}

impl Dial {
    pub(super) fn new(config: PostgresConfig, append_timeout: Duration) -> Self {
        let schema = format!("{}.", quote(&config.schema));
        let sql = |text: &str| text.replace("posthaste.", &schema);
        // No `synchronous_commit` here: the function raises it, and what is stricter stays.
        // The server gives a call up before we do, and says so: a call without an answer must be looked for.
        // Its time is over before the commit begins, so it cuts no wait for a standby.
        let answer_max = (append_timeout / 2).max(Duration::from_millis(100));
        let settings = format!(
            "set statement_timeout = {}; set idle_in_transaction_session_timeout = '1s'; set jit = off; \
             set default_transaction_isolation = 'read committed'",
            (answer_max * 9 / 10).as_millis()
        );
        Self {
            settings,
            answer_max,
            append: sql(include_str!("../../sql/intake/append.sql")),
            look: sql(include_str!("../../sql/intake/look.sql")),
            fenced: sql(include_str!("../../sql/intake/fenced.sql")),
            requests: sql(include_str!("../../sql/intake/requests.sql")),
            config,
        }
    }
}

/// A connection.
pub(super) struct Link {
    connection: Connection,
    /// The server gave up waiting for a standby.
    warned: Arc<AtomicBool>,
    dial: Arc<Dial>,
}

/// What became of a commit without an answer.
pub(super) enum CommitFate {
    /// It committed.
    Committed,
    /// It did not, and never will.
    Never,
}

impl Link {
    pub(super) async fn open(dial: &Arc<Dial>) -> Result<Self, StoreError> {
        let warned = Arc::new(AtomicBool::new(false));
        let hears = Arc::clone(&warned);
        let on_message = Box::new(move |message: &AsyncMessage| {
            if let AsyncMessage::Notice(notice) = message
                && notice.routine() == Some(STANDBY_WAIT)
            {
                hears.store(true, Ordering::Release);
            }
        });
        let connection = open_hearing(&dial.config, Some(on_message)).await?;
        if !dial.config.pooled {
            let set = connection.client.batch_execute(&dial.settings);
            connection.within(Some(dial.answer_max), set).await.map_err(store_error)?;
        }
        Ok(Self { connection, warned, dial: Arc::clone(dial) })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.client.is_closed()
    }

    async fn query(&self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        self.connection
            .within(Some(self.dial.answer_max), self.connection.client.query_typed(sql, params))
            .await
    }

    async fn batch(&self, sql: &str) -> SqlResult<()> {
        let call = self.connection.client.batch_execute(sql);
        self.connection.within(Some(self.dial.answer_max), call).await
    }

    /// Stores a group.
    pub(super) async fn append(&self, call: &GroupCall<'_>, commit: &Uuid) -> CallEnd {
        let answer = self.query(&self.dial.append, &call.params(commit)).await;
        match judge(answer, self.is_closed()) {
            CallEnd::Done(_) if self.warned.swap(false, Ordering::AcqRel) => {
                CallEnd::Unknown(NOT_ON_STANDBY.to_owned())
            }
            end => end,
        }
    }

    /// Stores a group of nothing: whoever can do that can store.
    pub(super) async fn probe(&self) -> Result<(), String> {
        match self.append(&GroupCall::new(&[]), &Uuid::now_v7()).await {
            CallEnd::Done(_) | CallEnd::Held | CallEnd::Again(_) => Ok(()),
            CallEnd::Refused(why)
            | CallEnd::Away(why)
            | CallEnd::Hopeless(why)
            | CallEnd::Lost(why)
            | CallEnd::Unknown(why) => Err(why),
        }
    }

    /// What became of the group with this commit id. An error: nobody knows yet.
    pub(super) async fn look(&self, commit: &Uuid) -> Result<CommitFate, StoreError> {
        // Of our own making, and known again if this answer is lost too.
        let fence = Uuid::from_u128(!commit.as_u128());
        self.batch(BEGIN_LOOK).await.map_err(store_error)?;
        let looked = self.look_inside(commit, &fence).await;
        let ended = self.batch(if looked.is_ok() { "commit" } else { "rollback" }).await;
        let fate = looked.map_err(|error| self.in_words(error))?;
        ended.map_err(store_error)?;
        if self.warned.swap(false, Ordering::AcqRel) {
            return Err(StoreError::Transient { message: NOT_ON_STANDBY.to_owned(), outcome_known: false });
        }
        Ok(fate)
    }

    async fn look_inside(&self, commit: &Uuid, fence: &Uuid) -> SqlResult<CommitFate> {
        let flush = Uuid::now_v7();
        let params = params![UUID *commit, UUID *fence, UUID flush];
        let is_ours = self.query(&self.dial.look, params).await?.iter().any(|row| row.get(0));
        let is_fenced =
            self.query(&self.dial.fenced, params![UUID * fence]).await?.iter().any(|row| row.get(0));
        Ok(if is_ours || is_fenced { CommitFate::Never } else { CommitFate::Committed })
    }

    fn in_words(&self, error: tokio_postgres::Error) -> StoreError {
        if is_code(&error, &SqlState::LOCK_NOT_AVAILABLE) {
            let message = "the commit is still under way in the database".to_owned();
            return StoreError::Transient { message, outcome_known: false };
        }
        if self.is_closed() {
            return StoreError::Transient { message: describe(&error), outcome_known: false };
        }
        store_error(error)
    }

    /// What is remembered of the keys of a group that has committed.
    pub(super) async fn requests(&self, call: &GroupCall<'_>) -> Result<Vec<Row>, StoreError> {
        if !call.has_keys() {
            return Ok(Vec::new());
        }
        self.query(&self.dial.requests, &call.keys()).await.map_err(store_error)
    }
}

/// What a warning of [`STANDBY_WAIT`] means.
const NOT_ON_STANDBY: &str = "the database gave up waiting for its synchronous standby: the events are on the \
     primary, and may not be on the standby";
