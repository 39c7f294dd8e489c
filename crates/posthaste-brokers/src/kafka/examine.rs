//! What `posthaste doctor` says about Kafka and the topics behind the destinations.
//!
//! The examination reads, and produces nothing. The rules come from what Kafka's acknowledgement is worth
//! (F32): a broker answers before it has synced to its disk, so an acknowledged event is as safe as the
//! number of brokers that have it. Reading the settings of a topic needs a right that delivery does not need.
//! Without that right there is a warning, because settings that cannot be seen may lose events.

use super::KafkaConfig;
use super::cause::{self, Causes};
use super::client::admin::{self, Partitions, PartitionsResult, Settings};
use super::client::version::{self, VersionCheck};
use super::producers::Fleet;
use super::verdict::{check_topic, too_old};
use crate::findings::no_session;
use posthaste::sink::{Finding, Level, Verdict};
use rdkafka::error::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time for the whole examination. Its caller gives up after 5 s, so this is less, and a slow broker is
/// named.
const PATIENCE: Duration = Duration::from_millis(4_500);
/// The time for a first answer of any broker. The rest is for the topics.
const CONNECT_WAIT: Duration = Duration::from_millis(2_500);
/// The largest payload that an append accepts by default.
const PAYLOAD_BYTES: usize = 1 << 20;

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["reachable", "authenticated", "transport", "version", "payload", "destination", "durability"];

pub(super) async fn examine(
    config: &KafkaConfig,
    fleet: &Fleet,
    causes: &Causes,
    destinations: &[String],
) -> Vec<Finding> {
    let until = Instant::now() + PATIENCE;
    let left = || until.saturating_duration_since(Instant::now());
    let Some(brokers) = brokers(fleet).await else {
        return nobody(config, causes);
    };
    let mut findings = vec![
        finding("reachable", Level::Ok, brokers.words()),
        finding("authenticated", Level::Ok, format!("connected as {}", config.identity())),
        transport(config, &brokers),
    ];
    findings.push(version(config, version::ask(config, left() / 3).await));
    let (good, bad): (Vec<_>, Vec<_>) =
        destinations.iter().cloned().partition(|topic| check_topic(topic).is_ok());
    findings.extend(bad.iter().filter_map(|topic| Some(bad_name(check_topic(topic).err()?))));
    if good.is_empty() {
        return findings;
    }
    let states = admin::partitions(fleet.metadata(), &good, left() / 2).await;
    let settings = admin::settings(config, &good, left()).await;
    findings.extend(good.iter().flat_map(|topic| of_topic(config, topic, &states, &settings)));
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

struct Brokers {
    hosts: Vec<String>,
}

impl Brokers {
    fn words(&self) -> String {
        format!("{} brokers answer: {}", self.hosts.len(), self.hosts.join(", "))
    }

    fn are_local(&self) -> bool {
        let local = |host: &String| {
            host.starts_with("127.") || host.starts_with("localhost:") || host.starts_with("[::1]")
        };
        self.hosts.iter().all(local)
    }
}

/// The brokers that are there, if one answers.
async fn brokers(fleet: &Fleet) -> Option<Brokers> {
    let metadata = fleet.metadata();
    // The question is about a topic that cannot exist, so the answer has the brokers and not every topic of
    // the cluster.
    let asked = tokio::task::spawn_blocking(move || metadata("posthaste.doctor", CONNECT_WAIT).ok());
    let metadata = asked.await.ok()??;
    let host = |broker: &rdkafka::metadata::MetadataBroker| format!("{}:{}", broker.host(), broker.port());
    Some(Brokers { hosts: metadata.brokers().iter().map(host).collect() })
}

fn nobody(config: &KafkaConfig, causes: &Causes) -> Vec<Finding> {
    let silent = || cause::unreachable(config, "no broker answers");
    let failure = causes.current(config).unwrap_or_else(silent);
    no_session(&failure, &["kafka.auth"])
}

fn transport(config: &KafkaConfig, brokers: &Brokers) -> Finding {
    match (config.wants_tls(), config.sends_secret() && !brokers.are_local()) {
        (true, _) => finding("transport", Level::Ok, "TLS, with the brokers' certificates verified"),
        (false, false) => finding("transport", Level::Ok, "not encrypted"),
        (false, true) => {
            let text =
                "not encrypted, and a password travels over it as it is: use require_tls, or scram-sha-512";
            finding("transport", Level::Warn, text)
        }
    }
}

fn version(config: &KafkaConfig, answer: VersionCheck) -> Finding {
    match answer {
        VersionCheck::Fits => {
            let text = "the brokers take an idempotent producer, so they are Kafka 0.11 or later; they do not tell more";
            finding("version", Level::Ok, text)
        }
        VersionCheck::Refused(Code::ClusterAuthorizationFailed, _) => {
            let text = format!(
                "{} may write to no topic at all: allow WRITE on those of the routes. Events for this sink wait in the log",
                config.identity()
            );
            finding("destination", Level::Fail, text)
        }
        VersionCheck::Refused(Code::UnsupportedFeature | Code::UnsupportedVersion, why) => {
            finding("version", Level::Fail, too_old(&why))
        }
        VersionCheck::Refused(_, why) => {
            finding("version", Level::Fail, format!("there is no producer id: {why}"))
        }
        VersionCheck::Silent => {
            let text = "no broker has given a producer id in time: whether they are new enough is not known";
            finding("version", Level::Warn, text)
        }
    }
}

fn bad_name(verdict: Verdict) -> Finding {
    let text = match verdict {
        Verdict::Rejected(failure) => format!("{}: its events are rejected", failure.message),
        other => format!("{other:?}"),
    };
    finding("destination", Level::Fail, text)
}

type AllSettings = Result<BTreeMap<String, Result<Settings, String>>, String>;

fn of_topic(
    config: &KafkaConfig,
    topic: &str,
    states: &BTreeMap<String, PartitionsResult>,
    settings: &AllSettings,
) -> Vec<Finding> {
    let state = match states.get(topic) {
        Some(Ok(state)) => state,
        Some(Err(code)) => {
            let failure = cause::of_code(topic, *code, &config.identity());
            return vec![finding("destination", Level::Fail, failure.message)];
        }
        None => {
            let text = format!("no broker says anything about topic {topic:?}");
            return vec![finding("destination", Level::Fail, text)];
        }
    };
    let settings = match settings {
        Ok(all) => all.get(topic).cloned().unwrap_or_else(|| Err("no answer".to_owned())),
        Err(why) => Err(why.clone()),
    };
    let mut findings = vec![destination(topic, state), durability(topic, state, &settings)];
    findings.extend(settings.ok().map(|settings| payload(config, topic, &settings)));
    findings
}

fn destination(topic: &str, state: &Partitions) -> Finding {
    if state.without_leader > 0 {
        let failure = cause::of_topic(topic, state, None, 0);
        return finding("destination", Level::Fail, format!("{}: its events wait", failure.message));
    }
    let text = format!("topic {topic:?} has {} partitions, all with a leader", state.all);
    finding("destination", Level::Ok, text)
}

/// Whether an event that was acknowledged can be lost (F32).
fn durability(topic: &str, state: &Partitions, settings: &Result<Settings, String>) -> Finding {
    let warn = |text: String| finding("durability", Level::Warn, text);
    let replicas = state.replicas_min;
    if replicas < 3 {
        return warn(format!(
            "topic {topic:?} has {replicas} replicas, and brokers acknowledge before they sync: the loss of a disk, or a power cut, can take delivered events; use 3"
        ));
    }
    let settings = match settings {
        Ok(settings) => settings,
        Err(why) => {
            return warn(format!(
                "cannot see the settings of topic {topic:?} ({why}): whether a delivered event is on two brokers depends on min.insync.replicas; allow DESCRIBE_CONFIGS"
            ));
        }
    };
    if settings.min_insync_replicas < 2 {
        return warn(format!(
            "topic {topic:?} has min.insync.replicas = {}: while the others are away one broker alone acknowledges, and its loss takes delivered events; use 2",
            settings.min_insync_replicas
        ));
    }
    if settings.unclean_election {
        return warn(format!(
            "topic {topic:?} lets a replica lead that lacks acknowledged events (unclean.leader.election.enable); switch it off"
        ));
    }
    let text = format!(
        "topic {topic:?} has {replicas} replicas and acknowledges with {} of them; only their loss at the same time can take delivered events",
        settings.min_insync_replicas
    );
    finding("durability", Level::Ok, text)
}

fn payload(config: &KafkaConfig, topic: &str, settings: &Settings) -> Finding {
    let max = settings.max_message_bytes.min(config.message_bytes_max);
    let text = format!("topic {topic:?} takes messages of at most {max} bytes, with key and headers");
    if settings.max_message_bytes < config.batch_bytes {
        let more = format!(
            "{text}; batches are larger than that (batch_bytes = {}), and are sent again one by one: set batch_bytes below max.message.bytes",
            config.batch_bytes
        );
        return finding("payload", Level::Warn, more);
    }
    if max < PAYLOAD_BYTES {
        let more = format!(
            "{text}; an append accepts {PAYLOAD_BYTES}, and what is larger than this ends as a dead letter"
        );
        return finding("payload", Level::Warn, more);
    }
    finding("payload", Level::Ok, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(min_insync_replicas: usize, unclean_election: bool) -> Result<Settings, String> {
        Ok(Settings { min_insync_replicas, max_message_bytes: 1 << 20, unclean_election, retention: None })
    }

    fn state(replicas: usize) -> Partitions {
        Partitions { all: 1, without_leader: 0, in_sync: replicas, replicas, replicas_min: replicas }
    }

    #[test]
    fn f32_what_can_lose_an_acknowledged_event_is_named() {
        let level = |replicas, settings| durability("t", &state(replicas), &settings).level;
        assert_eq!(level(3, settings(2, false)), Level::Ok);
        for (replicas, settings) in [
            (1, settings(1, false)),
            (2, settings(2, false)),
            (3, settings(1, false)),
            (3, settings(2, true)),
            (3, Err("denied".to_owned())),
        ] {
            assert_eq!(level(replicas, settings.clone()), Level::Warn, "{replicas} {settings:?}");
        }
    }
}
