//! What operators do: replay, discard, and copies of a range. And what other people's tools do.

use super::ConsumerFixture;
use super::stage::{CONSUMER, Told, bury, defer, heads, member, partition, work, work_of};
use bytes::Bytes;
use posthaste::consumer::store::MessageOutcome::{Done, Duplicate, Held, Redriven};
use posthaste::consumer::store::{DeferOrBury, DueHeads, SetAside};
use std::sync::Arc;

/// Before everything else of its key that waits.
pub async fn f57_a_replayed_letter_returns_to_its_place(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(true)).await;
    member.defer(&[work("a", 2), work("a", 3)], &DeferOrBury::Behind).await;
    // Under "continue" others of its key may be deferred, and due, by the time of the replay.
    member.defer(&[work("b", 1)], &bury(false)).await;
    member.defer(&[work("b", 2)], &defer()).await;
    for letter in fixture.letters(CONSUMER).await {
        assert!(fixture.replay(CONSUMER, letter.letter).await);
    }
    assert_eq!(member.waiting().await, "a1 (a2) (a3) b1 b2");
    assert_eq!(member.apply(&[work("a", 4), work("b", 4)]).await, [Held, Held]);
    assert_eq!(member.work_off(&heads()).await.done(), 5);
    let effects = member.effects().await;
    let of = |key: char| effects.iter().filter(|id| id.starts_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of('a'), of('b')),
        (vec!["a1".into(), "a2".into(), "a3".into()], vec!["b1".into(), "b2".into()])
    );
    assert!(fixture.letters(CONSUMER).await.is_empty());
}

/// The other one is told.
pub async fn f59_of_two_replays_one_wins(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(false)).await;
    let letter = member.letter().await.letter;
    let (one, other) = tokio::join!(fixture.replay(CONSUMER, letter), fixture.replay(CONSUMER, letter));
    assert!(one != other, "{one} {other}");
    assert_eq!((member.marks().await, member.waiting().await), ("a1=w".to_owned(), "a1".to_owned()));
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    assert!(!fixture.replay(CONSUMER, letter).await);
}

/// All attempts again, and what happened before is still told.
pub async fn a_replay_starts_again_and_keeps_its_history(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &defer()).await;
    member.script.tell("a1", &[Told::Fail; 5]);
    for _ in 0..2 {
        member.work_off(&heads()).await;
    }
    assert!(fixture.replay(CONSUMER, member.letter().await.letter).await);
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.attempts, row.replays, row.history.len()), (0, 1, 2));
    assert_eq!(member.work_off(&heads()).await.failed.len(), 1);
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.attempts, row.history.len()), (1, 3));
    assert_eq!(member.work_off(&heads()).await.buried(), 1);
    assert_eq!(member.letter().await.attempts, 4, "a letter counts all of them");
}

/// Its mark stays: a copy that comes later is not handled.
pub async fn a_discard_lets_the_key_go_on(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(true)).await;
    member.defer(&[work("a", 2)], &DeferOrBury::Behind).await;
    fixture.discard(CONSUMER, member.letter().await.letter).await;
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    let copy = work_of("orders", 9, Some("a"), "a1");
    assert_eq!(member.apply(&[work("a", 1), copy, work("a", 3)]).await, [Duplicate, Duplicate, Done]);
    assert_eq!(member.effects().await, ["a2", "a3"]);
    assert_eq!(member.marks().await, "a1=x a2=d a3=d");
}

/// People send a dead message back to its topic with their own tools. Without this the inbox would swallow
/// it.
pub async fn g6_a_letter_that_is_sent_back_is_handled_again(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    for (key, holds) in [("a", false), ("b", true)] {
        member.defer(&[work(key, 1)], &bury(holds)).await;
        if holds {
            member.defer(&[work(key, 2)], &DeferOrBury::Behind).await;
        }
        let mut copy = work_of("orders", 50, Some(key), &format!("{key}1"));
        let mut delivery = (*copy.delivery).clone();
        delivery.message.payload = Some(Bytes::from_static(b"mended"));
        copy.delivery = Arc::new(delivery);
        assert_eq!(member.apply(&[copy.clone()]).await, [Redriven]);
        assert_eq!(member.apply(&[copy, work(key, 51)]).await, [Duplicate, Held], "a redelivery of the copy");
        assert!(fixture.letters(CONSUMER).await.is_empty());
        member.work_off(&heads()).await;
        let seen = member.script.seen();
        let again = seen.iter().find(|(d, _)| d.message.id == Some(format!("{key}1"))).expect("it ran");
        assert_eq!(again.0.message.payload.as_deref(), Some(&b"mended"[..]));
        assert_eq!(again.0.position, Some(50));
    }
    assert_eq!(member.effects().await, ["a1", "b1", "b2"]);
    assert_eq!(member.marks().await, "a1=d b1=d b2=d");
}

/// From the position that it died at it is the same message, and it is settled.
pub async fn a_redelivery_of_a_dead_letter_changes_nothing(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(false)).await;
    assert_eq!(member.apply(&[work("a", 1), work("a", 2)]).await, [Duplicate, Done]);
    assert_eq!((member.letter().await.id.as_str(), member.waiting().await), ("a1", String::new()));
}

/// On purpose, and once for each time it is asked for.
pub async fn a_repeat_is_done_once_more_and_its_mark_stays(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    fixture.seek(CONSUMER, &partition(), 100).await;
    let range = [work("a", 1), work("a", 2)];
    assert_eq!(member.apply(&range).await, [Done, Done]);
    fixture.copy_range(CONSUMER, &range, true).await;
    assert!(fixture.deferred(CONSUMER).await.iter().all(|row| row.repeat && !row.holds));
    assert_eq!(member.apply(&[work("a", 3)]).await, [Done], "it holds nobody");
    assert_eq!(member.work_off(&heads()).await.done(), 2);
    assert_eq!(member.effects().await, ["a1", "a2", "a3", "a1", "a2"]);
    assert_eq!(member.marks().await, "a1=d a2=d a3=d");
    assert_eq!(member.apply(&range).await, [Duplicate, Duplicate]);
}

/// Beside the mark, which says that it was done before.
pub async fn a_repeat_that_dies_has_a_letter_and_its_mark_stays(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    fixture.seek(CONSUMER, &partition(), 100).await;
    assert_eq!(member.apply(&[work("a", 1)]).await, [Done]);
    fixture.copy_range(CONSUMER, &[work("a", 1)], true).await;
    member.script.tell("a1", &[Told::Reject]);
    assert_eq!(member.work_off(&DueHeads { dead_hold: true, ..heads() }).await.buried(), 1);
    let letter = member.letter().await;
    assert_eq!((letter.repeat, letter.holds_key), (true, false));
    assert_eq!(member.marks().await, "a1=d");
    assert_eq!(member.apply(&[work("a", 2)]).await, [Done]);
    assert!(fixture.replay(CONSUMER, letter.letter).await);
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    assert_eq!(
        (member.effects().await.join(" "), member.marks().await),
        ("a1 a2 a1".into(), "a1=d a2=d".into())
    );
}

/// The letter of the second death takes the place of the first one's.
pub async fn a_repeat_that_dies_again_has_one_letter(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    fixture.seek(CONSUMER, &partition(), 100).await;
    assert_eq!(member.apply(&[work("a", 1)]).await, [Done]);
    member.script.tell("a1", &[Told::Reject, Told::Panic, Told::Panic]);
    fixture.copy_range(CONSUMER, &[work("a", 1)], true).await;
    assert_eq!(member.work_off(&heads()).await.buried(), 1);
    let first = member.letter().await;
    fixture.copy_range(CONSUMER, &[work("a", 1)], true).await;
    while member.work_off(&heads()).await.buried() == 0 {}
    let second = member.letter().await;
    assert_eq!((&*first.disposition, &*second.disposition), ("rejected", "panic"));
    assert_ne!(first.letter, second.letter);
    assert_eq!((member.waiting().await, member.marks().await), (String::new(), "a1=d".to_owned()));
    assert!(fixture.replay(CONSUMER, second.letter).await);
    assert_eq!(member.work_off(&heads()).await.done(), 1);
}

/// In order among themselves, and beside what is deferred for the key.
pub async fn rows_of_a_range_are_a_queue_of_their_own(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    fixture.seek(CONSUMER, &partition(), 100).await;
    member.defer(&[work("a", 7)], &defer()).await;
    fixture.copy_range(CONSUMER, &[work("a", 1), work("a", 2)], false).await;
    assert_eq!(member.marks().await, "a1=w a2=w a7=w");
    let rows = fixture.deferred(CONSUMER).await;
    assert!(rows.iter().all(|row| row.holds == (row.id == "a7")), "{rows:?}");
    assert_eq!(member.defer(&[work("a", 8)], &DeferOrBury::Behind).await, [SetAside::Kept]);
    assert_eq!(member.work_off(&heads()).await.done(), 4);
    let effects = member.effects().await;
    let of =
        |ids: [&str; 2]| effects.iter().filter(|id| ids.contains(&id.as_str())).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of(["a1", "a2"]), of(["a7", "a8"])),
        (vec!["a1".into(), "a2".into()], vec!["a7".into(), "a8".into()])
    );
    assert_eq!(member.marks().await, "a1=d a2=d a7=d a8=d");
}

/// Whoever read it saw another position. What is not before this one may be under way.
pub async fn g3_a_range_ends_at_the_saved_position_when_it_is_copied(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let range = [work("a", 1), work("a", 2), work("a", 3)];
    fixture.copy_range(CONSUMER, &range, false).await;
    assert_eq!((member.waiting().await, member.marks().await), (String::new(), String::new()), "no position");
    fixture.seek(CONSUMER, &partition(), 9).await;
    fixture.seek(CONSUMER, &partition(), 2).await;
    fixture.copy_range(CONSUMER, &range, false).await;
    assert_eq!((member.waiting().await, member.marks().await), ("a1".into(), "a1=w".into()), "moved back");
    assert_eq!(member.apply(&range[1..]).await, [Done, Done]);
    fixture.copy_range(CONSUMER, &range, true).await;
    assert_eq!(member.work_off(&heads()).await.done(), 2);
    assert_eq!(member.effects().await, ["a2", "a3", "a1", "a1"], "also with repeat");
}
