//! What consumers leave behind, counted by SQL.
//!
//! An effect is a row with its message's key and number, and a number of its own that is drawn when it is
//! written. So the table tells afterwards what came twice, what is missing, and whether a key's effects have
//! the order of its messages.

use super::consumer::phoenix;
use crate::ground::BenchOutbox;
use crate::load::Load;
use posthaste::sink::Message;
use posthaste_postgres::consumer::mapped;
use posthaste_postgres::migrate::Roles;
use std::sync::Arc;
use tokio_postgres::Client;

/// A message on a key of its own whose handler fails three times.
pub(super) const FAILS: &str = "fails-";
/// One whose handler never succeeds.
pub(super) const DIES: &str = "dies-";

/// Whether message `index` is one that dies, in a thousand.
fn dies(index: u64) -> bool {
    index % 1_000 == 500
}

/// How many of so many die.
pub(super) fn deaths(messages: u64) -> u64 {
    (0..messages).filter(|index| dies(*index)).count() as u64
}

/// Message `index` of a topic. One in a hundred fails, where a handler looks at it.
pub(super) fn message(load: &Load, index: u64, source: &Arc<str>) -> Message {
    let mut message = crate::baseline::message(load, index, source);
    if dies(index) {
        message.stored.event.key = Some(format!("{DIES}{index}"));
    } else if index % 100 == 50 {
        message.stored.event.key = Some(format!("{FAILS}{index}"));
    }
    message
}

/// What is wrong with the effects of a run, in rows: those that are there once more, those that are missing,
/// those before an earlier one of their key.
pub(super) type Wrong = [i64; 3];

/// The tables, and the handler in PL/pgSQL. Its number is the end of the message's id.
pub(super) async fn make(ground: &BenchOutbox) -> anyhow::Result<()> {
    let (client, schema) = (&ground.client, &ground.schema);
    let sql = format!(
        "create table {schema}.effects (n bigserial primary key, key text not null, number bigint not null);
         create table {schema}.seed_keys (id text primary key);
         create function {schema}.on_event(m {schema}.message) returns void language plpgsql as $$
         begin
           insert into {schema}.effects (key, number)
           values (convert_from(m.key, 'UTF8'), ('x' || right(replace(m.id, '-', ''), 15))::bit(60)::bigint);
         end $$"
    );
    client.batch_execute(&sql).await?;
    // The mapped tables belong to whoever measures: nobody else has to be granted anything.
    let mapped = mapped::sql(&phoenix(&ground.postgres.schema), &Roles::default())?;
    Ok(client.batch_execute(mapped.split("grant ").next().unwrap_or_default()).await?)
}

/// Nothing of an earlier round is there, and the server has written what it has to write.
pub(super) async fn clear(client: &Client, schema: &str) -> anyhow::Result<()> {
    let tables = [
        "effects",
        "seed_keys",
        "inbox",
        "inbox_deferred",
        "inbox_dead_letters",
        "inbox_partitions",
        "processes",
        "request_keys",
        "message_traceability",
        "consumer_offsets_log",
    ];
    let tables = tables.map(|table| format!("{schema}.{table}")).join(", ");
    client.batch_execute(&format!("truncate {tables}")).await?;
    let _ = client.batch_execute("checkpoint").await;
    Ok(())
}

/// Looks at the effects of so many messages, of which some had to die.
pub(super) async fn audit(client: &Client, schema: &str, messages: u64, dead: u64) -> anyhow::Result<Wrong> {
    let sql = format!(
        "select count(*) - count(distinct number), $1 - count(distinct number),
                count(*) filter (where number < before), (select count(*) from {schema}.inbox_dead_letters)
           from (select number, lag(number) over (partition by key order by n) as before
                   from {schema}.effects) e"
    );
    let row = client.query_one(&sql, &[&((messages - dead) as i64)]).await?;
    let letters: i64 = row.get(3);
    anyhow::ensure!(letters == dead as i64, "{letters} messages are dead letters, and {dead} had to die");
    Ok([row.get(0), row.get(1), row.get(2)])
}
