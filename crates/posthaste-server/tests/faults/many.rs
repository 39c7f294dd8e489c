//! One process for many databases: one of them down, the others deliver, the figures say which is which.

use crate::load::{append, connect};
use crate::relay::{Relay, WAIT};
use crate::rig::{Site, TO_FILE, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Proxy, TestDatabase};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

const OUTBOXES: usize = 5;
const EVENTS: i64 = 200;
/// The one behind a line that can be cut.
const DOWN: usize = 2;

async fn page(relay: &Relay, path: &str) -> String {
    let line = relay.says("metrics and health http://").await;
    let address = line.rsplit("http://").next().unwrap_or_default().trim().to_owned();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(WAIT)).expect("a socket option");
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// The value of a figure of one outbox.
fn published(metrics: &str, outbox: usize) -> Option<f64> {
    let label = format!("outbox=\"shop-{outbox}\"");
    let mut lines =
        metrics.lines().filter(|line| line.starts_with("outbox_published_total{") && line.contains(&label));
    lines.next()?.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn f30_one_database_down_does_not_touch_the_others() {
    let site = Site::new();
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let (mut databases, mut clients, mut line) = (Vec::new(), Vec::new(), None);
    for n in 0..OUTBOXES {
        let database = require_service!(TestDatabase::create().await);
        let mut url = database.url();
        if n == DOWN {
            let (proxy, through) = Proxy::start_before(&url).await.expect("a proxy");
            (url, line) = (through, Some(proxy));
        }
        text += &format!("[[outbox]]\nname = \"shop-{n}\"\nservice = \"shop-{n}\"\nurl = \"{url}\"\n");
        clients.push(connect(&database.url()).await);
        databases.push(database);
    }
    site.write("posthaste.toml", &format!("{text}{TO_FILE}"));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let proxy = line.expect("one of them has a proxy");
    proxy.refuse().await;
    let relay = site.start("posthaste.toml");
    for client in &clients {
        append(client, "orders", EVENTS).await;
    }
    let up = (OUTBOXES - 1) * EVENTS as usize;
    eventually("the others deliver", WAIT, || async { (site.file.ids().len() == up).then_some(()) }).await;
    eventually("the figures say so", WAIT, || async {
        let metrics = page(&relay, "/metrics").await;
        let right = |n| published(&metrics, n) == (n != DOWN).then_some(EVENTS as f64);
        (0..OUTBOXES).all(right).then_some(())
    })
    .await;
    let health = page(&relay, "/readyz").await;
    assert!(health.contains("waiting for the database") && health.contains("shop-2"), "{health}");

    let started = Instant::now();
    proxy.pass().await;
    eventually("the last one delivers too", WAIT, || async {
        (site.file.ids().len() == OUTBOXES * EVENTS as usize).then_some(())
    })
    .await;
    eprintln!("many outboxes: the one that was down delivered {:?} after its return", started.elapsed());
    // Down again, in the middle of work: the others still deliver.
    proxy.refuse().await;
    proxy.cut().await;
    append(&clients[0], "orders", EVENTS).await;
    let all = (OUTBOXES + 1) * EVENTS as usize;
    eventually("the others deliver", WAIT, || async { (site.file.ids().len() == all).then_some(()) }).await;
    proxy.pass().await;
    eventually("it is joined again", WAIT, || async {
        let beating = "select count(*) from posthaste.lanes where expires_at > clock_timestamp()";
        (count(&clients[DOWN], beating).await > 0).then_some(())
    })
    .await;
    relay.stop().await;
}
