//! Retention: messages leave by age or by size, oldest first, a bounded number at a time.
//!
//! Every chunk is a small transaction of its own, so that publishers wait for one chunk at most. A
//! partition's `first` moves with the rows; a group that was behind it learns what it lost.

use super::file::Broker;
use super::look::first_since;
use super::publish::place;
use crate::clock;
use crate::writer::WriteError;
use posthaste::store::StoreError;
use rusqlite::{OptionalExtension, Transaction, params};

/// Messages of one chunk: some milliseconds of the write lock.
const CHUNK: i64 = 1_000;

/// Chunks of one call. A call ends in good time; the next one goes on.
const CHUNKS_MAX: usize = 1_000;

impl Broker {
    /// Removes what is older or more than its topic keeps. Answers how many messages. Any process may call it
    /// at any time; a running sink does so every minute.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        let mut purged = 0;
        for _ in 0..CHUNKS_MAX {
            let writer = self.link()?.writer;
            let chunk: Result<u64, WriteError> = writer.run(|tx| Ok(purge_chunk(tx)?)).await;
            match chunk? {
                0 => break,
                messages => purged += messages,
            }
        }
        Ok(purged)
    }
}

/// One chunk of one partition.
fn purge_chunk(tx: &Transaction<'_>) -> rusqlite::Result<u64> {
    let by_age =
        "select p.id, p.first, p.next, t.retention_ms from partitions p join topics t on t.id = p.topic
                   where t.retention_ms is not null and p.first < p.next order by p.id";
    let mut read = tx.prepare_cached(by_age)?;
    let mut rows = read.query([])?;
    while let Some(row) = rows.next()? {
        let (partition, first, next, keep_ms): (i64, i64, i64, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let before = clock::now().saturating_sub(keep_ms.saturating_mul(1_000));
        let until = first_since(tx, partition, first, next, before)?;
        if until > first {
            return remove(tx, partition, first, until.min(first + CHUNK));
        }
    }
    drop(rows);
    // Above its size a topic loses the oldest messages first, of whichever partition has them.
    let by_size = "select p.id, p.first, p.next from partitions p
                    join (select topic, sum(bytes) as bytes from partitions group by topic) s on s.topic = p.topic
                    join topics t on t.id = p.topic
                    join messages m on m.place = (p.id << 40) + p.first
                   where t.retention_bytes is not null and s.bytes > t.retention_bytes and p.first < p.next
                   order by m.published_at limit 1";
    let mut read = tx.prepare_cached(by_size)?;
    let oldest: Option<(i64, i64, i64)> =
        read.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    // Small steps: the size is a bound from above, and what is below it stays.
    oldest.map_or(Ok(0), |(partition, first, next)| remove(tx, partition, first, next.min(first + 100)))
}

fn remove(tx: &Transaction<'_>, partition: i64, first: i64, until: i64) -> rusqlite::Result<u64> {
    let range = params![place(partition, first), place(partition, until)];
    let sql = "select coalesce(sum(coalesce(length(payload), 0) + coalesce(length(key), 0)), 0) from messages
                where place >= ?1 and place < ?2";
    let bytes: i64 = tx.prepare_cached(sql)?.query_row(range, |row| row.get(0))?;
    let removed =
        tx.prepare_cached("delete from messages where place >= ?1 and place < ?2")?.execute(range)?;
    let sql = "update partitions set first = ?2, bytes = max(0, bytes - ?3) where id = ?1";
    tx.prepare_cached(sql)?.execute(params![partition, until, bytes])?;
    Ok(removed as u64)
}
