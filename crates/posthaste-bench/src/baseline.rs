//! What the relay is compared with, measured in the same run on the same server over the same rows.
//!
//! An absolute rate says more about the machine than about the relay. Three yardsticks:
//!
//! - **select**: a bare loop that reads the log in pages of 1,000 and makes events of the rows. Nothing that
//!   reads the log can be faster than that without reading ahead; the relay does read ahead.
//! - **claim + mark**: the usual outbox, a queue in a table. 1,000 rows are claimed by an update that skips
//!   locked rows, then marked as done by another. As many transactions, as durable as the relay's.
//! - **sink alone**: the sink is handed the same events by nobody but a loop, with nothing to read and
//!   nothing to settle.
//!
//! Both SQL loops run in this process, on a single connection, with prepared statements.

use super::ground::BenchOutbox;
use super::load::Load;
use super::report::ProgressLine;
use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::event::{Event, StoredEvent};
use posthaste::sink::{Message, Sink, Verdict};
use posthaste::{Headers, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio_postgres::{Client, Row};

/// Rows in one page of both loops, as the issue of such a loop usually has it.
const PAGE: i64 = 1_000;

/// More rows than this tell nothing new about the queue, but have to be copied first.
pub(super) const QUEUE_ROWS: u64 = 200_000;

/// The settings that the relay's own sessions have: the next rows are found along an index, whatever the
/// statistics say. Without them a loop may well run at a tenth of its rate.
pub(super) const PLANS: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off; \
                       set max_parallel_workers_per_gather = 0; set jit = off; \
                       set plan_cache_mode = force_generic_plan";

/// Messages in one call to the sink, and calls at once: more than enough to keep 4,096 in flight.
const CALL_MESSAGES: u64 = 1_000;
const CALLS: usize = 8;

/// All statements of the loops, for the record.
pub(super) fn statements(schema: &str) -> Value {
    json!({
        "select": select_sql(schema), "claim": claim_sql(schema), "mark": mark_sql(schema),
        "queue_table": queue_sql(schema), "rows_a_page": PAGE,
        "session": PLANS,
        "transactions": "one a statement, synchronous_commit = on",
    })
}

fn select_sql(schema: &str) -> String {
    format!(
        "select seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at \
         from {schema}.outbox where seq > $1 order by seq limit $2"
    )
}

fn queue_sql(schema: &str) -> String {
    format!(
        "create table {schema}.bench_queue (id bigint primary key, status smallint not null default 0, \
         event_id uuid not null, topic text not null, key text, headers jsonb, content_type text, payload bytea, \
         appended_at timestamptz not null, claimed_at timestamptz, done_at timestamptz) \
         with (autovacuum_enabled = off); \
         create index bench_queue_status on {schema}.bench_queue (status, id)"
    )
}

fn claim_sql(schema: &str) -> String {
    format!(
        "update {schema}.bench_queue set status = 1, claimed_at = now() where id = any (array(\
         select id from {schema}.bench_queue where status = 0 order by id limit {PAGE} for update skip locked)) \
         returning id, event_id, topic, key, headers, content_type, payload, appended_at"
    )
}

fn mark_sql(schema: &str) -> String {
    format!("update {schema}.bench_queue set status = 2, done_at = now() where id = any ($1)")
}

/// Events a second of a loop of SELECTs.
pub(super) async fn select(ground: &BenchOutbox, events: u64) -> anyhow::Result<f64> {
    let client = ground.connect().await?;
    client.batch_execute(PLANS).await?;
    let statement = client.prepare(&select_sql(&ground.schema)).await?;
    let mut progress = ProgressLine::start("baseline: select", events);
    let (started, mut after, mut read) = (Instant::now(), 0i64, 0u64);
    loop {
        let rows = client.query(&statement, &[&after, &PAGE]).await?;
        let page: Vec<StoredEvent> = rows.iter().map(event_of_log).collect::<Result<_, _>>()?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        read += page.len() as u64;
        progress.set(read);
    }
    let took = started.elapsed();
    progress.finish();
    if read != events {
        bail!("the loop of SELECTs read {read} of {events} events");
    }
    Ok(rate(events, took))
}

/// Events a second of a queue in a table. The rows are copied from the log first, which is not counted.
pub(super) async fn claim_and_mark(ground: &BenchOutbox, events: u64) -> anyhow::Result<f64> {
    let client = ground.connect().await?;
    client.batch_execute(PLANS).await?;
    let rows = events.min(QUEUE_ROWS);
    make_queue(&client, &ground.schema, rows).await?;
    let claim = client.prepare(&claim_sql(&ground.schema)).await?;
    let mark = client.prepare(&mark_sql(&ground.schema)).await?;
    let mut progress = ProgressLine::start("baseline: claim + mark", rows);
    let (started, mut done) = (Instant::now(), 0);
    loop {
        let claimed = client.query(&claim, &[]).await?;
        let page: Vec<StoredEvent> = claimed.iter().map(event_of_queue).collect::<Result<_, _>>()?;
        if page.is_empty() {
            break;
        }
        let ids: Vec<i64> = page.iter().map(|event| event.seq).collect();
        done += client.execute(&mark, &[&ids]).await?;
        progress.set(done);
    }
    let took = started.elapsed();
    progress.finish();
    client.batch_execute(&format!("drop table {}.bench_queue", ground.schema)).await?;
    if done != rows {
        bail!("the claim + mark loop handled {done} of {rows} rows");
    }
    Ok(rate(rows, took))
}

async fn make_queue(client: &Client, schema: &str, rows: u64) -> anyhow::Result<()> {
    client
        .batch_execute(&format!("drop table if exists {schema}.bench_queue; {}", queue_sql(schema)))
        .await?;
    let fill = format!(
        "insert into {schema}.bench_queue (id, event_id, topic, key, headers, content_type, payload, appended_at)
         select seq, id, topic, key, headers, content_type, payload, appended_at
           from {schema}.outbox order by seq limit $1"
    );
    client.execute(&fill, &[&(rows as i64)]).await?;
    // Without statistics: right after the filling they would say that every row waits, and the server would
    // look for waiting rows along the primary key, past all that are done. A vacuum in the middle would only
    // take away from the loop, so it has none either.
    client.batch_execute(&format!("vacuum {schema}.bench_queue")).await?;
    let _ = client.batch_execute("checkpoint").await;
    Ok(())
}

fn event_of_log(row: &Row) -> Result<StoredEvent, tokio_postgres::Error> {
    let event = event(row, 2, 7)?;
    let deliver_at: Option<SystemTime> = row.try_get(8)?;
    Ok(StoredEvent {
        seq: row.try_get(0)?,
        slot: row.try_get(1)?,
        appended_at: micros(row.try_get(9)?),
        event: Event { deliver_at: deliver_at.map(micros), ..event },
        defect: None,
    })
}

fn event_of_queue(row: &Row) -> Result<StoredEvent, tokio_postgres::Error> {
    let (seq, appended_at) = (row.try_get(0)?, micros(row.try_get(7)?));
    Ok(StoredEvent { seq, slot: 0, appended_at, event: event(row, 1, 6)?, defect: None })
}

/// Columns id, topic, key, headers, content_type from `at` on, and the payload.
fn event(row: &Row, at: usize, payload: usize) -> Result<Event, tokio_postgres::Error> {
    let headers: Option<Value> = row.try_get(at + 3)?;
    let payload: Option<&[u8]> = row.try_get(payload)?;
    let pair =
        |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap_or_default().to_owned());
    Ok(Event {
        key: row.try_get(at + 2)?,
        headers: headers
            .as_ref()
            .and_then(Value::as_object)
            .map_or_else(Headers::new, |object| object.iter().map(pair).collect()),
        content_type: row.try_get(at + 4)?,
        payload: payload.map(Bytes::copy_from_slice),
        ..Event::bare(row.try_get(at)?, row.try_get::<_, String>(at + 1)?)
    })
}

fn micros(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Events a second of the sink with a loop in front of it: overlapping calls, no order to keep, every
/// verdict awaited.
pub(super) async fn sink_alone(sink: &dyn Sink, load: &Load, events: u64) -> anyhow::Result<f64> {
    let mut progress = ProgressLine::start("baseline: sink alone", events);
    let (started, mut next, mut done) = (Instant::now(), 0, 0);
    let mut calls = FuturesUnordered::new();
    let source: Arc<str> = "bench".into();
    loop {
        while next < events && calls.len() < CALLS {
            let to = events.min(next + CALL_MESSAGES);
            let batch: Vec<Message> = (next..to).map(|index| message(load, index, &source)).collect();
            next = to;
            calls.push(async move { sink.publish(&batch).await });
        }
        let Some(verdicts) = calls.next().await else { break };
        if let Some(other) = verdicts.iter().find(|verdict| **verdict != Verdict::Delivered) {
            bail!("the sink did not take an event: {other:?}");
        }
        done += verdicts.len() as u64;
        progress.set(done);
    }
    let took = started.elapsed();
    progress.finish();
    Ok(rate(events, took))
}

/// All of them, made before anything is measured.
pub(super) fn messages(load: &Load, events: u64) -> Vec<Message> {
    let source: Arc<str> = "bench".into();
    (0..events).map(|index| message(load, index, &source)).collect()
}

pub(super) fn message(load: &Load, index: u64, source: &Arc<str>) -> Message {
    let stored = load.stored(index);
    let (destination, payload) = (stored.event.topic.clone(), stored.event.payload.clone());
    Message {
        stored,
        destination,
        payload,
        ordered: false,
        source: Arc::clone(source),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// A sink needs a moment for its first connection, which is not part of its rate. The first event is sent
/// for that; when it comes again in its place, the broker knows it by its id.
pub(super) async fn warm(sink: &dyn Sink, load: &Load) -> anyhow::Result<()> {
    let source: Arc<str> = "bench".into();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let verdicts = sink.publish(&[message(load, 0, &source)]).await;
        match verdicts.into_iter().next().context("the sink gave no verdict")? {
            Verdict::Delivered => return Ok(()),
            other if Instant::now() > deadline => bail!("the sink takes no events: {other:?}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

pub(super) fn rate(events: u64, took: Duration) -> f64 {
    events as f64 / took.as_secs_f64().max(1e-9)
}
