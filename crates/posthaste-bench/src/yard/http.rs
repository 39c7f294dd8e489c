//! HTTP in a measurement: a receiver inside it, which keeps the id of each request.
//!
//! There is no broker to start: the measurement is the receiver, on a loopback port of its own, and the
//! relay is another process. It speaks HTTP/1.1 by hand, answers 200 with nothing, and stores ids in memory:
//! what it costs is the least that a receiver can cost, and the same for the sink and for the client alone.
//!
//! The client alone is reqwest with as many requests at once as the sink has slots for a host, from tasks of
//! their own, with the headers that the sink sends. Neither signs.

use super::{Arrived, Yard, YardError, YardResult};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use posthaste::sink::Message;
use posthaste::task::{Task, spawn};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Requests that the client alone has in flight: the sink's default for a host.
const AT_ONCE: usize = 32;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Starts a receiver.
pub(crate) async fn open(target: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    if target != "http" {
        return Err(YardError::new("a measurement is its own receiver: the sink's name is just http"));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let (address, arrivals) = (listener.local_addr()?, Arc::new(Mutex::new(Arrivals::default())));
    let task = spawn("bench receiver", accept(listener, Arc::clone(&arrivals)));
    Ok(Box::new(HttpYard { address, destination: destination.to_owned(), arrivals, task }))
}

/// What came.
#[derive(Default)]
struct Arrivals {
    ids: Vec<Uuid>,
    arrived: Option<Arrived>,
}

fn lock(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

struct HttpYard {
    address: SocketAddr,
    destination: String,
    arrivals: Arc<Mutex<Arrivals>>,
    task: Task<()>,
}

#[async_trait]
impl Yard for HttpYard {
    fn sink(&self) -> Map<String, Value> {
        let url = format!("http://{}", self.address);
        let options = json!({ "type": "http", "url": url, "allow_networks": ["127.0.0.1"] });
        options.as_object().cloned().unwrap_or_default()
    }

    async fn clear(&mut self, _window: Option<Duration>) -> YardResult<()> {
        lock(&self.arrivals).ids = Vec::new();
        Ok(())
    }

    async fn count(&mut self) -> YardResult<u64> {
        Ok(lock(&self.arrivals).ids.len() as u64)
    }

    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        lock(&self.arrivals).ids.iter().for_each(|id| seen(*id));
        Ok(())
    }

    async fn follow(self: Box<Self>, arrived: Arrived) -> YardResult<Task<()>> {
        lock(&self.arrivals).arrived = Some(arrived);
        Ok(self.task)
    }

    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration> {
        let url = format!("http://{}/{}", self.address, self.destination);
        let client = reqwest::Client::builder().no_proxy().build().map_err(YardError::new)?;
        let ready: Vec<_> = messages.iter().map(ready).collect::<YardResult<_>>()?;
        let (ready, next) = (Arc::new(ready), Arc::new(AtomicUsize::new(0)));
        let started = Instant::now();
        let mut senders = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (client, url) = (client.clone(), url.clone());
            let (ready, next) = (Arc::clone(&ready), Arc::clone(&next));
            senders.spawn(async move {
                while let Some((headers, body)) = ready.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let request = client.post(&url).headers(headers.clone()).body(body.clone());
                    let response = request.send().await.and_then(reqwest::Response::error_for_status);
                    response.map_err(YardError::new)?.bytes().await.map_err(YardError::new)?;
                }
                Ok::<_, YardError>(())
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended.map_err(YardError::new)??;
        }
        Ok(started.elapsed())
    }

    async fn remove(&mut self) -> YardResult<()> {
        self.clear(None).await
    }

    fn evidence(&self) -> &'static str {
        "the webhook-id of every request that the receiver answered"
    }
}

/// Headers and body of a request, made before the measurement.
fn ready(message: &Message) -> YardResult<(HeaderMap, Bytes)> {
    let mut headers = HeaderMap::new();
    let mut bad = None;
    message.each_header(|name, value| {
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => drop(headers.append(name, value)),
            _ => bad = Some(name.to_owned()),
        }
    });
    let id = HeaderValue::from_str(&message.id()).map_err(YardError::new)?;
    headers.insert("webhook-id", id.clone());
    headers.insert("idempotency-key", id);
    headers.insert("webhook-timestamp", HeaderValue::from_static("1700000000"));
    match bad {
        Some(name) => Err(YardError(format!("header {name} cannot travel"))),
        None => Ok((headers, message.payload.clone().unwrap_or_default())),
    }
}

async fn accept(listener: TcpListener, arrivals: Arc<Mutex<Arrivals>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let arrivals = Arc::clone(&arrivals);
        connections.spawn(async move {
            // A relay that is killed leaves in the middle of something.
            let _ = serve(stream, &arrivals).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, arrivals: &Mutex<Arrivals>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(16 << 10);
    loop {
        while let Some((id, whole)) = request(&buffer) {
            if buffer.len() < whole {
                break;
            }
            let _ = buffer.split_to(whole);
            note(arrivals, id);
            stream.write_all(ANSWER).await?;
        }
        buffer.reserve(16 << 10);
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn note(arrivals: &Mutex<Arrivals>, id: Option<Uuid>) {
    let mut arrivals = lock(arrivals);
    arrivals.ids.extend(id);
    if let (Some(arrived), Some(id)) = (&mut arrivals.arrived, id) {
        arrived(id, Instant::now());
    }
}

/// The id of the request at the front and its length with the body, once its head is complete.
fn request(buffer: &[u8]) -> Option<(Option<Uuid>, usize)> {
    let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (mut id, mut length) = (None, 0);
    for line in buffer[..end].split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let text = || std::str::from_utf8(value).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"webhook-id") {
            id = Uuid::try_parse(text()).ok();
        } else if name.eq_ignore_ascii_case(b"content-length") {
            length = text().parse().unwrap_or(0);
        }
    }
    Some((id, end + 4 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_its_head_and_its_body() {
        let id = Uuid::now_v7();
        let head = format!("POST / HTTP/1.1\r\nWebhook-Id: {id}\r\ncontent-length: 3\r\n\r\n");
        let text = format!("{head}abcPOST");
        assert_eq!(request(text.as_bytes()), Some((Some(id), head.len() + 3)));
        assert_eq!(request(&text.as_bytes()[..head.len() - 1]), None);
    }
}
