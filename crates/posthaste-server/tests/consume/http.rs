//! Handlers behind HTTP: a service that answers requests, and what goes wrong with it.
//!
//! The service notes each request as an effect. With `marks = "app"` it admits the message in the same
//! transaction; otherwise nothing of its own would stop it from doing a thing twice.

use crate::member::{Member, WAIT};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::ServiceError;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::NoTls;

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
/// A message that fails is deferred at once.
const DEFERRING: &str =
    "batch_max = 8\nretry = { delays_ms = [], then = { max_attempts = 5, initial_ms = 50, max_ms = 100 } }";

#[derive(Clone, Copy, PartialEq)]
enum MarkedBy {
    Posthaste,
    App,
}

/// The service of the trials.
struct Service {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Answers 503, and asks to be left alone for so many seconds.
    away: AtomicBool,
    requests: AtomicUsize,
    most_at_once: AtomicUsize,
    at_once: AtomicUsize,
    /// Dies before its own commit, once.
    dies: AtomicBool,
}

struct Asked {
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Service {
    async fn start(rig: &Rig, marks: MarkedBy) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
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
    let (id, key, kind) = (header("message-id"), header("key"), header("type"));
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

async fn set(consumer: &str, marks: MarkedBy) -> Result<(Rig, Service), ServiceError> {
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
async fn assert_first_effects_are_in_order(rig: &Rig, when: &str) {
    let back = "select count(*) from (select n < lag(n) over (partition by key order by seq) as back from \
                (select distinct on (id) * from trial.effects order by id, seq) e) f where back";
    assert_eq!(rig.count(back).await, 0, "a key is out of order, {when}");
}

/// Marks are ours: each message is asked about once while nobody dies, its events are appended with its mark,
/// and what fails is tried again, deferred and given up as with any other handler.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_receivers_answers_are_marked_and_its_events_appended() {
    let (rig, service) = require_service!(set(DEFERRING, MarkedBy::Posthaste).await);
    rig.publish(40, "order").await;
    rig.publish(8, "late").await;
    rig.publish(16, "chain").await;
    rig.publish(3, "reject").await;
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.until(EFFECTS, 104).await;
    rig.check("with a receiver").await;
    let events = "select count(*) from posthaste.outbox where topic = 'invoices' and headers ->> 'causation-id' like 'm%' \
                  and headers ->> 'correlation-id' is not null and convert_from(payload, 'UTF8')::jsonb ? 'of'";
    assert_eq!(rig.count(events).await, 16, "events of answers");
    let letters = "select count(*) from posthaste.inbox_dead_letters where disposition = 'rejected' and error_code = 'http.422' \
                   and attempts = 1 and stack like '%no order%' and error || stack not like '%hunter2%'";
    assert_eq!(
        (rig.count(letters).await, rig.count(LETTERS).await),
        (3, 3),
        "refused at once, secrets masked"
    );
    // 8 late ones are asked three times; nobody else twice.
    assert_eq!(service.shared.requests.load(Ordering::SeqCst), 107 + 16, "requests");
    rig.finish(member, "with a receiver").await;
}

/// The process dies under load: effects outside happen at least once, marks and events once, keys in order.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_death_repeats_requests_and_nothing_else() {
    let (rig, _service) = require_service!(set(DEFERRING, MarkedBy::Posthaste).await);
    rig.publish_mixed(400, |n| if n % 5 == 0 { "chain" } else { "order" }).await;
    for round in 1..=2 {
        let mut member = rig.start();
        rig.until(EFFECTS, round * 100).await;
        member.kill9();
    }
    let member = rig.start();
    rig.until_settled().await;
    assert_eq!(rig.count("select count(distinct id) from trial.effects").await, 400);
    let events = rig.count("select count(*) from posthaste.outbox where topic = 'invoices'").await;
    assert_eq!(events, 80, "events of answers, each once");
    assert_first_effects_are_in_order(&rig, "after two deaths").await;
    member.stop().await;
}

/// Marks are the application's: its effects happen once, whatever dies, and nothing of ours is in its way.
#[tokio::test(flavor = "multi_thread")]
async fn g5_an_application_that_admits_has_its_effects_once() {
    let (rig, service) = require_service!(set(DEFERRING, MarkedBy::App).await);
    rig.publish_mixed(400, |n| if n % 40 == 0 { "late" } else { "order" }).await;
    service.shared.dies.store(true, Ordering::SeqCst);
    let mut member = rig.start();
    rig.until(EFFECTS, 100).await;
    member.kill9();
    let mut member = rig.start();
    rig.until(EFFECTS, 200).await;
    member.kill9();
    rig.publish(2, "reject").await;
    let member = rig.start();
    rig.until(LETTERS, 2).await;
    rig.until(EFFECTS, 400).await;
    rig.until_saved().await;
    rig.check("where the application keeps the marks").await;
    let ours = "select count(*) from posthaste.inbox where outcome <> 'd'";
    assert_eq!(rig.count(ours).await, 0, "we mark nothing");
    // A replayed letter is asked about again, and refused again.
    rig.cli(&["dead", "replay", "--consumer", "billing", "--all", "--yes", "--reason", "again"]).ok();
    rig.until("select count(*) from posthaste.inbox_dead_letters where replays > 0", 2).await;
    member.stop().await;
}

/// A receiver that is away pauses what needs it: no attempt, no letter, `Retry-After` is kept, it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_receiver_that_is_away_costs_no_attempt() {
    for marks in [MarkedBy::Posthaste, MarkedBy::App] {
        let (rig, service) = require_service!(set("", marks).await);
        service.shared.away.store(true, Ordering::SeqCst);
        rig.publish(60, "order").await;
        let member = rig.start();
        eventually("somebody was asked", WAIT, || async {
            (service.shared.requests.load(Ordering::SeqCst) > 0).then_some(())
        })
        .await;
        let why = |status: u16, text: &str| status == 503 && text.contains(&service.address.to_string());
        member.page("/readyz", "the receiver is named", why).await;
        let asked = service.shared.requests.load(Ordering::SeqCst);
        assert!(asked < 60, "nobody is asked again and again while it is away: {asked}");
        service.shared.away.store(false, Ordering::SeqCst);
        rig.until(EFFECTS, 60).await;
        rig.until_saved().await;
        assert_innocent(&rig, &member).await;
        assert!(service.shared.most_at_once.load(Ordering::SeqCst) <= 16);
        member.stop().await;
    }
}

async fn assert_innocent(rig: &Rig, member: &Member) {
    crate::handlers::assert_innocent(rig, member, "after a receiver was away").await;
}

/// Answers that are none: half of one, one of ten megabytes, events that cannot be, 404, a redirect. Each is
/// an attempt of its message, and others do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn f49_an_answer_that_is_none_is_an_attempt() {
    let settings = "retry = { delays_ms = [50] }";
    let (rig, _service) = require_service!(set(settings, MarkedBy::Posthaste).await);
    for kind in ["half", "huge", "odd", "gone", "moved"] {
        rig.publish(1, kind).await;
    }
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let codes = "select count(*) from posthaste.inbox_dead_letters where disposition = 'exhausted' and attempts = 2 \
                 and error_code in ('http.404', 'http.302')";
    assert_eq!((rig.count(codes).await, rig.count(LETTERS).await), (2, 2));
    let done = "select count(distinct id) from trial.effects";
    assert_eq!(rig.count(done).await, 43, "the others are done");
    member.stop().await;
}

/// Nobody listens: a receiver that is refused is away, and doctor says so.
#[tokio::test(flavor = "multi_thread")]
async fn f85_a_receiver_that_is_not_there_is_named() {
    let rig = require_service!(Rig::set("").await);
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("one").port();
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"http://127.0.0.1:{port}/events\""));
    let found = rig.cli(&["doctor"]);
    assert!(
        found.out.contains("handlers") && found.out.contains(&format!("127.0.0.1:{port}")),
        "{}",
        found.out
    );
    rig.publish(5, "order").await;
    let member = rig.start();
    let named = |status: u16, text: &str| status == 503 && text.contains(&format!("127.0.0.1:{port}"));
    member.page("/readyz", "the receiver is named", named).await;
    assert_eq!(rig.count(LETTERS).await, 0);
    member.stop().await;
}

/// A request that takes longer than the handler's time has failed, and is an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_says_nothing_is_out_of_time() {
    let settings = "handler_timeout_ms = 1000\nretry = { delays_ms = [] }";
    let rig = require_service!(Rig::set(settings).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let silent = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"http://{address}/events\""));
    rig.publish(2, "order").await;
    let member = rig.start();
    let dead = "select count(*) from posthaste.inbox_dead_letters where disposition = 'timeout' and error_code = 'http.timeout'";
    rig.until(dead, 2).await;
    silent.abort();
    member.stop().await;
}
