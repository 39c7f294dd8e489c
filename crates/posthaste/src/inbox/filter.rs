//! Which handler takes a message: by topic, address and type. Pure.

use crate::source::Delivery;

/// What a handler takes. An empty list takes everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Topics, exact or with a last `*`.
    pub topics: Vec<String>,
    /// Addresses (subjects, routing keys), exact or with a last `*`.
    pub addresses: Vec<String>,
    /// Types, exact or with a last `*`. A message that says no type is matched as if it said "".
    pub types: Vec<String>,
}

impl Filter {
    /// Takes these types of every topic.
    #[must_use]
    pub fn types(types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { types: types.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Whether the handler takes this message.
    #[must_use]
    pub fn takes(&self, topic: &str, address: Option<&str>, event_type: Option<&str>) -> bool {
        is_in(&self.topics, topic)
            && is_in(&self.addresses, address.unwrap_or_default())
            && is_in(&self.types, event_type.unwrap_or_default())
    }

    /// The same for a delivery.
    #[must_use]
    pub fn takes_delivery(&self, delivery: &Delivery) -> bool {
        let topic = &delivery.partition().topic;
        self.takes(topic, delivery.address.as_deref(), delivery.message.event_type())
    }
}

fn is_in(patterns: &[String], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| is_match(pattern, text))
}

/// Exact, or with a last `*`.
pub(super) fn is_match(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_or_with_a_last_star() {
        let filter = Filter::types(["campaign_*", "budget_set"]);
        assert!(filter.takes("t", None, Some("campaign_created")));
        assert!(
            filter.takes("t", None, Some("budget_set")) && !filter.takes("t", None, Some("budget_set_2"))
        );
        assert!(!filter.takes("t", None, None), "no type is none of these");
        assert!(Filter::default().takes("t", None, None));
        let narrow = Filter { topics: vec!["core".into()], addresses: vec!["eu.*".into()], types: vec![] };
        assert!(narrow.takes("core", Some("eu.1"), None) && !narrow.takes("core", Some("us.1"), None));
        assert!(!narrow.takes("core", None, None) && !narrow.takes("sys", Some("eu.1"), None));
    }
}
