//! Very many marks that are old, and a purge beside the consumer's work.

use crate::failing::{PATIENCE, work};
use crate::fixture::InboxFixture;
use crate::life::Effects;
use posthaste::consumer::store::{ConsumerRetention, InboxStore, Work};
use posthaste_postgres::consumer::PostgresInbox;
use std::time::{Duration, Instant};

/// Messages of one transaction.
const BATCH: i64 = 64;

/// A few, or with `POSTHASTE_SOAK=1` as many as a busy consumer makes in two weeks.
fn many() -> i64 {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    if is_soak { 5_000_000 } else { 50_000 }
}

/// The next messages of a partition, batch by batch, with the time that each took.
struct Stream<'a> {
    inbox: &'a PostgresInbox,
    next: i64,
}

impl Stream<'_> {
    async fn apply(&mut self) -> Duration {
        let batch: Vec<Work> = (self.next..self.next + BATCH).map(work).collect();
        self.next += BATCH;
        let began = Instant::now();
        self.inbox.apply(None, &batch, PATIENCE).await.expect("applied");
        began.elapsed()
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// F79: old marks go chunk by chunk, and nobody who works beside it waits for it. What is young stays.
#[tokio::test(flavor = "multi_thread")]
async fn f79_very_many_marks_are_purged_beside_the_work() {
    let many = many();
    let Some(fixture) = InboxFixture::make().await else { return };
    let old = format!(
        "insert into posthaste.inbox (consumer, message_id, topic, partition, position, processed_at)
         select 'billing', 'old' || n, 'orders', 0, n, now() - interval '15 days' + n * interval '1 ms'
           from generate_series(1, {many}) n;
         insert into posthaste.inbox_partitions (consumer, topic, partition, position)
         values ('billing', 'orders', 0, {many} + 1);
         analyze posthaste.inbox"
    );
    fixture.run(&old).await;
    let (inbox, sweeper) = (fixture.with(Effects).await, fixture.with(Effects).await);
    let mut stream = Stream { inbox: &inbox, next: many + 1 };
    let mut alone = Vec::new();
    for _ in 0..20 {
        alone.push(stream.apply().await);
    }

    let began = Instant::now();
    let purge = async {
        let (retention, mut purged) = (ConsumerRetention { marks_days: 14, dead_letter_days: 0 }, 0);
        loop {
            match sweeper.sweep(retention, 1_000).await.expect("swept").marks {
                0 => return purged,
                marks => purged += marks,
            }
        }
    };
    let mut purge = std::pin::pin!(purge);
    let mut beside = Vec::new();
    let purged = loop {
        // A batch that was begun is ended.
        let mut batch = std::pin::pin!(stream.apply());
        tokio::select! {
            took = &mut batch => beside.push(took),
            purged = &mut purge => {
                beside.push(batch.await);
                break purged;
            }
        }
    };
    let (took, alone, beside) = (began.elapsed(), median(alone), (beside.len(), median(beside)));
    eprintln!(
        "very many marks: {purged} purged after {took:?}; beside it {} batches, {:?} each, and {alone:?} alone",
        beside.0, beside.1
    );
    let handled = stream.next - many - 1;
    let count = async |sql: &str| fixture.rows(sql, &[]).await[0].get::<_, i64>(0);
    assert_eq!(purged, many.unsigned_abs());
    assert_eq!(count("select count(*) from posthaste.inbox").await, handled, "what is young stays");
    assert_eq!(count("select count(distinct id) from effects").await, handled);
    // What is always allowed, for a machine that does other things too.
    let allowed = (3 * alone).max(Duration::from_millis(50));
    assert!(beside.1 <= allowed, "F79: {:?} a batch beside the purge, {alone:?} alone", beside.1);
}
