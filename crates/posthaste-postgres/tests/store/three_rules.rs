//! The three rules of reading a log whose numbers are drawn before commit: two must lose, ours must not.
//!
//! Interleavings are built by hand, so that the first two rules lose every time and this test is known to
//! bite (F1, F3). The third rule is the production store.

use crate::fixture::PostgresFixture;
use posthaste::cursor::{Mark, Marks, Position, Snapshot};
use posthaste::route::Filter;
use posthaste::store::{JoinPlan, LaneId, PageLimit, Settlement, SinkPlan, StartAt, Store};
use posthaste_testkit::conformance::store::StoreFixture;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

const APPEND: &str = "select posthaste.append('t', 'x'::text)";

/// Rule one: remember the last number.
struct LastSeq {
    last: i64,
    seen: Vec<i64>,
}

impl LastSeq {
    async fn read(&mut self, client: &Client) {
        let sql = "select seq from posthaste.outbox where seq > $1 order by seq";
        for row in client.query(sql, &[&self.last]).await.expect("read") {
            self.last = row.get(0);
            self.seen.push(self.last);
        }
    }
}

/// Rule two: a snapshot with marks at its xmax. Tempting, and wrong: xmax is "last completed + 1", so a
/// transaction above it may have drawn a lower number already.
struct MarksAtXmax {
    position: Position,
    marks: Marks,
    seen: Vec<i64>,
}

impl MarksAtXmax {
    async fn read(&mut self, client: &Client) {
        client.batch_execute("begin isolation level repeatable read read only").await.expect("begin");
        let row = client.query_one("select pg_current_snapshot()::text", &[]).await.expect("snapshot");
        let now: Snapshot = row.get::<_, String>(0).parse().expect("a snapshot");
        let elders: Vec<i64> = self.position.elders(&self.marks).map(|elder| elder.xid as i64).collect();
        let from = self.position.late_from(&self.marks);
        let late = "select seq from posthaste.outbox where seq <= $2
                       and (seq > $1 or xid::text::bigint = any ($4))
                       and not pg_visible_in_snapshot(xid, $3::text::pg_snapshot) order by seq";
        let snapshot = self.position.snapshot.to_string();
        let rows =
            client.query(late, &[&from, &self.position.position, &snapshot, &elders]).await.expect("late");
        self.seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        let tail = "select seq from posthaste.outbox where seq > $1 order by seq";
        let rows = client.query(tail, &[&self.position.position]).await.expect("tail");
        client.batch_execute("commit").await.expect("commit");
        self.seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        let reached = rows.last().map_or(self.position.position, |row| row.get(0));
        self.marks.add(Mark { xid: now.xmax, seq: reached });
        self.position = self.position.after_tail(now, reached);
    }
}

struct Ours {
    lease: Arc<dyn posthaste::store::Lease>,
    seen: Vec<i64>,
}

impl Ours {
    async fn read(&mut self) {
        loop {
            let page = self.lease.read(PageLimit { events: 100, bytes: 1 << 20 }).await.expect("read");
            self.seen.extend(page.events.iter().map(|stored| stored.seq));
            let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
            self.lease.settle(&settlement).await.expect("settle");
            if !page.more {
                return;
            }
        }
    }
}

pub(crate) fn plan(relay: &str, lanes: u16) -> JoinPlan {
    JoinPlan {
        relay: relay.into(),
        sinks: vec![SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Earliest }],
        routes: "{}".to_owned(),
        lanes: Some(lanes),
        lease_ttl: Duration::from_secs(20),
    }
}

struct Stage {
    fixture: PostgresFixture,
    client: Client,
    last: LastSeq,
    xmax: MarksAtXmax,
    ours: Ours,
    _store: Arc<dyn Store>,
}

impl Stage {
    /// On a server of its own: transaction ids are counted for the whole server, and these interleavings
    /// are built from them.
    async fn set(server: &Postgres) -> Option<Self> {
        let database = TestDatabase::create_on(server).await.expect("a database");
        let fixture = PostgresFixture::on(database).await;
        let store = fixture.store().await;
        store.join(&plan("a", 1)).await.expect("join");
        let id = LaneId { sink: "s".into(), lane: 0 };
        let lease = store.take(&id).await.expect("take").expect("free");
        let client = fixture.connect().await;
        Some(Self {
            client,
            last: LastSeq { last: 0, seen: Vec::new() },
            xmax: MarksAtXmax {
                position: Position::new(0, "1:1:".parse().expect("a snapshot")),
                marks: Marks::default(),
                seen: Vec::new(),
            },
            ours: Ours { lease, seen: Vec::new() },
            _store: store,
            fixture,
        })
    }

    async fn open(&self) -> Client {
        let client = self.fixture.connect().await;
        client.batch_execute("begin; select pg_current_xact_id()").await.expect("begin with an xid");
        client
    }

    async fn read_all(&mut self) {
        self.last.read(&self.client).await;
        self.xmax.read(&self.client).await;
        self.ours.read().await;
    }

    async fn committed(&self) -> Vec<i64> {
        let rows =
            self.client.query("select seq from posthaste.outbox order by seq", &[]).await.expect("all");
        rows.iter().map(|row| row.get(0)).collect()
    }
}

fn lost(committed: &[i64], seen: &[i64]) -> usize {
    committed.iter().filter(|seq| !seen.contains(seq)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_the_last_number_loses_a_late_commit_and_ours_does_not() {
    let server = require_service!(
        Postgres::start(Version::tested(), &PostgresOptions::default().setting("autovacuum", "off")).await
    );
    let Some(mut stage) = Stage::set(&server).await else { return };
    let late = stage.open().await;
    late.batch_execute(APPEND).await.expect("append");
    stage.client.batch_execute(APPEND).await.expect("append");
    stage.read_all().await;
    late.batch_execute("commit").await.expect("commit");
    stage.read_all().await;
    let committed = stage.committed().await;
    assert_eq!(lost(&committed, &stage.last.seen), 1, "rule one loses: the test bites");
    assert_eq!(lost(&committed, &stage.ours.seen), 0);
    assert_eq!(stage.ours.seen.len(), committed.len(), "and sends nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn f3_marks_at_xmax_lose_a_running_transaction_that_no_snapshot_lists_and_ours_does_not() {
    let server = require_service!(
        Postgres::start(Version::tested(), &PostgresOptions::default().setting("autovacuum", "off")).await
    );
    let Some(mut stage) = Stage::set(&server).await else { return };
    stage.read_all().await;
    // C draws late but has the lowest xid; F only runs; A has the highest xid and draws first.
    let (c, f, a) = (stage.open().await, stage.open().await, stage.open().await);
    a.batch_execute(APPEND).await.expect("append");
    c.batch_execute(APPEND).await.expect("append");
    c.batch_execute("commit").await.expect("commit");
    // Now last completed = C: xmax is C + 1 = F, and A, above it, is running and not listed.
    stage.read_all().await;
    stage.read_all().await;
    a.batch_execute("commit").await.expect("commit");
    f.batch_execute("rollback").await.expect("rollback");
    stage.read_all().await;
    stage.read_all().await;
    let committed = stage.committed().await;
    assert_eq!(committed.len(), 2);
    assert_eq!(lost(&committed, &stage.xmax.seen), 1, "rule two loses: the test bites");
    assert_eq!(lost(&committed, &stage.ours.seen), 0);
    assert_eq!(stage.ours.seen.len(), 2);
}
