//! The PostgreSQL store against real servers.

mod fixture;

use fixture::PostgresFixture;

posthaste_testkit::store_suite!(postgres_15, PostgresFixture::make, tokio::test(flavor = "multi_thread"));
