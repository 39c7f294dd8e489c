//! A broker's log as anybody may read it: no group is joined, and nothing is committed.
//!
//! For people's questions and acts: how long a log is, where a time lies in it, and what a range replay
//! copies. A [`Source`](super::Source) would do none of this: it has to own a partition first, and takes it
//! from those who work.

use super::{Change, Delivery, Partition, SeekTo, SourceError};
use crate::event::Timestamp;
use async_trait::async_trait;
use std::ops::Range;
use std::sync::Arc;

/// One partition of a log, and where the group is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPartition {
    /// Which.
    pub partition: Partition,
    /// The oldest position that is there.
    pub first: i64,
    /// The position that the next published message gets.
    pub end: i64,
    /// The group's position at the broker, if it has one that may be seen.
    pub committed: Option<i64>,
    /// Which log the positions belong to, where the broker says so.
    pub log_id: Option<Arc<str>>,
}

impl LogPartition {
    /// The position that is meant.
    pub async fn position(&self, reader: &dyn LogReader, of: SeekTo) -> Result<i64, SourceError> {
        match of {
            SeekTo::Earliest => Ok(self.first),
            SeekTo::Latest => Ok(self.end),
            SeekTo::Position(position) => Ok(position),
            SeekTo::Time(time) => reader.position_at(&self.partition, time).await,
        }
    }
}

/// What one read brought.
#[derive(Debug, Default)]
pub struct LogPage {
    /// Messages, in order. Their tickets settle nothing.
    pub deliveries: Vec<Delivery>,
    /// Where the next read begins. At the end of what was asked for there is nothing more.
    pub next: i64,
}

/// Reads a broker's log without being a consumer.
#[async_trait]
pub trait LogReader: Send + Sync {
    /// The partitions of these topics. A topic that does not exist has none.
    async fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError>;

    /// The first position with a message that the broker took at or after this time; the end, if there is
    /// none.
    async fn position_at(&self, partition: &Partition, time: Timestamp) -> Result<i64, SourceError>;

    /// Messages of a range of positions, at most so many. Positions without a message are passed over.
    async fn read(
        &self,
        partition: &Partition,
        range: Range<i64>,
        limit: usize,
    ) -> Result<LogPage, SourceError>;
}

impl Change {
    /// What a source says of a seek to a position that is not there.
    #[must_use]
    pub fn misplaced(partition: &Partition, to: SeekTo, first: i64, end: i64) -> Option<Self> {
        let SeekTo::Position(position) = to else { return None };
        let partition = partition.clone();
        match position {
            _ if position < first => Some(Self::Lost { partition, from: position, until: first }),
            _ if position > end => Some(Self::Beyond { partition, position, end: Some(end) }),
            _ => None,
        }
    }
}
