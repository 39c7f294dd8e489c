//! What a log must be able to do to become a source: say what there is of it, and be read from a position on.

use crate::source::log::{LogPartition, LogReader};
use crate::source::{Change, Delivery, Partition, SourceError};
use async_trait::async_trait;
use std::ops::Range;

/// One partition of a log as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLook {
    /// Its bounds, and which log it is.
    pub log: LogPartition,
    /// How many messages below the first one may be missing, at most. A log with dense numbers need not know:
    /// what is missing there are the numbers.
    pub removed_max: i64,
}

impl LogLook {
    /// What is to be said of a reading that goes on at this position.
    pub(super) fn misplaced(&self, partition: &Partition, next: i64) -> Option<Change> {
        let LogPartition { first, end, .. } = self.log;
        let partition = partition.clone();
        match next {
            _ if next < first && self.removed_max > 0 => {
                // Where numbers are times, the gap is as wide as what is missing, and not as the time
                // between.
                let from = next.max(first.saturating_sub(self.removed_max));
                Some(Change::Lost { partition, from, until: first })
            }
            _ if next > end => Some(Change::Beyond { partition, position: next, end: Some(end) }),
            _ => None,
        }
    }
}

/// A log that knows no groups: whoever reads it says from where.
#[async_trait]
pub trait PlainLog: LogReader + 'static {
    /// One partition; `None` if there is no such topic. A topic that cannot be a log, because it forgets what
    /// was acknowledged, is a fatal error with that reason.
    async fn look(&self, partition: &Partition) -> Result<Option<LogLook>, SourceError>;

    /// Reads from this position on, and goes on reading what is published.
    async fn tail(&self, partition: &Partition, from: i64) -> Result<Box<dyn Tail>, SourceError>;
}

/// What a tail brought.
#[derive(Debug)]
pub enum Tailed {
    /// A message. Its ticket settles nothing yet.
    Message(Delivery),
    /// Messages between these positions were removed before they could be read.
    Lost(Range<i64>),
    /// No other message lies before this position.
    Empty(i64),
}

/// A reading under way.
#[async_trait]
pub trait Tail: Send {
    /// Waits for what comes next, in order; never nothing. An error ends the tail: the log is looked at
    /// again, and read by another one.
    async fn next(&mut self) -> Result<Vec<Tailed>, SourceError>;
}
