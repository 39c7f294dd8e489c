//! Redis Streams without order: what happens to entries in hand, to the group, and to the way there.

use super::source::add;
use super::*;
use crate::ground::consuming::{Stumbling, consumer, effects, numbered, until};
use posthaste::consumer::Order;
use posthaste::sink::Level;
use posthaste::source::{Change, Delivery, Limit, Partition, Source, SourceError, Standing};
use posthaste_brokers::redis::{RedisQueue, SOURCE_CHECKS};
use posthaste_brokers::{GroupMember, Secret, SourceConfig};
use posthaste_testkit::inbox::InboxDatabase;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::BTreeSet;

const GROUP: &str = "billing";
const ALL: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const SHORT: Duration = Duration::from_millis(50);

fn plan(member: &str) -> GroupMember {
    GroupMember { order: Order::None, member: Some(member.to_owned()), ..GroupMember::new(GROUP, ["s"]) }
}

impl Bed {
    fn queue(&self, member: &str, claim_after_ms: u64) -> RedisQueue {
        RedisQueue::start(&RedisConfig { claim_after_ms, ..self.config() }, &plan(member)).expect("valid")
    }

    async fn fill(&self, numbers: std::ops::Range<usize>) {
        for n in numbers {
            add(self, "s", numbered(n, 3)).await;
        }
    }

    /// Who has how many entries.
    async fn pending(&self) -> BTreeMap<String, usize> {
        type Row = (String, String, i64, i64);
        let mut command = ::redis::cmd("XPENDING");
        let rows: Vec<Row> = command
            .arg(&["s", GROUP, "-", "+", "10000"])
            .query_async(&mut self.client.clone())
            .await
            .expect("a group");
        let mut counts = BTreeMap::new();
        rows.into_iter().for_each(|(_, who, ..)| *counts.entry(who).or_default() += 1);
        counts
    }

    async fn names(&self) -> Vec<String> {
        let mut command = ::redis::cmd("XINFO");
        let rows: Vec<BTreeMap<String, ::redis::Value>> = command
            .arg(&["CONSUMERS", "s", GROUP])
            .query_async(&mut self.client.clone())
            .await
            .expect("names");
        rows.iter().map(|row| ::redis::from_redis_value(row["name"].clone()).expect("a name")).collect()
    }
}

async fn take(source: &RedisQueue, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    until(async || {
        if let Ok(batch) = source.next(ALL, SHORT).await {
            taken.extend(batch.deliveries);
        }
        taken.len() >= count
    })
    .await;
    taken
}

fn tickets(deliveries: &[Delivery]) -> Vec<posthaste::source::Ticket> {
    deliveries.iter().map(|delivery| delivery.ticket.clone()).collect()
}

fn ids(deliveries: &[Delivery]) -> BTreeSet<String> {
    deliveries.iter().filter_map(|delivery| delivery.message.id.clone()).collect()
}

async fn fault(source: &RedisQueue, words: &str) -> SourceError {
    let mut said = None;
    until(async || {
        said = source.next(ALL, SHORT).await.err().filter(|error| error.to_string().contains(words));
        said.is_some()
    })
    .await;
    said.expect("an error")
}

/// Longer than `claim_after_ms`, with another member that would claim it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_a_handler_that_takes_longer_than_the_claim_has_its_entry_alone() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..3).await;
    let slow = bed.queue("slow", 1_000);
    let taken = take(&slow, 3).await;
    let other = bed.queue("other", 1_000);
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(4_500) {
        for source in [&slow, &other] {
            let again = source.next(ALL, SHORT).await.expect("an answer").deliveries;
            assert!(again.is_empty(), "{again:?}");
        }
    }
    assert_eq!(bed.pending().await, BTreeMap::from([("slow".to_owned(), 3)]));
    assert_eq!(slow.ack(&tickets(&taken)).await, Ok(vec![Standing::Settled; 3]));
    assert!(bed.pending().await.is_empty());
}

/// G8: nobody waits for `claim_after_ms`, neither when a member leaves nor when its consumer hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_who_leaves_or_hangs_gives_back_what_it_has_at_once() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..200).await;
    let leaving = bed.queue("a", 600_000);
    let taken = take(&leaving, 200).await;
    assert_eq!(leaving.ack(&tickets(&taken[..50])).await, Ok(vec![Standing::Settled; 50]));
    // pace: one that has just begun leaves its name, for a question of an earlier connection may be open
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (drained, ()) = tokio::join!(leaving.drain(Duration::from_millis(300)), bed.fill(200..300));
    assert_eq!(drained.map(|drained| drained.abandoned), Ok(150));
    assert_eq!(leaving.ack(&tickets(&taken[50..51])).await, Ok(vec![Standing::Revoked]));
    assert!(!bed.names().await.contains(&"a".to_owned()), "its name goes with it");
    let mut hanging = plan("b");
    hanging.stall_limit = Duration::from_secs(2);
    let hanging = RedisQueue::start(&bed.config(), &hanging).expect("valid");
    assert_eq!(ids(&take(&hanging, 250).await).len(), 250);
    let heir = bed.queue("c", 600_000);
    let rest = take(&heir, 250).await;
    assert_eq!(ids(&rest).len(), 250);
    let back = hanging.next(ALL, SHORT).await.expect("it is a member again");
    assert!(back.changes.iter().any(|change| matches!(change, Change::Revoked { .. })), "{back:?}");
    heir.ack(&tickets(&rest)).await.expect("acknowledged");
    until(async || bed.pending().await.is_empty()).await;
}

/// One dies with its hands full, and the server is killed and comes back. Each effect happens once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_a_dead_member_and_a_dead_server_and_each_effect_happens_once() {
    let options = RedisOptions::default().setting("appendonly yes").setting("appendfsync always");
    let mut bed = require_service!(Bed::start(&options).await);
    let (database, handler) = (InboxDatabase::default(), Arc::<Stumbling>::default());
    bed.fill(0..300).await;
    let dying = Arc::new(bed.queue("a", 1_000));
    let members = [Arc::clone(&dying), Arc::new(bed.queue("b", 1_000)), Arc::new(bed.queue("c", 1_000))];
    let mut members: Vec<_> =
        (0..).zip(members).map(|(n, source)| consumer(source, &database, &handler, n)).collect();
    until(async || database.tables().effects.len() >= 30).await;
    dying.freeze().await;
    bed.fill(300..400).await;
    bed.server.kill9().await.expect("killed");
    bed.server.start_again().await.expect("started again");
    bed.client = client(&bed.server.url()).await;
    until(async || database.tables().effects.len() >= 400).await;
    bed.fill(400..450).await;
    until(async || database.tables().effects.len() >= 450).await;
    until(async || bed.pending().await.is_empty()).await;
    for member in members.drain(1..) {
        member.drain().await;
    }
    let done: Vec<String> = effects(&database).into_values().flatten().collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (450, 450));
}

/// What was trimmed while a dead member had it is lost, and counted, and the rest goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_trimmed_while_a_dead_member_has_it_is_reported_as_lost() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..10).await;
    let dying = bed.queue("a", 1_000);
    take(&dying, 10).await;
    dying.freeze().await;
    bed.run(&["XTRIM", "s", "MAXLEN", "3"]).await;
    let heir = bed.queue("b", 1_000);
    let (mut lost, mut taken) = (0, Vec::new());
    until(async || {
        let batch = heir.next(ALL, SHORT).await.expect("an answer");
        for change in batch.changes {
            if let Change::Lost { from, until, .. } = change {
                lost += until - from;
            }
        }
        taken.extend(batch.deliveries);
        lost == 7 && taken.len() == 3
    })
    .await;
    assert_eq!(ids(&taken).first().map(String::as_str), Some("m00007"));
    assert!(taken.iter().all(|delivery| delivery.redelivery == Some(1)), "{taken:?}");
    assert_eq!(heir.ack(&tickets(&taken)).await, Ok(vec![Standing::Settled; 3]));
    assert!(bed.pending().await.is_empty());
}

/// A group that somebody deletes is made again at the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_deleted_is_made_again_and_nothing_is_passed_over() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..1).await;
    let mut latest = plan("a");
    latest.start_from = posthaste::source::StartFrom::Latest;
    let source = RedisQueue::start(&bed.config(), &latest).expect("valid");
    until(async || {
        source.next(ALL, SHORT).await.expect("an answer");
        source.view().await.expect("a view").len() == 1
    })
    .await;
    bed.fill(1..2).await;
    let taken = take(&source, 1).await;
    assert_eq!(ids(&taken), BTreeSet::from(["m00001".to_owned()]));
    source.ack(&tickets(&taken)).await.expect("acknowledged");
    bed.run(&["XGROUP", "DESTROY", "s", GROUP]).await;
    assert_eq!(ids(&take(&source, 2).await), BTreeSet::from(["m00000".to_owned(), "m00001".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_doctor_knows_the_group() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..5).await;
    let reading = ["+xread", "+xrange", "+xinfo", "+multi", "+exec", "+ping", "+role", "+client"];
    let group = ["+xgroup", "+xreadgroup", "+xack", "+xclaim", "+xautoclaim", "+xpending"];
    bed.run(&[&["ACL", "SETUSER", "log", "on", ">pw", "~s", "-@all"], &reading[..]].concat()).await;
    bed.run(&[&["ACL", "SETUSER", "queue", "on", ">pw", "~s", "-@all"], &reading[..], &group[..]].concat())
        .await;
    let as_user = |user: &str| {
        bed.config().with(|options| {
            options.user = Some(user.to_owned());
            options.password = Some(Secret::new("pw"));
        })
    };
    let join = |user: &str| RedisQueue::start(&as_user(user), &plan(user)).expect("valid");
    fault(&join("log"), "XREADGROUP").await;
    let doctor = async |user: &str| {
        let source = SourceConfig::Redis(Box::new(as_user(user)));
        let found = source.examine(&plan(user), None).await;
        assert!(found.iter().all(|finding| SOURCE_CHECKS.contains(&finding.check.as_str())), "{found:?}");
        found
    };
    assert_found(&doctor("queue").await, "queue", Level::Warn, "no group \"billing\" yet");
    let source = join("queue");
    let taken = take(&source, 5).await;
    assert_eq!(source.ack(&tickets(&taken[..2])).await, Ok(vec![Standing::Settled; 2]));
    bed.fill(5..6).await;
    take(&source, 1).await;
    let found = doctor("queue").await;
    assert_found(&found, "queue", Level::Ok, "after 30 s");
    assert_found(&found, "rights", Level::Ok, "may be read");
    assert_found(
        &found,
        "lag",
        Level::Ok,
        "0 entries of stream \"s\" wait for group \"billing\", and 4 are in hand",
    );
    assert_found(&doctor("log").await, "rights", Level::Fail, "XREADGROUP");
    assert!(!bed.names().await.contains(&"doctor".to_owned()), "nobody joined");
    bed.run(&["SET", "text", "x"]).await;
    let wrong = GroupMember { topics: vec!["text".to_owned()], ..plan("a") };
    let wrong = RedisQueue::start(&bed.config(), &wrong).expect("valid");
    let told = fault(&wrong, "is no stream").await;
    assert!(matches!(told, SourceError::Fatal(_)), "{told}");
}

#[tokio::test]
async fn a_group_of_a_stream_is_no_log() {
    let config = RedisConfig::new("redis://127.0.0.1:1");
    let source = SourceConfig::Redis(Box::new(config.clone()));
    let told = source.reader(GROUP, Order::None).expect("a reader").survey(&[]).await.expect_err("no log");
    assert!(told.to_string().contains("has no positions"), "{told}");
    assert!(RedisQueue::start(&RedisConfig { claim_after_ms: 10, ..config }, &plan("a")).is_err());
    let keys = r#"{"type": "redis", "url": "redis://h", "claim_after_ms": 5000}"#;
    let SourceConfig::Redis(read) = serde_json::from_str(keys).expect("valid") else { panic!("Redis") };
    assert_eq!(read.claim_after_ms, 5_000);
    assert!(serde_json::from_str::<SinkConfig>(keys).is_err(), "a sink has no such key");
}

/// A link that takes everything and answers nothing is left. What came over it and is acknowledged stays so,
/// and what was in hand comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_half_open_link_of_a_queue_is_left() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..5).await;
    let proxy = Proxy::start(bed.server.addr()).await.expect("a proxy");
    let way = RedisConfig::new(&format!("redis://{}", proxy.addr()));
    let source = RedisQueue::start(&RedisConfig { claim_after_ms: 2_000, ..way }, &plan("a")).expect("valid");
    let taken = take(&source, 5).await;
    assert_eq!(source.ack(&tickets(&taken[..3])).await, Ok(vec![Standing::Settled; 3]));
    proxy.half_open().await;
    bed.fill(5..7).await;
    until(async || source.next(ALL, SHORT).await.is_err()).await;
    assert_eq!(source.ack(&tickets(&taken[3..4])).await, Ok(vec![Standing::Revoked]));
    proxy.pass().await;
    let again = take(&source, 4).await;
    let expected = ids(&taken[3..]).into_iter().chain(["m00005".to_owned(), "m00006".to_owned()]);
    assert_eq!(ids(&again), expected.collect());
    assert_eq!(source.ack(&tickets(&again)).await, Ok(vec![Standing::Settled; again.len()]));
    until(async || bed.pending().await.is_empty()).await;
}

/// What a member has in hand and is trimmed cannot be given to anybody. It is counted when the member leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_trimmed_and_cannot_be_given_back_is_counted_as_lost() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..10).await;
    let leaving = bed.queue("a", 600_000);
    take(&leaving, 10).await;
    bed.run(&["XTRIM", "s", "MAXLEN", "3"]).await;
    let drained = leaving.drain(Duration::ZERO).await.expect("drained");
    assert_eq!((drained.abandoned, drained.lost), (10, vec![(Partition::new("s", 0), 7)]));
    assert_eq!(bed.pending().await.into_values().sum::<usize>(), 3);
}

/// The server strikes off what a claim finds deleted, and says so once. A member that leaves meanwhile waits
/// for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_claim_under_way_finds_trimmed_is_counted_as_lost() {
    let bed = require_service!(Bed::open().await);
    bed.fill(0..10).await;
    let dying = bed.queue("a", 600_000);
    take(&dying, 10).await;
    dying.freeze().await;
    let heir = bed.queue("b", 600_000);
    until(async || {
        heir.next(ALL, SHORT).await.expect("an answer");
        heir.view().await.expect("a view").len() == 1
    })
    .await;
    // No claim is between the two: the server does them one after the other. Then it answers none.
    let mut commands = ::redis::pipe();
    commands.cmd("XTRIM").arg(&["s", "MAXLEN", "3"]).cmd("CLIENT").arg(&["PAUSE", "60000", "WRITE"]);
    let _: ::redis::Value = commands.query_async(&mut bed.client.clone()).await.expect("done");
    let paused = std::time::Instant::now();
    // pace: a member claims once a second
    while paused.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(heir.next(ALL, SHORT).await.expect("an answer").changes, []);
    }
    let unpaused = async {
        tokio::time::sleep(Duration::from_millis(300)).await; // pace: it is leaving by then
        bed.run(&["CLIENT", "UNPAUSE"]).await;
    };
    let (drained, ()) = tokio::join!(heir.drain(Duration::ZERO), unpaused);
    assert_eq!(drained.expect("drained").lost, [(Partition::new("s", 0), 7)]);
    assert_eq!(bed.pending().await.into_values().sum::<usize>(), 3);
}
