//! Very many requests of an administrator: they cost no memory, and whoever stops waiting leaves nothing
//! behind.

use super::*;
use posthaste_brokers::topology::{
    AdminFailure, BrokerAdmin, BrokerTable, ChangeAct, Kind, Resource, ResourceName, Risk, Scope as Look,
    SettingChange, Settings, TopologyChange,
};
use posthaste_testkit::require_service;

/// Memory may grow by this, in MB, which 10,000 leaks of a kilobyte would not fit in.
const GROWTH_MAX: u64 = 8;
/// Requests of one round: settings, the cluster, rights, users, and a change that is refused.
const OF_A_ROUND: usize = 5;
/// Whoever asks for them does not wait.
const DROPPED: usize = 40;

/// 200 requests, or with `POSTHASTE_SOAK=1` 10,000. Memory is the whole process's, so it says something only
/// there, where no other test runs.
fn rounds() -> (usize, bool) {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    (if is_soak { 2_000 } else { 40 }, is_soak)
}

/// Resident memory, in MB.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") / 1024
}

fn admin(url: &str) -> Box<dyn BrokerAdmin> {
    let config = SinkConfig::Kafka(Box::new(KafkaConfig::new(url)));
    let (name, kind) = ("kafka".to_owned(), "kafka".to_owned());
    let table = BrokerTable { name, kind, config, sasl_url: None, management_url: None };
    table.admin().expect("a valid configuration")
}

/// A change that the broker refuses.
fn nonsense(topic: &str) -> TopologyChange {
    let resource = Resource::new(Kind::Topic, topic, Settings::new());
    let (name, to) = ("no.such.setting".to_owned(), Some("1".to_owned()));
    let settings = vec![SettingChange { name, was: None, to, risk: Risk::Plain }];
    TopologyChange { act: ChangeAct::Change, resource, settings, risk: Risk::Plain }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_cost_no_memory() {
    let (rounds, is_soak) = rounds();
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    let admin = admin(&kafka.bootstrap());
    let named = [ResourceName::new(Kind::Topic, &topic), ResourceName::new(Kind::User, "nobody")];
    let kinds = [Kind::Topic, Kind::Acl, Kind::User];
    let look = Look { named: named.into(), kinds: kinds.into(), ..Look::default() };
    let mut early = 0;
    for round in 0..rounds {
        let found = admin.look(&look).await.expect("an answer");
        assert!(found.resources.iter().any(|found| found.name == topic), "{found:?}");
        let refused = admin.validate(&nonsense(&topic)).await.expect_err("refused");
        assert!(
            matches!(&refused, AdminFailure::Refused(why) if why.contains("no.such.setting")),
            "{refused}"
        );
        if round == rounds / 5 {
            early = rss();
        }
    }
    let (requests, late) = (rounds * OF_A_ROUND, rss());
    eprintln!("many requests: {early} MB, and {late} MB after {requests} of them");
    assert!(!is_soak || late <= early + GROWTH_MAX, "{early} MB, and {late} MB after {requests} requests");
}

/// The line swallows everything, and whoever asked goes away. A request ends when the line is back, or by its
/// own time; a runtime, which waits for all its threads, ends with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_waits_for_hangs_nothing() {
    let (_, is_soak) = rounds();
    let (kafka, config) = require_service!(proxied().await);
    let change = nonsense(&topic(&kafka).await);
    let line = kafka.node(1).proxy("PROXIED");
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let own = own.expect("a runtime");
    let asked = own.spawn(async move {
        let admin = admin(&config.url.to_string());
        admin.look(&Look::default()).await.map(|_| admin)
    });
    let admin = asked.await.expect("no panic").expect("an answer");
    line.black_hole().await;
    let early = rss();
    let dropped = own.spawn(async move {
        for _ in 0..if is_soak { DROPPED * 10 } else { DROPPED } {
            let asked = tokio::time::timeout(Duration::from_millis(5), admin.validate(&change)).await;
            assert!(asked.is_err(), "nobody can have answered: {asked:?}");
        }
    });
    dropped.await.expect("no panic");
    if !is_soak {
        line.pass().await;
    }
    let ended = tokio::task::spawn_blocking(move || drop(own));
    tokio::time::timeout(DEADLINE, ended).await.expect("it hangs").expect("no panic");
    let late = rss();
    eprintln!("requests that nobody waited for: {early} MB before, {late} MB afterwards");
    assert!(!is_soak || late <= early + GROWTH_MAX, "{early} MB before, {late} MB afterwards");
}
