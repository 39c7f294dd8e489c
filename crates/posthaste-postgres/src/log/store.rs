//! The PostgreSQL store: what all its verbs share, and the heart.
//!
//! Everything a relay does here goes through two kinds of connection. The **heart** is one connection
//! of its own: it holds the session lock that proves the process is alive, listens for wakeups and
//! carries the heartbeat, so that neither a long read nor an exhausted pool can starve a lease (F22).
//! Reads and settlements share a small pool. Behind a pooler in transaction mode there is no session to
//! hold: leases end by expiry alone, and nobody is woken.

use crate::config::PostgresConfig;
use crate::connect::{Connection, open};
use crate::error::store_error;
use crate::log::lease::LogLease;
use crate::migrate;
use crate::session::{Param, Session, Sessions};
use async_trait::async_trait;
use posthaste::store::{
    HandAct, JoinPlan, LaneId, Lease, ProcessReport, Roll, Store, StoreCode, StoreError, Swept,
};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tokio_postgres::types::Type;

/// Class of our advisory locks. The same number stands in the SQL that asks whether a heart beats.
pub(crate) const LOCK_CLASS: i32 = 1_886_351_476;

/// Slots of the key hash; lanes are ranges of them.
pub(crate) const SLOTS: i32 = 1024;

/// A former owner that froze in the middle of a settlement holds its receipt's number: whoever takes over
/// waits for it, but never so long that its own heartbeat suffers.
pub(crate) const SHORT_WAITS: &str = "set local lock_timeout = '2s'";

/// How long a heartbeat's word about the closing segment is passed on to reads, and until when a read by that
/// word must have been answered. Both count from before the heartbeat, and stay below the five seconds for
/// which a truncated segment is not turned into.
const CLOSING_TRUSTED: Duration = Duration::from_millis(1_500);
const CLOSING_BELIEVED: Duration = Duration::from_secs(4);

/// The store.
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) heart: AsyncMutex<Option<Heart>>,
    pub(crate) plan: Mutex<Option<JoinPlan>>,
    wakeups: Arc<Notify>,
    lane_changes: Arc<Notify>,
    /// Appends notify until then, in milliseconds of the server's clock.
    flagged_ms: AtomicI64,
    /// The segment that is about to be truncated, and when that was asked for.
    closing: Mutex<Option<(i16, Instant)>>,
    pub(crate) truncate_failures: AtomicU64,
}

pub(crate) struct Heart {
    pub(crate) connection: Connection,
    /// Number of the session lock; `None` behind a pooler.
    pub(crate) number: Option<i32>,
}

impl PostgresStore {
    /// Connects once to see that the database is there, is a primary, and has an outbox we understand.
    pub async fn connect(config: PostgresConfig) -> Result<Self, StoreError> {
        migrate::check_limits(&config.limits)?;
        let sessions = Sessions::new(config);
        sessions.answer_within(sessions.config().connect_timeout * 2);
        let mut session = sessions.session().await?;
        check_server(&mut session).await?;
        migrate::check_version(&mut session, &sessions).await?;
        drop(session);
        Ok(Self {
            inner: Arc::new(Inner {
                sessions,
                heart: AsyncMutex::new(None),
                plan: Mutex::new(None),
                wakeups: Arc::default(),
                lane_changes: Arc::default(),
                flagged_ms: AtomicI64::new(0),
                closing: Mutex::default(),
                truncate_failures: AtomicU64::new(0),
            }),
        })
    }
}

/// Refuses a standby (its snapshots list nobody as running), old servers, and databases that only look
/// like PostgreSQL.
pub(crate) async fn check_server(session: &mut Session) -> Result<(), StoreError> {
    let sql = "select pg_is_in_recovery(), current_setting('server_version_num')::int, version()";
    let rows = session.query(sql, &[]).await.map_err(store_error)?;
    let Some(row) = rows.first() else {
        return Err(StoreError::no_answer());
    };
    let (standby, number, version): (bool, i32, String) = (row.get(0), row.get(1), row.get(2));
    if version.contains("Yugabyte") || version.contains("Cockroach") {
        let why = format!(
            "{version} lacks the snapshots that the outbox log rests on; PostgreSQL 14 or newer is needed"
        );
        return Err(StoreError::fatal(StoreCode::Server, why));
    }
    if number < 140_000 {
        let why = format!("PostgreSQL 14 or newer is needed; this is {version}");
        return Err(StoreError::fatal(StoreCode::Server, why));
    }
    if standby {
        let why = "this server is a standby; the relay reads from the primary only, or it would lose events. Check the URL";
        return Err(StoreError::fatal(StoreCode::Standby, why));
    }
    Ok(())
}

impl Inner {
    pub(crate) fn plan(&self) -> Result<JoinPlan, StoreError> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        plan.ok_or_else(|| StoreError::Transient {
            message: "the relay has not joined yet".to_owned(),
            outcome_known: true,
        })
    }

    /// The segment that readers leave out, as long as that is fresh: it may be truncated, turned into
    /// and full of new rows a few seconds later. With it, until when a read must have been answered.
    pub(crate) fn closing(&self) -> Option<(i16, Instant)> {
        let closing = *self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        closing
            .filter(|(_, asked)| asked.elapsed() < CLOSING_TRUSTED)
            .map(|(segment, asked)| (segment, asked + CLOSING_BELIEVED))
    }

    /// What a heartbeat that was asked then said about the closing segment.
    pub(crate) fn set_closing(&self, segment: Option<i16>, asked: Instant) {
        *self.closing.lock().unwrap_or_else(PoisonError::into_inner) =
            segment.map(|segment| (segment, asked));
    }

    pub(crate) fn channel(&self) -> String {
        format!("{}_wakeup", self.sessions.config().schema)
    }

    /// Opens the heart: its session lock, and its ear for wakeups.
    pub(crate) async fn open_heart(&self) -> Result<Heart, StoreError> {
        let (wakeups, lanes) = (Arc::clone(&self.wakeups), Arc::clone(&self.lane_changes));
        let on_notify = Box::new(move |payload: &str| {
            let hint = if payload == "lanes" { &lanes } else { &wakeups };
            // Everybody who waits, and the next one who asks: a spurious wakeup is only a look too many.
            hint.notify_waiters();
            hint.notify_one();
        });
        let connection = open(self.sessions.config(), Some(on_notify)).await?;
        if self.sessions.config().pooled {
            return Ok(Heart { connection, number: None });
        }
        let limit = Some(self.sessions.config().connect_timeout * 2);
        let client = &connection.client;
        let set = client.batch_execute("set synchronous_commit = on");
        connection.within(limit, set).await.map_err(store_error)?;
        let number = loop {
            let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
            let number = (high & 0x7fff_ffff) as i32;
            let sql = "select pg_try_advisory_lock($1, $2)";
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&LOCK_CLASS, &number];
            let lock = client.query_one(sql, &params);
            let row = connection.within(limit, lock).await.map_err(store_error)?;
            if row.get::<_, bool>(0) {
                break number;
            }
        };
        let listen = format!("listen {}", crate::session::quote(&self.channel()));
        connection.within(limit, client.batch_execute(&listen)).await.map_err(store_error)?;
        Ok(Heart { connection, number: Some(number) })
    }
}

/// The single value of a single row.
pub(crate) fn single<T>(rows: Vec<tokio_postgres::Row>) -> Result<T, StoreError>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    let row = rows.first().ok_or_else(StoreError::no_answer)?;
    row.try_get(0).map_err(|error| StoreError::broken(StoreCode::NoAnswer, error.to_string()))
}

#[async_trait]
impl Store for PostgresStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        self.inner.join(plan).await
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        self.inner.roll(held).await
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let taken = self.inner.take(lane).await?;
        Ok(taken.map(|taken| Arc::new(LogLease::new(Arc::clone(&self.inner), taken)) as Arc<dyn Lease>))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        crate::log::sweep::sweep(&self.inner).await
    }

    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError> {
        let inner = &self.inner;
        let config = inner.sessions.config();
        if config.pooled || !config.wakeups {
            return Ok(false);
        }
        let heart = inner.heart.lock().await;
        let gone = || StoreError::Transient {
            message: "the heart's connection is gone".to_owned(),
            outcome_known: true,
        };
        let connection = &heart.as_ref().ok_or_else(gone)?.connection;
        // The flag is a deadline and only ever moves forward: nobody lowers it for others.
        let sql = inner.sessions.sql(
            "select setval('posthaste.outbox_wakeup', greatest(pg_sequence_last_value('posthaste.outbox_wakeup'::regclass),
                    (extract(epoch from clock_timestamp()) * 1000)::bigint + $1))",
        );
        let millis = i64::try_from(at_most.as_millis()).unwrap_or(1_000);
        let params: [Param<'_>; 1] = [(&millis, Type::INT8)];
        let call = connection.client.query_typed(&sql, &params);
        let rows = connection.within(Some(inner.plan()?.lease_ttl), call).await.map_err(store_error)?;
        inner.flagged_ms.store(single(rows)?, Ordering::Relaxed);
        Ok(true)
    }

    async fn wakeup(&self) {
        self.inner.wakeups.notified().await;
    }

    async fn lanes_changed(&self) {
        self.inner.lane_changes.notified().await;
    }

    async fn taken_by_hand(&self, lane: &LaneId, epoch: i64) -> Result<Option<HandAct>, StoreError> {
        self.inner.taken_by_hand(lane, epoch).await
    }

    /// On the heart's connection: an exhausted pool must not hold up a heartbeat (F22).
    async fn report(&self, report: &ProcessReport) -> Result<(), StoreError> {
        let inner = &self.inner;
        let heart = inner.heart.lock().await;
        let Some(heart) = heart.as_ref() else { return Ok(()) };
        let text = report.report.replace("\\u0000", "\\ufffd");
        let params: [Param<'_>; 7] = [
            (&report.process, Type::TEXT),
            (&report.role, Type::TEXT),
            (&report.name, Type::TEXT),
            (&report.version, Type::TEXT),
            (&report.host, Type::TEXT),
            (&report.started_at.0, Type::INT8),
            (&text, Type::TEXT),
        ];
        let sql = inner.sessions.sql(include_str!("../../sql/consumer/report.sql"));
        let call = heart.connection.client.query_typed(&sql, &params);
        heart.connection.within(Some(inner.plan()?.lease_ttl), call).await.map_err(store_error)?;
        Ok(())
    }

    async fn leave(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let Ok(plan) = inner.plan() else { return Ok(()) };
        let mut session = inner.sessions.session().await?;
        let sql = inner.sessions.sql(include_str!("../../sql/log/leave.sql"));
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&plan.relay.as_ref(), Type::TEXT), (&inner.channel(), Type::TEXT)];
        session.query_alone(&sql, &params).await.map_err(store_error)?;
        *inner.heart.lock().await = None;
        Ok(())
    }
}
