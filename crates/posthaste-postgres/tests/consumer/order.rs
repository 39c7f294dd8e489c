//! Order by key where two transactions meet.

use crate::failing::{PATIENCE, work};
use crate::fixture::InboxFixture;
use crate::life::Effects;
use posthaste::consumer::FailureKind;
use posthaste::consumer::store::{InboxStore, MessageOutcome, Work};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::conformance::eventually;
use std::time::Duration;
use uuid::Uuid;

fn of_key(position: i64, key: Uuid) -> Work {
    Work { order_id: Some(key), ..work(position) }
}

/// The second look. A member waits for the mark of a message that somebody else defers. When that commits,
/// the message is a duplicate, and the one behind it is first by a snapshot that is older than the hold. It
/// must not run.
#[tokio::test(flavor = "multi_thread")]
async fn g3_what_was_deferred_while_we_waited_holds_its_key() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Effects).await;
    let mut somebody = fixture.client().await;
    let waiting = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'";
    // On a machine that is busy the wait may end by its own timeout: then it is tried again with another key.
    for round in 0..20 {
        let key = Uuid::now_v7();
        let batch = [of_key(round * 2, key), of_key(round * 2 + 1, key)];
        let tx = somebody.transaction().await.expect("begin");
        let (id, position) = (&*batch[0].id, batch[0].delivery.position);
        let mark = "insert into posthaste.inbox (consumer, message_id, topic, partition, position, outcome)
                    values ('billing', $1, 'orders', 0, $2, 'w')";
        tx.execute(mark, &[&id, &position]).await.expect("marked");
        let row = "insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, position, order_id,
                     headers, reason, holds, due_at)
                   values ('billing', $1, 'orders', 0, $2, $3, '[]', 'retry', true, now() + interval '1 hour')";
        tx.execute(row, &[&id, &position, &key]).await.expect("deferred");
        let commit = async {
            eventually("the member to wait", Duration::from_secs(90), || async {
                let found: i64 = fixture.rows(waiting, &[]).await[0].get(0);
                (found == 1).then_some(())
            })
            .await;
            tx.commit().await.expect("committed");
        };
        let mut applying = std::pin::pin!(inbox.apply(None, &batch, PATIENCE));
        let ended = tokio::select! {
            ended = &mut applying => Err(ended),
            () = commit => Ok(()),
        };
        let applied = match ended {
            Err(ended) => ended,
            Ok(()) => applying.await,
        };
        match applied {
            Err(error) if error.failure.kind == FailureKind::Conflict => {}
            applied => {
                let outcomes = applied.expect("applied").outcomes;
                assert_eq!(outcomes, [MessageOutcome::Duplicate, MessageOutcome::Held]);
                assert!(fixture.effects("billing").await.is_empty(), "nothing of the key ran");
                return;
            }
        }
    }
    panic!("it always waits for too long");
}
