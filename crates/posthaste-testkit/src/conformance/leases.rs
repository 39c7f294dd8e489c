//! The suite of leases: what [`posthaste::source::leased::Leases`] promises, case by case.

use crate::conformance::{DEADLINE, eventually};
use posthaste::source::Partition;
use posthaste::source::leased::{HeldLease, LeaseBeat, LeaseRoll, Leases};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any case waits.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

/// The cases, by name.
pub mod cases {
    pub use super::{
        a_lease_that_ended_is_free_and_may_still_be_renewed, a_member_that_is_silent_does_not_count,
        f24_an_end_is_judged_where_the_leases_are, g4_a_lease_has_one_owner_and_epochs_grow,
        g4_whoever_lost_a_lease_renews_settles_and_gives_back_nothing, g8_what_is_given_back_is_free_at_once,
    };
}

/// Leases for one group, fresh for each case.
pub trait LeaseFixture: Send + Sync {
    /// Of several processes each opens them for itself.
    fn open(&self) -> Arc<dyn Leases>;
}

fn place(n: i32) -> Partition {
    Partition::new("log", n)
}

async fn beat(leases: &dyn Leases, member: &str, held: &[HeldLease], ttl: Duration) -> LeaseRoll {
    let beat =
        LeaseBeat { member: member.into(), held: held.to_vec(), partitions: vec![place(0), place(1)], ttl };
    leases.renew(&beat).await.expect("renewed")
}

async fn take(leases: &dyn Leases, member: &str, n: i32, ttl: Duration) -> Option<HeldLease> {
    let taken = leases.take(member, &place(n), ttl).await.expect("an answer");
    taken.map(|lease| HeldLease { partition: place(n), epoch: lease.epoch })
}

/// Of many that try at once one gets it; the next owner's epoch is higher.
pub async fn g4_a_lease_has_one_owner_and_epochs_grow(fixture: &impl LeaseFixture) {
    let members: Vec<_> = (0..4).map(|_| fixture.open()).collect();
    let mut last = i64::MIN;
    for _ in 0..3 {
        let tries = members.iter().map(|leases| take(&**leases, "m", 0, LONG));
        let taken: Vec<_> = futures_util::future::join_all(tries).await.into_iter().flatten().collect();
        assert_eq!(taken.len(), 1, "{taken:?}");
        assert!(taken[0].epoch > last);
        last = taken[0].epoch;
        members[0].release("m", &taken).await.expect("given back");
    }
}

/// G8.
pub async fn g8_what_is_given_back_is_free_at_once(fixture: &impl LeaseFixture) {
    let leases = fixture.open();
    assert_eq!(beat(&*leases, "a", &[], LONG).await.free, [place(0), place(1)]);
    let held = take(&*leases, "a", 0, LONG).await.expect("free");
    assert_eq!(beat(&*leases, "a", std::slice::from_ref(&held), LONG).await.free, [place(1)]);
    assert_eq!(take(&*leases, "b", 0, LONG).await, None);
    leases.release("a", std::slice::from_ref(&held)).await.expect("given back");
    assert_eq!(beat(&*leases, "b", &[], LONG).await.free, [place(0), place(1)]);
    assert!(take(&*leases, "b", 0, LONG).await.is_some());
}

/// The owner may be late, as long as nobody else came.
pub async fn a_lease_that_ended_is_free_and_may_still_be_renewed(fixture: &impl LeaseFixture) {
    let leases = fixture.open();
    let held = [take(&*leases, "a", 0, SHORT).await.expect("free")];
    let ended = || async { beat(&*leases, "b", &[], LONG).await.free.contains(&place(0)).then_some(()) };
    eventually("the lease ends", DEADLINE, ended).await;
    let roll = beat(&*leases, "a", &held, LONG).await;
    assert_eq!(roll.kept, [true]);
    assert!(!beat(&*leases, "b", &[], LONG).await.free.contains(&place(0)));
    assert_eq!(take(&*leases, "b", 0, LONG).await, None);
}

/// F24: whoever waits needs no clock of its own.
pub async fn f24_an_end_is_judged_where_the_leases_are(fixture: &impl LeaseFixture) {
    let (one, two) = (fixture.open(), fixture.open());
    take(&*one, "a", 0, SHORT).await.expect("free");
    let taken = eventually("the lease ends", DEADLINE, || take(&*two, "b", 0, LONG)).await;
    assert_eq!(one.settle(&[(taken, None)]).await, Ok(vec![true]));
}

/// G4, F20.
pub async fn g4_whoever_lost_a_lease_renews_settles_and_gives_back_nothing(fixture: &impl LeaseFixture) {
    let leases = fixture.open();
    let lost = take(&*leases, "a", 0, SHORT).await.expect("free");
    let heir = eventually("the lease ends", DEADLINE, || take(&*leases, "b", 0, LONG)).await;
    assert_eq!(beat(&*leases, "a", std::slice::from_ref(&lost), LONG).await.kept, [false]);
    leases.release("a", std::slice::from_ref(&lost)).await.expect("an answer");
    let settled = leases.settle(&[(lost, Some(7)), (heir.clone(), Some(9))]).await;
    assert_eq!(settled, Ok(vec![false, true]));
    assert_eq!(take(&*leases, "c", 0, LONG).await, None, "the heir's is untouched");
    assert_eq!(beat(&*leases, "b", &[heir], LONG).await.kept, [true]);
}

/// By its silence, and at once when it leaves.
pub async fn a_member_that_is_silent_does_not_count(fixture: &impl LeaseFixture) {
    let leases = fixture.open();
    let held = [take(&*leases, "a", 0, LONG).await.expect("free")];
    beat(&*leases, "a", &held, LONG).await;
    beat(&*leases, "c", &[], LONG).await;
    let members = beat(&*leases, "b", &[], LONG).await.members;
    assert_eq!(members, [("a".into(), 1), ("b".into(), 0), ("c".into(), 0)]);
    leases.leave("c").await.expect("left");
    assert_eq!(beat(&*leases, "b", &[], LONG).await.members.len(), 2);
    let alone = || async {
        let roll = beat(&*leases, "b", &[], SHORT).await;
        (roll.members.len() == 1).then_some(roll)
    };
    let roll = eventually("the others are forgotten", DEADLINE, alone).await;
    assert_eq!(*roll.members[0].0, *"b");
}

/// Runs the suite of leases: `lease_suite!(module_name, async_fn_that_makes_a_fixture)`.
#[macro_export]
macro_rules! lease_suite {
    ($name:ident, $make:expr $(, $test:meta)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(leases, [$make $(, $test)?],
                g4_a_lease_has_one_owner_and_epochs_grow
                g8_what_is_given_back_is_free_at_once
                a_lease_that_ended_is_free_and_may_still_be_renewed
                f24_an_end_is_judged_where_the_leases_are
                g4_whoever_lost_a_lease_renews_settles_and_gives_back_nothing
                a_member_that_is_silent_does_not_count
            );
        }
    };
}
