//! What a consumer needs is away: its database, or a dependency of one of its partitions.
//!
//! With `POSTHASTE_SOAK=1` the database is away for a minute and the dependency for two.

use crate::database::blame;
use crate::kafka::{EFFECTS, shared};
use crate::kafka_members::FIX;
use crate::member::WAIT;
use crate::rig::{KEYS, Rig};
use crate::scale::sized;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Kafka, Postgres, PostgresOptions, Version};
use std::time::Duration;
use tokio::time::Instant;

const LAG: &str = "posthaste_consumer_lag_messages";

/// F50: nothing is begun, lag grows, nobody is to blame, and it goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_database_that_is_away_costs_no_attempt_and_is_waited_for() {
    let away_for = Duration::from_secs(sized(0, 60));
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set_on(server, "batch_max = 8").await;
    rig.publish(400, "slow").await;
    let member = rig.start();
    rig.until(EFFECTS, 40).await;
    rig.server().stop_fast().await.expect("stopped");
    let (since, away) =
        (Instant::now(), |status: u16, body: &str| status == 503 && body.contains("the database is away"));
    member.page("/readyz", "the database is away", away).await;
    let mut behind = 0.0;
    loop {
        rig.publish(400, "order").await;
        behind += 400.0;
        eventually("the lag grows", WAIT, || async { (member.metric(LAG).await >= behind).then_some(()) })
            .await;
        if since.elapsed() >= away_for {
            break;
        }
        let (status, body) = member.get("/readyz").await;
        assert!(away(status, &body), "{status} {body}");
        tokio::time::sleep(Duration::from_secs(1)).await; // pace
    }
    rig.server().start_again().await.expect("started");
    let back = Instant::now();
    rig.reconnect().await;
    let before = rig.count(EFFECTS).await;
    rig.until(EFFECTS, before + 1).await;
    assert!(back.elapsed() < Duration::from_secs(5), "F50: it resumed after {:?}", back.elapsed());
    rig.until_settled().await;
    eventually("the lag is gone", WAIT, || async { (member.metric(LAG).await == 0.0).then_some(()) }).await;
    assert_eq!(blame(&rig, &member).await, (0, 0, 0.0), "F50: dead, deferred, retries");
    rig.finish(member, "after an outage of the database").await;
}

/// One of the partitions, and what lies there.
struct Troubled {
    partition: i32,
    /// The first message of each of its keys.
    firsts: Vec<i32>,
}

impl Troubled {
    /// That of the first of eight messages that were published, one for each key.
    async fn find(kafka: &Kafka, rig: &Rig) -> Self {
        let lying = kafka.dump(&rig.topic).await.expect("read");
        let partition = lying[0].partition;
        let of_partition = lying.iter().filter(|record| record.partition == partition);
        let firsts: Vec<i32> =
            of_partition.filter_map(|record| record.header("Message-ID")?[1..].parse().ok()).collect();
        assert!(firsts.len() < 8, "keys are in more than one partition");
        Self { partition, firsts }
    }

    fn has(&self, n: i32) -> bool {
        self.firsts.contains(&((n - 1) % KEYS + 1))
    }

    /// From the broker's time to the effect, for 99 of a hundred messages of the other partitions, in
    /// milliseconds; and how many there were.
    async fn p99_of_others(&self, rig: &Rig, from: i32, to: i32) -> f64 {
        let sql = "select coalesce(percentile_disc(0.99) within group \
                     (order by extract(epoch from at - published_at)::float8 * 1000), 0), count(*) \
                     from trial.effects where n between $1 and $2 and (n - 1) % $3 + 1 <> all ($4)";
        let row = rig.client.query_one(sql, &[&from, &to, &KEYS, &self.firsts]).await.expect("times");
        let expected = (from..=to).filter(|n| !self.has(*n)).count() as i64;
        assert_eq!(row.get::<_, i64>(1), expected, "all of them are handled");
        row.get(0)
    }
}

/// A steady load for so long: from its first message to its last.
async fn load(rig: &Rig, time: Duration, kind: impl Fn(i32) -> &'static str) -> (i32, i32) {
    let (from, end) = (rig.last() + 1, Instant::now() + time);
    while Instant::now() < end {
        let next = Instant::now() + Duration::from_millis(100);
        rig.publish_mixed(16, &kind).await;
        tokio::time::sleep_until(next).await; // pace: so many a second
    }
    (from, rig.last())
}

/// F50: what needs a dependency that is away waits with its partition, and costs nothing; two other
/// partitions go on as before. One that says so of itself alone, while others of its kind succeed, dies.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_dependency_is_away_for_one_of_three_partitions() {
    // Longer than a session: whoever waits is still a member, with all partitions.
    let away_for = Duration::from_secs(sized(7, 120));
    let kafka = require_service!(shared().await);
    let settings =
        "retry = { delays_ms = [10] }\ndependencies = { bank = { initial_ms = 100, max_ms = 200 } }";
    let rig = require_service!(Rig::set_on_kafka(kafka, 3, settings).await);
    rig.publish(8, "order").await;
    let troubled = Troubled::find(kafka, &rig).await;
    let member = rig.start();
    rig.until_settled().await;
    let (from, to) = load(&rig, Duration::from_secs(sized(2, 10)), |_| "order").await;
    rig.until_settled().await;
    let before = troubled.p99_of_others(&rig, from, to).await;

    let rebalances = member.metric("posthaste_consumer_rebalances_total").await;
    let away = |n| if troubled.has(n) { "away" } else { "order" };
    let (from, to) = load(&rig, away_for, away).await;
    let first = (from..=to).find(|n| troubled.has(*n)).expect("one of them");
    let waiting = (from..=to).filter(|n| troubled.has(*n)).count() as i64;
    rig.until(EFFECTS, i64::from(to) - waiting).await;
    member.page("/readyz", "waiting for bank", |_, body| body.contains("waiting for bank")).await;
    let members = kafka.members(&rig.topic).await.expect("an answer");
    assert_eq!(members.into_values().collect::<Vec<_>>(), [3], "it is alone, and has them all");
    assert_eq!(member.metric("posthaste_consumer_rebalances_total").await, rebalances);
    assert_eq!(member.metric("posthaste_consumer_retries_total").await, 0.0, "no attempt is spent");
    let stuck = format!(
        "select count(*) from posthaste.inbox where partition = {} and substr(message_id, 2)::int >= {from}",
        troubled.partition
    );
    assert_eq!(rig.count(&stuck).await, 0, "nothing of its partition is handled");
    let during = troubled.p99_of_others(&rig, from, to).await;
    let allowed = sized((4.0 * before).max(500.0), (2.0 * before).max(100.0));
    eprintln!(
        "a dependency away: others' p99 {before:.0} ms before, {during:.0} ms after {away_for:?} of it"
    );
    assert!(during <= allowed, "F50: others' p99 was {before} ms, and is {during} ms");

    let lies = rig.client.execute("insert into trial.liars values ($1)", &[&format!("m{first}")]).await;
    lies.expect("one lies");
    rig.run(FIX).await;
    rig.until_settled().await;
    let letter =
        rig.client.query_one("select message_id, disposition from posthaste.inbox_dead_letters", &[]).await;
    let letter = letter.expect("one letter");
    assert_eq!((letter.get(0), letter.get(1)), (format!("m{first}"), "exhausted".to_owned()));
    rig.finish(member, "when the bank is back").await;
}
