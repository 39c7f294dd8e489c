//! Every row of the verdict table, provoked on a real server.

use super::*;
use posthaste_testkit::require_service;

#[tokio::test]
async fn a_confirmed_message_is_in_the_queue() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let sent = loose(&queue);
    let id = sent.id();
    assert_eq!(publish_one(&sink, sent).await, Verdict::Delivered);
    assert_eq!(bed.take_ids(&queue).await, [id]);
}
