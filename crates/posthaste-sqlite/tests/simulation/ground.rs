//! The ground of the simulation: one file in a directory of its own, one [`SqliteStore`] for each relay.
//!
//! Each relay opens the file for itself, as a process of its own would: its own writer, readers, watch and
//! heart. What they share is the file. The application's transactions run on threads and connections of their
//! own.
//!
//! The tables forget what the check asks for: letters that were acted on, receipts behind the horizon, owners
//! that died. Triggers of the test write it down, in the transactions that make it happen. Commits are
//! `NORMAL`: no power is cut here, and syncing the disk would only be waiting.

use async_trait::async_trait;
use posthaste::admin::{Actor, Admin, Control, ControlTarget, DeadAct, DeadFilter};
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::store::{Controls, Death, ErrorClass, LaneId, LaneView, Store};
use posthaste_sqlite::{SqliteAdmin, SqliteConfig, SqliteStore, Synchronous, migrate};
use posthaste_testkit::simulation::{Burial, DeferredEvent, Ground, LaneReceipt, Tempo, Transaction};
use rusqlite::{Connection, Params, Row, params};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

use super::transaction::OwnTransaction;

/// What happened, for the check.
const MEMORY: &str = "
create table sim_burials as select *, null as gone_at from posthaste_dead_letters where false;
create trigger sim_buried after insert on posthaste_dead_letters begin
  insert into sim_burials (letter, sink, seq, id, key, route, holds_key, attempts, error_class, error_code, error, dead_at)
  values (new.letter, new.sink, new.seq, new.id, new.key, new.route, new.holds_key, new.attempts, new.error_class,
          new.error_code, new.error, new.dead_at);
end;
create trigger sim_gone after delete on posthaste_dead_letters begin
  update sim_burials set gone_at = cast((julianday('now') - 2440587.5) * 86400000000.0 as integer) where letter = old.letter;
end;
create table sim_receipts as select * from posthaste_receipts where false;
create trigger sim_receipt after insert on posthaste_receipts begin
  insert into sim_receipts (sink, lane, n, epoch, position, count)
  values (new.sink, new.lane, new.n, new.epoch, new.position, new.count);
end;
create table sim_deaths (sink text, lane integer);
create trigger sim_death after update of epoch on posthaste_lanes when new.epoch > old.epoch and old.owner is not null begin
  insert into sim_deaths values (new.sink, new.lane);
end;";

/// A connection as an application has it.
pub(crate) fn connect(path: &PathBuf) -> Connection {
    let connection = Connection::open(path).expect("a connection");
    connection.busy_timeout(Duration::from_secs(20)).expect("a timeout");
    connection.pragma_update(None, "synchronous", "normal").expect("a pragma");
    connection
}

/// The file.
pub(crate) struct SqliteGround {
    directory: tempfile::TempDir,
    admin: tokio::sync::OnceCell<SqliteAdmin>,
    /// For looks.
    eye: Mutex<Connection>,
}

impl SqliteGround {
    pub(crate) fn make() -> Arc<dyn Ground> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("orders.db");
        migrate::up(&SqliteConfig::new(&path)).expect("the migration applies");
        let eye = connect(&path);
        eye.execute_batch(MEMORY).expect("the triggers");
        Arc::new(Self { directory, admin: tokio::sync::OnceCell::new(), eye: Mutex::new(eye) })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("orders.db")
    }

    fn config(&self) -> SqliteConfig {
        SqliteConfig { synchronous: Synchronous::Normal, ..SqliteConfig::new(self.path()) }
    }

    async fn admin(&self) -> &SqliteAdmin {
        let open = || async { SqliteAdmin::connect(self.config()).await.expect("the admin connects") };
        self.admin.get_or_init(open).await
    }

    async fn control(&self, target: ControlTarget, control: Control) {
        // A sink is known as soon as the first relay has joined; before that there is nothing to pause.
        let _ = self.admin().await.control(&target, &control, &actor()).await;
    }

    fn eye(&self) -> MutexGuard<'_, Connection> {
        self.eye.lock().expect("no look panics")
    }

    /// First slots of the lanes. They are the same for every sink.
    fn ranges(&self) -> Vec<(i16, i16)> {
        let sql = "select distinct lane, slot_from from posthaste_lanes order by lane desc";
        self.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    fn rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Vec<T> {
        let eye = self.eye();
        let mut statement = eye.prepare_cached(sql).expect("a statement");
        let rows = statement.query_map(params, |row| read(row)).expect("a query");
        rows.collect::<Result<_, _>>().expect("rows")
    }
}

fn actor() -> Actor {
    Actor::new("simulation", "chaos")
}

fn id(row: &Row<'_>, column: &str) -> rusqlite::Result<Uuid> {
    Ok(Uuid::parse_str(&row.get::<_, String>(column)?).expect("an id"))
}

fn class(word: &str) -> ErrorClass {
    let all = [ErrorClass::Transient, ErrorClass::Permanent, ErrorClass::Unknown];
    all.into_iter().find(|class| class.as_str() == word).expect("a class")
}

/// The slot of an event as documented: a hash of its key (FNV-1a, folded), or its number.
fn slot(key: Option<&str>, seq: i64) -> i16 {
    let Some(key) = key else { return (seq % 1024) as i16 };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    ((hash ^ (hash >> 32)) % 1024) as i16
}

/// The lane of a slot, highest first; none before the first relay has joined.
fn lane_in(ranges: &[(i16, i16)], slot: i16) -> i16 {
    ranges.iter().find(|(_, from)| slot >= *from).map_or(-1, |(lane, _)| *lane)
}

#[async_trait]
impl Ground for SqliteGround {
    fn tempo(&self) -> Tempo {
        Tempo::Real
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::connect(self.config()).await.expect("the store opens"))
    }

    fn begin(&self, _synchronous: bool) -> Box<dyn Transaction> {
        Box::new(OwnTransaction::new(self.path()))
    }

    /// Without its file a heart does not beat. One that has not joined yet has none.
    fn kill(&self, relay: &str) {
        let sql = "select heart from posthaste_relays where relay = ?1";
        for heart in self.rows(sql, [relay], |row| row.get::<_, Option<String>>(0)).into_iter().flatten() {
            let _ = std::fs::remove_file(self.directory.path().join(heart));
        }
    }

    fn crash(&self, _logged_ahead: i64) {
        unreachable!("a file has no server, and its scenarios no crash of one");
    }

    async fn set_controls(&self, controls: Controls) {
        let sql = "select kind, name from posthaste_controls where paused or rate_limit is not null";
        let set = self.rows(sql, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
        for (kind, name) in set {
            if kind == "sink" {
                self.control(ControlTarget::Sink(name.clone()), Control::RateLimit(None)).await;
                self.control(ControlTarget::Sink(name), Control::Resume).await;
            } else {
                self.control(ControlTarget::Route(name), Control::Resume).await;
            }
        }
        for sink in controls.paused_sinks {
            self.control(ControlTarget::Sink(sink), Control::Pause).await;
        }
        for route in controls.paused_routes {
            self.control(ControlTarget::Route(route), Control::Pause).await;
        }
        for (sink, rate) in controls.rate_limits {
            self.control(ControlTarget::Sink(sink), Control::RateLimit(Some(rate))).await;
        }
    }

    async fn act_on_dead(&self, sink: &str, act: DeadAct) -> u64 {
        let filter = DeadFilter { sink: Some(sink.to_owned()), ..DeadFilter::default() };
        let acted = self.admin().await.dead_act(&filter, act, &actor(), 1_000).await;
        acted.expect("the act succeeds")
    }

    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        Timestamp(since.as_micros() as i64)
    }

    fn committed(&self) -> Vec<StoredEvent> {
        let sql = "select seq, id, topic, key, appended_at from posthaste_outbox order by seq";
        self.rows(sql, [], |row| {
            let (seq, topic): (i64, String) = (row.get("seq")?, row.get("topic")?);
            let key: Option<String> = row.get("key")?;
            let slot = slot(key.as_deref(), seq);
            let mut event = Event::new(topic, Vec::new()).with_id(id(row, "id")?);
            event.key = key;
            Ok(StoredEvent {
                seq,
                slot,
                appended_at: Timestamp(row.get("appended_at")?),
                event,
                defect: None,
            })
        })
    }

    fn deferred(&self, sink: &str) -> Vec<DeferredEvent> {
        let sql = "select seq, id, attempts from posthaste_deferred where sink = ?1 order by seq";
        let read =
            |row: &Row<'_>| Ok(DeferredEvent { seq: row.get(0)?, id: id(row, "id")?, attempts: row.get(2)? });
        self.rows(sql, [sink], read)
    }

    fn burials(&self, sink: &str) -> Vec<Burial> {
        let sql = "select * from sim_burials where sink = ?1 order by letter";
        self.rows(sql, [sink], |row| {
            let death = Death {
                attempts: row.get("attempts")?,
                class: class(&row.get::<_, String>("error_class")?),
                code: row.get("error_code")?,
                error: row.get("error")?,
                route: row.get::<_, String>("route")?.into(),
                holds: row.get("holds_key")?,
            };
            Ok(Burial {
                seq: row.get("seq")?,
                id: id(row, "id")?,
                key: row.get("key")?,
                death,
                dead_at: Timestamp(row.get("dead_at")?),
                gone_at: row.get::<_, Option<i64>>("gone_at")?.map(Timestamp),
            })
        })
    }

    fn receipts(&self, lane: &LaneId) -> Vec<LaneReceipt> {
        let sql =
            "select n, epoch, position, count from sim_receipts where sink = ?1 and lane = ?2 order by rowid";
        self.rows(sql, params![&*lane.sink, lane.lane], |row| {
            let events = row.get::<_, i64>(3)?.unsigned_abs();
            Ok(LaneReceipt {
                n: row.get(0)?,
                epoch: row.get(1)?,
                position: row.get(2)?,
                events,
                seq_sum: None,
            })
        })
    }

    fn lanes(&self) -> Vec<LaneView> {
        let now = self.now().0;
        let sql =
            "select sink, lane, owner, epoch, expires_at, heart from posthaste_lanes order by sink, lane";
        let mut lanes = self.rows(sql, [], |row| {
            let id = LaneId { sink: row.get::<_, String>(0)?.into(), lane: row.get(1)? };
            let expires_at: Option<i64> = row.get(4)?;
            let heart: Option<String> = row.get(5)?;
            let beats = heart.is_none_or(|heart| self.directory.path().join(heart).exists());
            let is_live = expires_at.is_some_and(|expires| expires > now) && beats;
            let owner = row.get::<_, Option<String>>(2)?.filter(|_| is_live).map(Into::into);
            Ok(LaneView { id, is_free: owner.is_none(), owner, epoch: row.get(3)? })
        });
        // Nothing is unrouted here, and the sink of what is has a lane like any other.
        lanes.retain(|lane| &*lane.id.sink != "unrouted");
        lanes
    }

    fn deaths(&self, lane: &LaneId) -> u32 {
        let sql = "select count(*) from sim_deaths where sink = ?1 and lane = ?2";
        self.rows(sql, params![&*lane.sink, lane.lane], |row| row.get(0))[0]
    }

    fn unsettled(&self, sink: &str) -> BTreeSet<i64> {
        let sql = "select lane, position from posthaste_receipts r where sink = ?1
                    and n = (select max(n) from posthaste_receipts m where m.sink = r.sink and m.lane = r.lane)";
        let cursors: Vec<(i16, i64)> = self.rows(sql, [sink], |row| Ok((row.get(0)?, row.get(1)?)));
        let ranges = self.ranges();
        let is_handled = |stored: &StoredEvent| {
            let lane = lane_in(&ranges, stored.slot);
            cursors.iter().any(|(of, position)| *of == lane && stored.seq <= *position)
        };
        let unread =
            self.committed().into_iter().filter(|stored| !is_handled(stored)).map(|stored| stored.seq);
        unread.chain(self.deferred(sink).into_iter().map(|waiting| waiting.seq)).collect()
    }

    fn lane_of(&self, stored: &StoredEvent) -> i16 {
        lane_in(&self.ranges(), stored.slot)
    }
}
