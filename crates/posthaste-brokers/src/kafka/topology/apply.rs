//! Changes at Kafka.

use super::native::{AclEntry, Credential, NativeError};
use super::rules::{PARTITIONS, REPLICAS};
use super::{KafkaAdmin, TOPICS_AT_ONCE};
use crate::topology::{
    AdminFailure, ChangeAct, Kind, Resource, Sent, TopologyChange, WantedSecret, read_back,
};
use rdkafka::admin::{NewPartitions, NewTopic, TopicReplication, TopicResult};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

impl KafkaAdmin {
    /// Makes changes of one kind and act, and reads them back.
    pub(super) async fn apply_all(
        &self,
        changes: &[TopologyChange],
        secrets: &[WantedSecret],
    ) -> Vec<Result<(), AdminFailure>> {
        let sent = self.send(changes, secrets).await;
        read_back(self, changes, sent, secrets).await
    }

    async fn send(&self, changes: &[TopologyChange], secrets: &[WantedSecret]) -> Vec<Sent> {
        let Some(first) = changes.first() else { return Vec::new() };
        match (first.resource.kind, first.act) {
            (Kind::Topic, ChangeAct::Add) => self.create(changes, false).await,
            (Kind::Topic, ChangeAct::Remove) => self.delete(changes).await,
            (Kind::Acl, act) => self.rule(changes, act).await,
            (kind, _) => {
                let mut sent = Vec::new();
                for change in changes {
                    sent.push(match kind {
                        Kind::Topic => self.change_topic(change, false).await,
                        _ => self.change_user(change, secrets).await,
                    });
                }
                sent
            }
        }
    }

    async fn create(&self, changes: &[TopologyChange], is_trial: bool) -> Vec<Sent> {
        let mut sent = Vec::new();
        let options = Self::options().validate_only(is_trial);
        for batch in changes.chunks(TOPICS_AT_ONCE) {
            let topics: Vec<NewTopic<'_>> = batch.iter().map(|change| new_topic(&change.resource)).collect();
            let answers = self.client.admin().create_topics(&topics, &options).await;
            sent.extend(self.answers(batch, answers, "CREATE", &[Code::TopicAlreadyExists]));
        }
        sent
    }

    async fn delete(&self, changes: &[TopologyChange]) -> Vec<Sent> {
        let names: Vec<&str> = changes.iter().map(|change| change.resource.name.as_str()).collect();
        let answers = self.client.admin().delete_topics(&names, &Self::options()).await;
        self.answers(changes, answers, "DELETE", &[Code::UnknownTopicOrPartition])
    }

    /// One answer for each topic, or one for all of them. `fine` are codes of what is done already.
    fn answers(
        &self,
        changes: &[TopologyChange],
        answers: Result<Vec<TopicResult>, KafkaError>,
        right: &str,
        fine: &[Code],
    ) -> Vec<Sent> {
        let of_code = |code: Code, topic: &str| match code {
            code if fine.contains(&code) => Sent::Done,
            code => self
                .judge(NativeError { code, words: code.to_string() }, &format!("{right} on TOPIC {topic}")),
        };
        match answers {
            // Answers name their topic, and come in any order.
            Ok(answers) => changes
                .iter()
                .map(|change| {
                    let name = &change.resource.name;
                    let found = answers.iter().find(|answer| match answer {
                        Ok(topic) | Err((topic, _)) => topic == name,
                    });
                    match found {
                        Some(Ok(_)) => Sent::Done,
                        Some(Err((_, code))) => of_code(*code, name),
                        None => Sent::Unanswered("the brokers did not speak of it".to_owned()),
                    }
                })
                .collect(),
            Err(error) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
                changes.iter().map(|change| of_code(code, &change.resource.name)).collect()
            }
        }
    }

    /// Whether a request that failed was refused, or may have been carried out.
    fn judge(&self, error: NativeError, right: &str) -> Sent {
        let words = self.words(&error, right);
        match error.code {
            Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::MessageTimedOut
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::NotController
            | Code::CoordinatorNotAvailable
            | Code::Fail => Sent::Unanswered(words),
            _ => Sent::Refused(words),
        }
    }

    async fn change_topic(&self, change: &TopologyChange, is_trial: bool) -> Sent {
        let name = &change.resource.name;
        let settings: Vec<(String, Option<String>)> = change
            .settings
            .iter()
            .filter(|setting| setting.name != PARTITIONS && setting.name != REPLICAS)
            .map(|setting| (setting.name.clone(), setting.to.clone()))
            .collect();
        if !settings.is_empty()
            && let Err(error) = self.native.alter_topic(name.clone(), settings, is_trial).await
        {
            return self.judge(error, &format!("ALTER_CONFIGS on TOPIC {name}"));
        }
        let partitions = change.settings.iter().find(|setting| setting.name == PARTITIONS);
        let Some(count) = partitions.and_then(|setting| setting.to.as_ref()?.parse().ok()) else {
            return Sent::Done;
        };
        let more = [NewPartitions::new(name, count)];
        let options = Self::options().validate_only(is_trial);
        let answers = self.client.admin().create_partitions(&more, &options).await;
        // Somebody else may have done the same a moment ago: the look decides.
        if !is_trial && matches!(answers.as_deref(), Ok([Err((_, Code::InvalidPartitions))])) {
            return Sent::Unanswered(format!("{name} has other partitions than a moment ago"));
        }
        let mut sent = self.answers(std::slice::from_ref(change), answers, "ALTER", &[]);
        sent.pop().unwrap_or(Sent::Done)
    }

    async fn rule(&self, changes: &[TopologyChange], act: ChangeAct) -> Vec<Sent> {
        let mut sent = Vec::new();
        for batch in changes.chunks(TOPICS_AT_ONCE) {
            let rights: Vec<AclEntry> = batch.iter().map(|change| right(&change.resource)).collect();
            let answers = match act {
                ChangeAct::Remove => self.native.revoke(rights).await,
                ChangeAct::Add | ChangeAct::Change => self.native.allow(rights).await,
            };
            let judge = |error: NativeError| self.judge(error, "ALTER on CLUSTER");
            let mut answers: Vec<Sent> = match answers {
                Ok(answers) => {
                    answers.into_iter().map(|answer| answer.map_or_else(judge, |()| Sent::Done)).collect()
                }
                Err(error) => batch.iter().map(|_| judge(error.clone())).collect(),
            };
            let silent = || Sent::Unanswered("the brokers did not speak of it".to_owned());
            answers.resize_with(batch.len(), silent);
            sent.append(&mut answers);
        }
        sent
    }

    async fn change_user(&self, change: &TopologyChange, secrets: &[WantedSecret]) -> Sent {
        let user = &change.resource.name;
        let is_removal = change.act == ChangeAct::Remove;
        let secret = secrets.iter().find(|secret| secret.user == *user).filter(|_| !is_removal);
        let mechanisms: Vec<(String, i32)> = match secret {
            // A password is set together with how it is kept.
            Some(secret) => {
                let to = change.settings.iter().find(|setting| setting.name == secret.mechanism);
                let to = to.and_then(|setting| setting.to.as_ref());
                let now = change.resource.settings.get(&secret.mechanism);
                let iterations = to.or(now).and_then(|text| text.parse().ok()).unwrap_or(8_192);
                vec![(secret.mechanism.clone(), iterations)]
            }
            None if is_removal => {
                let kept = change.resource.settings.keys().filter(|name| name.starts_with("scram-"));
                kept.map(|name| (name.clone(), 0)).collect()
            }
            None => return Sent::Refused(format!("the file has no password for {user}")),
        };
        for (mechanism, iterations) in mechanisms {
            let credential = Credential { user: user.clone(), mechanism, iterations };
            let password = secret.map(|secret| secret.password.clone());
            if let Err(error) = self.native.set_password(credential, password).await {
                return self.judge(error, "ALTER on CLUSTER");
            }
        }
        Sent::Done
    }

    /// Asks the broker for a dry run.
    pub(super) async fn try_change(&self, change: &TopologyChange) -> Result<bool, AdminFailure> {
        let sent = match (change.resource.kind, change.act) {
            (Kind::Topic, ChangeAct::Add) => self.create(std::slice::from_ref(change), true).await.pop(),
            (Kind::Topic, ChangeAct::Change) => Some(self.change_topic(change, true).await),
            _ => return Ok(false),
        };
        match sent {
            Some(Sent::Refused(why)) => Err(AdminFailure::Refused(why)),
            Some(Sent::Unanswered(why)) => Err(AdminFailure::Unreachable(why)),
            Some(Sent::Done) | None => Ok(true),
        }
    }
}

fn new_topic(topic: &Resource) -> NewTopic<'_> {
    let number = |name: &str| topic.settings.get(name).and_then(|text| text.parse::<i32>().ok()).unwrap_or(1);
    let made = NewTopic::new(&topic.name, number(PARTITIONS), TopicReplication::Fixed(number(REPLICAS)));
    let settings = topic.settings.iter().filter(|(name, _)| *name != PARTITIONS && *name != REPLICAS);
    settings.fold(made, |made, (name, value)| made.set(name, value))
}

/// A resource as a right.
fn right(resource: &Resource) -> AclEntry {
    let setting = |name: &str| resource.settings.get(name).cloned().unwrap_or_default();
    AclEntry {
        principal: resource.name.clone(),
        permission: setting("permission"),
        operation: setting("operation"),
        resource: setting("resource"),
        pattern: setting("pattern"),
        on: setting("on"),
        host: setting("host"),
    }
}
