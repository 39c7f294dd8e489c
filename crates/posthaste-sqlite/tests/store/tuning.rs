//! Tuning: the suite.

use crate::fixture::SqliteFixture;
use async_trait::async_trait;
use posthaste::admin::Admin;
use posthaste::store::Store;
use posthaste_testkit::conformance::store::StoreFixture;
use posthaste_testkit::tuning::TuningFixture;
use posthaste_testkit::tuning_suite;
use std::sync::Arc;

struct Tuning(SqliteFixture);

impl Tuning {
    async fn make() -> Option<Self> {
        SqliteFixture::make().await.map(Self)
    }

    fn run(&self, sql: &str) {
        self.0.connect().execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[async_trait]
impl TuningFixture for Tuning {
    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.admin().await)
    }

    async fn store(&self) -> Arc<dyn Store> {
        StoreFixture::store(&self.0).await
    }

    async fn end_all(&self) {
        self.run("update posthaste_controls set until = 1");
    }

    async fn write(&self, setting: &str, json: &str) {
        self.run(&format!(
            "insert into posthaste_controls (kind, name, settings) values ('outbox', '{setting}', '{json}')"
        ));
    }
}

tuning_suite!(suite, Tuning::make);
