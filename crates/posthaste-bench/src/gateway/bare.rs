//! What the gateway is compared with: the handler that one would write by hand, on the same axum and hyper.
//!
//! It is a process of its own, this program again with a file that says what to do. It has a page for each
//! size of its pool: one row into the outbox and a commit, as one statement over a connection that nobody
//! else has meanwhile. On SQLite it hands the row to the same `Writer` that the gateway has. One more page
//! checks key and body, and stores nothing.

use crate::child::Scratch;
use crate::load::TOPIC;
use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use posthaste::Event;
use posthaste::task::{Task, spawn};
use posthaste_postgres::{PostgresConfig, connect};
use posthaste_sqlite::writer::{WriteError, Writer};
use posthaste_sqlite::{Outbox, SqliteConfig};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Statement};
use tower_service::Service as _;
use uuid::Uuid;

/// The key of its events: they have one, as the gateway's have.
const KEY: &str = "bench";

/// Connections of its pools.
pub(super) const POOLS: [usize; 3] = [4, 8, 16];

/// What the child is told.
#[derive(Serialize, Deserialize)]
pub(super) struct BarePlan {
    /// Where it appends to.
    pub(super) store: String,
    pub(super) schema: String,
    /// Keys that it knows.
    pub(super) keys: Vec<String>,
}

/// It, from outside. It ends with us.
pub(super) struct BareServer {
    pub(super) address: SocketAddr,
    child: Child,
}

impl BareServer {
    pub(super) async fn start(plan: &BarePlan, scratch: &Scratch) -> anyhow::Result<Self> {
        let path = scratch.write("bare", &toml::to_string(plan)?)?;
        let mut command = Command::new(std::env::current_exe()?);
        // Its database stands in the file, where no list of processes shows it.
        command.args(["gateway", "--store", "-", "--child"]).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("the baseline could not be started")?;
        let out = child.stdout.take().context("the baseline has no output")?;
        let line = BufReader::new(out).lines().next_line().await?.context("the baseline has ended")?;
        Ok(Self { address: line.trim().parse()?, child })
    }

    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the baseline has ended")
    }

    /// Waits until it is gone.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("the baseline could not be ended")
    }
}

/// What the child does, until its standard input ends.
pub(crate) async fn run_child(path: &Path) -> anyhow::Result<()> {
    let plan: BarePlan = toml::from_str(&std::fs::read_to_string(path)?)?;
    let router = match plan.store.starts_with("sqlite:") {
        true => {
            let config = SqliteConfig::from_url(&plan.store)?;
            let writer = Writer::open(&config.path, config.synchronous)?;
            Router::new().route("/writer", post(hand_over).with_state(writer))
        }
        false => {
            let mut router = Router::new();
            for connections in POOLS {
                let pool = Pool::open(&plan, connections).await?;
                router = router.route(&format!("/{connections}"), post(insert).with_state(pool));
            }
            router
        }
    };
    let router = router.route("/nothing", post(check).with_state(KnownKeys::of(&plan.keys)));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let _serving = spawn("bare server", serve(listener, router));
    // Whoever measures has ended, or has enough of it.
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    Ok(())
}

async fn serve(listener: TcpListener, router: Router) {
    let mut connections: Vec<Task<()>> = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.retain(|connection| !connection.is_finished());
        connections.push(spawn("bare connection", speak(stream, router.clone())));
    }
}

async fn speak(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request: Request<Incoming>| router.clone().call(request));
    // What a client does wrong is the client's to know.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

/// Connections, each for one request at a time.
#[derive(Clone)]
struct Pool(Arc<Places>);

struct Places {
    free: Semaphore,
    clients: Mutex<Vec<Pooled>>,
}

struct Pooled {
    client: Client,
    insert: Statement,
}

impl Pool {
    async fn open(plan: &BarePlan, connections: usize) -> anyhow::Result<Self> {
        let config = PostgresConfig { schema: plan.schema.clone(), ..PostgresConfig::new(&plan.store) };
        let schema = plan.schema.replace('"', "\"\"");
        let sql =
            format!("insert into \"{schema}\".outbox (id, topic, key, payload) values ($1, $2, $3, $4)");
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = connect(&config).await?;
            client.batch_execute("set synchronous_commit = on").await?;
            let insert = client.prepare(&sql).await?;
            clients.push(Pooled { client, insert });
        }
        Ok(Self(Arc::new(Places { free: Semaphore::new(connections), clients: Mutex::new(clients) })))
    }

    /// Stores one event, and answers with its id.
    async fn store(&self, payload: &[u8]) -> anyhow::Result<Uuid> {
        let _place = self.0.free.acquire().await?;
        let free = || self.0.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = free().pop().context("a place without a connection")?;
        let id = Uuid::now_v7();
        // Without BEGIN and COMMIT it is a transaction of its own, and one way to the server, not three.
        let stored = pooled.client.execute(&pooled.insert, &[&id, &TOPIC, &KEY, &payload]).await;
        free().push(pooled);
        stored?;
        Ok(id)
    }
}

async fn insert(State(pool): State<Pool>, body: Bytes) -> Response {
    answer(pool.store(&body).await)
}

async fn hand_over(State(writer): State<Writer>, body: Bytes) -> Response {
    let event = Event::new(TOPIC, body).with_key(KEY);
    let job =
        move |tx: &rusqlite::Transaction<'_>| Outbox::default().append(tx, &event).map_err(WriteError::from);
    answer(writer.run(job).await.map_err(anyhow::Error::from))
}

/// Keys by their hash.
#[derive(Clone)]
struct KnownKeys(Arc<HashSet<[u8; 32]>>);

impl KnownKeys {
    fn of(keys: &[String]) -> Self {
        Self(Arc::new(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect()))
    }
}

async fn check(State(keys): State<KnownKeys>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = key.and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    if !keys.0.contains(&hash) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if serde_json::from_slice::<IgnoredAny>(&body).is_err() {
        return StatusCode::BAD_REQUEST.into_response();
    }
    answer(Ok(Uuid::now_v7()))
}

/// As the gateway answers.
fn answer(stored: anyhow::Result<Uuid>) -> Response {
    match stored {
        Ok(id) => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::ACCEPTED, json, format!("{{\"ids\":[\"{id}\"]}}")).into_response()
        }
        Err(error) => {
            tracing::error!("{error:#}");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}
