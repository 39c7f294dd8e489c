//! RabbitMQ's exchanges, queues and bindings as an administrator sees them.
//!
//! All of it goes by the management API. AMQP was refused: it cannot list bindings, and its only question
//! about a queue is to declare it, which may make what a plan only wants to look at.
//!
//! Bindings from exchange to exchange are not looked at. A file cannot name one, and none is touched.

mod management;
mod rules;

use super::RabbitmqConfig;
use crate::BuildError;
use crate::topology::{
    AdminFailure, BrokerAdmin, ChangeAct, Kind, Resource, ResourceName, Risk, Rules, Scope, Sent, Settings,
    TopologyChange, TopologyLook, Unseen, WantedSecret, binding_name, json_text, json_value, read_back,
};
use async_trait::async_trait;
use hyper::{Method, StatusCode};
use management::{ManagementClient, ManagementError, ManagementReply, is_segment, segment};
use rules::{RabbitmqRules, is_of_broker};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Settings that are no arguments.
const TYPE: &str = "type";
const DURABLE: &str = "durable";
const EXCHANGE: &str = "exchange";
const QUEUE: &str = "queue";
const ROUTING_KEY: &str = "routing_key";
/// The argument that says the same as [`TYPE`].
const QUEUE_TYPE: &str = "x-queue-type";

/// A virtual host as its administrator sees it.
#[derive(Debug)]
pub(crate) struct RabbitmqAdmin {
    management: ManagementClient,
    vhost: String,
}

/// An exchange or a queue.
#[derive(Debug, Deserialize)]
struct Managed {
    name: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    durable: bool,
    #[serde(default)]
    auto_delete: bool,
    #[serde(default)]
    arguments: Value,
}

/// A binding.
#[derive(Debug, Deserialize)]
struct Bound {
    source: String,
    destination: String,
    destination_type: String,
    routing_key: String,
    #[serde(default)]
    arguments: Value,
    /// Its name in paths.
    #[serde(default)]
    properties_key: String,
}

impl RabbitmqAdmin {
    /// Needs no broker yet.
    pub(crate) fn start(config: &RabbitmqConfig, at: Option<&str>) -> Result<Self, BuildError> {
        let servers = config.check()?;
        let missing = "is missing: bindings cannot be seen over AMQP";
        let at = at.ok_or_else(|| BuildError::option("management_url", missing))?;
        if config.options.user.is_none() && config.options.cert_file.is_some() {
            let why = "is missing: the management API takes a password, and no certificate";
            return Err(BuildError::option("user", why));
        }
        let management = ManagementClient::new(&config.options, at)?;
        let vhost = servers.first().map_or_else(String::new, |server| server.vhost.clone());
        if !is_segment(&vhost) {
            return Err(BuildError::option("url", "the management API cannot name this virtual host"));
        }
        Ok(Self { management, vhost })
    }

    /// A path below `/api`, with the virtual host behind its first part.
    fn path(&self, what: &str, rest: &[&str]) -> String {
        let rest: String = rest.iter().map(|name| format!("/{}", segment(name))).collect();
        format!("/api/{what}/{}{rest}", segment(&self.vhost))
    }

    /// Asks for something. The inner error is a refusal, in words.
    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<Result<T, String>, AdminFailure> {
        let reply = self.management.call(Method::GET, path, None).await;
        let reply = reply.map_err(|error| match error {
            ManagementError::Unreached(why) | ManagementError::Lost(why) => AdminFailure::Unreachable(why),
        })?;
        let strange =
            |why: String| AdminFailure::Unreachable(format!("{}{path}: {why}", self.management.address()));
        match reply.status {
            StatusCode::OK => serde_json::from_slice(&reply.body)
                .map(Ok)
                .map_err(|error| strange(format!("a strange answer: {error}"))),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(Err(self.refused(&reply))),
            StatusCode::NOT_FOUND => Ok(Err(format!("there is no virtual host {:?}", self.vhost))),
            _ => Err(strange(reply.words())),
        }
    }

    fn refused(&self, reply: &ManagementReply) -> String {
        let identity = self.management.identity();
        format!("the management refuses {identity} at virtual host {:?}: {}", self.vhost, reply.words())
    }

    async fn things(&self, kind: Kind, scope: &Scope, look: &mut TopologyLook) -> Result<(), AdminFailure> {
        const COLUMNS: &str = "?columns=name,type,durable,auto_delete,arguments";
        let path = format!("{}{COLUMNS}", self.path(&format!("{kind}s"), &[]));
        let found: Vec<Managed> = match self.ask(&path).await? {
            Ok(found) => found,
            Err(why) => {
                look.unseen.push(Unseen { kind, name: None, why });
                return Ok(());
            }
        };
        // The default exchange has no name, so nobody can name it.
        for thing in found.into_iter().filter(|thing| !thing.name.is_empty()) {
            if thing.auto_delete && scope.named.contains(&ResourceName::new(kind, &thing.name)) {
                let why = "the broker itself removes it when nobody uses it any more (auto_delete)";
                look.notes.push(format!("{kind} {}: {why}", thing.name));
            }
            look.resources.push(thing.resource(kind));
        }
        Ok(())
    }

    async fn bindings(&self, scope: &Scope, look: &mut TopologyLook) -> Result<(), AdminFailure> {
        let kind = Kind::Binding;
        let found: Vec<Bound> = match self.ask(&self.path("bindings", &[])).await? {
            Ok(found) => found,
            Err(why) => {
                look.unseen.push(Unseen { kind, name: None, why });
                return Ok(());
            }
        };
        let mut by_name: BTreeMap<String, Vec<Resource>> = BTreeMap::new();
        for bound in found.iter().filter(|bound| bound.destination_type == QUEUE) {
            let binding = bound.resource();
            by_name.entry(binding.name.clone()).or_default().push(binding);
        }
        for (name, alike) in by_name {
            // A headers exchange may have several that differ in their arguments alone.
            if alike.len() > 1 && scope.named.contains(&ResourceName::new(kind, &name)) {
                let why = format!("{} bindings have this name, and other arguments", alike.len());
                look.unseen.push(Unseen { kind, name: Some(name), why });
                continue;
            }
            look.resources.extend(alike);
        }
        Ok(())
    }

    /// Makes one change.
    async fn send(&self, change: &TopologyChange) -> Sent {
        let resource = &change.resource;
        let part = |name: &str| resource.settings.get(name).map_or("", String::as_str);
        let names = match resource.kind {
            Kind::Binding => vec![part(EXCHANGE), part(QUEUE)],
            _ => vec![resource.name.as_str()],
        };
        if let Some(name) = names.iter().find(|name| !is_segment(name)) {
            return Sent::Refused(format!("the management API cannot name {name:?}"));
        }
        let (what, right) = match resource.kind {
            Kind::Exchange => ("exchanges", format!("configure exchange {:?}", resource.name)),
            Kind::Queue => ("queues", format!("configure queue {:?}", resource.name)),
            _ => {
                let [exchange, queue] = [part(EXCHANGE), part(QUEUE)];
                ("bindings", format!("read exchange {exchange:?} and write queue {queue:?}"))
            }
        };
        match (resource.kind, change.act) {
            (_, ChangeAct::Change) => Sent::Refused(format!("{}s cannot be changed in place", resource.kind)),
            (Kind::Binding, ChangeAct::Add) => {
                let path = self.path("bindings", &["e", part(EXCHANGE), "q", part(QUEUE)]);
                let body = json!({ "routing_key": part(ROUTING_KEY), "arguments": arguments(resource) });
                self.order(Method::POST, &path, Some(&body), &right).await
            }
            (Kind::Binding, ChangeAct::Remove) => self.unbind(resource, &right).await,
            (_, ChangeAct::Add) => {
                let path = self.path(what, &[&resource.name]);
                self.order(Method::PUT, &path, Some(&definition(resource)), &right).await
            }
            (_, ChangeAct::Remove) => {
                let path = self.path(what, &[&resource.name]);
                self.order(Method::DELETE, &path, None, &right).await
            }
        }
    }

    /// A binding is removed under a name that the broker gave it.
    async fn unbind(&self, binding: &Resource, right: &str) -> Sent {
        let part = |name: &str| binding.settings.get(name).map_or("", String::as_str);
        let found: Vec<Bound> = match self.ask(&self.path("bindings", &[])).await {
            Ok(Ok(found)) => found,
            Ok(Err(why)) => return Sent::Refused(why),
            Err(error) => return Sent::Refused(error.to_string()),
        };
        let same =
            |bound: &&Bound| bound.destination_type == QUEUE && bound.resource().settings == binding.settings;
        let Some(bound) = found.iter().find(same) else { return Sent::Done };
        let parts = ["e", part(EXCHANGE), "q", part(QUEUE), &bound.properties_key];
        self.order(Method::DELETE, &self.path("bindings", &parts), None, right).await
    }

    /// Sends a change. `right` is what a refusal of us means.
    async fn order(&self, method: Method, path: &str, body: Option<&Value>, right: &str) -> Sent {
        let is_removal = method == Method::DELETE;
        let reply = match self.management.call(method, path, body).await {
            Ok(reply) => reply,
            Err(ManagementError::Unreached(why)) => return Sent::Refused(why),
            Err(ManagementError::Lost(why)) => return Sent::Unanswered(why),
        };
        match reply.status {
            status if status.is_success() => Sent::Done,
            StatusCode::NOT_FOUND if is_removal => Sent::Done,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let identity = self.management.identity();
                Sent::Refused(format!("the right to {right} is missing for {identity}: {}", reply.words()))
            }
            status if status.is_server_error() => Sent::Unanswered(reply.words()),
            _ => Sent::Refused(reply.words()),
        }
    }
}

/// An empty table of arguments may be an empty list in JSON.
fn table(arguments: &Value) -> Settings {
    let given = arguments.as_object().into_iter().flatten();
    given.map(|(name, value)| (name.clone(), json_text(value))).collect()
}

impl Managed {
    fn resource(self, kind: Kind) -> Resource {
        let mut settings = table(&self.arguments);
        settings.remove(QUEUE_TYPE);
        settings.insert(TYPE.to_owned(), self.kind);
        settings.insert(DURABLE.to_owned(), self.durable.to_string());
        own(Resource::new(kind, self.name, settings))
    }
}

impl Bound {
    fn resource(&self) -> Resource {
        let name = binding_name(&self.source, &self.destination, &self.routing_key);
        let mut settings = table(&self.arguments);
        let ends = [(EXCHANGE, &self.source), (QUEUE, &self.destination), (ROUTING_KEY, &self.routing_key)];
        settings.extend(ends.map(|(key, value)| (key.to_owned(), value.clone())));
        own(Resource::new(Kind::Binding, name, settings))
    }
}

fn own(mut resource: Resource) -> Resource {
    resource.internal = is_of_broker(&resource);
    resource
}

/// The settings that are arguments.
fn arguments(resource: &Resource) -> Map<String, Value> {
    let own: &[&str] = match resource.kind {
        Kind::Binding => &[EXCHANGE, QUEUE, ROUTING_KEY],
        _ => &[TYPE, DURABLE],
    };
    let given = resource.settings.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    given.map(|(name, value)| (name.clone(), json_value(value))).collect()
}

/// An exchange or a queue as the API makes it.
fn definition(resource: &Resource) -> Value {
    let (kind, mut arguments) = (resource.settings.get(TYPE).cloned(), arguments(resource));
    let durable = resource.settings.get(DURABLE).is_none_or(|durable| durable == "true");
    match resource.kind {
        Kind::Exchange => {
            json!({ "type": kind, "durable": durable, "auto_delete": false, "arguments": arguments })
        }
        _ => {
            arguments.extend(kind.map(|kind| (QUEUE_TYPE.to_owned(), Value::String(kind))));
            json!({ "durable": durable, "auto_delete": false, "arguments": arguments })
        }
    }
}

impl Rules for RabbitmqAdmin {
    fn is_same(&self, kind: Kind, setting: &str, one: &str, other: &str) -> bool {
        RabbitmqRules.is_same(kind, setting, one, other)
    }

    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        RabbitmqRules.risk_of_adding(resource, look)
    }

    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk {
        RabbitmqRules.risk_of_setting(was, setting, to)
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        RabbitmqRules.risk_of_removing(resource)
    }
}

#[async_trait]
impl BrokerAdmin for RabbitmqAdmin {
    async fn look(&self, scope: &Scope) -> Result<TopologyLook, AdminFailure> {
        #[derive(Deserialize)]
        struct Overview {
            cluster_name: String,
            #[serde(default)]
            rabbitmq_version: String,
        }
        let overview: Overview = match self.ask("/api/overview").await? {
            Ok(overview) => overview,
            Err(why) => {
                let more = "the password is wrong, or the user has not the tag `management`";
                return Err(AdminFailure::Refused(format!("{}: {why}: {more}", self.management.address())));
            }
        };
        let Overview { cluster_name, rabbitmq_version } = overview;
        let identity = self.management.identity();
        let words = format!(
            "cluster {cluster_name}, version {rabbitmq_version}, virtual host {}, as {identity}",
            self.vhost
        );
        // Two virtual hosts of one cluster have nothing in common.
        let cluster = format!("{cluster_name}/{}", self.vhost);
        let mut look = TopologyLook { cluster, words, ..TopologyLook::default() };
        for kind in [Kind::Exchange, Kind::Queue] {
            if scope.kinds.contains(&kind) {
                self.things(kind, scope, &mut look).await?;
            }
        }
        if scope.kinds.contains(&Kind::Binding) {
            self.bindings(scope, &mut look).await?;
        }
        Ok(look)
    }

    /// The management API has no dry run.
    async fn validate(&self, _: &TopologyChange) -> Result<bool, AdminFailure> {
        Ok(false)
    }

    async fn apply(&self, changes: &[TopologyChange], _: &[WantedSecret]) -> Vec<Result<(), AdminFailure>> {
        let mut sent = Vec::new();
        for change in changes {
            sent.push(self.send(change).await);
        }
        read_back(self, changes, sent, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_tells_is_what_the_file_says() {
        let queue: Managed = serde_json::from_value(json!({
            "name": "billing", "type": "quorum", "durable": true, "auto_delete": false, "node": "x",
            "arguments": { "x-queue-type": "quorum", "x-delivery-limit": 20, "x-dead-letter-exchange": "7" },
        }))
        .expect("a queue");
        let queue = queue.resource(Kind::Queue);
        let expected = [
            ("durable", "true"),
            ("type", "quorum"),
            ("x-dead-letter-exchange", "\"7\""),
            ("x-delivery-limit", "20"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(queue.settings, expected.into());
        let arguments =
            json!({ "x-queue-type": "quorum", "x-delivery-limit": 20, "x-dead-letter-exchange": "7" });
        let made = json!({ "durable": true, "auto_delete": false, "arguments": arguments });
        assert_eq!(definition(&queue), made);
        let bound: Bound = serde_json::from_value(json!({
            "source": "events", "vhost": "/", "destination": "billing", "destination_type": "queue",
            "routing_key": "20", "arguments": [], "properties_key": "20",
        }))
        .expect("a binding");
        let binding = bound.resource();
        assert_eq!((binding.name.as_str(), binding.internal), ("events/billing/20", false));
        assert_eq!(binding.settings.get(ROUTING_KEY).map(String::as_str), Some("20"), "a text as it is");
        assert!(super::arguments(&binding).is_empty());
    }

    #[tokio::test]
    async fn what_cannot_work_is_said_before_anybody_is_asked() {
        let config = RabbitmqConfig::new("amqp://h");
        let option =
            |config: &RabbitmqConfig, at| RabbitmqAdmin::start(config, at).expect_err("wrong").option_name();
        assert_eq!(option(&config, None), "management_url");
        assert_eq!(option(&config, Some("h")), "management_url");
        assert_eq!(option(&RabbitmqConfig::new("amqp://h/.."), Some("http://h")), "url");
        let error = RabbitmqAdmin::start(&config, None).expect_err("missing").to_string();
        assert!(error.contains("is missing: bindings cannot be seen over AMQP"), "{error}");
    }
}
