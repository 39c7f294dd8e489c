//! What claims cost and hold: bytes are bounded, the next batch comes while one is settled, and leases touch
//! no index.

use crate::ground::Ground;
use posthaste::route::Filter;
use posthaste::store::{
    Deferral, Due, DueEvent, DueQuery, JoinPlan, LaneId, Lease, Reason, Settlement, SinkPlan, StartAt, Store,
};
use posthaste_postgres::claim::{ClaimStore, claim_index, statements_for};
use posthaste_testkit::conformance::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::Type;

const DDL: &str = "create table outbox (id bigint primary key generated always as identity, topic text not null default 't', key text,
    payload_json jsonb not null default '{}', idempotency_key text, status text not null default 'pending', retry_count int not null default 0,
    last_error text, last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(), published_at timestamptz,
    created_at timestamptz not null default now()) with (fillfactor = 10)";

const BYTES: usize = 1 << 20;

fn plan() -> JoinPlan {
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Auto };
    JoinPlan {
        relay: "one".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: None,
        lease_ttl: Duration::from_secs(1),
    }
}

async fn lease(ground: &Ground) -> (ClaimStore, Arc<dyn Lease>) {
    let store = ground.store().await.expect("connects");
    store.join(&plan()).await.expect("joins");
    let lane = LaneId { sink: "s".into(), lane: 0 };
    let lease = store.take(&lane).await.expect("taken").expect("free");
    (store, lease)
}

fn query() -> DueQuery {
    DueQuery { events: 100, bytes: BYTES, ..DueQuery::default() }
}

fn delivered(events: &[DueEvent]) -> Settlement {
    Settlement { delivered: events.iter().map(|event| event.stored.seq).collect(), ..Settlement::default() }
}

/// G7: a claim holds no more than twice the bytes it was asked for, however small the server keeps them; what
/// does not fit goes back as it was. So does a payload that is stored as it is. In both claim styles.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_claim_is_bounded_in_bytes() {
    for (locked, payload) in [
        (false, "to_jsonb(repeat('x', 262144))"),
        (
            false,
            "(select to_jsonb(string_agg(md5(random()::text || g || n), '')) from generate_series(1, 8192) n)",
        ),
        (true, "to_jsonb(repeat('x', 262144))"),
    ] {
        let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
        ground.layout.batch = 100;
        if locked {
            ground.layout.status.as_mut().expect("it has one").claimed = None;
        }
        let rows =
            format!("insert into outbox (payload_json) select {payload} from generate_series(1, 40) g");
        ground.execute(&rows).await;
        let (_store, lease) = lease(&ground).await;
        let (mut all, mut batches) = (0, 0);
        while all < 40 {
            let events = lease.due(query()).await.expect("claims").events;
            assert!(!events.is_empty(), "{all} rows in {batches} batches");
            let bytes: usize = events.iter().map(|event| event.stored.bytes()).sum();
            assert!(bytes <= 2 * BYTES + 300_000, "{bytes} bytes in {} events", events.len());
            (all, batches) = (all + events.len(), batches + 1);
            lease.settle(&delivered(&events)).await.expect("settles");
        }
        assert!((5..=20).contains(&batches), "{batches} batches of about four rows");
        lease.release().await.expect("released");
        let done = "select count(*) from outbox where status = 'published' and retry_count = 0";
        assert_eq!(ground.ask::<i64>(done).await, 40);
    }
}

/// The next batch is claimed while one is settled, and comes back in order; it goes back with the lease, or
/// when the sink goes away.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_batch_is_claimed_while_one_is_settled() {
    let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
    ground.layout.batch = 10;
    ground.execute("insert into outbox (next_attempt_at) select now() - interval '1 s' + g * interval '1 ms' from generate_series(1, 50) g").await;
    let (_store, lease) = lease(&ground).await;
    let in_hand = "select count(*) from outbox where status = 'publishing'";
    let first = lease.due(query()).await.expect("claims").events;
    assert_eq!((first.len(), ground.ask::<i64>(in_hand).await), (10, 10));
    lease.settle(&delivered(&first)).await.expect("settles");
    assert_eq!(ground.ask::<i64>(in_hand).await, 10, "the next ten are in hand already");
    let second = lease.due(query()).await.expect("is there").events;
    let order = "select array_agg(id order by next_attempt_at) from outbox where status = 'publishing'";
    let created = |events: &[DueEvent]| events.iter().map(|event| event.stored.seq).collect::<Vec<_>>();
    assert_eq!(created(&second), (11..=20).collect::<Vec<i64>>());
    assert_eq!(ground.ask::<Vec<i64>>(order).await.len(), 10);
    // One was not tried: nothing waits in hand for a sink that is away.
    let (one, rest) = second.split_first().expect("ten of them");
    lease.settle(&delivered(rest)).await.expect("settles");
    assert_eq!(ground.ask::<i64>(in_hand).await, 11);
    let waits = Deferral {
        reason: Reason::Outage,
        due: Due::In(Duration::ZERO),
        attempts: 0,
        class: None,
        code: None,
        error: None,
        route: "r".into(),
        destination: "t".to_owned(),
        holds: false,
        holds_when_dead: false,
    };
    let away = Settlement { again: vec![(one.stored.seq, waits)], ..Settlement::default() };
    lease.settle(&away).await.expect("settles");
    let as_before = "select count(*) from outbox where status = 'pending' and last_attempt_at is null and retry_count = 0";
    assert_eq!((ground.ask::<i64>(in_hand).await, ground.ask::<i64>(as_before).await), (0, 31));
    // And nothing is left in hand by one that goes.
    let third = lease.due(query()).await.expect("claims").events;
    lease.settle(&delivered(&third)).await.expect("settles");
    assert_eq!(ground.ask::<i64>(in_hand).await, 10);
    lease.release().await.expect("released");
    assert_eq!((ground.ask::<i64>(in_hand).await, ground.ask::<i64>(as_before).await), (0, 21));
}

/// A lease's column is in no index that we advise: its renewal is a HOT update, and no index learns of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_a_hot_update() {
    let Some(ground) = Ground::make("talkie", DDL).await else { return };
    ground.execute(&claim_index(&ground.layout).expect("one is advised").replace(" CONCURRENTLY", "")).await;
    ground.execute("insert into outbox (topic) select 't' from generate_series(1, 100)").await;
    let statements = statements_for(&ground.config(), &ground.layout).await.expect("it fits");
    let renew = statements.renewed().expect("rows are marked");
    let counted = "select coalesce(n_tup_upd, 0), coalesce(n_tup_hot_upd, 0) from pg_stat_user_tables where relname = 'outbox'";
    let (_store, lease) = lease(&ground).await;
    assert_eq!(lease.due(query()).await.expect("claims").events.len(), 50);
    {
        let other = ground.database.connect().await.expect("a connection");
        for _ in 0..3 {
            let marks = "select array_agg(id::text order by id), array_agg(last_attempt_at order by id) from outbox where status = 'publishing'";
            let row = other.query_one(marks, &[]).await.expect("marks");
            let (ids, marks): (Vec<String>, Vec<std::time::SystemTime>) = (row.get(0), row.get(1));
            let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
                [(&ids, Type::TEXT_ARRAY), (&marks, Type::TIMESTAMPTZ_ARRAY)];
            assert_eq!(other.query_typed(&renew, &params).await.expect("renews").len(), 50);
        }
    }
    drop((lease, _store));
    // The server counts when its sessions end, or a second later.
    let (all, hot) = eventually("the server has counted", Duration::from_secs(60), async || {
        let row = ground.app.query_one(counted, &[]).await.expect("statistics");
        let (all, hot): (i64, i64) = (row.get(0), row.get(1));
        (all >= 200).then_some((all, hot))
    })
    .await;
    // The rehearsal counts too, although it was rolled back.
    assert!((150..160).contains(&hot), "three renewals of fifty rows: {hot}");
    assert!(
        all - hot >= 50,
        "a claim changes the status, which an index has in its condition: {hot} of {all}"
    );
}

/// F27: what a dead relay left behind has its turn however much else waits, and takes no more than one look
/// of two.
#[tokio::test(flavor = "multi_thread")]
async fn f27_a_backlog_does_not_keep_the_dead_waiting() {
    let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
    (ground.layout.batch, ground.layout.lease) = (10, Duration::from_secs(5));
    ground.execute("insert into outbox (status, last_attempt_at) select 'publishing', now() - interval '10 s' from generate_series(1, 3)").await;
    let (_store, lease) = lease(&ground).await;
    let (mut sizes, end) = (Vec::new(), tokio::time::Instant::now() + Duration::from_secs(60));
    while ground.ask::<bool>("select count(*) > 0 from outbox where id <= 3 and status <> 'published'").await
    {
        assert!(tokio::time::Instant::now() < end, "the dead's rows are published: {sizes:?}");
        // More than is taken: there is always a next batch.
        ground.execute("insert into outbox (topic) select 't' from generate_series(1, 30)").await;
        let events = lease.due(query()).await.expect("claims").events;
        sizes.push(events.len());
        lease.settle(&delivered(&events)).await.expect("settles");
    }
    let alone: Vec<usize> = sizes.iter().copied().filter(|size| *size == 1).collect();
    assert_eq!(alone.len(), 3, "each for itself: {sizes:?}");
    assert!(!sizes.windows(2).any(|two| two == [1, 1]), "and others in between: {sizes:?}");
    lease.release().await.expect("released");
    assert_eq!(ground.ask::<i32>("select max(retry_count) from outbox").await, 0, "nobody is charged");
}
