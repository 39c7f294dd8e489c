//! The usual read's statement, and reading ahead.
//!
//! Late rows, tail, the snapshot itself and the sequence's value come from **one statement**: one
//! statement has one snapshot, so they belong together without a transaction around them, and it takes
//! one round trip. It runs without an xid of its own. Late rows and tail are two queries inside it, each
//! with its own bound: one page over both would make the position go backwards.
//!
//! Events are made of rows while the server still sends. And when a page is full, the next one is sent
//! for at once: where it begins is known with the last row. A page fetched ahead is a read that happened
//! a little early. Nothing about it is decided before it is asked for: bounds, held keys and the cursor
//! are looked at then. It is one page more in memory.
//!
//! A page that waits to be asked for holds no connection: a lane that is full or paused may not ask for a
//! long time, and those who settle would find the pool empty.

use crate::error::store_error;
use crate::row::{self, WIDTH};
use crate::session::{Param, Session, Sessions};
use posthaste::cursor::{Position, Snapshot};
use posthaste::event::StoredEvent;
use posthaste::store::{StoreCode, StoreError};
use posthaste::task::{Task, spawn};
use std::sync::{Arc, LazyLock};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The statement, before schema, columns and conditions are put in. Its first line is as wide as a row.
pub(crate) static LATE_AND_TAIL: LazyLock<String> = LazyLock::new(|| {
    let nulls = ", null".repeat(WIDTH + OWN_COLUMNS - 4);
    include_str!("../../sql/log/late_and_tail.sql").replace("/*nulls*/", &nulls)
});

/// The columns of a row, before the inline size is put in.
static COLUMNS: LazyLock<String> = LazyLock::new(|| {
    let event = row::columns("", "case when octet_length(payload) <= /*inline*/ then payload end");
    format!(
        "{event}, segment, case when octet_length(payload) > /*inline*/ then octet_length(payload) end, \
         deliver_at > statement_timestamp()"
    )
});

/// How many of them are not the event's.
const OWN_COLUMNS: usize = 3;

/// A column that every row of the log has, and the line about the read itself has not.
const SLOT: usize = 1;

/// Bounds of a read in rows and inline bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) rows: i64,
    pub(crate) inline: usize,
    pub(crate) bytes: usize,
}

/// One read: what to ask for.
pub(crate) struct Fetch {
    pub(crate) sql: String,
    /// If it leaves a closing segment out: until when its rows may be believed. Such a statement is not
    /// kept prepared.
    pub(crate) believed_until: Option<Instant>,
    pub(crate) late_from: i64,
    pub(crate) position: Position,
    /// The highest number looked at.
    pub(crate) to: i64,
    pub(crate) bounds: Bounds,
}

/// A row of the log before it is accepted into a page.
pub(crate) struct Found {
    pub(crate) stored: StoredEvent,
    pub(crate) segment: i16,
    /// Size of its payload; `None` for a tombstone.
    pub(crate) size: Option<usize>,
    /// Whether its time has not come.
    pub(crate) scheduled: bool,
}

/// What a read found, before it is cut to what was asked for.
pub(crate) struct Fetched {
    pub(crate) now: Snapshot,
    pub(crate) last_value: i64,
    pub(crate) late: Vec<Found>,
    pub(crate) tail: Vec<Found>,
    /// The highest number that was looked at.
    pub(crate) to: i64,
    pub(crate) bounds: Bounds,
}

/// A page on its way before it was asked for.
pub(crate) struct Ahead {
    from: Position,
    task: Task<Result<Fetched, StoreError>>,
}

impl Fetch {
    pub(crate) async fn run(self, session: &mut Session) -> Result<Fetched, StoreError> {
        let snapshot = self.position.snapshot.to_string();
        let params: [Param<'_>; 5] = [
            (&self.late_from, Type::INT8),
            (&self.position.position, Type::INT8),
            (&snapshot, Type::TEXT),
            (&self.bounds.rows, Type::INT8),
            (&self.to, Type::INT8),
        ];
        let (mut head, mut late, mut tail) = (None, Vec::new(), Vec::new());
        let position = self.position.position;
        let sort_out = |row: &Row| {
            if row.try_get::<_, Option<i16>>(SLOT)?.is_none() {
                head = Some((row.try_get::<_, i64>(0)?, row.try_get::<_, String>(3)?));
                return Ok(());
            }
            let found = Found::read(row)?;
            if found.stored.seq <= position {
                late.push(found)
            } else {
                tail.push(found)
            }
            Ok(())
        };
        let lasting = self.believed_until.is_none();
        session.each(&self.sql, &params, lasting, sort_out).await.map_err(store_error)?;
        // Asked with a segment left out, and answered when that may be in use again: a wait for a connection,
        // a lock or the network lay in between. What it did not look at would be skipped (G2).
        if self.believed_until.is_some_and(|until| Instant::now() > until) {
            return Err(StoreError::Transient {
                message: "a read was answered too late to leave a segment out".to_owned(),
                outcome_known: true,
            });
        }
        let (last_value, now) = head.ok_or_else(|| {
            StoreError::broken(StoreCode::NoAnswer, "a read came back without its snapshot")
        })?;
        let now: Snapshot =
            now.parse().map_err(|why: String| StoreError::broken(StoreCode::NoAnswer, why))?;
        Ok(Fetched { now, last_value, late, tail, to: self.to, bounds: self.bounds })
    }

    /// Sets out at once, on a connection of its own.
    pub(crate) fn ahead(self, sessions: &Arc<Sessions>) -> Ahead {
        let from = self.position.clone();
        let sessions = Arc::clone(sessions);
        let task = spawn("read ahead", async move {
            let mut session = sessions.session().await?;
            self.run(&mut session).await
        });
        Ahead { from, task }
    }
}

impl Ahead {
    /// What it brings, if it began at this position; nothing if the cursor has moved elsewhere.
    pub(crate) async fn arrive(self, at: &Position) -> Result<Option<Fetched>, StoreError> {
        if self.from != *at {
            return Ok(None);
        }
        let died = |died: posthaste::task::TaskDied| StoreError::Transient {
            message: died.to_string(),
            outcome_known: true,
        };
        self.task.await.map_err(died)?.map(Some)
    }
}

impl Fetched {
    /// Where the cursor stands after these rows, if that is plain: nothing late, as many rows as were
    /// asked for, and all of them within the page's bytes.
    pub(crate) fn plain_full_tail(&self) -> Option<i64> {
        let full = self.late.is_empty() && self.tail.len() as i64 >= self.bounds.rows;
        let fits = || self.tail.iter().map(Found::bytes).sum::<usize>() <= self.bounds.bytes;
        self.tail.last().filter(|_| full && fits()).map(|row| row.stored.seq)
    }
}

impl Found {
    /// A row of [`columns`].
    pub(crate) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let stored = row::event(row)?;
        let large: Option<i32> = row.try_get(WIDTH + 1)?;
        let inline = stored.event.payload.as_ref().map(bytes::Bytes::len);
        Ok(Self {
            segment: row.try_get(WIDTH)?,
            size: large.map(|size| size.unsigned_abs() as usize).or(inline),
            scheduled: row.try_get::<_, Option<bool>>(WIDTH + 2)?.unwrap_or(false),
            stored,
        })
    }

    /// What it counts against a page's bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.size.unwrap_or(0) + 256
    }
}

/// Columns of a row. Payloads above the inline size are fetched once they are known to fit; until then
/// their size stands for them. The size is a literal, one of few, so that statements stay prepared.
/// What is null costs the server nothing to send.
pub(crate) fn columns(inline: usize) -> String {
    COLUMNS.replace("/*inline*/", &inline.to_string())
}
