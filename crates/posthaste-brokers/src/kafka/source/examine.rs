//! What `posthaste doctor` says about a source: whether the brokers answer, whether the group and its topics
//! may be read, how long messages are kept, and how far the group is behind.
//!
//! The examination joins no group and commits nothing, so a running consumer does not notice it. Whether a
//! topic may be read is tried with a fetch at its end. Kafka tells nobody whether a group may be joined; that
//! its positions may be seen is a part of that right.

use super::client::{all_at, bounds, committed};
use crate::GroupMember;
use crate::findings::no_session;
use crate::kafka::cause::{self, Causes};
use crate::kafka::client::admin::{self, Settings};
use crate::kafka::{KafkaConfig, KafkaSourceConfig};
use posthaste::sink::{Finding, Level};
use posthaste::source::Partition;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::Offset;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time for a first answer of any broker, and for each question after it.
const CONNECT_WAIT: Duration = Duration::from_millis(2_500);
const ANSWER: Duration = Duration::from_millis(1_000);

/// Names of all checks of a source. Each finding bears one of them.
pub const CHECKS: &[&str] = &["reachable", "authenticated", "topic", "group", "retention", "marks", "lag"];

/// `marks`: how long the consumer knows what it has done; `None`: for ever.
pub(crate) async fn examine(
    source: &KafkaSourceConfig,
    plan: &GroupMember,
    marks: Option<Duration>,
) -> Vec<Finding> {
    let settings = admin::settings(&source.connection, &plan.topics, CONNECT_WAIT).await;
    let (source, plan) = (source.clone(), plan.clone());
    // Asking blocks, and so does dropping the client.
    let asked = tokio::task::spawn_blocking(move || look(&source, &plan));
    let mut findings = asked.await.unwrap_or_default();
    let topics = settings.into_iter().flatten().filter_map(|(topic, found)| Some((topic, found.ok()?)));
    for (topic, settings) in topics {
        findings.extend([retention(&topic, &settings), compare_marks(&topic, &settings, marks)]);
    }
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

/// Hears why nobody answers. A principal that may not even look for the group's coordinator is told so beside
/// the question, which times out.
#[derive(Default)]
struct DoctorEars {
    causes: Causes,
    group_denied: AtomicBool,
}

impl ClientContext for DoctorEars {
    fn log(&self, _: RDKafkaLogLevel, _: &str, text: &str) {
        self.causes.hear_log(text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.causes.hear(code, reason);
            self.group_denied.fetch_or(code == Code::GroupAuthorizationFailed, Ordering::Relaxed);
        }
    }
}

impl ConsumerContext for DoctorEars {}

type DoctorClient = BaseConsumer<DoctorEars>;

fn look(source: &KafkaSourceConfig, plan: &GroupMember) -> Vec<Finding> {
    let config = &source.connection;
    let made = config.consumer(&plan.group, "doctor").map_err(|error| error.to_string());
    let made = made.and_then(|client| {
        DoctorClient::from_config_and_context(&client, DoctorEars::default()).map_err(|e| e.to_string())
    });
    let client = match made {
        Ok(client) => client,
        Err(why) => return vec![finding("reachable", Level::Fail, why)],
    };
    let mut partitions = Vec::new();
    let mut findings = Vec::new();
    for topic in &plan.topics {
        let within = if findings.is_empty() { CONNECT_WAIT } else { ANSWER };
        let Ok(metadata) = client.fetch_metadata(Some(topic), within) else {
            // The client's complaints are heard by its poll.
            client.poll(Duration::ZERO);
            let silent = || cause::unreachable(config, "no broker answers");
            let failure = client.context().causes.current(config).unwrap_or_else(silent);
            return no_session(&failure, &["kafka.auth"]);
        };
        if findings.is_empty() {
            let brokers = metadata.brokers().len();
            findings.push(finding("reachable", Level::Ok, format!("{brokers} brokers answer")));
            let who = format!("connected as {}", config.identity());
            findings.push(finding("authenticated", Level::Ok, who));
        }
        let found = metadata.topics().first();
        let error = found.and_then(|topic| topic.error()).map(Code::from);
        let count = found.map_or(0, |topic| topic.partitions().len());
        let numbers = 0..i32::try_from(count).unwrap_or(i32::MAX);
        let of_topic: Vec<_> = numbers.map(|number| Partition::new(topic.as_str(), number)).collect();
        findings.push(topic_found(config, &client, topic, &of_topic, error));
        partitions.extend(of_topic);
    }
    findings.extend(group(source, plan, &client, &partitions));
    findings
}

fn topic_found(
    config: &KafkaConfig,
    client: &DoctorClient,
    topic: &str,
    partitions: &[Partition],
    error: Option<Code>,
) -> Finding {
    let denied = || {
        let who = config.identity();
        let text = format!("{who} may not read topic {topic:?}: allow READ on it. Its messages wait");
        finding("topic", Level::Fail, text)
    };
    if partitions.is_empty() && error == Some(Code::TopicAuthorizationFailed) {
        return denied();
    }
    if partitions.is_empty() {
        let code = error.unwrap_or(Code::UnknownTopicOrPartition);
        let words = cause::of_code(topic, code, &config.identity()).message;
        return finding("topic", Level::Fail, format!("{words}. The consumer waits for it"));
    }
    match fetches(client, partitions) {
        Ok(()) => {
            let text = format!("topic {topic:?} has {} partitions, and may be read", partitions.len());
            finding("topic", Level::Ok, text)
        }
        Err(Code::TopicAuthorizationFailed) => denied(),
        Err(code) => finding("topic", Level::Warn, format!("topic {topic:?} did not answer a read: {code}")),
    }
}

/// Reads at the end of one partition, where nothing is.
fn fetches(client: &DoctorClient, partitions: &[Partition]) -> Result<(), Code> {
    let code = |error: KafkaError| error.rdkafka_error_code().unwrap_or(Code::Unknown);
    client.assign(&all_at(&partitions[..1], Offset::End)).map_err(code)?;
    let until = Instant::now() + ANSWER;
    let mut answer = Err(Code::OperationTimedOut);
    while answer == Err(Code::OperationTimedOut) && Instant::now() < until {
        match client.poll(Duration::from_millis(50)) {
            Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => answer = Ok(()),
            Some(Err(error)) if code(error.clone()) == Code::TopicAuthorizationFailed => {
                answer = Err(Code::TopicAuthorizationFailed);
            }
            _ => {}
        }
    }
    client.unassign().map_err(code)?;
    answer
}

fn group(
    source: &KafkaSourceConfig,
    plan: &GroupMember,
    client: &DoctorClient,
    all: &[Partition],
) -> Vec<Finding> {
    let group = &plan.group;
    if all.is_empty() {
        return Vec::new();
    }
    let positions = match committed(client, all, ANSWER) {
        Ok(positions) => positions,
        Err(_) if hears_denial(client) => {
            let who = source.connection.identity();
            let text =
                format!("{who} may not use the group {group:?}: allow READ on it. Nothing is consumed");
            return vec![finding("group", Level::Fail, text)];
        }
        Err(error) => {
            let text = format!("the positions of group {group:?} cannot be seen: {error}");
            return vec![finding("group", Level::Warn, text)];
        }
    };
    let placed = positions.values().flatten().count();
    let joins = source.words();
    let text = format!("group {group:?} ({joins}) has a position in {placed} of {} partitions", all.len());
    let mut findings = vec![finding("group", Level::Ok, text)];
    findings.extend(bounds(client, all, ANSWER).ok().map(|bounds| lag(group, &positions, &bounds)));
    findings
}

fn hears_denial(client: &DoctorClient) -> bool {
    while client.poll(Duration::ZERO).is_some() {}
    client.context().group_denied.load(Ordering::Relaxed)
}

fn lag(
    group: &str,
    positions: &BTreeMap<Partition, Option<i64>>,
    bounds: &BTreeMap<Partition, (i64, i64)>,
) -> Finding {
    let (mut behind, mut lost) = (0, 0);
    for (partition, (first, end)) in bounds {
        if let Some(position) = positions.get(partition).copied().flatten() {
            behind += (end - position.max(*first)).max(0);
            lost += (first - position).max(0);
        }
    }
    match lost {
        0 => finding("lag", Level::Ok, format!("group {group:?} is {behind} messages behind")),
        _ => {
            let text = format!(
                "group {group:?} is {behind} messages behind, and {lost} more were removed before it read them: keep messages longer than the longest stop of the consumer"
            );
            finding("lag", Level::Warn, text)
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Marks that are gone while their messages are still there protect nobody who goes back to those (F69).
fn compare_marks(topic: &str, settings: &Settings, marks: Option<Duration>) -> Finding {
    let Some(marks) = marks else {
        return finding("marks", Level::Ok, "marks are never removed");
    };
    let days = marks.as_secs() / DAY.as_secs();
    match settings.retention {
        None => {
            let text = format!(
                "topic {topic:?} keeps its messages for ever, and marks are kept for {days} days: what is older is done again by a seek to it"
            );
            finding("marks", Level::Ok, text)
        }
        Some(kept) if kept > marks => {
            let wanted = kept.as_secs().div_ceil(DAY.as_secs());
            let text = format!(
                "topic {topic:?} keeps messages for {wanted} days, and marks are kept for {days} (retention.marks_days): what is older and comes again, by a seek or a copy, is done again. Keep marks for {wanted} days"
            );
            finding("marks", Level::Warn, text)
        }
        Some(_) => {
            let text =
                format!("marks are kept for {days} days, which the messages of topic {topic:?} are not");
            finding("marks", Level::Ok, text)
        }
    }
}

/// Messages that are kept for a shorter time than a stop of the consumer are lost to it.
fn retention(topic: &str, settings: &Settings) -> Finding {
    match settings.retention {
        None => finding("retention", Level::Ok, format!("topic {topic:?} keeps its messages for ever")),
        Some(kept) if kept < DAY => {
            let text = format!(
                "topic {topic:?} keeps messages for {} minutes (retention.ms): a consumer that stops for longer loses some; use days",
                kept.as_secs() / 60
            );
            finding("retention", Level::Warn, text)
        }
        Some(kept) => {
            let hours = kept.as_secs() / 3_600;
            finding("retention", Level::Ok, format!("topic {topic:?} keeps messages for {hours} hours"))
        }
    }
}
