//! The board: how each outbox and each consumer is, as its supervisor last said. `/readyz` reads it, and the
//! daemon ends when nothing on it can go on.
//!
//! What keeps events of an outbox from arriving is put together from two things: what its relay says now, and
//! the last look at its database, which knows how many wait and who paused what. `/readyz` needs no token, so
//! there are codes and destinations in it and never the text of a broker.

use crate::gateway::GatewayHealth;
use posthaste::admin::{OutboxStatus, Problem, RelayProcess, Said, diagnose};
use posthaste::consumer::ConsumerHealth;
use posthaste::relay::Health;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
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
    Gateway(GatewayHealth),
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

impl From<GatewayHealth> for SeatHealth {
    fn from(health: GatewayHealth) -> Self {
        Self::Gateway(health)
    }
}

impl SeatHealth {
    fn is_ready(&self) -> bool {
        match self {
            Self::Outbox(health) => health.ready,
            Self::Consumer(health) => health.ready,
            Self::Gateway(health) => health.ready,
        }
    }

    fn news(&self) -> u64 {
        match self {
            Self::Outbox(health) => health.news,
            Self::Consumer(_) | Self::Gateway(_) => 0,
        }
    }

    /// The same, not well.
    fn unwell(self, why: String) -> Self {
        match self {
            Self::Outbox(health) => Self::Outbox(Health { ready: false, why, ..health }),
            Self::Consumer(health) => Self::Consumer(ConsumerHealth { ready: false, why, ..health }),
            Self::Gateway(health) => Self::Gateway(GatewayHealth { ready: false, why, ..health }),
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
    /// The last look at its database, and when that was. Of relays it names the others only.
    looked: Option<(Instant, Arc<OutboxStatus>)>,
}

/// One seat for each outbox, then one for each consumer, then that of the gateway.
pub(crate) struct Board {
    seats: watch::Sender<Vec<Seat>>,
    /// What is wrong beside them: the file of tokens.
    trouble: Mutex<Option<String>>,
}

/// What `/readyz` says.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) ready: bool,
    outboxes: Vec<SeatLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumers: Vec<SeatLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<SeatLine>,
    /// What is wrong and holds up no event.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<&'static str>,
}

#[derive(Serialize)]
struct SeatLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<String>,
    #[serde(flatten)]
    health: SeatHealth,
    /// What keeps events from arriving.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
}

impl Board {
    /// A board for these outboxes and consumers.
    pub(crate) fn new<'a>(
        outboxes: impl Iterator<Item = &'a str>,
        consumers: impl Iterator<Item = &'a str>,
    ) -> Self {
        let why = || "connecting".to_owned();
        let relay = || SeatHealth::Outbox(Health::new(false, why(), 0));
        let consumer = || SeatHealth::Consumer(ConsumerHealth { why: why(), ..ConsumerHealth::default() });
        let all = outboxes.map(|name| (name, relay())).chain(consumers.map(|name| (name, consumer())));
        let seat = |(name, health): (&str, SeatHealth)| Seat {
            name: name.to_owned(),
            health,
            told_at: Instant::now(),
            failure: None,
            looked: None,
        };
        Self { seats: watch::Sender::new(all.map(seat).collect()), trouble: Mutex::default() }
    }

    /// A seat for the gateway: its number.
    pub(crate) fn seat_gateway(&self) -> usize {
        let mut seat = 0;
        self.seats.send_modify(|seats| {
            seat = seats.len();
            seats.push(Seat {
                name: "gateway".to_owned(),
                health: SeatHealth::Gateway(GatewayHealth::unwell("connecting")),
                told_at: Instant::now(),
                failure: None,
                looked: None,
            });
        });
        seat
    }

    /// Its owner is well, or will be by itself.
    pub(crate) fn tell(&self, seat: usize, health: impl Into<SeatHealth>) {
        let health = health.into();
        self.seats.send_modify(|seats| {
            seats[seat] = Seat { health, told_at: Instant::now(), failure: None, ..seats[seat].clone() };
        });
    }

    /// What somebody saw in its database, but for what its own relay wrote there.
    pub(crate) fn look(&self, seat: usize, status: OutboxStatus) {
        let looked = Some((Instant::now(), Arc::new(status)));
        self.seats.send_modify(|seats| seats[seat].looked = looked);
    }

    /// Resolves when figures of its database that were taken at this news are out of date, with the next.
    pub(crate) async fn news_since(&self, seat: usize, known: u64) -> u64 {
        let mut seats = self.seats.subscribe();
        let heard = seats.wait_for(|seats| seats[seat].health.news() != known).await;
        let heard = heard.map(|seats| seats[seat].health.news());
        match heard {
            Ok(news) => news,
            // The sender is `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Its owner needs somebody's help.
    pub(crate) fn fail(&self, seat: usize, why: &str) {
        let first = why.lines().next().unwrap_or_default();
        self.failed(seat, why, format!("failed: {first}"));
    }

    /// The same, where the words may quote a message: those stay in the log.
    pub(crate) fn fail_in_silence(&self, seat: usize, why: &str) {
        self.failed(seat, why, "failed: the log of this process says why".to_owned());
    }

    fn failed(&self, seat: usize, why: &str, told: String) {
        let empty = |health: &SeatHealth| match health {
            SeatHealth::Outbox(_) => SeatHealth::from(Health::new(false, String::new(), 0)),
            SeatHealth::Consumer(_) => SeatHealth::from(ConsumerHealth::default()),
            SeatHealth::Gateway(_) => SeatHealth::from(GatewayHealth::default()),
        };
        self.seats.send_modify(|seats| {
            let health = empty(&seats[seat].health).unwell(told);
            let failure = Some(why.to_owned());
            seats[seat] = Seat { health, told_at: Instant::now(), failure, ..seats[seat].clone() };
        });
    }

    /// Whether its owner needs somebody's help.
    pub(crate) fn has_failed(&self, seat: usize) -> bool {
        self.seats.borrow()[seat].failure.is_some()
    }

    /// Notes what is wrong with the file of tokens, if something is. Its words are for the log.
    pub(crate) fn note(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Whether there is more than one seat.
    pub(crate) fn is_shared(&self) -> bool {
        self.seats.borrow().len() > 1
    }

    /// How everything is.
    pub(crate) fn report(&self) -> Report {
        let lines: Vec<SeatLine> = self.seats.borrow().iter().map(line).collect();
        let ready = lines.iter().all(|line| line.health.is_ready());
        let (mut outboxes, mut consumers, mut gateway) = (Vec::new(), Vec::new(), None);
        for line in lines {
            match line.health {
                SeatHealth::Outbox(_) => outboxes.push(line),
                SeatHealth::Consumer(_) => consumers.push(line),
                SeatHealth::Gateway(_) => gateway = Some(line),
            }
        }
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens =
            trouble.as_ref().map(|_| "the file of tokens cannot be read: the old tokens are in force");
        Report { ready, outboxes, consumers, gateway, tokens }
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
    let problems = problems(seat);
    if let SeatHealth::Consumer(health) = &mut health {
        health.why.push_str(&codes(health));
    }
    if let (SeatHealth::Outbox(health), Some(first)) = (&mut health, problems.first())
        && health.ready
    {
        health.why = match problems.len() - 1 {
            0 => first.sentence.clone(),
            more => format!("{} (and {more} more)", first.sentence),
        };
    }
    let name = Some(seat.name.clone());
    let (outbox, consumer) = match health {
        SeatHealth::Outbox(_) => (name, None),
        SeatHealth::Consumer(_) => (None, name),
        SeatHealth::Gateway(_) => (None, None),
    };
    SeatLine { outbox, consumer, health, problems }
}

/// The codes of what a handler, a broker or the database said, in brackets: anybody may see them, and not the
/// texts behind them, which may quote a message. A code begins what was said, for a dependency behind its
/// name.
fn codes(health: &ConsumerHealth) -> String {
    let error = health.error.as_deref().unwrap_or_default();
    let behind = |name: &String| error.split_once(&format!("{name} (")).map_or("", |(_, said)| said);
    let said = std::iter::once(error).chain(health.unavailable.iter().map(behind));
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_code = |word: &&str| word.contains('.') && word.split('.').all(is_part);
    let words = said.filter_map(|text| text.split_once(": ").map(|(word, _)| word));
    let found: Vec<&str> = words.filter(is_code).collect();
    if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) }
}

/// What is wrong with an outbox: by the last look at its database, and by what its relay says now.
fn problems(seat: &Seat) -> Vec<Problem> {
    let (SeatHealth::Outbox(health), Some((at, looked))) = (&seat.health, &seat.looked) else {
        return Vec::new();
    };
    let Some(report) = &health.report else { return Vec::new() };
    let mut status = OutboxStatus::clone(looked);
    status.now = status.now.plus_micros(at.elapsed().as_micros() as i64);
    status.reports.push(RelayProcess {
        relay: "here".to_owned(),
        version: String::new(),
        host: String::new(),
        started_at: status.now,
        seen_at: status.now,
        said: Said::Known((**report).clone()),
    });
    let mut problems = diagnose(&status);
    // Whether relays run and lanes have owners is an old story from a database; this relay does run. That it
    // is stalled is its own word already.
    problems.retain(|problem| !matches!(problem.kind, "no_relay" | "no_owner" | "stalled"));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;
    use posthaste::admin::{
        Count, DestinationReport, OutOfReach, RelayReport, SetBy, SinkReport, SinkStatus,
    };

    fn health(ready: bool) -> Health {
        Health::new(ready, "idle".to_owned(), 1)
    }

    #[test]
    fn of_what_was_said_the_codes_are_shown_alone() {
        let codes = |error: &str, away: &[&str]| {
            let unavailable = away.iter().map(|name| (*name).to_owned()).collect();
            codes(&ConsumerHealth { error: Some(error.to_owned()), unavailable, ..ConsumerHealth::default() })
        };
        assert_eq!(codes("http.503: no, alice.smith: bad", &[]), " (http.503)");
        let (both, names) = ("127.0.0.1:80 (http.401: who), bank (ph.002: gone)", ["127.0.0.1:80", "bank"]);
        assert_eq!(codes(both, &names), " (http.401, ph.002)");
        assert_eq!(codes("relation \"trial.effects\" does not exist", &[]), "");
        assert_eq!(codes("card 4111.2222: x", &["bank"]), "");
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

    /// Anybody may ask for it.
    #[test]
    fn what_may_quote_a_message_is_for_the_log_alone() {
        let board = Board::new(["a"].into_iter(), ["b"].into_iter());
        board.fail_in_silence(1, "invalid input syntax for type json: \"4111 1111\"");
        let report = serde_json::to_string(&board.report()).expect("it is plain");
        assert!(
            report.contains("failed: the log of this process says why") && !report.contains("4111"),
            "{report}"
        );
    }

    fn looked(paused: bool) -> OutboxStatus {
        let exact = |count| Count { count, exact: true };
        let set_by = SetBy {
            actor: "bo".to_owned(),
            reason: "upgrade".to_owned(),
            at: Timestamp(1_700_000_000_000_000),
            until: None,
        };
        let sink = SinkStatus {
            sink: "nats".to_owned(),
            backlog: exact(148),
            oldest_age_seconds: 0.0,
            average_age_seconds: 0.0,
            deferred: exact(0),
            dead: exact(0),
            delivered_per_second: 0.0,
            paused,
            rate_limit: None,
            set_by: paused.then_some(set_by),
            waiting: Vec::new(),
            retired: false,
            lanes: Vec::new(),
        };
        OutboxStatus {
            now: Timestamp(1_700_000_240_000_000),
            relays: Vec::new(),
            reports: Vec::new(),
            schema_version: 4,
            sinks: vec![sink],
            segments: Vec::new(),
            paused_routes: Vec::new(),
            jobs_wait: false,
            unread: None,
        }
    }

    /// A relay that says which destinations are out of reach.
    fn saying(destinations: &[&str]) -> Health {
        let away = |name: &&str| DestinationReport {
            destination: (*name).to_owned(),
            out_of_reach: OutOfReach::new(Timestamp(1_700_000_000_000_000), "nats.no_stream", "secret"),
        };
        let destinations = destinations.iter().map(away).collect();
        let sink = SinkReport { sink: "nats".to_owned(), lanes: 1, destinations, ..SinkReport::default() };
        Health { report: Some(Arc::new(RelayReport::new(vec![sink], None))), ..health(true) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_out_of_reach_or_paused_is_never_called_idle() {
        let board = Board::new(["a"].into_iter(), [].into_iter());
        let why = |board: &Board| {
            let report = serde_json::to_value(board.report()).expect("it is plain");
            assert!(report["ready"] == true && !report.to_string().contains("secret"), "{report}");
            report["outboxes"][0]["why"].as_str().expect("a word").to_owned()
        };
        board.tell(0, saying(&[]));
        board.look(0, looked(false));
        assert_eq!(why(&board), "idle", "no relay runs is not said by one that does");
        board.look(0, looked(true));
        assert_eq!(why(&board), "sink nats is paused by bo for 4 min: \"upgrade\"; 148 events wait");
        board.look(0, looked(false));
        board.tell(0, saying(&["mail.sent", "sms.sent"]));
        tokio::time::advance(Duration::from_secs(1)).await;
        let told = why(&board);
        assert!(told.starts_with(
            "sink nats: destination mail.sent is out of reach for 4 min (nats.no_stream, since 2023"
        ));
        assert!(told.ends_with("(and 1 more)"), "{told}");
        board.tell(0, saying(&[]));
        assert_eq!(why(&board), "idle", "its last word counts");
    }

    #[tokio::test]
    async fn news_are_told_to_whoever_has_not_heard_of_them() {
        let board = Board::new(["a"].into_iter(), [].into_iter());
        board.tell(0, Health { news: 2, ..health(true) });
        assert_eq!(board.news_since(0, 1).await, 2);
        let waiting = tokio::time::timeout(Duration::from_millis(10), board.news_since(0, 2));
        assert!(waiting.await.is_err());
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
