//! One look at everything, in one read-only snapshot.
//!
//! The parts are a handful of statements for the whole outbox and a few for each sink; none of them reads
//! more than a fixed number of rows. The snapshot is held for some milliseconds only: a truncation that
//! comes across it tries again.

use super::aside::{cause, time};
use super::backlog::{BacklogCount, EXACT_MAX, Estimate, PROBE_NUMBERS, Probes, WINDOW, WindowCount};
use super::control::set_by;
use super::{PostgresAdmin, failed, reads};
use crate::row::Micros;
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{
    AdminError, Count, DeferredCause, LaneStatus, OutboxStatus, PausedRoute, RelayProcess, Said,
    SegmentStatus, SetBy, SinkStatus, UnreadLog,
};
use posthaste::store::StoreError;
use rustc_hash::FxHashMap;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// What all sinks share.
struct Overview {
    last_value: i64,
    rates: FxHashMap<String, i64>,
    controls: FxHashMap<String, SinkControl>,
}

/// What an operator set for a sink.
#[derive(Default)]
struct SinkControl {
    paused: bool,
    rate_limit: Option<f64>,
    set_by: Option<SetBy>,
}

/// What waits for a sink.
struct Waits {
    count: Count,
    /// Age of the oldest that is overdue.
    overdue: f64,
    causes: Vec<DeferredCause>,
}

/// A sink's lanes as they are stored.
struct Lanes {
    sink: String,
    /// Which topics it reads, as SQL.
    condition: String,
    slots_from: Vec<i16>,
    positions: Vec<i64>,
    lanes: Vec<LaneStatus>,
}

impl PostgresAdmin {
    pub(super) async fn look(&self) -> Result<OutboxStatus, AdminError> {
        let mut session = self.begin().await?;
        let read_only = "set transaction isolation level repeatable read, read only";
        let begun = session.batch(read_only).await.map_err(failed);
        let status = match begun {
            Ok(()) => self.look_in(&mut session).await,
            Err(error) => Err(error),
        };
        // Nothing was written: there is nothing to commit.
        session.rollback().await;
        status
    }

    /// Sinks that left the configuration. What they had not read is nobody's, but events may wait for them or
    /// be dead.
    pub(crate) async fn retired_sinks(&self) -> Result<Vec<SinkStatus>, AdminError> {
        let mut session = self.sessions.session().await?;
        let sql = "select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0)";
        let last_value = one(&self.query(&mut session, sql, &[]).await?)?.get(0);
        let mut overview =
            Overview { last_value, rates: FxHashMap::default(), controls: FxHashMap::default() };
        self.sinks(&mut session, &mut overview, true).await
    }

    /// Those of them of which something is left.
    async fn leftovers(&self, session: &mut Session) -> Result<Vec<SinkStatus>, AdminError> {
        let mut left = Vec::new();
        for lanes in self.lanes(session, true).await? {
            let waits = self.deferred(session, &lanes.sink).await?;
            let dead = self.dead(session, &lanes.sink).await?;
            if waits.count.count + dead.count > 0 {
                let none = Estimate { backlog: Count { count: 0, exact: true }, oldest: 0.0, average: 0.0 };
                left.push(sink_status(lanes, none, waits, dead, 0, SinkControl::default(), true));
            }
        }
        Ok(left)
    }

    /// What the living say about themselves.
    async fn reports(
        &self,
        session: &mut Session,
        relays: &[String],
    ) -> Result<Vec<RelayProcess>, AdminError> {
        let params: [Param<'_>; 1] = [(&relays, Type::TEXT_ARRAY)];
        let rows = self.query(session, include_str!("../../sql/admin/reports.sql"), &params).await?;
        let read = |row: &Row| RelayProcess {
            relay: row.get("process"),
            version: row.get("version"),
            host: row.get("host"),
            started_at: time(row, "started_at"),
            seen_at: time(row, "seen_at"),
            said: Said::read(row.get("report")),
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn look_in(&self, session: &mut Session) -> Result<OutboxStatus, AdminError> {
        let rows = self.query(session, include_str!("../../sql/admin/overview.sql"), &[]).await?;
        let row = one(&rows)?;
        let mut overview = Overview {
            last_value: row.get("last_value"),
            rates: self.rates(session).await?,
            controls: self.controls(session).await?,
        };
        let mut sinks = self.sinks(session, &mut overview, false).await?;
        sinks.extend(self.leftovers(session).await?);
        let relays: Vec<String> = row.get("relays");
        let unread = if sinks.is_empty() { self.unread(session).await? } else { None };
        Ok(OutboxStatus {
            now: Timestamp(row.get("now")),
            reports: self.reports(session, &relays).await?,
            relays,
            schema_version: row.get("version"),
            sinks,
            segments: self.segments(session).await?,
            paused_routes: self.paused_routes(session).await?,
            jobs_wait: row.get("jobs_wait"),
            unread,
        })
    }

    /// What waits in a log that no relay has ever read.
    async fn unread(&self, session: &mut Session) -> Result<Option<UnreadLog>, AdminError> {
        let params: [Param<'_>; 1] = [(&(EXACT_MAX as i64 + 1), Type::INT8)];
        let rows = self.query(session, include_str!("../../sql/admin/unread.sql"), &params).await?;
        let row = one(&rows)?;
        let found = row.get::<_, i64>("count").unsigned_abs();
        let oldest_at = row.get::<_, Option<Micros>>("oldest_at").map(|at| Timestamp(at.0));
        let count = Count { count: found.min(EXACT_MAX), exact: found <= EXACT_MAX };
        Ok((found > 0).then_some(UnreadLog { count, oldest_at }))
    }

    async fn paused_routes(&self, session: &mut Session) -> Result<Vec<PausedRoute>, AdminError> {
        let rows = self.controls_of(session, "route").await?;
        let paused = rows.iter().filter(|row| row.get("paused"));
        Ok(paused.map(|row| PausedRoute { route: row.get("name"), set_by: set_by(row) }).collect())
    }

    async fn rates(&self, session: &mut Session) -> Result<FxHashMap<String, i64>, AdminError> {
        let rows = self.query(session, include_str!("../../sql/admin/rates.sql"), &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn controls(&self, session: &mut Session) -> Result<FxHashMap<String, SinkControl>, AdminError> {
        let rows = self.controls_of(session, "sink").await?;
        let read = |row: &Row| {
            let (paused, rate_limit): (bool, Option<f64>) = (row.get("paused"), row.get("rate_limit"));
            // Of what was lifted again nobody needs to know who it was.
            let set_by = set_by(row).filter(|_| paused || rate_limit.is_some());
            SinkControl { paused, rate_limit, set_by }
        };
        Ok(rows.iter().map(|row| (row.get("name"), read(row))).collect())
    }

    async fn sinks(
        &self,
        session: &mut Session,
        overview: &mut Overview,
        retired: bool,
    ) -> Result<Vec<SinkStatus>, AdminError> {
        let mut sinks = Vec::new();
        for lanes in self.lanes(session, retired).await? {
            sinks.push(self.sink(session, overview, lanes, retired).await?);
        }
        Ok(sinks)
    }

    async fn lanes(&self, session: &mut Session, retired: bool) -> Result<Vec<Lanes>, AdminError> {
        let params: [Param<'_>; 1] = [(&retired, Type::BOOL)];
        let rows = self.query(session, include_str!("../../sql/admin/lanes.sql"), &params).await?;
        let mut sinks: Vec<Lanes> = Vec::new();
        for row in &rows {
            let sink: String = row.get("sink");
            if sinks.last().is_none_or(|last| last.sink != sink) {
                let (slots_from, positions, lanes) = Default::default();
                sinks.push(Lanes { sink, condition: reads(row), slots_from, positions, lanes });
            }
            if let Some(sink) = sinks.last_mut() {
                sink.add(row);
            }
        }
        Ok(sinks)
    }

    async fn sink(
        &self,
        session: &mut Session,
        overview: &mut Overview,
        lanes: Lanes,
        retired: bool,
    ) -> Result<SinkStatus, AdminError> {
        let estimate = self.backlog(session, overview, &lanes).await?;
        let waits = self.deferred(session, &lanes.sink).await?;
        let dead = self.dead(session, &lanes.sink).await?;
        let delivered = overview.rates.get(&lanes.sink).copied().unwrap_or(0);
        let control = overview.controls.remove(&lanes.sink).unwrap_or_default();
        Ok(sink_status(lanes, estimate, waits, dead, delivered, control, retired))
    }

    async fn backlog(
        &self,
        session: &mut Session,
        overview: &Overview,
        lanes: &Lanes,
    ) -> Result<Estimate, AdminError> {
        let scan = include_str!("../../sql/admin/scan.sql");
        let mut backlog = BacklogCount::behind(lanes.positions.iter().copied().min().unwrap_or(0));
        while let Some(behind) = backlog.next() {
            let rows = self
                .query_where(session, scan, &lanes.condition, &lanes.params(&behind, Type::INT8, &WINDOW))
                .await?;
            let row = one(&rows)?;
            backlog.add(WindowCount {
                scanned: row.get("scanned"),
                reached: row.get("reached"),
                pending: row.get("pending"),
                ages: row.get("ages"),
                oldest: row.get("oldest"),
            });
        }
        let numbers = backlog.probes(overview.last_value);
        if numbers.is_empty() {
            return Ok(backlog.exact());
        }
        let probe = include_str!("../../sql/admin/probe.sql");
        let rows = self
            .query_where(
                session,
                probe,
                &lanes.condition,
                &lanes.params(&numbers, Type::INT8_ARRAY, &PROBE_NUMBERS),
            )
            .await?;
        let row = one(&rows)?;
        let found = Probes { pending: row.get("pending"), ages: row.get("ages") };
        Ok(backlog.estimate(overview.last_value, &found))
    }

    async fn deferred(&self, session: &mut Session, sink: &str) -> Result<Waits, AdminError> {
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&(EXACT_MAX as i64 + 1), Type::INT8)];
        let rows = self.query(session, include_str!("../../sql/admin/deferred.sql"), &params).await?;
        let total = rows.first().map_or(0, |row| row.get("total"));
        let overdue = rows.first().map_or(0.0, |row| row.get("overdue"));
        let count = self.bounded(session, "posthaste.deferred", sink, total).await?;
        let causes = rows.iter().map(|row| cause(sink.to_owned(), row)).collect();
        Ok(Waits { count, overdue, causes })
    }

    async fn dead(&self, session: &mut Session, sink: &str) -> Result<Count, AdminError> {
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&(EXACT_MAX as i64 + 1), Type::INT8)];
        let rows = self.query(session, include_str!("../../sql/admin/dead.sql"), &params).await?;
        let counted = one(&rows)?.get("count");
        self.bounded(session, "posthaste.dead_letters", sink, counted).await
    }

    /// A count up to the bound, or the planner's estimate: it knows the table's size and how often each
    /// sink occurs, and costs nothing.
    async fn bounded(
        &self,
        session: &mut Session,
        table: &str,
        sink: &str,
        counted: i64,
    ) -> Result<Count, AdminError> {
        let counted = counted.unsigned_abs();
        if counted <= EXACT_MAX {
            return Ok(Count { count: counted, exact: true });
        }
        let sql = format!("explain (format json) select from {table} where sink = $1");
        let rows = self.query(session, &sql, &[(&sink, Type::TEXT)]).await?;
        let plan: serde_json::Value = one(&rows)?.get(0);
        let rows = plan[0]["Plan"]["Plan Rows"].as_f64().unwrap_or(0.0);
        Ok(Count { count: counted.max(rows as u64), exact: false })
    }

    async fn segments(&self, session: &mut Session) -> Result<Vec<SegmentStatus>, AdminError> {
        let schema = &self.sessions.config().schema;
        let params: [Param<'_>; 1] = [(schema, Type::TEXT)];
        let rows = self.query(session, include_str!("../../sql/admin/segments.sql"), &params).await?;
        let read = |row: &Row| SegmentStatus {
            segment: row.get("segment"),
            state: row.get("state"),
            bytes: row.get("bytes"),
            opened_at: row.get::<_, Option<Micros>>("opened_at").map(|at| Timestamp(at.0)),
        };
        Ok(rows.iter().map(read).collect())
    }
}

impl Lanes {
    /// Parameters of a look into the log: where, how much, and what each lane has handled.
    fn params<'a>(&'a self, place: &'a (dyn ToSql + Sync), kind: Type, amount: &'a i64) -> [Param<'a>; 4] {
        [
            (place, kind),
            (amount, Type::INT8),
            (&self.slots_from, Type::INT2_ARRAY),
            (&self.positions, Type::INT8_ARRAY),
        ]
    }

    fn add(&mut self, row: &Row) {
        let position: i64 = row.get("position");
        self.slots_from.push(row.get("slot_from"));
        self.positions.push(position);
        self.lanes.push(LaneStatus {
            lane: row.get("lane"),
            owner: row.get("owner"),
            epoch: row.get("epoch"),
            lease_ms: row.get("lease_ms"),
            position,
            catching_up: row.get("catching_up"),
            settled_seconds_ago: row.get("settled_seconds_ago"),
            unclean: row.get("unclean"),
        });
    }
}

fn sink_status(
    lanes: Lanes,
    estimate: Estimate,
    waits: Waits,
    dead: Count,
    delivered: i64,
    control: SinkControl,
    retired: bool,
) -> SinkStatus {
    SinkStatus {
        backlog: estimate.backlog,
        oldest_age_seconds: estimate.oldest.max(waits.overdue),
        average_age_seconds: estimate.average,
        deferred: waits.count,
        dead,
        delivered_per_second: delivered as f64 / 60.0,
        paused: control.paused,
        rate_limit: control.rate_limit,
        set_by: control.set_by,
        waiting: waits.causes,
        retired,
        sink: lanes.sink,
        lanes: lanes.lanes,
    }
}

fn one(rows: &[Row]) -> Result<&Row, AdminError> {
    rows.first().ok_or_else(|| StoreError::no_answer().into())
}
