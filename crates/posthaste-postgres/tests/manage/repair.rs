//! A database that went back in time, or is another one: lanes stop, a repair re-bases them, nothing is
//! skipped.

use crate::admin::somebody;
use crate::reader::{Reader, settle};
use crate::setting::{Setting, connect, number};
use posthaste::admin::{Admin, AdminError, RewindTo};
use posthaste::route::{Filter, Pattern};
use posthaste::sink::Level;
use posthaste::store::{Store, StoreError};
use posthaste_postgres::{PostgresAdmin, PostgresConfig, migrate};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, ServiceError, TestDatabase, Version};
use std::collections::BTreeSet;
use std::process::Stdio;
use tokio_postgres::Client;

/// Commits this many transactions, so that xids are far above those of a fresh server.
async fn burn(client: &Client, transactions: i64) {
    let sql = format!(
        "do $$ begin for n in 1..{transactions} loop perform pg_current_xact_id(); commit; end loop; end $$"
    );
    client.batch_execute(&sql).await.expect("burnt");
}

/// Copies a database to another server with pg_dump and psql.
async fn dump_and_restore(from: &str, to: &str) {
    let command =
        format!("pg_dump --no-owner --no-privileges '{from}' | psql -X -q -v ON_ERROR_STOP=1 '{to}'");
    let output = tokio::process::Command::new("bash")
        .args(["-o", "pipefail", "-c", &command])
        .stdout(Stdio::null())
        .output()
        .await
        .expect("bash is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A server with high xids, and one with low ones that has a copy of its outbox.
struct Restored {
    source: Setting,
    database: TestDatabase,
    config: PostgresConfig,
    client: Client,
    _servers: [Postgres; 2],
}

/// `before` runs on the source, between its set-up and the dump.
async fn restored(before: impl AsyncFnOnce(&Setting)) -> Result<Restored, ServiceError> {
    let options = PostgresOptions::default();
    // The version of Debian's pg_dump, which takes no newer one.
    let servers =
        [Postgres::start(Version::V15, &options).await?, Postgres::start(Version::V15, &options).await?];
    let source = Setting::on(TestDatabase::create_on(&servers[0]).await?).await?;
    burn(&source.client, 20_000).await;
    before(&source).await;
    let database = TestDatabase::create_on(&servers[1]).await?;
    dump_and_restore(&source.database.url(), &database.url()).await;
    let client = database.connect().await?;
    let config = PostgresConfig::new(database.url());
    Ok(Restored { source, database, config, client, _servers: servers })
}

#[tokio::test]
async fn a_restored_dump_goes_on_where_it_was() {
    let restored = require_service!(
        restored(async |source: &Setting| {
            source.append("t", 100).await;
            let mut reader = Reader::join(&source.config, "r", "s").await;
            reader.drain().await;
            source.append("t", 20).await;
            // Read and not settled: the dump must send it again.
            let read = reader.read().await;
            assert_eq!(read[0].2.len(), 20);
        })
        .await
    );
    let (config, client) = (&restored.config, &restored.client);
    let admin = PostgresAdmin::connect(config.clone()).await.expect("the same version");
    let found = admin.doctor().await.expect("answers");
    let elsewhere = found.iter().find(|finding| finding.check == "xids_from_elsewhere").expect("checked");
    assert_eq!(elsewhere.level, Level::Fail, "{}", elsewhere.text);

    // New events come before anybody notices.
    client
        .batch_execute("insert into posthaste.outbox (topic) select 'new' from generate_series(1, 5)")
        .await
        .expect("appended");
    let stopped = Reader::try_join(config, "early", "s").await.map(drop);
    assert!(
        matches!(&stopped, Err(StoreError::Broken { message: text, .. }) if text.contains("lanes repair")),
        "{stopped:?}"
    );

    let said = admin.repair("s", &somebody()).await.expect("the owner may");
    assert!(said.contains("0 events are sent again") && said.contains("120 rows"), "{said}");
    let mut reader = Reader::join(config, "q", "s").await;
    let seqs: BTreeSet<i64> = reader.drain().await.into_iter().collect();
    assert_eq!(seqs.iter().next(), Some(&101), "what was handled is not sent again");
    let expected = number(client, "select count(*) from posthaste.outbox where seq > 100").await;
    assert_eq!((seqs.len() as i64, expected), (25, 25));

    // When xids catch up with those of the dump, nothing comes back.
    burn(client, 25_000).await;
    client.batch_execute("insert into posthaste.outbox (topic) values ('last')").await.expect("appended");
    assert_eq!(reader.drain().await.len(), 1);
    assert_eq!(Reader::join(config, "p", "s").await.drain().await, Vec::<i64>::new());
    let sound = admin.doctor().await.expect("answers");
    assert!(sound.iter().all(|finding| finding.check != "xids_from_elsewhere" || finding.level == Level::Ok));
    let again = admin.repair("s", &somebody()).await;
    assert!(matches!(again, Err(AdminError::Conflict { .. })), "{again:?}");
    assert_eq!(number(client, "select count(*) from posthaste.audit where action = 'repair'").await, 1);
    assert!(restored.source.database.name() != restored.database.name());
}

/// A row that was late in the source, committed before the dump and read by nobody, is one the restored
/// cursor has not handled, although its number is below the position.
#[tokio::test]
async fn a_late_row_of_the_dump_is_not_lost() {
    let restored = require_service!(
        restored(async |source: &Setting| {
            source.append("t", 50).await;
            let straggler = connect(&source.database.url()).await;
            straggler.batch_execute("begin; insert into posthaste.outbox (topic) values ('late')").await.expect("appended");
            source.append("t", 50).await;
            for sink in ["a", "b"] {
                source.sink(sink, 2, "").await;
            }
            // One of two sinks has seen it.
            straggler.batch_execute("commit").await.expect("committed");
            source.run("insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
                        select 'b', lane, 2, 0, 'settle', 0, 101, pg_current_snapshot() from generate_series(0, 1) lane").await;
        })
        .await
    );
    let admin = PostgresAdmin::connect(restored.config.clone()).await.expect("the same version");
    let said = admin.repair("b", &somebody()).await.expect("the owner may");
    assert!(said.contains("b 0"), "{said}");
    let sql =
        "select distinct on (sink, lane) sink, position from posthaste.receipts order by sink, lane, n desc";
    let rows = restored.client.query(sql, &[]).await.expect("readable");
    let positions: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let slot =
        number(&restored.client, "select slot::bigint from posthaste.outbox where topic = 'late'").await;
    for (sink, position) in &positions {
        assert!(sink == "a" || *position == 101, "{positions:?}");
    }
    // The lane of a that the late row belongs to goes back before it; the other one need not.
    let late_lane = usize::from(slot >= 512);
    assert_eq!((positions[late_lane].1, positions[1 - late_lane].1), (50, 101), "{positions:?}");
}

#[tokio::test]
async fn a_sequence_that_went_back_sends_everything_again() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 100).await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    reader.drain().await;
    let owned = reader.read().await;
    setting.run("select setval('posthaste.outbox_seq', 40)").await;
    // Numbers that cursors have passed are drawn again, into another segment.
    setting.run("select setval('posthaste.outbox_segment', 2); insert into posthaste.outbox (topic) select 'new' from generate_series(1, 10); select setval('posthaste.outbox_segment', 1)").await;
    let admin = setting.admin().await;
    let said = admin.repair("s", &somebody()).await.expect("the owner may");
    assert!(said.contains("110 events are sent again") && said.contains("from 50 to 10100"), "{said}");
    let fenced = settle(&owned[0].0, owned[0].1).await;
    assert!(matches!(fenced, Err(StoreError::LeaseLost(_))), "{fenced:?}");
    setting.append("t", 1).await;
    assert_eq!(setting.number("select max(seq) from posthaste.outbox").await, 10_101);
    let mut next = Reader::join(&setting.config, "q", "s").await;
    assert_eq!(next.drain().await.len(), 111);
}

/// The audit of a repair may be an event: its number is drawn from the sequence as it is afterwards.
#[tokio::test]
async fn g2_the_audit_of_a_repair_is_read_like_any_event() {
    let setting = require_service!(Setting::new().await);
    let config = PostgresConfig { audit_topic: Some("sys.audit.v1".to_owned()), ..setting.config.clone() };
    migrate::up(&config, &setting.roles).await.expect("a superuser may");
    setting.append("t", 100).await;
    let mut reader = Reader::join(&setting.config, "r", "s").await;
    assert_eq!(reader.drain().await.len(), 100);
    setting.run("select setval('posthaste.outbox_seq', 40)").await;
    setting.admin().await.repair("s", &somebody()).await.expect("the owner may");
    let line = "select seq from posthaste.outbox where topic = 'sys.audit.v1'";
    assert!(setting.number(line).await > 10_000);
    let mut next = Reader::join(&setting.config, "q", "s").await;
    assert_eq!(next.drain().await.len(), 101, "all of it once more, and the line");
}

async fn reader_of(setting: &Setting, name: &str, topic: &str) -> Reader {
    let filter = Filter::Any(vec![Pattern::new(topic)]);
    Reader::try_join_for(&setting.config, name, "s", filter).await.expect("lanes are sound")
}

/// Routes that changed long ago: what they took was delivered under them, and no route of today would take
/// it. A lane that goes back reads by the routes in force.
#[tokio::test]
async fn after_a_change_of_routes_lanes_go_back_by_the_routes_in_force() {
    // A server of its own: transactions of other tests would look like some of the time before.
    let server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let database = require_service!(TestDatabase::create_on(&server).await);
    let setting = require_service!(Setting::on(database).await);
    setting.append("old", 30).await;
    let mut former = reader_of(&setting, "former", "old").await;
    assert_eq!(former.drain().await.len(), 30);
    former.store.leave().await.expect("left");
    drop(former);
    let mut present = reader_of(&setting, "present", "new").await;
    for _ in 0..3 {
        setting.append("new", 5).await;
        assert_eq!(present.drain().await.len(), 5);
    }
    let admin = setting.admin().await;
    setting.run("select setval('posthaste.outbox_seq', 40)").await;
    let said = admin.repair("s", &somebody()).await.expect("the owner may");
    assert!(said.contains("15 events are sent again"), "{said}");
    present.take().await.expect("sound");
    let again = present.drain().await;
    assert_eq!(again, (31..=45).collect::<Vec<i64>>());
    admin.rewind("s", RewindTo::Earliest, &somebody()).await.expect("permitted");
    present.take().await.expect("sound");
    assert_eq!(present.drain().await, again, "a rewind too");
}

/// The other side: while a transaction of the time before is open, its events are still to come.
#[tokio::test]
async fn what_former_routes_took_and_is_not_handled_yet_is_read_after_a_repair() {
    let setting = require_service!(Setting::new().await);
    setting.append("old", 30).await;
    let straggler = connect(&setting.database.url()).await;
    straggler
        .batch_execute("begin; insert into posthaste.outbox (topic) values ('old')")
        .await
        .expect("appended");
    let mut former = reader_of(&setting, "former", "old").await;
    assert_eq!(former.drain().await.len(), 30);
    former.store.leave().await.expect("left");
    drop(former);
    let mut present = reader_of(&setting, "present", "new").await;
    for _ in 0..3 {
        setting.append("new", 5).await;
        assert_eq!(present.drain().await.len(), 5);
    }
    setting.run("select setval('posthaste.outbox_seq', 40)").await;
    setting.admin().await.repair("s", &somebody()).await.expect("the owner may");
    straggler.batch_execute("commit").await.expect("committed");
    present.take().await.expect("sound");
    assert!(present.drain().await.contains(&31), "the straggler's event is not skipped");
}

#[tokio::test]
async fn a_lane_without_a_receipt_is_given_one() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 5).await;
    setting.sink("s", 1, "").await;
    setting.run("delete from posthaste.receipts").await;
    setting.admin().await.repair("s", &somebody()).await.expect("the owner may");
    assert_eq!(setting.number("select position from posthaste.receipts").await, 0);
}

#[tokio::test]
async fn a_repair_without_the_owners_rights_says_so_and_changes_nothing() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 100).await;
    setting.sink("s", 1, "").await;
    setting.run("select setval('posthaste.outbox_seq', 40); update posthaste.outbox set xid = '9999999999' where seq = 3").await;
    let config = setting.config_as(&setting.roles.admin).await;
    let admin = PostgresAdmin::connect(config).await.expect("the same version");
    let refused = admin.repair("s", &somebody()).await;
    let Err(AdminError::Conflict { message: text, .. }) = refused else { panic!("{refused:?}") };
    assert!(
        text.contains("outbox_seq")
            && text.contains("UPDATE on \"posthaste\".outbox")
            && text.contains("owner"),
        "{text}"
    );
    assert_eq!(setting.number("select count(*) from posthaste.receipts").await, 1);
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 0);
}

#[tokio::test]
async fn a_sound_database_is_not_repaired() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 100).await;
    setting.sink("s", 4, "").await;
    let admin = setting.admin().await;
    let refused = admin.repair("s", &somebody()).await;
    assert!(
        matches!(&refused, Err(AdminError::Conflict { message: text, .. }) if text.contains("rewind")),
        "{refused:?}"
    );
    let unknown = admin.repair("x", &somebody()).await;
    assert!(matches!(unknown, Err(AdminError::NotFound { .. })), "{unknown:?}");
}
