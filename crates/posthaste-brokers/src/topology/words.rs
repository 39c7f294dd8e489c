//! What each table of the file asks for, in the broker's own words.

use super::broker::{BrokerTable, BrokerTopology, Read};
use super::file::{
    AclPattern, AclResource, AclTable, BindingTable, ExchangeTable, OrDefault, Permission, PrincipalTable,
    QueueTable, ScramMechanism, StreamTable, TopicTable, UserTable,
};
use super::json::json_text;
use super::{Kind, WantedResource, WantedSecret, duration_ms, size_bytes};
use crate::Secret;
use serde_json::Value;
use std::collections::BTreeMap;

fn wanted(kind: Kind, name: impl Into<String>, settings: BTreeMap<String, Option<String>>) -> WantedResource {
    WantedResource { kind, name: name.into(), settings }
}

/// `-1` is Kafka's word for no end.
fn endless(number: Option<u64>) -> String {
    number.map_or_else(|| "-1".to_owned(), |number| number.to_string())
}

pub(super) fn topic(broker: &BrokerTable, table: &TopicTable) -> Read<WantedResource> {
    broker.config.check_destination(&table.name).map_err(|why| ("name", why))?;
    let needed = |given: Option<u64>, key| match given {
        Some(number) if number > 0 => Ok(Some(number.to_string())),
        Some(_) => Err((key, "must be 1 at least".to_owned())),
        None => Err(("", format!("topic `{}` needs {key}, here or in topic_defaults", table.name))),
    };
    let mut settings = BTreeMap::new();
    settings.insert("partitions".to_owned(), needed(table.partitions.map(u64::from), "partitions")?);
    settings.insert("replicas".to_owned(), needed(table.replicas.map(u64::from), "replicas")?);
    if let (Some(OrDefault::Is(least)), Some(replicas)) = (&table.min_insync_replicas, table.replicas)
        && *least > replicas
    {
        let why = format!("{least} replicas in sync cannot be had of {replicas}: nothing would be accepted");
        return Err(("min_insync_replicas", why));
    }
    let text = |given: &Option<OrDefault<String>>, read: &dyn Fn(&str) -> Result<String, String>| {
        given.as_ref().map(|given| match given {
            OrDefault::Is(text) => read(text).map(Some),
            OrDefault::Default => Ok(None),
        })
    };
    let duration = |text: &str| duration_ms(text).map(endless);
    let size = |text: &str| size_bytes(text).map(endless);
    let same = |text: &str| Ok(text.to_owned());
    let words = [
        ("retention", "retention.ms", text(&table.retention, &duration)),
        ("retention_size", "retention.bytes", text(&table.retention_size, &size)),
        ("max_message_size", "max.message.bytes", text(&table.max_message_size, &size)),
        ("compression", "compression.type", text(&table.compression, &compression)),
        ("cleanup", "cleanup.policy", text(&table.cleanup, &same)),
        ("min_insync_replicas", "min.insync.replicas", number(table.min_insync_replicas.as_ref())),
        (
            "unclean_leader_election",
            "unclean.leader.election.enable",
            number(table.unclean_leader_election.as_ref()),
        ),
    ];
    for (key, name, value) in words {
        if let Some(value) = value {
            settings.insert(name.to_owned(), value.map_err(|why| (key, why))?);
        }
    }
    for (name, value) in &table.settings {
        if settings.insert(name.clone(), value.text()).is_some() {
            return Err(("settings", format!("`{name}` is said twice: once as a word, once in settings")));
        }
    }
    Ok(wanted(Kind::Topic, table.name.clone(), settings))
}

fn number<T: ToString>(given: Option<&OrDefault<T>>) -> Option<Result<Option<String>, String>> {
    given.map(|given| match given {
        OrDefault::Is(value) => Ok(Some(value.to_string())),
        OrDefault::Default => Ok(None),
    })
}

fn compression(text: &str) -> Result<String, String> {
    const KNOWN: [&str; 6] = ["producer", "none", "gzip", "snappy", "lz4", "zstd"];
    match text {
        "none" => Ok("uncompressed".to_owned()),
        known if KNOWN.contains(&known) => Ok(known.to_owned()),
        _ => Err(format!("`{text}` is no compression: {}", KNOWN.join(", "))),
    }
}

pub(super) fn user(table: &UserTable, found: &mut BrokerTopology) -> Read<WantedResource> {
    if !(4_096..=16_384).contains(&table.iterations) {
        return Err(("iterations", "must be between 4096 and 16384".to_owned()));
    }
    let password = Secret::read(table.password.as_ref(), table.password_file.as_ref(), "password_file");
    let password = password.map_err(|error| ("password_file", error.to_string()))?;
    let missing = || ("", format!("user `{}` has no password: say password_file", table.name));
    let password = password.filter(|password| !password.expose().is_empty()).ok_or_else(missing)?;
    let mechanism = match table.mechanism {
        ScramMechanism::Sha256 => "scram-sha-256",
        ScramMechanism::Sha512 => "scram-sha-512",
    };
    found.secrets.push(WantedSecret { user: table.name.clone(), mechanism: mechanism.to_owned(), password });
    let settings = [
        (mechanism.to_owned(), Some(table.iterations.to_string())),
        (super::PASSWORD.to_owned(), Some(super::PASSWORD_AS_WANTED.to_owned())),
    ];
    Ok(wanted(Kind::User, table.name.clone(), settings.into()))
}

/// `User:` and a name. A name that has it already keeps it.
pub(super) fn principal_name(name: &str) -> String {
    if name.starts_with("User:") { name.to_owned() } else { format!("User:{name}") }
}

/// A right, as Kafka has it.
fn right(
    principal: &str,
    permission: Permission,
    operation: &str,
    resource: AclResource,
    (pattern, name): (&str, &str),
    host: &str,
) -> WantedResource {
    let permission = match permission {
        Permission::Allow => "ALLOW",
        Permission::Deny => "DENY",
    };
    let resource = match resource {
        AclResource::Topic => "TOPIC",
        AclResource::Group => "GROUP",
        AclResource::Cluster => "CLUSTER",
        AclResource::TransactionalId => "TRANSACTIONAL_ID",
    };
    let settings = [
        ("permission", permission),
        ("operation", operation),
        ("resource", resource),
        ("pattern", pattern),
        ("on", name),
        ("host", host),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), Some(value.to_owned())));
    wanted(Kind::Acl, principal_name(principal), settings.into())
}

/// `x*` is all that begins with x. `*` alone is Kafka's own word for all.
fn pattern(name: &str) -> (&str, &str) {
    match name.strip_suffix('*') {
        Some(start) if !start.is_empty() => ("PREFIXED", start),
        _ => ("LITERAL", name),
    }
}

pub(super) fn principal(table: &PrincipalTable) -> Read<Vec<WantedResource>> {
    // READ and WRITE include DESCRIBE at the broker.
    let words: [(&'static str, &Vec<String>, AclResource, &[&str]); 5] = [
        ("read", &table.read, AclResource::Topic, &["READ"]),
        ("write", &table.write, AclResource::Topic, &["WRITE"]),
        ("describe_configs", &table.describe_configs, AclResource::Topic, &["DESCRIBE_CONFIGS"]),
        ("groups", &table.groups, AclResource::Group, &["READ"]),
        ("transactional_ids", &table.transactional_ids, AclResource::TransactionalId, &["WRITE"]),
    ];
    let mut rights = Vec::new();
    for (key, names, resource, operations) in words {
        for name in names {
            checked(key, name)?;
            for operation in operations {
                let on = pattern(name);
                rights.push(right(&table.name, Permission::Allow, operation, resource, on, "*"));
            }
        }
    }
    checked("name", &table.name)?;
    Ok(rights)
}

fn checked(key: &'static str, name: &str) -> Read<()> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err((key, "a name is not empty and has no control characters".to_owned()));
    }
    Ok(())
}

pub(super) fn acl(table: &AclTable) -> Read<Vec<WantedResource>> {
    const OPERATIONS: [&str; 11] = [
        "ALL",
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ];
    checked("principal", &table.principal)?;
    let name = match (&table.name, table.resource) {
        (None, AclResource::Cluster) => "kafka-cluster",
        (Some(name), AclResource::Cluster) if name != "kafka-cluster" => {
            return Err(("name", "the cluster has one name, kafka-cluster: leave it out".to_owned()));
        }
        (Some(name), _) => name,
        (None, _) => return Err(("name", "is missing: which ones? `*` is all".to_owned())),
    };
    checked("name", name)?;
    if table.operations.is_empty() {
        return Err(("operations", "must name one at least".to_owned()));
    }
    let mut rights = Vec::new();
    for operation in &table.operations {
        let operation = operation.to_ascii_uppercase();
        if !OPERATIONS.contains(&operation.as_str()) {
            return Err(("operations", format!("`{operation}` is none: {}", OPERATIONS.join(", "))));
        }
        let host = table.host.as_deref().unwrap_or("*");
        let on = match table.pattern {
            Some(AclPattern::Literal) => ("LITERAL", name),
            Some(AclPattern::Prefixed) => ("PREFIXED", name),
            None => pattern(name),
        };
        rights.push(right(&table.principal, table.permission, &operation, table.resource, on, host));
    }
    Ok(rights)
}

pub(super) fn stream(table: &StreamTable) -> Read<WantedResource> {
    if table.name.contains(['.', '*', '>', '/', '\\']) || table.name.contains(char::is_whitespace) {
        return Err(("name", "a stream's name has no dot, star, >, slash or white space".to_owned()));
    }
    if table.subjects.is_empty() {
        return Err(("subjects", "must name one at least".to_owned()));
    }
    let one_of = |key: &'static str, given: &Option<String>, known: &[&str]| match given {
        Some(word) if !known.contains(&word.as_str()) => {
            Err((key, format!("`{word}` is none: {}", known.join(", "))))
        }
        other => Ok(other.clone()),
    };
    // JetStream counts nanoseconds; 0 is no end of an age, -1 no bound of a size.
    let age = |key: &'static str, given: &Option<String>| match given {
        None => Ok(None),
        Some(text) => {
            let ms = duration_ms(text).map_err(|why| (key, why))?.unwrap_or(0);
            let nanos = ms.checked_mul(1_000_000).filter(|nanos| i64::try_from(*nanos).is_ok());
            nanos.map(|nanos| Some(nanos.to_string())).ok_or((key, "is too long".to_owned()))
        }
    };
    let size = |key: &'static str, given: &Option<String>| match given {
        None => Ok(None),
        Some(text) => size_bytes(text).map(|bytes| Some(endless(bytes))).map_err(|why| (key, why)),
    };
    let subjects = Value::from(table.subjects.clone());
    let words = [
        ("subjects", Some(json_text(&subjects))),
        ("storage", one_of("storage", &table.storage, &["file", "memory"])?),
        ("num_replicas", table.replicas.map(|number| number.to_string())),
        ("retention", one_of("retention", &table.retention, &["limits", "interest", "workqueue"])?),
        ("max_age", age("max_age", &table.max_age)?),
        ("max_bytes", size("max_bytes", &table.max_bytes)?),
        ("max_msg_size", size("max_message_bytes", &table.max_message_bytes)?),
        ("discard", one_of("discard", &table.discard, &["old", "new"])?),
        ("duplicate_window", age("duplicate_window", &table.duplicate_window)?),
    ];
    let mut settings: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (name, value) in words {
        if value.is_some() {
            settings.insert(name.to_owned(), value);
        }
    }
    for (name, value) in &table.settings {
        if settings.insert(name.clone(), Some(json_text(value))).is_some() || name == "name" {
            return Err(("settings", format!("`{name}` is said twice")));
        }
    }
    Ok(wanted(Kind::Stream, table.name.clone(), settings))
}

fn arguments(arguments: &BTreeMap<String, Value>) -> BTreeMap<String, Option<String>> {
    arguments.iter().map(|(name, value)| (name.clone(), Some(json_text(value)))).collect()
}

pub(super) fn exchange(table: &ExchangeTable) -> Read<WantedResource> {
    let mut settings = arguments(&table.arguments);
    settings.insert("type".to_owned(), Some(table.kind.clone()));
    settings.insert("durable".to_owned(), Some("true".to_owned()));
    Ok(wanted(Kind::Exchange, table.name.clone(), settings))
}

pub(super) fn queue(table: &QueueTable) -> Read<WantedResource> {
    if !["quorum", "classic", "stream"].contains(&table.kind.as_str()) {
        return Err(("kind", format!("`{}` is none: quorum, classic, stream", table.kind)));
    }
    let mut settings = arguments(&table.arguments);
    if settings.insert("type".to_owned(), Some(table.kind.clone())).is_some() {
        return Err(("arguments", "the type of a queue is said by `kind`".to_owned()));
    }
    settings.insert("durable".to_owned(), Some("true".to_owned()));
    Ok(wanted(Kind::Queue, table.name.clone(), settings))
}

pub(super) fn binding(table: &BindingTable) -> Read<WantedResource> {
    let settings = arguments(&table.arguments);
    let name = binding_name(&table.exchange, &table.queue, &table.routing_key);
    let ends = [("exchange", &table.exchange), ("queue", &table.queue), ("routing_key", &table.routing_key)];
    let ends = ends.map(|(key, value)| (key.to_owned(), Some(value.clone())));
    Ok(wanted(Kind::Binding, name, settings.into_iter().chain(ends).collect()))
}

/// A binding has no name of its own.
pub(crate) fn binding_name(exchange: &str, queue: &str, routing_key: &str) -> String {
    format!("{exchange}/{queue}/{routing_key}")
}
