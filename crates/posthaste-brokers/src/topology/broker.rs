//! From the words of files to what is wanted of each broker.
//!
//! Every mistake is found before any broker is asked, and each has its place: the path of the table that it
//! stands in. Whoever read the file knows its line.

use super::file::{PrincipalTable, TopologyFile};
use super::words::{acl, binding, exchange, principal, principal_name, queue, stream, topic, user};
use super::{Kind, WantedResource, WantedSecret};
use crate::{SinkConfig, Urls};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A broker of the file.
#[derive(Debug, Clone)]
pub struct BrokerTable {
    /// Its name in the file.
    pub name: String,
    /// Its `type`.
    pub kind: String,
    /// How to reach it: the keys of a sink.
    pub config: SinkConfig,
    /// Where the passwords of users are tried.
    pub sasl_url: Option<Urls>,
    /// Where its management listens.
    pub management_url: Option<String>,
}

/// Keys of a broker's table that a sink has not.
const MORE_KEYS: [&str; 2] = ["sasl_url", "management_url"];

impl BrokerTable {
    /// The keys that only an administrator's table has.
    #[must_use]
    pub fn more_keys() -> &'static [&'static str] {
        &MORE_KEYS
    }

    /// Whether there is anything to set up at a broker of this kind.
    ///
    /// # Errors
    ///
    /// Says why there is not.
    pub fn check_kind(&self) -> Result<(), String> {
        match self.kind.as_str() {
            "kafka" | "nats" | "rabbitmq" => Ok(()),
            other => Err(super::needs_nothing(other)),
        }
    }

    /// Takes the administrator's keys out of a table. What is left is a sink's.
    ///
    /// # Errors
    ///
    /// Names the key and what is wrong with it.
    pub fn split(table: &mut Map<String, Value>) -> Result<(Option<Urls>, Option<String>), (String, String)> {
        let wrong = |key: &str| (key.to_owned(), "must be a string".to_owned());
        let sasl = table.remove(MORE_KEYS[0]).map(serde_json::from_value).transpose();
        let management = table.remove(MORE_KEYS[1]).map(serde_json::from_value).transpose();
        Ok((sasl.map_err(|_| wrong(MORE_KEYS[0]))?, management.map_err(|_| wrong(MORE_KEYS[1]))?))
    }
}

/// What is wanted of one broker.
#[derive(Debug, Clone, Default)]
pub struct BrokerTopology {
    /// All of it.
    pub wanted: Vec<WantedResource>,
    /// Principals that have no other rights.
    pub exclusive: BTreeSet<String>,
    /// Passwords of users.
    pub secrets: Vec<WantedSecret>,
}

/// What is wrong with a file, or strange in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblem {
    /// Which of the files, by its number.
    pub file: usize,
    /// The path of the key.
    pub path: String,
    /// What is wrong.
    pub text: String,
    /// It is only strange.
    pub is_warning: bool,
}

/// What is wanted of each broker, by the files together.
#[must_use]
pub fn resolve(
    files: &[TopologyFile],
    brokers: &[BrokerTable],
) -> (BTreeMap<String, BrokerTopology>, Vec<FileProblem>) {
    let mut resolver = Resolver {
        brokers,
        file: 0,
        found: BTreeMap::new(),
        problems: Vec::new(),
        seen: HashMap::new(),
        rights: HashSet::new(),
    };
    for (number, file) in files.iter().enumerate() {
        resolver.file = number;
        resolver.add(file);
    }
    (resolver.found, resolver.problems)
}

struct Resolver<'a> {
    brokers: &'a [BrokerTable],
    file: usize,
    found: BTreeMap<String, BrokerTopology>,
    problems: Vec<FileProblem>,
    /// Where each resource was wanted first.
    seen: HashMap<(String, Kind, String), (usize, String)>,
    /// Rights that are given already, with their broker.
    rights: HashSet<(String, WantedResource)>,
}

/// What a table yields, or the key that is wrong and why.
pub(super) type Read<T> = Result<T, (&'static str, String)>;

impl<'a> Resolver<'a> {
    fn add(&mut self, file: &TopologyFile) {
        for (number, table) in file.topic.iter().enumerate() {
            let table = table.clone().or(&file.topic_defaults);
            self.table("kafka", Kind::Topic, number, &table.broker, |broker, _| topic(broker, &table));
        }
        for (number, table) in file.user.iter().enumerate() {
            self.table("kafka", Kind::User, number, &table.broker, |_, found| user(table, found));
        }
        for (number, table) in file.principal.iter().enumerate() {
            self.principal(number, table);
        }
        for (number, table) in file.acl.iter().enumerate() {
            self.rights(&format!("acl[{number}]"), &table.broker, |_| acl(table));
        }
        for (number, table) in file.stream.iter().enumerate() {
            self.table("nats", Kind::Stream, number, &table.broker, |_, _| stream(table));
        }
        for (number, table) in file.exchange.iter().enumerate() {
            self.table("rabbitmq", Kind::Exchange, number, &table.broker, |_, _| exchange(table));
        }
        for (number, table) in file.queue.iter().enumerate() {
            self.table("rabbitmq", Kind::Queue, number, &table.broker, |_, _| queue(table));
        }
        for (number, table) in file.binding.iter().enumerate() {
            self.table("rabbitmq", Kind::Binding, number, &table.broker, |_, _| binding(table));
        }
    }

    /// Reads one table into one resource.
    fn table(
        &mut self,
        kind_of_broker: &'static str,
        kind: Kind,
        number: usize,
        broker: &Option<String>,
        read: impl FnOnce(&BrokerTable, &mut BrokerTopology) -> Read<WantedResource>,
    ) {
        let path = format!("{kind}[{number}]");
        let Some(broker) = self.broker(kind_of_broker, &path, broker.as_deref()) else { return };
        let name = broker.name.clone();
        match read(broker, self.found.entry(name.clone()).or_default()) {
            Ok(wanted) => self.want(name, &path, wanted),
            Err((key, text)) => self.problem(&member(&path, key), text, false),
        }
    }

    fn want(&mut self, broker: String, path: &str, wanted: WantedResource) {
        if wanted.name.chars().any(char::is_control) || wanted.name.is_empty() {
            let text = "a name is not empty and has no control characters".to_owned();
            return self.problem(&member(path, "name"), text, false);
        }
        let key = (broker.clone(), wanted.kind, wanted.name.clone());
        if let Some((file, first)) = self.seen.insert(key, (self.file, path.to_owned())) {
            let text = format!("{} `{}` is described twice", wanted.kind, wanted.name);
            let more = if file == self.file { format!(", first in `{first}`") } else { String::new() };
            return self.problem(path, format!("{text}{more}: keep one of them"), false);
        }
        self.found.entry(broker).or_default().wanted.push(wanted);
    }

    fn principal(&mut self, number: usize, table: &PrincipalTable) {
        let path = format!("principal[{number}]");
        if !table.read.is_empty() && table.groups.is_empty() {
            let text = format!("`{}` may read and is in no group: a consumer needs one", table.name);
            self.problem(&path, text, true);
        }
        let key = (table.broker.clone().unwrap_or_default(), Kind::Acl, principal_name(&table.name));
        if let Some((_, first)) = self.seen.insert(key, (self.file, path.clone())) {
            let text = format!("principal `{}` is described twice, first in `{first}`", table.name);
            return self.problem(&path, text, false);
        }
        let exclusive = table.exclusive;
        self.rights(&path, &table.broker, |found| {
            if exclusive {
                found.exclusive.insert(principal_name(&table.name));
            }
            principal(table)
        });
    }

    /// Reads one table into rights. The same right may be given by several tables.
    fn rights(
        &mut self,
        path: &str,
        broker: &Option<String>,
        read: impl FnOnce(&mut BrokerTopology) -> Read<Vec<WantedResource>>,
    ) {
        let Some(broker) = self.broker("kafka", path, broker.as_deref()) else { return };
        let found = self.found.entry(broker.name.clone()).or_default();
        match read(found) {
            Ok(rights) => {
                for right in rights {
                    if self.rights.insert((broker.name.clone(), right.clone())) {
                        found.wanted.push(right);
                    }
                }
            }
            Err((key, text)) => self.problem(&member(path, key), text, false),
        }
    }

    /// The broker that a table means: the one it names, or the only one that fits.
    fn broker(&mut self, kind: &'static str, path: &str, name: Option<&str>) -> Option<&'a BrokerTable> {
        let brokers = self.brokers;
        let fitting: Vec<&BrokerTable> = brokers.iter().filter(|broker| broker.kind == kind).collect();
        let names = || fitting.iter().map(|broker| broker.name.as_str()).collect::<Vec<_>>().join(", ");
        let text = match name {
            Some(name) => match brokers.iter().find(|broker| broker.name == name) {
                Some(broker) if broker.kind == kind => return Some(broker),
                Some(broker) => format!("broker `{name}` is {}, and this needs {kind}", broker.kind),
                None => format!("there is no broker `{name}`; of {kind} there are: {}", names()),
            },
            None => match fitting.as_slice() {
                [broker] => return Some(broker),
                [] => format!("there is no broker of type {kind}: add [brokers.NAME] with type = \"{kind}\""),
                _ => format!("several brokers fit; say broker = one of: {}", names()),
            },
        };
        self.problem(&member(path, "broker"), text, false);
        None
    }

    fn problem(&mut self, path: &str, text: String, is_warning: bool) {
        self.problems.push(FileProblem { file: self.file, path: path.to_owned(), text, is_warning });
    }
}

fn member(path: &str, key: &str) -> String {
    if key.is_empty() { path.to_owned() } else { format!("{path}.{key}") }
}
