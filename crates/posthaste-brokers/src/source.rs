//! What a consumer says to a source, whatever its broker is.

use crate::BuildError;
use posthaste::source::StartFrom;
use std::time::Duration;

/// A member of a consumer group, whatever the broker is.
#[derive(Debug, Clone)]
pub struct GroupMember {
    /// The group. Its members share the partitions; each group gets every message.
    pub group: String,
    /// The topics, by their exact names. One that does not exist yet is waited for.
    pub topics: Vec<String>,
    /// What the broker shows of this member.
    pub member: Option<String>,
    /// Where the group begins in a partition that it has never read.
    pub start_from: StartFrom,
    /// How long `next` may not be called before the partitions go to others. Longer than any handler should
    /// take.
    pub stall_limit: Duration,
    /// Most deliveries in hand, with those that are acknowledged ahead of an open one.
    pub in_hand_max: usize,
    /// How long a partition that goes to another member waits for what is in hand.
    pub handover_wait: Duration,
}

impl GroupMember {
    /// Defaults for a group and its topics.
    #[must_use]
    pub fn new(group: impl Into<String>, topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            member: None,
            start_from: StartFrom::Earliest,
            stall_limit: Duration::from_secs(300),
            in_hand_max: 8_192,
            handover_wait: Duration::from_secs(5),
        }
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let wrong = match () {
            () if self.group.is_empty() => ("group", "must not be empty"),
            () if self.topics.is_empty() => ("topics", "must name one topic at least"),
            () if self.in_hand_max == 0 => ("in_hand_max", "must be 1 at least"),
            () => return Ok(()),
        };
        Err(BuildError::option(wrong.0, wrong.1))
    }
}
