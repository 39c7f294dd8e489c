//! The local broker as a sink: the suite's fixture. What arrived is read with plain SQL.

use crate::rig::{Directory, open};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::sink::Sink;
use posthaste_sqlite::broker::LocalSink;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uuid::Uuid;

pub(crate) struct Fixture {
    directory: Directory,
    destinations: AtomicU32,
}

impl Fixture {
    pub(crate) async fn make() -> Option<Self> {
        Some(Self { directory: Directory::make(), destinations: AtomicU32::new(0) })
    }
}

/// A topic's messages in the order of their writing: each partition in order, and the suite looks at one key
/// at a time or at messages that were published one by one.
fn read(file: &std::path::Path, topic: &str) -> Vec<Arrived> {
    let connection = rusqlite::Connection::open(file).expect("opened");
    let sql = "select m.id, m.key, m.headers, m.payload from messages m
                 join partitions p on p.id = m.place >> 40 join topics t on t.id = p.topic
                where t.name = ?1 order by m.published_at, m.place";
    let mut statement = connection.prepare(sql).expect("prepared");
    let rows = statement.query_map([topic], |row| {
        let id: Option<Vec<u8>> = row.get(0)?;
        let id = id.and_then(|id| Uuid::from_slice(&id).ok()).map(|id| id.to_string());
        let key: Option<Vec<u8>> = row.get(1)?;
        let key = key.map(|key| String::from_utf8(key).expect("text"));
        let headers: Option<String> = row.get(2)?;
        let mut pairs: Vec<(String, String)> =
            headers.map(|text| serde_json::from_str(&text).expect("pairs")).unwrap_or_default();
        pairs.extend(id.iter().map(|id| ("Message-ID".to_owned(), id.clone())));
        pairs.extend(key.iter().map(|key| ("key".to_owned(), key.clone())));
        let payload: Option<Vec<u8>> = row.get(3)?;
        Ok(Arrived { id, key, headers: pairs, payload: payload.map(Bytes::from) })
    });
    rows.expect("read").collect::<Result<_, _>>().expect("rows")
}

#[async_trait]
impl SinkFixture for Fixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(LocalSink::new(open(&self.directory.file())))
    }

    async fn destination(&self) -> String {
        format!("destination-{}", self.destinations.fetch_add(1, Ordering::Relaxed))
    }

    async fn arrived(&self, destination: &str, _: usize) -> Option<Vec<Arrived>> {
        Some(read(&self.directory.file(), destination))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some("no\ntopic".to_owned())
    }
}
