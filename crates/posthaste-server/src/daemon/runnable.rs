//! What `run` needs of a configuration, beyond what every command needs.

use crate::config::{Config, ConfigError};

impl Config {
    /// Says what is missing, with an example to copy.
    pub(crate) fn check_runnable(&self) -> Result<(), ConfigError> {
        let relays = self.outboxes.iter().any(|outbox| outbox.relays);
        if !relays && self.consumers.is_empty() && self.gateway.is_none() {
            return Err(ConfigError::new(
                "there is nothing to run: every outbox has relay = false, and there is no consumer and no gateway. Add a [consumers.NAME], or \
                 relay an outbox",
            ));
        }
        if relays && self.sinks.is_empty() {
            let kind = posthaste_brokers::built_in().next();
            let address = posthaste_brokers::addresses().find(|url| posthaste_brokers::kind_of(url) == kind);
            let example = match (kind, address) {
                (Some(kind), Some(url)) => format!("[sinks.{kind}]\ntype = \"{kind}\"\nurl = \"{url}\""),
                _ => "[sinks.out]\ntype = \"stdout\"".to_owned(),
            };
            let left_out = posthaste_brokers::left_out().collect::<Vec<_>>().join(", ");
            let missing = match left_out.is_empty() {
                true => String::new(),
                false => format!(
                    "(this binary was built without {left_out}: build it with `--features NAME`, or with \
                     `--features full` for all of them)\n\n"
                ),
            };
            return Err(ConfigError::new(format!(
                "no sink is configured, so events would go nowhere. Add for example:\n\n{example}\n\n{missing}\
                 or try: posthaste run --sink stdout"
            )));
        }
        match self.outboxes.iter().find(|outbox| outbox.relays && outbox.routes.routes().is_empty()) {
            Some(outbox) => Err(ConfigError::new(format!(
                "outbox `{}` has no route, so every event would become a dead letter. Add for example:\n\n\
                 [[route]]\ntopics = [\"*\"]\nsinks = [\"{}\"]",
                outbox.name, self.sinks[0].name
            ))),
            None => Ok(()),
        }
    }
}
