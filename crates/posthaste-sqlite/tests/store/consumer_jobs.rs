//! Jobs on what a consumer could not do: its letters, and its messages that wait.

use crate::consumer::{Ground, failure, heads, work};
use crate::fixture::actor;
use posthaste::admin::job::{
    ChunkEnd, JobLease, JobPlan, JobRun, JobState, JobStatus, JobStore, NewJob, RunEnd, run_job,
};
use posthaste::admin::{Admin, DeadAct, DeadFilter, DeferredFilter};
use posthaste::consumer::store::{Burial, DeferOrBury, InboxStore};
use posthaste::consumer::{Disposition, HandlerError, Message};
use posthaste::inbox::kept::KeptHeaders;
use posthaste_sqlite::SqliteAdmin;
use posthaste_sqlite::consumer::{Handler, InboxOptions, SqliteInbox, inbox};
use rusqlite::Transaction;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3_600);

/// Two consumers of one file. Their handler takes everything but `a1` and `b2`.
struct Desk {
    ground: Ground,
    billing: SqliteInbox,
    mail: SqliteInbox,
    admin: SqliteAdmin,
}

struct Picky;

impl Handler for Picky {
    fn handle(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        tx.execute("insert into effects (id) values (?1)", [message.id()])?;
        match message.id() {
            "a1" | "b2" => Err(HandlerError::reject("bill.no", "never")),
            _ => Ok(()),
        }
    }
}

impl Desk {
    async fn make() -> Self {
        let ground = Ground::make().await;
        let member = |name| inbox(ground.writer(), InboxOptions::new(name), Picky);
        let (billing, mail) = (member("billing"), member("mail"));
        Self { billing, mail, admin: ground.fixture.admin().await, ground }
    }

    fn jobs(&self) -> &dyn JobStore {
        Admin::jobs(&self.admin).expect("this store has jobs")
    }

    /// A letter of a message, like `a1`; its own number is ten times the message's, or one more for `x`.
    async fn bury(&self, consumer: &SqliteInbox, key: &str, position: i64) {
        let burial = Burial {
            letter: letter(10 * position + i64::from(key == "x")),
            disposition: Disposition::Rejected,
            failure: failure("no"),
            holds_key: false,
        };
        consumer.defer(None, &[work(key, position)], &DeferOrBury::Bury(burial)).await.expect("buried");
    }

    async fn bury_five(&self) {
        for (key, position) in ["a", "b", "c", "d", "e"].into_iter().zip(1..) {
            self.bury(&self.billing, key, position).await;
        }
        self.bury(&self.mail, "x", 1).await;
    }

    async fn start(&self, plan: JobPlan) -> (JobStatus, JobLease) {
        let seen = self.jobs().preview(&plan).await.expect("a look");
        self.start_upto(plan, seen.matched(), &seen.upto).await
    }

    async fn start_upto(&self, plan: JobPlan, total: u64, upto: &str) -> (JobStatus, JobLease) {
        let new = NewJob {
            plan,
            upto: upto.to_owned(),
            total,
            rate_per_s: None,
            idempotency_key: None,
            owner: Some("me".to_owned()),
        };
        let job = self.jobs().new_job(&new, &actor()).await.expect("a job");
        assert_eq!(job.consumer.as_deref(), Some("billing"));
        let lease = JobLease { job: job.job, epoch: job.epoch };
        (job, lease)
    }

    async fn chunk(&self, lease: &JobLease, size: i64) -> JobStatus {
        committed(self.jobs().run_chunk(lease, size).await.expect("a chunk"))
    }

    async fn run(&self, lease: &JobLease) -> JobStatus {
        let how = JobRun { rate_per_s: None, chunk: 2, patience: HOUR };
        match run_job(self.jobs(), lease, how, std::future::pending(), |_| {}).await {
            Ok(RunEnd::Ended(job)) => *job,
            other => panic!("{other:?}"),
        }
    }

    /// Looks at what is due until nothing is left: how many were done, and how many died.
    async fn handle(&self, consumer: &SqliteInbox) -> (usize, usize) {
        let mut seen = (0, 0);
        for _ in 0..9 {
            let look = consumer.apply_deferred(&heads()).await.expect("a look");
            seen = (seen.0 + look.done(), seen.1 + look.buried());
        }
        seen
    }

    /// The letters of a consumer by their messages.
    fn letters(&self, consumer: &str) -> Vec<String> {
        self.ground.texts(&format!(
            "select message_id from posthaste_inbox_dead_letters where consumer = '{consumer}' order by message_id"
        ))
    }

    /// Lines and letters of an act in the audit.
    fn audited(&self, action: &str) -> (i64, i64) {
        let of = format!(
            "from posthaste_audit where action = '{action}' and detail ->> 'job' = 1 and detail ->> 'consumer' = 'billing'"
        );
        let lines = self.ground.count(&format!("select count(*) {of}"));
        (lines, self.ground.count(&format!("select coalesce(sum(detail ->> 'count'), 0) {of}")))
    }
}

fn letter(number: i64) -> Uuid {
    Uuid::from_u128(number.unsigned_abs().into())
}

fn committed(end: ChunkEnd) -> JobStatus {
    match end {
        ChunkEnd::Committed(job) => *job,
        other => panic!("{other:?}"),
    }
}

fn on_letters(act: DeadAct) -> JobPlan {
    let (consumer, filter) = ("billing".to_owned(), DeadFilter { all: true, ..DeadFilter::default() });
    match act {
        DeadAct::Replay => JobPlan::ConsumerReplay { consumer, filter, headers: KeptHeaders::default() },
        DeadAct::Discard => JobPlan::ConsumerDiscard { consumer, filter },
    }
}

/// A letter that was replayed and dies again is dead since after the job was asked for, whatever its number.
#[tokio::test]
async fn a_letter_that_dies_again_is_not_taken_twice() {
    let desk = Desk::make().await;
    desk.bury_five().await;
    let plan = on_letters(DeadAct::Replay);
    let seen = desk.jobs().preview(&plan).await.expect("a look");
    assert_eq!((seen.goes, seen.samples.len(), seen.upto), (5, 5, letter(50).to_string()));
    for (error, count) in [("n", 5), ("%", 0)] {
        let error = Some(error.to_owned());
        let filter =
            DeadFilter { error, holds_key: Some(false), replayed: Some(false), ..DeadFilter::default() };
        let plan = JobPlan::ConsumerDiscard { consumer: "billing".to_owned(), filter };
        assert_eq!(desk.jobs().preview(&plan).await.expect("a look").goes, count);
    }
    // Between the look and the job: it was not seen.
    desk.bury(&desk.billing, "f", 6).await;
    let (_, lease) = desk.start_upto(plan, 5, &letter(50).to_string()).await;
    assert_eq!(desk.chunk(&lease, 2).await.done, 2);
    assert_eq!(desk.handle(&desk.billing).await, (0, 2), "they die again");
    let renumber = |message: &str, number| {
        let sql = "update posthaste_inbox_dead_letters set letter = ?2 where message_id = ?1";
        let file = desk.ground.fixture.connect();
        assert_eq!(file.execute(sql, [message, &letter(number).to_string()]).expect("renumbered"), 1);
    };
    renumber("a1", 25);
    renumber("b2", 45);
    let done = desk.run(&lease).await;
    assert_eq!((done.state, done.done, done.left_alone, done.total), (JobState::Done, 5, 0, 5));
    assert_eq!(desk.letters("billing"), ["a1", "b2", "f6"]);
    assert_eq!(desk.letters("mail"), ["x1"], "another's");
    assert_eq!(desk.audited("replay"), (3, 5), "a line for each chunk");
    assert_eq!(desk.handle(&desk.billing).await, (3, 0));
    assert_eq!(desk.ground.effects(), ["c3", "d4", "e5"]);
}

#[tokio::test]
async fn letters_of_a_consumer_go_for_good_by_a_job() {
    let desk = Desk::make().await;
    desk.bury_five().await;
    let (job, lease) = desk.start(on_letters(DeadAct::Discard)).await;
    assert_eq!(job.total, 5);
    assert_eq!(desk.chunk(&lease, 2).await.done, 2);
    let left = desk.jobs().leave_alone(&lease, "x.no").await.expect("passed over");
    assert_eq!((committed(left).left_alone, desk.letters("billing").len()), (1, 3));
    let done = desk.run(&lease).await;
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 4, 1));
    assert_eq!((desk.letters("billing"), desk.letters("mail").len()), (vec!["c3".to_owned()], 1));
    assert_eq!(desk.audited("discard"), (2, 4));
    // Their marks stay: a copy that comes again is settled.
    assert_eq!(desk.ground.marks(), ["a1=x", "b2=x", "c3=x", "d4=x", "e5=x", "x1=x"]);
    assert_eq!(desk.ground.count("select count(*) from posthaste_inbox_deferred"), 0);
}

#[tokio::test]
async fn deferred_messages_of_a_consumer_are_tried_now() {
    let desk = Desk::make().await;
    let later = |delay| DeferOrBury::Defer { delay, failure: failure("later") };
    for (key, position) in [("c", 3), ("d", 4), ("e", 5)] {
        desk.billing.defer(None, &[work(key, position)], &later(HOUR)).await.expect("deferred");
    }
    desk.billing.defer(None, &[work("c", 6)], &DeferOrBury::Behind).await.expect("deferred");
    desk.billing.defer(None, &[work("g", 7)], &later(Duration::ZERO)).await.expect("deferred");
    desk.mail.defer(None, &[work("x", 1)], &later(HOUR)).await.expect("deferred");
    let filter = DeferredFilter { all: true, ..DeferredFilter::default() };
    let plan = JobPlan::ConsumerRetry { consumer: "billing".to_owned(), filter };
    let seen = desk.jobs().preview(&plan).await.expect("a look");
    let left = BTreeMap::from([("deferred.behind".to_owned(), 1), ("deferred.due".to_owned(), 1)]);
    assert_eq!((seen.goes, &seen.left_alone), (3, &left));
    let shown: Vec<_> = seen.samples.iter().filter_map(|sample| sample["id"].as_str()).collect();
    assert_eq!(shown, ["c3", "d4", "e5"], "those that go");
    let (_, lease) = desk.start(plan).await;
    assert_eq!(desk.chunk(&lease, 1).await.done, 1);
    committed(desk.jobs().leave_alone(&lease, "x.no").await.expect("passed over"));
    let done = desk.run(&lease).await;
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 2, 3));
    let left = [("deferred.behind", 1), ("deferred.due", 1), ("x.no", 1)];
    assert_eq!(done.reasons, left.map(|(code, count)| (code.to_owned(), count)).into());
    assert_eq!(desk.audited("retry"), (2, 2));
    // The one behind runs after its head; what was left, and another's, waits for its time.
    assert_eq!((desk.handle(&desk.billing).await, desk.handle(&desk.mail).await), ((4, 0), (0, 0)));
    let mut ran = desk.ground.effects();
    ran.sort();
    assert_eq!(ran, ["c3", "c6", "e5", "g7"]);
    let waiting = desk.ground.texts("select message_id from posthaste_inbox_deferred order by message_id");
    assert_eq!(waiting, ["d4", "x1"]);
}
