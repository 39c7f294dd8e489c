//! Kafka's topics, rights and users as an administrator sees them.
//!
//! What is asked of a cluster, and nothing more: its metadata once, the settings of the topics that are
//! named, in batches, all rights by one request, and the users that are named. A right that is missing hides
//! what it is about, and nothing else.
//!
//! A change is read back until the cluster shows it: brokers learn of it a moment after the controller has
//! answered. When the answer is lost, the same look says whether it was done.

mod apply;
mod native;
mod reach;
mod rules;

use super::KafkaConfig;
use super::client::admin::QuestionClient;
use crate::topology::{
    AdminFailure, BrokerAdmin, Kind, PASSWORD, PASSWORD_AS_WANTED, PASSWORD_NOT_COMPARED, PASSWORD_OTHER,
    Resource, Risk, Rules, Scope, Settings, TopologyChange, TopologyLook, Unseen, WantedSecret,
};
use crate::{BuildError, Urls};
use async_trait::async_trait;
use native::{AclEntry, NativeAdmin, NativeError, TopicSetting};
use rdkafka::admin::AdminOptions;
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaErrorCode as Code;
use rules::{KafkaRules, PARTITIONS, REPLICAS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take. A controller that moves is found again within this time.
const ANSWER: Duration = Duration::from_secs(15);
/// How long a login may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Topics of one question about settings.
const TOPICS_AT_ONCE: usize = 200;

/// A cluster as its administrator sees it.
pub(crate) struct KafkaAdmin {
    config: KafkaConfig,
    sasl_url: Option<Urls>,
    client: Arc<QuestionClient>,
    native: NativeAdmin,
}

impl KafkaAdmin {
    /// Needs no broker yet.
    pub(crate) fn start(config: &KafkaConfig, sasl_url: Option<&Urls>) -> Result<Self, BuildError> {
        config.check_words()?;
        let client = QuestionClient::start(config).map_err(|why| BuildError::option("url", why))?;
        let client = Arc::new(client);
        let native = NativeAdmin::new(Arc::clone(&client), ANSWER);
        Ok(Self { config: config.clone(), sasl_url: sasl_url.cloned(), client, native })
    }

    fn options() -> AdminOptions {
        AdminOptions::new().request_timeout(Some(ANSWER)).operation_timeout(Some(ANSWER))
    }

    /// The cluster's name, its brokers and its topics with what they are made of.
    async fn cluster(&self) -> Result<Cluster, AdminFailure> {
        let mut why = format!("{}: no answer in time", self.config.url);
        // Whoever is refused need not wait for long; a slow line may need it.
        for patience in [1, 2, 4].map(Duration::from_secs) {
            let client = Arc::clone(&self.client);
            if let Ok(Ok(found)) = tokio::task::spawn_blocking(move || Cluster::ask(&client, patience)).await
            {
                return Ok(found);
            }
            if let Err(failure) = reach::reach(&self.config, Duration::from_secs(1)).await {
                why = failure.message;
                if failure.code != "kafka.unreachable" {
                    break;
                }
            }
        }
        Err(AdminFailure::Unreachable(why))
    }

    async fn topics(
        &self,
        scope: &Scope,
        cluster: &Cluster,
        look: &mut TopologyLook,
    ) -> Result<(), AdminFailure> {
        let named = scope.named.iter().filter(|name| name.kind == Kind::Topic).map(|name| name.name.clone());
        let mut asked: BTreeSet<String> = named.collect();
        if scope.everything {
            asked.extend(cluster.topics.keys().cloned());
        }
        let mut settings = self.settings(asked.iter().cloned().collect()).await?;
        for (name, (partitions, replicas)) in &cluster.topics {
            let mut topic = Resource::new(Kind::Topic, name, Settings::new());
            topic.internal = name.starts_with("__");
            topic.settings.insert(PARTITIONS.to_owned(), partitions.to_string());
            topic.settings.insert(REPLICAS.to_owned(), replicas.to_string());
            match settings.remove(name) {
                Some(Ok(found)) => fill(&mut topic, found),
                Some(Err(code)) => look.unseen.push(self.unseen_topic(name, code)),
                None => {}
            }
            look.resources.push(topic);
        }
        // Not among the cluster's topics: not there, or not for our eyes.
        for (name, answer) in settings {
            match answer {
                Err(Code::UnknownTopicOrPartition | Code::InvalidTopic) => {}
                Err(code) => look.unseen.push(self.unseen_topic(&name, code)),
                Ok(_) => look.unseen.push(self.unseen_topic(&name, Code::TopicAuthorizationFailed)),
            }
        }
        Ok(())
    }

    fn unseen_topic(&self, name: &str, code: Code) -> Unseen {
        let why = match code {
            Code::TopicAuthorizationFailed => {
                self.lacks(&format!("DESCRIBE and DESCRIBE_CONFIGS on TOPIC {name}"))
            }
            code => format!("its settings cannot be seen: {code}"),
        };
        Unseen { kind: Kind::Topic, name: Some(name.to_owned()), why }
    }

    /// The settings of topics, each with the code of whatever is wrong.
    async fn settings(
        &self,
        topics: Vec<String>,
    ) -> Result<BTreeMap<String, Result<Vec<TopicSetting>, Code>>, AdminFailure> {
        let mut found = BTreeMap::new();
        for batch in topics.chunks(TOPICS_AT_ONCE) {
            let answers = self.native.settings(batch.to_vec()).await;
            let answers = answers.map_err(|error| AdminFailure::Unreachable(error.words))?;
            found.extend(answers.into_iter().map(|it| (it.topic, it.found.map_err(|error| error.code))));
        }
        Ok(found)
    }

    /// Why rights and users cannot be seen, if they cannot.
    async fn blindness(&self) -> Option<String> {
        match self.native.may_describe_cluster().await {
            Ok(true) => None,
            Ok(false) => Some(self.lacks("DESCRIBE on CLUSTER")),
            Err(error) => Some(self.words(&error, "DESCRIBE on CLUSTER")),
        }
    }

    async fn rights(&self, look: &mut TopologyLook) {
        match self.native.rights().await {
            Ok(rights) => look.resources.extend(rights.into_iter().map(resource)),
            Err(error) => {
                let why = self.words(&error, "DESCRIBE on CLUSTER");
                look.unseen.push(Unseen { kind: Kind::Acl, name: None, why });
            }
        }
    }

    async fn users(&self, scope: &Scope, look: &mut TopologyLook) {
        let named: BTreeSet<String> =
            scope.named.iter().filter(|name| name.kind == Kind::User).map(|name| name.name.clone()).collect();
        let asked = if scope.everything { Vec::new() } else { named.into_iter().collect() };
        if asked.is_empty() && !scope.everything {
            return;
        }
        let credentials = match self.native.credentials(asked).await {
            Ok(credentials) => credentials,
            Err(error) => {
                let why = self.words(&error, "DESCRIBE on CLUSTER");
                return look.unseen.push(Unseen { kind: Kind::User, name: None, why });
            }
        };
        let mut users: BTreeMap<String, Resource> = BTreeMap::new();
        for credential in credentials {
            let user = users.entry(credential.user.clone());
            let user = user.or_insert_with(|| Resource::new(Kind::User, credential.user, Settings::new()));
            user.settings.insert(credential.mechanism, credential.iterations.to_string());
        }
        for secret in &scope.secrets {
            if let Some(user) = users.get_mut(&secret.user) {
                let found = self.password(secret, &mut look.notes).await;
                user.settings.insert(PASSWORD.to_owned(), found.to_owned());
            }
        }
        look.resources.extend(users.into_values());
    }

    /// Whether a user's password is that of the file.
    async fn password(&self, secret: &WantedSecret, notes: &mut Vec<String>) -> &'static str {
        let user = &secret.user;
        let Some(at) = &self.sasl_url else {
            notes.push(format!(
                "user {user}: password not compared, for there is no sasl_url; --rotate {user} sets it"
            ));
            return PASSWORD_NOT_COMPARED;
        };
        let tried =
            reach::try_password(&self.config, at, user, &secret.mechanism, &secret.password, CONNECT_WAIT)
                .await;
        match tried {
            Ok(true) => PASSWORD_AS_WANTED,
            Ok(false) => PASSWORD_OTHER,
            Err(why) => {
                notes.push(format!("user {user}: password not compared: {why}"));
                PASSWORD_NOT_COMPARED
            }
        }
    }

    /// The right that we lack, and who we are.
    fn lacks(&self, right: &str) -> String {
        format!("{right} is missing for {}", self.config.identity())
    }

    /// An error in words. `right` is what a refusal means.
    fn words(&self, error: &NativeError, right: &str) -> String {
        match error.code {
            Code::ClusterAuthorizationFailed
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed => self.lacks(right),
            Code::SecurityDisabled => {
                "the brokers have no authorizer (authorizer.class.name), so there are no rights".to_owned()
            }
            code if error.words.is_empty() => code.to_string(),
            _ => error.words.clone(),
        }
    }
}

/// What the metadata says.
struct Cluster {
    id: String,
    servers: usize,
    /// By name: partitions, and the fewest replicas of one.
    topics: BTreeMap<String, (usize, usize)>,
}

impl Cluster {
    fn ask(client: &QuestionClient, within: Duration) -> KafkaResult<Self> {
        let client = client.admin().inner();
        let metadata = client.fetch_metadata(None, within)?;
        let topics = metadata.topics().iter().map(|topic| {
            let replicas = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
            (topic.name().to_owned(), (topic.partitions().len(), replicas.unwrap_or(0)))
        });
        let (topics, servers) = (topics.collect(), metadata.brokers().len());
        Ok(Self { id: client.fetch_cluster_id(within).unwrap_or_default(), servers, topics })
    }
}

/// The settings of a topic that may be shown.
fn fill(topic: &mut Resource, found: Vec<TopicSetting>) {
    for setting in found.into_iter().filter(|setting| !setting.is_sensitive) {
        if !setting.is_own {
            topic.defaults.insert(setting.name.clone());
        }
        topic.settings.insert(setting.name, setting.value);
    }
}

/// A right as a resource.
fn resource(right: AclEntry) -> Resource {
    let settings = [
        ("permission", right.permission),
        ("operation", right.operation),
        ("resource", right.resource),
        ("pattern", right.pattern),
        ("on", right.on),
        ("host", right.host),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    Resource::new(Kind::Acl, right.principal, settings.into())
}

impl Rules for KafkaAdmin {
    fn is_same(&self, kind: Kind, setting: &str, one: &str, other: &str) -> bool {
        KafkaRules.is_same(kind, setting, one, other)
    }

    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        KafkaRules.risk_of_adding(resource, look)
    }

    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk {
        KafkaRules.risk_of_setting(was, setting, to)
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        KafkaRules.risk_of_removing(resource)
    }
}

#[async_trait]
impl BrokerAdmin for KafkaAdmin {
    async fn look(&self, scope: &Scope) -> Result<TopologyLook, AdminFailure> {
        let cluster = self.cluster().await?;
        let brokers = if cluster.servers == 1 { "broker" } else { "brokers" };
        let words = format!("{} {brokers}, as {}", cluster.servers, self.config.identity());
        let servers = Some(cluster.servers);
        let mut look =
            TopologyLook { cluster: cluster.id.clone(), words, servers, ..TopologyLook::default() };
        if scope.kinds.contains(&Kind::Topic) {
            self.topics(scope, &cluster, &mut look).await?;
        }
        let mut about_cluster = vec![Kind::User, Kind::Acl];
        about_cluster.retain(|kind| scope.kinds.contains(kind));
        let blindness = if about_cluster.is_empty() { None } else { self.blindness().await };
        for kind in about_cluster {
            match (&blindness, kind) {
                (Some(why), kind) => look.unseen.push(Unseen { kind, name: None, why: why.clone() }),
                (None, Kind::User) => self.users(scope, &mut look).await,
                (None, _) => self.rights(&mut look).await,
            }
        }
        Ok(look)
    }

    async fn validate(&self, change: &TopologyChange) -> Result<bool, AdminFailure> {
        self.try_change(change).await
    }

    async fn apply(
        &self,
        changes: &[TopologyChange],
        secrets: &[WantedSecret],
    ) -> Vec<Result<(), AdminFailure>> {
        self.apply_all(changes, secrets).await
    }

    async fn end(self: Box<Self>) {
        drop(self.native);
        // A request that somebody gave up ends the client when it ends. Everybody else waits for its threads:
        // a process that ends before them may crash in the TLS library.
        if let Some(mut client) = Arc::into_inner(self.client) {
            let client = client.0.take();
            let _ = tokio::task::spawn_blocking(move || drop(client)).await;
        }
    }
}
