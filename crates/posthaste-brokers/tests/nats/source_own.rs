//! JetStream as a source: what happens to streams and to the way there.

use super::*;
use posthaste::source::leased::{LeasedConfig, LeasedSource, PlainLog};
use posthaste::source::log::LogReader;
use posthaste::source::{Batch, Change, Delivery, Limit, Partition, SeekTo, Source, SourceError, StartFrom};
use posthaste_brokers::nats::NatsLog;
use posthaste_brokers::{GroupMember, SourceConfig};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::leases::MemoryLeases;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const WAIT: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_millis(250);

/// A member that says where to begin itself, as a consumer does.
fn member(config: &NatsConfig, leases: &Arc<MemoryLeases>, name: &str, streams: &[&str]) -> LeasedSource {
    let mut plan = LeasedConfig::new(name, streams.iter().copied());
    plan.lease_ttl = Duration::from_secs(2);
    plan.start_from = Some(StartFrom::Earliest);
    LeasedSource::start(Arc::new(NatsLog::new(config).expect("valid")), Arc::clone(leases) as Arc<_>, plan)
}

impl Bed {
    async fn put(&self, subject: &str, count: usize) {
        for n in 0..count {
            let sent = self.jetstream.publish(subject.to_owned(), n.to_string().into()).await;
            sent.expect("sent").await.expect("stored");
        }
    }

    /// A source on one stream, with what it needs.
    fn source(&self, stream: &str) -> LeasedSource {
        member(&self.config(), &Arc::default(), "a", &[stream])
    }
}

/// What a source says until the test has what it wants of it.
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

fn positions(heard: &Heard) -> Vec<i64> {
    heard.deliveries.iter().filter_map(|delivery| delivery.position).collect()
}

fn lost(heard: &Heard) -> Vec<(i64, i64)> {
    let lost = heard.changes.iter().filter_map(|change| match change {
        Change::Lost { from, until, .. } => Some((*from, *until)),
        _ => None,
    });
    lost.collect()
}

fn count(n: usize) -> impl Fn(&Heard) -> bool {
    move |heard| heard.deliveries.len() >= n
}

async fn ack(source: &LeasedSource, heard: &Heard) {
    let tickets: Vec<_> = heard.deliveries.iter().map(|delivery| delivery.ticket.clone()).collect();
    source.ack(&tickets).await.expect("acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_inside_a_stream_are_no_loss_and_what_is_below_its_first_is() {
    let bed = require_service!(Bed::open().await);
    bed.stream_with(stream::Config { max_messages_per_subject: 1, ..plain("S", &["s.>"]) }).await;
    // 1 stays, 2 to 5 are replaced by 6.
    bed.put("s.a", 1).await;
    bed.put("s.b", 5).await;
    let source = bed.source("S");
    let heard = hear(&source, "the gap", count(2)).await;
    assert_eq!((positions(&heard), lost(&heard)), (vec![1, 6], vec![]));
    assert_eq!(heard.deliveries[1].address.as_deref(), Some("s.b"));
    ack(&source, &heard).await;
    drop(source);
    // A reader that has not come so far misses what is below the first one then.
    bed.put("s.c", 3).await;
    bed.jetstream.get_stream("S").await.expect("there").purge().sequence(9).await.expect("purged");
    let source = bed.source("S");
    let partition = Partition::new("S", 0);
    hear(&source, "it is assigned", |heard| !heard.changes.is_empty()).await;
    source.seek(&partition, SeekTo::Position(7)).await.expect("assigned");
    let heard = hear(&source, "the last one", |heard| positions(heard).contains(&9)).await;
    assert_eq!(lost(&heard).last(), Some(&(7, 9)));
}

/// A stream whose last messages were deleted has no lag for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_end_is_empty_and_no_lag() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 4).await;
    let stream = bed.jetstream.get_stream("S").await.expect("there");
    for sequence in 3..=4 {
        stream.delete_message(sequence).await.expect("deleted");
    }
    let source = bed.source("S");
    let heard = hear(&source, "both", count(2)).await;
    ack(&source, &heard).await;
    source.seek(&Partition::new("S", 0), SeekTo::Position(3)).await.expect("assigned");
    let is_empty = |change: &Change| matches!(change, Change::Empty { until: 5, .. });
    hear(&source, "it is empty up to the end", |heard| heard.changes.iter().any(is_empty)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_stream_is_a_loss_and_goes_on() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 5).await;
    bed.jetstream.get_stream("S").await.expect("there").purge().await.expect("purged");
    let source = bed.source("S");
    hear(&source, "it is assigned", |heard| !heard.changes.is_empty()).await;
    source.seek(&Partition::new("S", 0), SeekTo::Position(2)).await.expect("assigned");
    bed.put("s", 1).await;
    let heard = hear(&source, "the next one", |heard| positions(heard).contains(&6)).await;
    assert_eq!(lost(&heard).last(), Some(&(2, 6)));
}

/// F6: under an open connection, with fewer messages and with more of them than were read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_a_stream_that_is_made_again_is_another_log_and_a_lost_end_is_beyond() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 5).await;
    let source = bed.source("S");
    let heard = hear(&source, "all five", count(5)).await;
    let before = source.view().await.expect("a view")[0].log_id.clone();
    bed.jetstream.delete_stream("S").await.expect("deleted");
    bed.stream("S", &["s"]).await;
    bed.put("s", 2).await;
    let epoch = heard.deliveries[0].ticket.epoch;
    let is_anew = |change: &Change| matches!(change, Change::Assigned { epoch: next, .. } if *next > epoch);
    hear(&source, "it is begun anew", |heard| heard.changes.iter().any(is_anew)).await;
    let view = eventually("the new stream is seen", WAIT, || async { source.view().await.ok() }).await;
    assert!(view[0].log_id.is_some() && view[0].log_id != before, "{view:?}");
    source.seek(&view[0].partition, SeekTo::Position(6)).await.expect("assigned");
    let is_beyond = |change: &Change| matches!(change, Change::Beyond { position: 6, end: Some(3), .. });
    let heard = hear(&source, "it is beyond", |heard| heard.changes.iter().any(is_beyond)).await;
    assert!(heard.deliveries.is_empty() || positions(&heard).iter().all(|at| *at < 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_forgets_what_was_acknowledged_is_refused_with_the_reason() {
    let bed = require_service!(Bed::open().await);
    for (name, retention) in
        [("W", stream::RetentionPolicy::WorkQueue), ("I", stream::RetentionPolicy::Interest)]
    {
        bed.stream_with(stream::Config { retention, ..plain(name, &[&name.to_lowercase()]) }).await;
        let source = bed.source(name);
        let heard = hear(&source, "a refusal", |heard| !heard.errors.is_empty()).await;
        let SourceError::Fatal(why) = &heard.errors[0] else { panic!("{:?}", heard.errors) };
        assert!(why.contains("retention") && why.contains("acknowledged"), "{why}");
    }
    let wrong = SourceConfig::Nats(Box::new(bed.config()));
    let leases = Arc::new(MemoryLeases::default());
    let refused = wrong.build(&GroupMember::new("g", ["orders.placed"]), leases).map(drop);
    assert!(refused.expect_err("a subject").to_string().contains("not subjects"));
}

/// F31: a kill in the middle of a batch repeats and loses nothing, and nothing comes out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_batch_that_is_cut_by_a_restart_goes_on_in_order() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 400).await;
    let source = bed.source("S");
    let first = source.next(Limit { events: 50, ..MANY }, WAIT).await.expect("the change");
    assert!(first.deliveries.is_empty());
    let Batch { deliveries, .. } = source.next(Limit { events: 50, ..MANY }, WAIT).await.expect("a part");
    let heard = Heard { deliveries, changes: Vec::new(), errors: Vec::new() };
    ack(&source, &heard).await;
    let settled = positions(&heard).len() as i64;
    bed.server.kill9().await.expect("killed");
    let away = hear(&source, "an outage", |heard| !heard.errors.is_empty()).await;
    assert!(away.errors.iter().all(SourceError::is_transient), "{:?}", away.errors);
    bed.server.start_again().await.expect("started again");
    let is_anew = |change: &Change| matches!(change, Change::Assigned { .. });
    let rest = hear(&source, "the rest", |heard| {
        let last = heard.changes.iter().rposition(is_anew).is_some();
        last && positions(heard).contains(&400)
    })
    .await;
    let mut anew: Vec<i64> = positions(&rest);
    let begin = anew.iter().rposition(|at| *at == settled + 1).expect("it goes on behind what is settled");
    anew.drain(..begin);
    assert_eq!(anew, (settled + 1..=400).collect::<Vec<_>>());
}

/// A connection on which nothing comes any more is noticed, and the reading goes on over another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_link_is_left() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 3).await;
    let proxy = Proxy::start(bed.server.addr()).await.expect("a proxy");
    let config = NatsConfig::new(&format!("nats://{}", proxy.addr()));
    let source = member(&config, &Arc::default(), "a", &["S"]);
    let heard = hear(&source, "all three", count(3)).await;
    ack(&source, &heard).await;
    proxy.half_open().await;
    bed.put("s", 2).await;
    hear(&source, "the outage", |heard| !heard.errors.is_empty()).await;
    proxy.pass().await;
    let heard = hear(&source, "what came meanwhile", |heard| positions(heard).contains(&5)).await;
    assert!(!positions(&heard).contains(&3), "what was settled does not come again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_share_three_streams_and_one_stream_has_one_reader() {
    let bed = require_service!(Bed::open().await);
    for name in ["A", "B", "C"] {
        bed.stream(name, &[&name.to_lowercase()]).await;
    }
    let (config, leases) = (bed.config(), Arc::<MemoryLeases>::default());
    let members: Vec<_> =
        ["m1", "m2", "m3"].iter().map(|name| member(&config, &leases, name, &["A", "B", "C"])).collect();
    let shares = || async {
        let mut shares = Vec::new();
        for member in &members {
            let _ = member.next(MANY, Duration::ZERO).await;
            shares.push(member.view().await.ok()?.len());
        }
        (shares == [1, 1, 1]).then_some(())
    };
    eventually("each has one", WAIT, shares).await;
    let leases = Arc::<MemoryLeases>::default();
    let members: Vec<_> =
        ["m1", "m2", "m3"].iter().map(|name| member(&config, &leases, name, &["A"])).collect();
    bed.put("a", 5).await;
    let mut readers = std::collections::BTreeSet::new();
    let mut read = 0;
    let end = tokio::time::Instant::now() + WAIT;
    while read < 5 {
        assert!(tokio::time::Instant::now() < end, "{read} of 5");
        for (index, member) in members.iter().enumerate() {
            let part = member.next(MANY, SHORT / 5).await.map(|batch| batch.deliveries).unwrap_or_default();
            if !part.is_empty() {
                readers.insert(index);
                read += part.len();
            }
        }
    }
    assert_eq!((readers.len(), read), (1, 5), "the others stand by");
}

#[tokio::test]
async fn a_wrong_authority_and_a_missing_right_are_named() {
    let certs = posthaste_testkit::services::Certs::make().expect("certificates");
    let server = require_service!(Nats::start(&NatsOptions::default().tls(certs.server())).await);
    let other = certs.other_ca().to_owned();
    let wrong = NatsConfig::new(&server.url()).with(|options| options.ca_file = Some(other));
    let log = NatsLog::new(&wrong).expect("valid");
    let error = log.look(&Partition::new("S", 0)).await.expect_err("not trusted");
    assert!(error.is_transient() && error.to_string().contains("certificate"), "{error}");
    let accounts = r#"accounts { A { jetstream: enabled, users: [
        { user: "blind", password: "pw", permissions: { publish: ["x"], subscribe: ["_INBOX.>"] } }
        { user: "half", password: "pw", permissions: { publish: ["$JS.API.STREAM.INFO.S"], subscribe: ["_INBOX.>"] } }
        { user: "root", password: "pw" } ] } }"#;
    let server = require_service!(Nats::start(&NatsOptions::default().setting(accounts)).await);
    let as_user = |user: &str| {
        NatsConfig::new(&server.url()).with(|options| {
            options.user = Some(user.to_owned());
            options.password = Some(posthaste_brokers::Secret::new("pw"));
        })
    };
    let root = async_nats::ConnectOptions::with_user_and_password("root".to_owned(), "pw".to_owned());
    let root = jetstream::new(root.connect(server.url()).await.expect("connected"));
    root.create_stream(plain("S", &["s"])).await.expect("a stream");
    let blind = NatsLog::new(&as_user("blind")).expect("valid");
    let error = blind.look(&Partition::new("S", 0)).await.expect_err("not allowed").to_string();
    assert!(error.contains("blind") && error.contains("$JS.API.STREAM.INFO.S"), "{error}");
    let half = NatsLog::new(&as_user("half")).expect("valid");
    let error = half.tail(&Partition::new("S", 0), 1).await.map(drop).expect_err("not allowed").to_string();
    assert!(error.contains("$JS.API.CONSUMER.CREATE.S"), "{error}");
    let plan = GroupMember::new("g", ["S", "NONE"]);
    let levels = |found: Vec<posthaste::sink::Finding>| -> Vec<(String, posthaste::sink::Level)> {
        found.into_iter().map(|finding| (finding.check, finding.level)).collect()
    };
    use posthaste::sink::Level;
    let source = |user: &str| SourceConfig::Nats(Box::new(as_user(user)));
    let found = levels(source("root").examine(&plan, Some(Duration::from_secs(86_400))).await);
    for check in ["reachable", "authenticated", "rights", "retention", "marks", "lag"] {
        assert!(found.contains(&(check.to_owned(), Level::Ok)), "{check}: {found:?}");
    }
    assert!(found.contains(&("durability".to_owned(), Level::Warn)), "one replica: {found:?}");
    assert!(found.contains(&("stream".to_owned(), Level::Fail)), "there is no NONE: {found:?}");
    let found = levels(source("half").examine(&plan, None).await);
    assert!(found.contains(&("rights".to_owned(), Level::Fail)), "{found:?}");
}

/// For people: ranges, times, and the bounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_and_a_time_are_found_without_a_group() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    bed.put("s", 30).await;
    let log = NatsLog::new(&bed.config()).expect("valid");
    let partition = Partition::new("S", 0);
    let found = log.survey(&["S".to_owned(), "NONE".to_owned()]).await.expect("seen");
    assert_eq!((found.len(), found[0].first, found[0].end), (1, 1, 31));
    let (mut next, mut read) = (5, Vec::new());
    while next < 25 {
        let page = log.read(&partition, next..25, 7).await.expect("a page");
        read.extend(page.deliveries.iter().filter_map(|delivery| delivery.position));
        next = page.next;
    }
    assert_eq!(read, (5..25).collect::<Vec<_>>());
    let page = log.read(&partition, 12..13, 1).await.expect("a page");
    let time = page.deliveries[0].published_at.expect("a time");
    let at = log.position_at(&partition, time).await.expect("found");
    assert!(at <= 12 && at > 0, "{at}");
    let later = posthaste::Timestamp(time.0 + 3_600_000_000);
    assert_eq!(log.position_at(&partition, later).await, Ok(31));
    let beyond = log.read(&partition, 31..90, 10).await.expect("nothing");
    assert_eq!((beyond.deliveries.len(), beyond.next), (0, 90));
}
