//! With a resolver that lies.

use super::*;
use futures_util::future::BoxFuture;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste_testkit::services::{Receiver, ReceiverOptions};
use std::net::IpAddr;
use std::sync::Mutex;

/// Answers one after another, the last one for ever.
struct Script(Mutex<Vec<&'static str>>);

impl Lookup for Script {
    fn lookup(&self, _: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let mut answers = self.0.lock().expect("not poisoned");
        let next = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        Box::pin(async move { Ok(vec![next.parse().expect("an address")]) })
    }
}

fn message(url: &str) -> Message {
    let event = Event::new("t", "{}");
    let payload = event.payload.clone();
    let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
    Message {
        stored,
        destination: url.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

fn sink(config: HttpConfig, answers: &[&'static str]) -> HttpSink {
    HttpSink::with_lookup(&config, "test", Arc::new(Script(Mutex::new(answers.to_vec())))).expect("a sink")
}

/// DNS rebinding: whatever somebody looked at before, the address that is connected to is judged.
#[tokio::test]
async fn f47_a_name_that_turns_private_is_never_connected_to() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let url = format!("http://rebind.example:{}/x", receiver.addr().port());
    // 192.0.2.0/24 is nobody's: allowed here, so that the first answer passes the guard and leads nowhere.
    let allow_networks = vec!["192.0.2.0/24".to_owned()];
    let config = HttpConfig {
        allow_networks,
        ..HttpConfig::for_whole_urls().with(|options| options.delivery_timeout_ms = 2_000)
    };
    let sink = sink(config, &["192.0.2.1", "127.0.0.1"]);
    let (first, second) = ([message(&url)], [message(&url)]);
    let codes: Vec<String> = [sink.publish(&first).await, sink.publish(&second).await]
        .into_iter()
        .flatten()
        .map(|verdict| match verdict {
            Verdict::Retry(failure) => failure.code.into_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, ["http.unreachable", "http.private_address"]);
    assert_eq!(receiver.connections(), 0);
}

/// The name reaches the receiver as it was written, whatever its address is.
#[tokio::test]
async fn the_host_header_is_the_name() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let host = format!("hooks.example:{}", receiver.addr().port());
    let sink = sink(HttpConfig { allow_private: true, ..HttpConfig::for_whole_urls() }, &["127.0.0.1"]);
    assert_eq!(sink.publish(&[message(&format!("http://{host}/x"))]).await, [Verdict::Delivered]);
    assert_eq!(receiver.requests()[0].header("host"), Some(host.as_str()));
}
