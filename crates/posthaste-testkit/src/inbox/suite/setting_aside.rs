//! T2: deferred and buried, each with its mark.

use super::ConsumerFixture;
use super::applying::{same, strange};
use super::stage::{CONSUMER, bury, defer, failure, heads, member, work};
use posthaste::consumer::store::MessageOutcome::{Done, Duplicate, Held};
use posthaste::consumer::store::{Burial, DeferOrBury, SetAside};
use posthaste::consumer::{Disposition, Failure, FailureKind};
use posthaste::event::Timestamp;
use std::time::Duration;
use uuid::Uuid;

/// Mark and copy in one transaction, with what was spent so far.
pub async fn g6_a_deferred_message_has_its_mark_and_a_copy(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let mut tried = work("a", 1);
    tried.attempts = 2;
    tried.history.push(Timestamp(1), "error", "first", "it failed");
    tried.history.push(Timestamp(2), "error", "second", "it failed again");
    assert_eq!(member.defer(&[tried], &defer()).await, [SetAside::Kept]);
    assert_eq!(member.marks().await, "a1=w");
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.attempts, row.replays, row.holds, row.repeat, row.is_behind), (2, 0, true, false, false));
    assert_eq!(row.code.as_deref(), Some("suite.failed"));
    assert_eq!(row.history, ["first", "second"], "as the engine has it: the store counts nothing here");
    assert_eq!(member.apply(&[work("a", 1)]).await, [Duplicate]);
}

/// Somebody else was quicker, or it comes again: settled, and nothing changes.
pub async fn g6_what_has_its_mark_is_not_set_aside_again(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    assert_eq!(member.apply(&[work("a", 1)]).await, [Done]);
    member.defer(&[work("b", 2)], &defer()).await;
    member.defer(&[work("c", 3)], &bury(false)).await;
    for (key, position) in [("a", 1), ("b", 2), ("c", 3)] {
        for how in [defer(), bury(true)] {
            assert_eq!(member.defer(&[work(key, position)], &how).await, [SetAside::Settled]);
        }
    }
    assert_eq!(member.marks().await, "a1=d b2=w c3=x");
    assert_eq!(member.waiting().await, "b2");
    assert!(!member.letter().await.holds_key);
}

/// The head first, then those behind it, whatever time passes.
pub async fn g3_followers_run_behind_their_head(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let key = [work("a", 1), work("a", 2)];
    assert_eq!(member.defer(&key, &defer()).await, [SetAside::Kept, SetAside::Kept]);
    assert_eq!(member.apply(&[work("a", 3)]).await, [Held]);
    let later = [work("a", 3), work("a", 4)];
    assert_eq!(member.defer(&later, &DeferOrBury::Behind).await, [SetAside::Kept, SetAside::Kept]);
    assert_eq!(member.waiting().await, "a1 (a2) (a3) (a4)");
    assert_eq!(member.defer(&[work("a", 5)], &defer()).await, [SetAside::Kept], "behind the hold as well");
    assert_eq!(member.waiting().await, "a1 (a2) (a3) (a4) (a5)");
    assert_eq!(member.work_off(&heads()).await.done(), 5);
    assert_eq!(member.effects().await, ["a1", "a2", "a3", "a4", "a5"]);
    assert_eq!(member.marks().await, "a1=d a2=d a3=d a4=d a5=d");
    assert_eq!(member.apply(&[work("a", 6)]).await, [Done]);
}

/// The hold left in between: nobody would ever wake what is put behind it now.
pub async fn g3_behind_a_hold_that_is_gone_is_free(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &defer()).await;
    assert_eq!(member.apply(&[work("a", 2), work("a", 3)]).await, [Held, Held]);
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    let held = [work("a", 2), work("a", 3)];
    assert_eq!(member.defer(&held, &DeferOrBury::Behind).await, [SetAside::Free, SetAside::Free]);
    assert_eq!(member.marks().await, "a1=d");
    assert_eq!(member.apply(&held).await, [Done, Done]);
}

/// The first of them was done by somebody else, so there is nothing to wait for.
pub async fn g3_behind_a_message_that_is_done_is_free(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    assert_eq!(member.apply(&[work("a", 1)]).await, [Done]);
    let key = [work("a", 1), work("a", 2)];
    assert_eq!(member.defer(&key, &defer()).await, [SetAside::Settled, SetAside::Free]);
    assert_eq!((member.marks().await, member.waiting().await), ("a1=d".to_owned(), String::new()));
}

/// Mark and letter in one transaction, with what happened.
pub async fn g6_a_burial_has_its_mark_and_a_letter(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let mut tried = work("a", 1);
    tried.attempts = 4;
    tried.history.push(Timestamp(1), "error", "last", "it failed");
    let letter = Uuid::now_v7();
    let failure = failure("suite.dead");
    let burial = Burial { letter, disposition: Disposition::Timeout, failure, holds_key: true };
    assert_eq!(member.defer(&[tried], &DeferOrBury::Bury(burial)).await, [SetAside::Kept]);
    let found = member.letter().await;
    assert_eq!((found.letter, &*found.id, found.attempts), (letter, "a1", 4));
    assert_eq!((&*found.disposition, &*found.code), ("timeout", "suite.dead"));
    assert_eq!((found.history, found.holds_key, found.repeat), (vec!["last".to_owned()], true, false));
    assert_eq!((member.marks().await, member.effects().await.len()), ("a1=x".to_owned(), 0));
}

/// Declared by the consumer: its key goes on, or waits for an operator.
pub async fn g3_a_dead_letter_holds_its_key_when_asked(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(true)).await;
    member.defer(&[work("b", 2)], &bury(false)).await;
    assert_eq!(member.apply(&[work("a", 3), work("b", 4)]).await, [Held, Done]);
    assert_eq!(member.defer(&[work("a", 3)], &DeferOrBury::Behind).await, [SetAside::Kept]);
    assert_eq!(member.work_off(&heads()).await.done(), 0, "it waits for an operator");
    assert_eq!(member.waiting().await, "(a3)");
}

/// The copy in the table is the message.
pub async fn f86_a_deferred_message_comes_back_as_it_came(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let mut original = strange();
    original.attempts = 1;
    member.defer(&[original.clone()], &defer()).await;
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    let seen = member.script.seen();
    assert!(same(&seen[0].0, &original.delivery), "{seen:?}");
    assert_eq!(seen[0].1, 2);
}

/// F71: a message that cannot even be written down as dead would stop its partition for ever.
pub async fn f86_whatever_a_failure_says_can_be_written_down(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let failure =
        Failure::new(FailureKind::Error, "suite.odd", format!("zero \0 and {}", "ä".repeat(100_000)))
            .with_stack(Some("at \0 line 1".repeat(10_000)));
    let mut first = work("a", 1);
    first.history.push(Timestamp(1), "error", "suite.odd", &failure.message);
    let delay = Duration::from_secs(1);
    let deferred = DeferOrBury::Defer { delay, failure: failure.clone() };
    assert_eq!(member.defer(&[first], &deferred).await, [SetAside::Kept]);
    let letter = Uuid::now_v7();
    let burial = Burial { letter, disposition: Disposition::Exhausted, failure, holds_key: false };
    assert_eq!(member.defer(&[strange_of_b()], &DeferOrBury::Bury(burial)).await, [SetAside::Kept]);
    assert_eq!(member.marks().await, "a1=w b2=x");
    assert!(fixture.replay(CONSUMER, letter).await);
    assert_eq!(member.work_off(&heads()).await.done(), 2);
    let seen = member.script.seen();
    assert!(seen.iter().any(|(delivery, _)| same(delivery, &strange_of_b().delivery)), "{seen:?}");
}

fn strange_of_b() -> posthaste::consumer::store::Work {
    let mut work = work("b", 2);
    let mut delivery = (*strange().delivery).clone();
    delivery.ticket = work.delivery.ticket.clone();
    delivery.position = work.delivery.position;
    delivery.message.id = work.delivery.message.id.clone();
    delivery.message.key = work.delivery.message.key.clone();
    work.delivery = std::sync::Arc::new(delivery);
    work
}
