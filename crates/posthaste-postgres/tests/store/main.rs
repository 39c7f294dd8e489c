//! The PostgreSQL store against real servers.

mod append;
mod edges;
mod fixture;
mod inbox;
mod plans;
mod races;
mod refused;
mod relay;
mod stress;
mod three_rules;

use fixture::PostgresFixture;

posthaste_testkit::store_suite!(postgres_15, PostgresFixture::make, tokio::test(flavor = "multi_thread"));
posthaste_testkit::inbox_suite!(inbox_15, inbox::Service::make, tokio::test(flavor = "multi_thread"));
