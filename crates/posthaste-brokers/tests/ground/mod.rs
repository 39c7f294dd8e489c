//! What the tests of all brokers stand on: messages, verdicts, findings, files, and the patience of a relay.
//!
//! Nothing here knows a broker. What arrived is read in each broker's own folder, by another client.

pub(crate) mod consuming;
pub(crate) mod load;
pub(crate) mod login;
pub(crate) mod outage;
pub(crate) mod tls;
pub(crate) mod topology;

use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Failure, Finding, Level, Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_testkit::services::Pair;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Ends a hang; nothing is timed by it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Delivery goes on within this time of a broker's return.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(10);

/// What a machine that does other things too may take in addition: for a call, and to be back.
const CALL_SLACK: Duration = Duration::from_secs(4);
const BACK_SLACK: Duration = Duration::from_secs(20);

pub(crate) fn message(destination: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: destination.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// Without a key.
pub(crate) fn loose(destination: &str) -> Message {
    message(destination, Event::new("orders.placed", "{}"))
}

pub(crate) fn keyed(destination: &str, key: &str) -> Message {
    message(destination, Event::new("orders.placed", "{}").with_key(key))
}

/// With a number that can be read back.
pub(crate) fn numbered(destination: &str, key: &str, number: usize) -> Message {
    message(destination, Event::new("orders.placed", number.to_string()).with_key(key))
}

/// As many of them, without keys.
pub(crate) fn many(destination: &str, count: usize) -> Vec<Message> {
    (0..count).map(|_| loose(destination)).collect()
}

/// The verdict of one message.
pub(crate) async fn publish_one(sink: &Arc<dyn Sink>, message: Message) -> Verdict {
    let mut verdicts = sink.publish(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// The kind and the failure of a verdict that has one.
#[track_caller]
pub(crate) fn failure(verdict: &Verdict) -> (&'static str, &Failure) {
    match verdict {
        Verdict::Retry(failure) => ("retry", failure),
        Verdict::Rejected(failure) => ("rejected", failure),
        Verdict::Unknown(failure) => ("unknown", failure),
        other => panic!("{other:?} has no failure"),
    }
}

/// Kind, code, scope and words of a verdict that has a failure.
#[track_caller]
pub(crate) fn seen(verdict: &Verdict) -> (&'static str, &str, Scope, &str) {
    let (kind, failure) = failure(verdict);
    (kind, &failure.code, failure.scope, &failure.message)
}

#[track_caller]
pub(crate) fn assert_seen(verdict: &Verdict, kind: &str, code: &str, scope: Scope) {
    let found = seen(verdict);
    assert_eq!((found.0, found.1, found.2), (kind, code, scope), "{verdict:?}");
}

#[track_caller]
pub(crate) fn assert_delivered(verdicts: &[Verdict]) {
    let other = verdicts.iter().find(|verdict| **verdict != Verdict::Delivered);
    assert_eq!(other, None);
}

/// Publishes a new message again and again until one is delivered, as the relay would after an outage.
pub(crate) async fn until_delivered(sink: &Arc<dyn Sink>, destination: &str, within: Duration) {
    let started = Instant::now();
    loop {
        let verdict = publish_one(sink, loose(destination)).await;
        if verdict == Verdict::Delivered {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
    assert!(started.elapsed() < within + BACK_SLACK, "delivered only after {:?}", started.elapsed());
}

/// Publishes a new message again and again until one fails with this code. Gives its words.
pub(crate) async fn until_failed(sink: &Arc<dyn Sink>, destination: &str, code: &str) -> String {
    let started = Instant::now();
    loop {
        let verdict = publish_one(sink, loose(destination)).await;
        if let Verdict::Retry(failure) = &verdict
            && failure.code == code
        {
            return failure.message.to_string();
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
}

/// What the relay does with undelivered messages, in small: again, in the same order, until delivered.
pub(crate) async fn publish_until_delivered(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> Vec<String> {
    let (started, mut delivered) = (Instant::now(), Vec::new());
    while !messages.is_empty() {
        assert!(started.elapsed() < DEADLINE, "{} messages are still undelivered", messages.len());
        let verdicts = sink.publish(&messages).await;
        let mut left = Vec::new();
        for (message, verdict) in messages.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Delivered => delivered.push(message.id()),
                Verdict::Rejected(failure) => panic!("an outage rejects nothing: {failure:?}"),
                _ => left.push(message),
            }
        }
        messages = left;
    }
    delivered
}

/// All of a call at once, in the sink's own time, with nothing that is not the sink's fault. Gives the codes.
pub(crate) async fn assert_outage(sink: &Arc<dyn Sink>, destination: &str, within: Duration) -> Vec<String> {
    let (started, mut codes) = (Instant::now(), Vec::new());
    let messages: Vec<_> = (0..100).map(|n| keyed(destination, &(n % 10).to_string())).collect();
    for verdict in sink.publish(&messages).await {
        match verdict {
            Verdict::Held => {}
            Verdict::Retry(failure) | Verdict::Unknown(failure) => {
                assert_eq!(failure.scope, Scope::Sink, "{failure:?}");
                codes.push(failure.code.to_string());
            }
            other => panic!("{other:?} in an outage"),
        }
    }
    assert!(started.elapsed() < within + CALL_SLACK, "{:?}", started.elapsed());
    codes
}

/// Two calls that overlap, with the keys a, a (it fails), a, b, none and a, b: what is behind the failure
/// waits (G3).
#[track_caller]
pub(crate) fn assert_key_a_is_held(first: &[Verdict], second: &[Verdict]) {
    let delivered = [&first[0], &first[3], &first[4], &second[1]];
    assert!(delivered.iter().all(|verdict| **verdict == Verdict::Delivered), "{first:?} {second:?}");
    assert_eq!([&first[2], &second[0]], [&Verdict::Held, &Verdict::Held]);
}

/// Calls of one key that are begun and dropped.
pub(crate) async fn drop_calls(sink: &Arc<dyn Sink>, destination: &str) {
    let mut nobody = Context::from_waker(Waker::noop());
    for _ in 0..20 {
        let messages: Vec<_> = (0..6).map(|_| keyed(destination, "k")).collect();
        let mut call = Box::pin(sink.publish(&messages));
        assert!(call.as_mut().poll(&mut nobody).is_pending());
        tokio::task::yield_now().await;
        let _ = call.as_mut().poll(&mut nobody);
    }
}

/// Waits for something that gives no signal.
pub(crate) async fn until(mut done: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await; // pace
    }
}

/// A test's own client takes its crypto provider from the process.
#[cfg(feature = "tls")]
pub(crate) fn choose_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Tasks that live on this runtime: what a sink leaves behind shows here.
pub(crate) fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// The findings of one check.
pub(crate) fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<(Level, &'a str)> {
    findings.iter().filter(|finding| finding.check == check).map(|f| (f.level, f.text.as_str())).collect()
}

#[track_caller]
pub(crate) fn assert_found(findings: &[Finding], check: &str, level: Level, words: &str) {
    let found = of(findings, check);
    assert!(found.iter().any(|(l, text)| *l == level && text.contains(words)), "{check} {words}: {found:?}");
}

/// A server that is not there is one finding, which names it, and no more.
#[track_caller]
pub(crate) fn assert_only_unreachable(findings: &[Finding], words: &str) {
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_found(findings, "reachable", Level::Fail, words);
}

/// A file that goes with the value.
pub(crate) struct TestFile(pub(crate) PathBuf);

impl TestFile {
    pub(crate) fn write(content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("posthaste-file-{}", uuid::Uuid::now_v7()));
        std::fs::write(&path, content).expect("written");
        Self(path)
    }

    pub(crate) fn copy(of: &Path) -> Self {
        Self::write(&std::fs::read_to_string(of).expect("text"))
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        Some(self.0.clone())
    }

    /// As words name it.
    pub(crate) fn named(&self) -> String {
        self.0.display().to_string()
    }

    /// Whole or not at all, as a careful operator does it.
    pub(crate) fn replace(&self, content: &str) {
        let next = Self::write(content);
        std::fs::rename(&next.0, &self.0).expect("replaced");
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A certificate and its key that a test may replace.
pub(crate) struct TestPair {
    pub(crate) pair: Pair,
    files: [TestFile; 2],
}

impl TestPair {
    pub(crate) fn copy(of: &Pair) -> Self {
        let files = [TestFile::copy(&of.certificate), TestFile::copy(&of.key)];
        Self { pair: Pair { certificate: files[0].0.clone(), key: files[1].0.clone() }, files }
    }

    pub(crate) fn replace(&self, by: &Pair) {
        for (file, by) in self.files.iter().zip([&by.certificate, &by.key]) {
            file.replace(&std::fs::read_to_string(by).expect("PEM"));
        }
    }
}
