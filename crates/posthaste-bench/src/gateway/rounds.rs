//! The rounds: everything that is compared has its turn in each, and the order is turned round each time, so
//! that what the machine does meanwhile falls on all alike.

use super::bare::{BareServer, POOLS};
use super::client::{Answers, Asking};
use super::daemon::Gateway;
use super::{BATCH_CLIENTS, GatewayArgs, Site, asking, path};
use crate::judge::{Judge, Target};
use crate::report::{ProgressLine, best, rounded};
use crate::sample::{ProcessUsage, quantile, sorted};
use anyhow::Context as _;
use std::collections::BTreeMap;

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// The baseline with so many connections.
    Bare(usize),
    /// The baseline over the `Writer` of SQLite.
    Writer,
    Gateway,
    Batches,
    /// A handler that stores nothing.
    Checks,
    /// A gateway that counts in Redis.
    Redis,
    LoneBare,
    LoneGateway,
}

impl Side {
    pub(super) fn on_postgres(has_redis: bool) -> Vec<Self> {
        let mut sides: Vec<Self> = POOLS.into_iter().map(Self::Bare).collect();
        sides.extend([Self::Gateway, Self::Batches, Self::Checks]);
        sides.extend(has_redis.then_some(Self::Redis));
        sides.extend([Self::LoneBare, Self::LoneGateway]);
        sides
    }

    fn is_bare(self) -> bool {
        matches!(self, Self::Bare(_) | Self::Writer | Self::LoneBare | Self::Checks)
    }
}

/// What runs while rounds are measured, and what came out.
pub(super) struct GatewayRounds<'a> {
    site: &'a Site<'a>,
    keys: &'a [String],
    bare: BareServer,
    doors: Vec<(Side, Gateway)>,
    rates: Rates,
}

/// Figures of each round: a rate, or a lone client's p50 in milliseconds.
#[derive(Default)]
pub(super) struct Rates {
    of: BTreeMap<Side, Vec<f64>>,
    /// Microseconds of a processor for each request.
    cpu_us: BTreeMap<Side, Vec<f64>>,
}

impl<'a> GatewayRounds<'a> {
    pub(super) fn new(
        site: &'a Site<'a>,
        keys: &'a [String],
        bare: BareServer,
        doors: Vec<(Side, Gateway)>,
    ) -> Self {
        Self { site, keys, bare, doors, rates: Rates::default() }
    }

    fn door(&self, side: Side) -> anyhow::Result<&Gateway> {
        let door = self.doors.iter().find(|(of, _)| *of == side);
        Ok(&door.context("there is no such gateway")?.1)
    }

    pub(super) fn gateway(&self) -> anyhow::Result<&Gateway> {
        self.door(Side::Gateway)
    }

    /// Whom clients of this side ask, for what, and how many events a request has.
    fn asking(&self, side: Side) -> anyhow::Result<(Asking, u64)> {
        let (site, keys) = (self.site, self.keys);
        let bare = |page: &str, clients| asking(self.bare.address, site.singles(page, keys), clients);
        let clients = site.clients();
        let asked = match side {
            Side::Bare(pool) => bare(&format!("/{pool}"), clients),
            Side::Writer => bare("/writer", clients),
            Side::Checks => bare("/nothing", clients),
            Side::LoneBare => bare(&format!("/{}", POOLS[0]), 1),
            Side::Batches => {
                let requests = site.batches(&path(), keys);
                asking(self.gateway()?.address, requests, BATCH_CLIENTS.min(clients))
            }
            Side::LoneGateway => asking(self.gateway()?.address, site.singles(&path(), keys), 1),
            Side::Gateway | Side::Redis => {
                asking(self.door(side)?.address, site.singles(&path(), keys), clients)
            }
        };
        Ok((asked, if side == Side::Batches { site.args.batch_events } else { 1 }))
    }

    fn pid(&self, side: Side) -> anyhow::Result<u32> {
        match side {
            side if side.is_bare() => self.bare.pid(),
            Side::Redis => Ok(self.door(side)?.relay.pid()),
            _ => Ok(self.gateway()?.relay.pid()),
        }
    }

    /// Takes note of what was stored.
    fn settled(&self, side: Side, answers: Answers, events: u64) -> anyhow::Result<Answers> {
        let answers = answers.all_accepted(&format!("{side:?}"))?;
        if side != Side::Checks {
            self.site.count(&answers, events);
        }
        Ok(answers)
    }

    pub(super) async fn rounds(&mut self, mut sides: Vec<Side>) -> anyhow::Result<()> {
        let total = self.site.args.rounds * sides.len() as u64;
        let mut progress = ProgressLine::start("rounds of all sides", total);
        for round in 0..self.site.args.rounds {
            for (turn, side) in sides.iter().enumerate() {
                self.turn(*side).await?;
                progress.set(round * sides.len() as u64 + turn as u64 + 1);
            }
            sides.reverse();
        }
        progress.finish();
        Ok(())
    }

    async fn turn(&mut self, side: Side) -> anyhow::Result<()> {
        let (asking, events) = self.asking(side)?;
        let pid = self.pid(side)?;
        let before = ProcessUsage::of(pid)?.cpu_s;
        let answers = self.settled(side, asking.closed(self.site.time()).await?, events)?;
        let cpu_us = (ProcessUsage::of(pid)?.cpu_s - before) * 1e6 / answers.accepted() as f64;
        let figure = match side {
            Side::LoneBare | Side::LoneGateway => quantile(&sorted(answers.times_ms), 0.5),
            _ => answers.per_s() * events as f64,
        };
        self.rates.of.entry(side).or_default().push(figure);
        self.rates.cpu_us.entry(side).or_default().push(cpu_us);
        Ok(())
    }

    /// Both at half of what the baseline does at its best, in turn.
    pub(super) async fn half_rate(&mut self) -> anyhow::Result<Paced> {
        let (pool, per_s) = self.rates.baseline();
        let mut paced = Paced { rate: per_s / 2.0, gateway: Vec::new(), bare: Vec::new() };
        let rounds = self.site.args.rounds;
        let mut progress = ProgressLine::start("half of the baseline's rate", 2 * rounds);
        for round in 0..rounds {
            let mut sides = [Side::Bare(pool), Side::Gateway];
            sides.rotate_left(round as usize % 2);
            for side in sides {
                let (asking, events) = self.asking(side)?;
                let answers = asking.paced(paced.rate, self.site.time()).await?;
                let times = sorted(self.settled(side, answers, events)?.times_ms);
                let of = if side == Side::Gateway { &mut paced.gateway } else { &mut paced.bare };
                of.push([0.5, 0.99].map(|part| quantile(&times, part)));
            }
            progress.set(2 * round + 2);
        }
        progress.finish();
        Ok(paced)
    }

    /// Ends all of them.
    pub(super) async fn stop(self) -> anyhow::Result<Rates> {
        for (_, door) in self.doors {
            door.stop().await?;
        }
        self.bare.stop().await?;
        Ok(self.rates)
    }
}

impl Rates {
    fn all(&self, side: Side) -> &[f64] {
        self.of.get(&side).map_or(&[], Vec::as_slice)
    }

    fn best(&self, side: Side) -> f64 {
        best(self.all(side))
    }

    fn median(&self, side: Side) -> f64 {
        quantile(&sorted(self.all(side).to_vec()), 0.5)
    }

    /// The baseline's connections at its best, and its rate.
    fn baseline(&self) -> (usize, f64) {
        let each = POOLS.map(|pool| (pool, self.best(Side::Bare(pool))));
        each.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((POOLS[0], f64::NAN))
    }

    pub(super) fn figures(&self, judge: &mut Judge<'_>, args: &GatewayArgs) {
        let ((pool, baseline), gateway) = (self.baseline(), self.best(Side::Gateway));
        judge.report.figure("requests_per_s", gateway, "one event a request");
        let words = "of a bare handler: one insert, one commit";
        judge.report.figure("baseline_requests_per_s", baseline, words);
        judge.report.fact("baseline_connections", pool as u64, "with which it is best");
        judge.target("requests_ratio_to_baseline", gateway / baseline, Target::Least(1.5), "");
        let batches = self.best(Side::Batches);
        let words = format!("in batches of {}", args.batch_events);
        judge.report.figure("batch_events_per_s", batches, &words);
        judge.target("batch_ratio_to_baseline", batches / baseline, Target::Least(10.0), "its events");
        let (lone, bare) = (self.median(Side::LoneGateway), self.median(Side::LoneBare));
        judge.report.figure("lone_p50_ms", lone, "of a client alone");
        judge.report.figure("baseline_lone_p50_ms", bare, "");
        judge.target("lone_p50_more_ms", lone - bare, Target::Most(0.5), "the difference");
        self.checks(judge, gateway);
        if !self.all(Side::Redis).is_empty() {
            let ratio = self.best(Side::Redis) / gateway;
            judge.target("redis_ratio", ratio, Target::Least(0.7), "counting in Redis, to without");
        }
        self.details(judge);
    }

    pub(super) fn on_sqlite(&self, judge: &mut Judge<'_>) {
        let (gateway, writer) = (self.best(Side::Gateway), self.best(Side::Writer));
        judge.report.figure("requests_per_s", gateway, "one event a request");
        judge.report.figure("writer_requests_per_s", writer, "of a bare handler over the same Writer");
        judge.target("requests_ratio_to_writer", gateway / writer, Target::Least(0.9), "");
        self.checks(judge, gateway);
        self.details(judge);
    }

    /// How far it is from a handler that stores nothing.
    fn checks(&self, judge: &mut Judge<'_>, gateway: f64) {
        let checks = self.best(Side::Checks);
        judge.report.figure(
            "checks_only_per_s",
            checks,
            "of a handler that checks key and body, and no more",
        );
        judge.report.figure("ratio_to_checks_only", gateway / checks, "");
    }

    fn details(&self, judge: &mut Judge<'_>) {
        for (side, values) in &self.of {
            judge.report.detail(&format!("round_{side:?}").to_lowercase(), rounded(values));
        }
        for (side, values) in &self.cpu_us {
            judge.report.detail(&format!("cpu_us_{side:?}").to_lowercase(), rounded(values));
        }
    }
}

/// Times at half of the baseline's rate: p50 and p99 of each round.
pub(super) struct Paced {
    rate: f64,
    gateway: Vec<[f64; 2]>,
    bare: Vec<[f64; 2]>,
}

impl Paced {
    pub(super) fn figures(&self, judge: &mut Judge<'_>) {
        let middle = |rounds: &[[f64; 2]], which: usize| {
            quantile(&sorted(rounds.iter().map(|both| both[which]).collect()), 0.5)
        };
        judge.report.figure("half_rate_per_s", self.rate, "requests, half of the baseline's best");
        let (ours, bare) = (middle(&self.gateway, 1), middle(&self.bare, 1));
        judge.report.figure("p50_ms", middle(&self.gateway, 0), "at that rate, of the middle round");
        judge.report.figure("baseline_p50_ms", middle(&self.bare, 0), "");
        judge.report.figure("p99_ms", ours, "");
        judge.report.figure("baseline_p99_ms", bare, "");
        judge.target("p99_ratio_to_baseline", ours / bare, Target::Most(1.0), "");
        let all = |rounds: &[[f64; 2]]| rounded(&rounds.iter().map(|both| both[1]).collect::<Vec<_>>());
        judge.report.detail("round_p99_ms", all(&self.gateway));
        judge.report.detail("round_baseline_p99_ms", all(&self.bare));
    }
}
