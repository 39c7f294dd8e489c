//! Redis Streams as a source: what happens to streams and to the way there.

use super::*;
use posthaste::source::leased::{LeasedConfig, LeasedSource, PlainLog, Tailed};
use posthaste::source::log::LogReader;
use posthaste::source::{Batch, Change, Delivery, Limit, Partition, SeekTo, Source, SourceError, StartFrom};
use posthaste_brokers::redis::RedisLog;
use posthaste_brokers::{GroupMember, SourceConfig};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const WAIT: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_millis(250);

fn source(config: &RedisConfig, stream: &str) -> LeasedSource {
    let mut plan = LeasedConfig::new("a", [stream]);
    plan.lease_ttl = Duration::from_secs(2);
    plan.start_from = Some(StartFrom::Earliest);
    let log = Arc::new(RedisLog::new(config).expect("valid"));
    LeasedSource::start(log, Arc::new(posthaste_testkit::leases::MemoryLeases::default()), plan)
}

struct Heard {
    deliveries: Vec<Delivery>,
    changes: Vec<Change>,
    errors: Vec<SourceError>,
}

async fn hear(source: &LeasedSource, what: &str, is_enough: impl Fn(&Heard) -> bool) -> Heard {
    let mut heard = Heard { deliveries: Vec::new(), changes: Vec::new(), errors: Vec::new() };
    let end = tokio::time::Instant::now() + WAIT;
    while !is_enough(&heard) {
        assert!(tokio::time::Instant::now() < end, "{what}: {:?} {:?}", heard.changes, heard.errors);
        match source.next(MANY, SHORT).await {
            Ok(Batch { changes, deliveries }) => {
                heard.changes.extend(changes);
                heard.deliveries.extend(deliveries);
            }
            Err(error) => {
                heard.errors.push(error);
                tokio::time::sleep(SHORT / 5).await; // pace
            }
        }
    }
    heard
}

fn ids(heard: &Heard) -> Vec<String> {
    heard.deliveries.iter().filter_map(|delivery| delivery.message.id.clone()).collect()
}

async fn ack(source: &LeasedSource, heard: &Heard) {
    let tickets: Vec<_> = heard.deliveries.iter().map(|delivery| delivery.ticket.clone()).collect();
    source.ack(&tickets).await.expect("acknowledged");
}

impl Bed {
    async fn put(&self, stream: &str, ids: std::ops::Range<u32>) {
        for n in ids {
            self.run(&["XADD", stream, "*", "id", &format!("e{n}"), "payload", "x"]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_were_trimmed_unread_are_lost_and_those_that_were_read_are_not() {
    let bed = require_service!(Bed::open().await);
    bed.put("s", 0..10).await;
    let reader = source(&bed.config(), "s");
    let heard = hear(&reader, "all ten", |heard| heard.deliveries.len() == 10).await;
    ack(&reader, &heard).await;
    let places: Vec<i64> = heard.deliveries.iter().filter_map(|delivery| delivery.position).collect();
    // What was read and is trimmed afterwards is no loss.
    bed.run(&["XTRIM", "s", "MAXLEN", "2"]).await;
    bed.put("s", 10..12).await;
    let heard = hear(&reader, "two more", |heard| heard.deliveries.len() == 2).await;
    assert!(!heard.changes.iter().any(|change| matches!(change, Change::Lost { .. })), "{:?}", heard.changes);
    // Somebody who has read three of them misses the next five.
    let partition = Partition::new("s", 0);
    reader.seek(&partition, SeekTo::Position(places[2] + 1)).await.expect("assigned");
    let heard = hear(&reader, "what is left", |heard| heard.deliveries.len() == 4).await;
    assert_eq!(ids(&heard), ["e8", "e9", "e10", "e11"]);
    let (from, until) = lost(&heard).expect("a loss");
    assert!(from > places[2] && until == places[8] && until - from <= 8, "{from} {until}: {places:?}");
    ack(&reader, &heard).await;
    // What is added and trimmed while nobody looks is counted exactly.
    reader.pause(&partition).await.expect("assigned");
    let (mut tail, log) = {
        let log = RedisLog::new(&bed.config()).expect("valid");
        let end = log.look(&partition).await.expect("seen").expect("there").log.end;
        (log.tail(&partition, end).await.expect("opened"), log)
    };
    bed.put("s", 12..13).await;
    assert!(matches!(tail.next().await.expect("an entry")[..], [Tailed::Message(_)]));
    bed.put("s", 13..20).await;
    bed.run(&["XTRIM", "s", "MAXLEN", "2"]).await;
    let tailed = tail.next().await.expect("the rest");
    let [Tailed::Lost(lost), Tailed::Message(first), Tailed::Message(_)] = &tailed[..] else {
        panic!("{tailed:?}")
    };
    assert_eq!((lost.end - lost.start, first.message.id.as_deref()), (5, Some("e18")));
    drop(log);
}

fn lost(heard: &Heard) -> Option<(i64, i64)> {
    heard.changes.iter().find_map(|change| match change {
        Change::Lost { from, until, .. } => Some((*from, *until)),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_no_position_and_a_key_that_is_no_stream_are_refused_with_the_reason() {
    let bed = require_service!(Bed::open().await);
    bed.run(&["XADD", "s", "1-1048576", "id", "e"]).await;
    bed.run(&["SET", "text", "x"]).await;
    for (stream, words) in [("s", "1-1048576"), ("text", "no stream")] {
        let reader = source(&bed.config(), stream);
        let heard = hear(&reader, "a refusal", |heard| !heard.errors.is_empty()).await;
        let SourceError::Fatal(why) = &heard.errors[0] else { panic!("{:?}", heard.errors) };
        assert!(why.contains(words), "{why}");
    }
}

/// A wait at the server holds up nobody else: looks, ranges, other streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_blocks_keeps_nobody_waiting() {
    let bed = require_service!(Bed::open().await);
    bed.put("s", 0..3).await;
    let log = Arc::new(RedisLog::new(&bed.config()).expect("valid"));
    let partition = Partition::new("s", 0);
    let end = log.look(&partition).await.expect("seen").expect("there").log.end;
    let mut tail = log.tail(&partition, end).await.expect("opened");
    let waiting = tokio::spawn(async move { tail.next().await.map(|tailed| tailed.len()) });
    for _ in 0..20 {
        let asked = tokio::time::timeout(Duration::from_secs(1), log.read(&partition, 0..end, 10)).await;
        assert_eq!(asked.expect("at once").expect("a page").deliveries.len(), 3);
    }
    assert!(!waiting.is_finished());
    bed.put("s", 3..4).await;
    assert_eq!(waiting.await.expect("no panic").expect("an entry"), 1);
    let page = log.read(&partition, 0..end, 2).await.expect("a page");
    let time = page.deliveries[0].published_at.expect("a time");
    let at = log.position_at(&partition, time).await.expect("found");
    assert_eq!(Some(at), page.deliveries[0].position);
}

/// F6, F42: another server with the same address has not got the last entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_a_failover_that_lost_the_end_is_beyond_and_nothing_is_skipped() {
    let master = require_service!(Bed::open().await);
    let replica = require_service!(Bed::open().await);
    // The replica has the first three, and lacks the tail.
    for n in 1..=5 {
        let (id, event) = (format!("1000-{n}"), format!("e{n}"));
        master.run(&["XADD", "s", &id, "id", &event]).await;
        if n <= 3 {
            replica.run(&["XADD", "s", &id, "id", &event]).await;
        }
    }
    let proxy = Proxy::start(master.server.addr()).await.expect("a proxy");
    let config = RedisConfig::new(&format!("redis://{}", proxy.addr()));
    let reader = source(&config, "s");
    let heard = hear(&reader, "all five", |heard| heard.deliveries.len() == 5).await;
    ack(&reader, &heard).await;
    drop(reader);
    let reader = source(&replica.config(), "s");
    hear(&reader, "it is assigned", |heard| !heard.changes.is_empty()).await;
    let position = (1000 << 20) + 6;
    reader.seek(&Partition::new("s", 0), SeekTo::Position(position)).await.expect("assigned");
    let is_beyond =
        |change: &Change| matches!(change, Change::Beyond { position: at, .. } if *at == position);
    let heard = hear(&reader, "it is beyond", |heard| heard.changes.iter().any(is_beyond)).await;
    assert!(!ids(&heard).contains(&"e5".to_owned()));
}

/// F31: killed in the middle, and a link on which nothing comes any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_restart_and_a_half_open_link_are_got_over() {
    let mut bed = require_service!(Bed::open().await);
    bed.put("s", 0..5).await;
    let proxy = Proxy::start(bed.server.addr()).await.expect("a proxy");
    let reader = source(&RedisConfig::new(&format!("redis://{}", proxy.addr())), "s");
    let heard = hear(&reader, "all five", |heard| heard.deliveries.len() == 5).await;
    ack(&reader, &heard).await;
    proxy.half_open().await;
    bed.put("s", 5..7).await;
    hear(&reader, "the outage", |heard| !heard.errors.is_empty()).await;
    proxy.pass().await;
    let heard = hear(&reader, "what came meanwhile", |heard| ids(heard).contains(&"e6".to_owned())).await;
    assert!(!ids(&heard).contains(&"e4".to_owned()), "what was settled does not come again");
    ack(&reader, &heard).await;
    bed.server.kill9().await.expect("killed");
    hear(&reader, "the second outage", |heard| !heard.errors.is_empty()).await;
    bed.server.start_again().await.expect("started again");
    bed.client = client(&bed.server.url()).await;
    bed.put("s", 7..8).await;
    hear(&reader, "the next one", |heard| ids(heard).contains(&"e7".to_owned())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_and_losses_are_named_by_doctor() {
    let bed = require_service!(Bed::open().await);
    bed.put("s", 0..5).await;
    bed.run(&["ACL", "SETUSER", "blind", "on", ">pw", "~other", "+@all"]).await;
    let plan = GroupMember::new("g", ["s", "none"]);
    use posthaste::sink::Level;
    let levels = |found: Vec<posthaste::sink::Finding>| -> Vec<(String, Level)> {
        found.into_iter().map(|finding| (finding.check, finding.level)).collect()
    };
    let examined = |config: RedisConfig| async {
        let source = SourceConfig::Redis(Box::new(config));
        levels(source.examine(&plan, Some(Duration::from_secs(86_400))).await)
    };
    let found = examined(bed.config()).await;
    for check in ["reachable", "authenticated", "stream", "rights", "retention", "marks", "lag"] {
        assert!(found.contains(&(check.to_owned(), Level::Ok)), "{check}: {found:?}");
    }
    assert!(found.contains(&("stream".to_owned(), Level::Warn)), "there is no stream none: {found:?}");
    assert!(found.contains(&("durability".to_owned(), Level::Warn)), "{found:?}");
    bed.run(&["XTRIM", "s", "MAXLEN", "1"]).await;
    let found =
        eventually("the trimming is seen", WAIT, || async { Some(examined(bed.config()).await) }).await;
    assert!(found.contains(&("retention".to_owned(), Level::Warn)), "{found:?}");
    let blind = bed.config().with(|options| {
        options.user = Some("blind".to_owned());
        options.password = Some(posthaste_brokers::Secret::new("pw"));
    });
    let found = examined(blind).await;
    assert!(found.contains(&("rights".to_owned(), Level::Fail)), "{found:?}");
}
