//! NATS in a measurement: makes the stream, counts what is in it, reads every id.
//!
//! The witness speaks the protocol by itself, which is a line of text and a payload, and uses nothing of the
//! sink or of its client. Only the client alone is the client: its own `publish_with_headers`, a window of
//! acknowledgements, each awaited.
//!
//! The stream is ours by its description. One of the same name without it is somebody's, and refused.

use super::{Arrived, Yard, YardError, YardResult};
use async_nats::jetstream;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::Message;
use posthaste::task::{Task, spawn};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) const STREAM: &str = "POSTHASTE_BENCH";
const MARK: &str = "posthaste bench: made for a measurement, may be deleted";

/// Longest time for an answer. A stream of a few gigabytes takes a moment to delete.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages in one request of [`Yard::read_all`].
const BATCH: u64 = 5_000;

/// How often an empty stream is tried to be had.
const TRIES: usize = 20;

/// How long a consumer that nobody reads lives on the server.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// A connection to the server.
struct NatsConnection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    inbox: String,
    destination: String,
    requests: u64,
}

/// One message.
struct Frame {
    subject: String,
    headers: String,
    payload: Vec<u8>,
}

/// Acknowledgements that the client alone awaits at once: more do not make it faster.
const WINDOW: usize = 4_096;

/// A server, seen from outside.
pub(crate) async fn open(url: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    Ok(Box::new(NatsYard { witness: NatsConnection::connect(url, destination).await?, url: url.to_owned() }))
}

struct NatsYard {
    witness: NatsConnection,
    url: String,
}

#[async_trait]
impl Yard for NatsYard {
    fn sink(&self) -> Map<String, Value> {
        Map::from_iter([("type".to_owned(), "nats".into()), ("url".to_owned(), self.url.as_str().into())])
    }

    async fn clear(&mut self, window: Option<Duration>) -> YardResult<()> {
        self.witness.fresh_stream(window).await
    }

    async fn count(&mut self) -> YardResult<u64> {
        self.witness.messages().await
    }

    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        self.witness.read_all(seen).await
    }

    async fn follow(self: Box<Self>, arrived: Arrived) -> YardResult<Task<()>> {
        self.witness.follow(arrived).await
    }

    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration> {
        let client = async_nats::connect(&self.url).await.map_err(YardError::new)?;
        let context = jetstream::ContextBuilder::new().max_ack_inflight(WINDOW).build(client);
        let started = Instant::now();
        let mut acknowledgements = FuturesUnordered::new();
        for message in messages {
            if acknowledgements.len() >= WINDOW {
                let answer: Option<Result<_, _>> = acknowledgements.next().await;
                answer.transpose().map_err(YardError::new)?;
            }
            let mut headers = async_nats::HeaderMap::new();
            message.each_header(|name, value| headers.insert(name, value));
            let dedup = format!("{}:{}", message.id(), message.destination);
            headers.insert(async_nats::header::NATS_MESSAGE_ID, dedup);
            let payload = message.payload.clone().unwrap_or_default();
            let sent = context.publish_with_headers(message.destination.clone(), headers, payload).await;
            acknowledgements.push(sent.map_err(YardError::new)?.into_future());
        }
        while let Some(answer) = acknowledgements.next().await {
            answer.map_err(YardError::new)?;
        }
        Ok(started.elapsed())
    }

    async fn remove(&mut self) -> YardResult<()> {
        self.witness.delete_stream().await
    }

    fn evidence(&self) -> &'static str {
        "every message's id read from the stream"
    }
}

/// Somebody else's word for what is missing.
trait Because<T> {
    fn because(self, what: &str) -> YardResult<T>;
}

impl<T, E: std::fmt::Display> Because<T> for Result<T, E> {
    fn because(self, what: &str) -> YardResult<T> {
        self.map_err(|error| YardError(format!("{what}: {error}")))
    }
}

fn bad<T>(what: impl Into<String>) -> YardResult<T> {
    Err(YardError(what.into()))
}

impl NatsConnection {
    async fn connect(url: &str, destination: &str) -> YardResult<Self> {
        let first = url.split(',').next().unwrap_or_default();
        let address = first.trim_start_matches("nats://").trim_end_matches('/');
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:4222") };
        let stream = TcpStream::connect(&address).await.because("cannot reach the NATS server")?;
        stream.set_nodelay(true).map_err(YardError::new)?;
        let (reader, writer) = stream.into_split();
        let inbox = format!("_INBOX.{}", Uuid::now_v7().simple());
        let reader = BufReader::with_capacity(1 << 18, reader);
        let mut witness = Self { reader, writer, inbox, destination: destination.to_owned(), requests: 0 };
        timeout(PATIENCE, witness.greet()).await.because("the NATS server does not answer")??;
        Ok(witness)
    }

    async fn greet(&mut self) -> YardResult<()> {
        let line = self.line().await?;
        let info: Value = serde_json::from_str(
            line.strip_prefix("INFO ").ok_or_else(|| YardError::new("this is no NATS server"))?,
        )?;
        if info["tls_required"] == true || info["auth_required"] == true {
            return bad(
                "the NATS server wants TLS or a login, which a measurement does not have: use an open one",
            );
        }
        let options = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "posthaste",
            "version": env!("CARGO_PKG_VERSION"), "name": "posthaste bench",
        });
        let text = format!("CONNECT {options}\r\nSUB {}.* 1\r\nPING\r\n", self.inbox);
        self.writer.write_all(text.as_bytes()).await?;
        while self.line().await? != "PONG" {}
        Ok(())
    }

    async fn line(&mut self) -> YardResult<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            return bad("the NATS server closed the connection");
        }
        if line.starts_with("-ERR") {
            return bad(format!("the NATS server says {}", line.trim_end()));
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next message. Pings are answered on the way.
    async fn frame(&mut self) -> YardResult<Frame> {
        loop {
            let line = self.line().await?;
            let words: Vec<&str> = line.split(' ').collect();
            let size = |n: usize| {
                words
                    .get(n)
                    .and_then(|word| word.parse::<usize>().ok())
                    .ok_or_else(|| YardError::new("a message without a size"))
            };
            match words[0] {
                "PING" => self.writer.write_all(b"PONG\r\n").await?,
                "MSG" => {
                    let payload = self.bytes(size(words.len() - 1)?).await?;
                    return Ok(Frame { subject: words[1].to_owned(), headers: String::new(), payload });
                }
                "HMSG" => {
                    let (headers, total) = (size(words.len() - 2)?, size(words.len() - 1)?);
                    let mut head = self.bytes(total).await?;
                    let payload = head.split_off(headers.min(total));
                    let headers = String::from_utf8_lossy(&head).into_owned();
                    return Ok(Frame { subject: words[1].to_owned(), headers, payload });
                }
                _ => {}
            }
        }
    }

    /// A message's bytes and the line end after them.
    async fn bytes(&mut self, size: usize) -> YardResult<Vec<u8>> {
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).await?;
        bytes.truncate(size);
        Ok(bytes)
    }

    /// Asks for something. Answers with the subject that replies come to.
    async fn ask(&mut self, subject: &str, body: &str) -> YardResult<String> {
        self.requests += 1;
        let reply = format!("{}.{}", self.inbox, self.requests);
        let text = format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len());
        self.writer.write_all(text.as_bytes()).await?;
        Ok(reply)
    }

    /// Calls JetStream's API.
    async fn call(&mut self, subject: &str, body: &Value) -> YardResult<Value> {
        let reply = self.ask(&format!("$JS.API.{subject}"), &body.to_string()).await?;
        let answer = async {
            loop {
                let frame = self.frame().await?;
                if frame.subject == reply {
                    return Ok::<_, YardError>(frame);
                }
            }
        };
        let frame = timeout(PATIENCE, answer).await.because("the NATS server does not answer")??;
        if frame.headers.starts_with("NATS/1.0 503") {
            return bad("the NATS server has no JetStream: start it with -js");
        }
        Ok(serde_json::from_slice(&frame.payload)?)
    }

    /// An empty stream on files, with this window for duplicates or the usual one of two minutes.
    async fn fresh_stream(&mut self, window: Option<Duration>) -> YardResult<()> {
        let mut config = json!({
            "name": STREAM, "description": MARK, "subjects": [&self.destination], "storage": "file", "retention": "limits",
            "num_replicas": 1, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
        });
        if let Some(window) = window {
            config["duplicate_window"] = json!(window.as_nanos() as u64);
        }
        for _ in 0..TRIES {
            self.clear().await?;
            checked(self.call(&format!("STREAM.CREATE.{STREAM}"), &config).await?, "make the stream")?;
            // The server removes files after it has answered, and a stream that is made and deleted in that
            // time leaves its messages to the next one of its name (seen with 2.15).
            if self.messages().await? == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        bad(format!("the new stream {STREAM} is not empty"))
    }

    /// Takes away what an earlier run or round has left.
    async fn clear(&mut self) -> YardResult<()> {
        let found = self.call(&format!("STREAM.INFO.{STREAM}"), &json!({})).await?;
        if !found["error"].is_null() {
            return Ok(());
        }
        if found["config"]["description"] != MARK {
            return bad(format!(
                "there is a stream {STREAM} that was not made by `posthaste-bench`: rename it first"
            ));
        }
        self.delete_stream().await
    }

    /// Takes the stream away.
    async fn delete_stream(&mut self) -> YardResult<()> {
        checked(self.call(&format!("STREAM.DELETE.{STREAM}"), &json!({})).await?, "delete the stream")
            .map(drop)
    }

    /// How many messages the stream holds.
    async fn messages(&mut self) -> YardResult<u64> {
        let info =
            checked(self.call(&format!("STREAM.INFO.{STREAM}"), &json!({})).await?, "look at the stream")?;
        info["state"]["messages"]
            .as_u64()
            .ok_or_else(|| YardError::new("the stream does not say how many messages it has"))
    }

    /// Reads the whole stream in its order, headers only.
    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        let mut left = self.messages().await?;
        let consumer = self.consumer(json!({ "deliver_policy": "all" })).await?;
        while left > 0 {
            let wanted = left.min(BATCH);
            let body = json!({ "batch": wanted, "expires": PATIENCE.as_nanos() as u64 }).to_string();
            let reply = self.ask(&format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"), &body).await?;
            for _ in 0..wanted {
                let frame = timeout(PATIENCE, self.frame()).await.because("the stream does not answer")??;
                let Some(id) = frame.id() else {
                    return bad(format!("a message without an id came to {reply}: {}", frame.headers.trim()));
                };
                seen(id);
            }
            left -= wanted;
        }
        Ok(())
    }

    async fn consumer(&mut self, more: Value) -> YardResult<String> {
        let mut config = json!({
            "ack_policy": "none", "headers_only": true, "mem_storage": true,
            "inactive_threshold": FORGET_AFTER.as_nanos() as u64,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        let body = json!({ "stream_name": STREAM, "config": config });
        let made = checked(self.call(&format!("CONSUMER.CREATE.{STREAM}"), &body).await?, "read the stream")?;
        made["name"].as_str().map(str::to_owned).ok_or_else(|| YardError::new("the consumer has no name"))
    }

    /// Calls `arrived` for every message that the stream stores from now on, until the task is dropped.
    async fn follow(mut self, mut arrived: Arrived) -> YardResult<Task<()>> {
        // The server looks for somebody who listens on just this subject, not on a pattern that covers it.
        let deliver = format!("{}-new", self.inbox);
        self.writer.write_all(format!("SUB {deliver} 2\r\n").as_bytes()).await?;
        self.consumer(json!({ "deliver_policy": "new", "deliver_subject": deliver })).await?;
        Ok(spawn("bench witness", async move {
            while let Ok(frame) = self.frame().await {
                if let Some(id) = frame.id() {
                    arrived(id, Instant::now());
                }
            }
        }))
    }
}

impl Frame {
    fn id(&self) -> Option<Uuid> {
        let value = self.headers.lines().find_map(|line| line.strip_prefix("Message-ID:"))?;
        Uuid::try_parse(value.trim()).ok()
    }
}

/// An answer, or the error in it.
fn checked(answer: Value, what: &str) -> YardResult<Value> {
    match answer["error"]["description"].as_str() {
        Some(error) => bad(format!("NATS: cannot {what}: {error}")),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_message_is_in_its_headers() {
        let id = Uuid::now_v7();
        let headers =
            format!("NATS/1.0\r\nNats-Msg-Id: {id}:s.x\r\nkey: Message-ID: x\r\nMessage-ID: {id}\r\n\r\n");
        let frame = |headers: &str| Frame {
            subject: String::new(),
            headers: headers.to_owned(),
            payload: Vec::new(),
        };
        assert_eq!(frame(&headers).id(), Some(id));
        assert_eq!(frame("NATS/1.0 404 No Messages\r\n\r\n").id(), None);
    }
}
