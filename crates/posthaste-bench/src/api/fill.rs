//! What is looked at: a log, dead letters, deferred events, lines of the audit. All of it is made by the
//! server, a few statements for each, because events that are sent one by one would take an hour.
//!
//! The first numbers of the log are those of the letters, the next ones those of the deferred events, with
//! keys that no other event has: a letter holds its key. They are set aside after a relay has read past
//! them, so nobody meets them a second time.
//!
//! Half of the letters have one cause, a quarter another one, and the others share the rest: that is how a
//! broken deployment looks, and a job without a rate needs many letters to be timed by.

use super::ApiArgs;
use super::daemon::{SINK, check_progress};
use crate::Bench;
use crate::child::Relay;
use crate::load::TOPIC;
use crate::report::ProgressLine;
use crate::sample::covered;
use posthaste::admin::fingerprint;
use std::time::{Duration, Instant};

/// Rows in one statement: enough for full speed, few enough to see progress.
const ROWS: u64 = 200_000;
/// Bytes of one hash as a text.
const HASH_BYTES: usize = 32;
/// Events of one key that wait for its first one.
const OF_A_KEY: u64 = 5;
/// A relay that delivers nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

pub(super) const CODE: &str = "http.status_422";
const CLASS: &str = "permanent";

/// The outbox, and what is in it.
pub(super) struct ApiField<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) args: &'a ApiArgs,
    /// Events that are in the log.
    pub(super) appended: u64,
    filled: u64,
}

/// What a cause says that no other one does. No word of it looks like a number to a fingerprint.
fn cause_word(cause: u64) -> String {
    let letter = |n: u64| char::from(b"ghijklmnopqrstuvwxyz"[(n % 20) as usize]);
    [letter(cause / 20), letter(cause)].iter().collect()
}

fn cause_text(cause: u64) -> String {
    format!("422 Unprocessable: rule {} refuses order ", cause_word(cause))
}

impl<'a> ApiField<'a> {
    pub(super) fn new(bench: &'a Bench<'a>, args: &'a ApiArgs) -> Self {
        Self { bench, args, appended: 0, filled: 0 }
    }

    fn schema(&self) -> &str {
        &self.bench.ground.schema
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        Ok(self.bench.ground.client.batch_execute(sql).await?)
    }

    /// Appends until so many events were made here. Number and id are the columns' own defaults.
    pub(super) async fn fill(&mut self, events: u64) -> anyhow::Result<()> {
        let mut progress = ProgressLine::start("fill", events - self.filled);
        let begun = self.filled;
        while self.filled < events {
            let to = events.min(self.filled + ROWS);
            self.execute(&self.fill_sql(self.filled + 1, to)).await?;
            self.appended += to - self.filled;
            self.filled = to;
            progress.set(to - begun);
        }
        progress.finish();
        // What the server does by itself while a log grows slowly, and would do now in the middle of a look.
        let summarise = "select sum(brin_summarize_new_values(i.indexrelid)) from pg_index i
                           join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
                           join pg_namespace n on n.oid = c.relnamespace
                          where a.amname = 'brin' and c.relkind = 'i' and n.nspname = $1";
        self.bench.ground.client.execute(summarise, &[&self.bench.ground.postgres.schema]).await?;
        self.execute(&format!("analyze {}.outbox", self.schema())).await?;
        self.checkpoint().await;
        Ok(())
    }

    /// Appends so many more.
    pub(super) async fn grow(&mut self, events: u64) -> anyhow::Result<()> {
        self.fill(self.filled + events).await
    }

    fn fill_sql(&self, from: u64, to: u64) -> String {
        let (schema, rows, common) = (self.schema(), self.args.rows, self.bench.common);
        let hashes = common.payload_bytes.div_ceil(HASH_BYTES);
        format!(
            "insert into {schema}.outbox (topic, key, payload)
             select '{TOPIC}',
                    case when n <= {rows} then 'dead-' || n
                         when n <= 2 * {rows} then 'late-' || n / {OF_A_KEY}
                         else 'customer-' || lpad((hashint8(n) & 2147483647) % {keys} || '', 5, '0') end,
                    convert_to(left(repeat(md5(n::text), {hashes}), {bytes}), 'UTF8')
               from generate_series({from}::bigint, {to}::bigint) n",
            keys = common.keys,
            bytes = common.payload_bytes,
        )
    }

    /// Dead letters, deferred events and the audit, out of the first events of the log.
    pub(super) async fn set_aside(&self) -> anyhow::Result<()> {
        let progress = ProgressLine::start("set aside", 3 * self.args.rows);
        let (schema, rows) = (self.schema(), self.args.rows as i64);
        let causes = 0..self.args.causes;
        let texts: Vec<String> = causes.map(cause_text).collect();
        let prints: Vec<i64> =
            texts.iter().map(|text| fingerprint(SINK, CLASS, CODE, &format!("{text}7"))).collect();
        let client = &self.bench.ground.client;
        client.execute(&letters_sql(schema), &[&SINK, &rows, &CLASS, &CODE, &prints, &texts]).await?;
        client.execute(&deferred_sql(schema), &[&SINK, &rows, &TOPIC]).await?;
        client.execute(&audit_sql(schema), &[&rows]).await?;
        for table in ["dead_letters", "deferred", "audit"] {
            self.execute(&format!("vacuum (analyze) {schema}.{table}")).await?;
        }
        self.checkpoint().await;
        progress.finish();
        Ok(())
    }

    /// Where we may ask for one.
    async fn checkpoint(&self) {
        let _ = self.execute("checkpoint").await;
    }

    /// Waits until a relay has settled every event of the log, each once.
    pub(super) async fn delivered(&self, mut relay: Option<&mut Relay>) -> anyhow::Result<()> {
        let mut progress = ProgressLine::start("deliver", self.appended);
        let (mut before, mut since) = (0, Instant::now());
        loop {
            let rows = covered(&self.bench.ground.client, self.schema(), SINK).await?.rows;
            if rows == self.appended {
                progress.finish();
                return Ok(());
            }
            anyhow::ensure!(rows < self.appended, "{rows} events were settled of {}", self.appended);
            if rows != before {
                (before, since) = (rows, Instant::now());
            }
            if let Some(relay) = relay.as_deref_mut() {
                relay.check()?;
            }
            check_progress(since, PATIENCE, "delivering")?;
            progress.set(rows);
            tokio::time::sleep(BETWEEN_LOOKS).await; // pace
        }
    }
}

/// $1 sink, $2 how many, $3 class, $4 code, $5 fingerprints and $6 texts of the causes.
fn letters_sql(schema: &str) -> String {
    format!(
        "insert into {schema}.dead_letters (sink, seq, slot, id, topic, key, headers, content_type, payload,
                deliver_at, appended_at, route, holds_key, attempts, error_class, error_code, error, dead_at,
                fingerprint, history)
         select $1, o.seq, o.slot, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.deliver_at,
                o.appended_at, '', true, 3, $3, $4, ($6::text[])[c.cause] || o.seq,
                clock_timestamp() - make_interval(secs => ($2 - o.seq) * 0.1), ($5::bigint[])[c.cause],
                jsonb_build_array(jsonb_build_object('at', to_char(clock_timestamp() at time zone 'UTC',
                  'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), 'class', $3::text, 'code', $4::text, 'error',
                  ($6::text[])[c.cause] || o.seq))
           from {schema}.outbox o
          cross join lateral (select case when o.seq % 2 = 0 then 1 when o.seq % 4 = 1 then 2
                else 3 + (o.seq / 4) % (cardinality($5::bigint[]) - 2) end::int as cause) c
          where o.seq <= $2::bigint order by o.seq"
    )
}

/// $1 sink, $2 how many, $3 destination. The first one of each key waits for its next attempt tomorrow.
fn deferred_sql(schema: &str) -> String {
    format!(
        "insert into {schema}.deferred (sink, seq, slot, id, topic, key, headers, content_type, payload,
                deliver_at, appended_at, route, destination, reason, holds, attempts, due_at, error_class,
                error_code, last_error, last_error_at)
         select $1, o.seq, o.slot, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.deliver_at,
                o.appended_at, '', $3, case when w.first then 'retry' else 'held' end, true,
                case when w.first then 4 else 0 end,
                case when w.first then clock_timestamp() + interval '1 day' else 'infinity' end,
                case when w.first then 'transient' end, case when w.first then 'http.status_503' end,
                case when w.first then '503 Service Unavailable' end,
                case when w.first then clock_timestamp() end
           from {schema}.outbox o
          cross join lateral (select o.seq % {OF_A_KEY} = 0 or o.seq = $2::bigint + 1 as first) w
          where o.seq > $2::bigint and o.seq <= 2 * $2::bigint order by o.seq"
    )
}

/// $1 how many.
fn audit_sql(schema: &str) -> String {
    format!(
        "insert into {schema}.audit (at, actor, action, reason, detail, verified, outcome)
         select clock_timestamp() - make_interval(secs => ($1 - n) * 10), 'operator-' || n % 50,
                (array['replay', 'discard', 'pause', 'resume'])[1 + n % 4], 'the upstream was mended, ' || n,
                jsonb_build_object('sinks', jsonb_build_array('bench'), 'count', n % 1000), n % 2 = 0, 'done'
           from generate_series(1, $1::bigint) n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_cause_has_a_fingerprint_of_its_own_whatever_the_order() {
        let of =
            |cause, order: &str| fingerprint(SINK, CLASS, CODE, &format!("{}{order}", cause_text(cause)));
        let all: BTreeSet<i64> = (0..400).map(|cause| of(cause, "7")).collect();
        assert_eq!(all.len(), 400);
        assert_eq!(of(3, "7"), of(3, "123456"));
    }
}
