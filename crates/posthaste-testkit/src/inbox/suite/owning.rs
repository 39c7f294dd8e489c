//! Partitions: who took them, how far they are, what is kept of them. And what is purged.

use super::ConsumerFixture;
use super::stage::{CONSUMER, StagedMember, bury, defer, heads, member, partition, work};
use posthaste::consumer::store::MessageOutcome::{Done, Duplicate, Held};
use posthaste::consumer::store::{
    ConsumerControls, ConsumerRetention, DeferOrBury, ProcessReport, SavedPosition, Saving, SetAside, Taken,
    Witness,
};
use posthaste::event::Timestamp;
use posthaste::source::Partition;
use posthaste::store::Care;
use std::sync::Arc;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

fn at(position: i64) -> SavedPosition {
    SavedPosition {
        partition: partition(),
        position: Some(position),
        position_time: Some(Timestamp(position * 1_000)),
        log_id: Some("log".to_owned()),
        in_hand: None,
        seeks: 0,
        release: false,
    }
}

/// One member of the group, by name.
struct PartitionOwner<'a, F> {
    name: &'a str,
    member: &'a StagedMember<'a, F>,
    witness: Witness,
}

impl<F: ConsumerFixture> PartitionOwner<'_, F> {
    async fn save(&self, position: SavedPosition) -> Saving {
        let saved = self.member.inbox.save(self.name, self.witness, &[position], None).await;
        saved.expect("saved")
    }

    async fn saved(&self) -> Option<i64> {
        self.record().await.position
    }

    async fn record(&self) -> super::PartitionRecord {
        let record = self.member.fixture.partition(CONSUMER, &partition()).await;
        record.expect("the row was made when it was taken")
    }
}

async fn take<'a, F: ConsumerFixture>(
    member: &'a StagedMember<'a, F>,
    name: &'a str,
) -> (PartitionOwner<'a, F>, Taken) {
    let taking = member.inbox.take(&[partition()], name).await.expect("taken");
    let owner = PartitionOwner { name, member, witness: taking.witness };
    (owner, taking.taken.into_iter().next().expect("one partition"))
}

/// Without a position: nothing is decided yet.
pub async fn a_partition_is_made_when_it_is_taken(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let other = Partition::new("orders", 1);
    let taking = member.inbox.take(&[other.clone(), partition()], "one").await.expect("taken");
    let [second, first] = &taking.taken[..] else { panic!("two: {taking:?}") };
    assert_eq!((&second.partition, &first.partition), (&other, &partition()), "in the order of the question");
    assert_eq!(
        (first.position, first.seeks, first.care.clone(), first.knows_topic),
        (None, 0, Care::None, false)
    );
    let (owner, _) = take(&member, "one").await;
    assert_eq!(owner.saved().await, None);
    owner.save(at(7)).await;
    let (_, taken) = take(&member, "one").await;
    assert_eq!((taken.position, taken.position_time), (Some(7), Some(Timestamp(7_000))));
    assert_eq!((taken.log_id.as_deref(), taken.knows_topic), (Some("log"), true));
    let added = member.inbox.take(&[Partition::new("orders", 2)], "one").await.expect("taken");
    assert!(added.taken[0].knows_topic && added.taken[0].position.is_none(), "a partition that was added");
    let elsewhere = member.inbox.take(&[Partition::new("returns", 0)], "one").await.expect("taken");
    assert!(!elsewhere.taken[0].knows_topic);
}

/// The time of a record is its sender's. It is evidence, so it comes back as it was.
pub async fn f71_the_first_and_the_last_time_are_kept(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    let odd = Timestamp::of_millis(63_999_999_999_993);
    for (position, time) in [(1, Timestamp::FIRST), (2, odd), (3, Timestamp::LAST)] {
        owner.save(SavedPosition { position_time: Some(time), ..at(position) }).await;
        assert_eq!(take(&member, "owner").await.1.position_time, Some(time));
        let mut late = work("a", position);
        let mut delivery = (*late.delivery).clone();
        delivery.published_at = Some(time);
        late.delivery = Arc::new(delivery);
        assert_eq!(member.defer(&[late], &defer()).await, [SetAside::Kept]);
    }
    assert_eq!(member.work_off(&heads()).await.done(), 3);
    let seen = member.script.seen();
    let times: Vec<_> = seen.iter().filter_map(|(delivery, _)| delivery.published_at).collect();
    assert_eq!(times, [Timestamp::FIRST, odd, Timestamp::LAST]);
}

/// Both say the truth, and the higher one says more. So a zombie may speak.
pub async fn f26_of_two_positions_the_higher_one_stays(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (zombie, _) = take(&member, "zombie").await;
    let (owner, _) = take(&member, "owner").await;
    owner.save(at(5)).await;
    zombie.save(at(3)).await;
    assert_eq!(owner.saved().await, Some(5));
    zombie.save(at(9)).await;
    owner.save(SavedPosition { position: None, position_time: None, ..at(0) }).await;
    owner.save(at(8)).await;
    let (_, taken) = take(&member, "owner").await;
    assert_eq!((taken.position, taken.position_time), (Some(9), Some(Timestamp(9_000))), "its time with it");
}

/// The next save tells the owner, and nothing that was made before it counts.
pub async fn a_seek_is_not_undone_by_an_older_save(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    owner.save(at(50)).await;
    fixture.seek(CONSUMER, &partition(), 10).await;
    let seeks = owner.save(at(60)).await.seeks[0];
    assert_eq!((seeks, owner.saved().await), (1, Some(10)));
    let (owner, taken) = take(&member, "owner").await;
    assert_eq!((taken.position, taken.position_time, taken.seeks), (Some(10), None, 1));
    assert_eq!(owner.save(SavedPosition { seeks, ..at(11) }).await.seeks, [1]);
    assert_eq!(owner.saved().await, Some(11));
}

/// A clean release of somebody who lost the partition would hide the death of whoever has it.
pub async fn g4_a_zombie_releases_nothing_and_has_nothing_in_hand(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (zombie, _) = take(&member, "zombie").await;
    let (owner, _) = take(&member, "owner").await;
    owner.save(SavedPosition { in_hand: Some(5), ..at(5) }).await;
    zombie.save(SavedPosition { in_hand: Some(3), release: true, ..at(4) }).await;
    let record = owner.record().await;
    assert_eq!((record.in_hand, record.clean, record.position), (Some(5), false, Some(5)));
    owner.save(SavedPosition { release: true, ..at(6) }).await;
    let record = owner.record().await;
    assert_eq!((record.in_hand, record.clean, record.position), (None, true, Some(6)));
    // Whoever reads it nevertheless hears that nobody has it. A save is no taking (F21).
    let nothing_new = SavedPosition { position: None, position_time: None, log_id: None, ..at(0) };
    for saved in [nothing_new, at(7), SavedPosition { in_hand: Some(7), ..at(7) }] {
        assert_eq!((zombie.save(saved).await.owned, zombie.record().await.in_hand), (vec![false], None));
    }
    take(&member, "zombie").await;
    assert_eq!(zombie.save(SavedPosition { in_hand: Some(7), ..at(7) }).await.owned, [true]);
}

/// Small batches first, then one by one; what is in hand at a death is charged with it.
pub async fn f21_deaths_make_the_next_owner_careful(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let mut cares = Vec::new();
    for n in 0..5 {
        let (owner, taken) = take(&member, ["a", "b", "c", "d", "e"][n]).await;
        owner.save(at(n as i64)).await;
        cares.push(taken.care);
    }
    let one_by_one = |suspect| Care::OneByOne { suspect };
    assert_eq!(cares, [Care::None, Care::None, Care::None, Care::Small, one_by_one(None)]);
    for (name, deaths) in [("f", None), ("g", Some((9, 1))), ("h", Some((9, 2)))] {
        let (owner, taken) = take(&member, name).await;
        assert_eq!(taken.care, one_by_one(deaths));
        owner.save(SavedPosition { in_hand: Some(9), ..at(9) }).await;
    }
}

/// A process that takes its own partition again, because its database came back, is alive.
pub async fn a_release_is_no_death_and_neither_is_a_second_take(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    for _ in 0..6 {
        let (_, taken) = take(&member, "same").await;
        assert_eq!(taken.care, Care::None);
    }
    for name in ["a", "b", "c", "d", "e", "f"] {
        let (owner, taken) = take(&member, name).await;
        assert_eq!(taken.care, Care::None);
        owner.save(SavedPosition { release: true, ..at(1) }).await;
    }
    for name in ["g", "h", "i", "j"] {
        take(&member, name).await;
    }
    let (owner, taken) = take(&member, "k").await;
    assert_ne!(taken.care, Care::None);
    owner.save(SavedPosition { release: true, ..at(2) }).await;
    let (owner, given_back) = take(&member, "l").await;
    assert_eq!(given_back.care, taken.care, "whoever had it for a moment has proven nothing (F21)");
    fixture.age(CONSUMER, DAY).await;
    owner.save(SavedPosition { release: true, ..at(3) }).await;
    assert_eq!(take(&member, "m").await.1.care, Care::None, "a day without a death is proof");
}

fn report(text: &str) -> ProcessReport {
    ProcessReport {
        process: "p-1".to_owned(),
        role: "consumer",
        name: CONSUMER.to_owned(),
        version: "1".to_owned(),
        host: "h".to_owned(),
        started_at: Timestamp(1_700_000_000_000_000),
        report: text.to_owned(),
    }
}

/// The last error in it may be a stranger's text.
pub async fn f71_whatever_a_report_says_the_position_is_saved(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    let zero = serde_json::json!({ "last_error": "unknown variant `a\0b`, `\\u0000`" });
    // It is longer where a database writes a blank behind each comma.
    let long = serde_json::json!({ "a": vec!["x"; 2_040] });
    for (position, said) in [(1, zero), (2, long)] {
        let report = report(&said.to_string());
        assert!(report.report.len() <= 8_192);
        let saved = member.inbox.save("owner", owner.witness, &[at(position)], Some(&report)).await;
        saved.expect("saved");
        assert_eq!(owner.saved().await, Some(position));
    }
}

/// With every save, also with one that has nothing to save.
pub async fn controls_reach_every_save(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    let report = report(r#"{"paused": []}"#);
    let ask = || member.inbox.save(owner.name, owner.witness, &[], Some(&report));
    assert_eq!(ask().await.expect("saved").controls, ConsumerControls::default());
    for controls in [
        ConsumerControls { paused: true, rate_limit: None },
        ConsumerControls { paused: false, rate_limit: Some(50.0) },
        ConsumerControls::default(),
    ] {
        fixture.control(CONSUMER, &controls).await;
        assert_eq!(ask().await.expect("saved").controls, controls);
    }
}

/// The database may have gone back in time: what is remembered of it counts no more.
pub async fn f6_another_life_of_the_server_is_seen(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    owner.save(at(5)).await;
    let applied = member.inbox.apply(None, &[work("a", 1)], DAY).await.expect("it commits");
    let deferred = member.inbox.defer(None, &[work("b", 2)], &defer()).await.expect("deferred");
    let due = member.due(&heads()).await;
    let swept = member.inbox.sweep(ConsumerRetention::default(), 10).await.expect("swept");
    let lives = [applied.witness, deferred.witness, due.witness, swept.witness];
    assert_eq!(lives, [owner.witness; 4], "every answer says which life it comes from");
    if !fixture.restart_server().await {
        return;
    }
    let ask = || async { member.inbox.save("owner", owner.witness, &[at(9)], None).await.ok() };
    let saving =
        crate::conformance::eventually("the server is back", crate::conformance::DEADLINE, ask).await;
    assert_ne!(saving.witness, owner.witness);
    assert_eq!(owner.saved().await, Some(5), "what was made under another witness is not written");
    let (owner, _) = take(&member, "owner").await;
    assert_eq!(owner.witness, saving.witness);
    owner.save(at(9)).await;
    assert_eq!(owner.saved().await, Some(9));
}

/// What a member remembers of another life of the database is not done in this one: a later message of a key
/// would run before earlier ones that are forgotten here.
pub async fn f6_messages_of_another_life_are_not_touched(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    let other = Some(Witness(Some(Timestamp(-1))));
    let error =
        member.inbox.apply(other, &[work("a", 1), work("a", 2)], DAY).await.expect_err("another life");
    assert_eq!((error.witness, error.at), (Some(owner.witness), None), "{error:?}");
    for how in [defer(), DeferOrBury::Behind, bury(true)] {
        let deferring = member.inbox.defer(other, &[work("a", 1)], &how).await.expect("an answer");
        assert_eq!((deferring.witness, deferring.outcomes), (owner.witness, Vec::new()));
    }
    assert!(member.script.seen().is_empty(), "no handler ran");
    assert_eq!((member.marks().await, member.waiting().await), (String::new(), String::new()));
    assert!(fixture.letters(CONSUMER).await.is_empty());
    let asked = Some(owner.witness);
    let applied = member.inbox.apply(asked, &[work("a", 1)], DAY).await.expect("this life");
    let deferred = member.inbox.defer(asked, &[work("a", 2)], &defer()).await.expect("this life");
    assert_eq!((applied.outcomes, deferred.outcomes), (vec![Done], vec![SetAside::Kept]));
    assert_eq!(member.marks().await, "a1=d a2=w");
}

/// A start after a long stop would do again what was done ahead of the position.
pub async fn f69_marks_above_the_position_are_never_purged(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    assert_eq!(member.apply(&[work("a", 1), work("b", 2), work("c", 3)]).await, [Done; 3]);
    member.defer(&[work("d", 0)], &defer()).await;
    let retention = ConsumerRetention { marks_days: 14, dead_letter_days: 0 };
    let sweep = || async { member.inbox.sweep(retention, 100).await.expect("swept") };
    fixture.age(CONSUMER, 15 * DAY).await;
    assert_eq!(sweep().await.marks, 0, "nothing is decided of this partition yet");
    owner.save(at(3)).await;
    let swept = sweep().await;
    assert_eq!((swept.marks, swept.deferred, swept.dead_letters), (2, 1, 0));
    assert_eq!(member.marks().await, "c3=d d0=w");
    assert_eq!(member.apply(&[work("c", 3)]).await, [Duplicate]);
    owner.save(at(5)).await;
    assert_eq!(member.apply(&[work("e", 4)]).await, [Done]);
    assert_eq!(sweep().await.marks, 1, "a young one stays");
    assert_eq!(member.marks().await, "d0=w e4=d");
}

/// What was discarded or purged has a mark that nobody needs for longer than others.
pub async fn marks_of_the_dead_stay_as_long_as_their_letters(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let (owner, _) = take(&member, "owner").await;
    member.defer(&[work("a", 1)], &bury(false)).await;
    let letter = member.letter().await.letter;
    member.defer(&[work("b", 2)], &bury(false)).await;
    owner.save(at(9)).await;
    let sweep = || async {
        let swept = member.inbox.sweep(ConsumerRetention::default(), 100).await;
        swept.expect("swept").marks
    };
    fixture.age(CONSUMER, 15 * DAY).await;
    assert_eq!(sweep().await, 0);
    fixture.discard(CONSUMER, letter).await;
    assert_eq!((sweep().await, member.marks().await), (1, "b2=x".to_owned()));
}

/// Kept for ever unless declared otherwise.
pub async fn letters_are_purged_when_declared_and_their_keys_go_on(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &bury(true)).await;
    member.defer(&[work("a", 2)], &DeferOrBury::Behind).await;
    fixture.age(CONSUMER, 40 * DAY).await;
    let sweep =
        |dead_letter_days| member.inbox.sweep(ConsumerRetention { marks_days: 14, dead_letter_days }, 100);
    let swept = sweep(0).await.expect("swept");
    assert_eq!((swept.letters, swept.dead_letters, swept.deferred), (0, 1, 1));
    assert_eq!(member.apply(&[work("a", 3)]).await, [Held]);
    let swept = sweep(30).await.expect("swept");
    assert_eq!((swept.letters, swept.dead_letters), (1, 0));
    assert_eq!(member.work_off(&heads()).await.done(), 1);
    assert_eq!(member.apply(&[work("a", 1), work("a", 3)]).await, [Duplicate, Done], "its mark stays");
}
