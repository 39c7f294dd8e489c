//! Consumers on a screen of 80 columns: what is wrong, processes, and a line for each partition.

use super::{ShownConsumer, ShownPartition};
use crate::output::{count, escape, paragraph, plural, seconds, table, time};
use posthaste::consumer::admin::{ConsumerPartition, ConsumerProcess, ConsumerStatus};

pub(crate) fn draw(consumer: &ShownConsumer) -> String {
    let ShownConsumer { status, partitions, problems, broker_error, is_queue, .. } = consumer;
    let said = problems.iter().map(|problem| paragraph(&problem.sentence, "")).collect::<Vec<_>>().join("\n");
    let mut processes = status.processes.iter().enumerate().map(draw_process).collect::<Vec<_>>().join("\n");
    if processes.is_empty() {
        processes.push_str("no process has reported");
    }
    let headers = ["partition", ">position", ">lag", ">behind", "saved", "state"];
    let rows = partitions.iter().map(|shown| row(status, shown));
    let is_told = problems.iter().any(|problem| problem.kind == "partition_stopped");
    let stopped = partitions.iter().filter(|_| !is_told).filter_map(|shown| {
        let ConsumerPartition { topic, partition, .. } = &shown.partition;
        Some(paragraph(&format!("{topic}/{partition} is stopped: {}", shown.stopped.as_deref()?), ""))
    });
    let limit = status.rate_limit.zip(status.set_by.as_ref()).map(|(limit, set)| {
        let ago = seconds(status.now.seconds_since(set.at));
        let text = format!("it is limited to {limit}/s by {} for {ago}: \"{}\"", set.actor, set.reason);
        paragraph(&text, "")
    });
    let foreign = partitions.iter().filter_map(|shown| {
        let ConsumerPartition { topic, partition, .. } = &shown.partition;
        let (topic, theirs) = (escape::line(topic), shown.foreign_position?);
        Some(format!(
            "{topic}/{partition}: the broker's position is {theirs}, not ours.\n  It has no effect. To go elsewhere use `posthaste consumers seek`"
        ))
    });
    let silent = broker_error.iter().map(|why| {
        format!("its broker could not be asked, lag is what its processes said:\n  {}", escape::line(why))
    });
    let queue = is_queue.then(|| "a queue has no positions: lag is what its processes said".to_owned());
    let notes = limit.into_iter().chain(stopped).chain(foreign).chain(silent).chain(queue);
    let notes = notes.collect::<Vec<_>>().join("\n");
    let parts = [head(consumer), said, processes, table(&headers, rows.collect()), notes];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn head(consumer: &ShownConsumer) -> String {
    let ShownConsumer { outbox, status, .. } = consumer;
    let oldest = status.oldest_deferred_seconds.filter(|_| status.deferred.count > 0);
    let oldest = oldest.map_or_else(String::new, |oldest| format!(" (oldest {})", seconds(oldest)));
    let paused = if status.paused { "  paused" } else { "" };
    let limit = status.rate_limit.map_or_else(String::new, |limit| format!("  ≤{limit}/s"));
    let head = format!(
        "consumer {}  outbox {outbox}  deferred {}{oldest}  dead {}{paused}{limit}",
        escape::line(&status.consumer),
        count(status.deferred),
        count(status.dead)
    );
    // Two spaces between figures stay where it is not broken.
    if head.chars().count() <= 80 { head } else { paragraph(&head, "") }
}

fn draw_process((n, process): (usize, &ConsumerProcess)) -> String {
    let why = process.report["why"].as_str().unwrap_or("no report");
    let error = process.report["error"].as_str().map_or_else(String::new, |error| format!(": {error}"));
    let (name, seen, text) = (escape::line(&process.process), time(process.seen_at), format!("{why}{error}"));
    let said = escape::line(&text);
    let latency = |field: &str| process.report["latency"][field].as_f64().map(|millis| seconds(millis / 1e3));
    let late = latency("p50_ms").zip(latency("p99_ms")).map_or_else(String::new, |(p50, p99)| {
        format!("\n  from append to commit, in the last minute: p50 {p50}, p99 {p99}")
    });
    format!("process #{}  {name}\n  {seen}  {said}{late}", n + 1)
}

fn row(status: &ConsumerStatus, shown: &ShownPartition) -> Vec<String> {
    let ShownPartition { partition, lag, behind_seconds, stopped, foreign_position } = shown;
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let owner = partition.owner.as_ref().map(|owner| {
        let place = status.processes.iter().position(|process| process.process == *owner);
        place.map_or_else(|| owner.clone(), |n| format!("#{}", n + 1))
    });
    let state = [
        stopped.is_some().then(|| "stopped".to_owned()),
        foreign_position.is_some().then(|| "foreign".to_owned()),
        Some(owner.unwrap_or_else(|| "free".to_owned())),
        (partition.unclean > 0).then(|| plural(partition.unclean.unsigned_abs().into(), "death")),
        (partition.seeks > 0).then(|| plural(partition.seeks.unsigned_abs(), "seek")),
    ];
    vec![
        format!("{}/{}", partition.topic, partition.partition),
        number(partition.position),
        number(*lag),
        behind_seconds.map_or_else(|| "-".to_owned(), seconds),
        partition.saved_at.map_or_else(|| "never".to_owned(), |at| time(at)[11..].to_owned()),
        state.into_iter().flatten().collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::consumers::BrokerView;
    use posthaste::Timestamp;
    use posthaste::admin::{Count, SetBy};
    use posthaste::source::log::LogPartition;
    use serde_json::json;

    #[test]
    fn a_busy_consumer_fits_into_80_columns() {
        let process = ConsumerProcess {
            process: "billing-7d9c5b-x2x4q:12345:ab12cd:billing".to_owned(),
            host: "billing-7d9c5b-x2x4q".to_owned(),
            version: "0.1.0".to_owned(),
            started_at: Timestamp(0),
            seen_at: Timestamp(1_700_000_000_000_000),
            report: json!({
                "why": "waiting for crm", "stopped": [["orders.placed/1", "another log"]],
                "unavailable": ["crm"], "lag": { "orders.placed/0": 7, "orders.placed/1": 9 },
                "latency": { "p50_ms": 12.5, "p99_ms": 2_359_296.0 },
            }),
        };
        let partition = |number| ConsumerPartition {
            topic: "orders.placed".to_owned(),
            partition: number,
            position: Some(123_456_789_012),
            position_time: Some(Timestamp(1_699_999_890_000_000)),
            saved_at: Some(Timestamp(1_700_000_000_000_000)),
            log_id: None,
            seeks: 1,
            owner: Some(process.process.clone()),
            clean: false,
            unclean: 2,
        };
        let status = ConsumerStatus {
            now: Timestamp(1_700_000_010_000_000),
            consumer: "billing".to_owned(),
            set_by: Some(SetBy {
                actor: "bo".to_owned(),
                reason: "the ledger is being repaired".to_owned(),
                at: Timestamp(1_699_999_770_000_000),
                until: None,
            }),
            paused: true,
            rate_limit: Some(60_000.0),
            deferred: Count { count: 10_000, exact: false },
            oldest_deferred_seconds: Some(7.0),
            dead: Count { count: 12, exact: true },
            partitions: vec![partition(0), partition(1)],
            processes: vec![process.clone()],
        };
        let config = Config::parse(std::path::Path::new("t"), "outbox.url = \"postgres://h/d\"");
        let config = config.map_err(|error| error.to_string()).expect("an outbox");
        let log = LogPartition {
            partition: posthaste::source::Partition::new("orders.placed", 0),
            first: 0,
            end: 123_456_789_112,
            committed: Some(123_456_789_013),
            log_id: None,
        };
        let broker = BrokerView {
            logs: vec![log],
            in_hand_max: 8_192,
            error: Some("no answer".to_owned()),
            is_queue: false,
        };
        let shown = ShownConsumer::new(&config.outboxes[0], status, broker);
        let json = serde_json::to_value(&shown).expect("plain");
        let lag = |number: usize| json["partitions"][number]["lag"].as_i64();
        assert_eq!((lag(0), lag(1)), (Some(100), Some(9)), "the broker's word, or else the owner's");
        let foreign = |number: usize| json["partitions"][number]["foreign_position"].as_i64();
        assert_eq!((foreign(0), foreign(1)), (Some(123_456_789_013), None), "beyond ours");
        let behind = json["partitions"][0]["behind_seconds"].as_f64();
        assert_eq!(behind, Some(120.0), "the last one handled is two minutes old");
        let kinds = json["problems"].as_array().into_iter().flatten();
        let kinds: Vec<&str> = kinds.filter_map(|problem| problem["kind"].as_str()).collect();
        assert_eq!(kinds, ["paused", "partition_stopped", "dependency_out_of_reach", "dead_letters"]);
        assert_eq!(json["set_by"]["actor"], "bo");
        let text = draw(&shown);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "deferred ~10,000 (oldest 7.0s)",
            "is paused by bo for 4 min: \"the ledger is being repaired\"; more than 10109 messages wait",
            "consumer billing waits for crm; more than",
            "gave up 12 messages",
            "limited to 60000/s by bo for 4m00s",
            " 100 2m00s 22:13:20Z",
            "in the last minute: p50 12ms, p99 39m19s",
            "foreign, #1, 2 deaths, 1 seek",
            "stopped, #1, 2 deaths, 1 seek",
            "013, not ours.",
            "could not be asked",
            "1 is stopped: another log",
        ] {
            assert!(flat.contains(part), "{part}:\n{text}");
        }
    }
}
