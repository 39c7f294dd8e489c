//! kill -9 in the middle of a drain, and a second relay that goes on.
//!
//! What must hold is G2 and the window: every event arrives, at most `max_unsettled_events` of them twice,
//! first deliveries keep the order of their key, and the second relay delivers soon after its start although
//! the first one could not give its lease back. The sink must show duplicates, so this wants `stdout` or a
//! NATS stream that forgets ids after 100 ms, the shortest time it takes.

use super::Bench;
use super::child::Relay;
use super::drain::DrainArgs;
use super::field::{Field, found};
use super::load::Seen;
use super::pipe::{self, Count};
use super::report::{ProgressLine, Report};
use super::sample::{audit, covered};
use crate::output::Usage;
use anyhow::bail;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn run(bench: &Bench<'_>, args: &DrainArgs, report: &mut Report) -> anyhow::Result<()> {
    let mut field = Field::new(bench, args.events).await?;
    if field.yard.is_none() && bench.common.sink != "stdout" {
        return Err(Usage(
            "--kill wants a sink that can be looked into: --sink stdout or a broker's URL".to_owned(),
        )
        .into());
    }
    bench.ground.fill(&bench.load, 0..args.events).await?;
    let (sink, path) = field.configure(bench.order()).await?;
    let mut scene =
        Scene { count: Count::new(Seen::new(&bench.load, args.events)), events: args.events, field };
    if let Some(yard) = &mut scene.field.yard {
        yard.clear(Some(WINDOW)).await?;
    }
    let killed_at = scene.first_life(&path).await?;
    let resumed = scene.second_life(&path, &sink).await?;
    scene.tell(report, killed_at, resumed, &sink).await
}

struct Scene<'a> {
    field: Field<'a>,
    events: u64,
    count: Count,
}

impl Scene<'_> {
    fn start(&self, path: &Path) -> anyhow::Result<(Relay, Option<JoinHandle<()>>)> {
        let (relay, stdout) =
            Relay::start(&self.field.bench.product, path, self.field.bench.common.sink == "stdout")?;
        Ok((relay, stdout.map(|stdout| self.count.read(stdout)).transpose()?))
    }

    /// How many have arrived, duplicates included.
    async fn arrived(&mut self) -> anyhow::Result<u64> {
        match &mut self.field.yard {
            Some(yard) => Ok(yard.count().await?),
            None => Ok(self.count.with(|seen| seen.distinct + seen.duplicates)),
        }
    }

    /// Runs to the middle and is killed. Answers with how many had arrived when it was dead.
    async fn first_life(&mut self, path: &Path) -> anyhow::Result<u64> {
        let (mut relay, reader) = self.start(path)?;
        let deadline = Instant::now() + PATIENCE;
        while self.arrived().await? < self.events / 2 {
            relay.check()?;
            if Instant::now() > deadline {
                bail!("the relay did not get to the middle:\n{}", relay.last_words());
            }
            tokio::time::sleep(LOOK).await;
        }
        relay.kill().await?;
        match reader {
            Some(reader) => pipe::join(reader).await?,
            // What was on its way to the broker may still come in, and ids must be forgotten.
            None => tokio::time::sleep(2 * WINDOW).await,
        }
        self.arrived().await
    }

    /// Starts again and runs to the end. Answers with the time from the start to the first delivery.
    async fn second_life(&mut self, path: &Path, sink: &str) -> anyhow::Result<Duration> {
        let before = self.arrived().await?;
        let started = Instant::now();
        let (mut relay, reader) = self.start(path)?;
        let mut progress = ProgressLine::start("relay, after kill -9", self.events);
        let (mut resumed, ground) = (None, self.field.bench.ground);
        loop {
            relay.check()?;
            if resumed.is_none() && self.arrived().await? > before {
                let first = self.count.first().unwrap_or_else(Instant::now);
                resumed = Some(first.duration_since(started));
            }
            let rows = covered(&ground.client, &ground.schema, sink).await?.rows;
            progress.set(rows);
            match resumed {
                Some(resumed) if rows >= self.events => {
                    progress.finish();
                    relay.stop().await?;
                    if let Some(reader) = reader {
                        pipe::join(reader).await?;
                    }
                    return Ok(resumed);
                }
                _ if started.elapsed() > PATIENCE => {
                    bail!(
                        "the second relay settled {rows} of {} events:\n{}",
                        self.events,
                        relay.last_words()
                    )
                }
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Looks at everything that arrived.
    async fn tell(
        mut self,
        report: &mut Report,
        killed_at: u64,
        resumed: Duration,
        sink: &str,
    ) -> anyhow::Result<()> {
        let ground = self.field.bench.ground;
        report.detail("settled", audit(&ground.client, &ground.schema, sink).await?);
        report.fact("events", self.events, "how many");
        report.fact("killed_at", killed_at, "arrived when the relay was killed");
        report.figure("resume_ms", resumed.as_secs_f64() * 1e3, "from the restart to the next delivery");
        match &mut self.field.yard {
            Some(yard) => {
                let mut seen = Seen::new(&self.field.bench.load, self.events);
                yard.read_all(&mut |id| seen.note(id)).await?;
                yard.remove().await?;
                outcome(report, &seen, self.events)
            }
            None => self.count.with(|seen| outcome(report, seen, self.events)),
        }
    }
}

fn outcome(report: &mut Report, seen: &Seen, events: u64) -> anyhow::Result<()> {
    report.fact("lost", events - seen.distinct, "must be 0");
    report.fact("duplicates", seen.duplicates, "at most max_unsettled_events");
    report.fact("out_of_order", seen.out_of_order, "first deliveries behind a later one of their key");
    report.fact("distinct_ids", seen.distinct, "events that arrived, each counted once");
    if seen.distinct < events {
        bail!("events were lost: {}", found(seen, events));
    }
    Ok(())
}
