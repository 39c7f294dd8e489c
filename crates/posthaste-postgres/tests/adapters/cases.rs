//! What holds for each adapter alike.

use super::Outbox;
use super::adapter::{Act, Adapter, Diesel, DieselAsync, SeaOrm, Sqlx};
use posthaste::inbox::Admission;
use posthaste::{Event, Timestamp};
use posthaste_testkit::services::{self, TestDatabase};
use uuid::Uuid;

const COMMIT: Act = Act { batch: false, commit: true };
const BATCH: Act = Act { batch: true, commit: true };

/// G1: nothing of a transaction that was rolled back, all of one that was committed.
async fn rolled_back_and_committed<A: Adapter>() {
    let Some(outbox) = Outbox::make().await else { return };
    let events =
        || [Event::new("t", "x"), Event::new("t", "y").with_idempotency_key("k"), Event::new("t", "z")];
    for batch in [false, true] {
        let answers = A::transact(&outbox.url(), &events(), Act { batch, commit: false }).await;
        assert!(answers.len() == 3 && answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(outbox.count().await, 0);
    A::transact(&outbox.url(), &events(), COMMIT).await;
    assert_eq!(outbox.count().await, 3);
}

fn odd_events() -> Vec<Event> {
    let payloads: [&[u8]; 4] = [b"", b"\0\xff\xfe", br#"{"b": [ ], "a":null}"#, "grün".as_bytes()];
    let mut events: Vec<Event> = payloads.iter().map(|bytes| Event::new("t", bytes.to_vec())).collect();
    events[1] = events[1].clone().with_key("clé").with_content_type("application/octet-stream");
    events.push(
        Event::tombstone("topic.of-another/kind")
            .with_key("k")
            .with_header("traceparent", "00-1-2-01")
            .with_header("note", "grün, \"quoted\"")
            .deliver_at(Timestamp(1_700_000_000_123_456)),
    );
    events.push(Event::new("t", "before 1970").deliver_at(Timestamp(-1)));
    events
}

/// F86: what goes in is what is stored, byte for byte and in order, and a tombstone is not an empty payload.
async fn untouched<A: Adapter>() {
    let Some(outbox) = Outbox::make().await else { return };
    let one_by_one = odd_events();
    let in_a_batch = odd_events();
    A::transact(&outbox.url(), &one_by_one, COMMIT).await;
    let answers = A::transact(&outbox.url(), &in_a_batch, BATCH).await;
    assert_eq!(answers, in_a_batch.iter().map(|event| Ok(event.id)).collect::<Vec<_>>());
    let sql = "select id, topic, key, headers::text, content_type, payload,
                      (extract(epoch from deliver_at) * 1e6)::bigint
                 from posthaste.outbox order by seq";
    let rows = outbox.client.query(sql, &[]).await.expect("rows");
    let events: Vec<&Event> = one_by_one.iter().chain(&in_a_batch).collect();
    assert_eq!(rows.len(), events.len());
    for (row, event) in rows.iter().zip(events) {
        assert_eq!(row.get::<_, Uuid>(0), event.id);
        assert_eq!(row.get::<_, &str>(1), event.topic);
        assert_eq!(row.get::<_, Option<String>>(2), event.key);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let (stored, given) = (row.get::<_, Option<String>>(3), event.headers.to_json());
        assert_eq!(stored.as_deref().map(value), given.as_deref().map(value));
        assert_eq!(row.get::<_, Option<String>>(4), event.content_type);
        assert_eq!(row.get::<_, Option<Vec<u8>>>(5).as_deref(), event.payload.as_deref());
        assert_eq!(row.get::<_, Option<i64>>(6), event.deliver_at.map(|at| at.0));
    }
}

/// More than one statement takes, and order across statements.
async fn many<A: Adapter>() {
    let Some(outbox) = Outbox::make().await else { return };
    let events: Vec<Event> = (0..2_500).map(|n| Event::new("t", n.to_string())).collect();
    A::transact(&outbox.url(), &events, BATCH).await;
    let rows = outbox.client.query("select id from posthaste.outbox order by seq", &[]).await.expect("rows");
    let stored: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(stored, events.iter().map(|event| event.id).collect::<Vec<_>>());
}

/// The second event of an idempotency key is the first one.
async fn idempotent<A: Adapter>() {
    let Some(outbox) = Outbox::make().await else { return };
    let keyed = || Event::new("t", "x").with_idempotency_key("order-42");
    let first = A::transact(&outbox.url(), &[keyed()], COMMIT).await;
    let plain = [Event::new("t", "a"), Event::new("t", "b")];
    let mixed = [plain[0].clone(), keyed(), plain[1].clone()];
    let second = A::transact(&outbox.url(), &mixed, BATCH).await;
    assert_eq!(second, [Ok(plain[0].id), first[0].clone(), Ok(plain[1].id)]);
    assert_eq!(outbox.count().await, 3);
}

/// A refused event costs nothing: the caller's transaction goes on, and a batch with one is refused as a
/// whole.
async fn refused<A: Adapter>() {
    let Some(outbox) = Outbox::make().await else { return };
    let events = [Event::new("", "x"), Event::new("t", "x")];
    let answers = A::transact(&outbox.url(), &events, COMMIT).await;
    assert_eq!(answers, [Err("topic is empty: ".to_owned()), Ok(events[1].id)]);
    let batch = A::transact(&outbox.url(), &[Event::new("t", "y"), events[0].clone()], BATCH).await;
    assert_eq!(batch, [Err("topic is empty: ".to_owned())]);
    assert_eq!(outbox.count().await, 1);
}

/// What the database says is in the error's source.
async fn no_outbox<A: Adapter>() {
    let Some(database) = services::require(TestDatabase::create().await) else { return };
    let act = Act { batch: false, commit: false };
    let answers = A::transact(&database.url(), &[Event::new("t", "x")], act).await;
    let told = answers[0].as_ref().expect_err("there is no outbox here");
    assert!(
        told.starts_with("the event could not be appended: ") && told.contains("posthaste.outbox"),
        "{told}"
    );
}

/// G5: the first transaction that commits is the first, whatever was rolled back before it. What cannot be
/// marked costs nothing: the caller's transaction goes on.
async fn admitted<A: Adapter>() {
    const FIRST: Result<Admission, String> = Ok(Admission::First);
    const DUPLICATE: Result<Admission, String> = Ok(Admission::Duplicate);
    let Some(outbox) = Outbox::make().await else { return };
    let url = outbox.url();
    assert_eq!(A::admit(&url, &["a", "b"], false).await, [FIRST, FIRST]);
    assert_eq!(A::admit(&url, &["a", "c", "a"], true).await, [FIRST, FIRST, DUPLICATE]);
    let long = "x".repeat(2_000);
    let answers = A::admit(&url, &["", &long, "c", "b"], true).await;
    assert!(answers[0].is_err() && answers[1].is_err(), "{answers:?}");
    assert_eq!(answers[2..], [DUPLICATE, FIRST]);
    let sql = "select message_id from posthaste.inbox where consumer = 'billing' order by 1";
    let marks = outbox.client.query(sql, &[]).await.expect("marks");
    assert_eq!(marks.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["a", "b", "c"]);
}

/// What the database says is in the error's source.
async fn no_inbox<A: Adapter>() {
    let Some(database) = services::require(TestDatabase::create().await) else { return };
    let answers = A::admit(&database.url(), &["a"], false).await;
    let told = answers[0].as_ref().expect_err("there is no inbox here");
    assert!(
        told.starts_with("the message could not be marked") && told.contains("posthaste.inbox"),
        "{told}"
    );
}

macro_rules! adapters {
    ($($name:ident: $adapter:ty),*) => {$(
        mod $name {
            use super::*;
            adapters!(@ $adapter, rolled_back_and_committed, untouched, many, idempotent, refused, no_outbox, admitted, no_inbox);
        }
    )*};
    (@ $adapter:ty, $($case:ident),*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            super::$case::<$adapter>().await;
        }
    )*};
}

adapters!(sqlx: Sqlx, sea_orm: SeaOrm, diesel: Diesel, diesel_async: DieselAsync);
