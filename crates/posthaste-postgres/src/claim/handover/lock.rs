//! Short tries for a lock that an application must not notice.
//!
//! A session that waits for a table's lock makes everybody behind it wait. So a try lasts a quarter of a
//! second, then the application has a whole second for itself, and so on for as long as the operator has
//! patience. A vacuum that the server started by itself gives way only to a session that waits longer than
//! `deadlock_timeout`. If nothing else is in the way, one try waits that long.

use super::{Handover, HandoverError};
use crate::claim::statements::quoted;
use crate::error::{is_code, store_error};
use crate::session::Param;
use posthaste::store::StoreError;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// Longest wait of one try.
pub(super) const WAIT_MS: u32 = 250;
/// Longest wait of a try if only a vacuum is in the way. It is above `deadlock_timeout`, which is a second.
const VACUUM_WAIT_MS: u32 = 1_500;
/// The application's turn between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How long it is tried by default.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What was in the way.
#[derive(Debug, Default)]
struct Blockers {
    words: Vec<String>,
    only_vacuum: bool,
}

impl Handover {
    /// Begins a transaction of ours. There is one at a time for a table, whoever runs them.
    pub(super) async fn begin(&mut self, lock_ms: u32) -> Result<(), StoreError> {
        self.session.begin().await.map_err(store_error)?;
        let name = format!("{} {}", self.place.log, self.place.table);
        let class = crate::log::store::LOCK_CLASS + 3;
        // The other one is as short as this one.
        let sql = "select pg_advisory_xact_lock($1, hashtext($2))";
        self.session.query(sql, &[(&class, Type::INT4), (&name, Type::TEXT)]).await.map_err(store_error)?;
        self.session.batch(&format!("set local lock_timeout = {lock_ms}")).await.map_err(store_error)
    }

    /// Waits before the next try, or gives up.
    pub(super) async fn next_try(
        &mut self,
        error: tokio_postgres::Error,
        since: Instant,
        patience: Duration,
        wanted: Lock,
    ) -> Result<Next, HandoverError> {
        // Best effort: an aborted transaction is over either way.
        let _ = self.session.rollback().await;
        if !is_code(&error, &SqlState::LOCK_NOT_AVAILABLE) {
            return Err(self.refused(error));
        }
        let blockers = self.blockers(wanted).await?;
        if since.elapsed() >= patience {
            return Ok(Next::GiveUp(blockers.in_words()));
        }
        sleep(PAUSE).await;
        Ok(Next::Again(if blockers.only_vacuum { VACUUM_WAIT_MS } else { WAIT_MS }))
    }

    async fn blockers(&mut self, wanted: Lock) -> Result<Blockers, StoreError> {
        let sql = "select coalesce(a.pid, 0), coalesce(a.backend_type, 'prepared transaction'), coalesce(a.usename::text, ''),
                          coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::float8
                     from pg_locks l left join pg_stat_activity a on a.pid = l.pid
                    where l.locktype = 'relation' and l.database = (select oid from pg_database where datname = current_database())
                      and (l.relation = to_regclass($1) or l.relation in (select relid from pg_partition_tree(to_regclass($1))))
                      and l.granted and l.pid is distinct from pg_backend_pid() and l.mode <> all ($2)
                    order by 4 desc";
        let table = quoted(&self.place.table);
        let params: [Param<'_>; 2] = [(&table, Type::TEXT), (&wanted.beside(), Type::TEXT_ARRAY)];
        let rows = self.session.query(sql, &params).await.map_err(store_error)?;
        let mut blockers = Blockers { words: Vec::new(), only_vacuum: !rows.is_empty() };
        for row in &rows {
            let (pid, kind, user, seconds): (i32, &str, &str, f64) =
                (row.get(0), row.get(1), row.get(2), row.get(3));
            blockers.only_vacuum &= kind == "autovacuum worker";
            let words = match kind {
                "client backend" => format!("process {pid} of {user}, in a transaction for {seconds:.0} s"),
                other => format!("{other} {pid}"),
            };
            if !blockers.words.contains(&words) {
                blockers.words.push(words);
            }
        }
        Ok(blockers)
    }
}

/// What is wanted of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock {
    /// Nobody writes meanwhile; this is for a trigger that comes.
    Writes,
    /// Nobody reads or writes meanwhile; this is for a trigger that goes.
    All,
}

impl Lock {
    /// Locks of others that do not conflict with it.
    fn beside(self) -> &'static [&'static str] {
        match self {
            Self::Writes => &["AccessShareLock", "RowShareLock"],
            Self::All => &[],
        }
    }
}

/// What to do after a try that failed.
pub(super) enum Next {
    /// Wait this many milliseconds for the lock.
    Again(u32),
    /// Give up. It says who was in the way.
    GiveUp(String),
}

impl Blockers {
    fn in_words(&self) -> String {
        match self.words.as_slice() {
            [] => "nobody any more: try again".to_owned(),
            words => words[..words.len().min(3)].join("; "),
        }
    }
}
