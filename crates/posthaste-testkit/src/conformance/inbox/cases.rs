//! The cases of the inbox suite.

use super::{HandlerTx, InboxFixture, Isolation, NotAdmitted};
use crate::conformance::DEADLINE;
use posthaste::inbox::{Admission, MESSAGE_ID_BYTES_MAX};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// Admits, and applies what is new. `None`: another transaction was in the way.
async fn work(tx: &mut Box<dyn HandlerTx>, consumer: &str, id: &str) -> Option<Admission> {
    match tx.admit(consumer, id).await {
        Ok(Admission::First) => tx.apply(id).await,
        Ok(Admission::Duplicate) => return Some(Admission::Duplicate),
        Err(NotAdmitted::Conflict) => return None,
        Err(other) => panic!("{other:?}"),
    }
    Some(Admission::First)
}

/// One delivery, as a consumer handles it: again while others are in the way.
async fn handle(fixture: &impl InboxFixture, consumer: &str, id: &str) -> Admission {
    for _ in 0..100 {
        let mut tx = fixture.begin(Isolation::Default).await;
        let admission = work(&mut tx, consumer, id).await;
        match admission {
            Some(admission) if tx.commit().await => return admission,
            _ => {}
        }
    }
    panic!("a hundred conflicts in a row");
}

/// Waits until the other transaction waits for ours, where the database shows it.
async fn until_somebody_waits(fixture: &impl InboxFixture) {
    let seen = tokio::time::timeout(DEADLINE, fixture.somebody_waits()).await;
    assert!(seen.is_ok(), "the second transaction should wait for the first");
}

/// Redelivery after the commit, before the acknowledgement.
pub async fn g5_the_first_is_admitted_and_every_other_is_a_duplicate(fixture: &impl InboxFixture) {
    assert_eq!(handle(fixture, "billing", "m-1").await, Admission::First);
    for _ in 0..3 {
        assert_eq!(handle(fixture, "billing", "m-1").await, Admission::Duplicate);
    }
    assert_eq!(handle(fixture, "billing", "m-2").await, Admission::First);
    assert_eq!((fixture.effects("m-1").await, fixture.effects("m-2").await), (1, 1));
    assert_eq!(fixture.marks("billing").await, 2);
}

/// The mark and the effects commit together or not at all.
pub async fn g5_a_rolled_back_handler_leaves_no_mark(fixture: &impl InboxFixture) {
    let mut tx = fixture.begin(Isolation::Default).await;
    assert_eq!(work(&mut tx, "billing", "m-1").await, Some(Admission::First));
    tx.rollback().await;
    assert_eq!((fixture.marks("billing").await, fixture.effects("m-1").await), (0, 0));
    assert_eq!(handle(fixture, "billing", "m-1").await, Admission::First);
}

/// A batch of deliveries in one transaction may hold a message twice.
pub async fn g5_within_one_transaction_the_second_is_a_duplicate(fixture: &impl InboxFixture) {
    let mut tx = fixture.begin(Isolation::Default).await;
    assert_eq!(tx.admit("billing", "m-1").await, Ok(Admission::First));
    assert_eq!(tx.admit("billing", "m-1").await, Ok(Admission::Duplicate));
    assert_eq!(tx.admit("billing", "m-2").await, Ok(Admission::First));
    assert!(tx.commit().await);
    assert_eq!(fixture.marks("billing").await, 2);
}

/// Each consumer does its own work with the same event.
pub async fn g5_consumers_do_not_share_marks(fixture: &impl InboxFixture) {
    assert_eq!(handle(fixture, "billing", "m-1").await, Admission::First);
    assert_eq!(handle(fixture, "shipping", "m-1").await, Admission::First);
    assert_eq!(handle(fixture, "shipping", "m-1").await, Admission::Duplicate);
    assert_eq!(fixture.effects("m-1").await, 2);
}

/// F70: check-then-act would let both through.
pub async fn f70_of_two_that_race_one_waits_and_is_a_duplicate(fixture: &impl InboxFixture) {
    let mut first = fixture.begin(Isolation::Default).await;
    assert_eq!(work(&mut first, "billing", "m-1").await, Some(Admission::First));
    let second = handle(fixture, "billing", "m-1");
    let end = async {
        until_somebody_waits(fixture).await;
        assert!(first.commit().await);
    };
    let (admission, ()) = tokio::join!(second, end);
    assert_eq!(admission, Admission::Duplicate);
    assert_eq!(fixture.effects("m-1").await, 1);
}

/// F70: and nothing is lost by it.
pub async fn f70_if_the_first_rolls_back_the_waiting_one_goes_on(fixture: &impl InboxFixture) {
    let mut first = fixture.begin(Isolation::Default).await;
    assert_eq!(work(&mut first, "billing", "m-1").await, Some(Admission::First));
    let second = handle(fixture, "billing", "m-1");
    let end = async {
        until_somebody_waits(fixture).await;
        first.rollback().await;
    };
    let (admission, ()) = tokio::join!(second, end);
    assert_eq!(admission, Admission::First);
    assert_eq!(fixture.effects("m-1").await, 1);
}

/// F70 under load: every message many times, from several sides, in different order.
pub async fn f70_many_at_once_have_one_effect(fixture: &impl InboxFixture) {
    let node = |node: usize| async move {
        for n in 0..20 {
            let id = format!("m-{}", (n * 7 + node * 3) % 20);
            let _ = handle(fixture, "billing", &id).await;
        }
    };
    futures_util::future::join_all((0..6).map(node)).await;
    for n in 0..20 {
        assert_eq!(fixture.effects(&format!("m-{n}")).await, 1, "m-{n}");
    }
    assert_eq!(fixture.marks("billing").await, 20);
}

/// A caller that sees an old state of the database is told to run again; it never does the work twice.
pub async fn a_stale_snapshot_is_a_conflict_and_then_a_duplicate(fixture: &impl InboxFixture) {
    let mut stale = fixture.begin(Isolation::Snapshot).await;
    assert_eq!(handle(fixture, "billing", "m-1").await, Admission::First);
    assert_eq!(stale.admit("billing", "m-1").await, Err(NotAdmitted::Conflict));
    stale.rollback().await;
    let mut again = fixture.begin(Isolation::Snapshot).await;
    assert_eq!(work(&mut again, "billing", "m-1").await, Some(Admission::Duplicate));
    assert!(again.commit().await);
    assert_eq!(fixture.effects("m-1").await, 1);
}

/// Ids of others have any form, and none of them means another.
pub async fn foreign_ids_are_marked_as_they_are(fixture: &impl InboxFixture) {
    let long = "x".repeat(MESSAGE_ID_BYTES_MAX);
    let ids = ["A", "a", "a ", "ä", "0195d0c0-0000-7000-8000-000000000000", "orders/3@17", "%_'\"\\", &long];
    for id in ids {
        assert_eq!(handle(fixture, "billing", id).await, Admission::First, "{id}");
    }
    for id in ids {
        assert_eq!(handle(fixture, "billing", id).await, Admission::Duplicate, "{id}");
    }
}

/// F71: such a message becomes a dead letter, in the same transaction if the consumer likes.
pub async fn f71_what_cannot_be_marked_leaves_the_transaction_usable(fixture: &impl InboxFixture) {
    let mut tx = fixture.begin(Isolation::Default).await;
    let long = "x".repeat(MESSAGE_ID_BYTES_MAX + 1);
    for id in ["", "a\0b", &long] {
        assert_eq!(tx.admit("billing", id).await, Err(NotAdmitted::Unfit));
    }
    assert_eq!(tx.admit("", "m-1").await, Err(NotAdmitted::Unfit));
    assert_eq!(work(&mut tx, "billing", "m-1").await, Some(Admission::First));
    assert!(tx.commit().await);
    assert_eq!(fixture.effects("m-1").await, 1);
}

/// F69: bounded, and by the declared age alone.
pub async fn f69_a_purge_takes_old_marks_in_chunks_and_no_others(fixture: &impl InboxFixture) {
    for n in 0..5 {
        let _ = handle(fixture, "billing", &format!("old-{n}")).await;
    }
    let _ = handle(fixture, "shipping", "old-0").await;
    fixture.age(2 * DAY).await;
    let _ = handle(fixture, "billing", "new").await;
    assert_eq!(fixture.purge("billing", 3 * DAY, 100).await, 0);
    assert_eq!(fixture.purge("billing", DAY, 3).await, 3);
    assert_eq!(fixture.purge("billing", DAY, 3).await, 2);
    assert_eq!(fixture.purge("billing", DAY, 3).await, 0);
    assert_eq!((fixture.marks("billing").await, fixture.marks("shipping").await), (1, 1));
    assert_eq!(handle(fixture, "billing", "new").await, Admission::Duplicate);
}

/// F69: hence the retention must exceed every redelivery.
pub async fn f69_a_purged_message_is_new_again(fixture: &impl InboxFixture) {
    let _ = handle(fixture, "billing", "m-1").await;
    fixture.age(2 * DAY).await;
    assert_eq!(fixture.purge("billing", DAY, 100).await, 1);
    assert_eq!(handle(fixture, "billing", "m-1").await, Admission::First);
}

/// Also while messages are admitted.
pub async fn two_purges_at_once_do_not_disturb_each_other(fixture: &impl InboxFixture) {
    for n in 0..40 {
        let _ = handle(fixture, "billing", &format!("old-{n}")).await;
    }
    fixture.age(2 * DAY).await;
    let purge = || async {
        let mut purged = 0;
        while let taken @ 1.. = fixture.purge("billing", DAY, 5).await {
            purged += taken;
        }
        purged
    };
    let admit = async {
        for n in 0..10 {
            assert_eq!(handle(fixture, "billing", &format!("new-{n}")).await, Admission::First);
        }
    };
    let (one, two, ()) = tokio::join!(purge(), purge(), admit);
    assert_eq!((one + two, fixture.marks("billing").await), (40, 10));
}
