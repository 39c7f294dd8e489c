//! Through a proxy, which looks up names and connects.

use super::rotation::Dir;
use super::*;
use posthaste::sink::Level;
use posthaste::task::{Task, spawn};
use posthaste_brokers::Urls;
use posthaste_testkit::services::{Certs, Port};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a proxy says to `CONNECT`.
#[derive(Clone, Copy)]
enum Says {
    /// Yes, and it connects to the receiver, whatever the name is.
    Yes,
    /// Yes, to those who know this.
    YesTo(&'static str),
    This(&'static [u8]),
    Nothing,
}

struct Connect {
    addr: SocketAddr,
    /// The heads of what it was asked for.
    heads: Arc<Mutex<Vec<String>>>,
    says: Arc<Mutex<Says>>,
    _task: Task<()>,
}

impl Connect {
    async fn start(receiver: SocketAddr, says: Says) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (heads, says) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(says)));
        let (book, rule) = (Arc::clone(&heads), Arc::clone(&says));
        let task = spawn("proxy", async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, receiver, Arc::clone(&rule), Arc::clone(&book)));
            }
        });
        Self { addr, heads, says, _task: task }
    }

    fn url(&self) -> Option<Urls> {
        Some(Urls::new(&format!("http://{}", self.addr)))
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("whole").clone()
    }

    fn says(&self, says: Says) {
        *self.says.lock().expect("whole") = says;
    }
}

async fn serve(
    mut stream: TcpStream,
    receiver: SocketAddr,
    rule: Arc<Mutex<Says>>,
    book: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if !stream.read_buf(&mut head).await.is_ok_and(|bytes| bytes > 0) {
            return;
        }
    }
    let head = String::from_utf8(head).expect("text");
    book.lock().expect("whole").push(head.clone());
    let says = *rule.lock().expect("whole");
    match says {
        Says::Yes => {}
        Says::YesTo(credentials)
            if head.contains(&format!("proxy-authorization: Basic {credentials}\r\n")) => {}
        Says::YesTo(_) => {
            let no = b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\ncontent-length: 2\r\n\r\nno";
            let _ = stream.write_all(no).await;
            return;
        }
        Says::This(words) => {
            let _ = stream.write_all(words).await;
            return;
        }
        Says::Nothing => {
            let _ = stream.read(&mut [0]).await;
            return;
        }
    }
    let mut other = TcpStream::connect(receiver).await.expect("the receiver");
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.expect("written");
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
}

#[tokio::test]
async fn http_goes_through_the_proxy_which_looks_up_the_name() {
    let receiver = receiver().await;
    let proxy = Connect::start(receiver.addr(), Says::Yes).await;
    // No name here, no private address there: nothing is looked up or opened by us.
    let sink =
        build(HttpConfig { proxy: proxy.url(), ..HttpConfig::new("http://hooks.invalid:8080/in") }).await;
    assert_delivered(&sink.publish(&[loose("x"), loose("y"), loose("x")]).await);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    let heads = proxy.heads();
    assert!(heads.len() <= 3, "a tunnel is used again: {heads:?}");
    assert!(
        heads.iter().all(|head| head.starts_with("CONNECT hooks.invalid:8080 HTTP/1.1\r\n")),
        "{heads:?}"
    );
    assert!(heads.iter().all(|head| !head.contains("webhook") && !head.contains("/in")), "{heads:?}");
    assert_eq!(receiver.requests().len(), 4);
    assert_eq!(receiver.requests()[0].header("host"), Some("hooks.invalid:8080"));
}

#[tokio::test]
async fn so_does_https_and_only_the_receiver_is_trusted() {
    let (certs, strangers) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    for (options, version) in [
        (ReceiverOptions::default().tls(certs.server()), "HTTP/1.1"),
        (ReceiverOptions::default().tls(certs.server()).http2(), "HTTP/2"),
    ] {
        let receiver = Receiver::start(&options).await.expect("a receiver");
        let proxy = Connect::start(receiver.addr(), Says::Yes).await;
        let config = |ca: &std::path::Path| HttpConfig {
            proxy: proxy.url(),
            ..near(&receiver).with(|options| options.ca_file = Some(ca.to_owned()))
        };
        assert_eq!(publish_one(&build(config(certs.ca())).await, loose("x")).await, Verdict::Delivered);
        assert_eq!(receiver.requests()[0].version, version);
        let verdict = publish_one(&build(config(strangers.ca())).await, loose("x")).await;
        assert_seen(&verdict, "retry", "http.tls", Scope::Destination);
        assert_eq!((proxy.heads().len(), receiver.requests().len()), (2, 1));
    }
}

/// A new password in the file is used for new connections; a wrong one is nobody's fault but the sink's.
#[tokio::test]
async fn the_proxys_credentials_are_for_the_proxy_alone() {
    let (receiver, dir) = (receiver().await, Dir::make());
    let proxy = Connect::start(receiver.addr(), Says::YesTo("c2hvcDpodW50ZXIy")).await;
    let sink = build(HttpConfig {
        proxy: proxy.url(),
        proxy_user: Some("shop".into()),
        proxy_password_file: Some(dir.write("password", "wrong\n")),
        ..near(&receiver)
    })
    .await;
    let verdict = publish_one(&sink, loose("x")).await;
    assert_seen(&verdict, "retry", "http.proxy", Scope::Sink);
    assert!(
        seen(&verdict).3.contains("proxy_password_file") && !seen(&verdict).3.contains("wrong"),
        "{verdict:?}"
    );
    dir.write("password", "hunter2\n");
    let started = Instant::now();
    while publish_one(&sink, loose("x")).await != Verdict::Delivered {
        assert!(started.elapsed() < DEADLINE, "the change is not seen");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    assert!(receiver.requests()[0].header("proxy-authorization").is_none());
}

#[tokio::test]
async fn what_a_proxy_may_answer() {
    let receiver = receiver().await;
    let proxy = Connect::start(receiver.addr(), Says::Yes).await;
    let config = HttpConfig { proxy: proxy.url(), ..near(&receiver) };
    let sink = build(config.with(|options| options.delivery_timeout_ms = 3_000)).await;
    let rows: [(Says, &str, Scope, &str); 6] = [
        (
            Says::This(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"),
            "http.unreachable",
            Scope::Destination,
            "403",
        ),
        (Says::This(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"), "http.unreachable", Scope::Destination, "502"),
        (Says::This(b"SSH-2.0-hello\r\n"), "http.unreachable", Scope::Destination, "the proxy"),
        // So some say no to one receiver: the others are not to blame.
        (Says::This(b""), "http.unreachable", Scope::Destination, "the proxy"),
        (
            Says::This(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            "http.unreachable",
            Scope::Destination,
            "before us",
        ),
        (Says::Nothing, "http.unreachable", Scope::Destination, "in time"),
    ];
    for (says, code, scope, words) in rows {
        proxy.says(says);
        let verdict = publish_one(&sink, loose("x")).await;
        assert_seen(&verdict, "retry", code, scope);
        assert!(seen(&verdict).3.contains(words), "{verdict:?}");
    }
    proxy.says(Says::Yes);
    assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
    assert_eq!(receiver.requests().len(), 1);
    let port = Port::claim().expect("a port");
    let proxy = Some(Urls::new(&format!("http://{}", port.addr())));
    let verdict = publish_one(&build(HttpConfig { proxy, ..near(&receiver) }).await, loose("x")).await;
    assert_seen(&verdict, "retry", "http.proxy", Scope::Sink);
    assert!(seen(&verdict).3.contains("refused"), "{verdict:?}");
}

/// Who is reached directly is guarded as ever, and an address that stands in a URL is looked at in any case.
#[tokio::test]
async fn f47_the_guard_stands_where_it_can_see() {
    let receiver = receiver().await;
    let proxy = Connect::start(receiver.addr(), Says::Yes).await;
    let port = receiver.addr().port();
    let config = HttpConfig {
        proxy: proxy.url(),
        no_proxy: vec!["localhost".to_owned()],
        ..HttpConfig::for_whole_urls()
    };
    let sink = build(config.clone()).await;
    for host in ["localhost", "127.0.0.1", "169.254.169.254"] {
        let verdict = publish_one(&sink, loose(&format!("http://{host}:{port}/x"))).await;
        assert_seen(&verdict, "retry", "http.private_address", Scope::Destination);
    }
    let sink = build(HttpConfig { allow_private: true, ..config }).await;
    assert_eq!(publish_one(&sink, loose(&format!("http://localhost:{port}/x"))).await, Verdict::Delivered);
    assert!(proxy.heads().is_empty());
    assert_eq!(publish_one(&sink, loose("http://hooks.invalid/x")).await, Verdict::Delivered);
    assert_eq!(proxy.heads().len(), 1);
}

#[tokio::test]
async fn doctor_says_who_the_guard_is() {
    let receiver = receiver().await;
    let proxy = Connect::start(receiver.addr(), Says::Yes).await;
    let sink = build(HttpConfig { proxy: proxy.url(), ..HttpConfig::for_whole_urls() }).await;
    let findings = sink.examine(&["http://hooks.invalid/x".to_owned()]).await;
    assert_found(&findings, "proxy", Level::Warn, "the proxy's rules");
    assert_found(&findings, "reachable", Level::Ok, &format!("http://{}", proxy.addr));
    proxy.says(Says::This(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"));
    let findings = sink.examine(&["http://hooks.invalid/x".to_owned()]).await;
    assert_found(&findings, "reachable", Level::Fail, "403");
    assert!(receiver.requests().is_empty());
}

/// The environment is that of a child: this very test.
#[tokio::test]
async fn the_environments_proxy_is_used_where_the_configuration_says_so() {
    const CHILD: &str = "POSTHASTE_TEST_HTTP_THROUGH";
    if std::env::var(CHILD).is_ok() {
        let proxy = Some(Urls::new("environment"));
        let sink = build(HttpConfig { proxy, allow_private: true, ..HttpConfig::for_whole_urls() }).await;
        assert_eq!(publish_one(&sink, loose("http://hooks.invalid/x")).await, Verdict::Delivered);
        let verdict = publish_one(&sink, loose("http://elsewhere.invalid/x")).await;
        assert_seen(&verdict, "retry", "http.unreachable", Scope::Destination);
        return;
    }
    let receiver = receiver().await;
    let proxy = Connect::start(receiver.addr(), Says::Yes).await;
    let mut child = std::process::Command::new(std::env::current_exe().expect("this binary"));
    child.args(["--exact", "http::proxy::the_environments_proxy_is_used_where_the_configuration_says_so"]);
    for name in ["http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "no_proxy"] {
        child.env_remove(name);
    }
    child
        .env("HTTP_PROXY", format!("http://{}", proxy.addr))
        .env("NO_PROXY", "elsewhere.invalid")
        .env(CHILD, "1");
    let ended = tokio::task::spawn_blocking(move || child.output()).await.expect("run").expect("started");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!((receiver.requests().len(), proxy.heads().len()), (1, 1));
}
