//! Leases of plain logs, in the rows where their positions are.
//!
//! They go over the sessions that no handler sees, so that no handler that takes long can cost a lease (F22).
//! Time is the server's alone (F24). The positions are not kept here: the consumer saves them with T4, under
//! its witness, and a second writer of them would not know of a restored database.

use super::{End, PostgresInbox};
use crate::session::{Param, params};
use async_trait::async_trait;
use posthaste::consumer::store::InboxError;
use posthaste::source::leased::{HeldLease, LeaseBeat, LeaseRoll, Leases, TakenLease};
use posthaste::source::{Partition, SourceError};
use std::time::Duration;

fn micros(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX)
}

fn source_error(error: InboxError) -> SourceError {
    match error {
        InboxError::Conflict(why) | InboxError::Unavailable(why) => {
            SourceError::Transient(format!("the leases cannot be asked for: {why}"))
        }
        InboxError::Broken(why) => SourceError::Fatal(why),
    }
}

/// Partitions as two columns.
fn columns<'a>(partitions: impl Iterator<Item = &'a Partition> + Clone) -> (Vec<&'a str>, Vec<i32>) {
    (partitions.clone().map(|p| &*p.topic).collect(), partitions.map(|p| p.number).collect())
}

impl PostgresInbox {
    /// One statement about leases, in a transaction of its own.
    async fn about_leases(&self, sql: &str, params: &[Param<'_>]) -> Result<(), SourceError> {
        let done =
            self.transact_alone(async |tx| Ok((tx.query(sql, params).await?.len(), End::Commit))).await;
        done.map(drop).map_err(source_error)
    }
}

#[async_trait]
impl Leases for PostgresInbox {
    async fn renew(&self, beat: &LeaseBeat) -> Result<LeaseRoll, SourceError> {
        let (consumer, statements) = (&*self.consumer, &self.statements);
        let renewed = self.transact_alone(async |tx| {
            let (topics, numbers) = columns(beat.held.iter().map(|held| &held.partition));
            let epochs: Vec<i64> = beat.held.iter().map(|held| held.epoch).collect();
            let ttl = micros(beat.ttl);
            let mut roll = LeaseRoll::default();
            if !beat.held.is_empty() {
                let places = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
                tx.query(&statements.save_lock, places).await?;
                let params = params![
                    TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers, INT8_ARRAY epochs, INT8 ttl,
                ];
                let rows = tx.query(&statements.lease_renew, params).await?;
                let kept = |held: &HeldLease| {
                    let partition = &held.partition;
                    rows.iter().any(|row| {
                        *row.get::<_, &str>("topic") == *partition.topic
                            && row.get::<_, i32>("partition") == partition.number
                    })
                };
                roll.kept = beat.held.iter().map(kept).collect();
            }
            let held = i32::try_from(roll.kept.iter().filter(|kept| **kept).count()).unwrap_or(i32::MAX);
            let version = env!("CARGO_PKG_VERSION");
            let params = params![TEXT consumer, TEXT &*beat.member, TEXT version, INT4 held];
            tx.query(&statements.lease_seen, params).await?;
            let rows = tx.query(&statements.lease_members, params![TEXT consumer, INT8 ttl]).await?;
            let member = |row: &tokio_postgres::Row| {
                (row.get::<_, &str>("member").into(), usize::try_from(row.get::<_, i32>("held")).unwrap_or(0))
            };
            roll.members = rows.iter().map(member).collect();
            if !beat.partitions.is_empty() {
                let (topics, numbers) = columns(beat.partitions.iter());
                let places = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
                let rows = tx.query(&statements.lease_free, places).await?;
                let free = |row: &tokio_postgres::Row| {
                    Partition::new(row.get::<_, &str>("topic"), row.get("partition"))
                };
                roll.free = rows.iter().map(free).collect();
            }
            Ok((roll, End::Commit))
        });
        renewed.await.map_err(source_error)
    }

    async fn take(
        &self,
        _member: &str,
        partition: &Partition,
        ttl: Duration,
    ) -> Result<Option<TakenLease>, SourceError> {
        self.check_topics(std::slice::from_ref(partition)).map_err(source_error)?;
        let (consumer, topic, ttl) = (&*self.consumer, &*partition.topic, micros(ttl));
        let params = params![TEXT consumer, TEXT topic, INT4 partition.number, INT8 ttl];
        let taken = self.transact_alone(async |tx| {
            let rows = tx.query(&self.statements.lease_take, params).await?;
            let lease = rows.first().map(|row| TakenLease { epoch: row.get("epoch"), position: None });
            Ok((lease, End::Commit))
        });
        taken.await.map_err(source_error)
    }

    async fn settle(&self, settled: &[(HeldLease, Option<i64>)]) -> Result<Vec<bool>, SourceError> {
        let (topics, numbers) = columns(settled.iter().map(|(held, _)| &held.partition));
        let epochs: Vec<i64> = settled.iter().map(|(held, _)| held.epoch).collect();
        let params = params![TEXT &*self.consumer, TEXT_ARRAY topics, INT4_ARRAY numbers, INT8_ARRAY epochs];
        let rows = self.look(&self.statements.lease_held, params).await.map_err(source_error)?;
        Ok(rows.iter().map(|row| row.get("held")).collect())
    }

    async fn release(&self, _member: &str, held: &[HeldLease]) -> Result<(), SourceError> {
        let (topics, numbers) = columns(held.iter().map(|held| &held.partition));
        let epochs: Vec<i64> = held.iter().map(|held| held.epoch).collect();
        let params = params![TEXT &*self.consumer, TEXT_ARRAY topics, INT4_ARRAY numbers, INT8_ARRAY epochs];
        self.about_leases(&self.statements.lease_release, params).await
    }

    async fn leave(&self, member: &str) -> Result<(), SourceError> {
        self.about_leases(&self.statements.lease_leave, params![TEXT &*self.consumer, TEXT member]).await
    }
}
