//! The inbox over TLS, on a server that takes nothing else.

use crate::failing::{PATIENCE, work};
use crate::fixture::{InboxFixture, effect};
use async_trait::async_trait;
use posthaste::consumer::store::{InboxStore, MessageOutcome};
use posthaste::consumer::{HandlerError, Message};
use posthaste_postgres::consumer::{Handler, inbox};
use posthaste_postgres::{PostgresConfig, TlsMode, migrate};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Postgres, PostgresOptions, Version};
use tokio_postgres::Transaction;

struct Note;

#[async_trait]
impl Handler for Note {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await
    }
}

/// F29: verified, it works; with another authority, another name or in the clear nothing is taken.
#[tokio::test(flavor = "multi_thread")]
async fn f29_the_inbox_works_over_tls_and_takes_nothing_less() {
    let certs = require_service!(Certs::make());
    let options = PostgresOptions::default().tls(certs.server(), certs.ca()).tls_only();
    let server = require_service!(Postgres::start(Version::tested(), &options).await);
    let config = PostgresConfig {
        tls: TlsMode::VerifyFull,
        ca_file: Some(certs.ca().to_owned()),
        ..PostgresConfig::new(server.url())
    };
    migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
    let admin = server.admin().await.expect("the server answers");
    admin.batch_execute(InboxFixture::EFFECTS).await.expect("a table of the test");
    let store = inbox(config.clone(), "billing", Note).await.expect("the inbox connects");
    let applied = store.apply(None, &[work(1), work(2)], PATIENCE).await.expect("applied");
    assert_eq!(applied.outcomes, [MessageOutcome::Done; 2]);
    let encrypted = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid)
                      where ssl and application_name = 'posthaste'";
    let count: i64 = admin.query_one(encrypted, &[]).await.expect("sessions").get(0);
    assert!(count > 0, "its sessions are encrypted");

    let elsewhere =
        format!("postgres://postgres@elsewhere.example:{}/postgres?hostaddr=127.0.0.1", server.port());
    let other = Some(certs.other_ca().to_owned());
    let cases = [
        (PostgresConfig { ca_file: other, ..config.clone() }, "UnknownIssuer"),
        (PostgresConfig { url: elsewhere, ..config }, "elsewhere.example"),
        (PostgresConfig::new(server.url()), "no encryption"),
    ];
    for (config, why) in cases {
        let refused = inbox(config, "billing", Note).await.err().expect("refused").to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }
}
