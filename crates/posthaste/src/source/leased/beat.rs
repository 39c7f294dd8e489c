//! The membership: a task that renews the leases, takes what is free and gives back what is above the share.
//!
//! It beats four times in a lease's life, and at once when a log appears or somebody waits for it. A
//! partition is given back in two steps: first nothing more goes out of it; then, when nothing of it is in
//! hand or its deadline has passed, the lease is ended. So a clean hand-over redelivers nothing.

use super::lease::{HeldLease, LeaseBeat, LeaseRoll, TakenLease};
use super::share::{Move, decide};
use super::{LogMember, MemberState};
use crate::source::{Drained, Partition, SourceError, StartFrom};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// After a failure the next try comes soon: a lease does not wait.
const AGAIN: Duration = Duration::from_millis(500);

/// The task. It ends when the source is drained or dropped.
pub(super) async fn beat_on(inner: Arc<LogMember>) {
    let (pause, mut is_failing) = (inner.config.lease_ttl / 4, false);
    loop {
        // An answer that comes after the lease's end is of no use.
        let beaten = tokio::time::timeout(inner.config.lease_ttl, beat(&inner)).await;
        let beaten =
            beaten.unwrap_or_else(|_| Err(SourceError::Transient("the leases do not answer".to_owned())));
        if let Err(error) = &beaten {
            if !is_failing {
                tracing::warn!(member = %inner.config.member, %error, "the leases could not be renewed; it is tried again");
            }
            inner.state().set_fault(error.clone());
        }
        is_failing = beaten.is_err();
        forget_untrusted(&inner);
        inner.stir();
        if inner.state().drained().is_some() {
            return;
        }
        let leaving = inner.state().partitions.values().filter_map(|owned| owned.leaving).min();
        let end = Instant::now() + if beaten.is_err() { pause.min(AGAIN) } else { pause };
        let wake = leaving.map_or(end, |deadline| deadline.max(Instant::now() + AGAIN / 10).min(end));
        tokio::select! {
            () = inner.beat_now.notified() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

/// Leases that were not renewed in time are nobody's word any more (F22).
fn forget_untrusted(inner: &LogMember) {
    let now = Instant::now();
    let mut state = inner.state();
    let over: Vec<HeldLease> = held(&state, |owned| owned.trusted_until <= now);
    for lease in over {
        tracing::warn!(member = %inner.config.member, partition = %lease.partition, "the lease was not renewed in time: others may have it");
        state.lose(&lease.partition, lease.epoch);
    }
}

fn held(state: &MemberState, which: impl Fn(&super::state::LeasedPartition) -> bool) -> Vec<HeldLease> {
    let all = state.partitions.iter().filter(|(_, owned)| which(owned));
    all.map(|(partition, owned)| owned.held(partition)).collect()
}

/// One heartbeat.
async fn beat(inner: &Arc<LogMember>) -> Result<(), SourceError> {
    let stays = note_stall(inner);
    let partitions = inner.known();
    let (asked_at, beat) = (Instant::now(), beat_of(inner, partitions.clone()));
    if stays || !beat.held.is_empty() {
        let roll = inner.leases.renew(&beat).await?;
        apply(inner, &beat, &roll, asked_at, stays);
        if stays {
            take(inner, &roll, partitions.len()).await?;
        }
    } else {
        inner.leases.leave(&inner.config.member).await?;
    }
    give_back(inner).await
}

fn beat_of(inner: &LogMember, partitions: Vec<Partition>) -> LeaseBeat {
    let (member, ttl) = (Arc::clone(&inner.config.member), inner.config.lease_ttl);
    LeaseBeat { member, held: held(&inner.state(), |_| true), partitions, ttl }
}

/// Whether this member takes part. A consumer that does not ask for messages gives everything up (F67).
fn note_stall(inner: &LogMember) -> bool {
    let mut state = inner.state();
    let is_stalled = state.last_call.elapsed() > inner.config.stall_limit;
    if is_stalled && !state.partitions.is_empty() {
        tracing::warn!(member = %inner.config.member, "the consumer has not asked for messages for too long; its partitions go to others");
        let now = Instant::now();
        state.partitions.values_mut().for_each(|owned| owned.leaving = Some(now));
    }
    !is_stalled && state.closing().is_none()
}

fn apply(inner: &LogMember, beat: &LeaseBeat, roll: &LeaseRoll, asked_at: Instant, stays: bool) {
    let trusted_until = asked_at + inner.config.lease_ttl * 3 / 4;
    let mut state = inner.state();
    for (lease, is_kept) in beat.held.iter().zip(&roll.kept) {
        let owned = state.partitions.get_mut(&lease.partition).filter(|owned| owned.lease == lease.epoch);
        match owned {
            Some(owned) if *is_kept => owned.trusted_until = trusted_until,
            _ => state.lose(&lease.partition, lease.epoch),
        }
    }
    if !stays {
        return;
    }
    let mine = state.partitions.len();
    let surplus = match decide(&inner.config.member, mine, beat.partitions.len(), roll) {
        Move::Release(count) => count,
        Move::Take(_) => 0,
    };
    let deadline = Instant::now() + inner.config.handover_wait;
    // The last ones go: every member would choose the same ones.
    for (index, owned) in state.partitions.values_mut().enumerate() {
        let goes = index >= mine - surplus.min(mine);
        owned.leaving = if goes { owned.leaving.or(Some(deadline)) } else { None };
    }
}

async fn take(inner: &Arc<LogMember>, roll: &LeaseRoll, total: usize) -> Result<(), SourceError> {
    let mine = inner.state().partitions.len();
    let Move::Take(most) = decide(&inner.config.member, mine, total, roll) else { return Ok(()) };
    let mut taken = 0;
    for partition in &roll.free {
        if taken == most {
            break;
        }
        if inner.state().partitions.contains_key(partition) {
            continue;
        }
        let asked_at = Instant::now();
        let lease = inner.leases.take(&inner.config.member, partition, inner.config.lease_ttl).await?;
        if let Some(lease) = lease {
            taken += 1;
            gain(inner, partition, &lease, asked_at + inner.config.lease_ttl * 3 / 4).await?;
        }
    }
    // The others should hear of it.
    if taken > 0 {
        let beat = beat_of(inner, Vec::new());
        inner.leases.renew(&beat).await?;
    }
    Ok(())
}

/// A partition is ours. Where the leases keep its position, reading begins there, or where it was declared.
async fn gain(
    inner: &Arc<LogMember>,
    partition: &Partition,
    lease: &TakenLease,
    trusted_until: Instant,
) -> Result<(), SourceError> {
    let came_later = inner.seen().get(partition).and_then(|seen| seen.came_later);
    let epoch = inner.state().gain(partition, lease, trusted_until);
    let Some(start_from) = inner.config.start_from else {
        // A log that came while this member waited is read from its beginning, whatever was declared (F62).
        if let Some(owned) = inner.state().of_epoch(partition, epoch) {
            owned.declared = came_later;
        }
        return Ok(());
    };
    let from = match (lease.position, came_later, start_from) {
        (Some(position), ..) => position,
        (None, Some(first), _) => first,
        (None, None, StartFrom::Earliest) => {
            inner.position(partition, crate::source::SeekTo::Earliest).await?
        }
        (None, None, StartFrom::Latest) => inner.position(partition, crate::source::SeekTo::Latest).await?,
    };
    if lease.position.is_none() {
        let held = HeldLease { partition: partition.clone(), epoch: lease.epoch };
        inner.leases.settle(&[(held, Some(from))]).await?;
    }
    inner.read_from(partition, epoch, from);
    Ok(())
}

/// Gives back what is leaving and has nothing in hand, or whose time is over.
async fn give_back(inner: &LogMember) -> Result<(), SourceError> {
    let now = Instant::now();
    let going = held(&inner.state(), |owned| {
        owned.leaving.is_some_and(|deadline| owned.is_idle() || deadline <= now)
    });
    if !going.is_empty() {
        release(inner, &going).await?;
    }
    let is_done = {
        let state = inner.state();
        state.partitions.is_empty() && state.closing().is_some()
    };
    if is_done {
        inner.leases.leave(&inner.config.member).await?;
        inner.state().closed();
    }
    Ok(())
}

async fn release(inner: &LogMember, going: &[HeldLease]) -> Result<(), SourceError> {
    inner.leases.release(&inner.config.member, going).await?;
    let mut state = inner.state();
    going.iter().for_each(|lease| state.lose(&lease.partition, lease.epoch));
    Ok(())
}

/// The end of a drain whose task could not do it in time.
pub(super) async fn release_now(inner: &LogMember) -> Result<Drained, SourceError> {
    let going = held(&inner.state(), |_| true);
    release(inner, &going).await?;
    inner.leases.leave(&inner.config.member).await?;
    inner.state().closed();
    inner.stir();
    Ok(inner.state().drained().unwrap_or_default())
}
