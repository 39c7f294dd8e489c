//! The local broker and the inbox, on real files.

mod faults;
mod inbox;
mod rig;
mod sink;
mod source;

posthaste_testkit::source_suite!(local_source, source::Fixture::make, tokio::test(flavor = "multi_thread"));
posthaste_testkit::sink_suite!(local_sink, sink::Fixture::make, tokio::test(flavor = "multi_thread"));
posthaste_testkit::inbox_suite!(sqlite_inbox, inbox::Service::make, tokio::test(flavor = "multi_thread"));
