//! The handlers of `examples/handlers`, in the languages that they are written in.

use crate::rig::Rig;
use posthaste_testkit::require_service;
#[cfg(feature = "nats")]
use posthaste_testkit::services::Nats;
use posthaste_testkit::services::ServiceError;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A handler's process. It ends with the test.
struct Handler(Child);

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn missing(service: &str, why: &dyn std::fmt::Display) -> ServiceError {
    ServiceError::Missing { service: service.to_owned(), why: why.to_string() }
}

/// Where `scripts/services` puts the clients of PostgreSQL.
fn clients() -> Result<PathBuf, ServiceError> {
    let beside =
        || Path::new(env!("CARGO_BIN_EXE_posthaste")).ancestors().nth(2).map(|dir| dir.join("services"));
    let dir = std::env::var_os("POSTHASTE_SERVICES").map(PathBuf::from).or_else(beside);
    let clients = dir.unwrap_or_default().join("clients");
    let why = format!("no {} (scripts/services installs it)", clients.display());
    if clients.is_dir() { Ok(clients) } else { Err(missing("clients in Python and Node", &why)) }
}

/// Starts an example on this port, or with 0 on a free one, and answers where it listens.
fn start(rig: &Rig, name: &str, port: &str) -> Result<(Handler, String), ServiceError> {
    let clients = clients()?;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers");
    // Node looks for packages beside the file.
    let file = rig.write(name, &std::fs::read_to_string(examples.join(name)).expect("the example"));
    let modules = file.with_file_name("node_modules");
    if !modules.exists() {
        std::os::unix::fs::symlink(clients.join("node_modules"), modules).expect("a link");
    }
    let program = if name.ends_with(".py") { "python3" } else { "node" };
    let mut child = Command::new(program)
        .arg(&file)
        .arg(port)
        .env("PYTHONPATH", clients.join("python"))
        .env("DATABASE_URL", rig.url())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| missing(program, &error))?;
    let mut line = String::new();
    let out = child.stdout.take().expect("its words");
    BufReader::new(out).read_line(&mut line).expect("it says where");
    let port = line.trim().strip_prefix("listening on ").expect("a port").to_owned();
    Ok((Handler(child), port))
}

async fn set(name: &str, marks: &str) -> Result<(Rig, Handler), ServiceError> {
    let rig = Rig::set("").await?;
    let (handler, _) = handle_by(&rig, name, marks).await?;
    Ok((rig, handler))
}

/// The example handles what this consumer takes.
async fn handle_by(rig: &Rig, name: &str, marks: &str) -> Result<(Handler, String), ServiceError> {
    rig.run(
        "create schema billing;
         create table billing.invoices (order_id bigint, total numeric, seq bigint generated always as identity)",
    )
    .await;
    let (handler, port) = start(rig, name, "0")?;
    let http = format!("http = \"http://127.0.0.1:{port}/events\"\nmarks = \"{marks}\"");
    rig.reconfigure("sql = \"trial.handle\"", &http);
    Ok((handler, port))
}

fn place(rig: &Rig, payload: &str) {
    rig.cli(&["append", "orders", "--key", "7", "--type", "order", "--payload", payload]).ok();
}

async fn answers_with_events(name: &str) {
    let (rig, _handler) = require_service!(set(name, "posthaste").await);
    place(&rig, r#"{"id": 7, "total": 12.5}"#);
    place(&rig, r#"{"id": 8, "total": -1}"#);
    place(&rig, r#"{"id": 9, "total": 1}"#);
    let member = rig.start();
    let made =
        "select count(*) from posthaste.outbox where topic = 'invoices.made' and headers ? 'causation-id'";
    rig.until(made, 2).await;
    let dead = "select count(*) from posthaste.inbox_dead_letters where error like '%a negative total%'";
    rig.until(dead, 1).await;
    member.stop().await;
    assert_eq!(rig.count(made).await, 2);
}

async fn admits_by_itself(name: &str) {
    let (rig, _handler) = require_service!(set(name, "app").await);
    place(&rig, r#"{"id": 7, "total": 12.5}"#);
    let mut member = rig.start();
    rig.until("select count(*) from billing.invoices", 1).await;
    member.kill9();
    place(&rig, r#"{"id": 8, "total": 3}"#);
    let member = rig.start();
    rig.until("select count(*) from billing.invoices", 2).await;
    rig.until("select count(*) from posthaste.inbox_partitions where position > 0", 1).await;
    member.stop().await;
    let once = "select count(*) from billing.invoices where (order_id, total) in ((7, 12.5), (8, 3))";
    assert_eq!((rig.count(once).await, rig.count("select count(*) from posthaste.inbox").await), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_python_answers_with_events() {
    answers_with_events("billing.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_node_answers_with_events() {
    answers_with_events("billing.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_python_admits_by_itself() {
    admits_by_itself("billing_app.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_node_admits_by_itself() {
    admits_by_itself("billing_app.mjs").await;
}

/// The file of docs/consume.md, with small batches.
#[cfg(feature = "nats")]
fn page(rig: &Rig, nats: &Nats, port: &str) -> String {
    let page = include_str!("../../../../docs/consume.md");
    let after = page.split("### Effects once: Python behind JetStream").nth(1).expect("its heading");
    let mut file =
        after.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it").to_owned();
    for (there, here) in [
        ("postgres://localhost/shop", &*rig.url()),
        ("nats://127.0.0.1:4222", &*nats.url()),
        ("ORDERS", &rig.topic),
        (":8080/", &format!(":{port}/")),
        ("source = \"nats\"", "source = \"nats\"\nbatch_max = 8"),
    ] {
        assert!(file.contains(there), "{there} is not in\n{file}");
        file = file.replace(there, here);
    }
    format!("[http]\nlisten = \"127.0.0.1:0\"\n{file}")
}

/// JetStream before it, and everything goes wrong: the process that reads is killed when the handler has
/// answered and nobody wrote it down, messages are sent twice, and the handler's own process is killed at
/// work. Each effect once, each key in order.
#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn g5_python_behind_jetstream_has_its_effects_once() {
    use std::os::unix::process::ExitStatusExt;
    const INVOICES: &str = "select count(*) from billing.invoices";
    let nats = require_service!(Nats::start(&Default::default()).await);
    let rig = require_service!(Rig::set_on_nats(&nats, "").await);
    let (handler, port) = require_service!(handle_by(&rig, "billing_app.py", "app").await);
    rig.replace_configuration(&page(&rig, &nats, &port));
    let order = |n: i32| format!("{{\"id\": {n}, \"total\": 12.5}}");
    rig.send("order", 1..101, order).await;
    rig.send("order", 1..11, order).await;
    let mut member = rig.start_to_die(&format!("{}@3", crate::points::OUTSIDE[0]));
    assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL");
    let done = rig.count(INVOICES).await;
    assert!((1..100).contains(&done), "{done} before the death");
    rig.send("order", 50..61, order).await;
    let member = rig.start();
    rig.until(INVOICES, done + 1).await;
    rig.send("order", 101..401, order).await;
    rig.until(INVOICES, 120).await;
    drop(handler);
    let (_handler, _) = require_service!(start(&rig, "billing_app.py", &port));
    rig.until(INVOICES, 400).await;
    rig.send("order", 390..401, order).await;
    rig.until_saved().await;
    member.stop().await;
    let ids = "select count(distinct order_id) from billing.invoices";
    let marks = "select count(*) from posthaste.inbox where consumer = 'billing'";
    let counts = (rig.count(INVOICES).await, rig.count(ids).await, rig.count(marks).await);
    assert_eq!(counts, (400, 400, 400), "effects, their orders, marks");
    let back = "select count(*) from (select order_id < lag(order_id) over (partition by order_id % 8 order by seq) as back \
                from billing.invoices) i where back";
    assert_eq!(rig.count(back).await, 0, "a key is out of order");
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 0);
}
