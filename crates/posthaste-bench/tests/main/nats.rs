//! The measurement's view of a server.

use super::*;
use posthaste_bench::yard::yard;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions};
use std::sync::Mutex;

#[tokio::test]
async fn a_yard_counts_reads_and_follows_what_others_send() {
    let server = require_service!(Nats::start(&NatsOptions::default()).await);
    let open = async || yard(&server.url(), "s").await.expect("reached").expect("a yard");
    let mut ground = open().await;
    ground.clear(None).await.expect("a stream");
    let messages: Vec<_> = (0..1_200).map(|n| keyed("s", &n.to_string())).collect();
    ground.client_alone(&messages).await.expect("all of them");
    assert_eq!(ground.count().await.expect("counted"), 1_200);
    let mut seen = Vec::new();
    ground.read_all(&mut |id| seen.push(id.to_string())).await.expect("read");
    assert_eq!(seen, messages.iter().map(Message::id).collect::<Vec<_>>());

    let arrived = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&arrived);
    let follower =
        open().await.follow(Box::new(move |id, _| heard.lock().expect("ours").push(id.to_string())));
    let _follower = follower.await.expect("it follows");
    let sink = sink(ground.sink()).await;
    // The stream has it by the same name, whoever sends it.
    assert_eq!(sink.publish(&messages[..1]).await, [Verdict::Delivered]);
    let sent = [loose("s"), keyed("s", "k"), keyed("s", "k")];
    assert_eq!(sink.publish(&sent).await, vec![Verdict::Delivered; 3]);
    until(|| arrived.lock().expect("ours").len() == 3).await;
    assert!(sent.iter().all(|message| arrived.lock().expect("ours").contains(&message.id())));
    assert_eq!(ground.count().await.expect("counted"), 1_203);
    ground.remove().await.expect("removed");
}
