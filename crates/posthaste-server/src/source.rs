//! The broker of a consumer, asked without being a member of its group: what commands and `doctor` want to
//! know, and what a range replay reads.

use crate::config::{ConsumerSetting, Review, SourceSetting, member};
use posthaste::sink::Finding;
#[cfg(feature = "sqlite")]
use posthaste::sink::Level;
use posthaste::source::SourceError;
use posthaste::source::log::{LogPartition, LogReader};
use posthaste_brokers::GroupMember;
#[cfg(feature = "sqlite")]
use posthaste_sqlite::broker::{Broker, BrokerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Checks of a log that has no examination of its own.
const LOG_CHECKS: &[&str] = &["reachable", "topic", "lag"];

/// Names of the checks that [`examine`] makes, by the type of source.
pub(crate) fn checks() -> Vec<(&'static str, &'static [&'static str])> {
    let mut all = posthaste_brokers::source_checks();
    if cfg!(feature = "sqlite") {
        all.push(("local", LOG_CHECKS));
    }
    all
}

/// Reads the consumer's topics, and sees where its group is.
pub(crate) fn reader(setting: &ConsumerSetting) -> Result<Arc<dyn LogReader>, SourceError> {
    match &setting.source {
        SourceSetting::Broker(source) => source
            .reader(setting.group(), setting.own.order)
            .map_err(|error| SourceError::Fatal(error.to_string())),
        #[cfg(feature = "sqlite")]
        SourceSetting::Local(config) => {
            let broker = config.broker().map_err(|(key, why)| SourceError::Fatal(format!("{key}: {why}")))?;
            Ok(Arc::new(Broker::lazy(BrokerConfig { create: false, ..broker }).reader(setting.group())))
        }
    }
}

/// The logs of all its topics.
pub(crate) async fn survey(setting: &ConsumerSetting) -> Result<Vec<LogPartition>, SourceError> {
    reader(setting)?.survey(&setting.own.topics).await
}

/// What `doctor` says about the consumer's broker. Nobody joins the group.
pub(crate) async fn examine(setting: &ConsumerSetting) -> Vec<Finding> {
    match &setting.source {
        SourceSetting::Broker(source) => {
            // Marks in tables that are not ours are never removed.
            let days = u64::from(setting.settings.retention.marks_days);
            let marks = setting.own.tables.mapping().is_none().then(|| Duration::from_secs(days * 86_400));
            let member = GroupMember::new(setting.group(), &setting.own.topics);
            source.examine(&GroupMember { order: setting.own.order, ..member }, marks).await
        }
        #[cfg(feature = "sqlite")]
        SourceSetting::Local(_) => examine_log(setting).await,
    }
}

#[cfg(feature = "sqlite")]
async fn examine_log(setting: &ConsumerSetting) -> Vec<Finding> {
    let finding = |check: &str, level, text| Finding { check: check.to_owned(), level, text };
    let found = match survey(setting).await {
        Ok(found) => found,
        Err(error) => {
            return vec![finding("reachable", Level::Fail, format!("{error}. Nothing is consumed"))];
        }
    };
    let mut findings = vec![finding("reachable", Level::Ok, "the broker answers".to_owned())];
    for topic in &setting.own.topics {
        let partitions = found.iter().filter(|log| *log.partition.topic == **topic);
        findings.push(match partitions.count() {
            0 => {
                let why = "nobody has published to it, or its name is another one. The consumer waits for it";
                finding("topic", Level::Warn, format!("there is no topic {topic:?}: {why}"))
            }
            count => finding("topic", Level::Ok, format!("topic {topic:?} has {count} partitions")),
        });
    }
    let behind = |log: &LogPartition| log.committed.map(|at| (log.end - at.max(log.first)).max(0));
    let lost = |log: &LogPartition| log.committed.map(|at| (log.first - at).max(0));
    let sum = |of: &dyn Fn(&LogPartition) -> Option<i64>| found.iter().filter_map(of).sum::<i64>();
    let text = format!("group {:?} is {} messages behind", setting.group(), sum(&behind));
    findings.push(match sum(&lost) {
        0 => finding("lag", Level::Ok, text),
        lost => {
            let text =
                format!("{text}, and {lost} more were removed before it read them: keep messages longer");
            finding("lag", Level::Warn, text)
        }
    });
    findings
}

/// Members of a group share its messages, and each consumer wants all of them.
pub(crate) fn check_groups(review: &mut Review<'_>, settings: &[ConsumerSetting]) {
    for (index, setting) in settings.iter().enumerate() {
        let is_same = |other: &&ConsumerSetting| {
            let brokers = setting.source.broker().zip(other.source.broker());
            let is_twin = brokers.is_some_and(|(one, other)| one.is_twin_of(other));
            other.group() == setting.group() && (is_twin || other.own.source == setting.own.source)
        };
        if let Some(other) = settings[..index].iter().find(is_same) {
            let (group, place) = (setting.group(), member(&member("consumers", &setting.name), "group"));
            let why = "each would get a part of the messages. Give one of them another `group`";
            review.problem(&place, format!("group `{group}` is in use by consumer `{}`: {why}", other.name));
        }
    }
}
