//! An application that appends at a steady rate, whatever happens to the relays.
//!
//! One connection, so that events of a key are appended one after the other and G3 speaks about all of
//! them. Each topic has 40 keys of its own. The payload is the moment of the append, by the clock of the
//! database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

const TICK: Duration = Duration::from_millis(10);

const APPEND: &str = "select posthaste.append($1::text, extract(epoch from clock_timestamp())::text,
    $1 || '-' || g % 40) from generate_series($2::bigint, $3::bigint) g";

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the database answers");
    tokio::spawn(connection);
    client
}

/// Appends this many events at once.
pub(crate) async fn append(client: &Client, topic: &str, events: i64) {
    client.query(APPEND, &[&topic, &1_i64, &events]).await.expect("an append");
}

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<i64>,
}

impl Load {
    /// Starts appending to these topics in turn, `per_second` events in all.
    pub(crate) async fn start(url: &str, topics: &[&str], per_second: i64) -> Self {
        let client = connect(url).await;
        client.batch_execute("set statement_timeout = 0; set lock_timeout = 0").await.expect("settings");
        let topics: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let each = (per_second / 100 / topics.len() as i64).max(1);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await; // pace
                for topic in &topics {
                    client.query(APPEND, &[topic, &(sent + 1), &(sent + each)]).await.expect("an append");
                    sent += each;
                }
            }
            sent
        });
        Self { stop, task }
    }

    /// Ends it and says how many events were appended.
    pub(crate) async fn stop(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the application does not fail")
    }
}
