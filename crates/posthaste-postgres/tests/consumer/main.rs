//! The inbox on real servers.

mod bytes;
mod failing;
mod fixture;
mod huge;
mod interleaving;
mod jobs;
mod leases;
mod life;
mod mapped;
mod order;
mod outside;
mod range;
mod sql;
mod tls;
mod together;

use fixture::InboxFixture;

posthaste_testkit::consumer_suite!(direct, InboxFixture::make, tokio::test(flavor = "multi_thread"));
posthaste_testkit::consumer_suite!(pooled, InboxFixture::pooled, tokio::test(flavor = "multi_thread"));
