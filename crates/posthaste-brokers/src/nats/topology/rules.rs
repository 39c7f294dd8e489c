//! Which differences hurt at JetStream.

use crate::topology::{Kind, Resource, Risk, Rules, TopologyLook};
use serde_json::Value;
use std::collections::BTreeSet;

/// JetStream's rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct NatsRules;

/// A key of a stream's `metadata` that the server writes by itself begins so.
pub(super) const OF_SERVER: &str = "_nats.";

impl Rules for NatsRules {
    fn is_same(&self, _: Kind, setting: &str, one: &str, other: &str) -> bool {
        if one == other {
            return true;
        }
        match setting {
            "subjects" => subjects(one) == subjects(other),
            // Servers write -1 where 0 was asked for.
            "max_bytes" | "max_msgs" | "max_msg_size" | "max_msgs_per_subject" | "max_consumers" => {
                bound(one).is_some() && bound(one) == bound(other)
            }
            "metadata" => metadata(one).is_some() && metadata(one) == metadata(other),
            _ => json(one).is_some() && json(one) == json(other),
        }
    }

    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        let replicas = resource.settings.get("num_replicas").and_then(|text| text.parse::<usize>().ok());
        match (replicas, look.servers) {
            (Some(replicas), Some(servers)) if replicas > servers => {
                Risk::Blocked(format!("{replicas} replicas need as many servers, and there are {servers}"))
            }
            _ if resource.settings.get("duplicate_window").is_some_and(|text| text == "0") => no_window(),
            _ => Risk::Plain,
        }
    }

    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk {
        let now = was.settings.get(setting).map(String::as_str);
        match setting {
            "storage" => Risk::Blocked(anew("the storage")),
            "retention" => Risk::Blocked(anew("the kind of retention")),
            "persist_mode" => Risk::Blocked(anew("when it is written")),
            "subjects" => of_subjects(now, to),
            "num_replicas" if is_fewer(now, to) => {
                Risk::Hazard("fewer servers have what is acknowledged".to_owned())
            }
            "max_age" | "max_bytes" | "max_msgs" | "max_msgs_per_subject" if is_lower(now, to) => {
                Risk::Destroys("what is older, or more, is deleted".to_owned())
            }
            "max_msg_size" if is_lower(now, to) => Risk::Hazard("larger messages are refused".to_owned()),
            "discard" if to == Some("new") => {
                Risk::Hazard("publishers are refused when the stream is full".to_owned())
            }
            "discard" => Risk::Hazard("old messages are deleted when the stream is full".to_owned()),
            "duplicate_window" if to == Some("0") => no_window(),
            "duplicate_window" if is_fewer(now, to) => {
                Risk::Hazard("what is sent again after a longer outage is stored twice".to_owned())
            }
            "no_ack" if to == Some("true") => Risk::Hazard("nothing is acknowledged any more".to_owned()),
            "sealed" => Risk::Hazard("nothing can be written any more, and nobody can undo that".to_owned()),
            _ => Risk::Plain,
        }
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        match resource.internal {
            true => Risk::Blocked(format!("{} is the server's own", resource.name)),
            false => Risk::Destroys("all its messages and consumers are deleted".to_owned()),
        }
    }
}

fn anew(what: &str) -> String {
    format!("{what} of a stream cannot be changed: make a new stream, and let its consumers go over")
}

fn no_window() -> Risk {
    Risk::Blocked("0 is JetStream's word for its own default: write how long, such as 2m".to_owned())
}

fn json(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

/// A stream's subjects are a set.
fn subjects(text: &str) -> Option<BTreeSet<String>> {
    serde_json::from_str(text).ok()
}

/// What somebody has written there.
fn metadata(text: &str) -> Option<Value> {
    let mut found = json(text)?;
    found.as_object_mut()?.retain(|key, _| !key.starts_with(OF_SERVER));
    Some(found)
}

/// A bound; the words for "no bound" are larger than all others.
fn bound(text: &str) -> Option<i128> {
    text.parse::<i128>().ok().map(|number| if number <= 0 { i128::MAX } else { number })
}

/// Whether a bound comes down. What is not there is no bound, and what cannot be read may be any.
fn is_lower(now: Option<&str>, to: Option<&str>) -> bool {
    let now = now.map_or(Some(i128::MAX), bound);
    let to = to.map_or(Some(i128::MAX), bound);
    now.zip(to).is_none_or(|(now, to)| to < now)
}

/// Whether a number comes down. A default is not known before it is in force.
fn is_fewer(now: Option<&str>, to: Option<&str>) -> bool {
    let number = |text: Option<&str>| text?.parse::<i128>().ok();
    number(now).zip(number(to)).is_none_or(|(now, to)| to < now)
}

fn of_subjects(now: Option<&str>, to: Option<&str>) -> Risk {
    let (now, to) = (now.and_then(subjects).unwrap_or_default(), to.and_then(subjects).unwrap_or_default());
    let lost: Vec<&str> =
        now.iter().filter(|subject| !to.iter().any(|by| covers(by, subject))).map(String::as_str).collect();
    if lost.is_empty() {
        return Risk::Plain;
    }
    Risk::Hazard(format!("it takes no more messages to {}: publishers find no stream there", lost.join(", ")))
}

/// Whether every message to one subject is one to the other, too.
fn covers(by: &str, subject: &str) -> bool {
    let (mut by, mut parts) = (by.split('.'), subject.split('.'));
    loop {
        match (by.next(), parts.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(part)) if part != ">" => {}
            (Some(one), Some(part)) if one == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn risk(setting: &str, now: Option<&str>, to: &str) -> Risk {
        let settings = now.map(|now| (setting.to_owned(), now.to_owned())).into_iter().collect();
        NatsRules.risk_of_setting(&Resource::new(Kind::Stream, "S", settings), setting, Some(to))
    }

    fn word(risk: &Risk) -> &'static str {
        match risk {
            Risk::Plain => "plain",
            Risk::Hazard(_) => "hazard",
            Risk::Destroys(_) => "destroys",
            Risk::Blocked(_) => "blocked",
        }
    }

    #[test]
    fn every_row_of_the_table() {
        for (setting, now, to, expected) in [
            ("storage", "file", "memory", "blocked"),
            ("retention", "limits", "workqueue", "blocked"),
            ("persist_mode", "default", "async", "blocked"),
            ("num_replicas", "3", "1", "hazard"),
            ("num_replicas", "1", "3", "plain"),
            ("max_age", "5", "4", "destroys"),
            ("max_age", "0", "4", "destroys"),
            ("max_age", "5", "0", "plain"),
            ("max_age", "5", "6", "plain"),
            ("max_bytes", "-1", "1000", "destroys"),
            ("max_bytes", "1000", "-1", "plain"),
            ("max_msgs", "-1", "1000", "destroys"),
            ("max_msgs_per_subject", "-1", "1", "destroys"),
            ("max_msgs", "nonsense", "1000", "destroys"),
            ("max_msg_size", "-1", "1000", "hazard"),
            ("max_msg_size", "1000", "2000", "plain"),
            ("discard", "old", "new", "hazard"),
            ("discard", "new", "old", "hazard"),
            ("duplicate_window", "120", "60", "hazard"),
            ("duplicate_window", "120", "600", "plain"),
            ("duplicate_window", "120", "0", "blocked"),
            ("subjects", r#"["a","b"]"#, r#"["a"]"#, "hazard"),
            ("subjects", r#"["a"]"#, r#"["a","b"]"#, "plain"),
            ("subjects", r#"["a.b","a.c"]"#, r#"["a.*"]"#, "plain"),
            ("subjects", r#"["a.>"]"#, r#"["a.*"]"#, "hazard"),
            ("subjects", r#"["a.>"]"#, "nonsense", "hazard"),
            ("no_ack", "false", "true", "hazard"),
            ("sealed", "false", "true", "hazard"),
            ("description", "a", "b", "plain"),
            ("of_tomorrow", "1", "2", "plain"),
        ] {
            assert_eq!(word(&risk(setting, Some(now), to)), expected, "{setting} {now} -> {to}");
        }
        assert_eq!(word(&risk("max_age", None, "4")), "destroys", "what is not there is no bound");
        let stream = Resource::new(Kind::Stream, "S", [].into());
        assert_eq!(word(&NatsRules.risk_of_removing(&stream)), "destroys");
        let own = Resource { internal: true, ..stream };
        assert_eq!(word(&NatsRules.risk_of_removing(&own)), "blocked");
    }

    #[test]
    fn more_replicas_than_servers_are_blocked_before_anything_is_asked() {
        let three = [("num_replicas".to_owned(), "3".to_owned())].into();
        let stream = Resource::new(Kind::Stream, "S", three);
        let with = |servers| TopologyLook { servers, ..TopologyLook::default() };
        assert_eq!(word(&NatsRules.risk_of_adding(&stream, &with(Some(1)))), "blocked");
        assert_eq!(word(&NatsRules.risk_of_adding(&stream, &with(None))), "plain");
    }

    #[test]
    fn values_that_mean_the_same() {
        let same = |setting, one, other| NatsRules.is_same(Kind::Stream, setting, one, other);
        assert!(same("subjects", r#"["a","b"]"#, r#"["b", "a"]"#));
        assert!(!same("subjects", r#"["a","b"]"#, r#"["a"]"#));
        assert!(same("max_bytes", "0", "-1") && !same("max_bytes", "0", "1"));
        assert!(same("metadata", r#"{"a":"1","_nats.ver":"2.15.1"}"#, r#"{"a":"1"}"#));
        assert!(!same("metadata", r#"{"a":"1","b":"2"}"#, r#"{"a":"1"}"#));
        assert!(same("placement", r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#));
        assert!(same("storage", "file", "file") && !same("storage", "file", "memory"));
    }

    #[test]
    fn subjects_cover_others() {
        for (by, subject, expected) in [
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.*", "a.>", false),
            ("a.>", "a.*", true),
            ("a.b", "a.*", false),
            ("a", "a.b", false),
            ("a.b", "a", false),
        ] {
            assert_eq!(covers(by, subject), expected, "{by} {subject}");
        }
    }
}
