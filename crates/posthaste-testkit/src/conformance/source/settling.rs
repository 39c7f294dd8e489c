//! Cases: acknowledging, giving back, pausing, seeking.

use super::SourceFixture;
use super::stage::{MANY, Member, SHORT, number, numbers, publish, sorted, spread, tickets};
use posthaste::source::{AckScope, Limit, NackOrder, Partition, SeekTo, SourceError, Standing};
use std::time::Duration;
use tokio::time::Instant;

/// G2: at least once.
pub async fn g2_what_was_not_acknowledged_comes_again_after_a_crash(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=10).await;
    let mut dying = Member::join(fixture, &topic, "a").await;
    assert_eq!(dying.consume(4).await, [1, 2, 3, 4]);
    assert_eq!(numbers(&dying.take(3).await), [5, 6, 7]);
    fixture.kill("group", "a").await;
    let mut heir = Member::join(fixture, &topic, "b").await;
    assert_eq!(sorted(heir.consume(6).await), [5, 6, 7, 8, 9, 10]);
}

/// F26, F61: a later acknowledgement does not cover an earlier message in hand.
pub async fn f61_an_acknowledgement_covers_nothing_before_it(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=6).await;
    let mut dying = Member::join(fixture, &topic, "a").await;
    let taken = dying.take(6).await;
    dying.ack(&[taken[0].clone(), taken[3].clone(), taken[5].clone(), taken[1].clone()]).await;
    fixture.kill("group", "a").await;
    let mut heir = Member::join(fixture, &topic, "b").await;
    let expected: &[i64] = match heir.source.capabilities().ack_scope {
        AckScope::Prefix => &[3, 4, 5, 6],
        AckScope::Each => &[3, 5],
    };
    assert_eq!(sorted(heir.consume(expected.len()).await), expected);
    assert!(heir.rest().await.is_empty());
}

/// Every call may be repeated after an outage.
pub async fn ack_is_harmless_when_repeated(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=4).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let taken = member.take(4).await;
    member.ack(&taken[..2]).await;
    member.ack(&taken[..2]).await;
    member.ack(&taken).await;
    member.ack(&taken[..1]).await;
    assert_eq!(member.source.ack(&[]).await, Ok(Vec::new()));
    assert!(member.rest().await.is_empty());
}

/// F73: a delay is a delay.
pub async fn f73_a_nacked_message_comes_again_after_its_delay(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, [1]).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    for delay in [Duration::ZERO, Duration::from_millis(600)] {
        let taken = member.take(1).await;
        let began = Instant::now();
        member.nack(&taken[0], delay).await;
        let again = member.take(1).await;
        assert!(began.elapsed() >= delay, "{:?} instead of {delay:?}", began.elapsed());
        assert_eq!((number(&again[0]), again[0].position), (1, taken[0].position));
        member.nack(&again[0], Duration::ZERO).await;
    }
    assert_eq!(member.consume(1).await, [1]);
    assert!(member.rest().await.is_empty());
}

/// G3, where it is declared: what was given back comes first.
pub async fn g3_nothing_newer_passes_a_nacked_message(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=8).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let taken = member.take(4).await;
    member.ack(&taken[..1]).await;
    member.nack(&taken[3], Duration::ZERO).await;
    member.nack(&taken[1], Duration::from_millis(300)).await;
    let rest = member.take(6).await;
    if member.source.capabilities().nack_order == NackOrder::Kept {
        assert_eq!(numbers(&rest), [2, 4, 5, 6, 7, 8]);
    } else {
        assert_eq!(sorted(numbers(&rest)), [2, 4, 5, 6, 7, 8]);
    }
    member.ack(&rest).await;
    member.ack(&taken[2..3]).await;
    assert!(member.rest().await.is_empty());
}

/// A partition that waits is no reason for another one to wait.
pub async fn a_nack_does_not_touch_other_partitions(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    spread(fixture, &topic, 1..=8).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    member.assigned(2).await;
    let taken = member.take(8).await;
    let stuck = taken[0].partition().clone();
    member.nack(&taken[0], Duration::from_secs(60)).await;
    member.ack(&taken[1..]).await;
    spread(fixture, &topic, 9..=30).await;
    let more = member.rest().await;
    assert!(more.iter().any(|delivery| *delivery.partition() != stuck), "others flow");
    if member.source.capabilities().nack_order == NackOrder::Kept {
        assert!(more.iter().all(|delivery| *delivery.partition() != stuck), "the partition waits");
    }
}

/// Where it is declared.
pub async fn redeliveries_are_counted(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, [1]).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    if !member.source.capabilities().counts_redeliveries {
        return;
    }
    for expected in 0..4 {
        let taken = member.take(1).await;
        assert_eq!(taken[0].redelivery, Some(expected));
        member.nack(&taken[0], Duration::ZERO).await;
    }
}

/// F21: a message that kills its consumer must not be new for ever.
pub async fn f21_a_death_counts_as_a_redelivery(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=3).await;
    let mut counts = Vec::new();
    for member in ["a", "b", "c"] {
        let mut dying = Member::join(fixture, &topic, member).await;
        if !dying.source.capabilities().counts_redeliveries {
            return;
        }
        let taken = dying.take(1).await;
        assert_eq!(number(&taken[0]), 1);
        counts.push(taken[0].redelivery);
        fixture.kill("group", member).await;
    }
    assert_eq!(counts, [Some(0), Some(1), Some(2)]);
    let mut last = Member::join(fixture, &topic, "d").await;
    let taken = last.take(3).await;
    last.ack(&taken).await;
    publish(fixture, &topic, [4]).await;
    assert_eq!(last.take(1).await[0].redelivery, Some(0), "published since");
}

/// For a breaker: the assignment stays, and what is in hand can be settled.
pub async fn a_paused_partition_is_silent_and_stays(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    spread(fixture, &topic, 1..=20).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    member.assigned(2).await;
    let taken = member.take(20).await;
    let paused = taken[0].partition().clone();
    member.source.pause(&paused).await.expect("assigned");
    member.source.pause(&paused).await.expect("again");
    member.nack(&taken[0], Duration::ZERO).await;
    member.ack(&taken[1..]).await;
    spread(fixture, &topic, 21..=40).await;
    let others = member.rest().await;
    assert!(!others.is_empty() && others.iter().all(|delivery| *delivery.partition() != paused));
    member.ack(&others).await;
    let view = member.source.view().await.expect("a view");
    assert!(view.iter().all(|view| view.paused == (view.partition == paused)), "{view:?}");
    member.source.resume(&paused).await.expect("assigned");
    let rest = member.take(21 - others.len()).await;
    assert_eq!(number(&rest[0]), number(&taken[0]), "what was given back comes first");
    member.ack(&rest).await;
    let stranger = Partition::new("no-such-topic", 0);
    assert_eq!(member.source.pause(&stranger).await, Err(SourceError::NotAssigned(stranger.clone())));
    assert_eq!(member.source.resume(&stranger).await, Err(SourceError::NotAssigned(stranger)));
}

/// F63.
pub async fn f63_pausing_often_loses_nothing(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    member.assigned(1).await;
    let partition = member.source.view().await.expect("a view")[0].partition.clone();
    let mut taken = Vec::new();
    for n in 1..=50 {
        publish(fixture, &topic, [n]).await;
        member.source.pause(&partition).await.expect("assigned");
        taken.extend(numbers(&member.next(MANY, Duration::ZERO).await));
        member.source.resume(&partition).await.expect("assigned");
        if n % 3 == 0 {
            taken.extend(numbers(&member.next(MANY, Duration::ZERO).await));
        }
    }
    taken.extend(numbers(&member.take(50 - taken.len()).await));
    assert_eq!(taken, (1..=50).collect::<Vec<_>>());
}

/// By position, by time, from the beginning, to the end: durable, and for this group alone.
pub async fn seeking_replays(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 0..5).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    if !member.source.capabilities().seeks {
        return;
    }
    let first = member.take(5).await;
    member.ack(&first).await;
    let partition = first[0].partition().clone();
    tokio::time::sleep(Duration::from_millis(20)).await; // pace: the later messages have a later time
    publish(fixture, &topic, 5..8).await;
    let later = member.take(3).await;
    member.ack(&later).await;
    let time = later[0].published_at.expect("a source that seeks knows times");
    let place = |n: usize| first.iter().chain(&later).nth(n).and_then(|seen| seen.position).unwrap_or(-1);
    for (to, from) in [
        (SeekTo::Earliest, 0),
        (SeekTo::Position(place(3)), 3),
        (SeekTo::Position(-1), 0),
        (SeekTo::Time(time), 5),
        (SeekTo::Position(place(7) + 1_000), 8),
        (SeekTo::Latest, 8),
    ] {
        member.source.seek(&partition, to).await.expect("assigned");
        let replayed = member.take(8 - usize::try_from(from).expect("small")).await;
        assert_eq!(numbers(&replayed), (from..8).collect::<Vec<_>>(), "{to:?}");
        member.ack(&replayed).await;
        assert!(member.next(MANY, SHORT).await.is_empty(), "{to:?}");
    }
    member.source.seek(&partition, SeekTo::Position(place(6))).await.expect("assigned");
    member.drain().await;
    let mut next = Member::join(fixture, &topic, "b").await;
    assert_eq!(next.consume(2).await, [6, 7], "the new place is the group's");
}

/// G4: an old ticket must not move the new position.
pub async fn g4_what_was_in_hand_before_a_seek_settles_nothing(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 0..5).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    if !member.source.capabilities().seeks {
        return;
    }
    let taken = member.take(5).await;
    let partition = taken[0].partition().clone();
    member.source.seek(&partition, SeekTo::Earliest).await.expect("assigned");
    let standings = member.source.ack(&tickets(&taken)).await.expect("an answer");
    assert_eq!(standings, [Standing::Revoked; 5]);
    assert_eq!(member.source.nack(&taken[0].ticket, Duration::ZERO).await, Ok(Standing::Revoked));
    assert_eq!(member.consume(5).await, [0, 1, 2, 3, 4]);
    let unassigned = Partition::new("no-such-topic", 0);
    let refused = member.source.seek(&unassigned, SeekTo::Earliest).await;
    assert_eq!(refused, Err(SourceError::NotAssigned(unassigned)));
    assert!(member.next(Limit { events: 1, ..MANY }, SHORT).await.is_empty());
}

/// G4, where there are no positions: a consumer that forgot what it has in hand asks for it again.
pub async fn g4_a_queue_hands_out_again_what_is_in_hand(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 0..5).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    if member.source.capabilities().seeks {
        return;
    }
    let taken = member.take(4).await;
    assert!(taken.iter().all(|delivery| delivery.position.is_none()));
    assert!(taken.windows(2).all(|pair| pair[0].ticket.number < pair[1].ticket.number), "tickets count");
    member.ack(&taken[..1]).await;
    let partition = taken[0].partition().clone();
    let epoch = member.source.seek(&partition, SeekTo::Earliest).await.expect("assigned");
    let standings = member.source.ack(&tickets(&taken[1..])).await.expect("an answer");
    assert_eq!(standings, [Standing::Revoked; 3]);
    let again = member.take(4).await;
    assert_eq!(numbers(&again), [1, 2, 3, 4], "in order, and not what was acknowledged");
    assert!(again.iter().all(|delivery| delivery.ticket.epoch == epoch));
    member.ack(&again).await;
    let elsewhere = member.source.seek(&partition, SeekTo::Position(1)).await;
    assert_eq!(elsewhere, Err(SourceError::Unsupported("seek")));
    assert!(member.rest().await.is_empty());
}
