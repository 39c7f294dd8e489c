//! The local broker as a source: the suite's fixture, and what is its own.

use crate::rig::{Directory, open};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::source::{Change, Limit, Partition, SeekTo, Source, Standing, StartFrom};
use posthaste::{Timestamp, source::Delivery};
use posthaste_sqlite::broker::{Broker, LocalSource, Outgoing, SourceConfig};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) struct Fixture {
    directory: Directory,
    broker: Arc<Broker>,
    members: Mutex<BTreeMap<(String, String), Arc<LocalSource>>>,
    topics: AtomicU32,
}

impl Fixture {
    pub(crate) async fn make() -> Option<Self> {
        let directory = Directory::make();
        let broker = open(&directory.file());
        Some(Self { directory, broker, members: Mutex::default(), topics: AtomicU32::new(0) })
    }
}

fn outgoing(topic: &str, message: Publication) -> Outgoing {
    let Publication { id, key, headers, payload } = message;
    let key = key.map(|key| Bytes::from(key.into_bytes()));
    Outgoing { topic: topic.to_owned(), id, key, headers, payload }
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed));
        self.broker.declare(&name, partitions).await.expect("declared");
        name
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        let count = messages.len();
        let messages = messages.into_iter().map(|message| outgoing(topic, message)).collect();
        assert_eq!(self.broker.publish(messages).await.expect("published"), count, "ids are fresh");
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut config = SourceConfig::new(group, [topic]);
        config.member = Some(member.to_owned());
        config.start_from = how.start_from;
        config.in_hand_max = self.in_hand_max();
        config.stall_limit = how.stall_limit.unwrap_or(config.stall_limit);
        // Longer than a machine stands still between two beats.
        config.lease_ttl = Duration::from_secs(4);
        // A broker of its own for each member, as a process would have.
        let source = Arc::new(open(&self.directory.file()).source(config).expect("joined"));
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic").insert(key, Arc::clone(&source));
        source
    }

    async fn kill(&self, group: &str, member: &str) {
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic")[&key].freeze();
    }

    fn in_hand_max(&self) -> usize {
        300
    }

    async fn remove_below(&self, topic: &str, partition: i32, position: i64) -> bool {
        let connection = rusqlite::Connection::open(self.directory.file()).expect("opened");
        let sql = "select p.id from partitions p join topics t on t.id = p.topic where t.name = ?1 and p.number = ?2";
        let row: i64 = connection.query_row(sql, (topic, partition), |row| row.get(0)).expect("a partition");
        connection
            .execute(
                "delete from messages where place >= ?1 and place < ?2",
                (row << 40, (row << 40) + position),
            )
            .expect("removed");
        connection.execute("update partitions set first = ?2 where id = ?1", (row, position)).expect("moved");
        true
    }
}

const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };

fn text(n: i64) -> Outgoing {
    Outgoing {
        topic: "orders".to_owned(),
        id: Some(format!("id-{n}")),
        key: Some(Bytes::from_static(b"k")),
        headers: Vec::new(),
        payload: Some(Bytes::from(n.to_string().into_bytes())),
    }
}

async fn take(source: &LocalSource, count: usize) -> (Vec<Delivery>, Vec<Change>) {
    let (mut taken, mut changes) = (Vec::new(), Vec::new());
    let end = tokio::time::Instant::now() + Duration::from_secs(90);
    while taken.len() < count {
        assert!(tokio::time::Instant::now() < end, "{} of {count}", taken.len());
        let batch = source.next(MANY, Duration::from_millis(200)).await.expect("the broker answers");
        taken.extend(batch.deliveries);
        changes.extend(batch.changes);
    }
    (taken, changes)
}

/// A replay by an operator fences the consumer that runs, and it goes on at the new place.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_seeks_under_a_running_consumer() {
    let directory = Directory::make();
    let broker = open(&directory.file());
    broker.declare("orders", 1).await.expect("declared");
    broker.publish((0..5).map(text).collect()).await.expect("published");
    let consumer = open(&directory.file()).source(SourceConfig::new("billing", ["orders"])).expect("joined");
    let (taken, _) = take(&consumer, 5).await;
    let admin = open(&directory.file());
    assert_eq!(admin.seek("billing", "orders", 0, SeekTo::Position(2)).await.expect("sought"), Some(2));
    assert_eq!(admin.seek("billing", "orders", 7, SeekTo::Earliest).await.expect("answered"), None);
    let tickets: Vec<_> = taken.iter().map(|delivery| delivery.ticket.clone()).collect();
    assert_eq!(consumer.ack(&tickets).await, Ok(vec![Standing::Revoked; 5]));
    let (again, changes) = take(&consumer, 3).await;
    assert_eq!(again[0].position, Some(2));
    assert!(matches!(changes[0], Change::Revoked { .. }), "{changes:?}");
    assert!(changes.iter().any(|change| matches!(change, Change::Assigned { .. })), "{changes:?}");
    let groups = admin.groups().await.expect("groups");
    assert_eq!((groups[0].group.as_str(), groups[0].committed, groups[0].next), ("billing", 2, 5));
}

/// Retention by age and by size, in chunks; the newest stay.
#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_the_oldest() {
    let directory = Directory::make();
    let mut config = posthaste_sqlite::broker::BrokerConfig::new(directory.file());
    config.retention = Some(Duration::from_secs(3_600));
    config.retention_bytes = Some(40_000);
    config.partitions = 2;
    let broker = Broker::open(config).expect("opened");
    let message = |n: i64| Outgoing {
        key: Some(Bytes::from(n.to_string().into_bytes())),
        payload: Some(Bytes::from(vec![1; 100])),
        ..text(n)
    };
    broker.publish((0..2_500).map(message).collect()).await.expect("published");
    let connection = rusqlite::Connection::open(directory.file()).expect("opened");
    let old =
        "update messages set published_at = published_at - 7200000000 where (place & ((1 << 40) - 1)) < 1000";
    connection.execute(old, []).expect("aged");
    let purged = broker.purge().await.expect("purged");
    let topics = broker.topics().await.expect("topics");
    let left: i64 = topics[0].partitions.iter().map(|(first, next)| next - first).sum();
    assert_eq!(i64::try_from(purged).expect("small") + left, 2_500);
    assert!(topics[0].bytes <= 40_000 && topics[0].bytes > 25_000, "{}", topics[0].bytes);
    assert!(topics[0].partitions.iter().all(|(first, _)| *first >= 1_000), "{topics:?}");
    assert_eq!(broker.purge().await.expect("purged"), 0);
    let read = broker.read("orders", 0, 0, 10).await.expect("read");
    assert_eq!(read[0].position, topics[0].partitions[0].0);
}

/// The dedup window: an id is known for at least one window and forgotten after two.
#[tokio::test(flavor = "multi_thread")]
async fn f39_an_id_is_remembered_for_its_window() {
    let directory = Directory::make();
    let broker = open(&directory.file());
    assert_eq!(broker.publish(vec![text(1), text(2), text(1)]).await.expect("published"), 2);
    assert_eq!(open(&directory.file()).publish(vec![text(2)]).await.expect("published"), 0);
    let other = Outgoing { topic: "other".to_owned(), ..text(1) };
    assert_eq!(broker.publish(vec![other]).await.expect("published"), 1, "ids belong to a topic");
    let turn = || {
        let connection = rusqlite::Connection::open(directory.file()).expect("opened");
        connection
            .execute("update state set value = value - 121000000 where name = 'dedup_since'", [])
            .expect("turned");
    };
    turn();
    assert_eq!(
        broker.publish(vec![text(1)]).await.expect("published"),
        0,
        "the older generation is asked too"
    );
    turn();
    assert_eq!(broker.publish(vec![text(1)]).await.expect("published"), 1);
    let nameless = Outgoing { id: None, ..text(9) };
    assert_eq!(broker.publish(vec![nameless.clone(), nameless]).await.expect("published"), 2);
}

/// What an id looks like does not change on the way; "0123" is not 123.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_any_form_stay_what_they_are() {
    let directory = Directory::make();
    let broker = open(&directory.file());
    broker.declare("orders", 1).await.expect("declared");
    let ids = [
        "0123",
        "123",
        "0195D0C0-0000-7000-8000-000000000000",
        "0195d0c0-0000-7000-8000-000000000000",
        "ä b",
    ];
    let messages: Vec<Outgoing> =
        ids.iter().map(|id| Outgoing { id: Some((*id).to_owned()), ..text(0) }).collect();
    assert_eq!(broker.publish(messages).await.expect("published"), 5);
    let stored = broker.read("orders", 0, 0, 10).await.expect("read");
    let got: Vec<_> = stored.iter().filter_map(|stored| stored.message.id.as_deref()).collect();
    assert_eq!(got, ids);
    assert!(stored.iter().all(|stored| stored.published_at > Timestamp(1_700_000_000_000_000)));
}

/// A consumer process that dies is replaced when its heart stops, not when its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_source_frees_its_partitions_before_its_lease_ends() {
    let directory = Directory::make();
    let broker = open(&directory.file());
    broker.declare("orders", 2).await.expect("declared");
    let config =
        || SourceConfig { lease_ttl: Duration::from_secs(600), ..SourceConfig::new("billing", ["orders"]) };
    let first = broker.source(config()).expect("joined");
    has_both(&first).await;
    let second = open(&directory.file()).source(config()).expect("joined");
    drop(first);
    has_both(&second).await;
    // So is one that drains.
    let third = open(&directory.file()).source(config()).expect("joined");
    assert_eq!(second.drain(Duration::from_secs(60)).await.map(|drained| drained.abandoned), Ok(0));
    has_both(&third).await;
}

async fn has_both(source: &LocalSource) {
    eventually("both partitions", Duration::from_secs(60), || async {
        let _ = source.next(MANY, Duration::from_millis(20)).await;
        (source.view().await.ok()?.len() == 2).then_some(())
    })
    .await;
}

/// `Latest` is what the group declared, and only for partitions that it has never read.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_two_topics_reads_both() {
    let directory = Directory::make();
    let broker = open(&directory.file());
    let other = |n: i64| Outgoing { topic: "payments".to_owned(), ..text(n) };
    broker.publish(vec![text(1), other(2)]).await.expect("published");
    let config = SourceConfig {
        start_from: StartFrom::Earliest,
        ..SourceConfig::new("billing", ["orders", "payments"])
    };
    let source = broker.source(config).expect("joined");
    let (taken, _) = take(&source, 2).await;
    let mut topics: Vec<&str> = taken.iter().map(|delivery| &*delivery.partition().topic).collect();
    topics.sort_unstable();
    assert_eq!(topics, ["orders", "payments"]);
}

/// Seeks, and takes so many messages. Answers with the epoch that the seek told, and all that came after it.
async fn seek_and_take(source: &LocalSource, to: SeekTo, count: usize) -> (i64, Vec<Change>, Vec<Delivery>) {
    let epoch = source.seek(&Partition::new("orders", 0), to).await.expect("assigned");
    let (taken, changes) = take(source, count).await;
    (epoch, changes, taken)
}

async fn five_messages(directory: &Directory) -> LocalSource {
    let broker = open(&directory.file());
    broker.declare("orders", 1).await.expect("declared");
    broker.publish((0..5).map(text).collect()).await.expect("published");
    let source = broker.source(SourceConfig::new("billing", ["orders"])).expect("joined");
    take(&source, 5).await;
    source
}

/// What a position says that is not there any more: the gap, and reading goes on behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_below_the_first_position_says_what_is_lost() {
    let fixture = Fixture::make().await.expect("a fixture");
    let source = five_messages(&fixture.directory).await;
    fixture.remove_below("orders", 0, 3).await;
    let (_, changes, deliveries) = seek_and_take(&source, SeekTo::Position(1), 2).await;
    let lost = Change::Lost { partition: Partition::new("orders", 0), from: 1, until: 3 };
    assert!(changes.contains(&lost), "{changes:?}");
    assert_eq!(deliveries[0].position, Some(3));
    let view = source.view().await.expect("a view");
    assert_eq!((view[0].first, view[0].end), (Some(3), Some(5)));
}

/// So does one beyond the end. At the first position nothing is missing, nor at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_beyond_the_end_says_so() {
    let directory = Directory::make();
    let source = five_messages(&directory).await;
    let broker = open(&directory.file());
    let beyond = |position| Change::Beyond { partition: Partition::new("orders", 0), position, end: Some(5) };
    for (position, is_there) in [(0, true), (5, true), (9, false)] {
        let epoch = source.seek(&Partition::new("orders", 0), SeekTo::Position(position)).await;
        let epoch = epoch.expect("assigned");
        let changes = eventually("the assignment", Duration::from_secs(60), || async {
            let changes = source.next(MANY, Duration::from_millis(20)).await.expect("an answer").changes;
            let assigned = Change::Assigned { partition: Partition::new("orders", 0), epoch };
            changes.contains(&assigned).then_some(changes)
        })
        .await;
        assert_eq!(changes.contains(&beyond(position)), !is_there, "{position}: {changes:?}");
        assert!(!changes.iter().any(|change| matches!(change, Change::Lost { .. })), "{changes:?}");
    }
    // It goes on with what is published next; whoever asked decides whether to take it.
    broker.publish(vec![text(5)]).await.expect("published");
    assert_eq!(take(&source, 1).await.0[0].position, Some(5));
}

/// The epoch that a seek answers with is that of the assignment which follows, and of its deliveries.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_answers_with_the_epoch_of_what_follows() {
    let directory = Directory::make();
    let source = five_messages(&directory).await;
    let (mut last, partition) = (0, Partition::new("orders", 0));
    for _ in 0..3 {
        let (epoch, changes, deliveries) = seek_and_take(&source, SeekTo::Position(2), 3).await;
        assert!(epoch > last, "{epoch} after {last}");
        let assigned = Change::Assigned { partition: partition.clone(), epoch };
        assert!(matches!(changes[0], Change::Revoked { .. }) && changes.contains(&assigned), "{changes:?}");
        assert_eq!((deliveries[0].ticket.epoch, deliveries[0].position), (epoch, Some(2)));
        last = epoch;
    }
}
