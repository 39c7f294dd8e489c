//! A consumer dies at every point of its runtime and of its inbox, and a fresh one finishes: the demo's
//! billing, which is a process of its own, on files.

use posthaste_sqlite::broker::{Broker, BrokerConfig, Outgoing};
use posthaste_testkit::conformance::eventually;
use rusqlite::Connection;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(90);

/// Every crash point of a consumer.
const POINTS: [&str; 12] = [
    "consume.started",
    "consume.taken",
    "consume.admitted",
    "consume.before_commit",
    "consume.committed",
    "consume.saved",
    "consume.deferred",
    "consume.buried",
    "consume.redriven",
    "consume.deferred_done",
    "consume.revoked",
    "consume.poison",
];

pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.into_iter()
}

macro_rules! crash_tests {
    ($($name:ident = $index:literal;)*) => {
        /// The one that is left is a message that kills: `poison`.
        const _: () = assert!([$($index),*].len() + 1 == POINTS.len(), "a crash point has no test");
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                consumer_dies(POINTS[$index]).await;
            }
        )*
    };
}

crash_tests! {
    started = 0;
    taken = 1;
    admitted = 2;
    before_commit = 3;
    committed = 4;
    saved = 5;
    deferred = 6;
    buried = 7;
    redriven = 8;
    deferred_done = 9;
    revoked = 10;
}

/// Files of a demo that has ended. Each test has a copy.
static KEPT: LazyLock<PathBuf> = LazyLock::new(|| {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consume");
    let _ = std::fs::remove_dir_all(&kept);
    let mut demo = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    let demo =
        demo.args(["demo", "--events", "100", "--keep"]).arg(&kept).output().expect("the binary starts");
    assert!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));
    kept
});

struct Directory(PathBuf);

impl Directory {
    fn make() -> Self {
        let path = std::env::temp_dir().join(format!("posthaste-consume-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ended with whatever test it served.
struct Billing(Child);

impl Drop for Billing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn billing(dir: &Path, crash: Option<&str>) -> Billing {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["demo", "--consumer"]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::null());
    if let Some(point) = crash {
        command.env("POSTHASTE_CRASH", format!("{point}@1"));
    }
    Billing(command.stderr(Stdio::null()).spawn().expect("the consumer starts"))
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("made");
    for entry in std::fs::read_dir(from).expect("there").flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

fn texts(dir: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(dir.join("billing.db")).expect("opened");
    connection.busy_timeout(WAIT).expect("set");
    let mut statement = connection.prepare(sql).expect(sql);
    let rows = statement.query_map([], |row| row.get(0)).expect(sql);
    rows.collect::<Result<_, _>>().expect(sql)
}

fn message(id: &str, key: &str, payload: String) -> Outgoing {
    Outgoing {
        topic: "orders".to_owned(),
        id: Some(id.to_owned()),
        key: Some(key.to_owned().into()),
        headers: vec![("type".to_owned(), "orders.placed".into())],
        payload: Some(payload.into()),
    }
}

/// Publishes messages of some keys: one makes its handler fail twice, one is poison, one is a dead letter
/// that somebody mended and sent back. Answers with the dead letter's id.
async fn publish(dir: &Path) -> String {
    let letter =
        texts(dir, "select message_id from posthaste_inbox_dead_letters").pop().expect("a dead letter");
    let broker = Connection::open(dir.join("broker/broker.db")).expect("opened");
    broker.execute_batch("delete from dedup_0; delete from dedup_1").expect("its window is over");
    drop(broker);
    let payload = |id: &str, failures: u32| {
        format!(r#"{{"order": "{id}", "customer": "crash", "cents": 1, "failures": {failures}}}"#)
    };
    let mut messages = vec![message(&letter, "sent-back", payload(&letter, 0))];
    for n in 0..60 {
        let (id, key) = (format!("m{n:02}"), format!("key-{}", n % 6));
        let failures = if n == 7 { 2 } else { 0 };
        messages.push(message(&id, &key, payload(&id, failures)));
    }
    messages.push(message("poison", "key-3", "{}".to_owned()));
    let config = BrokerConfig { create: false, ..BrokerConfig::new(dir.join("broker/broker.db")) };
    let broker = Broker::open(config).expect("the broker opens");
    assert_eq!(broker.publish(messages).await.expect("published"), 62);
    letter
}

async fn consumer_dies(point: &str) {
    let directory = Directory::make();
    let dir = directory.0.join("shop");
    copy_all(&KEPT, &dir);
    let letter = publish(&dir).await;
    if point == "consume.started" {
        // A consumer that has never been here: neither file knows a position of it.
        let forget = |file: &str, sql: &str| {
            Connection::open(dir.join(file)).and_then(|file| file.execute_batch(sql)).expect(sql);
        };
        forget("billing.db", "delete from posthaste_inbox_partitions");
        forget("broker/broker.db", "delete from positions");
    }
    let first = billing(&dir, Some(point));
    let other = if point == "consume.revoked" {
        eventually("it has everything", WAIT, || {
            let clean = texts(&dir, "select topic from posthaste_inbox_partitions where clean");
            async move { clean.is_empty().then_some(()) }
        })
        .await;
        Some(billing(&dir, None))
    } else {
        None
    };
    assert_eq!(end_of(first).await, Some(9), "the consumer died of SIGKILL at {point}");
    let second = other.unwrap_or_else(|| billing(&dir, None));
    finishes(&dir, second, &letter, &["poison"], point).await;
}

/// F21: nothing is written when a message is taken, so only deaths tell. It dies in the end, and no other
/// does.
#[tokio::test(flavor = "multi_thread")]
async fn poison() {
    let directory = Directory::make();
    let dir = directory.0.join("shop");
    copy_all(&KEPT, &dir);
    let letter = publish(&dir).await;
    let mut killer = message("killer", "key-5", "{}".to_owned());
    killer.headers.push(("x-posthaste-test-abort-consumer".to_owned(), "1".into()));
    let config = BrokerConfig { create: false, ..BrokerConfig::new(dir.join("broker/broker.db")) };
    let broker = Broker::open(config).expect("the broker opens");
    assert_eq!(broker.publish(vec![killer]).await.expect("published"), 1);
    drop(broker);
    let first = billing(&dir, Some("consume.poison"));
    assert_eq!(end_of(first).await, Some(9), "the consumer died of SIGKILL at consume.poison");
    let crashed = "select message_id from posthaste_inbox_dead_letters where disposition = 'crashed'";
    let mut deaths = 1;
    let last = loop {
        let mut next = billing(&dir, None);
        let died = eventually("its death, or that of the message", WAIT, || {
            let ended = next.0.try_wait().expect("a child").map(|status| status.signal());
            let is_over = !texts(&dir, crashed).is_empty();
            async move { ended.map(Some).or(is_over.then_some(None)) }
        })
        .await;
        match died {
            None => break next,
            // SIGABRT: the message itself kills the process.
            Some(signal) => assert_eq!(signal, Some(6), "only the message kills"),
        }
        deaths += 1;
        assert!(deaths < 15, "the process dies for ever");
    };
    assert!(deaths >= 3, "care takes a few deaths: {deaths}");
    assert_eq!(texts(&dir, crashed), ["killer"]);
    finishes(&dir, last, &letter, &["killer", "poison"], "consume.poison").await;
}

/// The signal that ended a process.
async fn end_of(mut process: Billing) -> Option<i32> {
    let died = eventually("its death", WAIT, || {
        let ended = process.0.try_wait().expect("a child");
        async move { ended }
    })
    .await;
    died.signal()
}

/// A living one decides everything, and what it leaves is right.
async fn finishes(dir: &Path, mut second: Billing, letter: &str, dead: &[&str], point: &str) {
    let letters = "select message_id from posthaste_inbox_dead_letters order by message_id";
    let booked = "select event_id from bookings where event_id like 'm__' order by n";
    eventually("everything to be decided", WAIT, || {
        assert!(second.0.try_wait().expect("a child").is_none(), "{point}: the second one lives");
        let open = texts(dir, "select message_id from posthaste_inbox_deferred");
        let back = texts(dir, &format!("select event_id from bookings where event_id = '{letter}'"));
        let is_done = texts(dir, booked).len() >= 60
            && open.is_empty()
            && texts(dir, letters) == dead
            && back.len() == 1;
        async move { is_done.then_some(()) }
    })
    .await;
    drop(second.0.stdin.take());
    assert!(second.0.wait().expect("a child").success(), "{point}: a drained end");

    let booked = texts(dir, booked);
    let mut sorted = booked.clone();
    sorted.sort();
    assert_eq!(sorted, (0..60).map(|n| format!("m{n:02}")).collect::<Vec<_>>(), "{point}: each once (G5)");
    for key in 0..6 {
        let of_key: Vec<&String> =
            booked.iter().filter(|id| id[1..].parse::<u32>().is_ok_and(|n| n % 6 == key)).collect();
        assert!(of_key.is_sorted(), "{point}: in the order of their key (G3): {of_key:?}");
    }
    let marks = "select message_id from posthaste_inbox where outcome <> 'd' order by message_id";
    assert_eq!(texts(dir, marks), dead, "{point}: marks and rows agree (G6)");
    let unclean = texts(dir, "select topic from posthaste_inbox_partitions where not clean");
    assert_eq!(unclean, [""; 0], "{point}: given back (G8)");
}
