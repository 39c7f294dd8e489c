//! Cases: members, hand-overs, fencing, draining.

use super::stage::{MANY, Member, SHORT, numbers, publish, sorted, spread, tickets};
use super::{Joining, SourceFixture};
use crate::conformance::DEADLINE;
use posthaste::source::{AckScope, Batch, Change, Delivery, Partition, SourceError, Standing};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// At once, on a machine that does other things too.
const SOON: Duration = Duration::from_secs(8);

/// G8: in hand is finished, the rest goes to others at once, nothing twice.
pub async fn g8_a_drain_waits_for_what_is_in_hand_and_gives_the_rest_back(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    spread(fixture, &topic, 1..=20).await;
    let mut leaving = Member::join(fixture, &topic, "a").await;
    let taken = leaving.take(6).await;
    let drain = leaving.source.drain(DEADLINE);
    let finish = async {
        tokio::time::sleep(Duration::from_millis(100)).await; // pace: the drain is to have something to wait for
        leaving.ack(&taken).await;
    };
    let (drained, ()) = tokio::join!(drain, finish);
    assert_eq!(drained.map(|drained| drained.abandoned), Ok(0));
    assert!(matches!(leaving.source.next(MANY, SHORT).await, Err(SourceError::Closed)));
    let began = Instant::now();
    let mut heir = Member::join(fixture, &topic, "b").await;
    let rest = sorted(heir.consume(14).await);
    assert!(began.elapsed() < SOON, "nobody waits for a lease: {:?}", began.elapsed());
    let all = sorted([numbers(&taken), rest].concat());
    assert_eq!(all, (1..=20).collect::<Vec<_>>());
    assert!(heir.rest().await.is_empty());
}

/// What was not settled by then comes again elsewhere, and settles nothing any more.
pub async fn a_drain_ends_at_its_deadline(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=5).await;
    let mut leaving = Member::join(fixture, &topic, "a").await;
    let taken = leaving.take(3).await;
    leaving.ack(&taken[..1]).await;
    let drained = leaving.source.drain(Duration::from_millis(200)).await.expect("ended");
    assert_eq!(drained.abandoned, 2);
    let late = leaving.source.ack(&tickets(&taken[1..])).await;
    assert_eq!(late, Ok(vec![Standing::Revoked; 2]));
    let mut heir = Member::join(fixture, &topic, "b").await;
    assert_eq!(sorted(heir.consume(4).await), [2, 3, 4, 5]);
}

/// G4, F20, F66: a member that lost its partitions and does not know.
pub async fn g4_a_zombie_settles_nothing(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=4).await;
    let mut zombie = Member::join(fixture, &topic, "a").await;
    let taken = zombie.take(4).await;
    fixture.kill("group", "a").await;
    let mut heir = Member::join(fixture, &topic, "b").await;
    let inherited = heir.take(4).await;
    let standings = zombie.source.ack(&tickets(&taken)).await.expect("an answer");
    assert_eq!(standings, [Standing::Revoked; 4], "a lost partition was settled");
    assert_eq!(zombie.source.nack(&taken[0].ticket, Duration::ZERO).await, Ok(Standing::Revoked));
    // The heir dies too, with one acknowledged: exactly that one is settled.
    heir.ack(&inherited[..1]).await;
    fixture.kill("group", "b").await;
    let mut last = Member::join(fixture, &topic, "c").await;
    assert_eq!(sorted(last.consume(3).await), [2, 3, 4]);
}

/// G4: every owner has a higher epoch than the one before.
pub async fn g4_epochs_grow(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let mut last = i64::MIN;
    for (n, member) in (1..).zip(["a", "b", "c"]) {
        publish(fixture, &topic, [n]).await;
        let mut owner = Member::join(fixture, &topic, member).await;
        let taken = owner.take(1).await;
        let epoch = taken[0].ticket.epoch;
        assert!(epoch > last, "{epoch} after {last}");
        let told = owner.changes.iter().find_map(|change| match change {
            Change::Assigned { epoch, .. } => Some(*epoch),
            _ => None,
        });
        assert_eq!(told, Some(epoch), "the change comes before its deliveries");
        owner.ack(&taken).await;
        last = epoch;
        if n == 1 {
            fixture.kill("group", member).await;
        } else {
            owner.drain().await;
        }
    }
}

/// Calls both until each has its part.
async fn settle_shares(one: &mut Member, two: &mut Member, shares: [usize; 2]) -> Vec<Delivery> {
    let end = Instant::now() + DEADLINE;
    let mut on_the_way = Vec::new();
    loop {
        for member in [&mut *one, &mut *two] {
            let taken = member.next(MANY, SHORT / 5).await;
            member.ack(&taken).await;
            on_the_way.extend(taken);
        }
        let now = [one.partitions().await, two.partitions().await];
        if now == shares || now == [shares[1], shares[0]] {
            return on_the_way;
        }
        assert!(Instant::now() < end, "{now:?} instead of {shares:?}");
    }
}

/// Each partition has one owner, and a clean hand-over repeats nothing.
pub async fn members_share_the_partitions(fixture: &impl SourceFixture) {
    let topic = fixture.topic(3).await;
    let mut one = Member::join(fixture, &topic, "a").await;
    let count = {
        spread(fixture, &topic, 1..=30).await;
        let taken = one.take(30).await;
        let partitions: std::collections::BTreeSet<Partition> =
            taken.iter().map(|delivery| delivery.partition().clone()).collect();
        one.ack(&taken).await;
        partitions.len()
    };
    if count < 3 || !fixture.shows_owners() {
        return;
    }
    let mut two = Member::join(fixture, &topic, "b").await;
    assert!(settle_shares(&mut one, &mut two, [2, 1]).await.is_empty(), "what was acknowledged stays so");
    spread(fixture, &topic, 31..=90).await;
    let mut taken = Vec::new();
    let mut owners: BTreeMap<Partition, u8> = BTreeMap::new();
    let end = Instant::now() + DEADLINE;
    while taken.len() < 60 {
        assert!(Instant::now() < end, "{} of 60", taken.len());
        for (who, member) in [(1_u8, &mut one), (2, &mut two)] {
            let part = member.next(MANY, SHORT / 5).await;
            for delivery in &part {
                assert_eq!(*owners.entry(delivery.partition().clone()).or_insert(who), who, "one owner");
            }
            member.ack(&part).await;
            taken.extend(numbers(&part));
        }
    }
    assert_eq!(sorted(taken), (31..=90).collect::<Vec<_>>());
    assert_eq!(owners.len(), 3);
}

/// By drain and by death.
pub async fn a_member_that_leaves_is_replaced_at_once(fixture: &impl SourceFixture) {
    if !fixture.shows_owners() {
        return;
    }
    let topic = fixture.topic(4).await;
    let mut one = Member::join(fixture, &topic, "a").await;
    one.assigned(4).await;
    for (leaver, dies) in [("b", false), ("c", true)] {
        let mut two = Member::join(fixture, &topic, leaver).await;
        settle_shares(&mut one, &mut two, [2, 2]).await;
        let began = Instant::now();
        if dies {
            fixture.kill("group", leaver).await;
        } else {
            two.drain().await;
        }
        one.assigned(4).await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

/// F67, F85: a heart that beats for a consumer that hangs.
pub async fn f67_a_silent_consumer_loses_its_partitions(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 1..=2).await;
    let how = Joining { stall_limit: Some(Duration::from_millis(500)), ..Joining::default() };
    let mut silent = Member::join_as(fixture, "group", &topic, "a", how).await;
    let taken = silent.take(1).await;
    let mut heir = Member::join(fixture, &topic, "b").await;
    assert_eq!(sorted(heir.consume(2).await), [1, 2]);
    let standings = silent.source.ack(&tickets(&taken)).await;
    assert_eq!(standings, Ok(vec![Standing::Revoked]));
    // It hears of it, and may come back.
    let Batch { changes, .. } = silent.source.next(MANY, SHORT).await.expect("it is a member again");
    assert!(changes.iter().any(|change| matches!(change, Change::Revoked { .. })), "{changes:?}");
}

/// F65: members come and go, by drain and by death, while messages flow and are given back.
pub async fn f65_members_come_and_go_and_nothing_is_lost(fixture: &impl SourceFixture) {
    let topic = fixture.topic(4).await;
    let key = |n: i64| format!("key-{}", n % 10);
    fixture.publish(&topic, (1..=300).map(|n| super::stage::numbered(n, Some(&key(n)))).collect()).await;
    let mut settled: BTreeMap<i64, usize> = BTreeMap::new();
    let mut members = vec![("m0".to_owned(), Member::join(fixture, &topic, "m0").await)];
    let end = Instant::now() + 3 * DEADLINE;
    let (mut round, mut settled_before) = (0, 0);
    while settled.len() < 300 {
        if Instant::now() >= end {
            let missing: Vec<i64> = (1..=300).filter(|n| !settled.contains_key(n)).collect();
            let views = futures_util::future::join_all(members.iter().map(|(_, m)| m.source.view())).await;
            panic!("{missing:?} are not settled after {round} rounds: {views:#?}");
        }
        round += 1;
        for (_, member) in &mut members {
            let taken = member.next(super::stage::limit(9), SHORT / 10).await;
            for (index, delivery) in taken.iter().enumerate() {
                let standing = if (round + index) % 7 == 0 {
                    member.source.nack(&delivery.ticket, Duration::from_millis(5)).await.map(|_| None)
                } else {
                    let standings = member.source.ack(std::slice::from_ref(&delivery.ticket)).await;
                    standings.map(|standings| standings.first().copied())
                };
                if standing.expect("the broker answers") == Some(Standing::Settled) {
                    *settled.entry(super::stage::number(delivery)).or_default() += 1;
                }
            }
        }
        // A group that takes a while to share its partitions gets to work before the next one comes or goes.
        if settled.len() < settled_before + 30 {
            continue;
        }
        if round % 4 == 0 && members.len() < 4 {
            let name = format!("m{round}");
            let member = Member::join(fixture, &topic, &name).await;
            members.push((name, member));
            settled_before = settled.len();
        } else if round % 4 == 2 && members.len() > 1 {
            settled_before = settled.len();
            let (name, member) = members.remove(round % members.len());
            if round % 8 == 2 {
                fixture.kill("group", &name).await;
            } else {
                member.source.drain(DEADLINE).await.expect("drained");
            }
        }
    }
    assert!(settled.keys().copied().eq(1..=300));
    let (_, mut survivor) = members.remove(0);
    for (_, member) in members {
        member.source.drain(DEADLINE).await.expect("drained");
    }
    // What a dead member had acknowledged ahead of its prefix may come again; nothing else is left.
    let rest = survivor.rest().await;
    survivor.ack(&rest).await;
    assert!(rest.iter().all(|delivery| settled.contains_key(&super::stage::number(delivery))));
    if survivor.source.capabilities().ack_scope == AckScope::Each {
        assert!(rest.is_empty());
    }
}
