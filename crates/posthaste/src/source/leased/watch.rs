//! A look at all logs every two seconds: which of them exist, and whether they are still those that are read.
//!
//! A reading does not notice everything by itself. A stream that was deleted and made again under an open
//! connection, or that lost its end, just brings nothing more.

use super::LogMember;
use super::tail::LogLook;
use crate::source::{Partition, SourceError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often.
const EVERY: Duration = Duration::from_secs(2);
/// A log that does not answer for so long is out of reach.
const WITHIN: Duration = Duration::from_secs(10);
/// A reading that brings nothing for so long, although there is something, is begun anew.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// What is known of a log.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenLog {
    exists: bool,
    was_absent: bool,
    /// Where it begins, if it came while this member waited for it.
    pub(super) came_later: Option<i64>,
}

impl LogMember {
    /// The partitions that there are.
    pub(super) fn known(&self) -> Vec<Partition> {
        let seen = self.seen();
        let exists = |partition: &&Partition| seen.get(*partition).is_some_and(|seen| seen.exists);
        self.config.partitions.iter().filter(exists).cloned().collect()
    }
}

/// The task. It ends with the source.
pub(super) async fn watch_on(inner: Arc<LogMember>) {
    loop {
        for partition in &inner.config.partitions {
            let before = read_to(&inner, partition);
            let looked = tokio::time::timeout(WITHIN, inner.log.look(partition)).await;
            let silent = || SourceError::Transient("the broker does not answer".to_owned());
            match looked.unwrap_or_else(|_| Err(silent())) {
                Ok(look) => note(&inner, partition, look, before),
                Err(error) => {
                    inner.state().set_fault(error);
                    inner.stir();
                }
            }
        }
        if inner.state().drained().is_some() {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// What is being read, and up to where.
fn read_to(inner: &LogMember, partition: &Partition) -> Option<(i64, i64)> {
    let state = inner.state();
    let owned = state.partitions.get(partition).filter(|owned| owned.began.is_some() && !owned.is_beyond)?;
    Some((owned.epoch, owned.read_to))
}

fn note(inner: &Arc<LogMember>, partition: &Partition, look: Option<LogLook>, before: Option<(i64, i64)>) {
    let is_new = {
        let mut seen = inner.seen();
        let seen = seen.entry(partition.clone()).or_default();
        let is_new = look.is_some() && !seen.exists;
        if let Some(look) = look.as_ref().filter(|_| is_new && seen.was_absent) {
            seen.came_later = Some(look.log.first);
        }
        if look.is_none() && !seen.was_absent && !seen.exists {
            tracing::warn!(%partition, "there is no such log at the broker: it is read once it is there");
        }
        seen.was_absent |= look.is_none();
        // One that is gone stays ours: it may come back, and its consumer has to hear what it is then.
        seen.exists |= look.is_some();
        is_new
    };
    if is_new {
        inner.beat_now.notify_one();
    }
    let Some((epoch, read_to)) = before else { return };
    let is_begun_anew = match &look {
        None => true,
        Some(look) => is_another(inner, partition, epoch, look, read_to),
    };
    if is_begun_anew {
        tracing::warn!(member = %inner.config.member, %partition, "the log is not the one that was read, or brings nothing more: it is looked at again");
        inner.begin_anew(partition, epoch);
    }
}

/// Whether the log is another one, ends before what was read of it before this look, or stands still.
fn is_another(inner: &LogMember, partition: &Partition, epoch: i64, look: &LogLook, read_to: i64) -> bool {
    let mut state = inner.state();
    let Some(owned) = state.of_epoch(partition, epoch) else { return false };
    let Some(began) = &owned.began else { return false };
    let is_still = owned.read_to == read_to
        && look.log.end > read_to
        && owned.has_room()
        && Instant::now().saturating_duration_since(owned.read_at) > SILENT_FOR;
    began.log.log_id != look.log.log_id || look.log.end < read_to || is_still
}
