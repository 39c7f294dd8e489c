//! The service of the trials: notes each request as an effect, and does what the type of a message says.

use crate::rig::Rig;
use posthaste_testkit::services::ServiceError;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum MarkedBy {
    Posthaste,
    App,
}

/// The service of the trials.
pub(super) struct Service {
    pub(super) address: std::net::SocketAddr,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    /// Answers 503, and asks to be left alone for a second.
    pub(super) away: AtomicBool,
    pub(super) requests: AtomicUsize,
    pub(super) most_at_once: AtomicUsize,
    pub(super) at_once: AtomicUsize,
    /// Dies before its own commit, once.
    pub(super) dies: AtomicBool,
    /// First requests for a message of the type `stall` get to their transactions by it.
    pub(super) stalled: Semaphore,
    /// First requests for a message of the type `hold` get to their commits by it.
    held: Semaphore,
}

struct Asked {
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Service {
    pub(super) async fn start(rig: &Rig, marks: MarkedBy) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            away: AtomicBool::default(),
            requests: AtomicUsize::default(),
            most_at_once: AtomicUsize::default(),
            at_once: AtomicUsize::default(),
            dies: AtomicBool::default(),
            stalled: Semaphore::new(0),
            held: Semaphore::new(0),
        });
        let (url, state) = (rig.url(), Arc::clone(&shared));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, url.clone(), Arc::clone(&state), marks));
            }
        });
        Self { address, shared }
    }
}

async fn serve(stream: TcpStream, url: String, shared: Arc<Shared>, marks: MarkedBy) -> Option<()> {
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
    tokio::spawn(connection);
    let mut stream = BufReader::new(stream);
    loop {
        let asked = read(&mut stream).await?;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let at_once = shared.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        let answer = answer(&mut client, &asked, &shared, marks).await;
        shared.at_once.fetch_sub(1, Ordering::SeqCst);
        stream.write_all(answer?.as_bytes()).await.ok()?;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let (mut headers, mut line) = (HashMap::new(), String::new());
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    loop {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked { headers, body })
}

/// `None`: it dies.
async fn answer(
    client: &mut tokio_postgres::Client,
    asked: &Asked,
    shared: &Shared,
    marks: MarkedBy,
) -> Option<String> {
    let empty = |status: &str| Some(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"));
    let header = |name: &str| asked.headers.get(name).map(String::as_str).unwrap_or_default();
    if shared.away.load(Ordering::SeqCst) {
        return Some("HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_owned());
    }
    let attempt: u32 = header("posthaste-attempt").parse().expect("a number");
    match header("type") {
        "late" if attempt < 3 => return empty("500 Not Yet"),
        "reject" => {
            let body = "no order, and token hunter2-secret";
            return Some(format!("HTTP/1.1 422 No\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        }
        "slow" => tokio::time::sleep(std::time::Duration::from_millis(200)).await, // the receiver's work
        "stall" if attempt == 1 => shared.stalled.acquire().await.ok()?.forget(),
        "hold" if attempt > 1 => shared.held.add_permits(1),
        "gone" => return empty("404 Not Found"),
        "moved" => return Some("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".to_owned()),
        "half" if attempt < 2 => {
            return Some(
                "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.posthaste.events+json\r\n\
                         content-length: 999\r\n\r\n{\"events\""
                    .to_owned(),
            );
        }
        "huge" if attempt < 2 => {
            let body = format!("{{\"events\": [{}]}}", " ".repeat(10 << 20));
            return Some(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.posthaste.events+json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
        _ => {}
    }
    let n: i32 =
        serde_json::from_slice::<serde_json::Value>(&asked.body).expect("JSON")["n"].as_i64()? as i32;
    let (id, key, kind) = (header("posthaste-id"), header("key"), header("type"));
    let tx = client.transaction().await.ok()?;
    let mut is_first = true;
    if marks == MarkedBy::App {
        let (topic, partition) =
            (header("posthaste-topic"), header("posthaste-partition").parse::<i32>().ok()?);
        let position: i64 = header("posthaste-position").parse().ok()?;
        let sql = "select posthaste.admit('billing', $1, $2, $3, $4)";
        is_first = tx.query_one(sql, &[&id, &topic, &partition, &position]).await.ok()?.get(0);
    }
    if is_first {
        let sql = "insert into trial.effects (id, type, key, n) values ($1, $2, $3, $4)";
        tx.execute(sql, &[&id, &kind, &key, &n]).await.ok()?;
    }
    if shared.dies.swap(false, Ordering::SeqCst) {
        return None;
    }
    if kind == "hold" && attempt == 1 {
        shared.held.acquire().await.ok()?.forget();
    }
    tx.commit().await.ok()?;
    match kind {
        "chain" => {
            let body = format!(
                "{{\"events\": [{{\"topic\": \"invoices\", \"key\": \"{key}\", \"headers\": {{\"type\": \"invoice\"}}, \
                 \"payload\": {{\"of\": {n}}}}}]}}"
            );
            Some(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.posthaste.events+json; charset=utf-8\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            ))
        }
        "odd" if attempt < 2 => {
            let body = "{\"events\": [{\"topic\": \"\", \"payload\": 1}]}";
            Some(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.posthaste.events+json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
        }
        _ => empty("204 No Content"),
    }
}

/// What is known of each message, where the application keeps the marks.
const APP_MARKS: &str = "create or replace view trial.marks as
select message_id as id, outcome::text as outcome from posthaste.inbox
union all select message_id, 'w' from posthaste.inbox_deferred where message_id not in (select message_id from posthaste.inbox)
union all select message_id, 'x' from posthaste.inbox_dead_letters where message_id not in (select message_id from posthaste.inbox)";

pub(super) async fn set(consumer: &str, marks: MarkedBy) -> Result<(Rig, Service), ServiceError> {
    let rig = Rig::set(consumer).await?;
    let service = Service::start(&rig, marks).await;
    let address = service.address;
    let marks_line = if marks == MarkedBy::App {
        rig.run(APP_MARKS).await;
        "\nmarks = \"app\""
    } else {
        ""
    };
    let receiver = format!("{{ url = \"http://{address}/events\", token = \"hunter2-secret\" }}");
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = {receiver}{marks_line}"));
    Ok((rig, service))
}

/// First effects of each key, in the order in which they happened.
pub(super) async fn assert_first_effects_are_in_order(rig: &Rig, when: &str) {
    let back = "select count(*) from (select n < lag(n) over (partition by key order by seq) as back from \
                (select distinct on (id) * from trial.effects order by id, seq) e) f where back";
    assert_eq!(rig.count(back).await, 0, "a key is out of order, {when}");
}
