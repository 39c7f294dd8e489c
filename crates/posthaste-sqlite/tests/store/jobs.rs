//! Jobs and looks: the suites.

use crate::fixture::SqliteFixture;
use async_trait::async_trait;
use posthaste::admin::Admin;
use posthaste::store::Store;
use posthaste_sqlite::SqliteStore;
use posthaste_testkit::conformance::jobs::JobFixture;
use posthaste_testkit::conformance::looks::LookFixture;
use posthaste_testkit::{job_suite, look_suite};
use std::sync::Arc;

struct Letters(SqliteFixture);

impl Letters {
    async fn make() -> Option<Self> {
        SqliteFixture::make().await.map(Self)
    }

    fn run(&self, sql: &str) {
        self.0.connect().execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[async_trait]
impl JobFixture for Letters {
    async fn open(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.admin().await)
    }

    async fn bury(&self, sink: &str, count: i64, served: bool) {
        let retired = if served { "null" } else { "1" };
        self.run(&format!(
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter, retired_at)
             values ('{sink}', 0, 0, 1023, '', {retired}) on conflict do nothing"
        ));
        for _ in 0..count {
            self.run(&format!(
                "insert into posthaste_dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key,
                                                     attempts, error_class, error_code, error, dead_at)
                 select '{sink}', m + 1, 0, '{}', 't', 'k' || (m + 1), x'01', 1, 'r', 0, 5, 'permanent', 'x.no', 'no', 1
                   from (select coalesce(max(seq), 0) as m from (select seq from posthaste_dead_letters union all select seq from posthaste_deferred))",
                uuid::Uuid::now_v7()
            ));
        }
    }

    async fn defer(&self, sink: &str, count: i64) {
        for n in 1..=count {
            self.run(&format!(
                "insert into posthaste_deferred (sink, seq, slot, id, topic, key, appended_at, route, destination, reason,
                                                 holds, attempts, due_at, deferred_at)
                 values ('{sink}', {n}, 0, '{}', 't', 'k{n}', 1, 'r', '', 'retry', 1, 1,
                         (strftime('%s', 'now') + 3600) * 1000000, 1)",
                uuid::Uuid::now_v7()
            ));
        }
    }

    async fn pass(&self, sink: &str, count: i64) {
        self.append("t", count).await;
        self.run(&format!(
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter) values ('{sink}', 0, 0, 1023, '');
             insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
             select '{sink}', 0, 1, 0, 'born', max(seq), 1 from posthaste_outbox"
        ));
    }

    async fn retire(&self, sink: &str) {
        self.run(&format!("update posthaste_lanes set retired_at = 1 where sink = '{sink}'"));
    }

    async fn refuse(&self, key: &str) {
        self.run(&format!(
            "create trigger refuse before insert on posthaste_deferred when new.key = '{key}'
             begin select raise(abort, 'not {key}'); end"
        ));
    }

    async fn end_lease(&self, job: i64) {
        self.run(&format!("update posthaste_jobs set lease_until = 1 where job = {job}"));
    }
}

#[async_trait]
impl LookFixture for Letters {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::connect(self.0.config()).await.expect("the store opens"))
    }

    async fn append(&self, topic: &str, count: i64) {
        for n in 1..=count {
            self.run(&format!("insert into posthaste_outbox (topic, key) values ('{topic}', 'k{n}')"));
        }
    }

    async fn append_with(&self, topic: &str, headers: &str) {
        self.run(&format!("insert into posthaste_outbox (topic, headers) values ('{topic}', '{headers}')"));
    }
}

job_suite!(suite, Letters::make);
look_suite!(looks, Letters::make);
