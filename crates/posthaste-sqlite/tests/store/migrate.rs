//! Migrations: a new file, the application's own file, versions that do not fit, several at once.

use crate::fixture::{SqliteFixture, TestDir, connect};
use posthaste_sqlite::{SqliteConfig, SqliteStore, migrate};

#[tokio::test]
async fn an_applications_own_file_gets_the_outbox_and_keeps_the_rest() {
    let directory = TestDir::make();
    let config = SqliteConfig::new(directory.path().join("app.db"));
    let application = connect(&config.path);
    application
        .execute_batch(
            "pragma user_version = 7; pragma application_id = 99; create table orders (id integer primary key);
             insert into orders values (1), (2)",
        )
        .expect("an application");
    let status = migrate::status(&config).expect("a status");
    assert_eq!((status.current, status.pending.len()), (None, 4));
    let outcome = migrate::up(&config).expect("the migration applies");
    let applied = [(1, "outbox"), (2, "consumer"), (3, "operations"), (4, "gateway")]
        .map(|(n, name)| (n, name.to_owned()));
    assert_eq!(outcome.applied, applied);
    assert!(migrate::up(&config).expect("harmless when repeated").applied.is_empty());
    let one = |sql: &str| application.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    assert_eq!((one("pragma user_version"), one("pragma application_id")), (7, 99), "not ours to use");
    assert_eq!(one("select count(*) from orders"), 2);
    assert_eq!(migrate::status(&config).expect("a status").current, Some(migrate::SCHEMA_VERSION));
    SqliteStore::connect(config).await.expect("the store opens");
}

#[tokio::test]
async fn versions_that_do_not_fit_are_refused_with_words() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let ours = migrate::SCHEMA_VERSION;
    let set = |version: i32, oldest: Option<i32>| {
        let sql = "update posthaste_migrations set version = ?1, oldest = ?2
                    where version = (select max(version) from posthaste_migrations)";
        fixture.connect().execute(sql, (version, oldest)).expect("set");
    };
    let newer = "install a newer posthaste";
    let cases = [
        (ours + 2, None, newer),
        (ours + 1, Some(ours + 1), newer),
        (ours + 9, Some(ours + 2), newer),
        (ours, Some(1), ""),
        (ours + 1, None, ""),
        (ours + 1, Some(ours), ""),
        (ours + 9, Some(1), ""),
    ];
    for (version, oldest, words) in cases {
        set(version, oldest);
        match SqliteStore::connect(fixture.config()).await {
            Ok(_) => assert_eq!(words, "", "version {version} with {oldest:?} opened (F89)"),
            Err(error) => assert!(!words.is_empty() && error.to_string().contains(words), "{error}"),
        }
    }
    fixture.connect().execute_batch("delete from posthaste_migrations where version > 1").expect("set");
    let error = SqliteStore::connect(fixture.config()).await.map(drop).expect_err("an old schema");
    assert!(error.to_string().contains("migrate up"), "{error}");
    fixture.connect().execute_batch("update posthaste_migrations set checksum = 'x'").expect("set");
    let error = migrate::up(&fixture.config()).expect_err("another build");
    assert!(error.to_string().contains("another build"), "{error}");
}

#[test]
fn several_may_migrate_at_once_and_the_script_does_the_same() {
    let directory = TestDir::make();
    let config = SqliteConfig::new(directory.path().join("new.db"));
    let ups: Vec<_> = (0..6)
        .map(|_| {
            let config = config.clone();
            std::thread::spawn(move || migrate::up(&config).map(|outcome| outcome.applied.len()))
        })
        .collect();
    let applied: usize = ups.into_iter().map(|up| up.join().expect("no panic").expect("applied")).sum();
    assert_eq!(applied, 4);
    let by_hand = SqliteConfig::new(directory.path().join("by_hand.db"));
    connect(&by_hand.path).execute_batch(&migrate::sql()).expect("the script runs");
    assert!(migrate::up(&by_hand).expect("nothing is missing").applied.is_empty());
    let schema = |path| -> Vec<String> {
        let connection = connect(path);
        let mut statement = connection.prepare("select name from sqlite_schema order by name").expect("sql");
        statement.query_map([], |row| row.get(0)).expect("a query").collect::<Result<_, _>>().expect("rows")
    };
    assert_eq!(schema(&config.path), schema(&by_hand.path));
}

/// A file of version 1, with an inbox that was made by `inbox::set_up`, or without one.
#[test]
fn a_file_of_the_version_before_keeps_its_marks_and_controls() {
    for has_inbox in [true, false] {
        let directory = TestDir::make();
        let config = SqliteConfig::new(directory.path().join("v1.db"));
        let script = migrate::sql();
        let (version_1, _) = script.split_once("-- Version 2:").expect("a script in parts");
        let connection = connect(&config.path);
        connection.execute_batch(&format!("{version_1} commit;")).expect("version 1");
        connection
            .execute_batch("insert into posthaste_controls (kind, name, paused) values ('sink', 'nats', 1)")
            .expect("a control");
        if has_inbox {
            posthaste_sqlite::inbox::set_up(&connection).expect("an inbox");
            let mark =
                "insert into posthaste_inbox (consumer, message_id, processed_at) values ('billing', 'm', 1)";
            connection.execute_batch(mark).expect("a mark");
        }
        let applied =
            [(2, "consumer"), (3, "operations"), (4, "gateway")].map(|(n, name)| (n, name.to_owned()));
        assert_eq!(migrate::up(&config).expect("applied").applied, applied);
        posthaste_sqlite::inbox::set_up(&connection).expect("harmless afterwards");
        let text =
            |sql: &str| connection.query_row(sql, [], |row| row.get::<_, Option<String>>(0)).expect(sql);
        let outcome = "select group_concat(message_id || outcome) from posthaste_inbox";
        assert_eq!(text(outcome), has_inbox.then(|| "md".to_owned()));
        let controls = "select group_concat(kind || name || paused) from posthaste_controls";
        assert_eq!(text(controls).as_deref(), Some("sinknats1"));
        let oldest = "select group_concat(coalesce(oldest, '-')) from posthaste_migrations";
        assert_eq!(text(oldest).as_deref(), Some("-,1,2,3"));
        let consumer = "insert into posthaste_controls (kind, name) values ('consumer', 'billing')";
        connection.execute_batch(consumer).expect("a consumer can be paused");
        let unknown = "insert into posthaste_controls (kind, name) values ('moon', 'billing')";
        assert!(connection.execute_batch(unknown).is_err());
    }
}

/// People with the sqlite3 shell have views.
#[tokio::test]
async fn the_views_answer() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let connection = fixture.connect();
    for view in ["lanes_now", "pending", "deferred_events", "dead"] {
        let sql = format!("select * from posthaste_{view}");
        connection.prepare(&sql).and_then(|mut view| view.exists([])).expect(view);
    }
}
