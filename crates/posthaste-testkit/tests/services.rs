//! The services themselves: that they start, die, come back, and never outlive the test process.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream;
use posthaste_testkit::{
    require_service,
    services::{
        Certs, Nats, NatsOptions, Pair, PgBouncer, Postgres, PostgresOptions, Proxy, ServiceError,
        TestDatabase, Version, shared,
    },
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_postgres::{Client, NoTls, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

const SOON: Duration = Duration::from_secs(60);

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> T {
    client.query_one(sql, &[]).await.expect("the query works").get(0)
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done().await {
        assert!(Instant::now() < deadline, "not in time");
        tokio::time::sleep(Duration::from_millis(5)).await; // pace
    }
}

fn process_exists(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

// PostgreSQL

#[tokio::test]
async fn postgres_starts() {
    let version = Version::tested();
    let server = require_service!(Postgres::start(version, &PostgresOptions::default()).await);
    let client = connect(&server.url()).await.expect("connects");
    let number: String = one(&client, "SHOW server_version_num").await;
    assert_eq!(number[..2], version.major().to_string());
    for (setting, value) in [("fsync", "on"), ("wal_level", "logical"), ("max_prepared_transactions", "20")] {
        assert_eq!(one::<String>(&client, &format!("SHOW {setting}")).await, value, "{setting}");
    }
    let (pid, dir) = (server.pid().expect("it runs").to_string(), server.data_dir());
    drop(server);
    assert!(!process_exists(&pid) && !dir.exists(), "dropped, and something is left of it");
}

#[tokio::test]
async fn a_killed_postgres_comes_back_with_what_was_committed() {
    let mut server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let client = connect(&server.url()).await.expect("connects");
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await.expect("committed");
    client.batch_execute("BEGIN; INSERT INTO t VALUES (2)").await.expect("not committed");
    // A backend that computes does not look whether its postmaster still lives.
    let busy = connect(&server.url()).await.expect("connects");
    let busy_pid: i32 = one(&busy, "SELECT pg_backend_pid()").await;
    let query = "SELECT count(*) FROM generate_series(1, 1000000000) a, generate_series(1, 1000000000) b";
    let computing = tokio::spawn(async move { busy.batch_execute(query).await });
    until(async || {
        let sql = format!("SELECT state = 'active' FROM pg_stat_activity WHERE pid = {busy_pid}");
        one(&connect(&server.url()).await.expect("connects"), &sql).await
    })
    .await;

    let pid = server.pid();
    server.kill9().await.expect("killed");
    assert_eq!(server.pid(), None);
    assert!(!process_exists(&busy_pid.to_string()), "a backend survived");
    assert!(computing.await.expect("no panic").is_err());
    assert!(connect(&server.url()).await.is_err(), "nobody listens");

    server.start_again().await.expect("recovers");
    assert_ne!(server.pid(), pid);
    let client = connect(&server.url()).await.expect("connects");
    assert_eq!(one::<i64>(&client, "SELECT sum(n) FROM t").await, 1);
}

#[tokio::test]
async fn a_stopped_postgres_comes_back_and_keeps_its_settings() {
    let mut server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let old = connect(&server.url()).await.expect("connects");
    server.set("idle_in_transaction_session_timeout", "1234").await.expect("reloaded");
    let fresh = connect(&server.url()).await.expect("connects");
    assert_eq!(one::<String>(&fresh, "SHOW idle_in_transaction_session_timeout").await, "1234ms");
    assert!(server.set("no_such_setting", "1").await.is_err());
    server.stop_fast().await.expect("stops although connections are open");
    assert!(old.simple_query("SELECT 1").await.is_err());
    server.start_again().await.expect("starts");
    let client = connect(&server.url()).await.expect("connects");
    assert_eq!(one::<String>(&client, "SHOW idle_in_transaction_session_timeout").await, "1234ms");
}

#[tokio::test]
async fn a_postgres_that_does_not_start_shows_its_log() {
    let options = PostgresOptions::default().setting("shared_buffers", "plenty");
    match Postgres::start(Version::V15, &options).await {
        Err(error @ ServiceError::Failed { .. }) => {
            assert!(error.to_string().contains(r#"invalid value for parameter "shared_buffers""#), "{error}");
        }
        other => drop(require_service!(other)),
    }
}

#[tokio::test]
async fn a_scram_user_needs_the_password() {
    let options =
        PostgresOptions::default().scram_user("app", "it's").hba("host all nobody 127.0.0.1/32 reject");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let client = connect(&server.url_for("postgres", "app:it's")).await.expect("the right password");
    assert_eq!(one::<String>(&client, "SELECT current_user::text").await, "app");
    let refused = connect(&server.url_for("postgres", "app:wrong")).await.expect_err("the wrong password");
    assert_eq!(refused.code(), Some(&SqlState::INVALID_PASSWORD));
    let refused = connect(&server.url_for("postgres", "nobody")).await.expect_err("a line of pg_hba.conf");
    assert_eq!(refused.code(), Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION));
}

// TLS

fn trusting(ca: &Path, client: Option<&Pair>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("a CA")).expect("a usable CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = builder.with_root_certificates(roots);
    match client {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let certificate = CertificateDer::from_pem_file(&pair.certificate).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
            builder.with_client_auth_cert(vec![certificate], key).expect("a matching key")
        }
    }
}

async fn connect_tls(url: &str, tls: ClientConfig) -> Result<Client, tokio_postgres::Error> {
    let config = format!("{url}?sslmode=require");
    let (client, connection) = tokio_postgres::connect(&config, MakeRustlsConnect::new(tls)).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut error = error.source();
    while let Some(source) = error {
        text = format!("{text}: {source}");
        error = source.source();
    }
    text
}

#[tokio::test]
async fn postgres_with_tls_and_client_certificates() {
    let certs = Certs::make().expect("certificates");
    let options =
        PostgresOptions::default().tls(certs.server(), certs.ca()).tls_only().certificate_user("app");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let (anybody, app) = (server.url(), server.url_for("postgres", "app"));

    assert!(connect(&anybody).await.is_err(), "without TLS");
    let client = connect_tls(&anybody, trusting(certs.ca(), None)).await.expect("the right authority");
    assert!(one::<bool>(&client, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await);
    let refused =
        connect_tls(&anybody, trusting(certs.other_ca(), None)).await.expect_err("the wrong authority");
    assert!(cause(&refused).contains("UnknownIssuer"), "{}", cause(&refused));

    let good = certs.client("app").expect("a certificate");
    connect_tls(&app, trusting(certs.ca(), Some(&good))).await.expect("the right certificate");
    for (wrong, why) in [
        (None, "none"),
        (Some(certs.client("other")), "another name"),
        (Some(certs.stranger("app")), "another CA"),
    ] {
        let wrong = wrong.map(|pair| pair.expect("a certificate"));
        let refused = connect_tls(&app, trusting(certs.ca(), wrong.as_ref())).await;
        assert!(refused.is_err(), "a client certificate: {why}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_the_client() {
    let certs = Certs::make().expect("certificates");
    let options = PostgresOptions::default().tls(certs.expired_server(), certs.ca());
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let refused = connect_tls(&server.url(), trusting(certs.ca(), None)).await.expect_err("expired");
    assert!(cause(&refused).to_lowercase().contains("expired"), "{}", cause(&refused));
}

// The shared server

/// A reader of a logical slot. The client library has no replication protocol, and this much of it is two
/// messages.
async fn read_slot(database: &TestDatabase, slot: &str) -> TcpStream {
    let url = database.url();
    let (_, rest) = url.split_once('@').expect("a user");
    let mut stream = TcpStream::connect(rest.split_once('/').expect("a database").0).await.expect("connects");
    let start = format!("user\0postgres\0database\0{}\0replication\0database\0\0", database.name());
    stream.write_i32(8 + start.len() as i32).await.expect("sent");
    stream.write_i32(3 << 16).await.expect("sent");
    stream.write_all(start.as_bytes()).await.expect("sent");
    let read =
        format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')\0");
    stream.write_u8(b'Q').await.expect("sent");
    stream.write_i32(4 + read.len() as i32).await.expect("sent");
    stream.write_all(read.as_bytes()).await.expect("sent");
    let client = database.connect().await.expect("connects");
    let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    until(async || one(&client, &active).await).await;
    stream
}

#[tokio::test]
async fn test_databases_are_empty_separate_and_go_away_whatever_is_left_in_them() {
    let first = require_service!(TestDatabase::create().await);
    let second = TestDatabase::create().await.expect("a second one");
    let (in_first, in_second) =
        (first.connect().await.expect("connects"), second.connect().await.expect("connects"));
    in_first.batch_execute("CREATE TABLE t (n int)").await.expect("created");
    assert!(!one::<bool>(&in_second, "SELECT to_regclass('t') IS NOT NULL").await);

    // The slot first: its creation waits for the transactions that are open.
    let slot = "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')";
    in_first.query(slot, &[]).await.expect("a slot");
    let _reader = read_slot(&first, "left_behind").await;
    let prepare = "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left behind'";
    in_first.batch_execute(prepare).await.expect("prepared");
    in_first.batch_execute("BEGIN; INSERT INTO t VALUES (2)").await.expect("a transaction that stays open");
    let name = first.name().to_owned();
    drop(first);
    let left = format!(
        "SELECT (SELECT count(*) FROM pg_database WHERE datname = '{name}') +
                (SELECT count(*) FROM pg_prepared_xacts WHERE database = '{name}') +
                (SELECT count(*) FROM pg_replication_slots WHERE database = '{name}')"
    );
    assert_eq!(one::<i64>(&in_second, &left).await, 0, "something of it is left");
    assert!(in_first.simple_query("SELECT 1").await.is_err(), "its connections are cut");
}

#[tokio::test]
async fn a_proxy_stands_before_a_database() {
    let database = require_service!(TestDatabase::create().await);
    let (proxy, url) = Proxy::start_before(&database.url()).await.expect("a proxy");
    let client = connect(&url).await.expect("connects by way of the proxy");
    assert_eq!(one::<String>(&client, "SELECT current_database()::text").await, database.name());
    proxy.cut().await;
    assert!(client.simple_query("SELECT 1").await.is_err());
}

// PgBouncer

#[tokio::test]
async fn pgbouncer_pools_transactions() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut bouncer = require_service!(PgBouncer::start(&server).await);
    let (first, second) =
        (connect(&bouncer.url()).await.expect("connects"), connect(&bouncer.url()).await.expect("connects"));
    let pid = "SELECT pg_backend_pid()::text";
    let backend = async |client: &Client| {
        let rows = client.simple_query(pid).await.expect("a row");
        rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    };
    assert_eq!(
        backend(&first).await,
        backend(&second).await,
        "two sessions, one after the other, on one connection"
    );
    bouncer.kill9().await.expect("killed");
    assert!(connect(&bouncer.url()).await.is_err());
    bouncer.start_again().await.expect("starts");
    connect(&bouncer.url_for("postgres")).await.expect("connects");
}

// NATS

async fn publish(client: &async_nats::Client, n: u64) -> Result<u64, String> {
    let context = jetstream::new(client.clone());
    let config =
        jetstream::stream::Config { name: "T".into(), subjects: vec!["t".into()], ..Default::default() };
    context.get_or_create_stream(config).await.map_err(|error| error.to_string())?;
    let acknowledgement =
        context.publish("t", n.to_string().into()).await.map_err(|error| error.to_string())?;
    acknowledgement.await.map(|ack| ack.sequence).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_killed_nats_comes_back_with_its_streams() {
    let mut server =
        require_service!(Nats::start(&NatsOptions::default().jetstream("sync_interval: always")).await);
    let client = async_nats::connect(server.url()).await.expect("connects");
    assert_eq!(publish(&client, 1).await, Ok(1));
    server.kill9().await.expect("killed");
    assert!(TcpStream::connect(server.addr()).await.is_err(), "nobody listens");
    server.start_again().await.expect("starts");
    let client = async_nats::connect(server.url()).await.expect("connects");
    assert_eq!(publish(&client, 2).await, Ok(2), "the stream remembers the first");
    server.stop().await.expect("stops");
    server.start_again().await.expect("starts");
    let client = async_nats::connect(server.url()).await.expect("connects");
    assert_eq!(publish(&client, 3).await, Ok(3));
}

#[tokio::test]
async fn a_paused_nats_is_silent_and_then_goes_on() {
    let server = require_service!(Nats::start(&NatsOptions::default()).await);
    let client = async_nats::connect(server.url()).await.expect("connects");
    assert_eq!(publish(&client, 1).await, Ok(1));
    server.pause();
    let silent = tokio::time::timeout(Duration::from_millis(200), publish(&client, 2)).await;
    assert!(silent.is_err(), "{silent:?}");
    server.resume();
    assert!(publish(&client, 3).await.is_ok());
}

#[tokio::test]
async fn nats_asks_for_password_token_and_certificate() {
    let server = require_service!(Nats::start(&NatsOptions::default().user("app", "secret")).await);
    let with = |user: &str, password: &str| {
        async_nats::ConnectOptions::with_user_and_password(user.into(), password.into())
    };
    with("app", "secret").connect(server.url()).await.expect("the right password");
    with("app", "wrong").connect(server.url()).await.expect_err("the wrong password");

    let server = Nats::start(&NatsOptions::default().token("t0ken")).await.expect("starts");
    async_nats::ConnectOptions::with_token("t0ken".into())
        .connect(server.url())
        .await
        .expect("the right token");
    async_nats::connect(server.url()).await.expect_err("no token");

    let certs = Certs::make().expect("certificates");
    let options = NatsOptions::default().mutual_tls(certs.server(), certs.ca()).setting("max_payload: 4096");
    let server = Nats::start(&options).await.expect("starts");
    let with = |client: Option<&Pair>| {
        let tls = trusting(certs.ca(), client);
        async_nats::ConnectOptions::new().tls_client_config(tls).require_tls(true)
    };
    let good = certs.client("app").expect("a certificate");
    let client = with(Some(&good)).connect(server.url()).await.expect("the right certificate");
    assert_eq!(client.server_info().max_payload, 4096);
    with(None).connect(server.url()).await.expect_err("no certificate");

    let server = Nats::start(&NatsOptions::default().tls(certs.server())).await.expect("starts");
    assert!(server.url().starts_with("tls://"));
    with(None).connect(server.url()).await.expect("TLS without a client certificate");
}

// What must hold when the test process ends: seen from outside, on this very binary started once more.

/// Runs one of the tests below in a process of its own, where its variable is set.
fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("POSTHASTE_TEST_CHILD", test);
    command
}

fn is_child(test: &str) -> bool {
    std::env::var("POSTHASTE_TEST_CHILD").is_ok_and(|child| child == test)
}

#[tokio::test]
async fn child_with_servers() {
    if !is_child("child_with_servers") {
        return;
    }
    // PostgreSQL soon gives up by itself when its files are removed, so it does not show that the guard ends
    // a server. NATS would go on for good.
    let nats = require_service!(Nats::start(&NatsOptions::default()).await, println!("SERVERS missing"));
    let server = require_service!(shared().await, println!("SERVERS missing"));
    let dir: String = one(&connect(server.url()).await.expect("connects"), "SHOW data_directory").await;
    let pid = std::fs::read_to_string(Path::new(&dir).join("postmaster.pid")).expect("it runs");
    println!("SERVERS {} {} {dir}", nats.pid().expect("it runs"), pid.lines().next().expect("a pid"));
    std::mem::forget(nats); // as in a static
    if std::env::var_os("POSTHASTE_TEST_EXIT").is_none() {
        std::future::pending().await
    }
}

async fn nothing_is_left_after(end: impl FnOnce(&mut std::process::Child), child: &mut Command) {
    let mut child = child
        .env_remove("POSTHASTE_TEST_PG")
        .env_remove("POSTHASTE_SKIPS")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary starts");
    // Kept open until the child has ended: it must not die of a closed pipe instead.
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.split_once("SERVERS ").map(|(_, rest)| rest.to_owned()));
    let line = line.expect("the child names its servers");
    end(&mut child);
    child.wait().expect("it ends");
    if line == "missing" {
        let (service, why) = ("postgres-15 or nats-server".to_owned(), "its child said so".to_owned());
        require_service!(Err::<(), _>(ServiceError::Missing { service, why }));
    }
    let [nats, postgres, dir] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let dir = Path::new(dir).parent().expect("the data lie in the server's directory");
    until(async || !process_exists(nats) && !process_exists(postgres) && !dir.exists()).await;
}

#[tokio::test]
async fn servers_end_with_a_killed_test_process() {
    nothing_is_left_after(|child| child.kill().expect("killed"), &mut again("child_with_servers")).await;
}

#[tokio::test]
async fn servers_end_with_a_test_process_that_exits() {
    let mut child = again("child_with_servers");
    nothing_is_left_after(|_| (), child.env("POSTHASTE_TEST_EXIT", "1")).await;
}

#[tokio::test]
async fn child_without_services() {
    if is_child("child_without_services") {
        require_service!(Nats::start(&NatsOptions::default()).await);
        panic!("there is no such service");
    }
}

#[test]
fn a_missing_service_is_a_named_skip() {
    let empty = std::env::temp_dir().join(format!("posthaste-skips-{}", std::process::id()));
    std::fs::create_dir(&empty).expect("a directory");
    let skips = empty.join("skips");
    let output = again("child_without_services")
        .env("POSTHASTE_SERVICES", &empty)
        .env("POSTHASTE_SKIPS", &skips)
        .output()
        .expect("this binary starts");
    let recorded = std::fs::read_to_string(&skips).expect("a skip was recorded");
    std::fs::remove_dir_all(&empty).expect("removed");
    assert!(output.status.success(), "a skip is no failure");
    assert_eq!(recorded.lines().count(), 1);
    assert!(recorded.contains(": nats-server cannot be had here: no "), "{recorded}");
    let seen = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(seen.contains(&format!("SKIP {recorded}")), "{seen}");
}
