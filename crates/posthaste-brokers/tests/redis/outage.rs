//! Servers that die, networks that lie: nothing is lost, and delivery goes on by itself (F31).

use super::*;
use crate::ground::outage::{self, Behind, outage_suite};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A load, a server that goes and comes meanwhile, and what is in the stream afterwards.
async fn under_load(hurt: impl AsyncFnOnce(&mut Redis)) -> Result<(), ServiceError> {
    let mut bed = Bed::open().await?;
    let sink = bed.sink().await;
    let load = Load::start(&sink, "s");
    load.more(3_000).await;
    hurt(&mut bed.server).await;
    bed.server.start_again().await?;
    until_delivered(&sink, "s", BACK_WITHIN).await;
    load.more(3_000).await;
    let (account, client) = (load.end().await, client(&bed.server.url()).await);
    account.assert_all_there_in_order(&copies(&stored(&client, "s").await));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_server_that_is_killed_under_load_loses_nothing_and_keeps_order() {
    require_service!(under_load(async |server| server.kill9().await.expect("killed")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_restart_under_load_loses_nothing_and_keeps_order() {
    require_service!(under_load(async |server| server.stop().await.expect("stopped")).await);
}

#[tokio::test]
async fn a_server_that_is_down_at_the_start_is_an_outage_and_no_error() {
    let mut bed = require_service!(Bed::open().await);
    bed.server.stop().await.expect("stopped");
    let sink = bed.sink().await;
    assert_eq!(sink.capabilities().payload_bytes_max, None);
    let id = outage::down_at_the_start(&sink, "s", "redis.unreachable").await;
    bed.server.start_again().await.expect("started");
    until_delivered(&sink, "s", BACK_WITHIN).await;
    // What was given back is the relay's: it is not sent behind its back after the reconnect.
    let client = client(&bed.server.url()).await;
    assert!(stored(&client, "s").await.iter().all(|entry| entry.text("id") != Some(id.clone())));
}

#[tokio::test]
async fn a_server_that_stops_and_goes_on_is_used_again() {
    let bed = require_service!(Bed::open().await);
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 2_000)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    assert_outage(&sink, "s", Duration::from_millis(2_500)).await;
    bed.server.resume();
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

/// A sink behind a proxy, connected.
async fn behind() -> Result<Behind<Bed>, ServiceError> {
    let bed = Bed::open().await?;
    let tasks = tasks();
    let destination = "s".to_owned();
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await?;
    let sink = build(RedisConfig::new(&url)).await;
    until_delivered(&sink, &destination, DEADLINE).await;
    Ok(Behind { server: bed, proxy, sink, destination, tasks })
}

/// Carries 50 kB a second to the server, over all connections together. Replies pass.
async fn narrow(server: std::net::SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let line = Arc::new(tokio::sync::Mutex::new(()));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.expect("the server is there");
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let line = Arc::clone(&line);
            tokio::spawn(async move {
                let mut bytes = [0; 1_000];
                while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
                    let turn = line.lock().await;
                    tokio::time::sleep(Duration::from_micros(read as u64 * 20)).await; // pace
                    drop(turn);
                    if to_server.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

/// More than the line carries in a call's time: it is delivered at the line's speed, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_line_delivers_everything_once() {
    let bed = require_service!(Bed::open().await);
    let sink = build(RedisConfig::new(&narrow(bed.server.addr()).await)).await;
    until_delivered(&sink, "warm", DEADLINE).await;
    let message = |n: usize| {
        let event = Event::new("orders.placed", vec![b'x'; 1_000]);
        message("s", if n.is_multiple_of(2) { event } else { event.with_key(format!("k{}", n % 7)) })
    };
    let mut left: Vec<Message> = (0..500).map(message).collect();
    let started = std::time::Instant::now();
    while !left.is_empty() {
        assert!(started.elapsed() < DEADLINE, "{} are left", left.len());
        let verdicts = sink.publish(&left).await;
        let strange = |verdict: &&Verdict| !matches!(verdict, Verdict::Delivered | Verdict::Held);
        assert_eq!(verdicts.iter().find(strange), None);
        let mut verdicts = verdicts.into_iter();
        left.retain(|_| verdicts.next() != Some(Verdict::Delivered));
    }
    assert_eq!(bed.length("s").await, 500);
}

outage_suite!(behind, "redis.unreachable");
