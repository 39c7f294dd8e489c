//! Tuning: the suite.

use crate::setting::Setting;
use async_trait::async_trait;
use posthaste::admin::Admin;
use posthaste::store::Store;
use posthaste_postgres::PostgresStore;
use posthaste_testkit::tuning::TuningFixture;
use posthaste_testkit::tuning_suite;
use std::sync::Arc;

struct Tuning(Setting);

impl Tuning {
    async fn make() -> Option<Self> {
        posthaste_testkit::services::require(Setting::new().await).map(Self)
    }
}

#[async_trait]
impl TuningFixture for Tuning {
    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.admin().await)
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::connect(self.0.config.clone()).await.expect("the database answers"))
    }

    async fn end_all(&self) {
        self.0.run("update posthaste.controls set until = now() - interval '1 second'").await;
    }

    /// Times that are no instants must not end a heartbeat either.
    async fn write(&self, setting: &str, json: &str) {
        self.0
            .run(&format!(
                "insert into posthaste.controls (kind, name, settings, actor, set_at, until)
                 values ('outbox', '{setting}', '{json}', 'eve', '-infinity', 'infinity')"
            ))
            .await;
    }
}

tuning_suite!(suite, Tuning::make);
