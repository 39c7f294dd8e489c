//! Which differences hurt at RabbitMQ: all of them. Nothing there can be changed in place.

use crate::topology::{Kind, Resource, Risk, Rules, TopologyLook};
use serde_json::Value;

/// RabbitMQ's rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct RabbitmqRules;

/// Names that the broker keeps for itself begin so.
const OF_BROKER: &str = "amq.";

/// Whether this is the broker's own, or has a name that only the broker gives.
pub(super) fn is_of_broker(resource: &Resource) -> bool {
    match resource.kind {
        // The default exchange has every queue under its name.
        Kind::Binding => resource.settings.get("exchange").is_none_or(String::is_empty),
        _ => resource.name.starts_with(OF_BROKER),
    }
}

impl Rules for RabbitmqRules {
    fn is_same(&self, _: Kind, _: &str, one: &str, other: &str) -> bool {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        one == other || (json(one).is_some() && json(one) == json(other))
    }

    fn risk_of_adding(&self, resource: &Resource, _: &TopologyLook) -> Risk {
        match resource.kind {
            Kind::Binding if is_of_broker(resource) => {
                Risk::Blocked("the default exchange has every queue, and takes no bindings".to_owned())
            }
            _ if is_of_broker(resource) => {
                Risk::Blocked(format!("names that begin with {OF_BROKER} are the broker's own"))
            }
            _ => Risk::Plain,
        }
    }

    fn risk_of_setting(&self, was: &Resource, _: &str, _: Option<&str>) -> Risk {
        let instead = match was.kind {
            Kind::Exchange => "make one of another name, and let its publishers go over",
            Kind::Queue => "make one of another name, and let its consumers go over; or set a policy",
            _ => "take it away by hand, and apply again",
        };
        Risk::Blocked(format!("{}s cannot be changed in place: {instead}", was.kind))
    }

    fn risk_of_removing(&self, resource: &Resource) -> Risk {
        match resource.kind {
            _ if resource.internal => Risk::Blocked(format!("{} is the broker's own", resource.name)),
            Kind::Exchange => Risk::Destroys("its bindings go, and its publishers are refused".to_owned()),
            Kind::Queue => Risk::Destroys("all its messages are deleted".to_owned()),
            _ => Risk::Destroys("the queue gets no more of these messages".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        for (kind, beginning) in [
            (Kind::Exchange, "exchanges cannot be changed in place: "),
            (Kind::Queue, "queues cannot be changed in place: "),
            (Kind::Binding, "bindings cannot be changed in place: "),
        ] {
            let ends = [("exchange".to_owned(), "e".to_owned())].into();
            let was = Resource::new(kind, "a", ends);
            let risk = RabbitmqRules.risk_of_setting(&was, "type", Some("quorum"));
            assert!(matches!(&risk, Risk::Blocked(why) if why.starts_with(beginning)), "{risk:?}");
            assert!(matches!(RabbitmqRules.risk_of_removing(&was), Risk::Destroys(_)), "{kind}");
            let own = Resource { internal: true, ..was.clone() };
            assert!(matches!(RabbitmqRules.risk_of_removing(&own), Risk::Blocked(_)), "{kind}");
            assert_eq!(RabbitmqRules.risk_of_adding(&was, &TopologyLook::default()), Risk::Plain);
        }
        let own = Resource::new(Kind::Exchange, "amq.topic", [].into());
        assert!(is_of_broker(&own));
        assert!(matches!(RabbitmqRules.risk_of_adding(&own, &TopologyLook::default()), Risk::Blocked(_)));
        let default = [("exchange".to_owned(), String::new())].into();
        assert!(is_of_broker(&Resource::new(Kind::Binding, "/q/q", default)));
    }

    #[test]
    fn values_that_mean_the_same() {
        let same = |one, other| RabbitmqRules.is_same(Kind::Queue, "x", one, other);
        assert!(same("20", "20") && same(r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#));
        assert!(!same("20", "\"20\"") && !same("quorum", "classic"));
    }
}
