//! A gateway over its life: what shuts nobody out, what makes it unready, how it ends.

use crate::rig::{Rig, answered};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More strangers than there are places, each with a body that never comes.
#[test]
fn strangers_whose_bodies_never_come_shut_nobody_out() {
    let rig = Rig::start("bounds = { sockets_max = 16 }\nlimit = { rate_per_s = 1000, burst = 1000 }\n");
    let key = rig.key("acme", &[]);
    let (ends, at) = (AtomicBool::new(false), &rig.address);
    let is_over = &ends;
    std::thread::scope(|scope| {
        for token in ["phk_no", &key] {
            for _ in 0..20 {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        // Whoever is shown out comes back at once.
                        let Ok(mut stream) = TcpStream::connect(at) else { continue };
                        let head = format!(
                            "POST /v1/topics/nowhere HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
                             content-length: 10\r\n\r\n"
                        );
                        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                        let _ = stream.write_all(head.as_bytes());
                        let _ = stream.read(&mut [0; 64]);
                    }
                });
            }
        }
        for n in 0..20 {
            rig.until("a place", || rig.tries("raw", &key, &n.to_string()) == Some(202));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// What cannot store says so, though it can look; and it goes on when somebody has mended it.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_store_nothing_is_not_ready_until_it_can() {
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("connected");
    let rig = Rig::on_postgres(database, "bounds = { append_timeout_ms = 1000 }\n");
    let key = rig.key("acme", &[]);
    rig.daemon.page("/readyz", |status, _| status == 200);
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    run("alter table posthaste.gateway_commits rename to elsewhere").await;
    let answer = rig.post("raw", &key, "1");
    assert_eq!((answer.status, answer.code().as_str()), (503, "gateway.store"));
    rig.daemon.page("/readyz", |status, body| status == 503 && body.contains("nothing can be stored"));
    rig.daemon.says("the gateway can store nothing now");
    run("alter table posthaste.elsewhere rename to gateway_commits").await;
    rig.daemon.page("/readyz", |status, body| status == 200 && !body.contains("consumer"));
    assert_eq!(rig.post("raw", &key, "2").ids().len(), 1);
    assert_eq!(rig.events().len(), 1);
}

/// A rolling restart: nobody new is let in, and what is under way is answered.
#[test]
fn after_sigterm_nobody_is_let_in_and_what_is_under_way_is_answered() {
    let rig = Rig::start("");
    let key = rig.key("acme", &[]);
    let mut under_way = TcpStream::connect(&rig.address).expect("it listens");
    let head = format!(
        "POST /v1/topics/raw HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 4\r\n\r\n12"
    );
    under_way.write_all(head.as_bytes()).expect("it reads");
    // It has been let in when somebody after it has been answered.
    assert_eq!(rig.post("raw", &key, "1").status, 202);
    rig.daemon.signal(Signal::TERM);
    rig.until("the door is shut", || TcpStream::connect(&rig.address).is_err());
    under_way.write_all(b"34").expect("it still reads");
    let mut answer = Vec::new();
    under_way.read_to_end(&mut answer).expect("it answers");
    assert_eq!(answered(&answer).ids().len(), 1);
}

/// Pools of clients keep a connection for longer than a head may take.
#[test]
fn an_idle_connection_is_kept() {
    let rig = Rig::start("");
    let key = rig.key("acme", &[]);
    let mut stream = TcpStream::connect(&rig.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let request = format!(
        "POST /v1/topics/raw HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1\r\n\r\n1"
    );
    for round in 0..2 {
        stream.write_all(request.as_bytes()).expect("it is open");
        let mut answer = [0; 4096];
        let count = stream.read(&mut answer).expect("it answers");
        assert_eq!(answered(&answer[..count]).status, 202, "round {round}");
        if round == 0 {
            std::thread::sleep(Duration::from_secs(7)); // pace: longer than the time of a head elsewhere
        }
    }
}
