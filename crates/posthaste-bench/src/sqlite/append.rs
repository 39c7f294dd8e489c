//! What an append costs an application whose database is a SQLite file.
//!
//! As on PostgreSQL: in turn with a plain INSERT of the same bytes into a bare table, in the same file and
//! over the same connection, so that syncs and checkpoints fall on both alike.

use super::super::append::{AppendArgs, BLOCK, Side, Times, end_blocks, single_figures, turns};
use super::super::report::{ProgressLine, Report};
use super::Bench;
use super::ground::{BARE, BATCH, INSERT, insert};
use posthaste::Event;
use posthaste_sqlite::Outbox;
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;
use std::time::{Duration, Instant};

pub(super) async fn run(bench: &Bench<'_>, args: &AppendArgs, report: &mut Report) -> anyhow::Result<()> {
    let connection = bench.ground.connect()?;
    connection.execute_batch(BARE)?;
    let mut writer = FileAppender { connection, outbox: Outbox::default() };
    let (ours, plain) = singles(bench, args.events, &mut writer).await?;
    single_figures(report, &ours, &plain);
    let (ours, plain) = batches(bench, args.batches, &mut writer).await?;
    let rate = |seconds: f64| BATCH as f64 / seconds;
    let words = "time of append_all, 1,000 a transaction, to that of as many INSERTs";
    report.figure("batch_ratio_to_plain_insert", ours.median() / plain.median(), words);
    report.figure("batch_append_per_s", rate(ours.median()), "median");
    report.figure("batch_insert_per_s", rate(plain.median()), "median");
    report.detail("baseline_sql", json!({ "table": BARE, "insert": INSERT }));
    Ok(())
}

async fn singles(
    bench: &Bench<'_>,
    events: u64,
    writer: &mut FileAppender,
) -> anyhow::Result<(Times, Times)> {
    let (mut ours, mut plain) = (Times::default(), Times::default());
    let mut progress = ProgressLine::start("single appends and inserts", 2 * events);
    // The first block of each warms caches and is thrown away.
    for block in 0..=events.div_ceil(BLOCK) {
        for side in turns(block) {
            for number in 0..BLOCK {
                let event = bench.load.event(2 * (block * BLOCK + number) + u64::from(side == Side::Plain));
                let (whole, statement) = writer.write(side, std::slice::from_ref(&event))?;
                if block > 0 {
                    side.of(&mut ours, &mut plain).add(whole, statement);
                }
            }
            tokio::task::yield_now().await;
        }
        if block > 0 {
            end_blocks(&mut ours, &mut plain, BLOCK);
        }
        progress.set(2 * block * BLOCK);
    }
    progress.finish();
    Ok((ours, plain))
}

async fn batches(
    bench: &Bench<'_>,
    rounds: u64,
    writer: &mut FileAppender,
) -> anyhow::Result<(Times, Times)> {
    let (mut ours, mut plain) = (Times::default(), Times::default());
    let mut progress = ProgressLine::start("batches of 1,000", 2 * BATCH * rounds);
    for round in 0..=rounds {
        for side in turns(round) {
            let first = (round * 2 + u64::from(side == Side::Plain)) * BATCH;
            let events: Vec<Event> = (first..first + BATCH).map(|index| bench.load.event(index)).collect();
            let (whole, statement) = writer.write(side, &events)?;
            if round > 0 {
                side.of(&mut ours, &mut plain).add(whole, statement);
            }
            tokio::task::yield_now().await;
        }
        progress.set(2 * BATCH * round);
    }
    progress.finish();
    Ok((ours, plain))
}

struct FileAppender {
    connection: Connection,
    outbox: Outbox,
}

impl FileAppender {
    /// Events in a transaction. Answers with the time of all of it, and of the statements.
    fn write(&mut self, side: Side, events: &[Event]) -> anyhow::Result<(Duration, Duration)> {
        let started = Instant::now();
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let begun = Instant::now();
        match side {
            Side::Ours => drop(self.outbox.append_all(&tx, events)?),
            Side::Plain => events.iter().try_for_each(|event| insert(&tx, event))?,
        }
        let statement = begun.elapsed();
        tx.commit()?;
        Ok((started.elapsed(), statement))
    }
}
