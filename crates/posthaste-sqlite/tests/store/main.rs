//! The store, on real files.

mod admin;
mod append;
mod audit;
mod consumer;
mod consumer_fixture;
mod consumer_jobs;
mod damage;
mod events;
mod fixture;
mod intake;
mod jobs;
mod migrate;
mod processes;
mod settle;
mod tuning;
mod writer;

use fixture::SqliteFixture;

posthaste_testkit::store_suite!(
    conformance,
    SqliteFixture::make,
    tokio::test(flavor = "multi_thread", worker_threads = 2)
);

posthaste_testkit::consumer_suite!(
    consumer_conformance,
    consumer_fixture::Service::make,
    tokio::test(flavor = "multi_thread", worker_threads = 2)
);
