//! How fast a backlog goes from one file into the other.
//!
//! As on PostgreSQL: the log is filled once, each round reads it with a sink of a new name, and a drain lasts
//! from the receipt by which the relay took the lane to the one that covers the last event. The broker's file
//! is new in each round. Afterwards every message is read from it, partition by partition: each id once, each
//! key in order.

use super::super::child::{Relay, Setup, show};
use super::super::drain::DrainArgs;
use super::super::field::{Drained, PATIENCE, complete};
use super::super::load::Seen;
use super::super::report::{ProgressLine, Report, best, rounded};
use super::super::sample::ProcessUsage;
use super::Bench;
use super::ground::{BARE, BATCH, INSERT};
use crate::output::Usage;
use anyhow::{Context as _, bail};
use posthaste::route::Order;
use rusqlite::{Connection, OpenFlags, params};
use serde_json::json;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How often the receipts are looked at. They carry their own time.
const LOOK: Duration = Duration::from_millis(20);

pub(super) async fn run(bench: &Bench<'_>, args: &DrainArgs, report: &mut Report) -> anyhow::Result<()> {
    if args.is_special() {
        let why = "--kill, --compare-order, --hold-transaction and --backlog-ratio measure PostgreSQL only";
        return Err(Usage(why.to_owned()).into());
    }
    let order: Order = bench.common.order.into();
    show(&Setup { sink: "bench", target: &bench.common.sink, options: None, order }.text(bench.common)?);
    bench.ground.fill(&bench.load, 0..args.events).await?;
    let (mut inserts, mut drains) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        if !args.no_baselines {
            inserts.push(bench.ground.bare_insert(&bench.load, args.events).await?);
        }
        drains.push(drain(bench, order, args.events, round).await?);
    }
    figures(report, args.events, &drains, &inserts);
    report.detail("order", if order == Order::Key { "key" } else { "none" });
    report.detail("sink", bench.common.sink.clone());
    Ok(())
}

fn figures(report: &mut Report, events: u64, drains: &[Drained], inserts: &[f64]) {
    let of = |pick: fn(&Drained) -> f64| drains.iter().map(pick).collect::<Vec<_>>();
    let rates = of(|drained| drained.events_per_s);
    let (rate, insert) = (best(&rates), best(inserts));
    let cpu = of(|drained| drained.cpu_us_per_event).into_iter().fold(f64::NAN, f64::min);
    report.fact("events", events, "how many");
    report.figure("events_per_s", rate, "the relay, from taking the lane to the last receipt");
    report.figure("insert_per_s", insert, "a bare insert of the same bytes, 1,000 rows a transaction");
    report.figure("ratio_to_insert", rate / insert, "events_per_s to it");
    let peak = best(&of(|drained| drained.rss_peak_mb));
    report.figure("rss_peak_mb", peak, "the relay's resident memory at its peak");
    report.figure("cpu_us_per_event", cpu, "the relay's CPU time");
    if let Some(last) = drains.last() {
        report.fact("distinct_ids", last.distinct_ids, &format!("verified by {}", last.verified));
        report.detail("verified_by", last.verified);
    }
    report.detail("baseline_sql", json!({ "table": BARE, "insert": INSERT, "rows_a_transaction": BATCH }));
    report.detail("rounds", json!({ "events_per_s": rounded(&rates), "insert_per_s": rounded(inserts) }));
}

/// Lets one relay deliver the whole log.
async fn drain(bench: &Bench<'_>, order: Order, events: u64, round: u32) -> anyhow::Result<Drained> {
    let sink = format!("bench{round}");
    let path = bench.write(Setup { sink: &sink, target: &bench.common.sink, options: None, order }).await?;
    bench.ground.fresh_broker();
    let outbox = bench.ground.connect()?;
    let (mut relay, _) = Relay::start(bench.product, &path, false)?;
    let cpu_s = wait(&outbox, &mut relay, &sink, events).await?;
    let rss_peak_mb = ProcessUsage::of(relay.pid())?.rss_peak_mb;
    relay.stop().await?;
    let took = span(&outbox, &sink)?;
    audit(&outbox, &sink, events)?;
    let verified = match bench.common.sink.as_str() {
        "local" => read_broker(bench, order, events)?,
        _ => "the receipts: as many events as the log has",
    };
    Ok(Drained {
        events_per_s: events as f64 / took.as_secs_f64(),
        cpu_us_per_event: cpu_s * 1e6 / events as f64,
        rss_peak_mb,
        distinct_ids: events,
        verified,
    })
}

/// Waits until the receipts cover everything. Answers with the CPU time since the lane was taken.
async fn wait(outbox: &Connection, relay: &mut Relay, sink: &str, events: u64) -> anyhow::Result<f64> {
    let mut progress = ProgressLine::start(format!("relay: {sink}"), events);
    let (mut before, mut rows, mut moved) = (None, 0, Instant::now());
    let sql = "select coalesce(sum(count), 0), coalesce(max(kind = 'takeover'), 0) from posthaste_receipts where sink = ?1";
    let mut look = outbox.prepare(sql)?;
    loop {
        tokio::time::sleep(LOOK).await;
        relay.check()?;
        let (now, taken): (u64, bool) = look.query_row([sink], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if before.is_none() && taken {
            before = Some(ProcessUsage::of(relay.pid())?.cpu_s);
        }
        progress.set(now);
        if now >= events {
            let after = ProcessUsage::of(relay.pid())?.cpu_s;
            progress.finish();
            return Ok(after - before.unwrap_or(0.0));
        }
        if now > rows {
            (rows, moved) = (now, Instant::now());
        }
        if moved.elapsed() > PATIENCE {
            let (seconds, words) = (PATIENCE.as_secs(), relay.last_words());
            bail!("the relay has settled {rows} of {events} events and nothing for {seconds} s:\n{words}");
        }
    }
}

/// From taking the lane to the last receipt that covers something.
fn span(outbox: &Connection, sink: &str) -> anyhow::Result<Duration> {
    let sql =
        "select min(settled_at) filter (where kind = 'takeover'), max(settled_at) filter (where count > 0)
                 from posthaste_receipts where sink = ?1";
    let span = outbox.query_row(sql, [sink], |row| Ok((row.get(0)?, row.get(1)?)));
    let (from, to): (Option<i64>, Option<i64>) = span?;
    let (from, to) = from.zip(to).context("the receipts show no beginning or no end")?;
    Ok(Duration::from_micros((to - from).max(1) as u64))
}

/// What the outbox's file says: every row handled, none put aside.
fn audit(outbox: &Connection, sink: &str, events: u64) -> anyhow::Result<()> {
    let sql = "select (select count(*) from posthaste_outbox),
                      (select coalesce(sum(count), 0) from posthaste_receipts where sink = ?1),
                      (select count(*) from posthaste_deferred where sink = ?1),
                      (select count(*) from posthaste_dead_letters where sink = ?1)";
    let found: [u64; 4] = outbox
        .query_row(sql, params![sink], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?;
    if found != [events, events, 0, 0] {
        bail!("rows in the log, settled, deferred, dead: {found:?}, for {events} events: look with --keep");
    }
    Ok(())
}

/// Reads every message's id at the broker. One key is in one partition, and its positions are its order.
fn read_broker(bench: &Bench<'_>, order: Order, events: u64) -> anyhow::Result<&'static str> {
    let broker = Connection::open_with_flags(&bench.ground.broker, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .context("the broker's file cannot be opened")?;
    let mut seen = Seen::new(&bench.load, events);
    let mut read = broker.prepare("select id from messages order by place")?;
    let mut rows = read.query([])?;
    while let Some(row) = rows.next()? {
        // What is no UUID is a stranger.
        seen.note(row.get(0).map_or(Uuid::nil(), Uuid::from_bytes));
    }
    complete(&seen, order, events)?;
    Ok("every message's id and each key's order in the broker's file, and the receipts")
}
