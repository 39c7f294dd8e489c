//! The suite of jobs: what [`posthaste::admin::job::JobStore`] promises, case by case.

mod meanwhile;

use crate::conformance::{DEADLINE, eventually};
use async_trait::async_trait;
use posthaste::admin::job::{
    ChunkEnd, JobBell, JobLease, JobOrder, JobPlan, JobRun, JobState, JobStatus, JobStore, NewJob,
    OPEN_JOBS_MAX, RunEnd, run_job, run_jobs,
};
use posthaste::admin::{Actor, Admin, AdminError, AuditFilter, DeadAct, DeadFilter, DeferredFilter};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The cases, by name.
pub mod cases {
    pub use super::meanwhile::*;
    pub use super::{
        a_job_does_what_was_seen_and_never_goes_beyond, a_job_is_paused_resumed_and_cancelled,
        a_letter_discarded_by_another_hand_is_counted_once, a_letter_that_cannot_go_is_passed_over,
        a_letter_that_the_database_refuses_stops_no_job, deferred_events_are_tried_now,
        f58_a_look_counts_what_is_done_and_an_empty_filter_is_refused, f59_two_jobs_on_one_letter_one_wins,
        f83_runners_take_what_nobody_runs, g6_whoever_lost_a_job_does_nothing, jobs_are_bounded_and_listed,
        letters_go_for_good_by_a_job, the_same_key_is_the_same_job,
    };
}

/// An outbox with dead letters, fresh for each case.
#[async_trait]
pub trait JobFixture: Send + Sync {
    /// Of several processes each opens it for itself.
    async fn open(&self) -> Arc<dyn Admin>;
    /// So many more dead letters of a sink, with a key each. `served`: whether a relay may come for the sink.
    async fn bury(&self, sink: &str, count: i64, served: bool);
    /// So many deferred events of a sink, with a key each, due in an hour.
    async fn defer(&self, sink: &str, count: i64);
    /// So many events of the log, of topic `t` and with a key each, that a sink has passed.
    async fn pass(&self, sink: &str, count: i64);
    /// No relay serves the sink any more.
    async fn retire(&self, sink: &str);
    /// From now on the database does not take an event of this key among the deferred.
    async fn refuse(&self, key: &str);
    /// The lease of a job ends now.
    async fn end_lease(&self, job: i64);
}

fn actor() -> Actor {
    Actor::new("ann", "mended")
}

fn all() -> DeadFilter {
    DeadFilter { all: true, ..DeadFilter::default() }
}

fn store(admin: &dyn Admin) -> &dyn JobStore {
    admin.jobs().expect("this store has jobs")
}

/// A job on what is there now.
async fn start(admin: &dyn Admin, plan: JobPlan, owner: Option<&str>) -> JobStatus {
    let seen = store(admin).preview(&plan).await.expect("a look");
    let new = NewJob {
        total: seen.matched(),
        upto: seen.upto,
        plan,
        rate_per_s: None,
        idempotency_key: None,
        owner: owner.map(str::to_owned),
    };
    store(admin).new_job(&new, &actor()).await.expect("a job")
}

async fn run(admin: &dyn Admin, lease: &JobLease, chunk: i64) -> JobStatus {
    let how = JobRun { rate_per_s: None, chunk, patience: Duration::from_secs(5) };
    match run_job(store(admin), lease, how, std::future::pending(), |_| {}).await {
        Ok(RunEnd::Ended(job)) => *job,
        other => panic!("{other:?}"),
    }
}

async fn dead(admin: &dyn Admin) -> u64 {
    admin.dead_count(&DeadFilter::default()).await.expect("a count")
}

async fn deferred(admin: &dyn Admin) -> usize {
    admin.deferred_list(&DeferredFilter::default(), None, 10_000).await.expect("a list").len()
}

async fn audited(admin: &dyn Admin, action: &str) -> Vec<posthaste::admin::AuditLine> {
    let filter = AuditFilter { action: Some(action.to_owned()), ..AuditFilter::default() };
    admin.audit_lines(&filter, None, 1_000).await.expect("the audit")
}

/// F58: what a dry run counts is what is done; nothing is meant by leaving everything out.
pub async fn f58_a_look_counts_what_is_done_and_an_empty_filter_is_refused(fixture: &impl JobFixture) {
    fixture.bury("old", 5, false).await;
    fixture.bury("s", 25, true).await;
    let admin = fixture.open().await;
    let jobs = store(&*admin);
    let empty = JobPlan::dead(DeadAct::Replay, DeadFilter::default());
    assert_eq!(jobs.preview(&empty).await.expect_err("empty").code(), "admin.empty_filter");
    let plan = JobPlan::dead(DeadAct::Replay, all());
    let seen = jobs.preview(&plan).await.expect("a look");
    assert_eq!((seen.goes, seen.matched(), seen.samples.len()), (25, 30, 10));
    assert_eq!(seen.left_alone, BTreeMap::from([("admin.not_served".to_owned(), 5)]));
    assert!(seen.samples.iter().all(|sample| sample["sink"] == "s"), "of those that go: {seen:?}");
    let discard = JobPlan::dead(DeadAct::Discard, all());
    let gone = jobs.preview(&discard).await.expect("a look");
    assert_eq!((gone.goes, &gone.samples[0]["sink"]), (30, &"old".into()), "all of them go for good");
    let job = start(&*admin, plan, Some("me")).await;
    assert_eq!((job.state, job.total, job.owner.as_deref()), (JobState::Running, 30, Some("me")));
    let done = run(&*admin, &JobLease { job: job.job, epoch: job.epoch }, 10).await;
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 25, 5));
    assert_eq!(done.reasons, seen.left_alone);
    assert_eq!((dead(&*admin).await, deferred(&*admin).await), (5, 25));
    let lines = audited(&*admin, "replay").await;
    let counted: i64 = lines.iter().filter_map(|line| line.detail["count"].as_i64()).sum();
    assert_eq!((counted, lines.len() > 1), (25, true), "a line for each chunk: {lines:?}");
    assert!(lines.iter().all(|line| line.detail["job"] == job.job && line.actor == "ann"));
    assert_eq!(audited(&*admin, "start job").await.len(), 1);
    let nothing = DeadFilter { sink: Some("nobody".to_owned()), ..DeadFilter::default() };
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, nothing), Some("me")).await;
    let done = run(&*admin, &JobLease { job: job.job, epoch: job.epoch }, 10).await;
    assert_eq!((done.state, done.done), (JobState::Done, 0), "nothing matches");
}

/// A replayed letter that dies again is a new one; a job without an end would take it.
pub async fn a_job_does_what_was_seen_and_never_goes_beyond(fixture: &impl JobFixture) {
    fixture.bury("s", 12, true).await;
    let admin = fixture.open().await;
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), None).await;
    assert_eq!((job.state, job.owner), (JobState::Queued, None));
    fixture.bury("s", 8, true).await;
    let lease = store(&*admin).take_job("me", None).await.expect("an answer").expect("a job");
    let done = run(&*admin, &lease, 5).await;
    assert_eq!((done.state, done.done), (JobState::Done, 12));
    assert_eq!(dead(&*admin).await, 8, "who died later is not touched");
    assert!(store(&*admin).take_job("me", None).await.expect("an answer").is_none());
}

/// G6: an owner that was thought dead and is not.
pub async fn g6_whoever_lost_a_job_does_nothing(fixture: &impl JobFixture) {
    fixture.bury("s", 30, true).await;
    let (one, two) = (fixture.open().await, fixture.open().await);
    let job = start(&*one, JobPlan::dead(DeadAct::Replay, all()), Some("one")).await;
    let lost = JobLease { job: job.job, epoch: job.epoch };
    assert!(
        matches!(store(&*one).run_chunk(&lost, 10).await, Ok(ChunkEnd::Committed(job)) if job.done == 10)
    );
    assert!(store(&*two).take_job("two", None).await.expect("an answer").is_none(), "its owner lives");
    fixture.end_lease(job.job).await;
    let heir = eventually("the lease ends", DEADLINE, || async {
        store(&*two).take_job("two", Some(job.job)).await.expect("an answer")
    })
    .await;
    assert!(heir.epoch > lost.epoch);
    for end in [
        store(&*one).run_chunk(&lost, 10).await,
        store(&*one).leave_alone(&lost, "x.y").await,
        store(&*one).fail_job(&lost, "no").await,
        store(&*one).renew_job(&lost).await,
    ] {
        assert!(matches!(end, Ok(ChunkEnd::LeaseLost)), "{end:?}");
    }
    assert_eq!(dead(&*one).await, 20, "nothing was done under the old epoch");
    let done = run(&*two, &heir, 10).await;
    assert_eq!((done.done, done.left_alone, dead(&*two).await), (30, 0, 0), "and nothing twice");
}

/// What is done is done; what is over cannot be ordered.
pub async fn a_job_is_paused_resumed_and_cancelled(fixture: &impl JobFixture) {
    fixture.bury("s", 30, true).await;
    let admin = fixture.open().await;
    let jobs = store(&*admin);
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), Some("me")).await;
    let lease = JobLease { job: job.job, epoch: job.epoch };
    jobs.run_chunk(&lease, 10).await.expect("a chunk");
    let paused = jobs.order_job(job.job, JobOrder::Pause, &actor()).await.expect("paused");
    assert_eq!((paused.state, paused.done), (JobState::Paused, 10));
    jobs.order_job(job.job, JobOrder::Pause, &actor()).await.expect("the same again");
    let end = jobs.run_chunk(&lease, 10).await;
    assert!(matches!(end, Ok(ChunkEnd::Stopped(job)) if job.state == JobState::Paused));
    assert!(jobs.take_job("me", None).await.expect("an answer").is_none());
    assert_eq!(dead(&*admin).await, 20);
    jobs.order_job(job.job, JobOrder::Resume, &actor()).await.expect("resumed");
    let lease = jobs.take_job("me", None).await.expect("an answer").expect("it waits");
    jobs.run_chunk(&lease, 10).await.expect("a chunk");
    let over = jobs.order_job(job.job, JobOrder::Cancel, &actor()).await.expect("cancelled");
    assert_eq!((over.state, over.done), (JobState::Cancelled, 20));
    assert!(over.ended_at.is_some());
    assert!(matches!(jobs.run_chunk(&lease, 10).await, Ok(ChunkEnd::Stopped(_))));
    let refused = jobs.order_job(job.job, JobOrder::Resume, &actor()).await.expect_err("over");
    assert_eq!(refused.code(), "admin.job_over");
    assert_eq!(dead(&*admin).await, 10);
    for (action, times) in [("pause job", 1), ("resume job", 1), ("cancel job", 1)] {
        assert_eq!(audited(&*admin, action).await.len(), times, "{action}");
    }
    let unknown = jobs.order_job(9_999, JobOrder::Pause, &actor()).await.expect_err("unknown");
    assert_eq!(unknown.code(), "admin.unknown_job");
}

/// A request whose answer was lost is sent again.
pub async fn the_same_key_is_the_same_job(fixture: &impl JobFixture) {
    fixture.bury("s", 3, true).await;
    let admin = fixture.open().await;
    let jobs = store(&*admin);
    let new = |filter: DeadFilter| NewJob {
        plan: JobPlan::dead(DeadAct::Replay, filter),
        upto: "3".to_owned(),
        total: 3,
        rate_per_s: Some(5.0),
        idempotency_key: Some("once".to_owned()),
        owner: None,
    };
    let first = jobs.new_job(&new(all()), &actor()).await.expect("a job");
    let again = jobs.new_job(&new(all()), &actor()).await.expect("the same");
    assert_eq!((first.job, first.rate_per_s), (again.job, Some(5.0)));
    let known = jobs.job_of_key("once", &new(all()).plan).await.expect("asked");
    assert_eq!(known.map(|job| job.job), Some(first.job));
    assert!(jobs.job_of_key("another", &new(all()).plan).await.expect("asked").is_none());
    // Whoever asks again, when something was done already, sees less in front of them.
    let later = NewJob { upto: "2".to_owned(), ..new(all()) };
    assert_eq!(jobs.new_job(&later, &actor()).await.expect("the same").job, first.job);
    let other = new(DeadFilter { sink: Some("s".to_owned()), ..DeadFilter::default() });
    assert_eq!(jobs.new_job(&other, &actor()).await.expect_err("another").code(), "admin.other_job");
    assert_eq!(audited(&*admin, "start job").await.len(), 1);
    let silent = jobs.new_job(&new(all()), &Actor::new("ann", " ")).await.expect_err("no reason");
    assert_eq!(silent.code(), "admin.actor_missing");
    let bad = NewJob { rate_per_s: Some(0.0), ..new(all()) };
    assert_eq!(jobs.new_job(&bad, &actor()).await.expect_err("no rate").code(), "admin.bad_rate");
}

/// F59.
pub async fn f59_two_jobs_on_one_letter_one_wins(fixture: &impl JobFixture) {
    fixture.bury("s", 60, true).await;
    let (one, two) = (fixture.open().await, fixture.open().await);
    let first = start(&*one, JobPlan::dead(DeadAct::Replay, all()), Some("one")).await;
    let second = start(&*two, JobPlan::dead(DeadAct::Discard, all()), Some("two")).await;
    let lease = |job: &JobStatus| JobLease { job: job.job, epoch: job.epoch };
    let (first, second) = (lease(&first), lease(&second));
    let (replayed, discarded) = tokio::join!(run(&*one, &first, 7), run(&*two, &second, 7));
    assert_eq!(replayed.done + discarded.done, 60, "letters = replayed + discarded");
    assert_eq!((dead(&*one).await, deferred(&*one).await as u64), (0, replayed.done));
}

/// One bad letter stops no job.
pub async fn a_letter_that_cannot_go_is_passed_over(fixture: &impl JobFixture) {
    fixture.bury("s", 5, true).await;
    let admin = fixture.open().await;
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), Some("me")).await;
    let lease = JobLease { job: job.job, epoch: job.epoch };
    store(&*admin).run_chunk(&lease, 2).await.expect("a chunk");
    let left = store(&*admin).leave_alone(&lease, "x.no").await;
    assert!(matches!(&left, Ok(ChunkEnd::Committed(job)) if job.left_alone == 1), "{left:?}");
    let done = run(&*admin, &lease, 2).await;
    assert_eq!((done.done, done.left_alone, dead(&*admin).await), (4, 1, 1));
    assert_eq!(done.reasons, BTreeMap::from([("x.no".to_owned(), 1)]));
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), Some("me")).await;
    let lease = JobLease { job: job.job, epoch: job.epoch };
    let failed = store(&*admin).fail_job(&lease, "nothing goes").await;
    assert!(matches!(failed, Ok(ChunkEnd::Committed(job))
        if job.state == JobState::Failed && job.error.as_deref() == Some("nothing goes")));
}

/// A constraint, a trigger or an index refuses one of them: that is no outage, and the others go.
pub async fn a_letter_that_the_database_refuses_stops_no_job(fixture: &impl JobFixture) {
    fixture.bury("s", 30, true).await;
    fixture.refuse("k17").await;
    let admin = fixture.open().await;
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), Some("me")).await;
    let done = run(&*admin, &JobLease { job: job.job, epoch: job.epoch }, 30).await;
    assert_eq!((done.state, done.done, dead(&*admin).await), (JobState::Done, 29, 1));
    assert_eq!(done.reasons, BTreeMap::from([("store.refused".to_owned(), 1)]));
}

/// G6: the audit is what remains of them.
pub async fn letters_go_for_good_by_a_job(fixture: &impl JobFixture) {
    fixture.bury("s", 7, true).await;
    fixture.bury("old", 3, false).await;
    let admin = fixture.open().await;
    let job = start(&*admin, JobPlan::dead(DeadAct::Discard, all()), Some("me")).await;
    let done = run(&*admin, &JobLease { job: job.job, epoch: job.epoch }, 4).await;
    assert_eq!((done.done, done.left_alone, dead(&*admin).await), (10, 0, 0), "served or not");
    let lines = audited(&*admin, "discard").await;
    let counted: i64 = lines.iter().filter_map(|line| line.detail["count"].as_i64()).sum();
    assert_eq!((counted, deferred(&*admin).await), (10, 0));
}

/// What waits for a retry is due now, and nothing else about it changes.
pub async fn deferred_events_are_tried_now(fixture: &impl JobFixture) {
    fixture.defer("s", 9).await;
    let admin = fixture.open().await;
    let filter = DeferredFilter { sink: Some("s".to_owned()), ..DeferredFilter::default() };
    let plan = JobPlan::DeferredRetry { filter: filter.clone() };
    let seen = store(&*admin).preview(&plan).await.expect("a look");
    assert_eq!((seen.goes, seen.left_alone.len()), (9, 0));
    let job = start(&*admin, plan.clone(), Some("me")).await;
    let done = run(&*admin, &JobLease { job: job.job, epoch: job.epoch }, 4).await;
    assert_eq!((done.state, done.done), (JobState::Done, 9));
    let now = admin.status().await.expect("a look").now;
    let waiting = admin.deferred_list(&filter, None, 100).await.expect("a list");
    assert!(waiting.iter().all(|event| event.due_at.is_some_and(|due| due <= now)), "{waiting:?}");
    let seen = store(&*admin).preview(&plan).await.expect("a look");
    assert_eq!(seen.left_alone, BTreeMap::from([("deferred.due".to_owned(), 9)]));
    assert!(seen.samples.is_empty(), "none of them goes: {seen:?}");
    assert!(!audited(&*admin, "retry").await.is_empty());
}

/// Newest first, by pages; so many open ones and no more.
pub async fn jobs_are_bounded_and_listed(fixture: &impl JobFixture) {
    fixture.bury("s", 1, true).await;
    let admin = fixture.open().await;
    let jobs = store(&*admin);
    let plan = || JobPlan::dead(DeadAct::Replay, all());
    let mut numbers = Vec::new();
    for _ in 0..OPEN_JOBS_MAX {
        numbers.push(start(&*admin, plan(), None).await.job);
    }
    let new = NewJob {
        plan: plan(),
        upto: "1".to_owned(),
        total: 1,
        rate_per_s: None,
        idempotency_key: None,
        owner: None,
    };
    let refused: AdminError = jobs.new_job(&new, &actor()).await.expect_err("too many");
    assert_eq!(refused.code(), "admin.too_many_jobs");
    jobs.order_job(numbers[3], JobOrder::Cancel, &actor()).await.expect("cancelled");
    jobs.new_job(&new, &actor()).await.expect("there is room again");
    let list = async |before, open, limit| jobs.jobs(before, open, limit).await.expect("a list");
    let first = list(None, false, 5).await;
    let rest = list(first.last().map(|job| job.job), false, 100).await;
    assert_eq!((first.len(), rest.len()), (5, OPEN_JOBS_MAX as usize + 1 - 5));
    assert!(first.iter().chain(&rest).is_sorted_by(|one, two| one.job > two.job));
    assert!(list(None, true, 100).await.iter().all(|job| job.job != numbers[3]), "only open ones");
    assert_eq!(jobs.job(numbers[3]).await.expect("it is kept").state, JobState::Cancelled);
    assert_eq!(jobs.job(9_999).await.expect_err("unknown").code(), "admin.unknown_job");
}

/// Letters + replayed + discarded = before, whoever was quicker.
pub async fn a_letter_discarded_by_another_hand_is_counted_once(fixture: &impl JobFixture) {
    fixture.bury("s", 20, true).await;
    let (one, two) = (fixture.open().await, fixture.open().await);
    let job = start(&*one, JobPlan::dead(DeadAct::Replay, all()), Some("one")).await;
    let lease = JobLease { job: job.job, epoch: job.epoch };
    store(&*one).run_chunk(&lease, 5).await.expect("a chunk");
    let left = two.dead_list(&all(), None, 3).await.expect("a list");
    let named = DeadFilter { ids: left.iter().map(|letter| letter.id).collect(), ..DeadFilter::default() };
    assert_eq!(two.dead_act(&named, DeadAct::Discard, &actor(), 10).await.expect("discarded"), 3);
    fixture.bury("s", 4, true).await;
    let done = run(&*one, &lease, 5).await;
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 17, 0));
    assert_eq!((dead(&*one).await, deferred(&*one).await), (4, 17), "who died meanwhile stays");
    let lines = audited(&*one, "replay").await;
    let counts: Vec<i64> = lines.iter().filter_map(|line| line.detail["count"].as_i64()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<i64>()), (4, 17), "a line for each chunk: {counts:?}");
}

/// F83: a runner takes what waits at its start, what its bell says, and what a dead one left behind. A slow
/// job holds up no other.
pub async fn f83_runners_take_what_nobody_runs(fixture: &impl JobFixture) {
    fixture.bury("s", 40, true).await;
    fixture.bury("t", 10, true).await;
    let admin = fixture.open().await;
    let of = |sink: &str| {
        let filter = DeadFilter { sink: Some(sink.to_owned()), ..DeadFilter::default() };
        JobPlan::dead(DeadAct::Replay, filter)
    };
    let seen = store(&*admin).preview(&of("s")).await.expect("a look");
    let (total, upto) = (seen.matched(), seen.upto);
    // One letter an hour: it ends only if somebody makes it.
    let slow = NewJob {
        plan: of("s"),
        upto,
        total,
        rate_per_s: Some(1.0 / 3_600.0),
        idempotency_key: None,
        owner: None,
    };
    let slow = store(&*admin).new_job(&slow, &actor()).await.expect("a job");
    let runner = |name: &'static str, bell: JobBell, admin| {
        posthaste::task::spawn("runner", async move {
            let admin: Arc<dyn Admin> = admin;
            run_jobs(&*admin, name, &bell, std::future::pending()).await;
        })
    };
    let job = async |job: i64| store(&*admin).job(job).await.expect("a job");
    let one = runner("one", JobBell::default(), fixture.open().await);
    eventually("one runs it", DEADLINE, || async { (job(slow.job).await.done == 1).then_some(()) }).await;
    let bell = JobBell::default();
    let two = runner("two", bell.clone(), fixture.open().await);
    let quick = start(&*admin, of("t"), None).await;
    eventually("the other one is done beside it", DEADLINE, || async {
        bell.ring();
        (job(quick.job).await.state == JobState::Done).then_some(())
    })
    .await;
    assert_eq!(job(slow.job).await.owner.as_deref(), Some("one"), "its owner lives");
    drop(one);
    eventually("two takes what one left", DEADLINE, || async {
        fixture.end_lease(slow.job).await;
        bell.ring();
        let now = job(slow.job).await;
        (now.owner.as_deref() == Some("two") && now.done == 2).then_some(())
    })
    .await;
    store(&*admin).order_job(slow.job, JobOrder::Pause, &actor()).await.expect("paused");
    store(&*admin).order_job(slow.job, JobOrder::Resume, &actor()).await.expect("resumed");
    eventually("it goes on although the lease of before is not over", DEADLINE, || async {
        bell.ring();
        (job(slow.job).await.done == 3).then_some(())
    })
    .await;
    store(&*admin).order_job(slow.job, JobOrder::Cancel, &actor()).await.expect("cancelled");
    drop(two);
    let now = job(slow.job).await;
    assert_eq!(dead(&*admin).await + deferred(&*admin).await as u64, 50, "letters + replayed = before");
    assert_eq!((now.state, now.done), (JobState::Cancelled, 3), "and nothing twice");
}

/// Runs the suite of jobs: `job_suite!(module_name, async_fn_that_makes_a_fixture)`.
#[macro_export]
macro_rules! job_suite {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__conformance_tests!(jobs, [$make],
                f58_a_look_counts_what_is_done_and_an_empty_filter_is_refused
                a_job_does_what_was_seen_and_never_goes_beyond
                g6_whoever_lost_a_job_does_nothing
                a_job_is_paused_resumed_and_cancelled
                the_same_key_is_the_same_job
                f59_two_jobs_on_one_letter_one_wins
                a_letter_that_cannot_go_is_passed_over
                a_letter_that_the_database_refuses_stops_no_job
                letters_go_for_good_by_a_job
                deferred_events_are_tried_now
                jobs_are_bounded_and_listed
                a_letter_discarded_by_another_hand_is_counted_once
                f83_runners_take_what_nobody_runs
                letters_of_a_sink_that_is_retired_meanwhile_are_left_alone
                a_replay_of_events_fails_when_its_sink_is_retired_meanwhile
                f82_a_look_at_a_long_log_is_bounded_and_its_job_does_all
                f82_what_a_rewind_sends_again_is_counted_within_a_bound
                a_cancel_beside_a_chunk_counts_what_moved
            );
        }
    };
}
