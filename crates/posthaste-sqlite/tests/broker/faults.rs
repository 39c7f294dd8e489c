//! The file goes away, is damaged, is full, is somebody else's: outages, never an event's fault.

use crate::rig::{Directory, open};
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Level, Message, Scope, Sink, Verdict};
use posthaste_sqlite::broker::{Broker, BrokerConfig, LocalSink};

fn message(seq: i64) -> Message {
    let event = Event::new("orders.placed", seq.to_string()).with_key("k");
    let payload = event.payload.clone();
    let stored = StoredEvent { seq, slot: 0, appended_at: Timestamp(0), event, defect: None };
    Message {
        stored,
        destination: "orders".to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

async fn publish(sink: &LocalSink, seq: i64) -> Verdict {
    sink.publish(&[message(seq)]).await.remove(0)
}

/// Code of a `Retry` in the sink's scope.
fn outage(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Retry(failure) if failure.scope == Scope::Sink => &failure.code,
        other => panic!("{other:?}"),
    }
}

/// A file that is removed or moved away would be written to for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_is_an_outage_until_it_is_back() {
    let directory = Directory::make();
    let sink = LocalSink::new(open(&directory.file()));
    assert_eq!(publish(&sink, 1).await, Verdict::Delivered);
    let away = directory.path().join("away");
    std::fs::create_dir(&away).expect("a directory");
    let files =
        || std::fs::read_dir(directory.path()).expect("listed").flatten().filter(|e| e.path().is_file());
    for file in files() {
        std::fs::rename(file.path(), away.join(file.file_name())).expect("moved");
    }
    assert_eq!(outage(&publish(&sink, 2).await), "local.gone");
    assert!(!directory.file().exists(), "no empty one in its place");
    for file in std::fs::read_dir(&away).expect("listed").flatten() {
        std::fs::rename(file.path(), directory.path().join(file.file_name())).expect("moved back");
    }
    assert_eq!(publish(&sink, 3).await, Verdict::Delivered);
    let topics = open(&directory.file()).topics().await.expect("topics");
    assert_eq!(topics[0].partitions.iter().map(|(_, next)| next).sum::<i64>(), 2);
}

/// Another broker in its place is used; it is not the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_replaced_is_opened_again() {
    let directory = Directory::make();
    let sink = LocalSink::new(open(&directory.file()));
    assert_eq!(publish(&sink, 1).await, Verdict::Delivered);
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", directory.file().display()));
    }
    drop(open(&directory.file()));
    assert_eq!(publish(&sink, 2).await, Verdict::Delivered);
    let topics = open(&directory.file()).topics().await.expect("topics");
    assert_eq!(topics[0].partitions.iter().map(|(_, next)| next).sum::<i64>(), 1);
}

/// Neither an application's database nor a text file is overwritten.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_broker_is_refused_and_left_alone() {
    let directory = Directory::make();
    std::fs::write(directory.file(), "dear diary, this is not a database at all. ".repeat(100))
        .expect("written");
    let before = std::fs::read(directory.file()).expect("read");
    let sink = LocalSink::new(Broker::lazy(BrokerConfig::new(directory.file())));
    assert_eq!(outage(&publish(&sink, 1).await), "local.refused");
    assert_eq!(std::fs::read(directory.file()).expect("read"), before);
    assert!(sink.examine(&[]).await.iter().any(|finding| finding.level == Level::Fail));

    let database = directory.path().join("app.db");
    let connection = rusqlite::Connection::open(&database).expect("opened");
    connection.execute_batch("create table orders (id integer)").expect("a table");
    let refused =
        Broker::open(BrokerConfig::new(&database)).map(drop).expect_err("an application's database");
    assert!(refused.to_string().contains("no local broker"), "{refused}");
    let tables: i64 =
        connection.query_row("select count(*) from sqlite_schema", [], |row| row.get(0)).expect("counted");
    assert_eq!(tables, 1);
}

/// Full: nothing of the call is written, and it goes on when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_an_outage_until_there_is_room() {
    let directory = Directory::make();
    let config = BrokerConfig { file_bytes_max: Some(1 << 20), ..BrokerConfig::new(directory.file()) };
    let sink = LocalSink::new(Broker::open(config).expect("opened"));
    assert_eq!(publish(&sink, 1).await, Verdict::Delivered);
    let large: Vec<Message> = (2..40)
        .map(|seq| {
            let mut message = message(seq);
            message.payload = Some(vec![7; 100_000].into());
            message
        })
        .collect();
    let verdicts = sink.publish(&large).await;
    assert_eq!(verdicts.len(), 38);
    assert!(verdicts.iter().all(|verdict| outage(verdict) == "local.unavailable"), "{:?}", verdicts[0]);
    assert_eq!(publish(&sink, 40).await, Verdict::Delivered, "a small one fits");
    let roomy = LocalSink::new(open(&directory.file()));
    assert_eq!(roomy.publish(&large).await, vec![Verdict::Delivered; 38]);
}

/// A damaged page in the middle of the file is told as such, and nothing is written over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_told_and_left_alone() {
    let directory = Directory::make();
    {
        let sink = LocalSink::new(open(&directory.file()));
        for seq in 1..200 {
            assert_eq!(publish(&sink, seq).await, Verdict::Delivered);
        }
    }
    let connection = rusqlite::Connection::open(directory.file()).expect("opened");
    connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).expect("checkpointed");
    drop(connection);
    let mut bytes = std::fs::read(directory.file()).expect("read");
    let end = bytes.len();
    bytes[4096..end].fill(0x5a);
    std::fs::write(directory.file(), &bytes).expect("damaged");
    let sink =
        LocalSink::new(Broker::lazy(BrokerConfig { create: false, ..BrokerConfig::new(directory.file()) }));
    let verdict = publish(&sink, 1_000).await;
    assert!(["local.damaged", "local.refused"].contains(&outage(&verdict)), "{verdict:?}");
    assert_eq!(std::fs::read(directory.file()).expect("read"), bytes, "nothing was overwritten");
}

/// One that cannot be made is an outage with a cure, not a panic.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_there_is_an_outage() {
    let directory = Directory::make();
    let file = directory.path().join("missing").join("broker.db");
    let sink = LocalSink::new(Broker::lazy(BrokerConfig::new(&file)));
    let verdict = publish(&sink, 1).await;
    assert!(["local.gone", "local.refused"].contains(&outage(&verdict)), "{verdict:?}");
    std::fs::create_dir(file.parent().expect("a parent")).expect("made");
    assert_eq!(publish(&sink, 1).await, Verdict::Delivered);
}
