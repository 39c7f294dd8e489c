//! Looking into the broker: topics, groups, messages. For people, tests and replays; consuming is a source's
//! business.

use super::file::Broker;
use super::publish::{place, position};
use crate::error::store_error;
use crate::writer::WriteError;
use bytes::Bytes;
use posthaste::Timestamp;
use posthaste::source::{Received, SeekTo};
use posthaste::store::StoreError;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use uuid::Uuid;

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicView {
    /// Its name.
    pub name: String,
    /// Of each partition the oldest position that is there, and the one that the next message gets.
    pub partitions: Vec<(i64, i64)>,
    /// Bytes of messages, roughly.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Where a group is in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupView {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// The position to go on with.
    pub committed: i64,
    /// The position that the next message gets: what is between them is the lag.
    pub next: i64,
    /// The member that serves it.
    pub owner: Option<String>,
    /// The epoch of its lease.
    pub epoch: i64,
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its position.
    pub position: i64,
    /// When it was published.
    pub published_at: Timestamp,
    /// The message.
    pub message: Received,
}

impl Broker {
    /// All topics, by name.
    pub async fn topics(&self) -> Result<Vec<TopicView>, StoreError> {
        self.link()?.readers.read(|tx| topics(tx).map_err(store_error)).await
    }

    /// All groups and where they are, by name.
    pub async fn groups(&self) -> Result<Vec<GroupView>, StoreError> {
        self.link()?.readers.read(|tx| groups(tx).map_err(store_error)).await
    }

    /// Messages of a partition from a position on, in order, at most so many.
    pub async fn read(
        &self,
        topic: &str,
        partition: i32,
        from: i64,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let topic = topic.to_owned();
        let look = move |tx: &rusqlite::Transaction<'_>| {
            let Some(row) = row_of(tx, &topic, partition).map_err(store_error)? else {
                return Ok(Vec::new());
            };
            messages(tx, row, from, limit, usize::MAX).map_err(store_error)
        };
        self.link()?.readers.read(look).await
    }

    /// The first position of a partition that was published at or after a time; where the next message goes,
    /// if there is none. `None`: there is no such partition.
    pub async fn position_at(
        &self,
        topic: &str,
        partition: i32,
        time: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        let topic = topic.to_owned();
        let look = move |tx: &rusqlite::Transaction<'_>| {
            let Some(row) = row_of(tx, &topic, partition)? else { return Ok(None) };
            let (first, next) = super::group::bounds(tx, row)?;
            first_since(tx, row, first, next, time.0).map(Some)
        };
        self.link()?.readers.read(move |tx| look(tx).map_err(store_error)).await
    }

    /// Moves a group to another place in a partition, and answers with the position it goes on with. A
    /// consumer that serves it is fenced and goes on there. `None`: there is no such partition.
    pub async fn seek(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        to: SeekTo,
    ) -> Result<Option<i64>, StoreError> {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        let sought: Result<Option<i64>, WriteError> = self
            .link()?
            .writer
            .run(move |tx| {
                let Some(row) = row_of(tx, &topic, partition)? else { return Ok(None) };
                Ok(super::group::seek(tx, &group, row, to, None)?.map(|sought| sought.held.committed))
            })
            .await;
        sought.map_err(StoreError::from)
    }
}

fn topics(tx: &Connection) -> rusqlite::Result<Vec<TopicView>> {
    let sql = "select t.name, t.created_at, p.first, p.next, p.bytes from topics t join partitions p on p.topic = t.id
                order by t.name, p.number";
    let mut read = tx.prepare_cached(sql)?;
    let mut rows = read.query([])?;
    let mut topics: Vec<TopicView> = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if topics.last().is_none_or(|topic| topic.name != name) {
            let created_at = Timestamp(row.get(1)?);
            topics.push(TopicView { name, partitions: Vec::new(), bytes: 0, created_at });
        }
        if let Some(topic) = topics.last_mut() {
            topic.partitions.push((row.get(2)?, row.get(3)?));
            topic.bytes += u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0);
        }
    }
    Ok(topics)
}

fn groups(tx: &Connection) -> rusqlite::Result<Vec<GroupView>> {
    let sql = "select o.grp, t.name, p.number, o.committed, p.next, o.owner, o.epoch
                 from positions o join partitions p on p.id = o.partition join topics t on t.id = p.topic
                order by o.grp, t.name, p.number";
    let mut read = tx.prepare_cached(sql)?;
    let rows = read.query_map([], |row| {
        Ok(GroupView {
            group: row.get(0)?,
            topic: row.get(1)?,
            partition: row.get(2)?,
            committed: row.get(3)?,
            next: row.get(4)?,
            owner: row.get(5)?,
            epoch: row.get(6)?,
        })
    })?;
    rows.collect()
}

fn row_of(tx: &Connection, topic: &str, number: i32) -> rusqlite::Result<Option<i64>> {
    let sql =
        "select p.id from partitions p join topics t on t.id = p.topic where t.name = ?1 and p.number = ?2";
    tx.prepare_cached(sql)?.query_row(params![topic, number], |row| row.get(0)).optional()
}

/// Messages of a partition from a position on, in order, bounded in number and in bytes before they are
/// loaded; the first one may exceed the bytes alone.
pub(super) fn messages(
    tx: &Connection,
    partition: i64,
    from: i64,
    limit: usize,
    bytes: usize,
) -> rusqlite::Result<Vec<StoredMessage>> {
    let sql = "select place, id, key, headers, payload, published_at from messages
                where place >= ?1 and place < ?2 order by place limit ?3";
    let mut read = tx.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = read.query(params![place(partition, from.max(0)), place(partition + 1, 0), limit])?;
    let (mut found, mut total): (Vec<StoredMessage>, usize) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let size = row.get_ref(4)?.as_bytes_or_null()?.map_or(0, <[u8]>::len);
        total = total.saturating_add(size);
        if total > bytes && !found.is_empty() {
            break;
        }
        found.push(message(row)?);
    }
    Ok(found)
}

/// One message, if it is there.
pub(super) fn message_at(
    tx: &Connection,
    partition: i64,
    position: i64,
) -> rusqlite::Result<Option<StoredMessage>> {
    let sql = "select place, id, key, headers, payload, published_at from messages where place = ?1";
    tx.prepare_cached(sql)?.query_row([place(partition, position)], message).optional()
}

fn message(row: &Row<'_>) -> rusqlite::Result<StoredMessage> {
    let bytes = |index: usize| -> rusqlite::Result<Option<Bytes>> {
        Ok(row.get_ref(index)?.as_bytes_or_null()?.map(Bytes::copy_from_slice))
    };
    let id = match row.get_ref(1)? {
        ValueRef::Blob(bytes) => Uuid::from_slice(bytes).ok().map(|id| id.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    };
    let key = bytes(2)?;
    let mut headers: Vec<(String, Bytes)> = Vec::new();
    headers.extend(id.iter().map(|id| ("Message-ID".to_owned(), Bytes::from(id.clone().into_bytes()))));
    headers.extend(key.iter().map(|key| ("key".to_owned(), key.clone())));
    let text: Option<String> = row.get(3)?;
    // Written by us; what somebody else put there is left out rather than fatal.
    let pairs: Vec<(String, String)> =
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    headers.extend(pairs.into_iter().map(|(name, value)| (name, Bytes::from(value.into_bytes()))));
    Ok(StoredMessage {
        position: position(row.get(0)?),
        published_at: Timestamp(row.get(5)?),
        message: Received { id, key, headers, payload: bytes(4)? },
    })
}

/// The first position in `first..next` whose message was published at or after a time. Times never go back
/// within a partition, so it is found by halving; no index is needed for it.
pub(super) fn first_since(
    tx: &Connection,
    partition: i64,
    first: i64,
    next: i64,
    time: i64,
) -> rusqlite::Result<i64> {
    let mut published = tx.prepare_cached("select published_at from messages where place = ?1")?;
    let (mut low, mut high) = (first, next);
    while low < high {
        let middle = low + (high - low) / 2;
        let at: Option<i64> = published.query_row([place(partition, middle)], |row| row.get(0)).optional()?;
        if at.is_some_and(|at| at >= time) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(low)
}
