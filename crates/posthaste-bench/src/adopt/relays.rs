//! One relay, and two side by side, where the sink is what takes time: each answer comes 10 ms after its
//! request.

use super::super::Bench;
use super::super::child::Relay;
use super::super::report::Report;
use super::receiver::{DELAY, Receiver};
use super::table::{AdoptedTable, MARKED};
use anyhow::bail;

/// As its owners have it: the preset's own.
const BATCH: u32 = 50;

pub(super) async fn run(bench: &Bench<'_>, events: u64, report: &mut Report) -> anyhow::Result<()> {
    let one = drain(bench, events, 1).await?;
    let two = drain(bench, events, 2).await?;
    report.fact("events", events, "how many rows");
    report.figure("one_relay_per_s", one, "one relay");
    report.figure("two_relays_per_s", two, "two relays side by side");
    report.figure("ratio_two_to_one", two / one, "of the two");
    report.detail("answer_ms", DELAY.as_millis() as u64);
    Ok(())
}

async fn drain(bench: &Bench<'_>, events: u64, relays: usize) -> anyhow::Result<f64> {
    let table = AdoptedTable::make(bench, &MARKED, events).await?;
    let receiver = Receiver::start().await?;
    let mut running = Vec::new();
    for number in 0..relays {
        let path = table.configure(&format!("relay{number}"), &receiver.sink(), BATCH)?;
        running.push(Relay::start(&bench.product, &path, false)?.0);
    }
    table.wait(&mut running.iter_mut().collect::<Vec<_>>()).await?;
    for relay in running {
        relay.stop().await?;
    }
    let (ids, distinct) = receiver.seen();
    if ids != events || distinct != events {
        bail!("{ids} requests for {distinct} of {events} events: each was to come once");
    }
    let (rows, seconds) = table.span(BATCH).await?;
    table.drop().await?;
    Ok(rows / seconds)
}
