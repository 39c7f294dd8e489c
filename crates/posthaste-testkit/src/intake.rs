//! The suite of intakes: what [`posthaste::intake::Intake`] and [`TenantStore`] promise, case by case.

mod tenants;

use crate::conformance::{DEADLINE, eventually};
use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste::admin::Admin;
use posthaste::intake::{
    Admitted, Idempotency, IngestRequest, Intake, IntakeBounds, IntakeError, TenantStore,
};
use posthaste::{Event, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// The cases, by name.
pub mod cases {
    pub use super::tenants::{
        a_new_key_makes_its_tenant, each_change_raises_the_version_and_is_audited,
        the_roster_says_everything, what_cannot_be_is_refused_and_changes_nothing,
    };
    pub use super::{
        a_batch_keeps_its_order, a_batch_of_which_one_is_refused_stores_nothing,
        figures_say_what_was_committed, g7_what_may_wait_is_bounded, only_what_was_taken_outlives_its_client,
        w1_an_answer_means_committed_byte_for_byte, w2_what_was_withdrawn_is_never_stored,
        w4_a_purged_key_is_a_new_request, w4_a_repeated_key_is_the_same_request,
        w4_two_at_once_on_two_intakes_are_one, w4_two_in_one_group_are_one,
        w5_a_key_belongs_to_its_tenant_and_topic, what_is_refused_costs_itself_alone,
        what_two_intakes_are_given_is_there_once,
    };
}

/// What keeps everybody from committing. It lets go when it is dropped.
pub trait Blocking: Send + Sync {}

/// An outbox, fresh for each case.
#[async_trait]
pub trait IntakeFixture: Send + Sync {
    /// Of several gateways each starts its own.
    async fn intake(&self, bounds: IntakeBounds) -> Arc<dyn Intake>;
    /// Tenants and keys.
    async fn tenants(&self) -> Arc<dyn TenantStore>;
    /// For the audit.
    async fn admin(&self) -> Arc<dyn Admin>;
    /// Everything that is in the log, in its order.
    async fn events(&self) -> Vec<Event>;
    /// From now on the database takes no event of this topic.
    async fn refuse(&self, topic: &str);
    /// From now on nobody can commit an event.
    async fn block(&self) -> Box<dyn Blocking>;
    /// Waits until a commit is blocked, if anybody can see that.
    async fn until_blocked(&self);
}

/// Long enough for a machine that has much else to do: what is late then is lost.
pub fn patient() -> IntakeBounds {
    IntakeBounds { append_timeout: DEADLINE, ..IntakeBounds::default() }
}

/// A request of a tenant, with one event for each payload.
pub fn request(tenant: &str, topic: &str, payloads: &[&str]) -> IngestRequest {
    let event = |payload: &&str| Event::new(topic, (*payload).to_owned()).with_key(tenant);
    let events = payloads.iter().map(event).collect();
    IngestRequest { tenant: tenant.into(), topic: topic.into(), events, idempotency: None }
}

/// The same with a key, and a hash that this byte stands for.
pub fn keyed(tenant: &str, key: &str, hash: u8) -> IngestRequest {
    let idempotency = Some(Idempotency { key: key.into(), hash: [hash; 32] });
    IngestRequest { idempotency, ..request(tenant, "t", &["p"]) }
}

fn ids_of(request: &IngestRequest) -> Vec<Uuid> {
    request.events.iter().map(|event| event.id).collect()
}

/// A client: it asks, and is answered later.
pub fn ask(intake: &Arc<dyn Intake>, request: IngestRequest) -> JoinHandle<Result<Admitted, IntakeError>> {
    let intake = Arc::clone(intake);
    tokio::spawn(async move { intake.append(request).await })
}

async fn answer(asked: JoinHandle<Result<Admitted, IntakeError>>) -> Result<Admitted, IntakeError> {
    asked.await.expect("no client panics")
}

/// Waits until so many events are in the intake.
async fn until_queued(intake: &Arc<dyn Intake>, events: u64) {
    let queued = || async { (intake.figures().queued_events >= events).then_some(()) };
    eventually("the requests are in the intake", DEADLINE, queued).await;
}

/// Occupies the one connection of an intake, so that what comes next gathers.
async fn occupy(
    fixture: &impl IntakeFixture,
    intake: &Arc<dyn Intake>,
) -> JoinHandle<Result<Admitted, IntakeError>> {
    let first = ask(intake, request("first", "t", &["first"]));
    until_queued(intake, 1).await;
    fixture.until_blocked().await;
    first
}

fn one_connection() -> IntakeBounds {
    IntakeBounds { connections: 1, ..patient() }
}

async fn stored_ids(fixture: &impl IntakeFixture) -> Vec<Uuid> {
    fixture.events().await.iter().map(|event| event.id).collect()
}

/// Every column, and bytes that are no text.
pub async fn w1_an_answer_means_committed_byte_for_byte(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(patient()).await;
    let mut all = request("acme", "orders.v1", &[""]);
    let bytes: Vec<u8> = (0..=255).chain([0, 0, 0]).collect();
    let full = Event::new("orders.v1", bytes)
        .with_key("acme:ключ/'\"\\")
        .with_content_type("application/x-thing; charset=\"ü\"")
        .with_header("tenant_id", "acme")
        .with_header("type", "Größe \"quoted\" \\ {a,b} NULL ''")
        .deliver_at(Timestamp(4_102_444_800_123_456));
    let bare = Event::new("orders.v1", Vec::new());
    all.events.extend([full, bare, Event::tombstone("orders.v1")]);
    let admitted = intake.append(all.clone()).await.expect("stored");
    assert_eq!(admitted, Admitted { ids: ids_of(&all), replayed: false });
    let plain = |event: &Event| {
        let headers: BTreeMap<String, String> =
            event.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (Event { headers: posthaste::Headers::new(), ..event.clone() }, headers)
    };
    let (stored, given): (Vec<_>, Vec<_>) =
        (fixture.events().await.iter().map(plain).collect(), all.events.iter().map(plain).collect());
    assert_eq!(stored, given);
    let none = IngestRequest { events: Vec::new(), ..all };
    assert!(matches!(intake.append(none).await, Err(IntakeError::Refused(_))));
}

/// Also among others, and one that is larger than a group.
pub async fn a_batch_keeps_its_order(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(patient()).await;
    let payloads: Vec<String> = (0..700).map(|n| n.to_string()).collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let batches: Vec<IngestRequest> = [7, 700, 100, 1]
        .iter()
        .map(|count| request(&format!("t{count}"), "t", &payloads[..*count]))
        .collect();
    let answers = join_all(batches.iter().map(|batch| intake.append(batch.clone()))).await;
    let stored = fixture.events().await;
    assert_eq!(stored.len(), 808);
    for (batch, answer) in batches.iter().zip(answers) {
        assert_eq!(answer.expect("stored").ids, ids_of(batch));
        let own: Vec<Uuid> =
            stored.iter().filter(|event| event.key.as_deref() == Some(&batch.tenant)).map(|e| e.id).collect();
        assert_eq!(own, ids_of(batch));
    }
}

/// Nothing of it, and its key is free.
pub async fn a_batch_of_which_one_is_refused_stores_nothing(fixture: &impl IntakeFixture) {
    fixture.refuse("poison").await;
    let intake = fixture.intake(patient()).await;
    let mut bad = keyed("acme", "k", 1);
    bad.events.insert(0, Event::new("t", "before"));
    bad.events.push(Event::new("poison", "x"));
    assert!(matches!(intake.append(bad).await, Err(IntakeError::Refused(_))));
    assert!(fixture.events().await.is_empty());
    let good = keyed("acme", "k", 2);
    assert_eq!(intake.append(good.clone()).await, Ok(Admitted { ids: ids_of(&good), replayed: false }));
}

/// The same ids, or a refusal; another intake knows it too.
pub async fn w4_a_repeated_key_is_the_same_request(fixture: &impl IntakeFixture) {
    let (intake, other) = (fixture.intake(patient()).await, fixture.intake(patient()).await);
    let first =
        IngestRequest { events: request("acme", "t", &["a", "b", "c"]).events, ..keyed("acme", "k", 1) };
    let ids = ids_of(&first);
    assert_eq!(intake.append(first).await, Ok(Admitted { ids: ids.clone(), replayed: false }));
    for intake in [&intake, &other] {
        let again = Ok(Admitted { ids: ids.clone(), replayed: true });
        assert_eq!(intake.append(keyed("acme", "k", 1)).await, again);
        assert_eq!(intake.append(keyed("acme", "k", 2)).await, Err(IntakeError::KeyReused));
    }
    // Beside others in one group.
    let new = keyed("acme", "other", 1);
    let (again, fresh) = tokio::join!(intake.append(keyed("acme", "k", 1)), intake.append(new.clone()));
    assert_eq!((again.expect("known").ids, fresh.expect("stored").ids), (ids.clone(), ids_of(&new)));
    assert_eq!(stored_ids(fixture).await, [ids, ids_of(&new)].concat());
}

/// Whoever is first: all get its ids, and only its events are there.
pub async fn w4_two_at_once_on_two_intakes_are_one(fixture: &impl IntakeFixture) {
    let intakes = [fixture.intake(patient()).await, fixture.intake(patient()).await];
    for round in 0..20 {
        let key = format!("k{round}");
        let asked: Vec<_> = (0..8).map(|n| ask(&intakes[n % 2], keyed("acme", &key, 1))).collect();
        let mut answers = Vec::new();
        for asked in asked {
            answers.push(answer(asked).await.expect("stored"));
        }
        let ids: BTreeSet<&Vec<Uuid>> = answers.iter().map(|admitted| &admitted.ids).collect();
        assert_eq!(ids.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|admitted| !admitted.replayed).count(), 1, "{answers:?}");
    }
    assert_eq!(fixture.events().await.len(), 20);
}

/// The first stands for the others.
pub async fn w4_two_in_one_group_are_one(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(one_connection()).await;
    let block = fixture.block().await;
    let occupied = occupy(fixture, &intake).await;
    let asked: Vec<_> = [1, 1, 2, 1].into_iter().map(|hash| ask(&intake, keyed("acme", "k", hash))).collect();
    until_queued(&intake, 5).await;
    drop(block);
    answer(occupied).await.expect("stored");
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(answer(asked).await);
    }
    let stored = stored_ids(fixture).await;
    assert_eq!(stored.len(), 2);
    let of_first = answers.iter().flatten().filter(|admitted| admitted.ids == stored[1..]).count();
    let reused = answers.iter().filter(|answer| **answer == Err(IntakeError::KeyReused)).count();
    // Which hash came first is the runtime's affair.
    assert!([(3, 1), (1, 3)].contains(&(of_first, reused)), "{answers:?}");
    assert_eq!(answers.iter().flatten().filter(|admitted| !admitted.replayed).count(), 1, "{answers:?}");
}

/// Nobody meets the request of another tenant, or learns that there is one.
pub async fn w5_a_key_belongs_to_its_tenant_and_topic(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(patient()).await;
    let elsewhere = IngestRequest { topic: "u".into(), ..keyed("acme", "k", 3) };
    let all = [keyed("acme", "k", 1), keyed("acme2", "k", 2), elsewhere];
    for one in &all {
        let own = Ok(Admitted { ids: ids_of(one), replayed: false });
        assert_eq!(intake.append(one.clone()).await, own);
    }
    assert_eq!(fixture.events().await.len(), 3);
}

/// Young ones stay.
pub async fn w4_a_purged_key_is_a_new_request(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(patient()).await;
    for n in 0..3 {
        intake.append(keyed("acme", &format!("k{n}"), 1)).await.expect("stored");
    }
    assert_eq!(intake.purge(Duration::from_secs(3_600)).await.expect("purged"), 0);
    let again = intake.append(keyed("acme", "k0", 1)).await.expect("known");
    assert!(again.replayed);
    // And whatever else is kept for as long.
    assert!(intake.purge(Duration::ZERO).await.expect("purged") >= 3);
    assert_eq!(intake.purge(Duration::ZERO).await.expect("purged"), 0);
    let fresh = keyed("acme", "k0", 2);
    assert_eq!(intake.append(fresh.clone()).await, Ok(Admitted { ids: ids_of(&fresh), replayed: false }));
    assert_eq!(fixture.events().await.len(), 4);
}

/// In one group with many others, with keys and without.
pub async fn what_is_refused_costs_itself_alone(fixture: &impl IntakeFixture) {
    fixture.refuse("poison").await;
    let intake = fixture.intake(one_connection()).await;
    let block = fixture.block().await;
    let occupied = occupy(fixture, &intake).await;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for n in 0..60 {
        match n % 20 {
            7 => bad.push(ask(&intake, request("eve", "poison", &["x"]))),
            13 => {
                let idempotency = Some(Idempotency { key: format!("p{n}").as_str().into(), hash: [0; 32] });
                let poison = IngestRequest { idempotency, ..request("eve", "poison", &["x"]) };
                bad.push(ask(&intake, poison));
            }
            m if m % 2 == 0 => good.push(ask(&intake, keyed("acme", &format!("k{n}"), 1))),
            _ => good.push(ask(&intake, request("other", "t", &["a", "b"]))),
        }
    }
    until_queued(&intake, 61).await;
    drop(block);
    let mut ids: BTreeSet<Uuid> = answer(occupied).await.expect("stored").ids.into_iter().collect();
    for good in good {
        ids.extend(answer(good).await.expect("stored").ids);
    }
    for bad in bad {
        assert!(matches!(answer(bad).await, Err(IntakeError::Refused(_))));
    }
    let stored = stored_ids(fixture).await;
    assert_eq!((stored.len(), stored.into_iter().collect::<BTreeSet<_>>()), (ids.len(), ids));
    // It goes alone for a while, and is served.
    intake.append(request("eve", "t", &["good"])).await.expect("stored");
}

/// Its time was up while it waited. Later nothing comes of it.
pub async fn w2_what_was_withdrawn_is_never_stored(fixture: &impl IntakeFixture) {
    let short = IntakeBounds { connections: 1, append_timeout: Duration::from_secs(1), ..patient() };
    let intake = fixture.intake(short).await;
    let block = fixture.block().await;
    let first = occupy(fixture, &intake).await;
    let asked: Vec<_> = (0..5)
        .map(|n| {
            let request = keyed("acme", &format!("k{n}"), 1);
            (n, ids_of(&request)[0], ask(&intake, request))
        })
        .collect();
    let unknown = |error: &IntakeError| matches!(error, IntakeError::OutcomeUnknown(_));
    let first = answer(first).await.expect_err("nobody can commit");
    assert!(unknown(&first) || matches!(first, IntakeError::Unavailable(_)), "{first}");
    let mut withdrawn = BTreeMap::new();
    for (n, id, asked) in asked {
        match answer(asked).await.expect_err("nobody can commit") {
            IntakeError::Unavailable(_) => drop(withdrawn.insert(id, n)),
            // On a machine that is slow enough it was taken.
            error => assert!(unknown(&error), "{error}"),
        }
    }
    assert!(!withdrawn.is_empty());
    drop(block);
    let patient = fixture.intake(patient()).await;
    patient.append(request("acme", "t", &["later"])).await.expect("stored");
    let served = || async { intake.append(request("acme", "t", &["again"])).await.ok() };
    eventually("it serves again", DEADLINE, served).await;
    assert!(stored_ids(fixture).await.iter().all(|id| !withdrawn.contains_key(id)));
    // The same keys with another body: nothing was remembered of them.
    for n in withdrawn.values() {
        let other = keyed("acme", &format!("k{n}"), 9);
        assert_eq!(
            patient.append(other.clone()).await,
            Ok(Admitted { ids: ids_of(&other), replayed: false })
        );
    }
}

/// What is queued goes with its client; what was taken is stored, once.
pub async fn only_what_was_taken_outlives_its_client(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(one_connection()).await;
    let block = fixture.block().await;
    let occupied = occupy(fixture, &intake).await;
    let queued: Vec<_> = (0..10).map(|_| ask(&intake, request("gone", "t", &["x"]))).collect();
    until_queued(&intake, 11).await;
    for queued in &queued {
        queued.abort();
    }
    let left = || async { (intake.figures().queued_events == 1).then_some(()) };
    eventually("their room is free", DEADLINE, left).await;
    drop(block);
    answer(occupied).await.expect("stored");
    intake.append(request("acme", "t", &["later"])).await.expect("stored");
    let keys: Vec<_> = fixture.events().await.into_iter().filter_map(|event| event.key).collect();
    assert_eq!(keys, ["first", "acme"]);
    // Hanging up at any moment never stores half of a batch, and never anything twice.
    let mut ids = BTreeSet::new();
    for n in 0..50u32 {
        let batch = request(&format!("b{n}"), "t", &["a", "b", "c"]);
        ids.extend(ids_of(&batch));
        let asked = ask(&intake, batch);
        for _ in 0..n {
            tokio::task::yield_now().await;
        }
        asked.abort();
    }
    intake.append(request("acme", "t", &["last"])).await.expect("stored");
    let events = fixture.events().await;
    let mut of_batch: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
    for event in events.into_iter().filter(|event| ids.contains(&event.id)) {
        of_batch.entry(event.key.unwrap_or_default()).or_default().push(event.id);
    }
    assert!(of_batch.values().all(|ids| ids.len() == 3), "{of_batch:?}");
}

/// Requests and bytes. Whoever is refused has taken no room.
pub async fn g7_what_may_wait_is_bounded(fixture: &impl IntakeFixture) {
    let block = fixture.block().await;
    let few = fixture.intake(IntakeBounds { requests_max: 4, ..one_connection() }).await;
    let waiting: Vec<_> = (0..4).map(|_| ask(&few, request("acme", "t", &["x"]))).collect();
    until_queued(&few, 4).await;
    for _ in 0..3 {
        assert_eq!(few.append(request("acme", "t", &["x"])).await, Err(IntakeError::Busy));
    }
    let small = fixture.intake(IntakeBounds { bytes_max: 100_000, ..one_connection() }).await;
    let large = "x".repeat(60_000);
    let large = ask(&small, request("acme", "t", &[&large]));
    until_queued(&small, 1).await;
    let too_much = "x".repeat(50_000);
    assert_eq!(small.append(request("acme", "t", &[&too_much])).await, Err(IntakeError::Busy));
    drop(block);
    for waiting in waiting.into_iter().chain([large]) {
        answer(waiting).await.expect("stored");
    }
    assert_eq!(few.figures().queued_events + small.figures().queued_events, 0);
    few.append(request("acme", "t", &["x"])).await.expect("there is room again");
    // Larger than the whole room: it may come while nobody else is there.
    let huge = "x".repeat(200_000);
    small.append(request("acme", "t", &[&huge])).await.expect("stored");
}

/// Not what was refused or known before.
pub async fn figures_say_what_was_committed(fixture: &impl IntakeFixture) {
    let intake = fixture.intake(patient()).await;
    intake.append(request("acme", "t", &["a", "b"])).await.expect("stored");
    intake.append(keyed("acme", "k", 1)).await.expect("stored");
    intake.append(keyed("acme", "k", 1)).await.expect("known");
    intake.append(keyed("acme", "k", 2)).await.expect_err("another request");
    let figures = intake.figures();
    assert_eq!((figures.committed_events, figures.queued_events), (3, 0));
    assert!(figures.commits >= 3, "{figures:?}");
}

/// Every request is answered, every answer is true, and nothing else is there.
pub async fn what_two_intakes_are_given_is_there_once(fixture: &impl IntakeFixture) {
    let intakes = [fixture.intake(patient()).await, fixture.intake(patient()).await];
    let asked: Vec<_> = (0..600)
        .map(|n: usize| {
            let request = match n % 3 {
                0 => keyed("acme", &format!("k{n}"), 1),
                1 => request("other", "t", &["a", "b", "c"]),
                _ => request(&format!("t{}", n % 7), "t", &["x"]),
            };
            ask(&intakes[n % 2], request)
        })
        .collect();
    let mut ids = Vec::new();
    for asked in asked {
        ids.extend(answer(asked).await.expect("stored").ids);
    }
    let mut stored = stored_ids(fixture).await;
    stored.sort_unstable();
    ids.sort_unstable();
    assert_eq!(stored, ids);
    let figures = intakes.map(|intake| intake.figures().committed_events);
    assert_eq!(figures.iter().sum::<u64>(), 1_000);
}

/// Runs the suite of intakes: `intake_suite!(module_name, async_fn_that_makes_a_fixture)`.
#[macro_export]
macro_rules! intake_suite {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;
            $crate::intake_suite! { @cases $make,
                w1_an_answer_means_committed_byte_for_byte
                a_batch_keeps_its_order
                a_batch_of_which_one_is_refused_stores_nothing
                w4_a_repeated_key_is_the_same_request
                w4_two_at_once_on_two_intakes_are_one
                w4_two_in_one_group_are_one
                w5_a_key_belongs_to_its_tenant_and_topic
                w4_a_purged_key_is_a_new_request
                what_is_refused_costs_itself_alone
                w2_what_was_withdrawn_is_never_stored
                only_what_was_taken_outlives_its_client
                g7_what_may_wait_is_bounded
                figures_say_what_was_committed
                what_two_intakes_are_given_is_there_once
                each_change_raises_the_version_and_is_audited
                a_new_key_makes_its_tenant
                the_roster_says_everything
                what_cannot_be_is_refused_and_changes_nothing
            }
        }
    };
    (@cases $make:expr, $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(fixture) = $make().await else { return };
                $crate::intake::cases::$case(&fixture).await;
            }
        )*
    };
}
