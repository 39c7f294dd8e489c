//! Care: an event that kills its relay must not do so for ever (F21).

use super::super::{DEADLINE, eventually};
use super::StoreFixture;
use super::stage::{Relay, WIDE, append_many, read, read_one, relay, settle, take_when_free, through};
use posthaste::store::{Care, Lease, PageLimit};
use std::sync::Arc;

/// Deaths after which any store must have become as careful as it gets.
const ENOUGH: usize = 10;

/// An owner that reads, settles nothing and dies.
async fn die(fixture: &impl StoreFixture, name: &str) -> Arc<dyn Lease> {
    let relay = relay(fixture, name).await;
    let lease = take_when_free(&relay).await;
    read(&lease, WIDE).await;
    fixture.kill(name).await;
    lease
}

async fn next_owner(fixture: &impl StoreFixture, name: &str) -> (Relay, Arc<dyn Lease>) {
    let relay = relay(fixture, name).await;
    let lease = take_when_free(&relay).await;
    (relay, lease)
}

/// Small pages first, then one by one, and never back while owners go on dying.
pub async fn care_grows_after_unclean_handovers(fixture: &impl StoreFixture) {
    append_many(fixture, 3).await;
    let level = |care: &Care| match care {
        Care::None => 0,
        Care::Small => 1,
        Care::OneByOne { .. } => 2,
    };
    let mut levels = Vec::new();
    for n in 0..ENOUGH {
        levels.push(level(&die(fixture, &format!("relay-{n}")).await.care()));
    }
    assert_eq!(levels[0], 0, "the first owner goes as usual");
    assert!(levels.is_sorted(), "{levels:?}");
    assert!(levels.contains(&1) && levels.ends_with(&[2]), "{levels:?}");
}

/// Giving a lane back is no death.
pub async fn release_is_clean(fixture: &impl StoreFixture) {
    append_many(fixture, 3).await;
    let relay = relay(fixture, "a").await;
    for _ in 0..ENOUGH {
        let lease = relay.lease().await;
        read(&lease, WIDE).await;
        assert_eq!(lease.care(), Care::None);
        lease.release().await.expect("released");
    }
}

/// Whoever gets past the place has left it behind.
pub async fn progress_resets_care(fixture: &impl StoreFixture) {
    append_many(fixture, 3).await;
    for n in 0..ENOUGH {
        die(fixture, &format!("relay-{n}")).await;
    }
    let (_relay, lease) = next_owner(fixture, "survivor").await;
    assert!(matches!(lease.care(), Care::OneByOne { .. }));
    let page = read(&lease, WIDE).await;
    settle(&lease, through(page.number)).await;
    lease.take_in_hand(None).await.expect("nothing in hand");
    lease.release().await.expect("released");
    let (_relay, lease) = next_owner(fixture, "next").await;
    assert_eq!(lease.care(), Care::None);
}

/// Owners that settle a little before they die are still owners that die at one place.
pub async fn f21_small_steps_do_not_hide_a_death(fixture: &impl StoreFixture) {
    append_many(fixture, ENOUGH + 1).await;
    for n in 0..ENOUGH {
        let name = format!("relay-{n}");
        let (_relay, lease) = next_owner(fixture, &name).await;
        let page = read(&lease, PageLimit { events: 1, bytes: WIDE.bytes }).await;
        settle(&lease, through(page.number)).await;
        fixture.kill(&name).await;
    }
    let (_relay, lease) = next_owner(fixture, "last").await;
    assert!(matches!(lease.care(), Care::OneByOne { .. }), "{:?}", lease.care());
}

/// The event that was written down before each death is named to the next owner, with the count.
pub async fn f21_the_event_in_hand_is_the_suspect(fixture: &impl StoreFixture) {
    let seqs = append_many(fixture, 3).await;
    for n in 0..ENOUGH {
        die(fixture, &format!("relay-{n}")).await;
    }
    let mut last = 0;
    for n in 0..3 {
        let name = format!("careful-{n}");
        let (_relay, lease) = next_owner(fixture, &name).await;
        match lease.care() {
            Care::OneByOne { suspect: None } => assert_eq!(n, 0, "the suspect is known by now"),
            Care::OneByOne { suspect: Some((seq, deaths)) } => {
                assert_eq!(seq, seqs[0]);
                assert!(deaths > last, "each death is counted: {deaths} after {last}");
                last = deaths;
            }
            other => panic!("not careful: {other:?}"),
        }
        let (_, stored) = read_one(&lease).await;
        lease.take_in_hand(Some(stored.seq)).await.expect("written down");
        fixture.kill(&name).await;
    }
    let (_relay, lease) = next_owner(fixture, "last").await;
    assert!(matches!(lease.care(), Care::OneByOne { suspect: Some((seq, 3)) } if seq == seqs[0]));
}

/// F50: a server that goes down is no death of whoever owns a lane, and no event is suspected.
pub async fn f21_a_crash_of_the_server_is_nobodys_death(fixture: &impl StoreFixture) {
    append_many(fixture, 3).await;
    let relay = relay(fixture, "a").await;
    let mut lease = relay.lease().await;
    for _ in 0..ENOUGH {
        let (_, stored) = read_one(&lease).await;
        lease.take_in_hand(Some(stored.seq)).await.expect("written down");
        if !fixture.crash_server().await {
            return;
        }
        eventually("the relay joins again", DEADLINE, || async { relay.store.join(&relay.plan).await.ok() })
            .await;
        lease = relay.lease().await;
        assert_eq!(lease.care(), Care::None);
    }
}
