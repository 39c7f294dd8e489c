//! Reading one partition under one epoch, ahead of what is asked for.
//!
//! The task ends with its epoch. Whatever interrupts the reading ends the epoch as soon as the log can be
//! looked at again: then its consumer compares the log with what it knows of it, and seeks.

use super::LogMember;
use super::tail::{LogLook, Tailed};
use crate::source::{Change, Partition, SourceError};
use std::sync::Arc;
use std::time::Duration;

/// Between two tries of a log that is out of reach: the first pause and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

pub(super) async fn read_on(inner: Arc<LogMember>, partition: Partition, epoch: i64, from: i64) {
    let (mut pause, longest) = PAUSES;
    let mut was_interrupted = false;
    loop {
        let read = match look(&inner, &partition).await {
            Ok(look) if was_interrupted || is_another(&inner, &partition, epoch, &look) => {
                inner.begin_anew(&partition, epoch);
                return;
            }
            Ok(look) => read(&inner, &partition, epoch, from, look).await,
            Err(error) => Err(error),
        };
        let Err(error) = read else { return };
        let is_over = !error.is_transient();
        inner.state().set_fault(error);
        inner.stir();
        if is_over {
            return;
        }
        was_interrupted = true;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

async fn look(inner: &LogMember, partition: &Partition) -> Result<LogLook, SourceError> {
    let none = || {
        let text = format!("there is no {:?} at the broker. Its messages are waited for", partition.topic);
        SourceError::Transient(text)
    };
    inner.log.look(partition).await?.ok_or_else(none)
}

/// Whether the log is another one than the consumer saw.
fn is_another(inner: &LogMember, partition: &Partition, epoch: i64, look: &LogLook) -> bool {
    let mut state = inner.state();
    let viewed = state.of_epoch(partition, epoch).and_then(|owned| owned.viewed.clone());
    viewed.is_some_and(|viewed| look.log.log_id.as_ref() != Some(&viewed))
}

/// Reads until nobody wants it any more.
async fn read(
    inner: &LogMember,
    partition: &Partition,
    epoch: i64,
    mut from: i64,
    look: LogLook,
) -> Result<(), SourceError> {
    match look.misplaced(partition, from) {
        Some(Change::Lost { from: first, until, .. }) => {
            inner.state().keep(partition, epoch, vec![Tailed::Lost(first..until)]);
            from = until;
        }
        Some(change) => {
            let mut state = inner.state();
            if let Some(owned) = state.of_epoch(partition, epoch) {
                owned.is_beyond = true;
                state.note(change);
            }
            drop(state);
            inner.stir();
            return Ok(());
        }
        None => {}
    }
    if let Some(owned) = inner.state().of_epoch(partition, epoch) {
        owned.began = Some(look);
    }
    inner.stir();
    let mut tail = inner.log.tail(partition, from).await?;
    while has_room(inner, partition, epoch).await {
        let tailed = tail.next().await?;
        if !inner.state().keep(partition, epoch, tailed) {
            break;
        }
        inner.stir();
    }
    Ok(())
}

/// Waits for room. `false`: the epoch is over.
async fn has_room(inner: &LogMember, partition: &Partition, epoch: i64) -> bool {
    loop {
        let room = inner.room.notified();
        match inner.state().of_epoch(partition, epoch) {
            None => return false,
            Some(owned) if owned.has_room() => return true,
            Some(_) => {}
        }
        room.await;
    }
}
