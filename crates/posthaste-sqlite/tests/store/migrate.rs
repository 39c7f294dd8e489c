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
    assert_eq!((status.current, status.pending.len()), (None, 1));
    let outcome = migrate::up(&config).expect("the migration applies");
    assert_eq!(outcome.applied, [(1, "outbox".to_owned())]);
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
    let set = |version: i32| {
        let sql = format!("update posthaste_migrations set version = {version}");
        fixture.connect().execute_batch(&sql).expect("set");
    };
    for (version, words) in [(0, "migrate up"), (migrate::SCHEMA_VERSION + 2, "install a newer posthaste")] {
        set(version);
        let Err(error) = SqliteStore::connect(fixture.config()).await else {
            panic!("version {version} opened")
        };
        assert!(error.to_string().contains(words), "{error}");
    }
    set(migrate::SCHEMA_VERSION + 1);
    SqliteStore::connect(fixture.config()).await.expect("one version newer works (F89)");
    set(migrate::SCHEMA_VERSION);
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
    assert_eq!(applied, 1);
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
