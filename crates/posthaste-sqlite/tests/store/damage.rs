//! Files that are not what they should be: a clear message, and nothing overwritten.

use crate::fixture::{SqliteFixture, TestDir, connect};
use posthaste::Event;
use posthaste::admin::Admin;
use posthaste::route::Filter;
use posthaste::sink::Level;
use posthaste::store::{JoinPlan, LaneId, PageLimit, Settlement, SinkPlan, StartAt, Store, StoreError};
use posthaste_sqlite::{SqliteAdmin, SqliteConfig, SqliteStore, append, migrate};
use posthaste_testkit::services::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn plan() -> JoinPlan {
    JoinPlan {
        relay: "a".into(),
        sinks: vec![SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Earliest }],
        routes: "{}".to_owned(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(30),
    }
}

fn append_some(path: &Path, count: usize) {
    let mut connection = connect(path);
    let tx = connection.transaction().expect("begin");
    for n in 0..count {
        append(&tx, &Event::new("t", vec![b'x'; 600]).with_key(n.to_string())).expect("appended");
    }
    tx.commit().expect("committed");
}

async fn refusal(path: &Path) -> StoreError {
    match SqliteStore::connect(SqliteConfig::new(path)).await {
        Ok(_) => panic!("the store opened {}", path.display()),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_missing_file_is_not_made_by_the_relay() {
    let directory = TestDir::make();
    let path = directory.path().join("nothing.db");
    let error = refusal(&path).await;
    assert!(matches!(error, StoreError::Fatal { .. }), "{error:?}");
    assert!(error.to_string().contains("migrate up"), "{error}");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_left_as_it_is() {
    let directory = TestDir::make();
    let path = directory.path().join("letter.txt");
    let text = "Dear Sir or Madam, ".repeat(300);
    fs::write(&path, &text).expect("a file");
    for error in [refusal(&path).await, migrate::up(&SqliteConfig::new(&path)).expect_err("no database")] {
        assert!(matches!(error, StoreError::Fatal { .. }), "{error:?}");
        assert!(error.to_string().contains("no SQLite database"), "{error}");
    }
    assert_eq!(fs::read_to_string(&path).expect("the file"), text);
    let findings = SqliteAdmin::new(SqliteConfig::new(&path)).doctor().await.expect("a diagnosis");
    assert!(findings.iter().any(|finding| finding.check == "file" && finding.level == Level::Fail));
}

#[tokio::test]
async fn a_database_without_an_outbox_is_told() {
    let directory = TestDir::make();
    let path = directory.path().join("app.db");
    connect(&path)
        .execute_batch("pragma journal_mode = wal; create table orders (id integer)")
        .expect("a table");
    let error = refusal(&path).await;
    assert!(error.to_string().contains("migrate up"), "{error}");
}

/// Pages overwritten in the middle: the lane stops with words, `doctor` says it, and the bytes are still
/// there.
#[tokio::test]
async fn a_damaged_file_is_told_and_not_overwritten() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    append_some(&fixture.path(), 2_000);
    let connection = connect(&fixture.path());
    connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).expect("a checkpoint");
    drop(connection);
    let mut bytes = fs::read(fixture.path()).expect("the file");
    let (from, to) = (bytes.len() / 3, bytes.len() - 4_096);
    bytes[from..to].fill(0xa5);
    fs::write(fixture.path(), &bytes).expect("damaged");
    let store = SqliteStore::connect(fixture.config()).await.expect("its head is sound");
    let outcome = async {
        store.join(&plan()).await?;
        let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await?.expect("free");
        loop {
            if lease.read(PageLimit { events: 100, bytes: 1 << 20 }).await?.events.is_empty() {
                return Ok(());
            }
        }
    };
    let error: StoreError = outcome.await.expect_err("the damage is found");
    assert!(matches!(error, StoreError::Broken { .. }), "{error:?}");
    assert!(error.to_string().contains("damaged") && error.to_string().contains("backup"), "{error}");
    let findings = SqliteAdmin::new(fixture.config()).doctor().await.expect("a diagnosis");
    assert!(
        findings.iter().any(|finding| finding.check == "integrity" && finding.level == Level::Fail),
        "{findings:?}"
    );
    drop(store);
    let after = fs::read(fixture.path()).expect("the file");
    assert_eq!(after[from..to], bytes[from..to], "what was there is there");
}

/// The rights of a user without any: root may write everything, so this asks SQLite to refuse.
#[tokio::test]
async fn a_read_only_file_is_told() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    append_some(&fixture.path(), 3);
    connect(&fixture.path())
        .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
        .expect("a checkpoint");
    let before = fs::read(fixture.path()).expect("the file");
    if rustix::process::geteuid().is_root() {
        // Root writes read-only files; an immutable mount is not to be had everywhere. The judgement itself
        // is tested in error.rs; here the statement that fails is a real one.
        let connection =
            rusqlite::Connection::open_with_flags(fixture.path(), rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
                .expect("opened");
        let writer = posthaste_sqlite::writer::Writer::on(connection);
        let outcome = writer
            .run(|tx| {
                tx.execute("delete from posthaste_outbox", [])
                    .map_err(posthaste_sqlite::writer::WriteError::from)
            })
            .await
            .expect_err("read-only");
        assert!(outcome.to_string().contains("read-only"), "{outcome}");
    } else {
        fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o444)).expect("read-only");
        let store = SqliteStore::connect(fixture.config()).await;
        let error = match store {
            Ok(store) => store.join(&plan()).await.expect_err("read-only"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(fs::read(fixture.path()).expect("the file"), before);
}

/// A database that has reached its largest size: settlements wait, nothing is lost, and it goes on when there
/// is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing() {
    let directory = TestDir::make();
    let Some(disk) = SmallDisk::mount(directory.path()) else {
        skip("a_full_disk_loses_nothing", "no small disk can be mounted here");
        return;
    };
    let config = SqliteConfig::new(disk.path.join("orders.db"));
    migrate::up(&config).expect("the migration applies");
    append_some(&config.path, 50);
    let store = SqliteStore::connect(config.clone()).await.expect("the store opens");
    store.join(&plan()).await.expect("joined");
    let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("answered").expect("free");
    let page = lease.read(PageLimit { events: 1_000, bytes: 1 << 20 }).await.expect("read");
    assert_eq!(page.events.len(), 50);
    let ballast = disk.path.join("ballast");
    disk.fill(&ballast);
    let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
    let mut error = None;
    for _ in 0..200 {
        match lease.settle(&settlement).await {
            Err(full) => {
                error = Some(full);
                break;
            }
            // The log had room left: use it up.
            Ok(()) => append_until_full(&config.path),
        }
    }
    let error = match error {
        Some(error) => error,
        None => lease.take_in_hand(Some(1)).await.expect_err("there is no room"),
    };
    assert!(error.is_transient(), "{error:?}");
    assert!(
        error.to_string().contains("disk is full") || error.to_string().contains("file system"),
        "{error}"
    );
    fs::remove_file(&ballast).expect("room again");
    lease.take_in_hand(None).await.expect("it goes on by itself");
    lease.settle(&settlement).await.expect("settled");
    append_some(&config.path, 1);
}

fn append_until_full(path: &Path) {
    let mut connection = connect(path);
    for _ in 0..10_000 {
        let tx = connection.transaction().expect("begin");
        let appended = append(&tx, &Event::new("t", vec![b'x'; 600]));
        if appended.is_err() || tx.commit().is_err() {
            return;
        }
    }
}

/// A file system of two megabytes, where that is permitted.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn mount(directory: &Path) -> Option<Self> {
        let path = directory.join("disk");
        fs::create_dir(&path).expect("a directory");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
            .arg(&path)
            .stderr(std::process::Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self { path })
    }

    fn fill(&self, ballast: &Path) {
        use std::io::Write;
        let mut file = fs::File::create(ballast).expect("a file");
        while file.write_all(&[0; 4_096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
