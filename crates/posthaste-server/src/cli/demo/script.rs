//! The script: what happens, in which order, and the cues it waits for.
//!
//! Nothing is said that was not seen. Each act does something, waits until the files or a process show what
//! must follow, and tells it. What does not follow within the deadline is an error, not a pause.
//!
//! A cue is a fact that surely comes about, however slow the machine is and however long the script slept
//! before it looked. "More than just now" is no such fact: it may be all there already. So a cue compares
//! with what the service may commit, and that goes beyond what was there before.

use super::DemoArgs;
use super::child::Child;
use super::gauge::{Gauge, GaugeReading, Letter};
use super::view::View;
use crate::demo::ledger::Ledger;
use crate::demo::service::{DemoPlan, FIRST_GATE, Service};
use crate::demo::stage::Stage;
use crate::demo::tenant::{self, Client, RUSH_BURST};
use crate::output::thousands as n;
use anyhow::{Context as _, bail, ensure};
use std::time::{Duration, Instant};

/// How long the broker and the bank stay away: some probes of their breakers.
const OUTAGE: Duration = Duration::from_millis(1_500);
const BANK_OUTAGE: Duration = Duration::from_millis(800);

/// An outage of the traffic behind the story, and what lies between two of them.
const STEADY_OUTAGE: SteadyOutage = SteadyOutage {
    first: Duration::from_secs(10),
    time: Duration::from_secs(6),
    pause: Duration::from_secs(54),
};

struct SteadyOutage {
    first: Duration,
    time: Duration,
    pause: Duration,
}

/// How long nothing of the script may take, whatever the machine does besides; and the same for each event.
const DEADLINE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(4));

pub(super) struct Script<'a> {
    stage: &'a Stage,
    view: &'a View,
    plan: DemoPlan,
    /// Between two looks at the files.
    look: Duration,
    deadline: Instant,
    /// Orders are handed in by HTTP; so many more are another tenant's.
    gateway: bool,
    more: u64,
    cast: Cast,
}

/// Whoever runs. All of them end with [`Script::end`], whatever happens.
#[derive(Default)]
struct Cast {
    gauge: Option<Gauge>,
    service: Option<Service>,
    relay: Option<Child>,
    consumer: Option<Child>,
    /// The tenant that floods.
    rush: Option<Client>,
}

impl Cast {
    fn relay(&mut self) -> anyhow::Result<&mut Child> {
        self.relay.as_mut().context("no relay runs")
    }

    fn consumer(&mut self) -> anyhow::Result<&mut Child> {
        self.consumer.as_mut().context("no consumer runs")
    }

    fn gauge(&self) -> anyhow::Result<&Gauge> {
        self.gauge.as_ref().context("the files are not open")
    }

    /// An error if somebody fell out of his part.
    async fn check(&mut self) -> anyhow::Result<()> {
        if let Some(relay) = &mut self.relay {
            relay.check()?;
        }
        if let Some(consumer) = &mut self.consumer {
            // It has to die once; any other end is an error.
            consumer.was_killed()?;
        }
        match self.service.take_if(|service| service.has_ended()) {
            Some(service) => service.join().await,
            None => Ok(()),
        }
    }
}

impl<'a> Script<'a> {
    pub(super) fn new(stage: &'a Stage, view: &'a View, args: &DemoArgs) -> Self {
        let plan = DemoPlan { events: args.events, seed: args.seed, goes_on: args.ui };
        let patience = DEADLINE.0 + DEADLINE.1 * u32::try_from(args.events).unwrap_or(u32::MAX);
        let look = Duration::from_millis(args.look_ms);
        let (deadline, gateway) = (Instant::now() + patience, args.gateway);
        let more = if gateway { u64::from(RUSH_BURST) } else { 0 };
        Self { stage, view, plan, look, deadline, gateway, more, cast: Cast::default() }
    }

    /// All acts but the last.
    pub(super) async fn story(&mut self) -> anyhow::Result<()> {
        self.raise_the_curtain().await?;
        self.a_poisonous_event().await?;
        self.billing_gives_one_up().await?;
        if let Some(rush) = self.cast.rush.take() {
            self.view.say("W2 W3", &rush.flood(self.stage).await?)?;
        }
        self.the_broker_goes_away().await?;
        self.a_handler_fails().await?;
        self.the_bank_goes_away().await?;
        self.the_relay_is_killed().await?;
        self.the_consumer_dies().await
    }

    /// The last act, and the reckoning.
    pub(super) async fn reckoning(&mut self) -> anyhow::Result<Ledger> {
        self.let_it_run_dry().await?;
        self.everybody_goes_home().await?;
        Ledger::count(self.stage)
    }

    /// Behind the story: orders go on, some of them poison, and the broker goes away once a minute. Until it
    /// is dropped, or for so many minutes.
    pub(super) async fn steady_traffic(&mut self, minutes: Option<u64>) -> anyhow::Result<()> {
        let events = self.plan.events + self.more;
        self.until("all orders of the story", |seen, _| Ok(seen.committed >= events)).await?;
        self.allow_everything();
        self.view.calm_down();
        let begun = Instant::now();
        let end = minutes.map(|minutes| begun + Duration::from_secs(60 * minutes));
        let mut turn = begun + STEADY_OUTAGE.first;
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(());
            }
            if now >= turn && self.stage.is_broker_away() {
                self.stage.bring_broker_back()?;
                turn = now + STEADY_OUTAGE.pause;
                self.view.say("", "The broker is back.")?;
            } else if now >= turn {
                self.stage.take_broker_away()?;
                turn = now + STEADY_OUTAGE.time;
                self.view.say("", "The broker goes away.")?;
            }
            self.view.show(&self.cast.gauge()?.read()?)?;
            self.cast.check().await?;
            tokio::time::sleep(self.look).await; // pace
        }
    }

    /// No more orders, and nothing stands in the way of those that are there.
    pub(super) async fn last_orders(&mut self) -> anyhow::Result<()> {
        if self.stage.is_broker_away() {
            self.stage.bring_broker_back()?;
        }
        if let Some(service) = self.cast.service.take() {
            service.stop().await?;
        }
        let waiting = u32::try_from(self.cast.gauge()?.read()?.committed).unwrap_or(u32::MAX);
        self.deadline = Instant::now() + DEADLINE.0 + DEADLINE.1 * waiting;
        Ok(())
    }

    /// Ends whatever runs.
    pub(super) async fn end(&mut self) {
        // They cannot be told more than to die, and none of this may keep the others alive.
        if let Some(service) = self.cast.service.take() {
            let _ = service.stop().await;
        }
        for child in [self.cast.relay.take(), self.cast.consumer.take()].into_iter().flatten() {
            let mut child = child;
            let _ = child.kill().await;
        }
    }

    async fn raise_the_curtain(&mut self) -> anyhow::Result<()> {
        let DemoPlan { events, seed, .. } = self.plan;
        let dir = self.stage.dir().display();
        self.view.say("", &format!("{} events, seed {seed}; files in {dir}", n(events)))?;
        let which = if self.gateway { "G1 to G8, and W1 to W8" } else { "G1 to G8" };
        self.view.say("", &format!("{which}, in front of a line, are the guarantees in GUARANTEES.md"))?;
        let address = self.gateway.then(tenant::free_address).transpose()?;
        let config = self.stage.set_up(address).context("cannot set the stage")?;
        self.view.quote(&config)?;
        self.cast.gauge = Some(Gauge::open(self.stage)?);
        let tenants = if self.gateway { Some(tenant::enroll(self.stage).await?) } else { None };
        let (shop, rush) = tenants.unzip();
        self.cast.rush = rush;
        // It dies when it has seen most of the events: after the relay did.
        let consumer = Child::consumer(self.stage, Some(self.part(80) + self.more))?;
        let relay = Child::relay(self.stage)?;
        self.view.say("", &format!("relay: {}; consumer: {}", relay.title(), consumer.title()))?;
        (self.cast.consumer, self.cast.relay) = (Some(consumer), Some(relay));
        self.until("the relay to take its lane", |seen, _| Ok(seen.epoch.is_some())).await?;
        self.cast.service = Some(Service::start(self.stage, self.plan.clone(), shop));
        self.allow(FIRST_GATE, Duration::ZERO);
        let what = "the first event to be applied";
        self.until(what, |seen, _| Ok(seen.applied > 0 && seen.rolled_back > 0)).await?;
        if self.gateway {
            return self.view.say("W1 W2", tenant::OPENING);
        }
        self.view.say(
            "G1",
            "Orders commit with their events. One transaction in ten is rolled back, and its events never were.",
        )
    }

    async fn a_poisonous_event(&mut self) -> anyhow::Result<()> {
        self.until("the poisonous event to be given up", |seen, _| Ok(seen.dead > 0)).await?;
        let Letter { seq, key, code } = self.cast.gauge()?.letter()?;
        self.until("others to flow on", |seen, _| Ok(flows_on_behind(seen, seq))).await?;
        self.view.say(
            "G2 G6",
            &format!(
                "An event of {key} is poison: half of its payload is missing. It is a dead letter now ({code}) and \
                 stays one until somebody acts. All others flow on."
            ),
        )
    }

    async fn billing_gives_one_up(&mut self) -> anyhow::Result<()> {
        let what = "billing to give one up, and others to flow on";
        self.until(what, |seen, _| Ok(seen.buried > 0 && seen.applied > 0)).await?;
        let Letter { key, code, .. } = self.cast.gauge()?.billing_letter()?;
        self.view.say(
            "G6",
            &format!(
                "An event of {key} does not say its amount. Billing cannot book it, now or ever: a dead letter there \
                 ({code}), at once and with all of its bytes."
            ),
        )
    }

    async fn the_broker_goes_away(&mut self) -> anyhow::Result<()> {
        let mark = self.part(35) + self.more;
        self.until("a third of the orders", |seen, _| Ok(seen.committed >= mark)).await?;
        // The gate opens when the broker is away, and again: orders are sure to come to the outage's end.
        self.stage.take_broker_away()?;
        let gone = Instant::now();
        self.allow(46, OUTAGE);
        self.view.say("", "The broker goes away: its directory is moved.")?;
        let open = |_: &GaugeReading, cast: &mut Cast| Ok(cast.relay()?.has_said("breaker open"));
        let opened = self.until("the relay to notice that the broker is away", open).await?.committed;
        self.allow(58, OUTAGE * 2);
        let what = "the outage to pass, and orders to go on";
        let seen = self.until(what, |s, _| Ok(gone.elapsed() >= OUTAGE && s.committed > opened)).await?;
        ensure!(seen.attempts == 0 && seen.dead == 1, "an outage was taken for an event's fault: {seen:?}");
        self.view.say(
            "G2 G7",
            &format!(
                "The relay's breaker is open. Orders commit as before: {} events since then. {} wait; attempts counted: \
                 {}, new dead letters: {}.",
                n(seen.committed - opened),
                n(seen.committed.saturating_sub(seen.delivered + seen.dead)),
                n(seen.attempts),
                n(seen.dead - 1)
            ),
        )?;
        self.stage.bring_broker_back()?;
        // The broker took nothing behind the first gate, and the second one is far beyond it.
        let (back, before) = (Instant::now(), seen.delivered);
        let closed = |seen: &GaugeReading, cast: &mut Cast| {
            Ok(seen.delivered > before && cast.relay()?.has_said("breaker closed"))
        };
        self.until("the relay to notice that the broker is back", closed).await?;
        self.view.say("", &format!("The broker is back. Events flow again after {}.", secs(back.elapsed())))
    }

    /// It waits while everything else goes on, the broker's outage too.
    async fn a_handler_fails(&mut self) -> anyhow::Result<()> {
        let what = "the handler to succeed in the end";
        self.until(what, |seen, _| Ok(seen.retried > 0 && seen.waiting == 0)).await?;
        let (key, deferred) = self.cast.gauge()?.stubborn()?;
        self.view.say(
            "G3 G5",
            &format!(
                "Billing's handler failed twice with an event of {key}. It waited in memory, then in the table: {} \
                 deferred, with what came behind it. The third attempt booked it; the order of its key is kept.",
                n(deferred)
            ),
        )
    }

    async fn the_bank_goes_away(&mut self) -> anyhow::Result<()> {
        // Behind the gate are events that need the bank: they come when it is away.
        self.stage.take_bank_away()?;
        let before = self.cast.gauge()?.read()?;
        let gone = Instant::now();
        self.allow(70, Duration::ZERO);
        self.view.say("", "The bank that billing asks goes away.")?;
        let open = |_: &GaugeReading, cast: &mut Cast| Ok(cast.consumer()?.has_said("a dependency is away"));
        self.until("the consumer to notice that the bank is away", open).await?;
        let seen = self.until("the outage to pass", |_, _| Ok(gone.elapsed() >= BANK_OUTAGE)).await?;
        ensure!(
            (seen.retried, seen.buried) == (before.retried, before.buried),
            "an outage was taken for a message's fault: {seen:?}"
        );
        self.view.say(
            "G2 G7",
            &format!(
                "The consumer's breaker is open, and its partition is paused: {} messages wait; attempts \
                 counted: {}, new dead letters: {}.",
                n(seen.delivered.saturating_sub(seen.applied + seen.buried)),
                n(seen.retried - before.retried),
                n(seen.buried - before.buried)
            ),
        )?;
        self.stage.bring_bank_back()?;
        let back = Instant::now();
        let closed = |seen: &GaugeReading, cast: &mut Cast| {
            Ok(seen.applied > before.applied && cast.consumer()?.has_said("the dependency is back"))
        };
        self.until("the consumer to notice that the bank is back", closed).await?;
        self.view.say("", &format!("The bank is back. Billing goes on after {}.", secs(back.elapsed())))
    }

    async fn the_relay_is_killed(&mut self) -> anyhow::Result<()> {
        let mark = self.part(68) + self.more;
        self.until("two thirds of the orders", |seen, _| Ok(seen.committed >= mark)).await?;
        let client = self.cast.service.as_ref().and_then(Service::client);
        if let Some(client) = &client {
            client.hold();
            self.allow(100, Duration::ZERO);
            self.until("a request to be under way", |_, _| Ok(client.holds_one())).await?;
        }
        let mut relay = self.cast.relay.take().context("no relay runs")?;
        let title = relay.title();
        relay.kill().await?;
        ensure!(relay.was_killed()?, "the relay ended before it was killed");
        self.allow(100, Duration::ZERO);
        let seen = self.cast.gauge()?.read()?;
        let unsettled = n(seen.committed.saturating_sub(seen.settled));
        self.view.say(
            "",
            &format!("The relay ({title}) is killed by SIGKILL; {unsettled} events are not settled."),
        )?;
        if let Some(client) = &client {
            client.let_go();
            self.until("the shop to repeat its request", |_, _| Ok(client.repeated() > 0)).await?;
            self.view.say("W1 W4", tenant::KILLED)?;
        }
        let (start, before) = (Instant::now(), seen.epoch.unwrap_or(0));
        self.cast.relay = Some(Child::relay(self.stage)?);
        // It settled nothing behind its gate, and the last one is open.
        let settled = seen.settled;
        let taken = |seen: &GaugeReading, _: &mut Cast| {
            Ok(seen.epoch.is_some_and(|epoch| epoch > before) && seen.settled > settled)
        };
        let seen = self.until("a new relay to take over", taken).await?;
        self.view.say(
            "G2 G4",
            &format!(
                "A new relay ({}) has the lane after {}, under epoch {}. What the old one had not settled is read \
                 again; the old one could settle nothing any more.",
                self.cast.relay()?.title(),
                secs(start.elapsed()),
                seen.epoch.unwrap_or(0)
            ),
        )
    }

    async fn the_consumer_dies(&mut self) -> anyhow::Result<()> {
        self.until("the consumer to die", |_, cast| cast.consumer()?.was_killed()).await?;
        let title = self.cast.consumer()?.title();
        let applied = n(self.cast.gauge()?.read()?.applied);
        self.view.say(
            "",
            &format!(
                "The consumer ({title}) dies by SIGKILL, after a commit and before its position is saved; {applied} \
                 events are applied."
            ),
        )?;
        self.cast.consumer = Some(Child::consumer(self.stage, None)?);
        // If nothing is refused, something was applied twice: then the ledger has the word.
        let events = self.plan.events + self.more;
        let again = |seen: &GaugeReading, _: &mut Cast| {
            Ok(seen.refused > 0
                || (seen.committed >= events && seen.applied + seen.dead + seen.buried > events))
        };
        let seen = self.until("the broker to deliver again", again).await?;
        self.view.say(
            "G5",
            &format!("A new consumer gets them again; the inbox knows them: {} refused.", n(seen.refused)),
        )
    }

    async fn let_it_run_dry(&mut self) -> anyhow::Result<()> {
        // Whoever has ended the orders gets no more of them, however few there are.
        if self.cast.service.is_some() {
            let events = self.plan.events + self.more;
            self.until("all orders", |seen, _| Ok(seen.committed >= events)).await?;
        }
        let what = "the last event to be applied and settled";
        let dry = |seen: &GaugeReading, _: &mut Cast| {
            let ended = seen.applied + seen.dead + seen.buried + seen.discarded;
            Ok(ended >= seen.committed && seen.settled >= seen.committed && seen.waiting == 0)
        };
        let seen = self.until(what, dry).await?;
        let [all, done, dead, buried] = [seen.committed, seen.applied, seen.dead, seen.buried].map(n);
        self.view.say(
            "G2",
            &format!("All {all} events are committed: {done} are applied, {dead} is dead in the shop, {buried} in billing."),
        )
    }

    async fn everybody_goes_home(&mut self) -> anyhow::Result<()> {
        if let Some(service) = self.cast.service.take() {
            service.join().await?;
        }
        self.cast.relay()?.terminate().await?;
        self.cast.consumer()?.let_go().await?;
        (self.cast.relay, self.cast.consumer) = (None, None);
        ensure!(self.cast.gauge()?.read()?.epoch.is_none(), "the relay ended and left its lease behind");
        self.view.say("G8", "Relay and consumer drained and ended; no lease is left behind.")
    }

    /// This many percent of the events.
    fn part(&self, percent: u64) -> u64 {
        self.plan.events * percent / 100
    }

    /// Lets the service go on at its steady pace.
    fn allow_everything(&self) {
        if let Some(service) = &self.cast.service {
            service.allow(u64::MAX, Duration::ZERO);
        }
    }

    /// Lets the service commit up to this many percent, over this time at least.
    fn allow(&self, percent: u64, over: Duration) {
        if let Some(service) = &self.cast.service {
            service.allow(self.part(percent), over);
        }
    }

    /// Waits for a cue, keeps the view up to date, and answers with what was seen.
    async fn until(
        &mut self,
        what: &str,
        mut cue: impl FnMut(&GaugeReading, &mut Cast) -> anyhow::Result<bool>,
    ) -> anyhow::Result<GaugeReading> {
        loop {
            let seen = self.cast.gauge()?.read()?;
            self.view.show(&seen)?;
            self.cast.check().await?;
            if cue(&seen, &mut self.cast)? {
                return Ok(seen);
            }
            if Instant::now() > self.deadline {
                let words = self.cast.relay.as_ref().map(Child::last_words).unwrap_or_default();
                bail!("waited too long for {what}; last seen: {seen:?}; the relay's last words:\n{words}");
            }
            tokio::time::sleep(self.look).await; // pace
        }
    }
}

/// Whether an event behind the dead one is at the broker: more are there than stand before it. The service
/// commits events behind the poisonous one before it waits for the script.
fn flows_on_behind(seen: &GaugeReading, dead: u64) -> bool {
    seen.delivered >= dead
}

fn secs(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine the script looks late: the service has come to its gate, and all is delivered when
    /// the dead letter is seen. Nothing more will come.
    #[test]
    fn a_late_look_finds_that_others_flowed_on() {
        let late = GaugeReading { committed: 91, delivered: 90, dead: 1, ..GaugeReading::default() };
        assert!(flows_on_behind(&late, 38));
        // What stands before it says nothing.
        let early = GaugeReading { committed: 91, delivered: 37, dead: 1, ..GaugeReading::default() };
        assert!(!flows_on_behind(&early, 38));
    }
}
