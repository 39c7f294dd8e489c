//! A disk that is full: appends fail with the database's own words, the relay waits, and when there is room
//! again everything goes on by itself.
//!
//! The outbox lives in a tablespace on a file system of a few megabytes, in memory. Making one takes the
//! rights of an administrator; without them this is a skip.

use crate::ledger::{assert_key_order, missing};
use crate::load::connect;
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, assert_blameless, await_all, await_settled, blame, config, log};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, ServiceError, Version};
use rustix::process::Signal;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::process::Command;
use tokio_postgres::error::SqlState;

/// Room for an empty database, the outbox, and some hundred events.
const SIZE: &str = "size=24m";
const APPEND: &str = "select posthaste.append('t', 'x'::text, 'key-' || $1::bigint % 40)";

/// A small file system.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(server: &Postgres) -> Result<Self, ServiceError> {
        let path = std::env::temp_dir().join(format!("posthaste-disk-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&path).expect("a directory");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(&path).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            let _ = std::fs::remove_dir(&path);
            let why = format!("mounting a tmpfs is not permitted: {mounted:?}");
            return Err(ServiceError::Missing { service: "a small disk".to_owned(), why });
        }
        let owner = std::fs::metadata(server.data_dir()).expect("the data directory");
        chown(&path, Some(owner.uid()), Some(owner.gid())).expect("the server's own");
        Ok(Self { path })
    }

    /// Takes all the room there is.
    fn fill(&self) {
        let mut size = 1 << 20;
        for n in 0.. {
            // What does not fit any more is cut off; the last ones take single pages.
            if std::fs::write(self.path.join(format!("ballast-{n}")), vec![0; size]).is_err() {
                if size <= 4_096 {
                    return;
                }
                size /= 2;
            }
        }
    }

    fn make_room(&self) {
        for entry in std::fs::read_dir(&self.path).expect("the disk").flatten() {
            if entry.file_name().to_string_lossy().starts_with("ballast") {
                std::fs::remove_file(entry.path()).expect("ballast");
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the server may still be there.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_waited_for_and_nothing_is_lost() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let disk = require_service!(SmallDisk::mount(&server));
    let admin = server.admin().await.expect("the server answers");
    let space = format!("create tablespace small location '{}'", disk.path.display());
    admin.batch_execute(&space).await.expect("a tablespace");
    admin.batch_execute("create database shop tablespace small").await.expect("a database");
    let url = server.url_for("shop", "postgres");
    let site = Site::new();
    // Many small settlements: their receipts need room soon.
    let small = "page_events_max = 20\nmax_unsettled_events = 40";
    site.write("posthaste.toml", &config(&url, small, "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&url).await;
    let relay = site.start("posthaste.toml");
    client.query(APPEND, &[&0_i64]).await.expect("there is room");
    eventually("it delivers", WAIT, || async { (site.file.len() == 1).then_some(()) }).await;

    // A backlog that the relay meets when there is no room any more.
    relay.signal(Signal::STOP);
    let backlog = "select posthaste.append('t', 'x'::text, 'key-' || g % 40) from generate_series(1, 3000) g";
    client.batch_execute(backlog).await.expect("there is room");
    disk.fill();
    relay.signal(Signal::CONT);
    let (mut appended, mut refused) = (3_001_i64, 0);
    let deadline = tokio::time::Instant::now() + WAIT;
    // Pages that are there take a little more: until the application has met the end, too.
    while refused == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the disk is not full");
        match client.query(APPEND, &[&appended]).await {
            Ok(_) => appended += 1,
            Err(error) => {
                assert_eq!(error.code(), Some(&SqlState::DISK_FULL), "an append says what it is: {error:?}");
                refused += 1;
            }
        }
    }
    relay.says("No space left on device").await;
    eprintln!("full disk: {appended} appended, {} delivered", site.file.distinct());

    disk.make_room();
    for n in 0..200_i64 {
        client.query(APPEND, &[&n]).await.expect("there is room again");
    }
    await_all(&client, &site.file, "after a full disk").await;
    await_settled(&client).await;
    let log = log(&client).await;
    assert_eq!((log.len() as i64, missing(&log, &site.file)), (appended + 200, 0), "G1, G2");
    assert_key_order(&log, &site.file, "full disk");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "full disk");
    relay.stop().await;
}
