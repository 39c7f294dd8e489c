//! Addresses that must not be reached (F47).

use super::*;
use posthaste_testkit::services::Answer;

#[tokio::test]
async fn f47_loopback_is_refused_by_default_however_it_is_written() {
    let receiver = receiver().await;
    let port = receiver.addr().port();
    let sink = build(HttpConfig::for_whole_urls()).await;
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"] {
        let verdict = publish_one(&sink, loose(&format!("http://{host}:{port}/x"))).await;
        assert_seen(&verdict, "retry", "http.private_address", Scope::Destination);
    }
    let metadata = publish_one(&sink, loose("http://169.254.169.254/latest/meta-data/")).await;
    assert_seen(&metadata, "retry", "http.private_address", Scope::Destination);
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn networks_can_be_opened_one_by_one() {
    let receiver = receiver().await;
    let port = receiver.addr().port();
    let allow_networks = vec!["127.0.0.0/24".to_owned()];
    let sink = build(HttpConfig { allow_networks, ..HttpConfig::for_whole_urls() }).await;
    for host in ["127.0.0.1", "localhost"] {
        let verdict = publish_one(&sink, loose(&format!("http://{host}:{port}/x"))).await;
        assert_eq!(verdict, Verdict::Delivered, "{host}");
    }
    for host in ["127.0.1.1", "10.0.0.1", "169.254.169.254"] {
        let verdict = publish_one(&sink, loose(&format!("http://{host}:{port}/x"))).await;
        assert_seen(&verdict, "retry", "http.private_address", Scope::Destination);
    }
}

/// The usual way around a guard that looks at the first address only.
#[tokio::test]
async fn f47_a_redirect_is_not_followed() {
    let (receiver, victim) = (receiver().await, receiver().await);
    let sink = build(near(&receiver)).await;
    let to = ["http://169.254.169.254/latest/meta-data/".to_owned(), format!("{}/secret", victim.url())];
    for (status, location) in
        [301, 302, 303, 307, 308].into_iter().flat_map(|s| to.iter().map(move |t| (s, t)))
    {
        receiver.next("/x", [Answer::status(status).header("Location", location)]);
        let verdict = publish_one(&sink, loose("x")).await;
        assert_seen(&verdict, "retry", &format!("http.{status}"), Scope::Destination);
    }
    assert_eq!(victim.connections(), 0);
}

#[tokio::test]
async fn f47_hostile_destinations_stay_below_the_url() {
    let (receiver, victim) = (receiver().await, receiver().await);
    let url = format!("{}/in", receiver.url());
    let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
    let hostile = [
        format!("{}/x", victim.url()),
        format!("//{}/x", victim.addr()),
        format!("@{}/x", victim.addr()),
        format!("\\\\{}\\x", victim.addr()),
        "../admin".to_owned(),
        "%2e%2e/admin".to_owned(),
        "x?admin=1".to_owned(),
        "x HTTP/1.1\r\nx: y".to_owned(),
    ];
    for text in hostile {
        publish_one(&sink, loose(&text)).await;
    }
    assert_eq!(victim.connections(), 0);
    for request in receiver.requests() {
        assert!(request.path.starts_with("/in/") && !request.path.contains('?'), "{}", request.path);
        assert!(!request.path.split('/').any(|part| part == ".."), "{}", request.path);
    }
}

/// Behind a proxy nobody here would see the address. The environment is that of a child: this very test.
#[tokio::test]
async fn f47_proxies_of_the_environment_are_not_used() {
    const CHILD: &str = "POSTHASTE_TEST_HTTP_URL";
    if let Ok(url) = std::env::var(CHILD) {
        let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
        assert_eq!(publish_one(&sink, loose("x")).await, Verdict::Delivered);
        return;
    }
    let (receiver, proxy) = (receiver().await, receiver().await);
    let mut child = std::process::Command::new(std::env::current_exe().expect("this binary"));
    child.args(["--exact", "http::guard::f47_proxies_of_the_environment_are_not_used"]);
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, proxy.url());
    }
    child.env_remove("NO_PROXY").env_remove("no_proxy").env(CHILD, receiver.url());
    let ended = tokio::task::spawn_blocking(move || child.output()).await.expect("run").expect("started");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!((receiver.requests().len(), proxy.connections()), (1, 0));
}
