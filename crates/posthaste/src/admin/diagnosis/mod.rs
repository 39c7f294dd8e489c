//! What keeps events from arriving, one sentence for each thing. Pure.
//!
//! An operator asks once, and reads what is wrong, since when, and for how many events. The state of the
//! store says how many wait; the relays' own reports say what they wait for. `status`, the health page and
//! the API show the same sentences. They carry codes and destinations and never the text of a broker: whoever
//! may ask for the health page may not see that.

mod consumer;
mod lanes;

pub use consumer::diagnose_consumer;
pub use lanes::lanes_owned;

use super::{Count, OutOfReach, OutboxStatus, PausedRoute, SetBy, SinkStatus};
use crate::event::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;

/// Problems that are told at once.
const PROBLEMS_MAX: usize = 50;

/// Something that keeps events from arriving.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// What it is: `no_relay`, `stalled`, `sink_out_of_reach`, `destination_out_of_reach`, `paused`,
    /// `no_owner`; of a consumer `no_process`, `paused`, `partition_stopped`, `dependency_out_of_reach`,
    /// `not_ready`, `dead_letters`.
    pub kind: &'static str,
    /// The consumer, if it is about one.
    pub consumer: Option<String>,
    /// The sink, if it is about one.
    pub sink: Option<String>,
    /// The destination, if it is about one.
    pub destination: Option<String>,
    /// The failure's code.
    pub code: Option<String>,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// How many events wait for it; of a consumer messages, as far as anybody knows.
    pub waiting: u64,
    /// All of it, in one sentence.
    pub sentence: String,
}

/// What is wrong with an outbox, the gravest first. Empty: nothing.
#[must_use]
pub fn diagnose(status: &OutboxStatus) -> Vec<Problem> {
    let mut problems = Vec::new();
    let waiting: u64 = status.sinks.iter().filter(|sink| !sink.retired).map(waits).sum();
    if status.relays.is_empty() && waiting > 0 && status.schema_version > 0 {
        let oldest = status.sinks.iter().map(|sink| sink.oldest_age_seconds).fold(0.0, f64::max);
        let sentence = format!("no relay runs; {}, the oldest for {}", wait(waiting), long(oldest));
        problems.push(problem("no_relay", waiting, sentence));
    }
    if let Some(unread) = status.unread.as_ref().filter(|_| status.relays.is_empty()) {
        let least = if unread.count.exact { "" } else { "more than " };
        let oldest = unread
            .oldest_at
            .map_or_else(String::new, |at| format!(", the oldest for {}", ago(status.now, at)));
        let waits = wait(unread.count.count);
        let sentence = format!("no relay has run on this outbox yet; {least}{waits}{oldest}");
        let found = problem("no_relay", unread.count.count, sentence);
        problems.push(Problem { since: unread.oldest_at, ..found });
    }
    for process in &status.reports {
        if let Some(why) = process.said.known().and_then(|report| report.stalled.as_ref()) {
            problems.push(problem("stalled", waiting, format!("relay {}: {why}", process.relay)));
        }
    }
    for sink in status.sinks.iter().filter(|sink| !sink.retired) {
        of_sink(status, sink, &mut problems);
    }
    for PausedRoute { route, set_by } in &status.paused_routes {
        let (by, since) = pause_of(status.now, set_by.as_ref());
        let sentence = format!("route {route} is paused{by}; its events wait among the deferred");
        problems.push(Problem { since, ..problem("paused", waiting_for_routes(status), sentence) });
    }
    problems.truncate(PROBLEMS_MAX);
    problems
}

fn of_sink(status: &OutboxStatus, sink: &SinkStatus, problems: &mut Vec<Problem>) {
    let (name, waiting) = (&sink.sink, waits(sink));
    let about = |problem: Problem| Problem { sink: Some(name.clone()), ..problem };
    if sink.paused {
        let (by, since) = pause_of(status.now, sink.set_by.as_ref());
        let sentence = format!("sink {name} is paused{by}; {}", wait(waiting));
        problems.push(Problem { since, ..about(problem("paused", waiting, sentence)) });
    }
    let (whole, mut away) = out_of_reach(status, name);
    if let Some(one) = whole {
        let sentence = format!("sink {name} is out of reach {}; {}", since(status.now, &one), wait(waiting));
        let found = about(problem("sink_out_of_reach", waiting, sentence));
        problems.push(Problem { code: Some(one.code), since: Some(one.since), ..found });
    }
    for cause in sink.waiting.iter().filter(|cause| cause.reason == "outage" && !cause.destination.is_empty())
    {
        let known = away.remove(&cause.destination).or_else(|| {
            let code = cause.error_code.clone()?;
            Some(OutOfReach { since: cause.oldest_at, code, error: String::new() })
        });
        problems.extend(known.map(|one| {
            about(of_destination(status.now, name, &cause.destination, one, cause.count.unsigned_abs()))
        }));
    }
    for (destination, one) in away {
        problems.push(about(of_destination(status.now, name, &destination, one, 0)));
    }
    let orphans = sink.lanes.iter().filter(|lane| lane.owner.is_none()).count();
    if orphans > 0 && !status.relays.is_empty() && sink.backlog.count > 0 {
        let sentence = format!(
            "{orphans} of {} lanes of sink {name} have no owner; {}",
            sink.lanes.len(),
            wait(waiting)
        );
        problems.push(about(problem("no_owner", waiting, sentence)));
    }
}

/// Who paused, for how long and why, as far as that is known; and since when.
fn pause_of(now: Timestamp, set_by: Option<&SetBy>) -> (String, Option<Timestamp>) {
    let Some(set) = set_by else { return (String::new(), None) };
    let until = set.until.map_or_else(String::new, |until| format!(", until {}", until.rfc3339()));
    let by = format!(" by {} for {}{until}: \"{}\"", set.actor, ago(now, set.at), set.reason);
    (by, Some(set.at))
}

/// How many wait for a paused route, whichever it is.
fn waiting_for_routes(status: &OutboxStatus) -> u64 {
    let causes = status.sinks.iter().flat_map(|sink| &sink.waiting);
    causes.filter(|cause| cause.reason == "paused").map(|cause| cause.count.unsigned_abs()).sum()
}

fn of_destination(now: Timestamp, sink: &str, destination: &str, one: OutOfReach, waiting: u64) -> Problem {
    let sentence = format!(
        "sink {sink}: destination {destination} is out of reach {}; {}",
        since(now, &one),
        wait(waiting)
    );
    Problem {
        destination: Some(destination.to_owned()),
        code: Some(one.code),
        since: Some(one.since),
        ..problem("destination_out_of_reach", waiting, sentence)
    }
}

/// What the relays say of a sink: whether it is out of reach as a whole, and which destinations are. Of
/// several relays, the one that waits for longest.
fn out_of_reach(status: &OutboxStatus, sink: &str) -> (Option<OutOfReach>, BTreeMap<String, OutOfReach>) {
    let (mut whole, mut away): (Option<OutOfReach>, BTreeMap<String, OutOfReach>) = Default::default();
    let said = status.reports.iter().filter_map(|process| process.said.known()?.sink(sink));
    for report in said {
        if let Some(one) = &report.out_of_reach {
            whole = whole.filter(|before| before.since.0 <= one.since.0).or_else(|| Some(one.clone()));
        }
        for at in &report.destinations {
            let one = away.entry(at.destination.clone()).or_insert_with(|| at.out_of_reach.clone());
            if at.out_of_reach.since.0 < one.since.0 {
                *one = at.out_of_reach.clone();
            }
        }
    }
    (whole, away)
}

fn problem(kind: &'static str, waiting: u64, sentence: String) -> Problem {
    Problem {
        kind,
        consumer: None,
        sink: None,
        destination: None,
        code: None,
        since: None,
        waiting,
        sentence,
    }
}

fn waits(sink: &SinkStatus) -> u64 {
    let Count { count: backlog, .. } = sink.backlog;
    backlog + sink.deferred.count
}

fn wait(count: u64) -> String {
    match count {
        0 => "nothing waits".to_owned(),
        1 => "1 event waits".to_owned(),
        _ => format!("{count} events wait"),
    }
}

fn at_least(count: Count) -> String {
    let more = if count.exact { "" } else { "more than " };
    format!("{more}{}", count.count)
}

fn since(now: Timestamp, one: &OutOfReach) -> String {
    format!("for {} ({}, since {})", ago(now, one.since), one.code, one.since.rfc3339())
}

fn ago(now: Timestamp, then: Timestamp) -> String {
    long(now.seconds_since(then))
}

/// A length of time, in its largest unit.
fn long(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{
        DeferredCause, DestinationReport, LaneStatus, RelayProcess, RelayReport, Said, SinkReport, UnreadLog,
    };

    const NOW: Timestamp = Timestamp(1_709_210_096_000_000);

    fn before(seconds: i64) -> Timestamp {
        Timestamp(NOW.0 - seconds * 1_000_000)
    }

    fn sink(backlog: u64, deferred: u64) -> SinkStatus {
        let exact = |count| Count { count, exact: true };
        SinkStatus {
            sink: "nats".to_owned(),
            backlog: exact(backlog),
            oldest_age_seconds: 240.0,
            average_age_seconds: 1.0,
            deferred: exact(deferred),
            dead: exact(0),
            delivered_per_second: 0.0,
            paused: false,
            rate_limit: None,
            set_by: None,
            waiting: Vec::new(),
            retired: false,
            lanes: vec![LaneStatus {
                lane: 0,
                owner: Some("a".to_owned()),
                epoch: 1,
                lease_ms: Some(1),
                position: 1,
                catching_up: false,
                settled_seconds_ago: None,
                unclean: 0,
            }],
        }
    }

    fn status(sink: SinkStatus, said: Option<SinkReport>) -> OutboxStatus {
        let report = |said| RelayProcess {
            relay: "a".to_owned(),
            version: "1".to_owned(),
            host: "h".to_owned(),
            started_at: NOW,
            seen_at: NOW,
            said: Said::Known(RelayReport::new(vec![said], None)),
        };
        OutboxStatus {
            now: NOW,
            relays: vec!["a".to_owned()],
            reports: said.into_iter().map(report).collect(),
            schema_version: 4,
            sinks: vec![sink],
            segments: Vec::new(),
            paused_routes: Vec::new(),
            jobs_wait: false,
            unread: None,
        }
    }

    fn told(status: &OutboxStatus) -> Vec<String> {
        diagnose(status).into_iter().map(|problem| problem.sentence).collect()
    }

    #[test]
    fn a_healthy_outbox_has_no_problem_and_without_a_relay_it_is_said() {
        assert_eq!(diagnose(&status(sink(5, 0), None)), []);
        let mut alone = status(sink(5, 1), None);
        alone.relays.clear();
        assert_eq!(told(&alone), ["no relay runs; 6 events wait, the oldest for 4 min"]);
        alone.sinks[0].retired = true;
        assert!(told(&alone).is_empty(), "nobody is to serve a sink that left");
    }

    #[test]
    fn a_log_that_no_relay_ever_read_is_told_with_its_age() {
        let mut new = status(sink(0, 0), None);
        (new.relays, new.sinks) = (Vec::new(), Vec::new());
        assert_eq!((diagnose(&new), lanes_owned(&new).0), (Vec::new(), true), "nothing waits");
        let unread =
            |count, exact| Some(UnreadLog { count: Count { count, exact }, oldest_at: Some(before(240)) });
        new.unread = unread(1, true);
        assert_eq!(told(&new), ["no relay has run on this outbox yet; 1 event waits, the oldest for 4 min"]);
        assert_eq!((diagnose(&new)[0].kind, diagnose(&new)[0].since), ("no_relay", Some(before(240))));
        assert!(!lanes_owned(&new).0 && lanes_owned(&new).1.contains("events wait in the log: 1."));
        new.unread = unread(10_000, false);
        assert!(told(&new)[0].contains("; more than 10000 events wait, "), "{:?}", told(&new));
    }

    #[test]
    fn lanes_are_owned_where_nothing_waits_for_a_relay() {
        let mut seen = status(sink(3, 0), None);
        assert_eq!(lanes_owned(&seen), (true, "every lane has an owner, one relay is alive".to_owned()));
        seen.sinks[0].lanes[0].owner = None;
        let (is_owned, text) = lanes_owned(&seen);
        assert!(!is_owned && text.contains("nobody owns nats/0"), "{text}");
        seen.relays.clear();
        let (is_owned, text) = lanes_owned(&seen);
        assert!(!is_owned && text.contains("events wait: 3 for sink nats"), "{text}");
        seen.sinks[0].backlog.count = 0;
        assert_eq!(lanes_owned(&seen).1, "no relay is running, and nothing waits for one");
    }

    #[test]
    fn an_outage_names_destination_code_since_when_and_how_many_wait() {
        let away = |seconds| OutOfReach::new(before(seconds), "nats.no_stream", "secret");
        let at = |name: &str, seconds| DestinationReport {
            destination: name.to_owned(),
            out_of_reach: away(seconds),
        };
        let mut waits = sink(3, 5);
        waits.waiting = vec![DeferredCause {
            sink: "nats".to_owned(),
            reason: "outage".to_owned(),
            destination: "mail.sent".to_owned(),
            error_code: Some("nats.no_stream".to_owned()),
            error: Some("secret".to_owned()),
            count: 5,
            oldest_at: before(9_000),
            due_at: None,
        }];
        let said = SinkReport {
            sink: "nats".to_owned(),
            lanes: 1,
            destinations: vec![at("mail.sent", 1_560), at("sms.sent", 30)],
            ..SinkReport::default()
        };
        let seen = status(waits.clone(), Some(said));
        assert_eq!(
            told(&seen),
            [
                "sink nats: destination mail.sent is out of reach for 26 min (nats.no_stream, since 2024-02-29T12:08:56.000000Z); 5 events wait",
                "sink nats: destination sms.sent is out of reach for 30 s (nats.no_stream, since 2024-02-29T12:34:26.000000Z); nothing waits",
            ]
        );
        let unsaid = status(waits.clone(), None);
        assert!(told(&unsaid)[0].contains("mail.sent is out of reach for 2 h"), "{:?}", told(&unsaid));
        let whole =
            SinkReport { sink: "nats".to_owned(), out_of_reach: Some(away(10)), ..SinkReport::default() };
        waits.waiting.clear();
        let found = diagnose(&status(waits, Some(whole)));
        assert_eq!((found[0].kind, found[0].waiting), ("sink_out_of_reach", 8));
        assert!(!format!("{found:?}").contains("secret"), "no text of a broker");
    }

    #[test]
    fn a_pause_names_who_and_why() {
        let mut paused = sink(148, 0);
        paused.paused = true;
        let set =
            SetBy { actor: "bo".to_owned(), reason: "upgrade".to_owned(), at: before(240), until: None };
        paused.set_by = Some(set);
        assert_eq!(
            told(&status(paused, None)),
            ["sink nats is paused by bo for 4 min: \"upgrade\"; 148 events wait"]
        );
    }

    #[test]
    fn a_paused_route_is_named_beside_sinks_that_are_well() {
        let mut seen = status(sink(0, 3), None);
        seen.sinks[0].waiting = vec![DeferredCause {
            sink: "nats".to_owned(),
            reason: "paused".to_owned(),
            destination: "orders".to_owned(),
            error_code: None,
            error: None,
            count: 3,
            oldest_at: before(10),
            due_at: None,
        }];
        let set = SetBy { actor: "bo".to_owned(), reason: "moved".to_owned(), at: before(240), until: None };
        seen.paused_routes = vec![
            PausedRoute { route: "orders".to_owned(), set_by: Some(set) },
            PausedRoute { route: "mail".to_owned(), set_by: None },
        ];
        assert_eq!(
            told(&seen),
            [
                "route orders is paused by bo for 4 min: \"moved\"; its events wait among the deferred",
                "route mail is paused; its events wait among the deferred",
            ]
        );
        assert_eq!(diagnose(&seen).iter().map(|one| one.waiting).collect::<Vec<_>>(), [3, 3]);
    }
}
