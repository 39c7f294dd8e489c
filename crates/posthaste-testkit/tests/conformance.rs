//! The conformance suites on the model and on the sinks without a broker.

use posthaste::sink::Ordering;
use posthaste_testkit::broker::BrokerKind;
use posthaste_testkit::conformance::MemoryFixture;
use posthaste_testkit::conformance::consumer::MemoryInboxFixture;
use posthaste_testkit::conformance::sink::{NullFixture, RecordingFixture};
use posthaste_testkit::conformance::source::MemorySourceFixture;
use posthaste_testkit::leases::MemoryLeases;
use posthaste_testkit::{consumer_suite, lease_suite, sink_suite, source_suite, store_suite};

store_suite!(memory_store, MemoryFixture::make, tokio::test(start_paused = true));

async fn recording(ordering: Ordering) -> Option<RecordingFixture> {
    Some(RecordingFixture::new(ordering))
}

sink_suite!(overlapping_sink, || recording(Ordering::Overlap), tokio::test(start_paused = true));
sink_suite!(calling_sink, || recording(Ordering::Call), tokio::test(start_paused = true));
sink_suite!(unordered_sink, || recording(Ordering::None), tokio::test(start_paused = true));

async fn null() -> Option<NullFixture> {
    Some(NullFixture)
}

sink_suite!(null_sink, null);

async fn source(kind: BrokerKind) -> Option<MemorySourceFixture> {
    Some(MemorySourceFixture::new(kind))
}

source_suite!(memory_log, || source(BrokerKind::Log), tokio::test(start_paused = true));
source_suite!(memory_queue, || source(BrokerKind::Queue), tokio::test(start_paused = true));

consumer_suite!(memory_inbox, MemoryInboxFixture::make, tokio::test(start_paused = true));

/// A case that is written and not listed would never run.
#[test]
fn every_case_is_listed() {
    let store = include_str!("../src/conformance/store/mod.rs");
    let sink = include_str!("../src/conformance/sink/mod.rs");
    let source = include_str!("../src/conformance/source/mod.rs");
    let inbox = include_str!("../src/conformance/inbox/mod.rs");
    let consumer = include_str!("../src/conformance/consumer.rs");
    let sources = [
        (consumer, include_str!("../src/inbox/suite/applying.rs")),
        (consumer, include_str!("../src/inbox/suite/due.rs")),
        (consumer, include_str!("../src/inbox/suite/operating.rs")),
        (consumer, include_str!("../src/inbox/suite/owning.rs")),
        (consumer, include_str!("../src/inbox/suite/setting_aside.rs")),
        (source, include_str!("../src/conformance/source/delivering.rs")),
        (source, include_str!("../src/conformance/source/leasing.rs")),
        (source, include_str!("../src/conformance/source/settling.rs")),
        (inbox, include_str!("../src/conformance/inbox/cases.rs")),
        (store, include_str!("../src/conformance/store/care.rs")),
        (store, include_str!("../src/conformance/store/deferring.rs")),
        (store, include_str!("../src/conformance/store/leasing.rs")),
        (store, include_str!("../src/conformance/store/reading.rs")),
        (store, include_str!("../src/conformance/store/settling.rs")),
        (sink, include_str!("../src/conformance/sink/cases.rs")),
    ];
    let mut cases = 0;
    for (list, source) in sources {
        for case in source.split("pub async fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            assert!(list.lines().any(|line| line.trim() == case), "{case} is not in the list");
            cases += 1;
        }
    }
    assert!(cases > 160, "{cases}");
}

/// A suite that cannot fail is worth nothing: three of its cases on a model that is broken on purpose.
mod the_suite_bites {
    use super::MemoryFixture;
    use posthaste::mutation::{Mutation, set};
    use posthaste_testkit::conformance::store::cases;

    async fn broken(mutation: Mutation) -> MemoryFixture {
        set(Some(mutation));
        MemoryFixture::make().await.expect("the model is always there")
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "left == right")]
    async fn on_skipped_elders() {
        let fixture = broken(Mutation::SkipElders).await;
        cases::g2_an_elder_is_found_long_after_it_was_passed(&fixture).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a lost lease settled")]
    async fn on_an_ignored_epoch() {
        cases::g4_a_stale_epoch_cannot_settle(&broken(Mutation::IgnoreEpoch).await).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a lost lease settled")]
    async fn on_half_a_settlement() {
        cases::settle_is_all_or_nothing(&broken(Mutation::IgnoreEpoch).await).await;
    }
}

/// All members have the same table.
struct LeaseModel(std::sync::Arc<MemoryLeases>);

impl posthaste_testkit::conformance::leases::LeaseFixture for LeaseModel {
    fn open(&self) -> std::sync::Arc<dyn posthaste::source::leased::Leases> {
        std::sync::Arc::clone(&self.0) as _
    }
}

async fn lease_model() -> Option<LeaseModel> {
    Some(LeaseModel(std::sync::Arc::default()))
}

lease_suite!(memory_leases, lease_model, tokio::test(start_paused = true));
