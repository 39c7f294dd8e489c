//! The witness of a drain to NATS: makes the stream, counts what is in it, reads every id.
//!
//! It speaks the protocol by itself, which is a line of text and a payload, and uses nothing of the sink or
//! of its client: a witness that shares code with the accused proves little. And this crate keeps out of its
//! manifest what belongs to the brokers' one. The price is that it knows neither TLS nor passwords, so a
//! measurement wants an open server, as `./bench` starts one.
//!
//! The stream is ours by its description. One of the same name without it is somebody's, and refused.

use super::load::{Seen, TOPIC};
use crate::config::scrub;
use crate::output::Usage;
use anyhow::{Context as _, bail};
use posthaste::task::{Task, spawn};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use uuid::Uuid;

const STREAM: &str = "POSTHASTE_BENCH";
const MARK: &str = "posthaste bench: made for a measurement, may be deleted";

/// Longest time for an answer. A stream of a few gigabytes takes a moment to delete.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages in one request of [`Witness::read_all`].
const BATCH: u64 = 5_000;

/// How often an empty stream is tried to be had.
const TRIES: usize = 20;

/// How long a consumer that nobody reads lives on the server.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// A connection to the server.
pub(super) struct Witness {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    inbox: String,
    requests: u64,
}

/// One message.
struct Frame {
    subject: String,
    headers: String,
    payload: Vec<u8>,
}

impl Witness {
    /// For a sink that is NATS; `None` for any other.
    pub(super) async fn for_sink(sink: &str) -> anyhow::Result<Option<Self>> {
        match sink.split_once("://") {
            Some(("nats", _)) => Ok(Some(Self::connect(sink).await?)),
            Some(("tls", _)) => {
                Err(Usage("a measurement wants a NATS server without TLS: nats://host:port".to_owned())
                    .into())
            }
            _ => Ok(None),
        }
    }

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let first = url.split(',').next().unwrap_or_default();
        let address = first.trim_start_matches("nats://").trim_end_matches('/');
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:4222") };
        let stream =
            TcpStream::connect(&address).await.with_context(|| format!("cannot reach {}", scrub(first)))?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let inbox = format!("_INBOX.{}", Uuid::now_v7().simple());
        let mut witness =
            Self { reader: BufReader::with_capacity(1 << 18, reader), writer, inbox, requests: 0 };
        timeout(PATIENCE, witness.greet()).await.context("the NATS server does not answer")??;
        Ok(witness)
    }

    async fn greet(&mut self) -> anyhow::Result<()> {
        let line = self.line().await?;
        let info: Value =
            serde_json::from_str(line.strip_prefix("INFO ").context("this is no NATS server")?)?;
        if info["tls_required"] == true || info["auth_required"] == true {
            bail!("the NATS server wants TLS or a login, which a measurement does not have: use an open one");
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

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            bail!("the NATS server closed the connection");
        }
        if line.starts_with("-ERR") {
            bail!("the NATS server says {}", line.trim_end());
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next message. Pings are answered on the way.
    async fn frame(&mut self) -> anyhow::Result<Frame> {
        loop {
            let line = self.line().await?;
            let words: Vec<&str> = line.split(' ').collect();
            let size = |n: usize| {
                words.get(n).and_then(|word| word.parse::<usize>().ok()).context("a message without a size")
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
    async fn bytes(&mut self, size: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).await?;
        bytes.truncate(size);
        Ok(bytes)
    }

    /// Asks for something. Answers with the subject that replies come to.
    async fn ask(&mut self, subject: &str, body: &str) -> anyhow::Result<String> {
        self.requests += 1;
        let reply = format!("{}.{}", self.inbox, self.requests);
        let text = format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len());
        self.writer.write_all(text.as_bytes()).await?;
        Ok(reply)
    }

    /// Calls JetStream's API.
    async fn call(&mut self, subject: &str, body: &Value) -> anyhow::Result<Value> {
        let reply = self.ask(&format!("$JS.API.{subject}"), &body.to_string()).await?;
        let answer = async {
            loop {
                let frame = self.frame().await?;
                if frame.subject == reply {
                    return anyhow::Ok(frame);
                }
            }
        };
        let frame = timeout(PATIENCE, answer).await.context("the NATS server does not answer")??;
        if frame.headers.starts_with("NATS/1.0 503") {
            bail!("the NATS server has no JetStream: start it with -js");
        }
        Ok(serde_json::from_slice(&frame.payload)?)
    }

    /// An empty stream on files, with this window for duplicates or the usual one of two minutes.
    pub(super) async fn fresh_stream(&mut self, window: Option<Duration>) -> anyhow::Result<()> {
        let mut config = json!({
            "name": STREAM, "description": MARK, "subjects": [TOPIC], "storage": "file", "retention": "limits",
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
        bail!("the new stream {STREAM} is not empty")
    }

    /// Takes away what an earlier run or round has left.
    async fn clear(&mut self) -> anyhow::Result<()> {
        let found = self.call(&format!("STREAM.INFO.{STREAM}"), &json!({})).await?;
        if !found["error"].is_null() {
            return Ok(());
        }
        if found["config"]["description"] != MARK {
            bail!(Usage(format!(
                "there is a stream {STREAM} that was not made by `posthaste bench`: rename it first"
            )));
        }
        self.delete_stream().await
    }

    /// Takes the stream away.
    pub(super) async fn delete_stream(&mut self) -> anyhow::Result<()> {
        checked(self.call(&format!("STREAM.DELETE.{STREAM}"), &json!({})).await?, "delete the stream")
            .map(drop)
    }

    /// How many messages the stream holds.
    pub(super) async fn messages(&mut self) -> anyhow::Result<u64> {
        let info =
            checked(self.call(&format!("STREAM.INFO.{STREAM}"), &json!({})).await?, "look at the stream")?;
        info["state"]["messages"].as_u64().context("the stream does not say how many messages it has")
    }

    /// Reads the whole stream in its order, headers only.
    pub(super) async fn read_all(&mut self, seen: &mut Seen) -> anyhow::Result<()> {
        let mut left = self.messages().await?;
        let consumer = self.consumer(json!({ "deliver_policy": "all" })).await?;
        while left > 0 {
            let wanted = left.min(BATCH);
            let body = json!({ "batch": wanted, "expires": PATIENCE.as_nanos() as u64 }).to_string();
            let reply = self.ask(&format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"), &body).await?;
            for _ in 0..wanted {
                let frame = timeout(PATIENCE, self.frame()).await.context("the stream does not answer")??;
                let Some(id) = frame.id() else {
                    bail!("a message without an id came to {reply}: {}", frame.headers.trim())
                };
                seen.note(id);
            }
            left -= wanted;
        }
        Ok(())
    }

    async fn consumer(&mut self, more: Value) -> anyhow::Result<String> {
        let mut config = json!({
            "ack_policy": "none", "headers_only": true, "mem_storage": true,
            "inactive_threshold": FORGET_AFTER.as_nanos() as u64,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        let body = json!({ "stream_name": STREAM, "config": config });
        let made = checked(self.call(&format!("CONSUMER.CREATE.{STREAM}"), &body).await?, "read the stream")?;
        made["name"].as_str().map(str::to_owned).context("the consumer has no name")
    }

    /// Calls `arrived` for every message that the stream stores from now on, until the task is dropped.
    pub(super) async fn follow(
        mut self,
        mut arrived: impl FnMut(Uuid, Instant) + Send + 'static,
    ) -> anyhow::Result<Task<()>> {
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
        let value = self.headers.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id:"))?;
        Uuid::try_parse(value.trim()).ok()
    }
}

/// An answer, or the error in it.
fn checked(answer: Value, what: &str) -> anyhow::Result<Value> {
    match answer["error"]["description"].as_str() {
        Some(error) => bail!("NATS: cannot {what}: {error}"),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_message_is_in_its_headers() {
        let id = Uuid::now_v7();
        let headers = format!("NATS/1.0\r\nkey: Nats-Msg-Id: x\r\nNats-Msg-Id: {id}\r\n\r\n");
        let frame = |headers: &str| Frame {
            subject: String::new(),
            headers: headers.to_owned(),
            payload: Vec::new(),
        };
        assert_eq!(frame(&headers).id(), Some(id));
        assert_eq!(frame("NATS/1.0 404 No Messages\r\n\r\n").id(), None);
    }
}
