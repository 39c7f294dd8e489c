//! JetStream's streams as an administrator sees them.
//!
//! Questions and changes are JetStream's own API, as raw JSON. A change reads the whole configuration of a
//! stream, replaces the keys that are named and sends it back. So keys of newer servers survive, whether or
//! not anybody here knows them. The types of async-nats were refused for that reason.
//!
//! What is asked: the names of all streams and the configuration of those that are named, or everything by
//! pages. A right that is missing hides what it is about, and nothing else.

mod rules;

use super::NatsConfig;
use super::client::link::{self, NatsLink};
use super::client::session::Session;
use super::client::streams::{AskError, ask_api, is_name};
use crate::BuildError;
use crate::topology::{
    AdminFailure, BrokerAdmin, ChangeAct, Kind, Resource, Risk, Rules, Scope, Sent, TopologyChange,
    TopologyLook, Unseen, WantedSecret, json_text, json_value, read_back,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use rules::{NatsRules, OF_SERVER};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long the first answer of any server may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a question or a change may take. Streams with replicas are made by several servers.
const ANSWER: Duration = Duration::from_secs(10);
/// Questions about streams that are under way together.
const ASKED_AT_ONCE: usize = 16;
/// More streams than any server has. A list that goes on for ever must end.
const STREAMS_MAX: usize = 1_000_000;
/// JetStream's number for a stream that is not there.
const STREAM_NOT_FOUND: u32 = 10_059;
/// JetStream's numbers for a leader that is not there just now. The request may have been passed on.
const NO_LEADER: [u32; 2] = [10_008, 10_009];
/// Keys that servers leave out while they have these values.
const LEFT_OUT: [(&str, &str); 9] = [
    ("allow_atomic", "false"),
    ("allow_batched", "false"),
    ("allow_msg_counter", "false"),
    ("allow_msg_schedules", "false"),
    ("allow_msg_ttl", "false"),
    ("description", ""),
    ("no_ack", "false"),
    ("persist_mode", "default"),
    ("subject_delete_marker_ttl", "0"),
];

/// A server, or a cluster, as its administrator sees it.
#[derive(Debug)]
pub(crate) struct NatsAdmin {
    link: NatsLink,
}

/// The configuration of a stream, as it is.
type StreamKeys = Map<String, Value>;

#[derive(Deserialize)]
struct StreamAnswer {
    config: StreamKeys,
}

/// A part of a list.
#[derive(Deserialize)]
struct StreamPage<T> {
    #[serde(default)]
    total: usize,
    streams: Option<Vec<T>>,
    /// Streams of the cluster whose servers did not answer.
    missing: Option<Vec<String>>,
}

impl NatsAdmin {
    /// Begins to connect. A server that is down is no error.
    pub(crate) fn start(config: &NatsConfig) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self { link: link::start(config.clone(), servers, "topology") })
    }

    async fn session(&self) -> Result<Arc<Session>, AdminFailure> {
        let session = self.link.session_if_any(CONNECT_WAIT).await;
        session.map_err(|failure| AdminFailure::Unreachable(failure.message.to_string()))
    }

    /// Everything that is there.
    async fn all(&self, session: &Arc<Session>, look: &mut TopologyLook) -> Result<(), AdminFailure> {
        const LIST: &str = "$JS.API.STREAM.LIST";
        match pages::<StreamAnswer>(session, LIST).await {
            Ok((streams, missing)) => {
                // A stream that was made meanwhile may have moved others to the next page.
                let streams: BTreeMap<String, Resource> =
                    streams.into_iter().filter_map(|found| resource(found.config)).collect();
                look.resources.extend(streams.into_values());
                look.unseen.extend(missing.into_iter().map(|name| {
                    let why = "the servers that have it do not answer".to_owned();
                    Unseen { kind: Kind::Stream, name: Some(name), why }
                }));
            }
            Err(error) => look.unseen.push(unseen(session, None, LIST, error)?),
        }
        Ok(())
    }

    /// The configuration of the streams that are named, and the names of all others.
    async fn named(
        &self,
        session: &Arc<Session>,
        scope: &Scope,
        look: &mut TopologyLook,
    ) -> Result<(), AdminFailure> {
        const NAMES: &str = "$JS.API.STREAM.NAMES";
        let mut found = BTreeMap::new();
        match pages::<String>(session, NAMES).await {
            Ok((names, _)) => {
                let bare = |name: String| (name.clone(), Resource::new(Kind::Stream, name, BTreeMap::new()));
                found.extend(names.into_iter().map(bare));
            }
            // Whoever may only ask about streams by name can still compare those.
            Err(AskError::Denied) => {
                look.notes.push(format!("streams of others are not counted: {}", lacks(session, NAMES)));
            }
            Err(error) => {
                look.unseen.push(unseen(session, None, NAMES, error)?);
                return Ok(());
            }
        }
        let names: Vec<String> = scope
            .named
            .iter()
            .filter(|name| name.kind == Kind::Stream)
            .map(|name| name.name.clone())
            .collect();
        let asked = names.into_iter().map(|name| {
            let session = Arc::clone(session);
            async move { (info(&session, &name).await, name) }
        });
        let mut answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        while let Some((answer, name)) = answers.next().await {
            match answer {
                Ok(Some(config)) => found.extend(resource(config)),
                Ok(None) => drop(found.remove(&name)),
                Err(error) => {
                    look.unseen.push(unseen(session, Some(&name), &about("INFO", &name), error)?);
                }
            }
        }
        look.resources.extend(found.into_values());
        Ok(())
    }

    /// Makes one change.
    async fn send(&self, session: &Arc<Session>, change: &TopologyChange) -> Sent {
        let name = &change.resource.name;
        let (verb, body) = match change.act {
            _ if !is_stream_name(name) => return Sent::Refused(format!("{name:?} is no name of a stream")),
            ChangeAct::Add => {
                let mut config: StreamKeys =
                    change.resource.settings.iter().map(|(key, to)| (key.clone(), json_value(to))).collect();
                config.insert("name".to_owned(), Value::String(name.clone()));
                ("CREATE", Value::Object(config).to_string())
            }
            ChangeAct::Change => match info(session, name).await {
                Ok(Some(mut config)) => {
                    replace(&mut config, change);
                    ("UPDATE", Value::Object(config).to_string())
                }
                Ok(None) => return Sent::Refused("it is not there any more".to_owned()),
                Err(AskError::Denied) => return Sent::Refused(lacks(session, &about("INFO", name))),
                Err(error) => return Sent::Refused(error.to_string()),
            },
            ChangeAct::Remove => ("DELETE", String::new()),
        };
        let subject = about(verb, name);
        match ask_api::<Value>(session, &subject, &body, ANSWER).await {
            Ok(_) => Sent::Done,
            Err(AskError::Denied) => Sent::Refused(lacks(session, &subject)),
            Err(AskError::Refused(error)) if NO_LEADER.contains(&error.err_code) => {
                Sent::Unanswered(error.description)
            }
            Err(AskError::Refused(error))
                if change.act == ChangeAct::Remove && error.err_code == STREAM_NOT_FOUND =>
            {
                Sent::Done
            }
            Err(AskError::NoAnswer(why)) => Sent::Unanswered(why),
            Err(error @ (AskError::Refused(_) | AskError::NoJetStream)) => Sent::Refused(error.to_string()),
        }
    }
}

/// The subject of a question about one stream, or of a change of it.
fn about(verb: &str, name: &str) -> String {
    format!("$JS.API.STREAM.{verb}.{name}")
}

/// Whether a name can stand in a subject without being another one.
fn is_stream_name(name: &str) -> bool {
    is_name(name) && !name.contains(['.', '*', '>'])
}

/// The right that we lack, and who we are.
fn lacks(session: &Session, subject: &str) -> String {
    format!("the right to publish to {subject} is missing for {}", session.identity)
}

/// Why something cannot be seen. That nobody answers is an error of everything.
fn unseen(
    session: &Session,
    name: Option<&str>,
    subject: &str,
    error: AskError,
) -> Result<Unseen, AdminFailure> {
    let why = match error {
        AskError::NoAnswer(why) => return Err(AdminFailure::Unreachable(format!("{subject}: {why}"))),
        AskError::Denied => lacks(session, subject),
        other => other.to_string(),
    };
    Ok(Unseen { kind: Kind::Stream, name: name.map(str::to_owned), why })
}

/// All pages of a list, and the names of what is missing in it.
async fn pages<T: DeserializeOwned>(
    session: &Arc<Session>,
    subject: &str,
) -> Result<(Vec<T>, BTreeSet<String>), AskError> {
    let (mut found, mut missing, mut offset) = (Vec::new(), BTreeSet::new(), 0);
    while offset < STREAMS_MAX {
        let body = json!({ "offset": offset }).to_string();
        let page: StreamPage<T> = ask_api(session, subject, &body, ANSWER).await?;
        let (streams, gone) = (page.streams.unwrap_or_default(), page.missing.unwrap_or_default());
        let count = streams.len() + gone.len();
        offset += count;
        found.extend(streams);
        missing.extend(gone);
        if count == 0 || offset >= page.total {
            return Ok((found, missing));
        }
    }
    Err(AskError::NoAnswer(format!("more than {STREAMS_MAX} streams")))
}

/// The configuration of a stream, if it is there.
async fn info(session: &Arc<Session>, name: &str) -> Result<Option<StreamKeys>, AskError> {
    if !is_stream_name(name) {
        return Ok(None);
    }
    match ask_api::<StreamAnswer>(session, &about("INFO", name), "", ANSWER).await {
        Ok(found) => Ok(Some(found.config)),
        Err(AskError::Refused(error)) if error.err_code == STREAM_NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

/// A stream as a resource, under its name.
fn resource(mut config: StreamKeys) -> Option<(String, Resource)> {
    let Some(Value::String(name)) = config.remove("name") else { return None };
    if let Some(Value::Object(metadata)) = config.get_mut("metadata") {
        metadata.retain(|key, _| !key.starts_with(OF_SERVER));
    }
    let mut found = Resource::new(Kind::Stream, name.clone(), BTreeMap::new());
    for (key, value) in config.into_iter().filter(|(_, value)| !value.is_null()) {
        if is_default(&value) {
            found.defaults.insert(key.clone());
        }
        found.settings.insert(key, json_text(&value));
    }
    // MQTT's sessions and messages are in streams that the server makes for itself.
    found.internal = name.starts_with("$MQTT_");
    for (key, value) in LEFT_OUT {
        if !found.settings.contains_key(key) {
            found.settings.insert(key.to_owned(), value.to_owned());
            found.defaults.insert(key.to_owned());
        }
    }
    Some((name, found))
}

/// Whether a stream has this value if nobody has asked for another. Servers write most of these out.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_i64() == Some(-1),
        Value::Object(keys) => keys.is_empty(),
        Value::String(text) => text == "none",
        Value::Null | Value::Array(_) => false,
    }
}

/// Puts the settings that differ into a configuration, and leaves everything else as it is.
fn replace(config: &mut StreamKeys, change: &TopologyChange) {
    for setting in &change.settings {
        match &setting.to {
            Some(to) => config.insert(setting.name.clone(), json_value(to)),
            None => config.remove(&setting.name),
        };
    }
}

impl Rules for NatsAdmin {
    fn is_same(&self, kind: Kind, setting: &str, one: &str, other: &str) -> bool {
        NatsRules.is_same(kind, setting, one, other)
    }

    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        NatsRules.risk_of_adding(resource, look)
    }

    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk {
        NatsRules.risk_of_setting(was, setting, to)
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        NatsRules.risk_of_removing(resource)
    }
}

#[async_trait]
impl BrokerAdmin for NatsAdmin {
    async fn look(&self, scope: &Scope) -> Result<TopologyLook, AdminFailure> {
        let session = self.session().await?;
        let info = &session.info;
        let cluster = info.cluster.clone().filter(|name| !name.is_empty());
        // A server alone has one copy of everything. How many a cluster has, nobody says.
        let servers = (cluster.is_none() && info.jetstream).then_some(1);
        let what = match &cluster {
            Some(cluster) => format!("cluster {cluster}"),
            // Then it has drawn one, which nobody knows.
            None if info.server_name == info.server_id => "server without a name".to_owned(),
            None => format!("server {}", info.server_name),
        };
        let words = format!("{what}, version {}, as {}", info.version, session.identity);
        let cluster = cluster.unwrap_or_else(|| info.server_name.clone());
        let mut look = TopologyLook { cluster, words, servers, ..TopologyLook::default() };
        if scope.kinds.contains(&Kind::Stream) && scope.everything {
            self.all(&session, &mut look).await?;
        } else if scope.kinds.contains(&Kind::Stream) {
            self.named(&session, scope, &mut look).await?;
        }
        Ok(look)
    }

    /// JetStream has no dry run.
    async fn validate(&self, _: &TopologyChange) -> Result<bool, AdminFailure> {
        Ok(false)
    }

    async fn apply(&self, changes: &[TopologyChange], _: &[WantedSecret]) -> Vec<Result<(), AdminFailure>> {
        let mut sent = Vec::new();
        for change in changes {
            sent.push(match self.session().await {
                Ok(session) => self.send(&session, change).await,
                Err(error) => Sent::Refused(error.to_string()),
            });
        }
        read_back(self, changes, sent, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::SettingChange;

    fn keys(value: Value) -> StreamKeys {
        let Value::Object(keys) = value else { panic!("{value}") };
        keys
    }

    #[test]
    fn only_named_keys_are_replaced_and_numbers_stay_numbers() {
        let before =
            json!({ "name": "S", "max_age": 0, "storage": "file", "of_tomorrow": { "a": [1, "2"] } });
        let setting = |name: &str, to: &str| SettingChange {
            name: name.to_owned(),
            was: None,
            to: Some(to.to_owned()),
            risk: Risk::Plain,
        };
        let settings = vec![
            setting("max_age", "5000000000"),
            setting("subjects", r#"["a","b"]"#),
            setting("description", "\"7\""),
            setting("discard", "new"),
        ];
        let (_, resource) = resource(keys(before.clone())).expect("a stream");
        let change = TopologyChange { act: ChangeAct::Change, resource, settings, risk: Risk::Plain };
        let mut config = keys(before);
        replace(&mut config, &change);
        let after = json!({
            "name": "S", "max_age": 5_000_000_000_u64, "storage": "file", "of_tomorrow": { "a": [1, "2"] },
            "subjects": ["a", "b"], "description": "7", "discard": "new",
        });
        assert_eq!(Value::Object(config), after);
    }

    #[test]
    fn what_servers_leave_out_is_known_as_a_default() {
        let (name, found) = resource(keys(json!({
            "name": "S", "num_replicas": 3, "allow_msg_ttl": true, "mirror": null, "max_msgs": -1,
            "sealed": false, "consumer_limits": {}, "metadata": { "_nats.req.level": "0", "team": "shop" },
        })))
        .expect("a stream");
        assert_eq!(found.settings.get("metadata").map(String::as_str), Some(r#"{"team":"shop"}"#));
        for key in ["max_msgs", "sealed", "consumer_limits"] {
            assert!(found.defaults.contains(key), "{key}");
        }
        assert!(!found.defaults.contains("num_replicas") && !found.defaults.contains("metadata"));
        let setting = |key: &str| found.settings.get(key).map(String::as_str);
        assert_eq!((name.as_str(), setting("num_replicas"), setting("mirror")), ("S", Some("3"), None));
        assert_eq!((setting("allow_msg_ttl"), setting("allow_atomic")), (Some("true"), Some("false")));
        assert!(found.defaults.contains("allow_atomic") && !found.defaults.contains("allow_msg_ttl"));
        assert!(setting("name").is_none() && !found.internal);
        assert_eq!(resource(keys(json!({ "num_replicas": 3 }))), None);
    }

    #[test]
    fn a_name_is_one_part_of_a_subject() {
        assert!(is_stream_name("ORDERS") && is_stream_name("ORDERS-1_ü"));
        for name in ["", "a.b", "*", ">", "a b", "a\r\nPUB x 0\r\n"] {
            assert!(!is_stream_name(name), "{name:?}");
        }
    }
}
