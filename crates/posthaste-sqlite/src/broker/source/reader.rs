//! Reading the local broker without a group: for questions of people, and for range replays.

use super::source_error;
use crate::broker::file::Broker;
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Delivery, Partition, SourceError, Ticket};
use std::ops::Range;
use std::sync::Arc;

/// Reads topics of a local broker, and sees where one group is. It moves nobody.
#[derive(Debug)]
pub struct LocalReader {
    broker: Arc<Broker>,
    group: String,
}

impl Broker {
    /// Reads the topics without joining this group.
    pub fn reader(self: &Arc<Self>, group: impl Into<String>) -> LocalReader {
        LocalReader { broker: Arc::clone(self), group: group.into() }
    }
}

#[async_trait]
impl LogReader for LocalReader {
    async fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let groups = self.broker.groups().await.map_err(source_error)?;
        let known = self.broker.topics().await.map_err(source_error)?;
        let mut partitions = Vec::new();
        for topic in known.iter().filter(|topic| topics.contains(&topic.name)) {
            for (number, (first, end)) in (0..).zip(topic.partitions.iter().copied()) {
                let place = groups.iter().find(|place| {
                    place.group == self.group && place.topic == topic.name && place.partition == number
                });
                let (committed, log_id) = (place.map(|place| place.committed), None);
                let partition = Partition::new(topic.name.as_str(), number);
                partitions.push(LogPartition { partition, first, end, committed, log_id });
            }
        }
        Ok(partitions)
    }

    async fn position_at(&self, partition: &Partition, time: Timestamp) -> Result<i64, SourceError> {
        let found = self.broker.position_at(&partition.topic, partition.number, time).await;
        let none = || SourceError::Fatal(format!("there is no partition {partition}"));
        found.map_err(source_error)?.ok_or_else(none)
    }

    async fn read(
        &self,
        partition: &Partition,
        range: Range<i64>,
        limit: usize,
    ) -> Result<LogPage, SourceError> {
        let found = self.broker.read(&partition.topic, partition.number, range.start, limit).await;
        let found = found.map_err(source_error)?;
        let mut page = LogPage { deliveries: Vec::new(), next: range.start };
        for stored in found.into_iter().take_while(|stored| stored.position < range.end) {
            page.next = stored.position + 1;
            page.deliveries.push(Delivery {
                ticket: Ticket { partition: partition.clone(), epoch: 0, number: stored.position },
                position: Some(stored.position),
                redelivery: None,
                published_at: Some(stored.published_at),
                address: None,
                message: stored.message,
            });
        }
        if page.deliveries.len() < limit {
            page.next = range.end;
        }
        Ok(page)
    }
}
