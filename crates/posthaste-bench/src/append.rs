//! What an append costs the application.
//!
//! The yardstick is what the application would do without an outbox: write the same bytes into a bare table
//! with a bigint primary key. Both are done in turn in the same run, in small blocks whose order is swapped
//! each time, so that what the machine does meanwhile falls on both alike. Ratios are of medians; those of
//! the best blocks stand beside them.
//!
//! A single append is timed as an application sees it, from BEGIN to the end of COMMIT, so most of it is the
//! server's flush of its log; the statement alone is timed too, to see what hides behind that.

use super::ground::{copy, copy_sql};
use super::load::TOPIC;
use super::report::{ProgressLine, Report};
use super::sample::{quantile, sorted};
use super::{Bench, Common};
use clap::Args;
use posthaste::Event;
use posthaste_postgres::Outbox;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// Transactions in a row before the other side has its turn.
pub(super) const BLOCK: u64 = 20;
/// Events in a batch: what `append_all` sends as one statement.
const BATCH: u64 = 1_000;
/// Batches in the long transaction.
const LONG: u64 = 20;

#[derive(Debug, Args)]
pub(super) struct AppendArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many single appends, and as many plain inserts
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) events: u64,
    /// How many batches of 1,000, and as many COPYs
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batches: u64,
}

/// Times of one side, in seconds.
#[derive(Default)]
pub(super) struct Times {
    whole: Vec<f64>,
    statement: Vec<f64>,
    blocks: Vec<f64>,
}

impl Times {
    pub(super) fn add(&mut self, whole: Duration, statement: Duration) {
        self.whole.push(whole.as_secs_f64());
        self.statement.push(statement.as_secs_f64());
    }

    /// The mean of the block that was just done.
    fn end_block(&mut self, length: u64) {
        let block = &self.whole[self.whole.len().saturating_sub(length as usize)..];
        self.blocks.push(block.iter().sum::<f64>() / block.len().max(1) as f64);
    }

    pub(super) fn median(&self) -> f64 {
        quantile(&sorted(self.whole.clone()), 0.5)
    }

    fn statement_median(&self) -> f64 {
        quantile(&sorted(self.statement.clone()), 0.5)
    }

    /// The mean of the best block.
    fn best(&self) -> f64 {
        quantile(&sorted(self.blocks.clone()), 0.0)
    }
}

/// Who writes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Ours,
    Plain,
}

impl Side {
    /// Its times, of both.
    pub(super) fn of<'a>(self, ours: &'a mut Times, plain: &'a mut Times) -> &'a mut Times {
        if self == Self::Ours { ours } else { plain }
    }
}

/// Both sides have done a block.
pub(super) fn end_blocks(ours: &mut Times, plain: &mut Times, length: u64) {
    ours.end_block(length);
    plain.end_block(length);
}

pub(super) async fn run(bench: &Bench<'_>, args: &AppendArgs, report: &mut Report) -> anyhow::Result<()> {
    let schema = &bench.ground.schema;
    let make = format!(
        "create table {schema}.bench_bare (seq bigint generated always as identity primary key, \
         id uuid not null, topic text not null, key text, payload bytea)"
    );
    bench.ground.client.batch_execute(&make).await?;
    let insert = format!("insert into {schema}.bench_bare (id, topic, key, payload) values ($1, $2, $3, $4)");
    let mut writer = LogAppender {
        client: bench.ground.connect().await?,
        outbox: Outbox::new(&bench.common.schema),
        copy: copy_sql(&format!("{schema}.bench_bare")),
        insert,
    };
    let (ours, plain) = singles(bench, args, &mut writer).await?;
    single_figures(report, &ours, &plain);
    let (ours, plain) = batches(bench, &mut writer, args.batches, 1).await?;
    batch_figures(report, &ours, &plain);
    let (ours, plain) = batches(bench, &mut writer, args.batches.div_ceil(LONG).max(3), LONG).await?;
    let (ours, plain) = ((BATCH * LONG) as f64 / ours.median(), (BATCH * LONG) as f64 / plain.median());
    report.figure(
        "long_ratio_to_copy",
        ours / plain,
        "20 such batches in one transaction, to one COPY of 20,000",
    );
    report.detail("long_append_per_s", ours.round());
    report.detail("long_copy_per_s", plain.round());
    report.detail("baseline_sql", json!({ "table": make, "insert": writer.insert, "copy": writer.copy }));
    Ok(())
}

pub(super) fn single_figures(report: &mut Report, ours: &Times, plain: &Times) {
    let ms = 1e3;
    report.figure(
        "single_ratio_to_plain_insert",
        ours.median() / plain.median(),
        "time of BEGIN, append, COMMIT to that with an INSERT",
    );
    report.figure("single_ratio_best", ours.best() / plain.best(), "the same for the best blocks");
    report.figure("single_append_ms", ours.median() * ms, "median");
    report.figure("single_insert_ms", plain.median() * ms, "median");
    report.figure(
        "statement_ratio",
        ours.statement_median() / plain.statement_median(),
        "the statement alone",
    );
    report.figure("statement_append_ms", ours.statement_median() * ms, "median");
    report.figure("statement_insert_ms", plain.statement_median() * ms, "median");
}

fn batch_figures(report: &mut Report, ours: &Times, plain: &Times) {
    let rate = |seconds: f64| BATCH as f64 / seconds;
    report.figure(
        "batch_ratio_to_copy",
        plain.median() / ours.median(),
        "rate of append_all, 1,000 a transaction, to that of COPY BINARY",
    );
    report.figure("batch_ratio_best", plain.best() / ours.best(), "the same for the best ones");
    report.figure("batch_append_per_s", rate(ours.median()), "median");
    report.figure("batch_copy_per_s", rate(plain.median()), "median");
}

/// Single appends and inserts in turn.
async fn singles(
    bench: &Bench<'_>,
    args: &AppendArgs,
    writer: &mut LogAppender,
) -> anyhow::Result<(Times, Times)> {
    let (mut ours, mut plain) = (Times::default(), Times::default());
    let mut progress = ProgressLine::start("single appends and inserts", 2 * args.events);
    // The first block of each warms caches and is thrown away.
    for block in 0..=args.events.div_ceil(BLOCK) {
        for side in turns(block) {
            for number in 0..BLOCK {
                let event = bench.load.event(2 * (block * BLOCK + number) + u64::from(side == Side::Plain));
                let (whole, statement) = writer.single(side, &event).await?;
                if block > 0 {
                    side.of(&mut ours, &mut plain).add(whole, statement);
                }
            }
        }
        if block > 0 {
            end_blocks(&mut ours, &mut plain, BLOCK);
        }
        progress.set(2 * block * BLOCK);
    }
    progress.finish();
    Ok((ours, plain))
}

/// Batches and COPYs in turn, each so many times 1,000 events in a transaction.
async fn batches(
    bench: &Bench<'_>,
    writer: &mut LogAppender,
    rounds: u64,
    length: u64,
) -> anyhow::Result<(Times, Times)> {
    let (mut ours, mut plain) = (Times::default(), Times::default());
    let size = BATCH * length;
    let mut progress = ProgressLine::start(format!("batches and COPYs of {size}"), 2 * size * rounds);
    for round in 0..=rounds {
        for side in turns(round) {
            let first = (round * 2 + u64::from(side == Side::Plain)) * size;
            let events: Vec<Event> = (first..first + size).map(|index| bench.load.event(index)).collect();
            let took = writer.batch(side, &events).await?;
            if round > 0 {
                let times = side.of(&mut ours, &mut plain);
                times.add(took, took);
                times.end_block(1);
            }
        }
        progress.set(2 * size * round);
    }
    progress.finish();
    Ok((ours, plain))
}

/// Whose turn is first changes each time.
pub(super) fn turns(round: u64) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::Ours, Side::Plain] } else { [Side::Plain, Side::Ours] }
}

struct LogAppender {
    client: Client,
    outbox: Outbox,
    copy: String,
    insert: String,
}

impl LogAppender {
    /// One event in a transaction. Answers with the time of all of it, and of the statement.
    async fn single(&mut self, side: Side, event: &Event) -> anyhow::Result<(Duration, Duration)> {
        let started = Instant::now();
        let mut tx = self.client.transaction().await?;
        let begun = Instant::now();
        match side {
            Side::Ours => drop(self.outbox.append(&mut tx, event).await?),
            Side::Plain => {
                let payload = event.payload.as_deref();
                let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
                    (&event.id, Type::UUID),
                    (&TOPIC, Type::TEXT),
                    (&event.key, Type::TEXT),
                    (&payload, Type::BYTEA),
                ];
                tx.query_typed(&self.insert, &params).await?;
            }
        }
        let statement = begun.elapsed();
        tx.commit().await?;
        Ok((started.elapsed(), statement))
    }

    /// Many events in one transaction.
    async fn batch(&mut self, side: Side, events: &[Event]) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let mut tx = self.client.transaction().await?;
        match side {
            Side::Ours => {
                for batch in events.chunks(BATCH as usize) {
                    self.outbox.append_all(&mut tx, batch).await?;
                }
            }
            Side::Plain => copy(tx.copy_in(&self.copy).await?, events).await?,
        }
        tx.commit().await?;
        Ok(started.elapsed())
    }
}
