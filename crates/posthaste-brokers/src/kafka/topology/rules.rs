//! Which differences hurt at Kafka.

use crate::topology::{
    Kind, PASSWORD, PASSWORD_AS_WANTED, PASSWORD_NOT_COMPARED, Resource, Risk, Rules, TopologyLook,
};

/// Settings that are no setting of a topic at Kafka, but what it is made of.
pub(super) const PARTITIONS: &str = "partitions";
pub(super) const REPLICAS: &str = "replicas";

/// Kafka's rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct KafkaRules;

impl Rules for KafkaRules {
    fn is_same(&self, kind: Kind, setting: &str, one: &str, other: &str) -> bool {
        let is_listed = |list: &str| {
            let mut words: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
            words.sort();
            words
        };
        match (kind, setting) {
            // Nobody knows; a note says so.
            (Kind::User, PASSWORD) => one == other || one == PASSWORD_NOT_COMPARED,
            (Kind::Topic, "cleanup.policy") => is_listed(one) == is_listed(other),
            (Kind::Topic, _) => one == other || (number(one).is_some() && number(one) == number(other)),
            _ => one == other,
        }
    }

    fn risk_of_adding(&self, resource: &Resource, look: &TopologyLook) -> Risk {
        let replicas = resource.settings.get(REPLICAS).and_then(|text| text.parse::<usize>().ok());
        match (replicas, look.servers) {
            (Some(replicas), Some(servers)) if replicas > servers => {
                Risk::Blocked(format!("{replicas} replicas need as many brokers, and there are {servers}"))
            }
            _ => Risk::Plain,
        }
    }

    fn risk_of_setting(&self, was: &Resource, setting: &str, to: Option<&str>) -> Risk {
        match was.kind {
            Kind::Topic => of_topic(was, setting, to),
            Kind::User if setting == PASSWORD => {
                Risk::Hazard("whoever logs in with the old password is refused".to_owned())
            }
            Kind::User if was.settings.get(PASSWORD).is_none_or(|found| found != PASSWORD_AS_WANTED) => {
                Risk::Hazard("this sets the password of the file, and the old one may be another".to_owned())
            }
            _ => Risk::Plain,
        }
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        let name = &resource.name;
        match resource.kind {
            Kind::Topic if resource.internal => Risk::Blocked(format!("{name} is the cluster's own")),
            Kind::Topic => Risk::Destroys("all its messages are deleted".to_owned()),
            Kind::User => Risk::Destroys("it can log in no more".to_owned()),
            _ if resource.settings.get("permission").is_some_and(|it| it == "DENY") => {
                Risk::Destroys(format!("{name} may do what was denied"))
            }
            _ => Risk::Destroys(format!("{name} loses this right")),
        }
    }
}

fn of_topic(was: &Resource, setting: &str, to: Option<&str>) -> Risk {
    let now = was.settings.get(setting).map(String::as_str);
    let (before, after) = (now.and_then(number), to.and_then(number));
    // A default of the broker is not known before it is in force.
    let is_less = match (before, after) {
        (Some(before), Some(after)) => after < before,
        _ => true,
    };
    match setting {
        PARTITIONS if is_less => Risk::Blocked(
            "partitions cannot be taken away: make a new topic, and let its consumers go over".to_owned(),
        ),
        PARTITIONS => Risk::Hazard("keys move, a key's order breaks".to_owned()),
        REPLICAS => Risk::Blocked("move the partitions with kafka-reassign-partitions".to_owned()),
        _ if setting.ends_with("retention.ms") || setting.ends_with("retention.bytes") => match is_less {
            true if to.is_none() => Risk::Destroys("the broker's own may be shorter".to_owned()),
            true => Risk::Destroys("what is older, or more, is deleted".to_owned()),
            false => Risk::Plain,
        },
        "cleanup.policy" => Risk::Destroys("messages that were kept are deleted".to_owned()),
        "min.insync.replicas" => {
            let replicas = was.settings.get(REPLICAS).and_then(|text| number(text));
            match (after, replicas) {
                (Some(after), Some(replicas)) if after > replicas => Risk::Blocked(format!(
                    "{after} replicas in sync cannot be had of {replicas}: nothing would be accepted"
                )),
                _ if is_less => Risk::Hazard("fewer brokers have what is acknowledged".to_owned()),
                _ => Risk::Plain,
            }
        }
        "unclean.leader.election.enable" if to != Some("false") => {
            Risk::Hazard("a leader may lack acknowledged messages".to_owned())
        }
        "max.message.bytes" if is_less => Risk::Hazard("larger messages are refused".to_owned()),
        _ => Risk::Plain,
    }
}

/// A number; the one for "no end" is larger than all others.
fn number(text: &str) -> Option<i128> {
    text.parse::<i128>().ok().map(|number| if number < 0 { i128::MAX } else { number })
}
