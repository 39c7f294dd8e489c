//! The suite of looks: what operators are shown is what relays wrote. Lists have pages and filters, causes
//! are counted, and a rate is one of deliveries.

use crate::jobs::JobFixture;
use async_trait::async_trait;
use posthaste::admin::job::JobPlan;
use posthaste::admin::{
    Actor, AuditFilter, AuditLine, Control, ControlTarget, DeadAct, DeadFilter, DeferredFilter, History,
    SinkStatus,
};
use posthaste::event::Timestamp;
use posthaste::route::Filter;
use posthaste::store::{
    Death, Deferral, Due, ErrorClass, JoinPlan, LaneId, Lease, PageLimit, Reason, Settlement, SinkPlan,
    StartAt, Store,
};
use std::sync::Arc;
use std::time::Duration;

/// The cases, by name.
pub mod cases {
    pub use super::{
        deferred_events_have_pages_and_filters, letters_are_found_by_what_they_carry_and_how_they_died,
        letters_are_listed_newest_first_and_counted_by_cause, lines_of_the_audit_have_pages_and_filters,
        the_last_ten_attempts_stay_until_an_event_is_dead, the_rate_is_one_of_deliveries,
        what_deferred_events_wait_for_is_counted,
    };
}

/// An outbox, fresh for each case, with a relay beside whoever looks.
#[async_trait]
pub trait LookFixture: JobFixture {
    /// The relay's view; it has not joined yet.
    async fn store(&self) -> Arc<dyn Store>;
    /// Appends so many events to a topic, with the keys `k1`, `k2` and so on.
    async fn append(&self, topic: &str, count: i64);
    /// Appends one event without a key, and with these headers.
    async fn append_with(&self, topic: &str, headers: &str);
}

const WIDE: PageLimit = PageLimit { events: 1_000, bytes: 64 << 20 };
const HOUR: Duration = Duration::from_secs(3_600);

/// A relay with sinks that read everything, on a lane each.
async fn leases(fixture: &impl LookFixture, sinks: &[&str]) -> (Arc<dyn Store>, Vec<Arc<dyn Lease>>) {
    let store = fixture.store().await;
    let plan = |name: &&str| SinkPlan {
        name: (*name).into(),
        filter: Filter::Everything,
        start_at: StartAt::Earliest,
    };
    let plan = JoinPlan {
        relay: "a".into(),
        sinks: sinks.iter().map(plan).collect(),
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(120),
    };
    store.join(&plan).await.expect("the relay joins");
    let mut leases = Vec::new();
    for sink in sinks {
        let lane = LaneId { sink: (*sink).into(), lane: 0 };
        leases.push(store.take(&lane).await.expect("an answer").expect("the lane is free"));
    }
    (store, leases)
}

fn waits(reason: Reason, due: Due, destination: &str, failed: Option<(&str, &str)>) -> Deferral {
    Deferral {
        reason,
        due,
        attempts: 1,
        class: failed.map(|_| ErrorClass::Transient),
        code: failed.map(|(code, _)| code.to_owned()),
        error: failed.map(|(code, error)| format!("{code}: {error}")),
        route: "r".into(),
        destination: destination.to_owned(),
        holds: true,
        holds_when_dead: false,
    }
}

fn died(code: &str, error: &str, holds: bool) -> Death {
    Death {
        attempts: 3,
        class: ErrorClass::Permanent,
        code: code.to_owned(),
        error: error.to_owned(),
        route: "r".into(),
        holds,
    }
}

/// Reads what there is and settles it: by its place on the page an event waits, or died; the rest is
/// delivered.
async fn settle(
    lease: &Arc<dyn Lease>,
    outcome: impl Fn(usize) -> Option<Result<Deferral, Death>>,
) -> Vec<i64> {
    let page = lease.read(WIDE).await.expect("a page");
    let seqs = page.events.iter().map(|stored| stored.seq).collect();
    let mut settlement = Settlement { through: Some(page.number), ..Settlement::default() };
    for (n, stored) in page.events.into_iter().enumerate() {
        match outcome(n) {
            Some(Ok(deferral)) => settlement.deferred.push((stored, deferral)),
            Some(Err(death)) => settlement.dead.push((stored, death)),
            None => {}
        }
    }
    lease.settle(&settlement).await.expect("settled");
    seqs
}

fn codes(history: &History) -> Vec<String> {
    history.iter().map(|attempt| format!("{} {}", attempt.code, attempt.error)).collect()
}

/// Neither what was put aside nor what was given up was delivered.
pub async fn the_rate_is_one_of_deliveries(fixture: &impl LookFixture) {
    fixture.append("t", 10).await;
    let (_store, leases) = leases(fixture, &["s"]).await;
    let admin = fixture.open().await;
    let sink = async || -> SinkStatus {
        let status = admin.status().await.expect("a look");
        status.sinks.into_iter().find(|sink| sink.sink == "s").expect("it is there")
    };
    let seqs = settle(&leases[0], |n| match n {
        0..4 => Some(Ok(waits(Reason::Retry, Due::In(Duration::ZERO), "d", None))),
        4 => Some(Err(died("x.no", "no", false))),
        _ => None,
    })
    .await;
    let now = sink().await;
    assert_eq!((now.deferred.count, now.dead.count, now.backlog.count), (4, 1, 0));
    assert_eq!((now.delivered_per_second * 60.0).round(), 5.0, "ten are settled, five of them delivered");
    let again = vec![(seqs[2], waits(Reason::Retry, Due::In(HOUR), "d", None))];
    let later = Settlement {
        delivered: seqs[..2].to_vec(),
        again,
        died: vec![(seqs[3], died("x.no", "no", false))],
        ..Settlement::default()
    };
    leases[0].settle(&later).await.expect("settled");
    let now = sink().await;
    assert_eq!((now.deferred.count, now.dead.count), (1, 2));
    assert_eq!((now.delivered_per_second * 60.0).round(), 7.0, "two of them came later");
}

/// What happened to an event is seen while it waits, and afterwards.
pub async fn the_last_ten_attempts_stay_until_an_event_is_dead(fixture: &impl LookFixture) {
    fixture.append("t", 1).await;
    let (_store, leases) = leases(fixture, &["s"]).await;
    let admin = fixture.open().await;
    let history = async || {
        let listed = admin.deferred_list(&DeferredFilter::default(), None, 9).await.expect("a list");
        codes(&listed[0].history)
    };
    let tried = |n: u32| {
        let (code, error) = (format!("x.n{n}"), format!("no {n}"));
        let failed = Some((code.as_str(), error.as_str()));
        Deferral { attempts: n, ..waits(Reason::Retry, Due::In(Duration::ZERO), "d", failed) }
    };
    let seq = settle(&leases[0], |_| Some(Ok(tried(1)))).await[0];
    assert_eq!(history().await, ["x.n1 no 1"]);
    for n in 2..=12 {
        let again = vec![(seq, tried(n))];
        leases[0].settle(&Settlement { again, ..Settlement::default() }).await.expect("settled");
    }
    let told = |from: u32, to: u32| (from..=to).map(|n| format!("x.n{n} no {n}")).collect::<Vec<_>>();
    assert_eq!(history().await, told(3, 12), "the last ten");
    // That an outage goes on is no news.
    let away = || waits(Reason::Outage, Due::In(Duration::ZERO), "d", Some(("x.n12", "again")));
    let again = vec![(seq, away())];
    leases[0].settle(&Settlement { again, ..Settlement::default() }).await.expect("settled");
    assert_eq!(history().await, told(3, 12));
    let death = vec![(seq, died("x.n13", "no 13", false))];
    leases[0].settle(&Settlement { died: death, ..Settlement::default() }).await.expect("settled");
    let letter = &admin.dead_list(&DeadFilter::default(), None, 9).await.expect("a list")[0];
    assert_eq!((codes(&letter.history), letter.fingerprint.is_some()), (told(4, 13), true));
    assert!(letter.history.attempts().is_sorted_by_key(|attempt| attempt.at));
}

/// Of ten events four wait for a retry, three for a destination, one for its time, and two behind the
/// first two.
async fn append_mixed(fixture: &impl LookFixture) {
    fixture.append("a.x", 8).await;
    fixture.append("a.x", 2).await;
}

fn mixed(n: usize) -> Deferral {
    let later = Due::In(HOUR);
    match n {
        0..4 => waits(Reason::Retry, later, "here", Some(("x.busy", "busy"))),
        4..7 => waits(Reason::Outage, later, "there", Some(("x.gone", "gone"))),
        7 => Deferral { holds: false, ..waits(Reason::Scheduled, later, "", None) },
        _ => waits(Reason::Held, Due::Behind, "here", None),
    }
}

/// By sink and number, and no page shows what another one has.
pub async fn deferred_events_have_pages_and_filters(fixture: &impl LookFixture) {
    append_mixed(fixture).await;
    let (_store, leases) = leases(fixture, &["s", "t"]).await;
    for lease in &leases {
        settle(lease, |n| Some(Ok(mixed(n)))).await;
    }
    let admin = fixture.open().await;
    let all = DeferredFilter::default();
    let whole = admin.deferred_list(&all, None, 100).await.expect("a list");
    let place = |event: &posthaste::admin::DeferredEvent| (event.sink.clone(), event.seq);
    let (mut pages, mut last) = (Vec::new(), None::<(String, i64)>);
    loop {
        let after = last.as_ref().map(|(sink, seq)| (sink.as_str(), *seq));
        let page = admin.deferred_list(&all, after, 7).await.expect("a page");
        let Some(event) = page.last() else { break };
        last = Some(place(event));
        pages.push(page);
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 6]);
    let places: Vec<_> = pages.iter().flatten().map(place).collect();
    assert_eq!(places, whole.iter().map(place).collect::<Vec<_>>());
    assert!(places.is_sorted_by(|one, two| one < two), "{places:?}");
    assert_eq!(whole.iter().filter(|event| event.due_at.is_none()).count(), 4, "behind another");
    let some = |text: &str| Some(text.to_owned());
    let (one, of) = (whole[12].clone(), DeferredFilter::default);
    for (filter, expected) in [
        (DeferredFilter { sink: some("t"), ..of() }, 10),
        (DeferredFilter { sink: some("nobody"), ..of() }, 0),
        (DeferredFilter { topic: some("a.*"), ..of() }, 20),
        (DeferredFilter { topic: some("a"), ..of() }, 0),
        (DeferredFilter { key: some("k3"), ..of() }, 2),
        (DeferredFilter { reason: some("held"), ..of() }, 4),
        (DeferredFilter { reason: some("scheduled"), ..of() }, 2),
        (DeferredFilter { destination: some("here"), ..of() }, 12),
        (DeferredFilter { code: some("x.gone"), ..of() }, 6),
        (DeferredFilter { code: some("x.gone"), reason: some("retry"), ..of() }, 0),
        (DeferredFilter { destination: some("here"), code: some("x.busy"), sink: some("s"), ..of() }, 4),
        (DeferredFilter { ids: vec![one.id], ..of() }, 2),
        (DeferredFilter { ids: vec![one.id], sink: some("t"), ..of() }, 1),
    ] {
        let found = admin.deferred_list(&filter, None, 100).await.expect("a list");
        assert_eq!(found.len(), expected, "{filter:?}");
    }
    let (code, error) = (one.error_code.as_deref(), one.last_error.as_deref());
    let told = (one.sink.as_str(), one.key.as_deref(), one.reason.as_str(), &*one.destination, code, error);
    let expected = ("t", Some("k3"), "retry", "here", Some("x.busy"), Some("x.busy: busy"));
    assert_eq!((told, one.attempts, &*one.route), (expected, 1, "r"));
}

/// The most frequent first, in the words of one of them.
pub async fn what_deferred_events_wait_for_is_counted(fixture: &impl LookFixture) {
    append_mixed(fixture).await;
    let (_store, leases) = leases(fixture, &["s"]).await;
    settle(&leases[0], |n| Some(Ok(mixed(n)))).await;
    let admin = fixture.open().await;
    let causes = async |filter: DeferredFilter, limit: i64| {
        let causes = admin.deferred_causes(&filter, limit).await.expect("causes");
        let told = causes.into_iter().map(|cause| {
            let text = |text: Option<String>| text.unwrap_or_default();
            let what = [cause.reason, cause.destination, text(cause.error_code), text(cause.error)];
            (what.join("|"), cause.count, cause.due_at.is_some())
        });
        told.collect::<Vec<_>>()
    };
    let all = [
        ("retry|here|x.busy|x.busy: busy", 4, true),
        ("outage|there|x.gone|x.gone: gone", 3, true),
        ("held|here||", 2, false),
        ("scheduled|||", 1, true),
    ]
    .map(|(what, count, is_due)| (what.to_owned(), count, is_due));
    assert_eq!(causes(DeferredFilter::default(), 100).await, all);
    assert_eq!(causes(DeferredFilter::default(), 2).await, all[..2]);
    let here = DeferredFilter { destination: Some("here".to_owned()), ..DeferredFilter::default() };
    assert_eq!(causes(here, 100).await, [all[0].clone(), all[2].clone()]);
    let status = admin.status().await.expect("a look");
    let waiting: Vec<_> = status.sinks[0].waiting.iter().map(|cause| (&*cause.reason, cause.count)).collect();
    assert_eq!(waiting, [("retry", 4), ("outage", 3), ("held", 2), ("scheduled", 1)]);
}

/// Letters by pages from the newest on; numbers in an error do not make another cause of it.
pub async fn letters_are_listed_newest_first_and_counted_by_cause(fixture: &impl LookFixture) {
    fixture.append("a.x", 6).await;
    fixture.append("b.x", 3).await;
    let (_store, leases) = leases(fixture, &["s"]).await;
    let seqs = settle(&leases[0], |n| match n {
        0..8 if n % 4 == 3 => Some(Err(died("x.rare", "rare", false))),
        _ => Some(Err(died("x.no", &format!("line {n} is no good"), n == 0))),
    })
    .await;
    let admin = fixture.open().await;
    let (mut newest, mut before) = (Vec::new(), None::<String>);
    loop {
        let page = admin.dead_newest(&DeadFilter::default(), before.as_deref(), 4).await.expect("a page");
        assert!(page.len() <= 4);
        let Some(last) = page.last() else { break };
        before = Some(last.cursor.clone());
        newest.extend(page);
    }
    let listed: Vec<i64> = newest.iter().map(|letter| letter.seq).collect();
    assert_eq!(listed, seqs.iter().rev().copied().collect::<Vec<_>>());
    let oldest = admin.dead_list(&DeadFilter::default(), None, 100).await.expect("a list");
    assert!(oldest.iter().rev().map(|letter| letter.seq).eq(listed));
    let found = admin.dead_causes(&DeadFilter::default(), 9).await.expect("causes");
    assert_eq!(found.looked, None, "all of them");
    let [often, rare] = found.causes.as_slice() else { panic!("two causes: {found:?}") };
    assert_eq!((often.count, &*often.error_code, &*often.error), (7, "x.no", "line 8 is no good"));
    assert_eq!((often.holding, often.topics.join(" ").as_str(), often.id), (1, "a.x b.x", newest[0].id));
    assert_eq!((rare.count, &*rare.error_code, rare.holding), (2, "x.rare", 0));
    assert!(often.first_at <= often.last_at && often.fingerprint == newest[0].fingerprint);
    let one = admin.dead_causes(&DeadFilter::default(), 1).await.expect("causes");
    assert_eq!(one.causes.len(), 1, "the most frequent");
    let of_rare = DeadFilter { fingerprint: rare.fingerprint, ..DeadFilter::default() };
    assert_eq!(admin.dead_count(&of_rare).await.expect("a count"), 2);
    assert_eq!(admin.dead_newest(&of_rare, None, 9).await.expect("a list").len(), 2);
    let topic = DeadFilter { topic: Some("b.*".to_owned()), ..DeadFilter::default() };
    let found = admin.dead_causes(&topic, 9).await.expect("causes");
    assert_eq!(found.causes.iter().map(|cause| cause.count).collect::<Vec<_>>(), [2, 1]);
    let later = DeadFilter { since: Some(Timestamp(newest[0].dead_at.0 + 1)), ..DeadFilter::default() };
    assert!(admin.dead_newest(&later, None, 9).await.expect("a list").is_empty());
}

/// By class, text, route, headers and what waits for them. Nothing in a text stands for something else.
pub async fn letters_are_found_by_what_they_carry_and_how_they_died(fixture: &impl LookFixture) {
    fixture.append_with("t", r#"{"tenant": "7", "kind": "a"}"#).await;
    fixture.append_with("t", r#"{"tenant": "8"}"#).await;
    fixture.append("t", 2).await;
    let (_store, leases) = leases(fixture, &["s"]).await;
    let seqs = settle(&leases[0], |n| {
        let died = died("x.no", ["no field total", "100%_* [no]", "no", "no"][n], n == 2);
        let (class, route) = if n == 1 { (ErrorClass::Unknown, "q") } else { (died.class, "r") };
        Some(Err(Death { class, route: route.into(), ..died }))
    })
    .await;
    let admin = fixture.open().await;
    let found = async |filter: DeadFilter| -> Vec<usize> {
        let listed = admin.dead_list(&filter, None, 9).await.expect("a list");
        assert_eq!(admin.dead_count(&filter).await.expect("a count"), listed.len() as u64, "{filter:?}");
        let place = |seq: i64| seqs.iter().position(|known| *known == seq).expect("it is known");
        listed.iter().map(|letter| place(letter.seq)).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    let with = |error: &str| DeadFilter { error: text(error), ..DeadFilter::default() };
    let of = |header: Option<&str>, value: Option<&str>| DeadFilter {
        header: header.and_then(text),
        header_value: value.and_then(text),
        ..DeadFilter::default()
    };
    assert_eq!(found(DeadFilter { class: text("unknown"), ..DeadFilter::default() }).await, [1]);
    assert_eq!(found(DeadFilter { route: text("r"), ..DeadFilter::default() }).await, [0, 2, 3]);
    assert_eq!(found(with("field")).await, [0]);
    for (part, places) in [("%_* [", &[1][..]), ("%", &[1]), ("n_", &[]), ("no*", &[]), ("No", &[])] {
        assert_eq!(found(with(part)).await, places, "{part}");
    }
    assert_eq!(found(of(Some("tenant"), None)).await, [0, 1]);
    assert_eq!(found(of(Some("tenant"), Some("7"))).await, [0]);
    assert_eq!(found(of(None, Some("8"))).await, [1]);
    assert!(found(of(Some("kind"), Some("7"))).await.is_empty(), "of one header");
    assert!(found(of(Some("$.tenant"), None)).await.is_empty(), "no path");
    let holding = |is: bool| DeadFilter { holds_key: Some(is), ..DeadFilter::default() };
    assert_eq!((found(holding(true)).await, found(holding(false)).await), (vec![2], vec![0, 1, 3]));
    let replayed = |is: bool| DeadFilter { replayed: Some(is), ..DeadFilter::default() };
    assert_eq!((found(replayed(true)).await, found(replayed(false)).await), (vec![], vec![0, 1, 2, 3]));
    let causes = admin.dead_causes(&of(Some("tenant"), None), 9).await.expect("causes");
    assert_eq!(causes.causes.iter().map(|cause| cause.count).sum::<i64>(), 2);
    let plan = JobPlan::dead(DeadAct::Replay, of(Some("tenant"), Some("7")));
    let seen = admin.jobs().expect("it has jobs").preview(&plan).await.expect("a look");
    assert_eq!((seen.goes, &seen.samples[0]["seq"]), (1, &seqs[0].into()));
    let done = admin.dead_act(&with("field"), DeadAct::Replay, &Actor::new("ann", "mended"), 9).await;
    assert_eq!(done.expect("replayed"), 1);
    let again = Settlement { died: vec![(seqs[0], died("x.no", "no", false))], ..Settlement::default() };
    leases[0].settle(&again).await.expect("settled");
    assert_eq!(found(replayed(true)).await, [0]);
}

/// Newest first, by who, what, which trace and when.
pub async fn lines_of_the_audit_have_pages_and_filters(fixture: &impl LookFixture) {
    fixture.bury("s", 1, true).await;
    let admin = fixture.open().await;
    let sink = ControlTarget::Sink("s".to_owned());
    for n in 0..5 {
        let ann = Actor::new("ann", format!("upgrade {n}")).traced(format!("trace {n}"));
        admin.control(&sink, &Control::Pause, &ann).await.expect("paused");
        let bo = Actor { verified: true, ..Actor::new("bo", "done").traced(format!("trace {n}")) };
        admin.control(&sink, &Control::Resume, &bo).await.expect("resumed");
    }
    let lines = async |filter: &AuditFilter, before: Option<i64>, limit: i64| -> Vec<AuditLine> {
        admin.audit_lines(filter, before, limit).await.expect("the audit")
    };
    let whole = lines(&AuditFilter::default(), None, 100).await;
    assert_eq!(whole.len(), 10);
    let (mut pages, mut before) = (Vec::new(), None);
    loop {
        let page = lines(&AuditFilter::default(), before, 4).await;
        let Some(last) = page.last() else { break };
        before = Some(last.id);
        pages.extend(page);
    }
    let ids = |lines: &[AuditLine]| lines.iter().map(|line| line.id).collect::<Vec<_>>();
    assert_eq!(ids(&pages), ids(&whole));
    assert!(whole.is_sorted_by(|one, two| one.id > two.id && one.at >= two.at));
    let told: Vec<_> = whole[..2]
        .iter()
        .map(|line| (&*line.actor, line.verified, &*line.action, &*line.reason, &*line.outcome))
        .collect();
    assert_eq!(told, [("bo", true, "resume", "done", "done"), ("ann", false, "pause", "upgrade 4", "done")]);
    let some = |text: &str| Some(text.to_owned());
    let of = AuditFilter::default;
    let (newest, oldest) = (whole[0].at, whole[9].at);
    for (filter, expected) in [
        (AuditFilter { actor: some("ann"), ..of() }, 5),
        (AuditFilter { actor: some("an"), ..of() }, 0),
        (AuditFilter { action: some("resume"), ..of() }, 5),
        (AuditFilter { action: some("resume"), actor: some("ann"), ..of() }, 0),
        (AuditFilter { trace_id: some("trace 3"), ..of() }, 2),
        (AuditFilter { since: Some(oldest), ..of() }, 10),
        (AuditFilter { since: Some(Timestamp(newest.0 + 1)), ..of() }, 0),
        (AuditFilter { until: Some(oldest), ..of() }, 0),
    ] {
        assert_eq!(lines(&filter, None, 100).await.len(), expected, "{filter:?}");
    }
    let by_bo = AuditFilter { actor: some("bo"), ..of() };
    let first = lines(&by_bo, None, 3).await;
    assert_eq!((first.len(), lines(&by_bo, Some(first[2].id), 9).await.len()), (3, 2), "pages of a filter");
}

/// Runs the suite of looks: `look_suite!(module_name, async_fn_that_makes_a_fixture)`.
#[macro_export]
macro_rules! look_suite {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(looks, [$make],
                the_rate_is_one_of_deliveries
                the_last_ten_attempts_stay_until_an_event_is_dead
                deferred_events_have_pages_and_filters
                what_deferred_events_wait_for_is_counted
                letters_are_listed_newest_first_and_counted_by_cause
                letters_are_found_by_what_they_carry_and_how_they_died
                lines_of_the_audit_have_pages_and_filters
            );
        }
    };
}
