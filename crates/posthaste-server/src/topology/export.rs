//! A file from what is there: its plan is empty.
//!
//! Rights become the short words where they fit, and raw entries where not. Passwords cannot be read back, so
//! users are comments that say what is needed.

use posthaste_brokers::topology::{BrokerTable, Kind, Resource, TopologyLook, Unit, in_words};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The file's text, for the resources that a name passes.
pub(crate) fn export(
    brokers: &[(&BrokerTable, &TopologyLook)],
    is_meant: &dyn Fn(&Resource) -> bool,
) -> String {
    let mut out =
        String::from("# Written by `posthaste topology export` from what was there. Its plan is empty.\n");
    for (table, look) in brokers {
        let _ = writeln!(out, "\n# {}", look.words);
        for unseen in &look.unseen {
            let name = unseen.name.as_deref().unwrap_or("all of them");
            let _ = writeln!(out, "# not seen: {} {name}: {}", unseen.kind, unseen.why);
        }
        out.push_str(&broker(table));
        let more =
            if brokers.len() > 1 { format!("broker = {}\n", quoted(&table.name)) } else { String::new() };
        let mut found: Vec<&Resource> = look.resources.iter().filter(|resource| is_meant(resource)).collect();
        found.sort_by(|one, other| {
            (one.kind, &one.name, &one.settings).cmp(&(other.kind, &other.name, &other.settings))
        });
        for resource in &found {
            match resource.kind {
                Kind::Topic => out.push_str(&topic(resource, &more)),
                Kind::User => out.push_str(&user(resource)),
                Kind::Acl => {}
                Kind::Stream => out.push_str(&stream(resource, &more)),
                Kind::Exchange | Kind::Queue => out.push_str(&queue(resource, &more)),
                Kind::Binding => out.push_str(&binding(resource, &more)),
            }
        }
        out.push_str(&rights(&found, &more));
    }
    out
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A setting of JSON as TOML: what is no text was written as JSON.
fn json(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Err(_) => quoted(text),
        Ok(value) => toml::Value::try_from(&value).map_or_else(|_| quoted(text), |value| value.to_string()),
    }
}

/// How to reach it, without secrets.
fn broker(table: &BrokerTable) -> String {
    const KEYS: [&str; 8] =
        ["url", "user", "password_file", "sasl_mechanism", "ca_file", "cert_file", "key_file", "require_tls"];
    let config = serde_json::to_value(&table.config).unwrap_or_default();
    let name = if is_bare(&table.name) { table.name.clone() } else { quoted(&table.name) };
    let mut out = format!("[brokers.{name}]\ntype = {}\n", quoted(&table.kind));
    for key in KEYS {
        let is_idle = key == "sasl_mechanism" && config.get("user").is_none();
        let is_off = config[key] == false;
        if let Some(value) = config.get(key).filter(|value| !value.is_null() && !is_idle && !is_off)
            && let Ok(value) = toml::Value::try_from(value)
        {
            let _ = writeln!(out, "{key} = {value}");
        }
    }
    if let Some(at) = &table.sasl_url {
        let urls: Vec<String> = at.iter().map(quoted).collect();
        let _ = writeln!(out, "sasl_url = [{}]", urls.join(", "));
    }
    if let Some(at) = &table.management_url {
        let _ = writeln!(out, "management_url = {}", quoted(at));
    }
    out
}

fn is_bare(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn topic(topic: &Resource, more: &str) -> String {
    let setting = |name: &str| topic.settings.get(name).map_or("", String::as_str);
    let mut out = format!("\n[[topic]]\n{more}name = {}\n", quoted(&topic.name));
    let _ = writeln!(out, "partitions = {}\nreplicas = {}", setting("partitions"), setting("replicas"));
    let mut others = Vec::new();
    let set = topic.settings.iter().filter(|(name, _)| !topic.defaults.contains(*name));
    for (name, value) in set {
        let word = match name.as_str() {
            "partitions" | "replicas" => continue,
            "retention.ms" => ("retention", quoted(&in_words(value, Unit::Milliseconds))),
            "retention.bytes" => ("retention_size", quoted(&in_words(value, Unit::Bytes))),
            "max.message.bytes" => ("max_message_size", quoted(&in_words(value, Unit::Bytes))),
            "compression.type" if value == "uncompressed" => ("compression", quoted("none")),
            "compression.type" => ("compression", quoted(value)),
            "cleanup.policy" => ("cleanup", quoted(value)),
            "min.insync.replicas" => ("min_insync_replicas", value.clone()),
            "unclean.leader.election.enable" => ("unclean_leader_election", value.clone()),
            _ => {
                others.push(format!("{} = {}", quoted(name), quoted(value)));
                continue;
            }
        };
        let _ = writeln!(out, "{} = {}", word.0, word.1);
    }
    if !others.is_empty() {
        let _ = writeln!(out, "settings = {{ {} }}", others.join(", "));
    }
    out
}

fn user(user: &Resource) -> String {
    let mut out = String::new();
    for (mechanism, iterations) in user.settings.iter().filter(|(name, _)| name.starts_with("scram-")) {
        let _ = writeln!(
            out,
            "\n# This user needs its password: a file that holds it.\n# [[user]]\n# name = {}\n# mechanism = {}\n# iterations = {iterations}\n# password_file = \"…\"",
            quoted(&user.name),
            quoted(mechanism)
        );
    }
    out
}

/// Rights by principal: in words where a word fits, raw otherwise.
fn rights(found: &[&Resource], more: &str) -> String {
    let mut words: BTreeMap<&str, BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
    let mut raw: BTreeMap<[&str; 6], BTreeSet<&str>> = BTreeMap::new();
    for right in found.iter().filter(|resource| resource.kind == Kind::Acl) {
        let part = |name: &str| right.settings.get(name).map_or("", String::as_str);
        let key = match (part("permission"), part("resource"), part("operation"), part("host")) {
            ("ALLOW", "TOPIC", "READ", "*") => Some("read"),
            ("ALLOW", "TOPIC", "WRITE", "*") => Some("write"),
            ("ALLOW", "TOPIC", "DESCRIBE_CONFIGS", "*") => Some("describe_configs"),
            ("ALLOW", "GROUP", "READ", "*") => Some("groups"),
            ("ALLOW", "TRANSACTIONAL_ID", "WRITE", "*") => Some("transactional_ids"),
            _ => None,
        };
        let (on, is_prefix) = (part("on"), part("pattern") == "PREFIXED");
        let is_starred = !is_prefix && on.ends_with('*') && on != "*";
        match key.filter(|_| !is_starred) {
            Some(key) => {
                let name = if is_prefix { format!("{on}*") } else { on.to_owned() };
                words.entry(right.name.as_str()).or_default().entry(key).or_default().insert(name);
            }
            None => {
                let key =
                    [&right.name, part("permission"), part("resource"), part("pattern"), on, part("host")];
                raw.entry(key).or_default().insert(part("operation"));
            }
        }
    }
    let mut out = String::new();
    for (principal, keys) in words {
        let name = principal.strip_prefix("User:").unwrap_or(principal);
        let _ = write!(out, "\n[[principal]]\n{more}name = {}\n", quoted(name));
        for (key, names) in keys {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            let _ = writeln!(out, "{key} = [{}]", names.join(", "));
        }
    }
    for ([principal, permission, resource, pattern, on, host], operations) in raw {
        let is_known = operations.iter().all(|operation| *operation != "UNKNOWN") && resource != "UNKNOWN";
        // A right that this binary does not know stays what it is: somebody else's.
        let dead = if is_known { "" } else { "# " };
        let operations: Vec<String> = operations.into_iter().map(quoted).collect();
        let more = more.trim_end();
        let lines = [
            (!more.is_empty()).then(|| more.to_owned()),
            Some(format!("principal = {}", quoted(principal.strip_prefix("User:").unwrap_or(principal)))),
            (permission == "DENY").then(|| "permission = \"deny\"".to_owned()),
            Some(format!("operations = [{}]", operations.join(", "))),
            Some(format!("resource = {}", quoted(&resource.to_ascii_lowercase().replace('_', "-")))),
            (resource != "CLUSTER").then(|| {
                let star = if pattern == "PREFIXED" { "*" } else { "" };
                format!("name = {}", quoted(&format!("{on}{star}")))
            }),
            (pattern == "LITERAL" && on.ends_with('*') && on != "*")
                .then(|| "pattern = \"literal\"".to_owned()),
            (host != "*").then(|| format!("host = {}", quoted(host))),
        ];
        let _ = write!(out, "\n{dead}[[acl]]\n");
        for line in lines.into_iter().flatten() {
            let _ = writeln!(out, "{dead}{line}");
        }
    }
    out
}

fn stream(stream: &Resource, more: &str) -> String {
    let mut out = format!("\n[[stream]]\n{more}name = {}\n", quoted(&stream.name));
    let mut others = Vec::new();
    for (name, value) in &stream.settings {
        let word = match name.as_str() {
            "subjects" => ("subjects", json(value)),
            "storage" | "retention" | "discard" => (name.as_str(), quoted(value)),
            "num_replicas" => ("replicas", value.clone()),
            "max_age" if value == "0" => ("max_age", quoted("forever")),
            "max_age" => ("max_age", quoted(&in_words(value, Unit::Nanoseconds))),
            "max_bytes" => ("max_bytes", quoted(&in_words(value, Unit::Bytes))),
            "max_msg_size" => ("max_message_bytes", quoted(&in_words(value, Unit::Bytes))),
            "duplicate_window" => ("duplicate_window", quoted(&in_words(value, Unit::Nanoseconds))),
            _ if stream.defaults.contains(name) => continue,
            _ => {
                others.push(format!("{} = {}", quoted(name), json(value)));
                continue;
            }
        };
        let _ = writeln!(out, "{} = {}", word.0, word.1);
    }
    if !others.is_empty() {
        let _ = writeln!(out, "settings = {{ {} }}", others.join(", "));
    }
    out
}

fn arguments(resource: &Resource, own: &[&str]) -> String {
    let given = resource.settings.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let given: Vec<String> =
        given.map(|(name, value)| format!("{} = {}", quoted(name), json(value))).collect();
    if given.is_empty() { String::new() } else { format!("arguments = {{ {} }}\n", given.join(", ")) }
}

fn queue(queue: &Resource, more: &str) -> String {
    let kind = queue.settings.get("type").map_or("", String::as_str);
    let mut out =
        format!("\n[[{}]]\n{more}name = {}\nkind = {}\n", queue.kind, quoted(&queue.name), quoted(kind));
    out.push_str(&arguments(queue, &["type", "durable"]));
    out
}

fn binding(binding: &Resource, more: &str) -> String {
    let part = |name: &str| binding.settings.get(name).map_or("", String::as_str);
    let mut out = format!("\n[[binding]]\n{more}");
    for key in ["exchange", "queue", "routing_key"] {
        let _ = writeln!(out, "{key} = {}", quoted(part(key)));
    }
    out.push_str(&arguments(binding, &["exchange", "queue", "routing_key"]));
    out
}
