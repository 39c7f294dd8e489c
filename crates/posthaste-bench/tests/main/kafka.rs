//! The yard of a measurement: it counts and reads what others have written.

use super::*;
use posthaste_bench::yard::yard;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Kafka, KafkaOptions, ServiceError};
use std::sync::LazyLock;
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, mpsc};

/// Where the broker's console is served: a test's own runtime ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// The broker of all tests.
pub(super) async fn shared() -> Result<&'static Kafka, ServiceError> {
    static SHARED: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
    let start = || RUNTIME.block_on(Kafka::start(&KafkaOptions::default().authorizer()));
    let start = async || tokio::task::spawn_blocking(start).await.expect("no panic");
    SHARED.get_or_init(start).await.as_ref().map_err(Clone::clone)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yard_is_emptied_counted_read_followed_and_taken_away() {
    let kafka = require_service!(shared().await);
    let url = format!("kafka://{}", kafka.bootstrap());
    let open = async || yard(&url, "yard").await.expect("opened").expect("Kafka has one");
    let mut ground = open().await;
    ground.clear(None).await.expect("cleared");
    let (told, mut heard) = mpsc::unbounded_channel();
    let tell = move |id, _| told.send(id).expect("heard");
    let following = open().await.follow(Box::new(tell)).await.expect("followed");
    let messages: Vec<_> = (0..50).map(|n| keyed("yard", &(n % 5).to_string())).collect();
    assert_delivered(&sink(ground.sink()).await.publish(&messages).await);
    let mut sent: Vec<_> = messages.iter().map(|message| message.stored.event.id).collect();
    let (mut read, mut followed) = (Vec::new(), Vec::new());
    ground.read_all(&mut |id| read.push(id)).await.expect("read");
    for _ in 0..sent.len() {
        followed.push(tokio::time::timeout(DEADLINE, heard.recv()).await.expect("in time").expect("told"));
    }
    drop(following);
    [&mut sent, &mut read, &mut followed].into_iter().for_each(|ids| ids.sort_unstable());
    assert_eq!((&read, &followed), (&sent, &sent));
    ground.client_alone(&messages).await.expect("sent");
    assert_eq!(ground.count().await.expect("counted"), 100);
    ground.clear(None).await.expect("cleared again");
    assert_eq!(ground.count().await.expect("counted"), 0);
    ground.remove().await.expect("removed");
    // One that is somebody's is not touched.
    kafka.create_topic("yard-of-another", 4, 1, &[]).await.expect("created");
    let mut other = yard(&url, "yard-of-another").await.expect("opened").expect("Kafka has one");
    assert!(other.clear(None).await.expect_err("refused").to_string().contains("yard-of-another"));
}
