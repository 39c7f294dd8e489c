//! The database goes away in the middle of a job, and comes back.

use crate::acts::over;
use crate::desk::{Desk, Tally};
use crate::jobs::Ui;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Proxy, TestDatabase, with_addr};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LETTERS: i64 = 60;

/// First nothing comes back on lines that are open, then none can be opened. What was on its way was done or
/// was not: the job's place says it, and whoever goes on begins behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_database_was_away_does_each_letter_once() {
    let database = require_service!(TestDatabase::create().await);
    let (proxy, url) = Proxy::start_before(&database.url()).await.expect("a proxy");
    let desk = Desk::set(&database, &url, LETTERS).await;
    let ui = desk.serve();
    let job = ui.replay(20.0);
    ui.eventually(&job, |job| job["done"].as_i64() >= Some(8));
    proxy.black_hole().await;
    // A look that is given up: by then chunks were due, and none was done.
    assert_eq!(ui.status(&job), 503, "{}", ui.daemon.said());
    let seen = desk.tally().await;
    assert!(seen.done < LETTERS && seen.dead + seen.deferred == LETTERS, "{seen:?}");
    // First the lines, then the door, then who was just coming in: nothing passes between two of them.
    proxy.cut().await;
    proxy.refuse().await;
    proxy.cut().await;
    assert_eq!(ui.status(&job), 503, "{}", ui.daemon.said());
    assert_eq!(desk.tally().await, seen, "nothing is done meanwhile, and what is under way is rolled back");
    proxy.pass().await;
    let ended = ui.eventually(&job, over);
    assert_eq!((&ended["state"], &ended["left_alone"]), (&"done".into(), &0.into()), "{ended}");
    let all = Tally { dead: 0, deferred: LETTERS, done: LETTERS, audited: LETTERS };
    assert_eq!(desk.tally().await, all, "{ended}");
    let sql = "select count(*), count(distinct one) from posthaste.audit, jsonb_array_elements_text(detail -> 'ids') one
                where action = 'replay' and (detail ->> 'job')::bigint = 1";
    let row = desk.client.query_one(sql, &[]).await.expect("a look");
    assert_eq!((row.get(0), row.get(1)), (LETTERS, LETTERS), "each is in the line of one chunk");
    let left: i64 = desk
        .client
        .query_one("select count(*) from posthaste.deferred where key is null or reason <> 'replayed'", &[])
        .await
        .expect("a look")
        .get(0);
    assert_eq!(left, 0);
    ui.daemon.stop();
}

/// What stands between a client and its server, and one day forgets the lines that are open: it acknowledges
/// whatever comes, passes nothing on, and ends nothing. New lines pass. No network does that to bytes that it
/// has taken from both sides; gateways do, and hosts that are frozen.
struct Forgetful {
    address: SocketAddr,
    forgotten: watch::Sender<u32>,
}

impl Forgetful {
    async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let forgotten = watch::Sender::new(0);
        let lines = forgotten.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, target, lines.subscribe()));
            }
        });
        Self { address, forgotten }
    }

    fn forget(&self) {
        self.forgotten.send_modify(|times| *times += 1);
    }
}

async fn carry(mut client: TcpStream, target: SocketAddr, mut forgotten: watch::Receiver<u32>) {
    let mut server = TcpStream::connect(target).await.expect("the server listens");
    tokio::select! {
        biased;
        forgotten = forgotten.changed() => if forgotten.is_err() { return },
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
    }
    while client.read_u8().await.is_ok() {}
    // The server's line stays open for as long as the client's is.
    drop(server);
}

/// F85: neither a chunk nor a look for jobs waits for ever, and the next one has a line of its own.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_on_when_an_answer_never_comes() {
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    let target = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).expect("a host");
    let target = tokio::net::lookup_host(target).await.ok().and_then(|mut found| found.next());
    let line = Forgetful::before(target.expect("an address")).await;
    let desk = Desk::set(&database, &with_addr(&url, line.address), LETTERS).await;
    let times = [("POSTHASTE_JOB_ANSWER_MS", "1500"), ("POSTHASTE_JOB_LOOK_MS", "500")];
    let ui = Ui::with(&desk.dir, &desk.token, &times);
    // Looked at past the process: whoever asks it makes it look.
    let done = async |at_least: i64| {
        eventually("letters are done", Duration::from_secs(60), || async {
            let seen = desk.tally().await;
            (seen.done >= at_least).then_some(seen)
        })
        .await
    };
    ui.replay(20.0);
    done(8).await;
    line.forget();
    let all = Tally { dead: 0, deferred: LETTERS, done: LETTERS, audited: LETTERS };
    assert_eq!(done(LETTERS).await, all, "each once: {}", ui.daemon.said());
    // And one that nobody has asked this process for, with all its lines forgotten.
    line.forget();
    let waits = "insert into posthaste.jobs (kind, plan, upto, total, actor, verified, reason, trace_id, state)
                 select kind, plan, upto, total, actor, verified, reason, trace_id, 'queued' from posthaste.jobs";
    desk.client.batch_execute(waits).await.expect("a job");
    eventually("it is found", Duration::from_secs(60), || async {
        let sql = "select count(*) from posthaste.jobs where state = 'done'";
        let done: i64 = desk.client.query_one(sql, &[]).await.expect("a look").get(0);
        (done == 2).then_some(())
    })
    .await;
}
