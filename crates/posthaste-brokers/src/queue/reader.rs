//! A queue is no log: there is nothing to read for people. Each question has the same answer.

use async_trait::async_trait;
use posthaste::event::Timestamp;
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Partition, SourceError};
use std::ops::Range;

const NO_LOG: SourceError = SourceError::Unsupported(
    "say or change where it is: a queue has no positions, and forgets what is acknowledged",
);

/// Says that a queue cannot be read like a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueReader;

#[async_trait]
impl LogReader for QueueReader {
    async fn survey(&self, _: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        Err(NO_LOG)
    }

    async fn position_at(&self, _: &Partition, _: Timestamp) -> Result<i64, SourceError> {
        Err(NO_LOG)
    }

    async fn read(&self, _: &Partition, _: Range<i64>, _: usize) -> Result<LogPage, SourceError> {
        Err(NO_LOG)
    }
}
