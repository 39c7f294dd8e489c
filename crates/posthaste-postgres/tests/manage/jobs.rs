//! Jobs and looks: the suites.

use crate::setting::Setting;
use async_trait::async_trait;
use posthaste::admin::job::{
    JobBell, JobLease, JobPlan, JobRun, JobState, NewJob, RunEnd, run_job, run_jobs,
};
use posthaste::admin::{Actor, Admin, DeadAct, DeadFilter};
use posthaste::store::Store;
use posthaste_postgres::{PostgresAdmin, PostgresConfig, PostgresStore};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::conformance::jobs::JobFixture;
use posthaste_testkit::conformance::looks::LookFixture;
use posthaste_testkit::{job_suite, look_suite, require_service};
use std::sync::Arc;
use std::time::Duration;

struct Letters(Setting);

impl Letters {
    async fn make() -> Option<Self> {
        posthaste_testkit::services::require(Setting::new().await).map(Self)
    }
}

#[async_trait]
impl JobFixture for Letters {
    async fn open(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.admin().await)
    }

    async fn bury(&self, sink: &str, count: i64, served: bool) {
        let retired = if served { "null" } else { "now()" };
        self.0
            .run(&format!(
                "insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n, retired_at)
                 values ('{sink}', 0, 0, 1023, '', 0, {retired}) on conflict do nothing;
                 insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key,
                                                     attempts, error_class, error_code, error)
                 select '{sink}', s.seq + n, 0, gen_random_uuid(), 't', 'k' || s.seq + n, '\\x01', now(), 'r', false, 5,
                        'permanent', 'x.no', 'no'
                   from generate_series(1, {count}) n,
                        (select coalesce(max(seq), 0) as seq from (select seq from posthaste.dead_letters union all select seq from posthaste.deferred) a) s order by n"
            ))
            .await;
    }

    async fn defer(&self, sink: &str, count: i64) {
        self.0
            .run(&format!(
                "insert into posthaste.deferred (sink, seq, slot, id, topic, key, appended_at, route, destination, reason, holds, due_at)
                 select '{sink}', n, 0, gen_random_uuid(), 't', 'k' || n, now(), 'r', '', 'retry', true, now() + interval '1 hour'
                   from generate_series(1, {count}) n"
            ))
            .await;
    }

    async fn pass(&self, sink: &str, count: i64) {
        self.append("t", count).await;
        self.0.sink(sink, 1, "").await;
    }

    async fn retire(&self, sink: &str) {
        self.0.run(&format!("update posthaste.lanes set retired_at = now() where sink = '{sink}'")).await;
    }

    async fn refuse(&self, key: &str) {
        self.0
            .run(&format!(
                "create function refuse() returns trigger language plpgsql as $$ begin raise 'not {key}'; end $$;
                 create trigger refuse before insert on posthaste.deferred for each row when (new.key = '{key}')
                   execute function refuse()"
            ))
            .await;
    }

    async fn end_lease(&self, job: i64) {
        let sql =
            format!("update posthaste.jobs set lease_until = now() - interval '1 second' where job = {job}");
        self.0.run(&sql).await;
    }
}

#[async_trait]
impl LookFixture for Letters {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::connect(self.0.config.clone()).await.expect("the database answers"))
    }

    async fn append(&self, topic: &str, count: i64) {
        self.0.append(topic, count).await;
    }

    async fn append_with(&self, topic: &str, headers: &str) {
        let sql = format!("insert into posthaste.outbox (topic, headers) values ('{topic}', '{headers}')");
        self.0.run(&sql).await;
    }
}

job_suite!(suite, Letters::make);
look_suite!(looks, Letters::make);

/// A page of the disk that cannot be read is no outage: it will be the same at the next try.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_letter_is_left_alone_and_the_others_go() {
    let letters = Letters(require_service!(Setting::new().await));
    letters.bury("s", 9, true).await;
    letters
        .0
        .run(
            "create function damaged() returns trigger language plpgsql as
               $$ begin raise 'missing chunk number 0 for toast value 7' using errcode = 'XX001'; end $$;
             create trigger damaged before insert on posthaste.deferred for each row when (new.key = 'k4')
               execute function damaged()",
        )
        .await;
    let admin = letters.open().await;
    let jobs = admin.jobs().expect("it has jobs");
    let plan = JobPlan::dead(DeadAct::Replay, DeadFilter { all: true, ..DeadFilter::default() });
    let seen = jobs.preview(&plan).await.expect("a look");
    let (total, upto, owner) = (seen.matched(), seen.upto, Some("me".to_owned()));
    let new = NewJob { plan, upto, total, rate_per_s: None, idempotency_key: None, owner };
    let job = jobs.new_job(&new, &Actor::new("ann".to_owned(), "mended")).await.expect("a job");
    let lease = JobLease { job: job.job, epoch: job.epoch };
    let how = JobRun { rate_per_s: None, chunk: 9, patience: Duration::from_secs(60) };
    let end = run_job(jobs, &lease, how, std::future::pending(), |_| {}).await;
    let Ok(RunEnd::Ended(done)) = end else { panic!("{end:?}") };
    assert_eq!((done.state, done.done, done.left_alone), (JobState::Done, 8, 1), "{done:?}");
    assert_eq!(done.reasons.get("store.refused"), Some(&1));
}

/// A runner has fewer connections than jobs. A look for more of them waits for a connection that a job has,
/// and the jobs go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_with_two_connections_does_many_jobs() {
    let setting = require_service!(Setting::new().await);
    let config = PostgresConfig { connections_max: 2, ..setting.config.clone() };
    let letters = Letters(setting);
    for sink in ["a", "b", "c"] {
        letters.bury(sink, 1_200, true).await;
    }
    let admin = PostgresAdmin::connect(config).await.expect("the outbox is there");
    let asking = letters.open().await;
    let store = asking.jobs().expect("it has jobs");
    for sink in ["a", "b", "c"] {
        let filter = DeadFilter { sink: Some(sink.to_owned()), ..DeadFilter::default() };
        let plan = JobPlan::dead(DeadAct::Replay, filter);
        let seen = store.preview(&plan).await.expect("a look");
        let (total, upto) = (seen.matched(), seen.upto);
        let new = NewJob { plan, upto, total, rate_per_s: None, idempotency_key: None, owner: None };
        store.new_job(&new, &Actor::new("ann".to_owned(), "mended")).await.expect("a job");
    }
    // Chunks wait for this one, each with a connection in its hands.
    let mut client = letters.0.database.connect().await.expect("a connection");
    let lock = client.transaction().await.expect("a transaction");
    lock.batch_execute("lock table posthaste.deferred in share row exclusive mode").await.expect("a lock");
    let bell = JobBell::default();
    let runner = posthaste::task::spawn("runner", {
        let bell = bell.clone();
        async move { run_jobs(&admin, "one", &bell, std::future::pending()).await }
    });
    let waiting = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation
                    where c.relname = 'deferred' and not l.granted and l.database = (select oid from pg_database where datname = current_database())";
    let patience = Duration::from_secs(60);
    eventually("both connections wait", patience, || async {
        bell.ring();
        (letters.0.number(waiting).await == 2).then_some(())
    })
    .await;
    for _ in 0..3 {
        bell.ring();
        tokio::task::yield_now().await;
    }
    lock.rollback().await.expect("the lock goes");
    eventually("all are done", patience, || async {
        bell.ring();
        let jobs = store.jobs(None, false, 10).await.expect("a list");
        jobs.iter().all(|job| job.state == JobState::Done).then_some(())
    })
    .await;
    drop(runner);
    assert_eq!(letters.0.number("select count(*) from posthaste.deferred").await, 3_600);
}
