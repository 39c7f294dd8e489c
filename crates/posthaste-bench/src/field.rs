//! A filled log, and the relays that read it one after another.
//!
//! Each relay gets a sink of a new name, whose cursor starts at the beginning of the log. A drain is over
//! when the receipts cover every event; then it is verified: by the receipts' double entry always, and by
//! whoever sees the sink from outside (a pipe, a stream) where there is somebody.

use super::child::{Relay, Setup, show};
use super::load::{Seen, TOPIC};
use super::pipe::{self, Count};
use super::report::ProgressLine;
use super::sample::{ProcessUsage, audit, covered, span};
use super::{Bench, baseline};
use crate::output::Usage as WrongUse;
use crate::yard::{Yard, yard};
use anyhow::{Context as _, bail};
use posthaste::route::Order;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the receipts are looked at. It adds no error: they carry their own time.
const LOOK: Duration = Duration::from_millis(20);

/// A relay that settles nothing for this long will not do so at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// One drain.
pub(super) struct Drained {
    pub(super) events_per_s: f64,
    pub(super) cpu_us_per_event: f64,
    pub(super) rss_peak_mb: f64,
    pub(super) distinct_ids: u64,
    pub(super) verified: &'static str,
}

/// A filled log, and the sinks that read it one after another.
pub(super) struct Field<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) events: u64,
    sinks: u32,
    shown: Option<String>,
    pub(super) yard: Option<Box<dyn Yard>>,
}

impl<'a> Field<'a> {
    pub(super) async fn new(bench: &'a Bench<'a>, events: u64) -> anyhow::Result<Self> {
        let yard = yard(&bench.common.sink, TOPIC).await?;
        Ok(Self { bench, events, sinks: 0, shown: None, yard })
    }

    /// The configuration of a relay with a new sink, shown if it is another one than before.
    pub(super) async fn configure(&mut self, order: Order) -> anyhow::Result<(String, PathBuf)> {
        self.sinks += 1;
        let sink = format!("bench{}", self.sinks);
        let options = self.yard.as_ref().map(|yard| yard.sink());
        let setup = Setup { sink: &sink, target: &self.bench.common.sink, options: options.as_ref(), order };
        let path = self.bench.write(setup).await?;
        let text = Setup { sink: "bench", ..setup }.text(self.bench.common)?;
        if self.shown.as_ref() != Some(&text) {
            show(&text);
            self.shown = Some(text);
        }
        Ok((sink, path))
    }

    /// Lets one relay deliver the whole log.
    pub(super) async fn drain(&mut self, order: Order, held: bool) -> anyhow::Result<Drained> {
        let (sink, path) = self.configure(order).await?;
        self.clear().await?;
        let holder = if held { Some(self.bench.ground.hold().await?) } else { None };
        let count = Count::new(Seen::new(&self.bench.load, self.events));
        let (mut relay, stdout) =
            Relay::start(&self.bench.product, &path, self.bench.common.sink == "stdout")?;
        let reader = stdout.map(|stdout| count.read(stdout)).transpose()?;
        let cpu_s = self.wait(&mut relay, &sink).await?;
        let usage = ProcessUsage::of(relay.pid())?;
        relay.stop().await?;
        if let Some(holder) = holder {
            holder.batch_execute("rollback").await?;
        }
        let ground = self.bench.ground;
        let took = span(&ground.client, &ground.schema, &sink, self.events).await?;
        let settled = audit(&ground.client, &ground.schema, &sink).await?;
        if settled != self.events {
            bail!("{settled} of {} events were settled", self.events);
        }
        let verified = match reader {
            Some(reader) => {
                pipe::join(reader).await?;
                count.with(|seen| complete(seen, order, self.events))?;
                "every line's id, and the receipts' double entry"
            }
            None => self.verify_stream(order).await?,
        };
        Ok(Drained {
            events_per_s: self.events as f64 / took.as_secs_f64(),
            cpu_us_per_event: cpu_s * 1e6 / self.events as f64,
            rss_peak_mb: usage.rss_peak_mb,
            distinct_ids: settled,
            verified,
        })
    }

    async fn verify_stream(&mut self, order: Order) -> anyhow::Result<&'static str> {
        let Some(yard) = &mut self.yard else {
            return Ok("the receipts' double entry: counts and sums of all rows equal those of the log");
        };
        let mut seen = Seen::new(&self.bench.load, self.events);
        yard.read_all(&mut |id| seen.note(id)).await?;
        complete(&seen, order, self.events)?;
        Ok(yard.evidence())
    }

    /// Waits until the receipts cover everything. Answers with the CPU time since the lane was taken.
    async fn wait(&self, relay: &mut Relay, sink: &str) -> anyhow::Result<f64> {
        let ground = self.bench.ground;
        let mut progress = ProgressLine::start(format!("relay: {sink}"), self.events);
        let mut before = None;
        let (mut rows, mut moved) = (0, Instant::now());
        loop {
            tokio::time::sleep(LOOK).await;
            relay.check()?;
            let now = covered(&ground.client, &ground.schema, sink).await?;
            if before.is_none() && now.taken {
                before = Some(ProcessUsage::of(relay.pid())?.cpu_s);
            }
            progress.set(now.rows);
            if now.rows >= self.events {
                let after = ProcessUsage::of(relay.pid())?.cpu_s;
                progress.finish();
                return Ok(after - before.unwrap_or(0.0));
            }
            if now.rows > rows {
                (rows, moved) = (now.rows, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                bail!(
                    "the relay has settled {rows} of {} events and nothing for {} s:\n{}",
                    self.events,
                    PATIENCE.as_secs(),
                    relay.last_words()
                );
            }
        }
    }

    /// The rate of the broker's client without Posthaste, where there is one.
    pub(super) async fn client_alone(&mut self) -> anyhow::Result<Option<f64>> {
        let Some(yard) = &mut self.yard else { return Ok(None) };
        yard.clear(None).await?;
        let messages = baseline::messages(&self.bench.load, self.events);
        let took = yard.client_alone(&messages).await.context("the broker's client alone")?;
        let mut seen = Seen::new(&self.bench.load, self.events);
        yard.read_all(&mut |id| seen.note(id)).await?;
        complete(&seen, Order::None, self.events)
            .context("what the client alone delivered is not at the broker")?;
        Ok(Some(baseline::rate(self.events, took)))
    }

    /// The sink's own rate, without a relay.
    pub(super) async fn sink_alone(&mut self) -> anyhow::Result<Option<f64>> {
        if matches!(self.bench.common.sink.as_str(), "null" | "stdout") {
            return Ok(None);
        }
        let options = self.yard.as_ref().map(|yard| yard.sink());
        let target = &self.bench.common.sink;
        let setup = Setup { sink: "alone", target, options: options.as_ref(), order: Order::None };
        let sink = setup
            .sink_config(self.bench.common)?
            .build("alone")
            .await
            .map_err(|error| WrongUse(error.to_string()))?;
        self.clear().await?;
        baseline::warm(&*sink, &self.bench.load).await?;
        // The warming left an event behind.
        self.clear().await?;
        let rate = baseline::sink_alone(&*sink, &self.bench.load, self.events).await?;
        sink.close().await;
        if let Some(yard) = &mut self.yard {
            let mut seen = Seen::new(&self.bench.load, self.events);
            yard.read_all(&mut |id| seen.note(id)).await?;
            complete(&seen, Order::None, self.events)
                .context("what the sink alone delivered is not at the broker")?;
        }
        Ok(Some(rate))
    }

    /// Leaves nothing behind on the broker.
    pub(super) async fn leave(mut self) -> anyhow::Result<()> {
        match &mut self.yard {
            Some(yard) => Ok(yard.remove().await?),
            None => Ok(()),
        }
    }

    /// Nothing of an earlier round is at the broker, and none of its ids are known to it.
    async fn clear(&mut self) -> anyhow::Result<()> {
        match &mut self.yard {
            Some(yard) => Ok(yard.clear(None).await?),
            None => Ok(()),
        }
    }
}

/// All of them, once, and in order where that was asked for.
pub(super) fn complete(seen: &Seen, order: Order, events: u64) -> anyhow::Result<()> {
    let disorder = if order == Order::Key { seen.out_of_order } else { 0 };
    if seen.distinct == events && seen.duplicates == 0 && seen.strangers == 0 && disorder == 0 {
        return Ok(());
    }
    bail!("{}", found(seen, events))
}

/// What an observer found, as a text.
pub(super) fn found(seen: &Seen, events: u64) -> Value {
    json!({
        "sent": events, "distinct": seen.distinct, "duplicates": seen.duplicates,
        "out_of_order": seen.out_of_order, "strangers": seen.strangers,
    })
}
