//! Certificates and secrets that change while events flow.

use super::*;
use posthaste_testkit::services::{Certs, Pair, Recorded};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use standardwebhooks::Webhook;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SECOND: &str = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0";

/// A directory of this test's own.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn make() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-http-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).expect("a directory");
        Self(dir)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn copy(&self, pair: &Pair) -> Pair {
        let read = |path| std::fs::read_to_string(path).expect("read");
        let certificate = self.write("cert.pem", &read(&pair.certificate));
        Pair { certificate, key: self.write("key.pem", &read(&pair.key)) }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn accepts(secret: &str, request: &Recorded) -> bool {
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, request.header(name).expect("signed").parse().expect("a value"));
    }
    Webhook::new(secret).expect("a secret").verify(&request.body, &headers).is_ok()
}

/// Publishes until a request is seen as wanted. Everything on the way is delivered.
pub(super) async fn until(sink: &Arc<dyn Sink>, receiver: &Receiver, wanted: impl Fn(&Recorded) -> bool) {
    let started = Instant::now();
    loop {
        assert_eq!(publish_one(sink, loose("x")).await, Verdict::Delivered);
        if receiver.requests().last().is_some_and(&wanted) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "the change is not seen");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
}

#[tokio::test]
async fn f47_secrets_and_tokens_are_read_again_when_their_files_change() {
    let (receiver, dir) = (receiver().await, Dir::make());
    let secrets_file = dir.write("secrets", &format!("{FIRST}\n"));
    let token_file = dir.write("token", "one\n");
    let config =
        HttpConfig { secrets_file: Some(secrets_file), token_file: Some(token_file), ..near(&receiver) };
    let sink = build(config).await;
    let token = |request: &Recorded| request.header("authorization").unwrap_or_default().to_owned();
    until(&sink, &receiver, |request| accepts(FIRST, request) && token(request) == "Bearer one").await;
    dir.write("secrets", &format!("{FIRST}\n{SECOND}\n"));
    until(&sink, &receiver, |request| accepts(FIRST, request) && accepts(SECOND, request)).await;
    dir.write("secrets", &format!("{SECOND}\n"));
    dir.write("token", "two");
    until(&sink, &receiver, |request| !accepts(FIRST, request) && token(request) == "Bearer two").await;
    // In the middle of being written: what worked still works, signed.
    dir.write("secrets", "");
    let findings = sink.examine(&[]).await;
    let file = findings.iter().find(|finding| finding.check == "files").expect("said");
    assert!(file.text.contains("secrets_file") && file.text.contains("no secret"), "{file:?}");
    until(&sink, &receiver, |request| accepts(SECOND, request)).await;
    // The second one is the examination's.
    assert_eq!(receiver.connections(), 2, "new secrets need no new connection");
}

/// Both sides change their certificates under load, the authority included: every event is delivered at the
/// first attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_under_load() {
    let (certs, other) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let dir = Dir::make();
    let options = ReceiverOptions::default().mutual_tls(certs.server(), certs.ca());
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let read = |path| std::fs::read_to_string(path).expect("read");
    let ca_file = dir.write("ca.pem", &read(certs.ca()));
    let ours = dir.copy(&certs.client("first").expect("a certificate"));
    let config = near(&receiver).with(|options| {
        options.ca_file = Some(ca_file);
        options.cert_file = Some(ours.certificate.clone());
        options.key_file = Some(ours.key.clone());
    });
    let sink = build(config).await;
    let load = Load::start(Arc::clone(&sink));
    receiver.until(100).await;
    // The new authority beside the old one; an examination looks at once.
    dir.write("ca.pem", &format!("{}{}", read(certs.ca()), read(other.ca())));
    sink.examine(&[]).await;
    // The call that was in flight knows only the old one.
    receiver.until(receiver.requests().len() + 100).await;
    receiver.show_certificate(other.server());
    // Our own: the certificate first, its key some requests later, as people do it.
    let next = certs.client("second").expect("a certificate");
    std::fs::copy(&next.certificate, &ours.certificate).expect("copied");
    receiver.until(receiver.requests().len() + 100).await;
    std::fs::copy(&next.key, &ours.key).expect("copied");
    let shown = CertificateDer::from_pem_file(&next.certificate).expect("PEM");
    let started = Instant::now();
    while receiver.requests().last().and_then(|request| request.client.clone()).as_deref() != Some(&*shown) {
        assert!(started.elapsed() < DEADLINE, "the change is not seen");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    let sent = load.stop().await;
    assert_eq!(receiver.requests().len(), sent);
}

/// Call after call, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<usize>,
}

impl Load {
    fn start(sink: Arc<dyn Sink>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                let messages: Vec<_> = (0..50).map(|n| keyed("x", &n.to_string())).collect();
                assert_delivered(&sink.publish(&messages).await);
                sent += messages.len();
            }
            sent
        });
        Self { stop, task }
    }

    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every message is delivered")
    }
}
