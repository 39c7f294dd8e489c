//! Settlements that the database refuses for their data: the offending event alone is given up, and says so;
//! everything else of the batch is settled, and the lane goes on.

use crate::fixture::PostgresFixture;
use crate::three_rules::plan;
use posthaste::store::{
    Death, Deferral, Due, DueQuery, ErrorClass, LaneId, Lease, Page, PageLimit, Reason, Settlement, Store,
    StoreError,
};
use posthaste_postgres::PostgresStore;
use posthaste_testkit::conformance::store::StoreFixture;
use posthaste_testkit::services::{TestDatabase, require};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// An arrow is not in LATIN1.
const UNSPEAKABLE: &str = "the broker says \u{2192}";

fn waits(error: &str) -> Deferral {
    Deferral {
        reason: Reason::Retry,
        due: Due::In(Duration::from_secs(600)),
        attempts: 2,
        class: Some(ErrorClass::Transient),
        code: None,
        error: Some(error.to_owned()),
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: false,
    }
}

fn dies(error: &str) -> Death {
    Death {
        attempts: 3,
        class: ErrorClass::Permanent,
        code: "test.no".to_owned(),
        error: error.to_owned(),
        route: "r".into(),
        holds: false,
    }
}

/// What a broker said about each event, by its place.
fn said(place: usize) -> &'static str {
    if place % 17 == 5 { UNSPEAKABLE } else { "fine" }
}

pub(crate) struct Scene {
    _fixture: PostgresFixture,
    pub(crate) client: Client,
    pub(crate) lease: Arc<dyn Lease>,
    store: Arc<dyn Store>,
}

impl Scene {
    pub(crate) async fn set(encoding: &str) -> Option<Self> {
        let database = require(TestDatabase::create_encoded(encoding).await)?;
        let fixture = PostgresFixture::on(database).await;
        let client = fixture.connect().await;
        let store: Arc<dyn Store> =
            Arc::new(PostgresStore::connect(fixture.config()).await.expect("the store connects"));
        store.join(&plan("a", 1)).await.expect("join");
        let lease = take(&store).await.expect("the lane is free");
        Some(Self { _fixture: fixture, client, lease, store })
    }

    /// Appends events, a key each, and reads them.
    async fn page(&self, events: i64) -> Page {
        let sql = "insert into posthaste.outbox (topic, key, payload) \
                   select 't', 'key-' || g, 'x' from generate_series(1, $1::bigint) g";
        self.client.execute(sql, &[&events]).await.expect("an append");
        let page = self.lease.read(PageLimit { events: 1_000, bytes: 1 << 20 }).await.expect("a read");
        assert_eq!(page.events.len() as i64, events);
        page
    }

    async fn settle(&self, settlement: Settlement) {
        self.lease.settle(&settlement).await.expect("the settlement is written, without the offender");
        // Its outcome might have been unknown: it is harmless when repeated.
        self.lease.settle(&settlement).await.expect("a repetition");
    }

    /// Numbers and codes of the dead letters.
    async fn dead(&self) -> Vec<(i64, String)> {
        let sql = "select seq, error_code from posthaste.dead_letters order by seq";
        let rows = self.client.query(sql, &[]).await.expect("dead letters");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn deferred(&self) -> Vec<i64> {
        let rows = self.client.query("select seq from posthaste.deferred order by seq", &[]).await;
        rows.expect("deferred events").iter().map(|row| row.get(0)).collect()
    }
}

async fn take(store: &Arc<dyn Store>) -> Option<Arc<dyn Lease>> {
    store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("the store answers")
}

fn refused(seqs: impl IntoIterator<Item = i64>) -> Vec<(i64, String)> {
    seqs.into_iter().map(|seq| (seq, "store.refused".to_owned())).collect()
}

/// G2, G7: no repetition would mend it. The rest of the batch waits as it should.
#[tokio::test(flavor = "multi_thread")]
async fn g2_an_event_whose_words_cannot_be_stored_is_given_up_alone() {
    let Some(scene) = Scene::set("LATIN1").await else { return };
    let page = scene.page(100).await;
    let seqs: Vec<i64> = page.events.iter().map(|stored| stored.seq).collect();
    let with_words = page.events.into_iter().enumerate();
    let deferred = with_words.map(|(place, stored)| (stored, waits(said(place)))).collect();
    scene.settle(Settlement { through: Some(page.number), deferred, ..Settlement::default() }).await;
    let (bad, good): (Vec<_>, Vec<_>) = seqs.iter().enumerate().partition(|(at, _)| said(*at) == UNSPEAKABLE);
    let numbers = |list: Vec<(usize, &i64)>| list.into_iter().map(|(_, seq)| *seq).collect::<Vec<i64>>();
    let (bad, good) = (numbers(bad), numbers(good));
    assert_eq!((scene.dead().await, scene.deferred().await), (refused(bad.clone()), good.clone()));
    assert_eq!(scene.lease.given_up(), bad.len() as u64);

    // Deferred before: one goes on waiting, one dies; both with words that cannot be stored.
    let settlement = Settlement {
        delivered: vec![good[0]],
        again: vec![(good[1], waits("fine")), (good[2], waits(UNSPEAKABLE))],
        died: vec![(good[3], dies(UNSPEAKABLE)), (good[4], dies("fine"))],
        ..Settlement::default()
    };
    scene.settle(settlement).await;
    let mut dead = refused(bad.iter().copied().chain([good[2], good[3]]));
    dead.push((good[4], "test.no".to_owned()));
    dead.sort();
    assert_eq!(scene.dead().await, dead);
    assert_eq!(scene.deferred().await[..2], [good[1], good[5]]);

    // Dead at first sight: it stays dead, in other words.
    let mut page = scene.page(2).await;
    let (second, first) = (page.events.pop().expect("two"), page.events.pop().expect("two"));
    dead.extend(refused([first.seq]));
    dead.push((second.seq, "test.no".to_owned()));
    let list = vec![(first, dies(UNSPEAKABLE)), (second, dies("fine"))];
    scene.settle(Settlement { through: Some(page.number), dead: list, ..Settlement::default() }).await;
    assert_eq!(scene.dead().await, dead);

    // The cursor stands behind all of it.
    scene.lease.release().await.expect("released");
    let next = take(&scene.store).await.expect("the lane is free");
    let page = next.read(PageLimit { events: 1_000, bytes: 1 << 20 }).await.expect("a read");
    assert!(page.events.is_empty(), "everything is settled");
}

/// Whatever somebody else forbids, too. And what waits behind the offender does not wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn g3_what_waits_behind_an_event_that_was_given_up_comes_due() {
    let Some(scene) = Scene::set("UTF8").await else { return };
    let forbid = "alter table posthaste.deferred add check (last_error not like '%secret%')";
    scene.client.batch_execute(forbid).await.expect("a constraint");
    let sql =
        "insert into posthaste.outbox (topic, key, payload) select 't', 'k', 'x' from generate_series(1, 3)";
    scene.client.batch_execute(sql).await.expect("an append");
    let page = scene.lease.read(PageLimit { events: 10, bytes: 1 << 20 }).await.expect("a read");
    let behind = Deferral { reason: Reason::Held, due: Due::Behind, error: None, ..waits("") };
    let deferred = page
        .events
        .into_iter()
        .enumerate()
        .map(|(place, stored)| (stored, if place == 0 { waits("a secret") } else { behind.clone() }));
    let deferred = deferred.collect();
    scene.settle(Settlement { through: Some(page.number), deferred, ..Settlement::default() }).await;
    assert_eq!(scene.dead().await, refused([1]));
    let query = DueQuery { events: 10, bytes: 1 << 20, ..DueQuery::default() };
    let due = scene.lease.due(query).await.expect("a look");
    assert_eq!(due.events.iter().map(|event| event.stored.seq).collect::<Vec<_>>(), [2, 3]);
}

/// G4: under a lost lease nothing is looked into, and nothing is given up.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_lost_lease_gives_nothing_up() {
    let Some(scene) = Scene::set("LATIN1").await else { return };
    let page = scene.page(3).await;
    scene._fixture.kill("a").await;
    let other = scene._fixture.store().await;
    other.join(&plan("b", 1)).await.expect("join");
    let successor = take(&other).await.expect("the lane is free");
    let deferred = page.events.into_iter().map(|stored| (stored, waits(UNSPEAKABLE))).collect();
    let settlement = Settlement { through: Some(page.number), deferred, ..Settlement::default() };
    let answer = scene.lease.settle(&settlement).await;
    assert!(matches!(answer, Err(StoreError::LeaseLost(_))), "{answer:?}");
    assert_eq!(scene.dead().await, []);
    let again = successor.read(PageLimit { events: 10, bytes: 1 << 20 }).await.expect("a read");
    assert_eq!(again.events.len(), 3, "the successor has them all");
}
