//! Cursors written by hand: nothing is skipped, former owners are fenced, audits balance.

use crate::admin::somebody;
use crate::reader::{Reader, settle};
use crate::setting::{Setting, connect};
use posthaste::Timestamp;
use posthaste::admin::{Admin, AdminError, RewindTo};
use posthaste::store::{Store, StoreError};
use posthaste_postgres::Retention;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Version;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Numbers of all committed rows.
async fn committed(setting: &Setting) -> BTreeSet<i64> {
    let rows = setting.client.query("select seq from posthaste.outbox", &[]).await.expect("readable");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_straggler_survives_every_change_of_the_lane_count() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    let mut seen = BTreeSet::new();
    let mut reader = Reader::join(&setting.config, "r0", "s").await;
    for (round, lanes) in [4u16, 3, 7, 1, 256, 2].into_iter().enumerate() {
        let straggler = connect(&setting.database.url()).await;
        let late = "begin; insert into posthaste.outbox (topic, key) select 't', 'late' || n from generate_series(1, 50) n";
        straggler.batch_execute(late).await.expect("appended");
        setting.append("t", 200).await;
        seen.extend(reader.drain().await);
        admin.set_lanes(lanes, &somebody()).await.expect("permitted");
        straggler.batch_execute("commit").await.expect("committed");
        reader = Reader::join(&setting.config, &format!("r{}", round + 1), "s").await;
        assert_eq!(reader.lanes(), usize::from(lanes));
    }
    seen.extend(reader.drain().await);
    assert_eq!(seen, committed(&setting).await);
    assert_eq!(setting.number("select count(*) from posthaste.audit where action = 'lanes'").await, 6);
    let ranges = "select count(*) from generate_series(0, 1023) s where (select count(*) from posthaste.lanes where s between slot_from and slot_to) <> 1";
    assert_eq!(setting.number(ranges).await, 0, "each slot has one lane");
}

#[tokio::test]
async fn whoever_held_a_lane_is_fenced() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    admin.set_lanes(4, &somebody()).await.expect("before any relay: remembered");
    let reader = Reader::join(&setting.config, "r", "s").await;
    assert_eq!(reader.lanes(), 4);
    setting.append("t", 100).await;
    let read = reader.read().await;
    // Two lanes vanish, two live on under the same number.
    admin.set_lanes(2, &somebody()).await.expect("permitted");
    for (lease, page, _) in &read {
        let lost = settle(lease, *page).await;
        assert!(matches!(lost, Err(StoreError::LeaseLost(_))), "{lost:?}");
    }
    let mut next = Reader::join(&setting.config, "q", "s").await;
    let read = next.read().await;
    admin.rewind("s", RewindTo::Earliest, &somebody()).await.expect("permitted");
    for (lease, page, _) in &read {
        let lost = settle(lease, *page).await;
        assert!(matches!(lost, Err(StoreError::LeaseLost(_))), "{lost:?}");
    }
    next.take().await.expect("sound");
    assert_eq!(next.drain().await.len(), 100);
}

#[tokio::test]
async fn splitting_lanes_repeats_nothing() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 300).await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    assert_eq!(reader.drain().await.len(), 300);
    setting.admin().await.set_lanes(8, &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    assert_eq!(reader.drain().await, Vec::<i64>::new());
    setting.append("t", 300).await;
    assert_eq!(reader.drain().await.len(), 300);
}

#[tokio::test]
async fn a_wrong_number_of_lanes_is_refused_and_the_same_one_does_nothing() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    for wrong in [0, 257] {
        let refused = admin.set_lanes(wrong, &somebody()).await;
        assert!(matches!(refused, Err(AdminError::Invalid { .. })), "{refused:?}");
    }
    let reader = Reader::join(&setting.config, "r", "s").await;
    setting.append("t", 3).await;
    admin.set_lanes(1, &somebody()).await.expect("as it is");
    for (lease, page, _) in reader.read().await {
        settle(&lease, page).await.expect("nobody was fenced");
    }
}

/// The snapshot of now would show the straggler's row, call it handled, and skip it.
#[tokio::test]
async fn a_rewind_keeps_late_rows_below_its_target() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 10).await;
    let straggler = connect(&setting.database.url()).await;
    straggler
        .batch_execute("begin; insert into posthaste.outbox (topic) values ('late')")
        .await
        .expect("appended");
    setting.append("t", 10).await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    assert_eq!(reader.drain().await.len(), 20);
    straggler.batch_execute("commit").await.expect("committed");
    setting.admin().await.rewind("s", RewindTo::Seq(15), &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    let mut again = reader.drain().await;
    again.sort_unstable();
    assert_eq!(again, [11, 16, 17, 18, 19, 20, 21], "the late one, and what lies behind the target");
}

#[tokio::test]
async fn rewinding_to_a_time_sends_everything_since() {
    let setting = require_service!(Setting::new().await);
    setting
        .run("insert into posthaste.outbox (topic, appended_at) select 't', timestamptz '2026-01-01' + n * interval '1 h' from generate_series(1, 9) n")
        .await;
    // Clocks are set by some seconds: a later number may be older.
    setting.run("update posthaste.outbox set appended_at = '2026-01-01 06:59:30' where seq = 8").await;
    let admin = setting.admin().await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    assert_eq!(reader.drain().await.len(), 9);
    let micros =
        setting.number("select (extract(epoch from timestamptz '2026-01-01 07:00') * 1000000)::bigint").await;
    admin.rewind("s", RewindTo::Time(Timestamp(micros)), &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    assert_eq!(reader.drain().await, [7, 8, 9]);
    let never = admin.rewind("s", RewindTo::Time(Timestamp(4_102_444_800_000_000)), &somebody()).await;
    assert!(matches!(never, Err(AdminError::Conflict { .. })), "{never:?}");
}

/// The place is found by halving: what is read of the log does not grow with it.
#[tokio::test]
async fn a_time_is_found_without_walking_the_log() {
    require_service!(Version::V15.or_newer("an older one tells its statistics late"));
    let setting = require_service!(Setting::new().await);
    // A tenth of a second between two events, and one whose clock was half a minute ahead.
    setting
        .run(
            "insert into posthaste.outbox (topic, appended_at)
             select 't', timestamptz '2026-01-01 00:00:00Z' + n * interval '100 ms'
                         + case when n = 149000 then interval '30 s' else interval '0' end
               from generate_series(1, 200000) n; analyze posthaste.outbox",
        )
        .await;
    setting.sink("s", 1, "").await;
    let read =
        "select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint from pg_stat_user_tables
                 where relname like 'outbox\\__'";
    let first = 1_767_225_600_000_000;
    for (n, expected) in [(150_000, 149_999), (149_100, 148_999), (1, 0), (199_999, 199_998)] {
        let before = setting.number(read).await;
        let admin = setting.admin().await;
        let to = RewindTo::Time(Timestamp(first + n * 100_000));
        admin.rewind("s", to, &somebody()).await.expect("permitted");
        drop(admin);
        setting.until_alone().await;
        let last = "select position from posthaste.receipts where sink = 's' order by n desc limit 1";
        assert_eq!(setting.number(last).await, expected, "{n}");
        let rows = setting.number(read).await - before;
        assert!((1..5_000).contains(&rows), "{rows} rows were read for {n}");
        // Forward again, for the next one.
        setting.run("delete from posthaste.receipts where n > 1; update posthaste.lanes set epoch = 0").await;
    }
}

#[tokio::test]
async fn a_rewind_never_goes_forward() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 10).await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    reader.drain().await;
    setting.append("t", 10).await;
    let admin = setting.admin().await;
    let forward = admin.rewind("s", RewindTo::Seq(15), &somebody()).await;
    assert!(
        matches!(&forward, Err(AdminError::Conflict { message: text, .. }) if text.contains("10")),
        "{forward:?}"
    );
    let unknown = admin.rewind("t", RewindTo::Earliest, &somebody()).await;
    assert!(matches!(unknown, Err(AdminError::NotFound { .. })), "{unknown:?}");
    let negative = admin.rewind("s", RewindTo::Seq(-1), &somebody()).await;
    assert!(matches!(negative, Err(AdminError::Invalid { .. })), "{negative:?}");
    assert_eq!(reader.drain().await.len(), 10, "nobody was fenced");
}

#[tokio::test]
async fn a_rewind_opens_audited_segments_again() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 1).await;
    Reader::join(&setting.config, "r", "s").await.drain().await;
    setting.run("update posthaste.segments set closing = segment = 1, audit_note = case segment when 2 then 'off by one' end").await;
    setting.admin().await.rewind("s", RewindTo::Earliest, &somebody()).await.expect("permitted");
    assert_eq!(
        setting
            .number("select count(*) from posthaste.segments where closing or audit_note is not null")
            .await,
        0
    );
}

/// The double entry counts from the base that a rewind or another lane count wrote.
#[tokio::test]
async fn segments_are_truncated_after_rewinds_and_relanes() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    let mut config = setting.config.clone();
    config.retention =
        Retention { events: Duration::ZERO, turn_after: Duration::ZERO, ..Retention::default() };
    let mut reader = Reader::join(&config, "r", "s").await;
    setting.append("t", 100).await;
    reader.drain().await;
    admin.set_lanes(3, &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    setting.append("t", 100).await;
    reader.drain().await;
    admin.rewind("s", RewindTo::Seq(42), &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    assert_eq!(reader.drain().await.len(), 158);
    admin.set_lanes(2, &somebody()).await.expect("permitted");
    reader.take().await.expect("sound");
    setting.append("t", 10).await;
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        reader.drain().await;
        let swept = reader.store.sweep().await.expect("swept");
        assert_eq!(
            swept.audit_failures,
            0,
            "{}",
            setting.text("select string_agg(audit_note, '; ') from posthaste.segments").await
        );
        if setting.number("select count(*) from posthaste.outbox where seq <= 210").await == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "not truncated");
        // A quiet cursor's snapshot ages: something must move it past the seal.
        setting.append("t", 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lane_counts_change_under_load() {
    let setting = require_service!(Setting::new().await);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let (url, stop) = (setting.database.url(), Arc::clone(&stop));
            tokio::spawn(async move {
                let client = connect(&url).await;
                let mut round = n;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let rows = 1 + round * 7 % 40;
                    // pace: some roll back, some stay open with their numbers drawn.
                    let sleep = if round % 9 == 0 { "select pg_sleep(0.15);" } else { "" };
                    let end = if round % 5 == 0 { "rollback" } else { "commit" };
                    let sql = format!(
                        "begin; insert into posthaste.outbox (topic, key) select 't', 'k' || g from generate_series(1, {rows}) g; {sleep} {end}"
                    );
                    client.batch_execute(&sql).await.expect("appended");
                }
            })
        })
        .collect();
    let admin = setting.admin().await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    let mut seen = BTreeSet::new();
    let end = Instant::now() + Duration::from_secs(4);
    let lanes = [2u16, 5, 1, 3, 8, 4];
    for round in 0.. {
        // A slow machine is given the time for it to be a load.
        if Instant::now() > end && seen.len() > 600 {
            break;
        }
        assert!(Instant::now() < end + Duration::from_secs(120), "{} seen", seen.len());
        // The count changes while pages are read and not settled.
        let read = reader.read().await;
        if round % 3 == 0 {
            admin.set_lanes(lanes[round / 3 % lanes.len()], &somebody()).await.expect("permitted");
        }
        for (lease, page, seqs) in read {
            match settle(&lease, page).await {
                Ok(()) => seen.extend(seqs),
                Err(StoreError::LeaseLost(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        reader.take().await.expect("sound");
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("no panic");
    }
    seen.extend(reader.drain().await);
    let committed = committed(&setting).await;
    assert!(committed.len() > 500, "{}", committed.len());
    let lost: Vec<_> = committed.difference(&seen).collect();
    assert!(lost.is_empty(), "{} of {} lost: {lost:?}", lost.len(), committed.len());
}
