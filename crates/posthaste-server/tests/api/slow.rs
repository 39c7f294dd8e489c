//! Clients that connect and say nothing, or little: they hold up nobody.

use crate::binary::run;
use crate::daemon::{Daemon, request};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Within this time an orchestrator has its answer.
const SOON: Duration = Duration::from_secs(1);
/// A test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

struct Shop(PathBuf);

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A relay of an empty outbox.
fn relay() -> (Shop, Daemon) {
    let dir = std::env::temp_dir().join(format!("posthaste-slow-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let url = format!("sqlite:{}", dir.join("shop.db").display());
    run(&["migrate", "up", "--url", &url]).ok();
    let daemon = Daemon::start(&["--url", &url, "--sink", "stdout"]);
    (Shop(dir), daemon)
}

/// Connects, and sends the beginning of a head now and then at most.
fn slow(address: &str, count: usize) -> Vec<TcpStream> {
    let connect = |n| {
        let mut stream = TcpStream::connect(address).ok()?;
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost:");
        }
        Some(stream)
    };
    (0..count).filter_map(connect).collect()
}

#[test]
fn two_thousand_silent_clients_never_silence_the_probes() {
    let (_shop, daemon) = relay();
    let address = daemon.address();
    daemon.page("/readyz", |status, _| status == 200);
    for count in [16, 264, 2_000] {
        // A silent client has five seconds: whoever waits for one to go waits so long each time. A machine
        // that does other things is late once, and not each time.
        let begun = Instant::now();
        let ask = |page: &str| {
            let begun = Instant::now();
            let (status, _) = request(&address, &format!("GET {page} HTTP/1.1\r\n\r\n"));
            assert_eq!(status, 200, "{page} with {count} silent clients");
            begun.elapsed()
        };
        loop {
            let silent = slow(&address, count);
            let took = ["/livez", "/readyz", "/livez"].map(ask);
            drop(silent);
            if took.iter().all(|took| *took < SOON) {
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "{took:?} with {count} silent clients");
        }
    }
    daemon.stop();
}

#[test]
fn a_head_that_is_too_large_or_none_is_refused_and_the_next_one_answered() {
    let (_shop, daemon) = relay();
    let address = daemon.address();
    let large = format!("GET /livez HTTP/1.1\r\nx: {}\r\n", "x".repeat(1 << 20));
    let many = format!("GET /livez HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1_000));
    for head in [large.as_str(), &many, &"x".repeat(100_000), "\0\0\0\0\r\n\r\n", "\r\n\r\n\r\n"] {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        // The other side may have had enough before all of it is sent.
        let _ = stream.write_all(head.as_bytes());
        let mut answer = Vec::new();
        // A line that is cut is a refusal, too. What has arrived before stays in the answer.
        let _ = stream.read_to_end(&mut answer);
        let refused = answer.is_empty() || answer.starts_with(b"HTTP/1.1 4");
        assert!(refused, "{}", String::from_utf8_lossy(&answer));
        assert_eq!(request(&address, "GET /livez HTTP/1.1\r\n\r\n").0, 200);
    }
    assert_eq!(request(&address, "HEAD /livez HTTP/1.1\r\n\r\n"), (200, String::new()));
    daemon.stop();
}
