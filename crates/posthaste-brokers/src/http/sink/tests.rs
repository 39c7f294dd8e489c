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

/// A task that was aborted runs on until it waits. Here it is one that nobody aborts at all.
#[tokio::test]
async fn f28_nothing_of_a_call_is_begun_after_its_end() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let url = format!("http://hooks.example:{}/x", receiver.addr().port());
    let sink = sink(HttpConfig { allow_private: true, ..HttpConfig::for_whole_urls() }, &["127.0.0.1"]);
    for is_dropped in [true, false] {
        let (done, mut answers) = mpsc::unbounded_channel();
        let in_a_minute = Instant::now() + Duration::from_secs(60);
        let shared = Arc::new(CallContext {
            done,
            current: sink.reload.current().expect("open"),
            statuses: Arc::clone(&sink.statuses),
            started: Instant::now(),
            send_until: in_a_minute,
            deadline: in_a_minute,
            is_over: RwLock::new(false),
        });
        let call = CallEnd(Arc::clone(&shared));
        let mut requests = Requests::new(&sink, Arc::clone(&shared), mpsc::unbounded_channel().1);
        let (endpoint, number) = requests.find(&url).expect("a URL");
        let queue = Arc::clone(&requests.waiting[number].queue);
        let job = |index| {
            let request = entry::request(&message(&url), &endpoint, &shared.current.keys).expect("a request");
            Job { index, endpoint: Arc::clone(&endpoint), request }
        };
        queue.ready().push_back(job(1));
        let slot = queue.host.try_slot().expect("a slot");
        let sender = Sender::new(Arc::clone(&shared), Arc::clone(&queue));
        if is_dropped {
            drop(call);
        }
        sender.run(job(0), slot).await;
        let mut verdicts = Vec::new();
        while let Ok(done) = answers.try_recv() {
            verdicts.push((done.index, done.verdict));
        }
        let (expected, left) = match is_dropped {
            true => (vec![(0, Verdict::Held)], 1),
            false => (vec![(0, Verdict::Delivered), (1, Verdict::Delivered)], 0),
        };
        assert_eq!((verdicts, queue.ready().len()), (expected, left));
        assert_eq!(receiver.requests().len(), if is_dropped { 0 } else { 2 });
    }
}
