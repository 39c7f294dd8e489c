//! The membership: a task that beats, takes partitions and gives them back.
//!
//! It beats three times in a lease's life, at once when the group has changed or somebody waits for it, and
//! when the heart of another member stops. Idle, that is one small transaction every few seconds.
//!
//! A partition is given back in two steps. First nothing more goes out of it; then, when nothing of it is in
//! hand or its deadline has passed, its owner is taken off. So a clean hand-over redelivers nothing.

use super::assignment::MemberState;
use super::{SourceMember, source_error};
use crate::broker::group::{self, Beat, Beaten, Held};
use crate::log::heart;
use crate::writer::WriteError;
use posthaste::source::{Drained, SourceError};
use posthaste::store::StoreError;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often to feel the hearts of the others: how long a dead process's partitions lie idle.
const FEEL_EVERY: Duration = Duration::from_millis(300);

/// The task. It ends when the source is drained or dropped.
pub(super) async fn beat_on(inner: Arc<SourceMember>) {
    let pause = inner.config.lease_ttl / 3;
    loop {
        let ended = beat(&inner).await;
        let fault = ended.as_ref().err().map(|error| source_error(error.clone()));
        if let Some(fault) = &fault {
            tracing::warn!(group = %inner.group, member = %inner.member, error = %fault, "heartbeat failed; it is tried again");
        }
        inner.state().set_fault(fault);
        inner.stir();
        if inner.state().drained().is_some() {
            return;
        }
        rest(&inner, pause.min(if ended.is_err() { FEEL_EVERY } else { pause })).await;
    }
}

/// Until the next heartbeat, or an earlier reason for one.
async fn rest(inner: &Arc<SourceMember>, pause: Duration) {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        let deadline = inner.state().partitions.values().filter_map(|owned| owned.leaving).min();
        let wake = deadline.unwrap_or(end).min(end).min(Instant::now() + FEEL_EVERY);
        tokio::select! {
            () = inner.beat_now.notified() => return,
            () = tokio::time::sleep_until(wake) => {}
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) || somebody_died(inner).await {
            return;
        }
    }
}

async fn somebody_died(inner: &Arc<SourceMember>) -> bool {
    let hearts = inner.state().others.clone();
    let Ok(link) = inner.broker.link() else { return false };
    let feel = move || hearts.iter().any(|name| !heart::beats(&link.path, name));
    tokio::task::spawn_blocking(feel).await.unwrap_or(false)
}

/// One heartbeat: renew, take, mark what is above the share, give back what is empty.
async fn beat(inner: &Arc<SourceMember>) -> Result<(), StoreError> {
    let link = inner.broker.link()?;
    let moving = inner.moving.lock().await;
    let (beat, stays) = plan(inner);
    if !stays && beat.held.is_empty() {
        return leave(inner).await;
    }
    let held = beat.held.clone();
    let (path, frozen) = (Arc::clone(&link.path), Arc::clone(&inner.frozen));
    let beaten: Result<Beaten, WriteError> = link
        .writer
        .run(move |tx| {
            // The dead take nothing, although their last word is still in the queue.
            if frozen.load(Ordering::SeqCst) {
                Err(WriteError::Closed)
            } else {
                Ok(group::beat(tx, &path, &beat)?)
            }
        })
        .await;
    apply(inner, &held, beaten?);
    drop(moving);
    give_back(inner).await
}

fn plan(inner: &Arc<SourceMember>) -> (Beat, bool) {
    let heart = inner.heart.lock().unwrap_or_else(PoisonError::into_inner);
    let heart = heart.as_ref().map(|heart| heart.name.clone());
    let mut state = inner.state();
    let stalled = state.last_call.elapsed() > inner.config.stall_limit;
    if stalled && state.joined && state.closing().is_none() {
        tracing::warn!(group = %inner.group, member = %inner.member, "the consumer has not asked for messages for too long; its partitions go to others");
    }
    if stalled {
        let now = Instant::now();
        state.partitions.values_mut().for_each(|owned| owned.leaving = Some(now));
    }
    let takes = !stalled && state.closing().is_none();
    let most = Duration::from_micros(group::LEASE_MICROS_MAX as u64);
    let beat = Beat {
        group: Arc::clone(&inner.group),
        member: Arc::clone(&inner.member),
        topics: inner.topics.clone(),
        heart,
        ttl_micros: crate::clock::micros(inner.config.lease_ttl.min(most)),
        start_from: inner.config.start_from,
        held: state.partitions.values().map(|owned| owned.held()).collect(),
        takes,
    };
    (beat, takes)
}

fn apply(inner: &Arc<SourceMember>, held: &[Held], beaten: Beaten) {
    let mut state = inner.state();
    let epoch = |row: i64| held.iter().find(|held| held.row == row).map_or(0, |held| held.epoch);
    for row in beaten.lost {
        state.lose(row, epoch(row));
    }
    let deadline = state.closing().unwrap_or_else(|| Instant::now() + inner.config.handover_wait);
    for owned in state.partitions.values_mut() {
        match beaten.surplus.contains(&owned.row) {
            true => owned.leaving = owned.leaving.or(Some(deadline)),
            false => owned.leaving = None,
        }
    }
    for taken in beaten.taken {
        state.gain(taken);
    }
    state.group_changes = beaten.changes;
    state.others = beaten.others;
    state.joined = true;
}

/// Gives back what is leaving and has nothing in hand, or whose time is over.
async fn give_back(inner: &Arc<SourceMember>) -> Result<(), StoreError> {
    let now = Instant::now();
    let going: Vec<(Held, bool)> = {
        let state = inner.state();
        let leaving = state.partitions.values().filter(|owned| owned.leaving.is_some());
        let over = |owned: &&super::assignment::Owned| {
            owned.is_idle() || owned.leaving.is_some_and(|deadline| deadline <= now)
        };
        leaving.filter(over).map(|owned| (owned.held(), owned.hand.out() > 0)).collect()
    };
    if !going.is_empty() {
        release(inner, &going).await?;
    }
    let done = {
        let state = inner.state();
        state.partitions.is_empty() && state.closing().is_some()
    };
    if done { leave(inner).await } else { Ok(()) }
}

async fn release(inner: &Arc<SourceMember>, going: &[(Held, bool)]) -> Result<(), StoreError> {
    let (group, member) = (Arc::clone(&inner.group), Arc::clone(&inner.member));
    let rows = going.to_vec();
    let writer = inner.broker.link()?.writer;
    let released: Result<(), WriteError> =
        writer.run(move |tx| Ok(group::release(tx, &group, &member, &rows)?)).await;
    released?;
    let mut state = inner.state();
    for (held, _) in going {
        count_abandoned(&mut state, held);
        state.lose(held.row, held.epoch);
    }
    Ok(())
}

fn count_abandoned(state: &mut MemberState, held: &Held) {
    let of = state.partitions.values().find(|owned| owned.row == held.row && owned.epoch == held.epoch);
    let out = of.map_or(0, |owned| owned.hand.out());
    if state.closing().is_some() {
        state.abandoned += out;
    }
}

/// Takes the member off the list. A drained source is done with it.
async fn leave(inner: &Arc<SourceMember>) -> Result<(), StoreError> {
    let was_in = inner.state().joined;
    if was_in {
        let (group, member) = (Arc::clone(&inner.group), Arc::clone(&inner.member));
        let writer = inner.broker.link()?.writer;
        let left: Result<(), WriteError> = writer.run(move |tx| Ok(group::leave(tx, &group, &member)?)).await;
        left?;
    }
    let mut state = inner.state();
    state.joined = false;
    if state.closing().is_some() {
        state.closed();
    }
    drop(state);
    inner.stir();
    Ok(())
}

/// The end of a drain whose task could not do it in time.
pub(super) async fn release_now(inner: &Arc<SourceMember>) -> Result<Drained, SourceError> {
    let going: Vec<(Held, bool)> =
        inner.state().partitions.values().map(|owned| (owned.held(), owned.hand.out() > 0)).collect();
    release(inner, &going).await.map_err(source_error)?;
    leave(inner).await.map_err(source_error)?;
    Ok(inner.state().drained().unwrap_or_default())
}
