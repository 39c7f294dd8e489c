//! A range replay, and an operator who moves the partition backwards while it is under way.

use crate::failing::{PATIENCE, work};
use crate::fixture::{InboxFixture, actor, effect};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::clock::SystemClock;
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::range::{RangeFilter, RangeReplay};
use posthaste::consumer::store::InboxStore;
use posthaste::consumer::{Filter, HandlerError, Identity, Message, Order};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Partition, SeekTo, SourceError};
use posthaste_postgres::PostgresAdmin;
use posthaste_postgres::consumer::Handler;
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use std::ops::Range;
use std::sync::Arc;
use tokio_postgres::Transaction;

const END: i64 = 20;

/// Makes an effect of each message.
struct Note;

#[async_trait]
impl Handler for Note {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await
    }
}

fn partition() -> Partition {
    Partition::new("orders", 0)
}

/// A log whose pages arrive when somebody has just moved the consumer's position.
struct MovedLog {
    admin: PostgresAdmin,
    moved_to: i64,
}

#[async_trait]
impl LogReader for MovedLog {
    async fn survey(&self, _: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let (partition, first, end) = (partition(), 0, END);
        Ok(vec![LogPartition { partition, first, end, committed: None, log_id: None }])
    }

    async fn position_at(&self, _: &Partition, _: Timestamp) -> Result<i64, SourceError> {
        Ok(0)
    }

    async fn read(&self, _: &Partition, range: Range<i64>, limit: usize) -> Result<LogPage, SourceError> {
        let to = range.end.min(range.start + limit as i64);
        let deliveries = (range.start..to).map(|position| (*work(position).delivery).clone()).collect();
        self.admin.seek("billing", &partition(), self.moved_to, None, &actor()).await.expect("moved");
        Ok(LogPage { deliveries, next: to })
    }
}

/// I3: the range was read up to the position that was saved then, and is copied up to the one that is saved
/// now.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_seek_backwards_between_the_read_and_the_copy_of_a_range_shortens_it() {
    for repeat in [false, true] {
        let Some(fixture) = InboxFixture::make().await else { return };
        let inbox = fixture.with(Note).await;
        let admin = fixture.admin().await;
        admin.seek("billing", &partition(), END, None, &actor()).await.expect("everything is decided");
        let log = MovedLog { admin: fixture.admin().await, moved_to: 7 };
        let replay = RangeReplay {
            consumer: "billing".to_owned(),
            admin: Box::new(admin),
            reader: Arc::new(log),
            filter: RangeFilter {
                key: None,
                types: Filter::default(),
                handlers: vec![Filter::default()],
                identity: Identity::default(),
                order: Order::Key,
            },
            repeat,
            headers: KeptHeaders::default(),
            marks_days: 14,
        };
        let whole = SeekTo::Earliest..SeekTo::Latest;
        let mut spans = replay.plan(&SystemClock, "orders", None, whole).await.expect("a plan");
        let span = &mut spans[0];
        assert_eq!((span.from, span.to), (0, END), "all of it was decided when it was asked for");
        replay.copy(span, 10, Some(&actor())).await.expect("copied");
        assert_eq!((span.matched, span.copied), (10, 7), "repeat: {repeat}");
        replay.copy(span, 10, Some(&actor())).await.expect("nothing is left");
        let copies: Vec<String> = fixture.deferred("billing").await.into_iter().map(|row| row.id).collect();
        let below: Vec<String> = (0..7).map(|position| format!("m{position}")).collect();
        assert_eq!(copies, below, "repeat: {repeat}");
        // What is not before the position comes by the log, and nothing of it is taken for done.
        let rest = inbox.apply(None, &[work(7), work(8)], PATIENCE).await.expect("applied");
        assert_eq!(rest.outcomes.len(), 2);
        assert_eq!(fixture.effects("billing").await, ["m7", "m8"]);
    }
}
