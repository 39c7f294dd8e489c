//! Leases of plain logs: the suite, directly and behind a pooler.

use crate::fixture::InboxFixture;
use posthaste::source::leased::Leases;
use posthaste_postgres::consumer::{Handlers, InboxOptions, PostgresInbox};
use posthaste_testkit::conformance::leases::LeaseFixture;
use std::sync::Arc;

struct LeaseBed {
    /// Each is a process with connections of its own.
    inboxes: std::sync::Mutex<Vec<Arc<PostgresInbox>>>,
    _fixture: InboxFixture,
}

async fn bed(fixture: Option<InboxFixture>) -> Option<LeaseBed> {
    let fixture = fixture?;
    let mut inboxes = Vec::new();
    for _ in 0..4 {
        let options = InboxOptions::new("billing");
        let inbox = PostgresInbox::connect(fixture.config(), options, Handlers::new()).await;
        inboxes.push(Arc::new(inbox.expect("an inbox")));
    }
    Some(LeaseBed { inboxes: inboxes.into(), _fixture: fixture })
}

impl LeaseFixture for LeaseBed {
    fn open(&self) -> Arc<dyn Leases> {
        self.inboxes.lock().expect("no panic").pop().expect("enough of them")
    }
}

async fn on_a_server() -> Option<LeaseBed> {
    bed(InboxFixture::make().await).await
}

async fn behind_a_pooler() -> Option<LeaseBed> {
    bed(InboxFixture::pooled().await).await
}

posthaste_testkit::lease_suite!(direct, on_a_server, tokio::test(flavor = "multi_thread"));
posthaste_testkit::lease_suite!(pooled, behind_a_pooler, tokio::test(flavor = "multi_thread"));
