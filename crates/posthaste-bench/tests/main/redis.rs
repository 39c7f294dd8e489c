//! The measurement's view of a server.

use super::*;
use posthaste_bench::yard::yard;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Redis, RedisOptions};
use std::collections::BTreeMap;
use std::sync::Mutex;

#[tokio::test]
async fn a_yard_counts_reads_and_follows_what_others_send() {
    let server = require_service!(Redis::start(&RedisOptions::default()).await);
    let open = async || yard(&server.url(), "s").await.expect("reached").expect("a yard");
    let mut ground = open().await;
    server.cli(&["XADD", "s", "*", "id", "x"]).expect("added");
    let refused = ground.clear(None).await.expect_err("it is somebody's").to_string();
    assert!(refused.contains("rename it"), "{refused}");
    server.cli(&["DEL", "s"]).expect("deleted");
    ground.clear(None).await.expect("cleared");

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
    let sent = [loose("s"), keyed("s", "k"), keyed("s", "k")];
    assert_eq!(sink(ground.sink()).await.publish(&sent).await, vec![Verdict::Delivered; 3]);
    until(|| arrived.lock().expect("ours").len() == 3).await;
    assert!(sent.iter().all(|message| arrived.lock().expect("ours").contains(&message.id())));

    ground.clear(None).await.expect("it is ours");
    assert_eq!(ground.count().await.expect("counted"), 0);
    ground.remove().await.expect("removed");
    assert_eq!(server.cli(&["DBSIZE"]).expect("asked"), "0");
    assert!(yard("rediss://127.0.0.1:1", "s").await.is_err());
}

/// What the client alone sends is what the sink sends: otherwise the comparison is none.
#[tokio::test]
async fn the_client_alone_sends_the_same_fields() {
    let server = require_service!(Redis::start(&RedisOptions::default()).await);
    let event = Event::new("orders.placed", "body").with_key("k").with_content_type("text/plain");
    let message = message("s", event.with_header("traceparent", "00-ab"));
    let mut ground = yard(&server.url(), "s").await.expect("reached").expect("a yard");
    ground.clear(None).await.expect("cleared");
    ground.client_alone(std::slice::from_ref(&message)).await.expect("sent");
    assert_eq!(sink(ground.sink()).await.publish(&[message]).await, [Verdict::Delivered]);
    let client = ::redis::Client::open(server.url()).expect("an address");
    let mut client = client.get_multiplexed_async_connection().await.expect("connected");
    type Row = (String, BTreeMap<String, Vec<u8>>);
    let asked = ::redis::cmd("XRANGE").arg("s").arg("-").arg("+").query_async(&mut client).await;
    let entries: Vec<Row> = asked.expect("a stream");
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].1, entries[1].1);
}
