//! The store behind a relay on an adopted table.
//!
//! Relays do not have to agree: each has a lane of its own for its sink, and row locks decide who gets which
//! row. Each relay holds a shared advisory lock on its heartbeat's connection. These locks tell how many
//! relays there are, and a rate limit is divided by that number.

use super::audit;
use super::check;
use super::layout::{ClaimPace, Layout, Style};
use super::lease::ClaimLease;
use super::rehearse;
use super::session::{ClaimSession, IDLE};
use super::statements::Statements;
use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::log::store::LOCK_CLASS;
use crate::row::Micros;
use crate::session::SqlResult;
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::store::{
    Controls, JoinPlan, LaneId, LaneView, Lease, Roll, SinkPlan, Store, StoreCode, StoreError, Swept,
};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;
use tokio_postgres::types::Type;

/// Pauses after settlements that failed with rows locked.
const TROUBLE_MIN: Duration = Duration::from_millis(500);
const TROUBLE_MAX: Duration = Duration::from_secs(60);
/// Longest sweep: the next one goes on.
const SWEEP_MAX: Duration = Duration::from_secs(2);

/// A relay's view of an adopted table.
pub struct ClaimStore {
    inner: Arc<ClaimState>,
}

pub(super) struct ClaimState {
    pub(super) config: PostgresConfig,
    pub(super) statements: Statements,
    pace: watch::Receiver<ClaimPace>,
    heart: AsyncMutex<Option<ClaimSession>>,
    plan: Mutex<Option<JoinPlan>>,
    /// Weak: a lane that died takes its lease, its connection and its row locks with it.
    leases: Mutex<FxHashMap<LaneId, Weak<ClaimLease>>>,
    epochs: AtomicI64,
    relays: AtomicUsize,
    missed: AtomicU64,
    trouble: Mutex<SettleBackoff>,
    /// Nothing could be written any more. Whoever takes a lane next rehearses first.
    doubtful: AtomicBool,
}

/// The pause after settlements that failed one after another, with their rows back where they were.
#[derive(Default)]
struct SettleBackoff {
    until: Option<Instant>,
    pause: Duration,
}

impl ClaimStore {
    /// Connects, and looks at the table before anything of it is claimed. Whatever does not fit is an error
    /// at once.
    pub async fn connect(config: PostgresConfig, layout: Layout) -> Result<Self, StoreError> {
        let (_, pace) = watch::channel(layout.pace());
        Self::connect_paced(config, layout, pace).await
    }

    /// The same with a pace that may change. It counts instead of the layout's own.
    pub async fn connect_paced(
        config: PostgresConfig,
        layout: Layout,
        pace: watch::Receiver<ClaimPace>,
    ) -> Result<Self, StoreError> {
        layout.check().map_err(|why| StoreError::fatal(StoreCode::Layout, why))?;
        let mut session = ClaimSession::open(&config, &layout).await?;
        let statements = check::statements(&mut session, layout).await?;
        rehearse::rehearse(&mut session, &statements).await?;
        rehearse::tell_unmapped(&mut session, &statements).await?;
        Ok(Self {
            inner: Arc::new(ClaimState {
                config,
                statements,
                pace,
                heart: AsyncMutex::new(None),
                plan: Mutex::default(),
                leases: Mutex::default(),
                epochs: AtomicI64::new(0),
                relays: AtomicUsize::new(1),
                missed: AtomicU64::new(0),
                trouble: Mutex::default(),
                doubtful: AtomicBool::new(false),
            }),
        })
    }

    /// Settled rows that somebody else had taken or changed meanwhile (F20).
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.inner.missed.load(Ordering::Relaxed)
    }
}

impl ClaimState {
    pub(super) fn style(&self) -> Style {
        self.statements.layout().style()
    }

    pub(super) fn pace(&self) -> ClaimPace {
        *self.pace.borrow()
    }

    pub(super) fn relays(&self) -> usize {
        self.relays.load(Ordering::Relaxed)
    }

    pub(super) fn count_missed(&self, rows: u64) {
        self.missed.fetch_add(rows, Ordering::Relaxed);
    }

    /// Notes that rows went back unsettled although they were published. The pause grows each time, so that
    /// they are not published again as fast as the broker answers.
    pub(super) fn note_trouble(&self) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.pause = (trouble.pause * 2).clamp(TROUBLE_MIN, TROUBLE_MAX);
        trouble.until = Some(Instant::now() + trouble.pause);
    }

    pub(super) fn note_success(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = SettleBackoff::default();
    }

    pub(super) fn is_resting(&self) -> bool {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.until.is_some_and(|until| until > Instant::now())
    }

    pub(super) fn doubt(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
        self.note_trouble();
    }

    /// After doubts nothing is claimed before every statement has been tried again.
    async fn dispel_doubts(&self) -> Result<(), StoreError> {
        if self.doubtful.load(Ordering::Relaxed) {
            let mut session = ClaimSession::open(&self.config, self.statements.layout()).await?;
            rehearse::rehearse(&mut session, &self.statements).await?;
            self.doubtful.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// How long a mark is valid. It is never shorter than the engine trusts a lease.
    pub(super) fn row_lease(&self) -> Duration {
        let trusted = self.plan().map_or(Duration::ZERO, |plan| plan.lease_ttl);
        self.statements.layout().lease.max(trusted)
    }

    /// How long rows may stay locked while they are published. A publish ends before the engine's lease does.
    pub(super) fn patience(&self) -> Duration {
        self.plan().map_or(IDLE, |plan| plan.lease_ttl.max(IDLE))
    }

    fn plan(&self) -> Option<JoinPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lease(&self, id: &LaneId) -> Option<Arc<ClaimLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).get(id).and_then(Weak::upgrade)
    }

    pub(super) fn forget(&self, id: &LaneId, epoch: i64) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.get(id).and_then(Weak::upgrade).is_some_and(|lease| lease.number() == epoch) {
            leases.remove(id);
        }
    }

    fn lock_number(&self) -> i32 {
        let name = self.statements.layout().table.to_string();
        name.bytes().fold(17_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)))
            & 0x7fff_ffff
    }

    async fn open_heart(&self) -> Result<ClaimSession, StoreError> {
        let mut session = ClaimSession::open(&self.config, self.statements.layout()).await?;
        if !self.config.pooled {
            let number = self.lock_number();
            let sql = "select pg_advisory_lock_shared($1, $2)";
            session
                .query(sql, &[(&LOCK_CLASS, Type::INT4), (&number, Type::INT4)])
                .await
                .map_err(store_error)?;
        }
        Ok(session)
    }

    /// The database's clock, and how many relays there are.
    async fn look_around(&self, heart: &mut ClaimSession) -> SqlResult<Timestamp> {
        let sql = "select clock_timestamp(), (select count(*) from pg_locks where locktype = 'advisory' and classid = $1::int4::oid and objid = $2::int4::oid and granted and database = (select oid from pg_database where datname = current_database()))";
        let number = self.lock_number();
        let rows = heart.query(sql, &[(&LOCK_CLASS, Type::INT4), (&number, Type::INT4)]).await?;
        let Some(row) = rows.first() else { return Ok(Timestamp::default()) };
        let relays: i64 = row.try_get(1)?;
        self.relays.store(usize::try_from(relays).unwrap_or(1).max(1), Ordering::Relaxed);
        Ok(Timestamp(row.try_get::<_, Micros>(0)?.0))
    }

    /// A lane of a sink. It is ours while we hold it, and free otherwise.
    fn view(&self, sink: &SinkPlan, relay: &Arc<str>) -> LaneView {
        let id = LaneId { sink: Arc::clone(&sink.name), lane: 0 };
        let lease = self.lease(&id).filter(|lease| !lease.is_lost());
        LaneView {
            id,
            owner: lease.as_ref().map(|_| Arc::clone(relay)),
            epoch: lease.as_ref().map_or_else(|| self.epochs.load(Ordering::Relaxed), |lease| lease.number()),
            is_free: lease.is_none(),
        }
    }

    /// Deletes what is old, in chunks. With `audited`, the topic of a row, each chunk leaves a line in the
    /// audit, where there is one.
    async fn sweep_with(
        &self,
        sql: Option<String>,
        keep: Option<Duration>,
        audited: Option<String>,
    ) -> Result<u64, StoreError> {
        let (Some(sql), Some(keep)) = (sql, keep) else { return Ok(0) };
        let layout = self.statements.layout();
        let mut session = ClaimSession::open(&self.config, layout).await?;
        let noted = match audited {
            Some(_) => audit::noted(&mut session, layout, &self.config.schema).await?,
            None => String::new(),
        };
        let topic = audited.as_deref().unwrap_or("null::text");
        let (begun, mut purged) = (Instant::now(), 0);
        while begun.elapsed() < SWEEP_MAX {
            let sql =
                format!("with gone as ({sql} returning {topic} as topic){noted} select count(*) from gone");
            let rows =
                session.query(&sql, &[(&keep.as_secs_f64(), Type::FLOAT8)]).await.map_err(store_error)?;
            let gone: i64 = rows.first().map_or(0, |row| row.get(0));
            purged += gone.unsigned_abs();
            if gone == 0 {
                break;
            }
        }
        Ok(purged)
    }
}

#[async_trait]
impl Store for ClaimStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut heart = inner.heart.lock().await;
        if heart.as_ref().is_none_or(ClaimSession::is_closed) {
            *heart = Some(inner.open_heart().await?);
        }
        *inner.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        Ok(())
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        let inner = &self.inner;
        let not_joined = || StoreError::Transient {
            message: "the relay has not joined yet".to_owned(),
            outcome_known: true,
        };
        let plan = inner.plan().ok_or_else(not_joined)?;
        let mut heart = inner.heart.lock().await;
        let session = heart.as_mut().ok_or_else(not_joined)?;
        let now = match inner.look_around(session).await {
            Ok(now) => now,
            Err(error) => {
                *heart = None;
                return Err(store_error(error));
            }
        };
        for (id, epoch) in held {
            if let Some(lease) = inner.lease(id).filter(|lease| lease.number() == *epoch) {
                lease.renew(session).await?;
            }
        }
        let lanes = plan.sinks.iter().map(|sink| inner.view(sink, &plan.relay)).collect();
        Ok(Roll { lanes, relays: 1, now, controls: Controls::default(), refused: None })
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let inner = &self.inner;
        let Some(plan) = inner.plan() else { return Ok(None) };
        let Some(sink) = plan.sinks.iter().find(|sink| sink.name == lane.sink) else { return Ok(None) };
        inner.dispel_doubts().await?;
        let epoch = inner.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let (filter, relay) = (sink.filter.clone(), Arc::clone(&plan.relay));
        let lease = Arc::new(ClaimLease::new(Arc::clone(inner), lane.clone(), epoch, relay, filter));
        let mut leases = inner.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.insert(lane.clone(), Arc::downgrade(&lease));
        Ok(Some(lease))
    }

    /// Retention goes in small chunks. Each is a transaction of its own that waits for nobody.
    async fn sweep(&self) -> Result<Swept, StoreError> {
        let (inner, statements) = (&self.inner, &self.inner.statements);
        let layout = statements.layout();
        let published = inner.sweep_with(statements.swept(), layout.keep_published, None).await?;
        let topic = Some(statements.dead_topic());
        let dead = inner.sweep_with(statements.dead_swept(), layout.keep_dead, topic).await?;
        if dead > 0 {
            tracing::info!(table = %layout.table, rows = dead, "dead rows were deleted: their retention is over");
        }
        Ok(Swept { purged: published + dead, dead_purged: dead, ..Swept::default() })
    }

    async fn doze(&self, _: Duration) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Nobody notifies us: the table's owners know nothing of this relay.
    async fn wakeup(&self) {
        std::future::pending().await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        *self.inner.heart.lock().await = None;
        Ok(())
    }
}
