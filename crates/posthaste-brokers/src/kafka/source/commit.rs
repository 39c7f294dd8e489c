//! Writing positions: a thread of its own, one commit at a time, and each takes all that is settled by then.
//!
//! The client's commit has no time limit: in an outage it returns when a coordinator is found. Neither a task
//! nor the polling thread may wait for that, and no runtime that is to end.

use super::assignment::SettledPosition;
use super::client::{KafkaClient, listed, mark_declared};
use super::member::SourceMember;
use posthaste::source::{SourceError, Standing, Ticket};
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::Offset;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an acknowledgement is tried: longer than a rebalance, and than a new coordinator takes.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two looks at what is settled, and after a commit that was refused.
const PAUSE: Duration = Duration::from_millis(50);

/// Commits what is settled, until the client ends.
pub(super) fn run(member: &SourceMember, client: &KafkaClient, ended: &AtomicBool) {
    while !ended.load(Ordering::SeqCst) {
        let (list, declared) = {
            let state = member.state();
            let list = state.to_commit();
            let declared: Vec<_> = list.iter().filter(|settled| state.declares(settled)).cloned().collect();
            (list, declared)
        };
        if list.is_empty() {
            std::thread::park_timeout(PAUSE);
            continue;
        }
        let offsets = listed(list.iter().map(|(partition, _, at)| (partition, Offset::Offset(*at))));
        declared.iter().for_each(|(partition, ..)| mark_declared(&offsets, partition));
        let done = client.commit(&offsets, CommitMode::Sync);
        let refused = done.is_err();
        if !refused {
            member.causes.forget();
            member.state().committed(&list);
        }
        member.commits.send_replace(done.err());
        member.stir();
        if refused {
            // A rebalance, or a coordinator that is new.
            std::thread::sleep(PAUSE);
        }
    }
}

impl SourceMember {
    pub(super) async fn settle(self: &Arc<Self>, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        let mut commits = self.commits.subscribe();
        let (mut standings, touched) = self.state().ack(tickets);
        let settling = CommitWait { member: self, touched };
        let until = Instant::now() + PATIENCE;
        self.wake();
        while self.lack(&settling.touched) {
            let heard = tokio::time::timeout(PAUSE, commits.changed()).await.is_ok();
            let refused = commits.borrow_and_update().clone().filter(|_| heard);
            let denied = [Code::GroupAuthorizationFailed, Code::TopicAuthorizationFailed];
            let code = refused.as_ref().and_then(|error| error.rdkafka_error_code());
            if Instant::now() >= until || code.is_some_and(|code| denied.contains(&code)) {
                let why = refused.map_or_else(|| "no broker answers".to_owned(), |error| error.to_string());
                return Err(SourceError::Transient(format!("the positions are not committed: {why}")));
            }
        }
        let state = self.state();
        for (ticket, standing) in tickets.iter().zip(&mut standings) {
            let owned = state.partitions.get(&ticket.partition);
            if owned.is_none_or(|owned| owned.epoch != ticket.epoch) {
                *standing = Standing::Revoked;
            }
        }
        Ok(standings)
    }

    fn lack(&self, touched: &[SettledPosition]) -> bool {
        let state = self.state();
        touched.iter().any(|settled| state.lacks(settled))
    }
}

/// Acknowledgements that are being committed. A partition that goes waits for them.
struct CommitWait<'a> {
    member: &'a SourceMember,
    touched: Vec<SettledPosition>,
}

impl Drop for CommitWait<'_> {
    fn drop(&mut self) {
        self.member.state().acked(&self.touched);
        self.member.wake();
    }
}
