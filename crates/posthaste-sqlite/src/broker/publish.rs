//! Writing messages: which partition, which position, seen before or not.
//!
//! Runs as a job of the writer thread, so the whole call is in one transaction, and positions are drawn under
//! the write lock: they are dense, and a reader sees them in order. The rows of `topics` and `partitions` are
//! read once a call and written once a call, whatever it holds.

use super::file::{Broker, BrokerConfig};
use super::pack::{Pack, Packed};
use crate::clock;
use crate::hash::partition_of;
use crate::writer::WriteError;
use bytes::Bytes;
use posthaste::store::StoreError;
use rusqlite::{OptionalExtension, Transaction, params};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Bits of a place that are the position.
pub(super) const POSITION_BITS: u32 = 40;

/// The place of a position in the tree of messages.
pub(super) fn place(partition: i64, position: i64) -> i64 {
    (partition << POSITION_BITS) | position
}

/// The position of a place.
pub(super) fn position(place: i64) -> i64 {
    place & ((1 << POSITION_BITS) - 1)
}

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The topic. It is made if there is none of that name.
    pub topic: String,
    /// The dedup id. A message without one is always new.
    pub id: Option<String>,
    /// The key. Messages without one are spread over the partitions.
    pub key: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<(String, String)>,
    /// The bytes; `None` is a tombstone.
    pub payload: Option<Bytes>,
}

impl Broker {
    /// Makes a topic with so many partitions. One that is there stays as it is; the answer is how many it
    /// has.
    pub async fn declare(&self, topic: &str, partitions: u32) -> Result<u32, StoreError> {
        let (config, topic) = (self.config.clone(), topic.to_owned());
        let made: Result<u32, WriteError> = self
            .link()?
            .writer
            .run(move |tx| {
                let find = "select partitions from topics where name = ?1";
                if let Some(there) = tx.query_row(find, [&topic], |row| row.get(0)).optional()? {
                    return Ok(there);
                }
                make_topic(tx, &config, &topic, partitions, clock::now())?;
                Ok(partitions.clamp(1, PARTITIONS_MAX))
            })
            .await;
        made.map_err(StoreError::from)
    }

    /// Publishes messages in one transaction, past any sink: for tests and tools. Answers how many were new.
    pub async fn publish(self: &Arc<Self>, messages: Vec<Outgoing>) -> Result<usize, StoreError> {
        let broker = Arc::clone(self);
        let mut pack = Pack::default();
        messages.iter().for_each(|message| pack.push_outgoing(message));
        drop(messages);
        let written: Result<usize, WriteError> =
            self.link()?.writer.run(move |tx| Ok(write(tx, &broker.config, &[pack])?)).await;
        written.map_err(StoreError::from)
    }
}

struct TopicRow {
    id: i64,
    partitions: Vec<PartitionEnd>,
}

struct PartitionEnd {
    id: i64,
    next: i64,
    bytes: i64,
    last_at: i64,
    touched: bool,
}

/// Writes messages of some calls, in order. Answers how many of them were new.
pub(super) fn write(tx: &Transaction<'_>, config: &BrokerConfig, calls: &[Pack]) -> rusqlite::Result<usize> {
    let now = clock::now();
    let dedup = dedup_generation(tx, config, now)?;
    let mut topics: FxHashMap<&str, TopicRow> = FxHashMap::default();
    let mut new = 0;
    let mut remember = tx.prepare_cached(REMEMBER[dedup])?;
    let mut known = tx.prepare_cached(KNOWN[1 - dedup])?;
    let mut insert = tx.prepare_cached(
        "insert into messages (place, id, key, headers, payload, published_at) values (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for message in calls.iter().flat_map(Pack::iter) {
        let topic = match topics.entry(message.topic) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(open_topic(tx, config, message.topic, now)?)
            }
        };
        if let Some(id) = &message.id
            && (known.exists(params![topic.id, id])? || remember.execute(params![topic.id, id])? == 0)
        {
            continue;
        }
        let partition = choose(topic, &message);
        partition.last_at = partition.last_at.max(now);
        insert.execute(params![
            place(partition.id, partition.next),
            message.id,
            message.key,
            message.headers,
            message.payload,
            partition.last_at
        ])?;
        partition.next += 1;
        partition.bytes += bytes_of(&message) as i64;
        partition.touched = true;
        new += 1;
    }
    let touched = topics.values().flat_map(|topic| &topic.partitions).filter(|partition| partition.touched);
    let mut update =
        tx.prepare_cached("update partitions set next = ?2, bytes = ?3, last_at = ?4 where id = ?1")?;
    for partition in touched {
        update.execute(params![partition.id, partition.next, partition.bytes, partition.last_at])?;
    }
    Ok(new)
}

const REMEMBER: [&str; 2] = [
    "insert into dedup_0 (topic, id) values (?1, ?2) on conflict do nothing",
    "insert into dedup_1 (topic, id) values (?1, ?2) on conflict do nothing",
];
const KNOWN: [&str; 2] = [
    "select 1 from dedup_0 where topic = ?1 and id = ?2",
    "select 1 from dedup_1 where topic = ?1 and id = ?2",
];
const FORGET: [&str; 2] = ["delete from dedup_0", "delete from dedup_1"];

/// Bytes that count for the topic's size.
fn bytes_of(message: &Packed<'_>) -> usize {
    message.payload.map_or(0, <[u8]>::len) + message.key.map_or(0, <[u8]>::len)
}

/// The partition of a message. Without a key its id decides, so that the same message goes the same way.
fn choose<'a>(topic: &'a mut TopicRow, message: &Packed<'_>) -> &'a mut PartitionEnd {
    let count = topic.partitions.len();
    let of = |bytes: &[u8]| partition_of(bytes, count as u32) as usize;
    let by_id = message.id.and_then(|id| id.with_text(|text| (!text.is_empty()).then(|| of(text))));
    let chosen = match (message.key, by_id) {
        (Some(key), _) => of(key),
        (None, Some(chosen)) => chosen,
        (None, None) => {
            // The emptiest one: a running turn without a counter of its own.
            let least = topic.partitions.iter().enumerate().min_by_key(|(_, partition)| partition.next);
            least.map_or(0, |(index, _)| index)
        }
    };
    &mut topic.partitions[chosen]
}

/// The generation that new ids go into, after a turn if it is time for one.
fn dedup_generation(tx: &Transaction<'_>, config: &BrokerConfig, now: i64) -> rusqlite::Result<usize> {
    let state = |name: &str| {
        let mut read = tx.prepare_cached("select value from state where name = ?1")?;
        read.query_row([name], |row| row.get::<_, i64>(0))
    };
    let (current, since) = ((state("dedup_generation")? & 1) as usize, state("dedup_since")?);
    let age = now - since;
    // A clock that was set back must not keep ids for ever.
    if (0..=clock::micros(config.dedup_window)).contains(&age) {
        return Ok(current);
    }
    let next = 1 - current;
    tx.prepare_cached(FORGET[next])?.execute([])?;
    let mut write = tx.prepare_cached("update state set value = ?2 where name = ?1")?;
    write.execute(params!["dedup_generation", next as i64])?;
    write.execute(params!["dedup_since", now])?;
    Ok(next)
}

fn open_topic(
    tx: &Transaction<'_>,
    config: &BrokerConfig,
    name: &str,
    now: i64,
) -> rusqlite::Result<TopicRow> {
    let find = "select id from topics where name = ?1";
    let known = tx.prepare_cached(find)?.query_row([name], |row| row.get(0)).optional()?;
    let id = match known {
        Some(id) => id,
        None => make_topic(tx, config, name, config.partitions, now)?,
    };
    let sql = "select id, next, bytes, last_at from partitions where topic = ?1 order by number";
    let mut read = tx.prepare_cached(sql)?;
    let partitions = read.query_map([id], |row| {
        let (id, next, bytes, last_at) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(PartitionEnd { id, next, bytes, last_at, touched: false })
    })?;
    Ok(TopicRow { id, partitions: partitions.collect::<rusqlite::Result<_>>()? })
}

/// Makes a topic with its partitions.
pub(super) fn make_topic(
    tx: &Transaction<'_>,
    config: &BrokerConfig,
    name: &str,
    partitions: u32,
    now: i64,
) -> rusqlite::Result<i64> {
    let retention_ms = config.retention.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    let retention_bytes = config.retention_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let partitions = partitions.clamp(1, PARTITIONS_MAX);
    tx.execute(
        "insert into topics (name, partitions, retention_ms, retention_bytes, created_at) values (?1, ?2, ?3, ?4, ?5)",
        params![name, partitions, retention_ms, retention_bytes, now],
    )?;
    let id = tx.last_insert_rowid();
    for number in 0..partitions {
        tx.execute("insert into partitions (topic, number) values (?1, ?2)", params![id, number])?;
    }
    // Groups that wait for this topic look again.
    tx.execute("update state set value = value + 1 where name = 'group_changes'", [])?;
    Ok(id)
}

/// Most partitions of a topic: each is a row that every publish reads.
pub(super) const PARTITIONS_MAX: u32 = 256;
