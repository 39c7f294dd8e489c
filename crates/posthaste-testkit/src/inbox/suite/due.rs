//! T3: deferred messages that are due.

use super::ConsumerFixture;
use super::stage::{CONSUMER, Script, Told, bury, defer, heads, member, work, work_of};
use posthaste::consumer::store::MessageOutcome::{Done, Held};
use posthaste::consumer::store::{DeferOrBury, DueHeads, DueOutcome, DueStep};
use posthaste::consumer::{FailureKind, Filter};
use posthaste::source::Delivery;
use std::sync::Arc;
use std::time::Duration;

/// What a look tells whoever counts.
fn steps(look: &DueOutcome) -> Vec<DueStep> {
    look.steps.iter().map(|(_, step)| step.clone()).collect()
}

/// An hour is not over, so nothing of the key runs.
pub async fn g3_a_head_that_is_not_due_keeps_its_followers(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1), work("a", 2)], &defer()).await;
    let look = member.due(&heads()).await;
    assert_eq!((look.done(), look.failed.len()), (0, 0));
    assert!(member.effects().await.is_empty());
    assert_eq!(member.waiting().await, "a1 (a2)");
}

/// F51: whatever fails, others are handled in the same looks.
pub async fn f30_a_failing_key_does_not_stop_others(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    for (position, key) in ["a", "b", "c"].into_iter().enumerate() {
        member.defer(&[work(key, position as i64)], &defer()).await;
    }
    member.script.tell("a0", &[Told::Fail; 9]);
    let looked = member.work_off(&heads()).await;
    assert_eq!(looked.done(), 2);
    let retried = |(delivery, step): &&(Arc<Delivery>, DueStep)| {
        *step == DueStep::Retried && delivery.position == Some(0)
    };
    assert_eq!(looked.steps.iter().filter(retried).count(), 1, "{:?}", looked.steps);
    assert_eq!(member.effects().await, ["b1", "c2"]);
    assert_eq!(member.marks().await, "a0=w b1=d c2=d");
    assert_eq!(member.waiting().await, "a0");
}

/// One attempt for each run alone; then the declared end, under its own cause.
pub async fn attempts_and_history_grow_until_a_message_dies(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &defer()).await;
    member.script.tell("a1", &[Told::Fail, Told::Panic, Told::Reject]);
    let look = member.work_off(&heads()).await;
    assert_eq!((look.failed.len(), look.buried()), (1, 0));
    assert_eq!(look.failed[0].kind, FailureKind::Error);
    assert_eq!(steps(&look), [DueStep::Failed(FailureKind::Error), DueStep::Retried]);
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.attempts, row.is_behind), (1, false));
    assert_eq!(row.history, ["handler.error"]);
    assert_eq!(row.code.as_deref(), Some("handler.error"));
    let look = member.work_off(&heads()).await;
    assert_eq!(steps(&look), [DueStep::Failed(FailureKind::Panic), DueStep::Dead], "that was the last try");
    let letter = member.letter().await;
    assert_eq!((letter.attempts, letter.disposition.as_str()), (2, "panic"));
    assert_eq!(letter.history.len(), 2);
    assert_eq!((member.marks().await, member.waiting().await), ("a1=x".to_owned(), String::new()));
    assert!(fixture.replay(CONSUMER, letter.letter).await);
    assert_eq!(member.work_off(&heads()).await.buried(), 1, "refused by its handler: dead at once");
    assert_eq!(member.letter().await.disposition, "rejected");
    assert!(member.effects().await.is_empty());
}

/// The same rule as at a burial from the partition: the next of the key comes due, or waits for an operator.
pub async fn g3_after_a_death_the_followers_run_or_wait(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    for (key, dead_hold) in [("a", false), ("b", true)] {
        member.defer(&[work(key, 1), work(key, 2)], &defer()).await;
        member.script.tell(&format!("{key}1"), &[Told::Reject; 9]);
        assert_eq!(member.work_off(&DueHeads { dead_hold, ..heads() }).await.buried(), 1);
    }
    assert_eq!(member.effects().await, ["a2"]);
    assert_eq!(member.waiting().await, "(b2)");
    assert_eq!(member.marks().await, "a1=x a2=d b1=x b2=w");
    assert_eq!(member.apply(&[work("a", 3), work("b", 3)]).await, [Done, Held]);
}

/// F50: it waits for the dependency, however often that takes.
pub async fn f50_a_dependency_that_is_away_spends_no_attempt(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &defer()).await;
    member.script.tell("a1", &[Told::Miss; 5]);
    for _ in 0..5 {
        let look = member.work_off(&heads()).await;
        assert_eq!((look.done(), look.buried()), (0, 0));
        assert!(look.failed.iter().all(|failure| failure.kind == FailureKind::Unavailable("api".into())));
    }
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.attempts, row.history.len()), (0, 0));
    assert_eq!(member.work_off(&heads()).await.done(), 1);
}

/// A deployment took its handler away.
pub async fn g5_what_no_handler_takes_any_more_is_a_dead_letter(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1), work("a", 2)], &defer()).await;
    member.defer(&[work("b", 3)], &defer()).await;
    let filter = Filter::types(["made-elsewhere"]);
    let inbox = fixture.inbox(CONSUMER, filter, &Arc::new(Script::default())).await;
    let newer = super::stage::StagedMember { fixture, script: Arc::clone(&member.script), inbox };
    assert!(!newer.inbox.takes(&work("a", 1).delivery) && member.inbox.takes(&work("a", 1).delivery));
    let one = DueHeads { messages_max: 1, ..heads() };
    fixture.make_due(CONSUMER).await;
    newer.due(&one).await;
    let letter = member.letter().await;
    assert_eq!(letter.disposition, "unmatched");
    let looked = newer.work_off(&heads()).await;
    assert_eq!(steps(&looked), [DueStep::Dead, DueStep::Dead]);
    let marks = fixture.marks(CONSUMER).await;
    assert!(marks.len() == 3 && marks.values().all(|outcome| *outcome == 'x'), "no mark lies: {marks:?}");
    assert!(member.effects().await.is_empty());
    assert_eq!(member.waiting().await, "");
}

/// Nothing is loaded or run without a bound.
pub async fn f55_a_look_at_due_messages_is_bounded(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    for position in 0..5 {
        let keyless = work_of("orders", position, None, &format!("m{position}"));
        member.defer(&[keyless], &defer()).await;
    }
    member.defer(&[work("a", 5), work("a", 6), work("a", 7)], &defer()).await;
    fixture.make_due(CONSUMER).await;
    let mut done = 0;
    while done < 8 {
        let look = member.due(&DueHeads { messages_max: 2, ..heads() }).await;
        assert!((1..=2).contains(&look.done()), "{look:?}");
        done += look.done();
    }
    let effects = member.effects().await;
    let of_a: Vec<&str> = effects.iter().map(String::as_str).filter(|id| id.starts_with('a')).collect();
    assert_eq!((effects.len(), of_a), (8, vec!["a5", "a6", "a7"]));
}

/// Any member may look at any time: a row that somebody has in hand is skipped.
pub async fn g5_two_looks_at_once_do_each_message_once(fixture: &impl ConsumerFixture) {
    let (one, other) = (member(fixture).await, member(fixture).await);
    for position in 0..6 {
        one.defer(&[work(["a", "b", "c"][position as usize % 3], position)], &defer()).await;
    }
    fixture.make_due(CONSUMER).await;
    for _ in 0..20 {
        let narrow = DueHeads { messages_max: 2, ..heads() };
        let (first, second) =
            tokio::join!(one.inbox.apply_deferred(&narrow), other.inbox.apply_deferred(&narrow));
        // A conflict is no harm: it is asked again.
        if first.is_ok() && second.is_ok() && one.waiting().await.is_empty() {
            break;
        }
    }
    let mut effects = one.effects().await;
    let place = |id: &str| effects.iter().position(|effect| effect == id);
    assert!(place("a0") < place("a3") && place("b1") < place("b4"), "{effects:?}");
    effects.sort();
    assert_eq!(effects, ["a0", "a3", "b1", "b4", "c2", "c5"]);
}

/// So that the engine can sleep until then.
pub async fn the_next_due_time_is_told(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    assert_eq!(member.due(&heads()).await.next_due, None);
    member.defer(&[work("a", 1), work("a", 2)], &defer()).await;
    member.defer(&[work("b", 3)], &bury(true)).await;
    member.defer(&[work("b", 4)], &DeferOrBury::Behind).await;
    let next = member.due(&heads()).await.next_due.expect("an hour");
    assert!(next > Duration::from_secs(3000) && next <= Duration::from_secs(3600), "{next:?}");
    member.work_off(&heads()).await;
    assert_eq!(member.due(&heads()).await.next_due, None, "what waits for an operator has no time");
}

/// After deaths the attempt is written down before the handler runs, and it is still one attempt.
pub async fn f21_a_careful_look_runs_one_and_counts_it_once(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let careful = DueHeads { careful: true, ..heads() };
    for key in ["a", "b"] {
        member.defer(&[work(key, 1), work(key, 2)], &defer()).await;
    }
    member.script.tell("a1", &[Told::Fail]);
    fixture.make_due(CONSUMER).await;
    for _ in 0..4 {
        let look = member.due(&careful).await;
        assert!(look.done() + look.failed.len() <= 1, "{look:?}");
    }
    assert_eq!(member.effects().await, ["b1", "b2"]);
    let row = fixture.deferred(CONSUMER).await.remove(0);
    assert_eq!((row.id.as_str(), row.attempts, row.history.len()), ("a1", 1, 1));
    member.work_off(&careful).await;
    assert_eq!(member.marks().await, "a1=d a2=d b1=d b2=d");
}
