//! What keeps a consumer's messages from being handled, one sentence for each thing. Pure.
//!
//! The database says what waits there and who paused it; its processes' own reports say what they wait for.
//! How many messages wait at the broker is for whoever asks to say: a command asks the broker, others go by
//! the reports. No sentence has the text of an error, which may quote a message.

use super::{Problem, ago, at_least, long, pause_of, problem};
use crate::event::Timestamp;
use crate::inbox::admin::{ConsumerProcess, ConsumerStatus};
use crate::window::failing::HANDLER;
use std::collections::{BTreeMap, BTreeSet};

/// A process that was silent for so long is no reason to say that somebody runs: a report comes every five
/// seconds.
const SILENT_SECONDS: f64 = 60.0;

/// Dependencies and partitions that are told of at once.
const TOLD_MAX: usize = 20;

/// What waits for a consumer.
struct Waits {
    count: u64,
    text: String,
}

/// What is wrong with a consumer, the gravest first. Empty: nothing. `lag` is how many messages are behind
/// its positions, as far as anybody knows.
#[must_use]
pub fn diagnose_consumer(status: &ConsumerStatus, lag: Option<u64>) -> Vec<Problem> {
    let name = &status.consumer;
    let waits = waits(status, lag);
    let mut problems = Vec::new();
    let mut tell = |kind, since: Option<Timestamp>, waiting: u64, sentence: String| {
        let found = problem(kind, waiting, sentence);
        problems.push(Problem { consumer: Some(name.clone()), since, ..found });
    };
    let lives = |process: &&ConsumerProcess| status.now.seconds_since(process.seen_at) < SILENT_SECONDS;
    let living: Vec<&ConsumerProcess> = status.processes.iter().filter(lives).collect();
    if living.is_empty() && waits.count > 0 {
        let last = status.processes.iter().map(|process| process.seen_at).max_by_key(|at| at.0);
        let silent = last.map_or_else(String::new, |last| format!(" for {}", ago(status.now, last)));
        let sentence = format!("consumer {name}: no process has reported{silent}; {}", waits.text);
        tell("no_process", last, waits.count, sentence);
    }
    if status.paused {
        let (by, since) = pause_of(status.now, status.set_by.as_ref());
        tell("paused", since, waits.count, format!("consumer {name} is paused{by}; {}", waits.text));
    }
    for (partition, (why, behind)) in stopped(&living).into_iter().take(TOLD_MAX) {
        let behind = behind.map_or_else(|| "its lag is not known".to_owned(), messages);
        let sentence = format!("consumer {name}: partition {partition} is stopped: {why}; {behind}");
        tell("partition_stopped", None, waits.count, sentence);
    }
    for dependency in away(&living).into_iter().take(TOLD_MAX) {
        let what = match dependency {
            HANDLER => format!("consumer {name}: every message fails, and one at a time is tried"),
            _ => format!("consumer {name} waits for {dependency}"),
        };
        tell("dependency_out_of_reach", None, waits.count, format!("{what}; {}", waits.text));
    }
    for why in troubles(&living, waits.count) {
        tell("not_ready", None, waits.count, format!("consumer {name}: {why}; {}", waits.text));
    }
    if status.dead.count > 0 {
        let dead = match (status.dead.exact, status.dead.count) {
            (true, 1) => "1 message".to_owned(),
            (true, count) => format!("{count} messages"),
            (false, count) => format!("more than {count} messages"),
        };
        let see = format!("`posthaste dead causes --consumer {name}` says why");
        tell("dead_letters", None, status.dead.count, format!("consumer {name} gave up {dead}; {see}"));
    }
    problems
}

fn messages(count: u64) -> String {
    match count {
        0 => "nothing waits".to_owned(),
        1 => "1 message waits".to_owned(),
        _ => format!("{count} messages wait"),
    }
}

/// What is at the broker and what was set aside are two things: a position goes on past a deferred message.
fn waits(status: &ConsumerStatus, lag: Option<u64>) -> Waits {
    let deferred = status.deferred;
    let count = lag.unwrap_or(0) + deferred.count;
    let mut text = match (lag, deferred.exact) {
        (Some(_), true) => messages(count),
        (Some(_), false) => format!("more than {count} messages wait"),
        (None, _) => match deferred.count {
            0 => "its lag is not known".to_owned(),
            1 => "1 message is deferred, and its lag is not known".to_owned(),
            _ => format!("{} messages are deferred, and its lag is not known", at_least(deferred)),
        },
    };
    if let Some(oldest) = status.oldest_deferred_seconds.filter(|_| deferred.count > 0) {
        text.push_str(&format!(", the oldest of {} deferred for {}", at_least(deferred), long(oldest)));
    }
    Waits { count, text }
}

/// Partitions that need somebody's help: why, and how many messages are behind.
fn stopped<'a>(living: &[&'a ConsumerProcess]) -> BTreeMap<&'a str, (&'a str, Option<u64>)> {
    let pairs = living.iter().flat_map(|process| {
        let pairs = process.report["stopped"].as_array().into_iter().flatten();
        pairs.filter_map(|pair| {
            let (name, why) = (pair[0].as_str()?, pair[1].as_str()?);
            Some((name, (why, process.report["lag"][name].as_u64())))
        })
    });
    pairs.collect()
}

/// Dependencies that their breakers wait for.
fn away<'a>(living: &[&'a ConsumerProcess]) -> BTreeSet<&'a str> {
    let names = living.iter().filter_map(|process| process.report["unavailable"].as_array()).flatten();
    names.filter_map(|name| name.as_str()).collect()
}

/// Whatever else a process is not ready for, or would like to reach. One without a partition is a spare one
/// as long as others have some.
fn troubles<'a>(living: &[&'a ConsumerProcess], waiting: u64) -> BTreeSet<&'a str> {
    let has_work = |process: &ConsumerProcess| process.report["partitions"].as_u64().unwrap_or(0) > 0;
    let anybody = living.iter().any(|process| has_work(process));
    let trouble = |process: &&'a ConsumerProcess| {
        let report = &process.report;
        let is_told = |list: &str| report[list].as_array().is_some_and(|list| !list.is_empty());
        // A ready process gives an error where the broker is out of its reach.
        let is_well = report["ready"].as_bool() != Some(false) && report["error"].is_null();
        let is_spare = !has_work(process) && (anybody || waiting == 0);
        if is_well || is_spare || is_told("stopped") || is_told("unavailable") {
            return None;
        }
        report["why"].as_str()
    };
    living.iter().filter_map(trouble).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Count, SetBy};
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp(1_709_210_096_000_000);

    fn process(seconds_ago: i64, report: Value) -> ConsumerProcess {
        ConsumerProcess {
            process: "p".to_owned(),
            version: "1".to_owned(),
            host: "h".to_owned(),
            started_at: NOW,
            seen_at: Timestamp(NOW.0 - seconds_ago * 1_000_000),
            report,
        }
    }

    fn well() -> Value {
        json!({ "ready": true, "why": "idle", "error": null, "partitions": 2, "stopped": [], "unavailable": [] })
    }

    fn status(reports: Vec<(i64, Value)>) -> ConsumerStatus {
        let none = Count { count: 0, exact: true };
        ConsumerStatus {
            now: NOW,
            consumer: "billing".to_owned(),
            partitions: Vec::new(),
            processes: reports.into_iter().map(|(ago, report)| process(ago, report)).collect(),
            deferred: none,
            oldest_deferred_seconds: None,
            dead: none,
            paused: false,
            rate_limit: None,
            set_by: None,
        }
    }

    #[track_caller]
    fn tells(status: &ConsumerStatus, lag: Option<u64>, wanted: &[(&str, u64, &str)]) {
        let found = diagnose_consumer(status, lag);
        assert!(found.iter().all(|problem| problem.consumer.as_deref() == Some("billing")), "{found:?}");
        let found: Vec<(&str, u64, &str)> =
            found.iter().map(|problem| (problem.kind, problem.waiting, &*problem.sentence)).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_consumer_that_works_or_has_nothing_to_do_has_no_problem() {
        tells(&status(vec![(1, well())]), Some(148), &[]);
        tells(&status(Vec::new()), Some(0), &[]);
        tells(&status(Vec::new()), None, &[]);
        let mut spare = well();
        (spare["ready"], spare["why"], spare["partitions"]) =
            (false.into(), "no partition is assigned".into(), 0.into());
        tells(&status(vec![(1, well()), (1, spare)]), Some(5), &[]);
    }

    #[test]
    fn a_pause_names_who_why_and_how_many_wait() {
        let mut paused = status(vec![(1, well())]);
        paused.paused = true;
        tells(&paused, Some(1), &[("paused", 1, "consumer billing is paused; 1 message waits")]);
        let at = Timestamp(NOW.0 - 240_000_000);
        paused.set_by = Some(SetBy { actor: "bo".into(), reason: "ledger".into(), at, until: None });
        (paused.deferred.count, paused.oldest_deferred_seconds) = (2, Some(9_000.0));
        let sentence = "consumer billing is paused by bo for 4 min: \"ledger\"; 150 messages wait, the oldest of 2 \
                        deferred for 2 h";
        tells(&paused, Some(148), &[("paused", 150, sentence)]);
        assert_eq!(diagnose_consumer(&paused, None)[0].since, Some(at));
    }

    #[test]
    fn silence_is_told_where_messages_wait() {
        let silent = status(vec![(240, well())]);
        let said = "consumer billing: no process has reported for 4 min; 3 messages wait";
        tells(&silent, Some(3), &[("no_process", 3, said)]);
        tells(&silent, Some(0), &[]);
        let said = "consumer billing: no process has reported; 3 messages wait";
        tells(&status(Vec::new()), Some(3), &[("no_process", 3, said)]);
    }

    #[test]
    fn what_processes_wait_for_is_named_once_and_never_with_an_errors_text() {
        let mut report = well();
        report["ready"] = false.into();
        report["why"] = "waiting for crm".into();
        report["error"] = "crm (smtp.full: alice)".into();
        report["unavailable"] = json!(["crm"]);
        let said = "consumer billing waits for crm; 7 messages wait";
        let both = status(vec![(1, report.clone()), (2, report.clone())]);
        tells(&both, Some(7), &[("dependency_out_of_reach", 7, said)]);
        report["unavailable"] = json!(["handler"]);
        let said = "consumer billing: every message fails, and one at a time is tried; 7 messages wait";
        tells(&status(vec![(1, report.clone())]), Some(7), &[("dependency_out_of_reach", 7, said)]);
        report["unavailable"] = json!([]);
        report["stopped"] = json!([["orders/1", "another log"]]);
        report["lag"] = json!({ "orders/1": 2 });
        let said = "consumer billing: partition orders/1 is stopped: another log; 2 messages wait";
        tells(&status(vec![(1, report.clone())]), Some(7), &[("partition_stopped", 7, said)]);
        (report["stopped"], report["ready"]) = (json!([]), true.into());
        report["why"] = "the broker is out of reach".into();
        let said = "consumer billing: the broker is out of reach; its lag is not known";
        tells(&status(vec![(1, report)]), None, &[("not_ready", 0, said)]);
    }

    #[test]
    fn dead_letters_and_reports_of_an_unknown_shape_are_told() {
        let mut dead = status(vec![(1, json!("newer")), (1, json!({ "stopped": 7, "unavailable": [1] }))]);
        dead.dead = Count { count: 10_000, exact: false };
        let said = "consumer billing gave up more than 10000 messages; `posthaste dead causes --consumer billing` \
                    says why";
        tells(&dead, None, &[("dead_letters", 10_000, said)]);
    }
}
