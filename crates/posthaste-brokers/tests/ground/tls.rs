//! TLS, the same for every broker: the right server gets the events, and every wrong one is refused by name
//! (F29).
//!
//! Kafka has its own tests of it: one broker there has a port of each kind.

use super::login::assert_no_trust;
use super::*;
use posthaste::source::leased::PlainLog;
use posthaste::source::{Limit, Partition, Source, SourceError};
use posthaste_testkit::services::{Certs, ServiceError};

/// A server with TLS, and the way to it.
pub(crate) trait Gate: Sized {
    /// The code of a refusal.
    const REFUSED: &'static str;
    /// Where a message is sent, and what the server says to it: nothing is there that could take it, or
    /// `None`, it is delivered. Either way it has let us in.
    const PLACE: (&'static str, Option<&'static str>);

    /// A server with this certificate; with `client_ca`, clients must show one of that authority.
    async fn open(server: &Pair, client_ca: Option<&Path>) -> Result<Self, ServiceError>;

    /// The way to it: whom we trust (the system's authorities if nobody is named), and who we are.
    fn way(&self, ca: Option<&Path>, pair: Option<&Pair>) -> SinkConfig;
}

async fn assert_gets_in<G: Gate>(way: SinkConfig) {
    let sink = way.build("test").await.expect("a valid configuration");
    let verdict = publish_one(&sink, loose(G::PLACE.0)).await;
    match G::PLACE.1 {
        Some(code) => assert_seen(&verdict, "retry", code, Scope::Destination),
        None => assert_eq!(verdict, Verdict::Delivered),
    }
}

async fn assert_refused<G: Gate>(way: SinkConfig, because: &[&str]) {
    let sink = way.build("test").await.expect("a valid configuration");
    assert_no_trust(&sink, G::PLACE.0, G::REFUSED, because).await;
}

pub(crate) async fn the_authority_decides<G: Gate>() -> Result<(), ServiceError> {
    let certs = Certs::make()?;
    let gate = G::open(certs.server(), None).await?;
    assert_gets_in::<G>(gate.way(Some(certs.ca()), None)).await;
    assert_refused::<G>(gate.way(Some(certs.other_ca()), None), &["UnknownIssuer"]).await;
    let name = format!("ca_file {}", certs.other_ca().display());
    assert_refused::<G>(gate.way(Some(certs.other_ca()), None), &[&name]).await;
    assert_refused::<G>(gate.way(None, None), &["UnknownIssuer"]).await;
    Ok(())
}

pub(crate) async fn an_expired_certificate_is_refused<G: Gate>() -> Result<(), ServiceError> {
    let certs = Certs::make()?;
    let gate = G::open(certs.expired_server(), None).await?;
    assert_refused::<G>(gate.way(Some(certs.ca()), None), &["expired"]).await;
    Ok(())
}

pub(crate) async fn a_certificate_for_another_name_is_refused<G: Gate>() -> Result<(), ServiceError> {
    let certs = Certs::make()?;
    let gate = G::open(certs.elsewhere(), None).await?;
    assert_refused::<G>(gate.way(Some(certs.ca()), None), &["not valid for name"]).await;
    Ok(())
}

pub(crate) async fn the_server_may_ask_who_we_are<G: Gate>() -> Result<(), ServiceError> {
    // The server's alert, or our own words where it was lost.
    const NOT_US: [&str; 2] = ["alert", "refuses our certificate"];
    let certs = Certs::make()?;
    let gate = G::open(certs.server(), Some(certs.ca())).await?;
    let with = |pair: &Pair| gate.way(Some(certs.ca()), Some(pair));
    assert_gets_in::<G>(with(&certs.client("shop")?)).await;
    assert_refused::<G>(with(&certs.stranger("shop")?), &NOT_US).await;
    assert_refused::<G>(with(&certs.expired_client("shop")?), &NOT_US).await;
    assert_refused::<G>(gate.way(Some(certs.ca()), None), &NOT_US).await;
    Ok(())
}

/// A server with TLS that is read from, as a log and as a queue.
pub(crate) trait ReadGate: Gate {
    /// The ways to a stream that is not there, by somebody who trusts this authority.
    fn readers(&self, ca: &Path) -> (Arc<dyn PlainLog>, Arc<dyn Source>);
}

/// What a log and a queue say of a server. `None`: nothing, for it has let them in.
async fn heard<G: ReadGate>(gate: &G, ca: &Path, is_right: bool) -> [Option<SourceError>; 2] {
    let (log, queue) = gate.readers(ca);
    let of_log = log.look(&Partition::new("NOWHERE", 0)).await.err();
    let mut of_queue = None;
    let limit = Limit { events: 10, bytes: 1 << 20 };
    until(async || {
        of_queue = queue.next(limit, Duration::from_millis(200)).await.err();
        is_right || of_queue.is_some()
    })
    .await;
    [of_log, of_queue]
}

pub(crate) async fn a_source_trusts_its_authority_and_the_right_name<G: ReadGate>() -> Result<(), ServiceError>
{
    let certs = Certs::make()?;
    let gate = G::open(certs.server(), None).await?;
    assert_eq!(heard(&gate, certs.ca(), true).await, [None, None]);
    let elsewhere = G::open(certs.elsewhere(), None).await?;
    let wrong = [(&gate, certs.other_ca(), "UnknownIssuer"), (&elsewhere, certs.ca(), "not valid for name")];
    for (gate, ca, because) in wrong {
        for told in heard(gate, ca, false).await {
            let told = told.expect("not trusted");
            assert!(told.is_transient() && told.to_string().contains(because), "{because}: {told}");
        }
    }
    Ok(())
}

/// The test of a [`ReadGate`].
macro_rules! source_tls_suite {
    ($gate:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn f29_a_source_trusts_its_authority_and_the_right_name() {
            require_service!(
                crate::ground::tls::a_source_trusts_its_authority_and_the_right_name::<$gate>().await
            );
        }
    };
}
pub(crate) use source_tls_suite;

/// The tests of a [`Gate`].
macro_rules! tls_suite {
    ($gate:ty) => {
        #[tokio::test]
        async fn f29_the_authority_decides() {
            require_service!(crate::ground::tls::the_authority_decides::<$gate>().await);
        }

        #[tokio::test]
        async fn f29_an_expired_certificate_is_refused() {
            require_service!(crate::ground::tls::an_expired_certificate_is_refused::<$gate>().await);
        }

        #[tokio::test]
        async fn f29_a_certificate_for_another_name_is_refused() {
            require_service!(crate::ground::tls::a_certificate_for_another_name_is_refused::<$gate>().await);
        }

        #[tokio::test]
        async fn f29_the_server_may_ask_who_we_are() {
            require_service!(crate::ground::tls::the_server_may_ask_who_we_are::<$gate>().await);
        }
    };
}
pub(crate) use tls_suite;
