//! Joining: a relay makes itself known, and agrees with the others on routes, lanes and sinks.
//!
//! Everything is agreed in one transaction under the ring's lock, so that two relays that start at once do it
//! one after the other. A new sink's cursors are born here, each with a mark.

use crate::error::store_error;
use crate::log::filter::stored_filter;
use crate::log::store::{Inner, SHORT_WAITS, SLOTS, check_server, single};
use crate::migrate;
use crate::pooler;
use crate::session::{Param, Session};
use posthaste::route::UNROUTED;
use posthaste::store::{JoinPlan, SinkPlan, StartAt, StoreError};
use std::sync::PoisonError;
use tokio_postgres::types::Type;

/// Leases that may pass before a statement of the relay must have been answered. Reads are bounded in rows,
/// so one that takes this long has nobody to answer it (G7).
const ANSWER_LEASES: u32 = 3;

/// Events that are counted for a warning, at most.
const UNREAD_MAX: i64 = 10_000;

/// A new sink that begins at the end passes over what nobody else has read either.
fn tell_unread(sink: &SinkPlan, start_at: StartAt, unread: i64) {
    if unread > 0 && start_at == StartAt::Now && *sink.name != *UNROUTED {
        tracing::warn!(
            sink = %sink.name, unread,
            "the new sink begins at the end of the log, behind events that no sink has read: `posthaste lanes rewind` sends \
             them; with start_at = \"earliest\" they would have been read"
        );
    }
}

/// The mark a cursor is born with: a number, and an xid that was assigned after it was read and has ended
/// before the cursor's snapshot is taken.
struct BirthMark {
    seq: i64,
    xid: String,
}

impl Inner {
    pub(crate) async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        let mut heart = self.heart.lock().await;
        self.sessions.answer_within(plan.lease_ttl * ANSWER_LEASES);
        pooler::refuse_undeclared(self.sessions.config()).await?;
        let fresh = self.open_heart().await?;
        self.agree(plan, fresh.number).await?;
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        *heart = Some(fresh);
        Ok(())
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
        session.batch(SHORT_WAITS).await.map_err(store_error)?;
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
        let unread = self.unread(session, untouched).await?;
        // First every cursor that is new or will read by another filter, then the filters: what goes over
        // from one sink to another is still taken by the former one up to a number that no cursor of the
        // latter was past.
        for sink in &plan.sinks {
            let start_at = match sink.start_at {
                StartAt::Auto if untouched => StartAt::Earliest,
                StartAt::Auto => StartAt::Now,
                declared => declared,
            };
            self.check_former_filter(session, sink).await?;
            if !self.fence_if_changed(session, sink, &mark).await? {
                self.bear(session, sink, start_at, lanes, &mark).await?;
                tell_unread(sink, start_at, unread);
            }
        }
        for sink in &plan.sinks {
            self.refilter(session, sink).await?;
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
            return Err(StoreError::other_routes(row.get(0)));
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

    /// A relay that froze, or lost its heart, may still read by the former routes and would move past what
    /// now belongs to this sink: it is fenced like a former owner (see take.sql). `false`: the sink is not
    /// known yet.
    async fn fence_if_changed(
        &self,
        session: &mut Session,
        sink: &SinkPlan,
        mark: &BirthMark,
    ) -> Result<bool, StoreError> {
        let (name, filter): (&str, String) = (&sink.name, stored_filter(&sink.filter));
        let sql = self.sessions.sql(include_str!("../../sql/log/fence_changed.sql"));
        let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&filter, Type::TEXT), (&mark.seq, Type::INT8)];
        session.query(&sql, &params).await.map_err(store_error)?;
        let sql = self.sessions.sql("select exists (select from posthaste.lanes where sink = $1)");
        single(session.query(&sql, &[(&name, Type::TEXT)]).await.map_err(store_error)?)
    }

    /// Brings a sink's filter up to date, and the sink back if it was retired.
    async fn refilter(&self, session: &mut Session, sink: &SinkPlan) -> Result<(), StoreError> {
        let (name, filter): (&str, String) = (&sink.name, stored_filter(&sink.filter));
        let sql = self.sessions.sql(include_str!("../../sql/log/refilter.sql"));
        session.query(&sql, &[(&name, Type::TEXT), (&filter, Type::TEXT)]).await.map_err(store_error)?;
        Ok(())
    }

    /// Events that no sink has read, up to a bound: those behind the furthest cursor.
    async fn unread(&self, session: &mut Session, untouched: bool) -> Result<i64, StoreError> {
        if untouched {
            return Ok(0);
        }
        let sql = self.sessions.sql(include_str!("../../sql/log/unread.sql"));
        let params: [Param<'_>; 2] = [(&UNROUTED, Type::TEXT), (&UNREAD_MAX, Type::INT8)];
        single(session.query(&sql, &params).await.map_err(store_error)?)
    }

    /// Makes a new sink's lanes and cursors.
    async fn bear(
        &self,
        session: &mut Session,
        sink: &SinkPlan,
        start_at: StartAt,
        lanes: i32,
        mark: &BirthMark,
    ) -> Result<(), StoreError> {
        let filter = stored_filter(&sink.filter);
        let name: &str = &sink.name;
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
    async fn check_former_filter(&self, session: &mut Session, sink: &SinkPlan) -> Result<(), StoreError> {
        let (sink, filter): (&str, String) = (&sink.name, stored_filter(&sink.filter));
        let sql = self.sessions.sql(
            "select l.filter_until, r.position from posthaste.lanes l
               join lateral (select position from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane
                              order by n desc limit 1) r on true
              where l.sink = $1 and l.filter <> $2 and l.filter_before is not null and r.position < l.filter_until limit 1",
        );
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&filter, Type::TEXT)];
        let rows = session.query(&sql, &params).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(()) };
        Err(StoreError::routes_changing(sink, row.get(1), row.get(0)))
    }
}
