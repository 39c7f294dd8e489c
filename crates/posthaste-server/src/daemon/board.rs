//! The board: how each outbox and each consumer is, as its supervisor last said. `/readyz` reads it, and the
//! daemon ends when nothing on it can go on.

use posthaste::consumer::ConsumerHealth;
use posthaste::relay::Health;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A report that is older than this is no longer believed. Supervisors renew theirs four times a second.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// How the owner of a seat is.
#[derive(Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum SeatHealth {
    Outbox(Health),
    Consumer(ConsumerHealth),
}

impl From<Health> for SeatHealth {
    fn from(health: Health) -> Self {
        Self::Outbox(health)
    }
}

impl From<ConsumerHealth> for SeatHealth {
    fn from(health: ConsumerHealth) -> Self {
        Self::Consumer(health)
    }
}

impl SeatHealth {
    fn is_ready(&self) -> bool {
        match self {
            Self::Outbox(health) => health.ready,
            Self::Consumer(health) => health.ready,
        }
    }

    /// The same, not well.
    fn unwell(self, why: String) -> Self {
        match self {
            Self::Outbox(health) => Self::Outbox(Health { ready: false, why, ..health }),
            Self::Consumer(health) => Self::Consumer(ConsumerHealth { ready: false, why, ..health }),
        }
    }
}

#[derive(Clone)]
struct Seat {
    name: String,
    health: SeatHealth,
    told_at: Instant,
    /// Cannot go on without somebody's help.
    failure: Option<String>,
}

/// One seat for each outbox, then one for each consumer.
pub(crate) struct Board {
    seats: watch::Sender<Vec<Seat>>,
}

/// What `/readyz` says.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) ready: bool,
    outboxes: Vec<SeatLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumers: Vec<SeatLine>,
}

#[derive(Serialize)]
struct SeatLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<String>,
    #[serde(flatten)]
    health: SeatHealth,
}

impl Board {
    /// A board for these outboxes and consumers.
    pub(crate) fn new<'a>(
        outboxes: impl Iterator<Item = &'a str>,
        consumers: impl Iterator<Item = &'a str>,
    ) -> Self {
        let why = || "connecting".to_owned();
        let relay = || SeatHealth::Outbox(Health { ready: false, why: why(), lanes_owned: 0 });
        let consumer = || SeatHealth::Consumer(ConsumerHealth { why: why(), ..ConsumerHealth::default() });
        let all = outboxes.map(|name| (name, relay())).chain(consumers.map(|name| (name, consumer())));
        let seat = |(name, health): (&str, SeatHealth)| Seat {
            name: name.to_owned(),
            health,
            told_at: Instant::now(),
            failure: None,
        };
        Self { seats: watch::Sender::new(all.map(seat).collect()) }
    }

    /// Its owner is well, or will be by itself.
    pub(crate) fn tell(&self, seat: usize, health: impl Into<SeatHealth>) {
        let health = health.into();
        self.seats.send_modify(|seats| {
            seats[seat] = Seat { health, told_at: Instant::now(), failure: None, ..seats[seat].clone() };
        });
    }

    /// Its owner needs somebody's help.
    pub(crate) fn fail(&self, seat: usize, why: &str) {
        let first = why.lines().next().unwrap_or_default();
        let health = |health: &SeatHealth| match health {
            SeatHealth::Outbox(_) => Health { ready: false, why: String::new(), lanes_owned: 0 }.into(),
            SeatHealth::Consumer(_) => SeatHealth::from(ConsumerHealth::default()),
        };
        self.seats.send_modify(|seats| {
            let health = health(&seats[seat].health).unwell(format!("failed: {first}"));
            let failure = Some(why.to_owned());
            seats[seat] = Seat { health, told_at: Instant::now(), failure, ..seats[seat].clone() };
        });
    }

    /// Whether there is more than one seat.
    pub(crate) fn is_shared(&self) -> bool {
        self.seats.borrow().len() > 1
    }

    /// How everything is.
    pub(crate) fn report(&self) -> Report {
        let lines: Vec<SeatLine> = self.seats.borrow().iter().map(line).collect();
        let ready = lines.iter().all(|line| line.health.is_ready());
        let (outboxes, consumers) = lines.into_iter().partition(|line| line.outbox.is_some());
        Report { ready, outboxes, consumers }
    }

    /// Resolves when nobody can go on, with the reasons.
    pub(crate) async fn all_failed(&self) -> String {
        let mut seats = self.seats.subscribe();
        let all = |seats: &Vec<Seat>| seats.iter().all(|seat| seat.failure.is_some());
        match seats.wait_for(all).await {
            Ok(seats) => seats.iter().filter_map(|seat| seat.failure.clone()).collect::<Vec<_>>().join("\n"),
            // The sender is `self`.
            Err(_) => std::future::pending().await,
        }
    }
}

fn line(seat: &Seat) -> SeatLine {
    let silent = seat.told_at.elapsed();
    let mut health = seat.health.clone();
    if health.is_ready() && silent > STALE_AFTER {
        health = health.unwell(format!("stalled: no word from its task for {} s", silent.as_secs()));
    }
    let is_outbox = matches!(health, SeatHealth::Outbox(_));
    let name = Some(seat.name.clone());
    let (outbox, consumer) = if is_outbox { (name, None) } else { (None, name) };
    SeatLine { outbox, consumer, health }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(ready: bool) -> Health {
        Health { ready, why: "idle".to_owned(), lanes_owned: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn ready_needs_everybody_and_a_fresh_word() {
        let board = Board::new(["a"].into_iter(), ["b"].into_iter());
        assert!(!board.report().ready);
        board.tell(0, health(true));
        assert!(!board.report().ready);
        board.tell(1, ConsumerHealth { ready: true, ..ConsumerHealth::default() });
        assert!(board.report().ready);
        tokio::time::advance(STALE_AFTER + Duration::from_secs(1)).await;
        let report = serde_json::to_value(board.report()).expect("it is plain");
        assert_eq!((&report["ready"], &report["consumers"][0]["consumer"]), (&false.into(), &"b".into()));
        for seat in [&report["outboxes"][0], &report["consumers"][0]] {
            assert!(seat["why"].as_str().is_some_and(|why| why.starts_with("stalled")), "{report}");
        }
    }

    #[tokio::test]
    async fn the_end_comes_when_nobody_can_go_on() {
        let board = Board::new(["a"].into_iter(), ["b"].into_iter());
        board.fail(0, "no schema");
        let waiting = tokio::time::timeout(Duration::from_millis(10), board.all_failed());
        assert!(waiting.await.is_err());
        board.fail(1, "wrong password");
        assert_eq!(board.all_failed().await, "no schema\nwrong password");
    }
}
