//! The writer: groups, savepoints, answers after the commit.

use crate::fixture::{SqliteFixture, TestDir, connect};
use posthaste_sqlite::Synchronous;
use posthaste_sqlite::writer::{WriteError, Writer};
use rusqlite::TransactionBehavior;
use std::sync::mpsc;
use std::time::{Duration, Instant};

async fn make() -> (SqliteFixture, Writer) {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    fixture.connect().execute_batch("create table notes (n integer primary key)").expect("a table");
    let writer = Writer::open(&fixture.path(), Synchronous::Full).expect("the writer opens");
    (fixture, writer)
}

async fn note(writer: &Writer, n: i64) -> Result<usize, WriteError> {
    writer.run(move |tx| tx.execute("insert into notes values (?1)", [n]).map_err(WriteError::from)).await
}

fn notes(fixture: &SqliteFixture) -> Vec<i64> {
    let connection = fixture.connect();
    let mut statement = connection.prepare("select n from notes order by n").expect("a statement");
    let rows = statement.query_map([], |row| row.get(0)).expect("a query");
    rows.collect::<Result<_, _>>().expect("rows")
}

/// Holds the write lock from outside until it is told to let go.
fn hold(fixture: &SqliteFixture) -> (mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let (let_go, wait) = mpsc::channel();
    let (held, ready) = mpsc::channel();
    let path = fixture.path();
    let holder = std::thread::spawn(move || {
        let mut connection = connect(&path);
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("the lock");
        held.send(()).expect("somebody waits");
        let _ = wait.recv();
        tx.rollback().expect("rolled back");
    });
    ready.recv().expect("the lock is held");
    (let_go, holder)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_means_that_it_is_committed() {
    let (fixture, writer) = make().await;
    for n in 0..20 {
        note(&writer, n).await.expect("written");
        assert_eq!(notes(&fixture).len() as i64, n + 1, "another connection sees it");
    }
}

/// Jobs that gathered while the lock was away go into one transaction; one that fails costs the others
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_share_a_commit_and_a_failing_one_costs_nobody_anything() {
    let (fixture, writer) = make().await;
    note(&writer, 5).await.expect("written");
    let before = *writer.commits().borrow();
    let (let_go, holder) = hold(&fixture);
    let jobs = (0..50).map(|n| {
        let writer = writer.clone();
        // 5 is there already.
        tokio::spawn(async move { (n, note(&writer, n).await) })
    });
    let jobs: Vec<_> = jobs.collect();
    let panicking = {
        let writer = writer.clone();
        tokio::spawn(async move {
            writer
                .run(|tx| -> Result<(), WriteError> {
                    tx.execute("insert into notes values (1000)", [])?;
                    panic!("a defect")
                })
                .await
        })
    };
    let_go.send(()).expect("the holder waits");
    for job in jobs {
        let (n, result) = job.await.expect("no panic");
        assert_eq!(result.is_ok(), n != 5, "{n}: {result:?}");
    }
    let panicked = panicking.await.expect("the panic stays inside");
    assert!(matches!(panicked, Err(WriteError::Panicked(text)) if text.contains("a defect")));
    holder.join().expect("the holder ends");
    assert_eq!(notes(&fixture), (0..50).collect::<Vec<_>>(), "all but the two that failed");
    let commits = *writer.commits().borrow() - before;
    assert!((1..20).contains(&commits), "52 jobs took {commits} commits");
    note(&writer, 77).await.expect("the writer goes on");
}

/// A lock that is away for a while is waited for; nobody sees SQLITE_BUSY.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_database_is_waited_for() {
    let (fixture, writer) = make().await;
    let (let_go, holder) = hold(&fixture);
    let began = Instant::now();
    let job = tokio::spawn(async move { note(&writer, 1).await });
    tokio::time::sleep(Duration::from_millis(300)).await; // pace: the lock stays away for a while
    assert!(!job.is_finished());
    let_go.send(()).expect("the holder waits");
    job.await.expect("no panic").expect("written after all");
    assert!(began.elapsed() < Duration::from_secs(30));
    holder.join().expect("the holder ends");
}

/// What is dropped by its caller is done all the same, and closing waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_what_was_sent() {
    let (fixture, writer) = make().await;
    let (let_go, holder) = hold(&fixture);
    let impatient = tokio::time::timeout(Duration::from_millis(50), note(&writer, 1)).await;
    assert!(impatient.is_err(), "the lock is away");
    let_go.send(()).expect("the holder waits");
    writer.close().await;
    assert_eq!(notes(&fixture), [1]);
    holder.join().expect("the holder ends");
}

/// A database that is full rolls everything back by itself: everybody in the group is told, nobody hears
/// `Ok`.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_told_to_everybody_and_nothing_is_half_written() {
    let directory = TestDir::make();
    let path = directory.path().join("small.db");
    let connection = connect(&path);
    connection
        .execute_batch("pragma journal_mode = wal; create table notes (n integer primary key, t text)")
        .expect("a table");
    connection.pragma_update(None, "max_page_count", 20).expect("a limit");
    let writer = Writer::on(connection);
    let mut written = 0;
    let error = loop {
        let text = "x".repeat(4_000);
        let sql = "insert into notes (t) values (?1)";
        match writer.run(move |tx| tx.execute(sql, [text]).map_err(WriteError::from)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "the limit holds");
    };
    let WriteError::Store(error) = error else { panic!("{error}") };
    assert!(error.is_transient() && error.is_outcome_known(), "{error}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let reader = connect(&path);
    let count: i64 = reader.query_row("select count(*) from notes", [], |row| row.get(0)).expect("a count");
    assert_eq!(count, written);
    writer.run(|tx| tx.execute("delete from notes", []).map_err(WriteError::from)).await.expect("it goes on");
}

/// A process whose writer never rests leaves room for others, who wait with SQLite's own handler.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_never_rests_lets_others_through() {
    let (fixture, writer) = make().await;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy: Vec<_> = (0..8)
        .map(|lane: i64| {
            let (writer, stop) = (writer.clone(), std::sync::Arc::clone(&stop));
            tokio::spawn(async move {
                let mut n = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    note(&writer, lane * 1_000_000 + n).await.expect("written");
                }
                n
            })
        })
        .collect();
    let path = fixture.path();
    let slowest = tokio::task::spawn_blocking(move || {
        let mut connection = connect(&path);
        let mut slowest = Duration::ZERO;
        for n in 0..60 {
            let began = Instant::now();
            let tx = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .expect("the lock, in time");
            tx.execute("insert into notes values (?1)", [-1 - n]).expect("an insert");
            tx.commit().expect("committed");
            slowest = slowest.max(began.elapsed());
        }
        slowest
    });
    let slowest = slowest.await.expect("no panic");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut written = 0;
    for task in busy {
        written += task.await.expect("no panic");
    }
    assert!(slowest < Duration::from_secs(15), "an insert beside {written} others took {slowest:?}");
    assert_eq!(notes(&fixture).len() as i64, written + 60);
}
