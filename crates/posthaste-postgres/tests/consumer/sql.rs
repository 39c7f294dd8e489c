//! Handlers that are functions in the database.

use crate::failing::{PATIENCE, work, work_with};
use crate::fixture::InboxFixture;
use bytes::Bytes;
use posthaste::consumer::message::TRACEPARENT_HEADER;
use posthaste::consumer::store::{InboxStore, MessageOutcome, Work};
use posthaste::consumer::{Disposition, FailureKind, Message};
use posthaste::source::Delivery;
use posthaste_postgres::consumer::SqlHandler;
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::spans;
use std::sync::Arc;
use std::time::Duration;

const FUNCTION: &str = r#"
create schema billing;
create function billing.on_event(m posthaste.message) returns void language plpgsql as $$
declare wish text := coalesce(posthaste.json(m) ->> 'wish', '');
begin
  insert into public.effects (consumer, id) values (m.consumer, m.id);
  if wish = 'reject' then raise exception 'no, thanks' using errcode = 'PH001'; end if;
  if wish = 'away' then raise exception 'it is away' using errcode = 'PH002', detail = 'meta-api'; end if;
  if wish = 'fail' then perform 1 / 0; end if;
end $$
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_function_says_what_it_wants_by_sqlstate() {
    for pooled in [false, true] {
        let fixture = if pooled { InboxFixture::pooled().await } else { InboxFixture::make().await };
        let Some(fixture) = fixture else { return };
        fixture.run(FUNCTION).await;
        let inbox = fixture.with(SqlHandler::new("posthaste", "billing.on_event")).await;
        let cases: [(&[u8], FailureKind); 5] = [
            (b"no json", FailureKind::Poison(Disposition::Decode)),
            (b"\"\\u0000\"", FailureKind::Poison(Disposition::Decode)),
            (br#"{"wish": "reject"}"#, FailureKind::Poison(Disposition::Rejected)),
            (br#"{"wish": "away"}"#, FailureKind::Unavailable("meta-api".into())),
            (br#"{"wish": "fail"}"#, FailureKind::Error),
        ];
        for (payload, kind) in cases {
            let batch = [work(1), work_with(2, Some(payload)), work(3)];
            let error = inbox.apply(None, &batch, Duration::from_secs(10)).await.expect_err("it fails");
            assert_eq!((error.at, error.failure.kind), (Some(1), kind));
            let stack = error.failure.stack.expect("PostgreSQL's context");
            assert!(stack.contains("billing.on_event"), "{stack}");
        }
        let applied = inbox.apply(None, &[work(1), work(2), work(3)], PATIENCE).await.expect("applied");
        assert_eq!(applied.outcomes, [MessageOutcome::Done; 3]);
        assert_eq!(fixture.effects("billing").await, ["m1", "m2", "m3"]);
    }
}

const CHAIN: &str = r#"
create schema chain;
create function chain.on_event(m posthaste.message) returns void language sql as $$
  select posthaste.append('chain.went_on', m.payload, headers => posthaste.caused(m, '{"type": "link"}'))
$$
"#;

/// What follows from a message has the same headers by a function as by the library, whatever the message
/// has.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_function_appends_carries_on_what_the_library_does() {
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture.run(CHAIN).await;
    let inbox = fixture.with(SqlHandler::new("posthaste", "chain.on_event")).await;
    let cases: [&[(&str, &[u8])]; 4] = [
        &[],
        &[
            ("Correlation-ID", b"c1"),
            ("Traceparent", b"00-ab-cd-01"),
            ("tracestate", b"v=1"),
            ("type", b"order"),
        ],
        &[
            ("saga-id", b"s1"),
            ("SAGA-Step", b"one"),
            ("saga-step", b"two"),
            ("sagacity", b"x"),
            ("saga", b"x"),
        ],
        &[
            ("correlation-id", b"\xff"),
            ("correlation-id", b"the second"),
            ("saga-a b", b"x"),
            ("saga-c", b"a\0b"),
            ("saga-d", b"a\r\nb"),
            ("saga-\u{c9}", b"x"),
            ("traceparent", "gr\u{fc}n".as_bytes()),
        ],
    ];
    for (position, headers) in (1..).zip(cases) {
        let mut work = work(position);
        let mut delivery = Delivery::clone(&work.delivery);
        delivery.message.headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), Bytes::copy_from_slice(value))).collect();
        work.delivery = Arc::new(delivery);
        inbox.apply(None, std::slice::from_ref(&work), PATIENCE).await.expect("applied");
        let event = Message::new("billing", &work).event("chain.went_on", "{}").with_header("type", "link");
        let wanted: serde_json::Value =
            serde_json::from_str(&event.headers.to_json().expect("headers")).expect("JSON");
        let sql = "select headers::text from posthaste.outbox where headers ->> 'causation-id' = $1";
        let rows = fixture.rows(sql, &[&&*work.id]).await;
        let found: Vec<serde_json::Value> =
            rows.iter().map(|row| serde_json::from_str(row.get(0)).expect("JSON")).collect();
        assert_eq!(found, [wanted], "{headers:?}");
    }
}

/// A function in the database sees no span, but each of its calls is in one, with the message's trace.
#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_function_is_in_the_span_of_its_message() {
    let Some(fixture) = InboxFixture::make().await else { return };
    spans::listen();
    fixture.run(FUNCTION).await;
    let inbox = fixture.with(SqlHandler::new("posthaste", "billing.on_event")).await;
    let traces = [1, 2, 3].map(|_| uuid::Uuid::new_v4().simple().to_string());
    let traced = |(trace, position): (&String, i64)| {
        let mut work = work(position);
        let header = (TRACEPARENT_HEADER.to_owned(), format!("00-{trace}-00f067aa0ba902b7-01").into());
        Arc::make_mut(&mut work.delivery).message.headers.push(header);
        work
    };
    let batch: Vec<Work> = traces.iter().zip(1..).map(traced).collect();
    inbox.apply(None, &batch[..2], PATIENCE).await.expect("applied");
    inbox.apply(None, &batch[2..], PATIENCE).await.expect("applied");
    for (trace, id) in traces.iter().zip(["m1", "m2", "m3"]) {
        let all = spans::all();
        let of_trace: Vec<_> = all.iter().filter(|span| span.get("trace_id") == Some(trace)).collect();
        assert_eq!(of_trace.len(), 1, "{of_trace:?}");
        assert_eq!((of_trace[0]["message_id"].as_str(), of_trace[0]["consumer"].as_str()), (id, "billing"));
    }
}

const SET: &str = r#"
create schema ledger;
create table public.calls (n bigserial, ids text[]);
create function ledger.on_events(batch posthaste.message[]) returns void language plpgsql as $$
begin
  insert into public.calls (ids) select array_agg(m.id order by m.ordinality) from unnest(batch) with ordinality as m;
  insert into public.effects (consumer, id) select m.consumer, m.id from unnest(batch) as m;
  if exists (select from unnest(batch) as m where posthaste.json(m) ->> 'wish' = 'reject') then
    raise exception 'no, thanks' using errcode = 'PH001';
  end if;
end $$
"#;

/// What a function of a batch is given, as one of a single message would be.
const SEEN: &str = r#"
create schema seen;
create table seen.messages (like_all posthaste.message);
create function seen.one(m posthaste.message) returns void language sql as $$
  insert into seen.messages values (m)
$$;
create function seen.all(batch posthaste.message[]) returns void language sql as $$
  insert into seen.messages select m from unnest(batch) as m
$$;
"#;

/// One call for a batch, in its order. It names nobody when it fails, and of one message that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_an_array_gets_the_whole_batch() {
    for pooled in [false, true] {
        let fixture = if pooled { InboxFixture::pooled().await } else { InboxFixture::make().await };
        let Some(fixture) = fixture else { return };
        fixture.run(SET).await;
        let inbox = fixture.with(SqlHandler::new("posthaste", "ledger.on_events")).await;
        let bad = work_with(2, Some(br#"{"wish": "reject"}"#));
        let error =
            inbox.apply(None, &[work(1), bad.clone(), work(3)], PATIENCE).await.expect_err("it fails");
        let rejected = FailureKind::Poison(Disposition::Rejected);
        assert_eq!((error.at, &error.failure.kind), (None, &rejected));
        let error = inbox.apply(None, &[bad], PATIENCE).await.expect_err("alone, too");
        assert_eq!((error.at, &error.failure.kind), (Some(0), &rejected));
        assert!(error.failure.stack.is_some_and(|stack| stack.contains("ledger.on_events")));

        let applied = inbox.apply(None, &[work(3), work(1), work(4)], PATIENCE).await.expect("applied");
        assert_eq!(applied.outcomes, [MessageOutcome::Done; 3]);
        let calls = fixture.rows("select ids from public.calls", &[]).await;
        let calls: Vec<Vec<String>> = calls.iter().map(|row| row.get(0)).collect();
        assert_eq!(calls, [["m3", "m1", "m4"]], "one call, in order, and nothing left of those that failed");
        assert_eq!(fixture.effects("billing").await, ["m3", "m1", "m4"]);
    }
}

/// No field is lost or changed on the way into an array: nulls, bytes, headers, times.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_an_array_are_what_single_ones_are() {
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture.run(SEEN).await;
    let full = |position| {
        let mut work = work_with(position, Some(b"\0\xff\x01"));
        let delivery = Arc::make_mut(&mut work.delivery);
        delivery.message.headers =
            vec![("Type".to_owned(), "order".into()), ("raw".to_owned(), Bytes::from_static(b"\xff"))];
        delivery.message.headers.push(("content-type".to_owned(), "text/plain".into()));
        delivery.address = Some("orders.eu".into());
        work
    };
    let mut batch: Vec<Work> = [1, 2].map(full).into();
    batch.push(work_with(3, None));
    for function in ["seen.one", "seen.all"] {
        let inbox = fixture.with(SqlHandler::new("posthaste", function)).await;
        inbox.apply(None, &batch, PATIENCE).await.expect("applied");
        fixture.run("delete from posthaste.inbox").await;
    }
    let rows = fixture.rows("select like_all::text, count(*) from seen.messages group by 1", &[]).await;
    let counts: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(counts.len() == 3 && counts.iter().all(|(_, count)| *count == 2), "{counts:?}");
}

/// One name for two functions: nobody knows which is meant, so nothing is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_both_kinds_of_functions_is_refused() {
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture.run(FUNCTION).await;
    let both =
        "create function billing.on_event(batch posthaste.message[]) returns void language sql as 'select 1'";
    fixture.run(both).await;
    let said = fixture.refusal(SqlHandler::new("posthaste", "billing.on_event")).await;
    for part in ["two functions", "message)", "message[])", "drop one of them", "Nothing was taken"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = fixture.refusal(SqlHandler::new("posthaste", "billing.on_events")).await;
    assert!(said.contains("there is no function") && said.contains("message[])"), "{said}");
}

/// The example of the documentation, as it stands there.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_batch_books_all_of_it() {
    const EXAMPLE: &str = include_str!("../../../../examples/batch/ledger.sql");
    const PAGE: &str = include_str!("../../../../docs/consume.md");
    let (_, function) = EXAMPLE.split_once("\n\n").expect("tables, and the function");
    assert!(PAGE.contains(function), "docs/consume.md shows another function");
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture.run(EXAMPLE).await;
    let inbox = fixture.with(SqlHandler::new("posthaste", "ledger.on_orders")).await;
    let order = |n: i64| work_with(n, Some(format!("{{\"id\": {n}, \"total\": {n}.5}}").as_bytes()));
    let batch: Vec<Work> = (1..=20).map(order).collect();
    let applied = inbox.apply(None, &batch, PATIENCE).await.expect("applied");
    assert_eq!(applied.outcomes, [MessageOutcome::Done; 20]);
    let booked = fixture.rows("select count(*), sum(total)::text from ledger.orders", &[]).await;
    assert_eq!((booked[0].get::<_, i64>(0), booked[0].get::<_, &str>(1)), (20, "220.0"));
    let poison = inbox.apply(None, &[order(21), work_with(22, Some(b"no"))], PATIENCE).await;
    assert_eq!(poison.expect_err("it fails").at, None, "and is found by halves");
}
