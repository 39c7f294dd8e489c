//! 003 §8: 99.95 %, with retries under one key. Gateways die and restart, and lose their database and their
//! Redis; the relay loses its broker. Clients hand in events at a rate beside it.

use crate::binary::run;
use crate::clients::{Balancer, Ledger, keep_sending};
use crate::daemon::Daemon;
use crate::rig::{ask, begin, directory, write_config};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, Postgres, PostgresOptions, Redis, RedisOptions, Version};
use rustix::process::Signal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How large it is played.
struct Size {
    per_s: f64,
    /// Between two faults.
    calm: Duration,
    rounds: usize,
    /// What part of the requests must have its 202 in time.
    share: f64,
}

/// In `./test soak` ten minutes, and the share is asserted. Elsewhere nobody knows how busy the machine is.
fn size() -> Size {
    match std::env::var_os("POSTHASTE_SOAK") {
        Some(_) => Size { per_s: 200.0, calm: Duration::from_secs(16), rounds: 4, share: 0.9995 },
        None => Size { per_s: 100.0, calm: Duration::from_millis(700), rounds: 1, share: 0.0 },
    }
}

/// Ends the sending, also when a fault has ended the test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two gateways behind a balancer.
struct Pair<'a> {
    dir: &'a Path,
    balancer: &'a Balancer,
    daemons: [Option<Daemon>; 2],
}

impl Pair<'_> {
    fn start(&mut self, place: usize) {
        let (daemon, address) = begin(self.dir, &[]);
        self.balancer.replace(place, &address);
        self.daemons[place] = Some(daemon);
    }

    fn kill(&mut self, place: usize) {
        drop(self.daemons[place].take().expect("it runs"));
    }

    /// As an orderly rollout does: the old one answers what is under way, and ends well.
    fn roll(&mut self, place: usize) {
        let old = self.daemons[place].take().expect("it runs");
        self.start(place);
        old.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn availability_none_is_lost_and_none_is_there_twice() {
    let Size { per_s, calm, rounds, share } = size();
    let options = PostgresOptions::default();
    let mut server = require_service!(Postgres::start(Version::tested(), &options).await);
    let mut redis = require_service!(Redis::start(&RedisOptions::default()).await);
    let dir = directory();
    // Nobody listens there: the broker is away for all of it.
    let nowhere = Port::claim().expect("a port");
    let more = format!(
        "limit = {{ rate_per_s = 100000, burst = 1000000, gateways = 2, redis = {{ url = {:?} }} }}\n\
         [sinks.bus]\ntype = \"nats\"\nurl = \"nats://{}\"\n\
         [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"bus\"\n",
        redis.url(),
        nowhere.addr()
    );
    let url = server.url();
    run(&["migrate", "up", "--url", &url]).ok();
    write_config(&dir, &url, &more);
    let config = dir.join("posthaste.toml");
    let made =
        run(&["gateway", "keys", "new", "acme", "--json", "--config", config.to_str().expect("UTF-8")]).ok();
    let key = made.json()["key"].as_str().expect("a key").to_owned();
    let (balancer, ledger, is_over) = (Balancer::of(&["", ""]), Ledger::default(), AtomicBool::new(false));
    let mut pair = Pair { dir: &dir, balancer: &balancer, daemons: [None, None] };
    [0, 1].into_iter().for_each(|place| pair.start(place));
    let runtime = tokio::runtime::Handle::current();
    let again = async |server: &mut Postgres| {
        server.kill9().await.expect("it is gone");
        let begun = Instant::now();
        while let Err(error) = server.start_again().await {
            assert!(begun.elapsed() < Duration::from_secs(60), "it starts: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await; // pace: its children are dying
        }
    };
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            let send = |number| ledger.hand_in(&balancer, &key, &format!("request-{number}"));
            keep_sending(per_s, 96, &is_over, &send);
        });
        let so_far = |what: &str| {
            std::thread::sleep(calm); // pace: clients hand in events beside each fault
            println!("{what}: {}", ledger.in_words());
        };
        for _ in 0..rounds {
            so_far("nothing is wrong");
            for place in [0, 1] {
                pair.kill(place);
                std::thread::sleep(calm / 5); // pace: one of two is away
                pair.start(place);
                so_far("a gateway was killed");
            }
            [0, 1].into_iter().for_each(|place| pair.roll(place));
            so_far("both were rolled");
            tokio::task::block_in_place(|| runtime.block_on(again(&mut server)));
            so_far("the database was killed");
            redis.pause();
            so_far("Redis was frozen");
            redis.resume();
            tokio::task::block_in_place(|| runtime.block_on(redis.kill9())).expect("it is gone");
            so_far("Redis was killed");
            tokio::task::block_in_place(|| runtime.block_on(redis.start_again())).expect("it starts");
            so_far("Redis is back");
            if std::env::var_os("POSTHASTE_SOAK").is_some() {
                let daemon = pair.daemons[0].as_ref().expect("it runs");
                daemon.signal(Signal::STOP);
                std::thread::sleep(Duration::from_secs(3)); // pace: a gateway is frozen
                daemon.signal(Signal::CONT);
                so_far("a gateway was frozen");
            }
        }
    });
    println!("{}", ledger.in_words());
    let client = server.admin().await.expect("it answers");
    let rows = client.query("select id::text from posthaste.outbox", &[]).await.expect("the log");
    ledger.balances(&rows.iter().map(|row| row.get(0)).collect::<Vec<String>>());
    assert!(ledger.share() >= share, "{}", ledger.in_words());
    let authorization = format!("Bearer {key}");
    let head = [("authorization", authorization.as_str())];
    for daemon in pair.daemons.into_iter().flatten() {
        let address = crate::rig::gateway_of(&daemon);
        assert_eq!(ask(&address, "GET", "/v1/openapi.json", &head, b"").status, 200);
        daemon.stop();
    }
    let _ = std::fs::remove_dir_all(&dir);
}
