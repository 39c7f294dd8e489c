//! The handlers of `examples/handlers`, in the languages that they are written in.

use crate::rig::Rig;
use posthaste_testkit::require_service;
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

/// Starts an example on a free port, and answers where it listens.
fn start(rig: &Rig, name: &str) -> Result<(Handler, String), ServiceError> {
    let clients = clients()?;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers");
    // Node looks for packages beside the file.
    let file = rig.write(name, &std::fs::read_to_string(examples.join(name)).expect("the example"));
    let modules = file.with_file_name("node_modules");
    std::os::unix::fs::symlink(clients.join("node_modules"), modules).expect("a link");
    let program = if name.ends_with(".py") { "python3" } else { "node" };
    let mut child = Command::new(program)
        .arg(&file)
        .arg("0")
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
    Ok((Handler(child), format!("http://127.0.0.1:{port}/events")))
}

async fn set(name: &str, marks: &str) -> Result<(Rig, Handler), ServiceError> {
    let rig = Rig::set("").await?;
    rig.run("create schema billing; create table billing.invoices (order_id bigint, total numeric)").await;
    let (handler, url) = start(&rig, name)?;
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"{url}\"\nmarks = \"{marks}\""));
    Ok((rig, handler))
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
