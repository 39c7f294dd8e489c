//! The board: how each outbox is, as its supervisor last said. `/readyz` reads it, and the daemon ends when
//! nothing on it can go on.

use posthaste::relay::Health;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A report that is older than this is no longer believed. Supervisors renew theirs four times a second.
const STALE_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct OutboxSeat {
    outbox: String,
    health: Health,
    told_at: Instant,
    /// Cannot go on without somebody's help.
    failure: Option<String>,
}

/// One seat for each outbox.
pub(crate) struct Board {
    seats: watch::Sender<Vec<OutboxSeat>>,
}

/// What `/readyz` says.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) ready: bool,
    outboxes: Vec<OutboxHealth>,
}

#[derive(Serialize)]
struct OutboxHealth {
    outbox: String,
    #[serde(flatten)]
    health: Health,
}

impl Board {
    /// A board for these outboxes.
    pub(crate) fn new<'a>(outboxes: impl Iterator<Item = &'a str>) -> Self {
        let health = Health { ready: false, why: "connecting".to_owned(), lanes_owned: 0 };
        let seat = |outbox: &str| OutboxSeat {
            outbox: outbox.to_owned(),
            health: health.clone(),
            told_at: Instant::now(),
            failure: None,
        };
        Self { seats: watch::Sender::new(outboxes.map(seat).collect()) }
    }

    /// An outbox is well, or will be by itself.
    pub(crate) fn tell(&self, seat: usize, health: Health) {
        self.seats.send_modify(|seats| {
            seats[seat] =
                OutboxSeat { health, told_at: Instant::now(), failure: None, ..seats[seat].clone() };
        });
    }

    /// An outbox needs somebody's help.
    pub(crate) fn fail(&self, seat: usize, why: &str) {
        let first = why.lines().next().unwrap_or_default().to_owned();
        let health = Health { ready: false, why: format!("failed: {first}"), lanes_owned: 0 };
        self.seats.send_modify(|seats| {
            let failure = Some(why.to_owned());
            seats[seat] = OutboxSeat { health, told_at: Instant::now(), failure, ..seats[seat].clone() };
        });
    }

    /// Whether there is more than one outbox.
    pub(crate) fn is_shared(&self) -> bool {
        self.seats.borrow().len() > 1
    }

    /// How everything is.
    pub(crate) fn report(&self) -> Report {
        let outboxes: Vec<OutboxHealth> = self.seats.borrow().iter().map(line).collect();
        Report { ready: outboxes.iter().all(|line| line.health.ready), outboxes }
    }

    /// Resolves when no outbox can go on, with the reasons.
    pub(crate) async fn all_failed(&self) -> String {
        let mut seats = self.seats.subscribe();
        let all = |seats: &Vec<OutboxSeat>| seats.iter().all(|seat| seat.failure.is_some());
        match seats.wait_for(all).await {
            Ok(seats) => seats.iter().filter_map(|seat| seat.failure.clone()).collect::<Vec<_>>().join("\n"),
            // The sender is `self`.
            Err(_) => std::future::pending().await,
        }
    }
}

fn line(seat: &OutboxSeat) -> OutboxHealth {
    let silent = seat.told_at.elapsed();
    let health = if seat.health.ready && silent > STALE_AFTER {
        let why = format!("stalled: no word from its relay for {} s", silent.as_secs());
        Health { ready: false, why, lanes_owned: seat.health.lanes_owned }
    } else {
        seat.health.clone()
    };
    OutboxHealth { outbox: seat.outbox.clone(), health }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(ready: bool) -> Health {
        Health { ready, why: "idle".to_owned(), lanes_owned: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn ready_needs_every_outbox_and_a_fresh_word() {
        let board = Board::new(["a", "b"].into_iter());
        assert!(!board.report().ready);
        board.tell(0, health(true));
        assert!(!board.report().ready);
        board.tell(1, health(true));
        assert!(board.report().ready);
        tokio::time::advance(STALE_AFTER + Duration::from_secs(1)).await;
        let report = board.report();
        assert!(!report.ready && report.outboxes[0].health.why.starts_with("stalled"));
    }

    #[tokio::test]
    async fn the_end_comes_when_nobody_can_go_on() {
        let board = Board::new(["a", "b"].into_iter());
        board.fail(0, "no schema");
        let waiting = tokio::time::timeout(Duration::from_millis(10), board.all_failed());
        assert!(waiting.await.is_err());
        board.fail(1, "wrong password");
        assert_eq!(board.all_failed().await, "no schema\nwrong password");
    }
}
