//! The store, on real files.

mod admin;
mod append;
mod damage;
mod events;
mod fixture;
mod migrate;
mod processes;
mod settle;
mod writer;

use fixture::SqliteFixture;

posthaste_testkit::store_suite!(
    conformance,
    SqliteFixture::make,
    tokio::test(flavor = "multi_thread", worker_threads = 2)
);
