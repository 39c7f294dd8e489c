//! Jobs on a consumer's letters, while it works on what they send back.

use crate::failing::{heads, work};
use crate::fixture::{InboxFixture, actor, effect};
use async_trait::async_trait;
use posthaste::admin::job::{
    ChunkEnd, JobLease, JobPlan, JobRun, JobState, JobStatus, JobStore, NewJob, RunEnd, run_job,
};
use posthaste::admin::{Admin, DeadFilter};
use posthaste::consumer::store::{Burial, DeferOrBury, InboxStore};
use posthaste::consumer::{Disposition, Failure, FailureKind, HandlerError, Message};
use posthaste::inbox::kept::KeptHeaders;
use posthaste_postgres::consumer::{Handler, PostgresInbox};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use std::time::Duration;
use tokio_postgres::Transaction;
use uuid::Uuid;

/// Takes everything but `m1` and `m2`.
struct Picky;

#[async_trait]
impl Handler for Picky {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await?;
        match message.id() {
            "m1" | "m2" => Err(HandlerError::reject("bill.no", "never")),
            _ => Ok(()),
        }
    }
}

fn letter(number: i64) -> Uuid {
    Uuid::from_u128(number.unsigned_abs().into())
}

/// The letter of a message; its own number is ten times the message's.
async fn bury(billing: &PostgresInbox, position: i64) {
    let burial = Burial {
        letter: letter(10 * position),
        disposition: Disposition::Rejected,
        failure: Failure::new(FailureKind::Error, "handler.error", "no"),
        holds_key: false,
    };
    billing.defer(None, &[work(position)], &DeferOrBury::Bury(burial)).await.expect("buried");
}

async fn chunk(jobs: &dyn JobStore, lease: &JobLease) -> JobStatus {
    match jobs.run_chunk(lease, 2).await.expect("a chunk") {
        ChunkEnd::Committed(job) => *job,
        other => panic!("{other:?}"),
    }
}

/// Looks at what is due until nothing is left: how many were done, and how many died.
async fn handle(billing: &PostgresInbox) -> (usize, usize) {
    let mut seen = (0, 0);
    for _ in 0..9 {
        let look = billing.apply_deferred(&heads(vec![0, 0])).await.expect("a look");
        seen = (seen.0 + look.done(), seen.1 + look.buried());
    }
    seen
}

/// Of a consumer, by their messages.
async fn letters(fixture: &InboxFixture, consumer: &str) -> Vec<String> {
    let sql = "select message_id from posthaste.inbox_dead_letters where consumer = $1 order by message_id";
    fixture.rows(sql, &[&consumer]).await.iter().map(|row| row.get(0)).collect()
}

/// A letter that was replayed and dies again is dead since after the job was asked for, whatever its number.
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_dies_again_is_not_taken_twice() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let (billing, admin) = (fixture.with(Picky).await, fixture.admin().await);
    let jobs = Admin::jobs(&admin).expect("this store has jobs");
    for position in 1..=5 {
        bury(&billing, position).await;
    }
    // One more consumer has a letter with a number between them.
    let another = format!(
        "insert into posthaste.inbox (consumer, message_id, topic, partition, outcome) values ('mail', 'x1', 'orders', 0, 'x');
         insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, order_id, headers, holds_key,
             attempts, disposition, error_class, error_code, error, fingerprint)
         values ('{}', 'mail', 'x1', 'orders', 0, gen_random_uuid(), '[]', false, 1, 'exhausted', 'permanent', 'e', 'e', 1)",
        letter(11)
    );
    fixture.run(&another).await;
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    let consumer = "billing".to_owned();
    let plan = JobPlan::ConsumerReplay { consumer, filter, headers: KeptHeaders::default() };
    let seen = jobs.preview(&plan).await.expect("a look");
    assert_eq!((seen.goes, seen.samples.len(), &*seen.upto), (5, 5, &*letter(50).to_string()));
    // Between the look and the job: it was not seen.
    bury(&billing, 6).await;
    let new = NewJob {
        plan,
        upto: seen.upto,
        total: 5,
        rate_per_s: None,
        idempotency_key: None,
        owner: Some("me".to_owned()),
    };
    let job = jobs.new_job(&new, &actor()).await.expect("a job");
    let lease = JobLease { job: job.job, epoch: job.epoch };
    assert_eq!(chunk(jobs, &lease).await.done, 2);
    assert_eq!(handle(&billing).await, (0, 2), "they die again");
    for (message, number) in [("m1", 25), ("m2", 45)] {
        let sql = format!(
            "update posthaste.inbox_dead_letters set letter = '{}' where message_id = '{message}'",
            letter(number)
        );
        fixture.run(&sql).await;
    }
    let how = JobRun { rate_per_s: None, chunk: 2, patience: Duration::from_secs(3_600) };
    let done = match run_job(jobs, &lease, how, std::future::pending(), |_| {}).await {
        Ok(RunEnd::Ended(job)) => *job,
        other => panic!("{other:?}"),
    };
    assert_eq!((done.state, done.done, done.left_alone, done.total), (JobState::Done, 5, 0, 5));
    assert_eq!(letters(&fixture, "billing").await, ["m1", "m2", "m6"]);
    assert_eq!(letters(&fixture, "mail").await, ["x1"], "another's");
    let sql = "select count(*), coalesce(sum((detail ->> 'count')::bigint), 0)::bigint from posthaste.audit
                where action = 'replay' and (detail ->> 'job')::bigint = $1 and detail ->> 'consumer' = 'billing'";
    let row = fixture.rows(sql, &[&job.job]).await.swap_remove(0);
    assert_eq!((row.get(0), row.get(1)), (3_i64, 5_i64), "a line for each chunk");
    assert_eq!(handle(&billing).await, (3, 0));
    assert_eq!(fixture.effects("billing").await, ["m3", "m4", "m5"]);
}
