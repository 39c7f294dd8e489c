//! The PostgreSQL store: joining, the heart, leases.
//!
//! Everything a relay does here goes through two kinds of connection. The **heart** is one connection
//! of its own: it holds the session lock that proves the process is alive, listens for wakeups and
//! carries the heartbeat, so that neither a long read nor an exhausted pool can starve a lease (F22).
//! Reads and settlements share a small pool. Behind a pooler in transaction mode there is no session to
//! hold: leases end by expiry alone, and nobody is woken.

use crate::config::PostgresConfig;
use crate::connect::{Connection, open};
use crate::error::{is_code, store_error};
use crate::filter::stored_filter;
use crate::lease::{LogLease, Taken};
use crate::migrate;
use crate::session::{Param, Session, Sessions};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::cursor::{CatchUp, Mark, Marks, Position};
use posthaste::store::{
    Care, Controls, JoinPlan, LaneId, LaneView, Lease, Roll, SinkPlan, StartAt, Store, StoreError, Swept,
};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// Class of our advisory locks. The same number stands in the SQL that asks whether a heart beats.
pub(crate) const LOCK_CLASS: i32 = 1_886_351_476;

/// Slots of the key hash; lanes are ranges of them.
pub(crate) const SLOTS: i32 = 1024;

/// A former owner that froze in the middle of a settlement holds its receipt's number: whoever takes over
/// waits for it, but never so long that its own heartbeat suffers.
const SHORT_WAITS: &str = "set local lock_timeout = '2s'";

/// How long a heartbeat's word about the closing segment is believed. Far below the five seconds for
/// which a truncated segment is not turned into.
const CLOSING_TRUSTED: Duration = Duration::from_millis(1_500);

/// Leases that may pass before a statement of the relay must have been answered. Reads are bounded in rows,
/// so one that takes this long has nobody to answer it (G7).
const ANSWER_LEASES: u32 = 3;

/// Unclean hand-overs at one place before the next owner reads small pages, and before it goes one by
/// one (F21).
const SMALL_PAGES_AFTER: i32 = 2;
const ONE_BY_ONE_AFTER: i32 = 3;

/// The store.
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) sessions: Arc<Sessions>,
    heart: AsyncMutex<Option<Heart>>,
    plan: Mutex<Option<JoinPlan>>,
    wakeups: Arc<Notify>,
    lane_changes: Arc<Notify>,
    /// Appends notify until then, in milliseconds of the server's clock.
    flagged_ms: AtomicI64,
    /// The segment that is about to be truncated, and when that was heard.
    closing: Mutex<Option<(i16, Instant)>>,
    pub(crate) truncate_failures: AtomicU64,
}

struct Heart {
    connection: Connection,
    /// Number of the session lock; `None` behind a pooler.
    number: Option<i32>,
}

impl PostgresStore {
    /// Connects once to see that the database is there, is a primary, and has an outbox we understand.
    pub async fn connect(config: PostgresConfig) -> Result<Self, StoreError> {
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
        return Err(StoreError::Fatal("the server did not answer".to_owned()));
    };
    let (standby, number, version): (bool, i32, String) = (row.get(0), row.get(1), row.get(2));
    if version.contains("Yugabyte") || version.contains("Cockroach") {
        return Err(StoreError::Fatal(format!(
            "{version} lacks the snapshots that the outbox log rests on; PostgreSQL 14 or newer is needed"
        )));
    }
    if number < 140_000 {
        return Err(StoreError::Fatal(format!("PostgreSQL 14 or newer is needed; this is {version}")));
    }
    if standby {
        return Err(StoreError::Fatal(
            "this server is a standby; the relay reads from the primary only, or it would lose events. Check the URL"
                .to_owned(),
        ));
    }
    Ok(())
}

impl Inner {
    fn plan(&self) -> Result<JoinPlan, StoreError> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        plan.ok_or_else(|| StoreError::Transient {
            message: "the relay has not joined yet".to_owned(),
            outcome_known: true,
        })
    }

    /// The segment that readers leave out, as long as that is fresh: it may be truncated, turned into
    /// and full of new rows a few seconds later.
    pub(crate) fn closing(&self) -> Option<i16> {
        let closing = *self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        closing.filter(|(_, heard)| heard.elapsed() < CLOSING_TRUSTED).map(|(segment, _)| segment)
    }

    fn set_closing(&self, segment: Option<i16>) {
        let heard = segment.map(|segment| (segment, Instant::now()));
        *self.closing.lock().unwrap_or_else(PoisonError::into_inner) = heard;
    }

    pub(crate) fn channel(&self) -> String {
        format!("{}_wakeup", self.sessions.config().schema)
    }

    /// Opens the heart: its session lock, and its ear for wakeups.
    async fn open_heart(&self) -> Result<Heart, StoreError> {
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

    async fn agree(&self, plan: &JoinPlan, heart: Option<i32>) -> Result<(), StoreError> {
        let mut session = self.sessions.session().await?;
        check_server(&mut session).await?;
        migrate::check_version(&mut session, &self.sessions).await?;
        // A cursor is born with a mark: the number first, then an xid, then (in the next transaction) the
        // snapshot. Never the other way round, and never with none: the first reads would scan the log.
        let sql =
            self.sessions.sql("select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)");
        let mark: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
        let rows = session.query("select pg_current_xact_id()::text", &[]).await.map_err(store_error)?;
        let mark = BirthMark { seq: mark, xid: single(rows)? };
        session.begin().await.map_err(store_error)?;
        session.client().batch_execute(SHORT_WAITS).await.map_err(store_error)?;
        let agreed = self.agree_in(&mut session, plan, heart, mark).await;
        match agreed {
            Ok(()) => session.commit().await.map_err(store_error),
            Err(error) => {
                session.rollback().await;
                Err(error)
            }
        }
    }

    async fn agree_in(
        &self,
        session: &mut Session,
        plan: &JoinPlan,
        heart: Option<i32>,
        mark: BirthMark,
    ) -> Result<(), StoreError> {
        let sql = |text: &str| self.sessions.sql(text);
        // One joins at a time; births and truncation exclude each other too.
        session.query(&sql("select turn from posthaste.ring for update"), &[]).await.map_err(store_error)?;
        self.agree_on_routes(session, plan).await?;
        let lanes = self.agree_on_lanes(session, plan).await?;
        let untouched = sql("select not exists (select from posthaste.lanes)");
        let untouched: bool = single(session.query(&untouched, &[]).await.map_err(store_error)?)?;
        for sink in &plan.sinks {
            let start_at = match sink.start_at {
                StartAt::Auto if untouched => StartAt::Earliest,
                StartAt::Auto => StartAt::Now,
                declared => declared,
            };
            self.agree_on_sink(session, sink, start_at, lanes, &mark).await?;
        }
        let names: Vec<String> = plan.sinks.iter().map(|sink| sink.name.to_string()).collect();
        session
            .query(
                &sql("update posthaste.lanes set retired_at = clock_timestamp()
                       where retired_at is null and not sink = any ($1)"),
                &[(&names, Type::TEXT_ARRAY)],
            )
            .await
            .map_err(store_error)?;
        session
            .query(
                &sql("insert into posthaste.relays (relay, heart, routes, expires_at)
                      values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
                      on conflict (relay) do update set heart = excluded.heart, routes = excluded.routes,
                                                        expires_at = excluded.expires_at"),
                &[
                    (&plan.relay.as_ref(), Type::TEXT),
                    (&heart, Type::INT4),
                    (&plan.routes, Type::TEXT),
                    (&plan.lease_ttl.as_secs_f64(), Type::FLOAT8),
                ],
            )
            .await
            .map_err(store_error)?;
        // The heart may be a new one: what this relay owns beats with it from now on.
        session
            .query(
                &sql("update posthaste.lanes set heart = $2 where owner = $1"),
                &[(&plan.relay.as_ref(), Type::TEXT), (&heart, Type::INT4)],
            )
            .await
            .map_err(store_error)?;
        Ok(())
    }

    /// The routes in force are kept in the database. Another set may only begin when nobody lives by the
    /// old one: two relays that filter differently would skip each other's events.
    async fn agree_on_routes(&self, session: &mut Session, plan: &JoinPlan) -> Result<(), StoreError> {
        let sql = self.sessions.sql(
            "select r.relay from posthaste.relays r
              where r.relay <> $1 and r.routes <> $2 and r.expires_at > clock_timestamp()
                and (r.heart is null or exists (
                      select from pg_locks p where p.locktype = 'advisory' and p.classid = 1886351476
                         and p.objid::bigint = r.heart and p.objsubid = 2 and p.granted
                         and p.database = (select oid from pg_database where datname = current_database())))
              limit 1",
        );
        let params = [
            (&plan.relay.as_ref() as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT),
            (&plan.routes, Type::TEXT),
        ];
        let other = session.query(&sql, &params).await.map_err(store_error)?;
        if let Some(row) = other.first() {
            return Err(StoreError::Fatal(format!(
                "relay {} runs with other routes or sinks on this outbox; stop it first, or start this one with the same ones. \
                 No event is touched",
                row.get::<_, String>(0)
            )));
        }
        self.set_state(session, "routes", &plan.routes).await
    }

    async fn set_state(&self, session: &mut Session, name: &str, value: &str) -> Result<(), StoreError> {
        let sql = self.sessions.sql(
            "insert into posthaste.state (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
        );
        session.query(&sql, &[(&name, Type::TEXT), (&value, Type::TEXT)]).await.map_err(store_error)?;
        Ok(())
    }

    async fn agree_on_lanes(&self, session: &mut Session, plan: &JoinPlan) -> Result<i32, StoreError> {
        let sql = self.sessions.sql("select value::int from posthaste.state where name = 'lanes'");
        let rows = session.query(&sql, &[]).await.map_err(store_error)?;
        let stored: Option<i32> = rows.first().map(|row| row.get(0));
        match (stored, plan.lanes.map(i32::from)) {
            (Some(stored), wanted) => {
                if let Some(wanted) = wanted.filter(|wanted| *wanted != stored) {
                    tracing::warn!(
                        "the outbox has {stored} lanes and the configuration says {wanted}, which counts only for a new \
                         outbox: {stored} it is. `posthaste lanes set {wanted}` changes it; or take `lanes` out of the file"
                    );
                }
                Ok(stored)
            }
            (None, wanted) => {
                let lanes = wanted.unwrap_or(1).clamp(1, 256);
                self.set_state(session, "lanes", &lanes.to_string()).await?;
                Ok(lanes)
            }
        }
    }

    /// Makes a new sink's lanes and cursors, or brings a known one's filter up to date.
    async fn agree_on_sink(
        &self,
        session: &mut Session,
        sink: &SinkPlan,
        start_at: StartAt,
        lanes: i32,
        mark: &BirthMark,
    ) -> Result<(), StoreError> {
        let filter = stored_filter(&sink.filter);
        let name: &str = &sink.name;
        let sql = self.sessions.sql(
            "update posthaste.lanes l
                set retired_at = null, filter = $2,
                    filter_before = case when l.filter = $2 then l.filter_before else l.filter end,
                    filter_until = case when l.filter = $2 then l.filter_until
                                   else coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) end,
                    filter_n = case when l.filter = $2 then l.filter_n
                               else (select max(n) from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane) end
              where l.sink = $1 returning 1",
        );
        self.check_former_filter(session, name, &filter).await?;
        let known =
            session.query(&sql, &[(&name, Type::TEXT), (&filter, Type::TEXT)]).await.map_err(store_error)?;
        if !known.is_empty() {
            return Ok(());
        }
        let position = match start_at {
            StartAt::Now | StartAt::Auto => {
                "coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)".to_owned()
            }
            StartAt::Earliest => "0".to_owned(),
            StartAt::Seq(seq) => seq.max(0).to_string(),
        };
        // The snapshot is this statement's; the sequence is read after it, so that every row it shows has
        // a number at or below the position.
        let sql = self.sessions.sql(&format!(
            "with made as (
               insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n)
               select $1, n, {SLOTS} * n / $3, {SLOTS} * (n + 1) / $3 - 1, $2, 0 from generate_series(0, $3 - 1) n
               returning sink, lane)
             insert into posthaste.receipts (sink, lane, n, epoch, kind, xid, mark, position, snapshot)
             select sink, lane, 1, 0, 'born', $5::text::xid8, $4, {position}, pg_current_snapshot() from made"
        ));
        session
            .query(
                &sql,
                &[
                    (&name, Type::TEXT),
                    (&filter, Type::TEXT),
                    (&lanes, Type::INT4),
                    (&mark.seq, Type::INT8),
                    (&mark.xid, Type::TEXT),
                ],
            )
            .await
            .map_err(store_error)?;
        tracing::info!(sink = name, ?start_at, "new sink");
        Ok(())
    }

    /// Routes may change again only when the last change is worked off: a lane remembers one former filter.
    async fn check_former_filter(
        &self,
        session: &mut Session,
        sink: &str,
        filter: &str,
    ) -> Result<(), StoreError> {
        let sql = self.sessions.sql(
            "select l.filter_until, r.position from posthaste.lanes l
               join lateral (select position from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane
                              order by n desc limit 1) r on true
              where l.sink = $1 and l.filter <> $2 and l.filter_before is not null and r.position < l.filter_until limit 1",
        );
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&filter, Type::TEXT)];
        let rows = session.query(&sql, &params).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(()) };
        Err(StoreError::Fatal(format!(
            "the routes of {sink} change again before it has read what its former routes took: it stands at {}, \
             and must be past {}. Start with the routes of before until then, or events would be skipped",
            row.get::<_, i64>(1),
            row.get::<_, i64>(0),
        )))
    }

    async fn take_in(
        &self,
        session: &mut Session,
        id: &LaneId,
        mark: i64,
    ) -> Result<Option<Taken>, StoreError> {
        let plan = self.plan()?;
        let heart = self.heart.lock().await.as_ref().and_then(|heart| heart.number);
        let sink: &str = &id.sink;
        let key: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&sink, Type::TEXT), (&id.lane, Type::INT2)];
        let sql = self.sessions.sql(include_str!("../sql/take_lock.sql"));
        let asker = [key[0].clone(), key[1].clone(), (&plan.relay.as_ref() as _, Type::TEXT)];
        let rows = session.query(&sql, &asker).await.map_err(store_error)?;
        let Some(lane) = rows.first().filter(|row| row.get::<_, bool>("free")) else { return Ok(None) };
        let sql = self.sessions.sql(include_str!("../sql/last_receipt.sql"));
        let rows = session.query(&sql, &key).await.map_err(store_error)?;
        let last = rows.first().ok_or_else(|| {
            StoreError::Broken(format!("{id} has no receipt; run `posthaste lanes repair`"))
        })?;
        let position = cursor_of(last)?;
        check_time(id, last, &position)?;
        let (n, epoch): (i64, i64) = (last.get("n"), lane.get::<_, i64>("epoch") + 1);
        let record = Record::after(lane, position.position);
        let sql = self.sessions.sql(include_str!("../sql/take.sql"));
        let taken = session
            .query(
                &sql,
                &[
                    (&sink, Type::TEXT),
                    (&id.lane, Type::INT2),
                    (&plan.relay.as_ref(), Type::TEXT),
                    (&heart, Type::INT4),
                    (&epoch, Type::INT8),
                    (&plan.lease_ttl.as_secs_f64(), Type::FLOAT8),
                    (&record.unclean, Type::INT4),
                    (&record.position, Type::INT8),
                    (&record.suspect, Type::INT8),
                    (&record.deaths, Type::INT4),
                    (&mark, Type::INT8),
                    (&n, Type::INT8),
                ],
            )
            .await
            .map_err(store_error)?;
        let xid: String =
            taken.first().map(|row| row.get(0)).ok_or_else(|| StoreError::LeaseLost(id.clone()))?;
        let marks = self.load_marks(session, &position, &xid, mark).await?;
        let sql = self.sessions.sql(include_str!("../sql/holding.sql"));
        let holding: bool = single(session.query(&sql, &key[..1]).await.map_err(store_error)?)?;
        let lanes: i64 = lane.get("lanes_of_sink");
        Ok(Some(Taken {
            id: id.clone(),
            epoch,
            n: n + 1,
            slots: (lane.get("slot_from"), lane.get("slot_to")),
            filter: lane.get("filter"),
            filter_before: lane.get("filter_before"),
            filter_until: lane.get("filter_until"),
            share: 1.0 / lanes.max(1) as f64,
            care: record.care(),
            position,
            marks,
            known_seq: mark,
            holding,
        }))
    }

    async fn load_marks(
        &self,
        session: &mut Session,
        position: &Position,
        xid: &str,
        mark: i64,
    ) -> Result<Marks, StoreError> {
        let oldest = position.snapshot.running.first().copied().unwrap_or(position.snapshot.xmin);
        let sql = self.sessions.sql(include_str!("../sql/marks.sql"));
        let rows = session.query(&sql, &[(&oldest.to_string(), Type::TEXT)]).await.map_err(store_error)?;
        let mut marks = Marks::default();
        for row in rows {
            marks.add(Mark { xid: row.get::<_, i64>(0) as u64, seq: row.get(1) });
        }
        if let Ok(xid) = xid.parse() {
            marks.add(Mark { xid, seq: mark });
        }
        marks.thin(oldest);
        Ok(marks)
    }
}

/// The mark a cursor is born with: a number, and an xid that was assigned after it was read and has ended
/// before the cursor's snapshot is taken.
struct BirthMark {
    seq: i64,
    xid: String,
}

/// What is remembered about the deaths of former owners.
struct Record {
    unclean: i32,
    position: Option<i64>,
    in_hand: bool,
    suspect: Option<i64>,
    deaths: i32,
}

impl Record {
    /// An owner that did not release died. Deaths at one place add up; with an event in hand it is
    /// charged to that event.
    fn after(lane: &tokio_postgres::Row, position: i64) -> Self {
        let owner: Option<String> = lane.get("owner");
        let (in_hand, suspect): (Option<i64>, Option<i64>) = (lane.get("in_hand"), lane.get("suspect"));
        let (unclean, deaths): (i32, i32) = (lane.get("unclean"), lane.get("suspect_deaths"));
        if owner.is_none() {
            return Self { unclean: 0, position: None, in_hand: false, suspect: None, deaths: 0 };
        }
        let same_place =
            in_hand.is_some() || lane.get::<_, Option<i64>>("unclean_position") == Some(position);
        Self {
            unclean: if same_place { unclean + 1 } else { 1 },
            position: Some(position),
            in_hand: in_hand.is_some(),
            suspect: in_hand.or(suspect),
            deaths: match in_hand {
                Some(seq) if suspect == Some(seq) => deaths + 1,
                Some(_) => 1,
                None => deaths,
            },
        }
    }

    fn care(&self) -> Care {
        // Whoever died one by one is followed by one who goes on one by one, whatever progress came before.
        if self.in_hand || self.unclean > ONE_BY_ONE_AFTER {
            return Care::OneByOne { suspect: self.suspect.map(|seq| (seq, self.deaths.unsigned_abs())) };
        }
        if self.unclean > SMALL_PAGES_AFTER { Care::Small } else { Care::None }
    }
}

fn cursor_of(row: &tokio_postgres::Row) -> Result<Position, StoreError> {
    let snapshot = |text: String| text.parse().map_err(StoreError::Broken);
    let target: Option<String> = row.get("target");
    let catching_up = match target {
        Some(text) => Some(CatchUp {
            target: snapshot(text)?,
            late_position: row.get::<_, Option<i64>>("late_position").unwrap_or(0),
        }),
        None => None,
    };
    Ok(Position { position: row.get("position"), snapshot: snapshot(row.get("snapshot"))?, catching_up })
}

/// A database that went back in time (a restored dump, a failover to a standby that was behind) would
/// make the cursor skip what comes next: the lane stops loudly (F6).
fn check_time(id: &LaneId, last: &tokio_postgres::Row, position: &Position) -> Result<(), StoreError> {
    let (last_value, now, then): (i64, i64, i64) =
        (last.get("last_value"), last.get("xmax_now"), last.get("xmax_then"));
    let what = if last_value < position.position {
        format!("the log ends at number {last_value}, but {id} was settled up to {}", position.position)
    } else if then > now {
        format!("transaction ids are at {now}, but {id} has seen {then}")
    } else {
        return Ok(());
    };
    Err(StoreError::Broken(format!(
        "the database went back in time: {what}. A restored backup, or a failover that lost the end? Nothing is \
         published from this lane until `posthaste lanes repair --sink {}` re-bases it",
        id.sink
    )))
}

/// The single value of a single row.
pub(crate) fn single<T>(rows: Vec<tokio_postgres::Row>) -> Result<T, StoreError>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    let row = rows
        .first()
        .ok_or_else(|| StoreError::Broken("a statement that always answers did not".to_owned()))?;
    row.try_get(0).map_err(|error| StoreError::Broken(error.to_string()))
}

#[derive(serde::Deserialize)]
struct RollRow {
    now: i64,
    known: bool,
    relays: usize,
    lanes: Vec<RollLane>,
    controls: Vec<RollControl>,
    routes: Option<String>,
    closing: Option<i16>,
}

#[derive(serde::Deserialize)]
struct RollLane {
    sink: String,
    lane: i16,
    epoch: i64,
    owner: Option<String>,
    free: bool,
}

#[derive(serde::Deserialize)]
struct RollControl {
    kind: String,
    name: String,
    paused: bool,
    rate: Option<f64>,
}

fn controls(rows: Vec<RollControl>) -> Controls {
    let mut controls = Controls::default();
    for row in rows {
        if row.kind == "sink" {
            if let Some(rate) = row.rate {
                controls.rate_limits.push((row.name.clone(), rate));
            }
            if row.paused {
                controls.paused_sinks.push(row.name);
            }
        } else if row.paused {
            controls.paused_routes.push(row.name);
        }
    }
    controls
}

#[async_trait]
impl Store for PostgresStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut heart = inner.heart.lock().await;
        inner.sessions.answer_within(plan.lease_ttl * ANSWER_LEASES);
        let fresh = inner.open_heart().await?;
        inner.agree(plan, fresh.number).await?;
        *inner.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        *heart = Some(fresh);
        Ok(())
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        let inner = &self.inner;
        let plan = inner.plan()?;
        let heart = inner.heart.lock().await;
        let gone = || StoreError::Transient {
            message: "the heart's connection is gone".to_owned(),
            outcome_known: true,
        };
        let heart = heart.as_ref().ok_or_else(gone)?;
        let sinks: Vec<&str> = held.iter().map(|(id, _)| &*id.sink).collect();
        let lanes: Vec<i16> = held.iter().map(|(id, _)| id.lane).collect();
        let epochs: Vec<i64> = held.iter().map(|(_, epoch)| *epoch).collect();
        let served: Vec<&str> = plan.sinks.iter().map(|sink| &*sink.name).collect();
        let sql = inner.sessions.sql(include_str!("../sql/roll.sql"));
        let (me, seconds) = (plan.relay.as_ref(), plan.lease_ttl.as_secs_f64());
        let params: [Param<'_>; 7] = [
            (&me, Type::TEXT),
            (&seconds, Type::FLOAT8),
            (&heart.number, Type::INT4),
            (&sinks, Type::TEXT_ARRAY),
            (&lanes, Type::INT2_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&served, Type::TEXT_ARRAY),
        ];
        // An answer that is older than the lease is worth nothing.
        let call = heart.connection.client.query_typed(&sql, &params);
        let rows = heart.connection.within(Some(plan.lease_ttl), call).await.map_err(store_error)?;
        let text: String = single(rows)?;
        let row: RollRow =
            serde_json::from_str(&text).map_err(|error| StoreError::Broken(error.to_string()))?;
        inner.set_closing(row.closing);
        if !row.known {
            return Err(StoreError::Transient {
                message: "this relay is not known any more; joining again".to_owned(),
                outcome_known: true,
            });
        }
        Ok(Roll {
            refused: refused(&row, &plan),
            lanes: row
                .lanes
                .into_iter()
                .map(|lane| LaneView {
                    id: LaneId { sink: lane.sink.into(), lane: lane.lane },
                    owner: lane.owner.map(Into::into),
                    epoch: lane.epoch,
                    is_free: lane.free,
                })
                .collect(),
            relays: row.relays,
            now: Timestamp(row.now),
            controls: controls(row.controls),
        })
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let inner = &self.inner;
        let mut session = inner.sessions.session().await?;
        // A mark's number is read before the transaction has an xid.
        let sql = inner
            .sessions
            .sql("select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)");
        let mark: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
        session.begin().await.map_err(store_error)?;
        session.client().batch_execute(SHORT_WAITS).await.map_err(store_error)?;
        let taken = match inner.take_in(&mut session, lane, mark).await {
            Ok(taken) => taken,
            Err(error) => {
                session.rollback().await;
                return Err(error);
            }
        };
        // CRASH(take.before_commit): nothing is taken. The lane stays free.
        posthaste::crash_point!("take.before_commit");
        match session.commit().await {
            Ok(()) => {}
            // The former owner settled in between: its receipt came first. Try again at the next roll.
            Err(error) if is_code(&error, &SqlState::UNIQUE_VIOLATION) => return Ok(None),
            Err(error) => return Err(store_error(error)),
        }
        // CRASH(take.after_commit): the lane is ours by the table and nobody serves it. The heart's lock is
        // gone with the process, so the next relay takes it at once (G2).
        posthaste::crash_point!("take.after_commit");
        // A rewind may have come between the heartbeat and this: leave nothing out before the next one.
        inner.set_closing(None);
        Ok(taken.map(|taken| Arc::new(LogLease::new(Arc::clone(inner), taken)) as Arc<dyn Lease>))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        crate::sweep::sweep(&self.inner).await
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

    async fn leave(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let plan = inner.plan()?;
        let mut session = inner.sessions.session().await?;
        let sql = inner
            .sessions
            .sql("delete from posthaste.relays where relay = $1 returning pg_notify($2, 'lanes')");
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&plan.relay.as_ref(), Type::TEXT), (&inner.channel(), Type::TEXT)];
        session.query_alone(&sql, &params).await.map_err(store_error)?;
        *inner.heart.lock().await = None;
        Ok(())
    }
}

/// Why a relay that joined before must stop or join again.
fn refused(row: &RollRow, plan: &JoinPlan) -> Option<String> {
    if row.routes.as_deref() != Some(plan.routes.as_str()) {
        return Some(
            "another relay joined with other routes or sinks; this one stops so that nothing is skipped"
                .to_owned(),
        );
    }
    None
}
