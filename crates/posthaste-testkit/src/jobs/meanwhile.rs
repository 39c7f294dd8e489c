//! What happens to a job's letters and to the job itself between two of its chunks, or beside one.

use super::{JobFixture, actor, all, audited, dead, deferred, run, start, store};
use posthaste::admin::job::{ChunkEnd, JobLease, JobOrder, JobPlan, JobState, JobStatus, LookBound, NewJob};
use posthaste::admin::{AuditLine, Count, DeadAct, EventFilter, RewindTo, count_again_within};
use std::collections::BTreeMap;
use std::time::Duration;

fn lease(job: &JobStatus) -> JobLease {
    JobLease { job: job.job, epoch: job.epoch }
}

/// What the lines of a job say that it did.
fn counted(lines: &[AuditLine], job: i64) -> u64 {
    let of_job = lines.iter().filter(|line| line.detail["job"] == job);
    of_job.filter_map(|line| line.detail["count"].as_u64()).sum()
}

/// Nobody would deliver them any more: what is left of its letters stays, and those of other sinks go.
pub async fn letters_of_a_sink_that_is_retired_meanwhile_are_left_alone(fixture: &impl JobFixture) {
    fixture.bury("s", 30, true).await;
    fixture.bury("t", 5, true).await;
    let admin = fixture.open().await;
    let job = start(&*admin, JobPlan::dead(DeadAct::Replay, all()), Some("me")).await;
    store(&*admin).run_chunk(&lease(&job), 10).await.expect("a chunk");
    fixture.retire("s").await;
    let done = run(&*admin, &lease(&job), 10).await;
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 15, 20));
    assert_eq!(done.reasons, BTreeMap::from([("admin.not_served".to_owned(), 20)]));
    assert_eq!((dead(&*admin).await, deferred(&*admin).await), (20, 15), "nothing is lost");
    assert_eq!(counted(&audited(&*admin, "replay").await, job.job), 15);
}

/// Not even the next event can be looked at, so nothing can be passed over: the job ends, and says why.
pub async fn a_replay_of_events_fails_when_its_sink_is_retired_meanwhile(fixture: &impl JobFixture) {
    fixture.pass("s", 12).await;
    let admin = fixture.open().await;
    let filter = EventFilter { topic: Some("t".to_owned()), ..EventFilter::default() };
    let plan = JobPlan::EventsReplay { sink: "s".to_owned(), filter };
    let job = start(&*admin, plan.clone(), Some("me")).await;
    assert_eq!(job.total, 12);
    store(&*admin).run_chunk(&lease(&job), 5).await.expect("a chunk");
    fixture.retire("s").await;
    let failed = run(&*admin, &lease(&job), 5).await;
    assert_eq!((failed.state, failed.done, failed.left_alone), (JobState::Failed, 5, 0));
    assert!(failed.ended_at.is_some());
    let why = store(&*admin).preview(&plan).await.expect_err("nobody serves it");
    assert_eq!((why.code(), failed.error), ("admin.not_served", Some(why.to_string())));
    assert_eq!((dead(&*admin).await, deferred(&*admin).await), (0, 5), "what went before stays");
    assert_eq!(counted(&audited(&*admin, "replay_log").await, job.job), 5);
}

/// A log may be longer than a look goes through: it says so, and where the job ends all the same.
pub async fn f82_a_look_at_a_long_log_is_bounded_and_its_job_does_all(fixture: &impl JobFixture) {
    fixture.pass("s", 50).await;
    let admin = fixture.open().await;
    let filter = EventFilter { from_seq: Some(1), ..EventFilter::default() };
    let plan = JobPlan::EventsReplay { sink: "s".to_owned(), filter };
    let all = store(&*admin).preview(&plan).await.expect("a look");
    assert_eq!((all.goes, all.exact, all.upto.is_empty()), (50, true, false));
    let bound = LookBound { windows: 2, rows: 10, ..LookBound::default() };
    let seen = store(&*admin).preview_within(&plan, bound).await.expect("a look");
    assert_eq!((seen.goes, seen.exact, &seen.upto), (20, false, &all.upto), "the end is the cursor's");
    assert!(!seen.samples.is_empty());
    let none = LookBound { time: Duration::ZERO, rows: 10, ..LookBound::default() };
    let hasty = store(&*admin).preview_within(&plan, none).await.expect("a look");
    assert_eq!((hasty.goes, hasty.exact, &hasty.upto), (10, false, &all.upto));
    let new = NewJob {
        total: seen.matched(),
        upto: seen.upto,
        plan,
        rate_per_s: None,
        idempotency_key: None,
        owner: Some("me".to_owned()),
    };
    let job = store(&*admin).new_job(&new, &actor()).await.expect("a job");
    let done = run(&*admin, &lease(&job), 20).await;
    assert_eq!((done.state, done.total, done.done), (JobState::Done, 20, 50), "all of them");
    assert_eq!((deferred(&*admin).await, counted(&audited(&*admin, "replay_log").await, job.job)), (50, 50));
}

/// How much a rewind sends again is told on a long log, too: about, and without going through all of it.
pub async fn f82_what_a_rewind_sends_again_is_counted_within_a_bound(fixture: &impl JobFixture) {
    fixture.pass("s", 50).await;
    let admin = fixture.open().await;
    let count = async |bound| count_again_within(&*admin, "s", RewindTo::Earliest, bound).await;
    assert_eq!(count(LookBound::default()).await.ok(), Some(Count { count: 50, exact: true }));
    let few = LookBound { windows: 2, rows: 10, ..LookBound::default() };
    assert_eq!(
        count(few).await.ok(),
        Some(Count { count: 50, exact: false }),
        "20 of 20, and 30 more numbers"
    );
    let hasty = LookBound { time: Duration::ZERO, ..few };
    assert_eq!(count(hasty).await.ok(), Some(Count { count: 50, exact: false }));
}

/// Whichever of the two is first: what the job says, what moved and what the audit has is the same.
pub async fn a_cancel_beside_a_chunk_counts_what_moved(fixture: &impl JobFixture) {
    let (one, two) = (fixture.open().await, fixture.open().await);
    for round in 0..20 {
        fixture.bury("s", 6, true).await;
        let before = (dead(&*one).await, deferred(&*one).await as u64);
        let job = start(&*one, JobPlan::dead(DeadAct::Replay, all()), Some("one")).await;
        let lease = lease(&job);
        // A part of them, or all: then the job may be over before it is cancelled.
        let size = if round % 4 < 2 { 3 } else { 500 };
        let chunk = store(&*one).run_chunk(&lease, size);
        let cancel = async { store(&*two).order_job(job.job, JobOrder::Cancel, &actor()).await };
        let (chunk, cancelled) = match round % 2 {
            0 => tokio::join!(chunk, cancel),
            _ => {
                let (cancelled, chunk) = tokio::join!(cancel, chunk);
                (chunk, cancelled)
            }
        };
        let after = (dead(&*one).await, deferred(&*one).await as u64);
        let (moved, now) = (before.0 - after.0, store(&*one).job(job.job).await.expect("it is kept"));
        assert_eq!(after.0 + after.1, before.0 + before.1, "round {round}: dead + deferred = before");
        assert_eq!((now.done, now.left_alone), (moved, 0), "round {round}: {now:?}");
        assert_eq!(counted(&audited(&*one, "replay").await, job.job), moved, "round {round}");
        match (&chunk, &cancelled) {
            (Ok(ChunkEnd::Stopped(_)), Ok(_)) => assert_eq!((now.state, moved), (JobState::Cancelled, 0)),
            (Ok(ChunkEnd::Committed(_)), Ok(last)) => {
                assert_eq!((now.state, last.done), (JobState::Cancelled, moved), "round {round}");
                assert!(moved > 0, "round {round}");
            }
            (Ok(ChunkEnd::Committed(_)), Err(over)) => {
                assert_eq!((now.state, over.code(), after.0), (JobState::Done, "admin.job_over", 0));
            }
            odd => panic!("round {round}: {odd:?}"),
        }
        let late = store(&*one).run_chunk(&lease, 3).await;
        assert!(matches!(late, Ok(ChunkEnd::Stopped(_))), "round {round}: {late:?}");
        assert_eq!(dead(&*one).await, after.0, "round {round}: nothing goes after it");
    }
}
