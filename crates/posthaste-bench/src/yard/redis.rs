//! Redis in a measurement: empties the stream, counts what is in it, reads every id.
//!
//! The witness speaks the protocol by itself and uses nothing of the sink or of its client. Only the client
//! alone is the client: its own pipelines of `XADD`, each reply awaited.
//!
//! The stream is ours by a key beside it. One of the same name without that key is somebody's, and refused.

use super::{Arrived, Yard, YardError, YardResult};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::Message;
use posthaste::task::{Task, spawn};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

/// Longest time for an answer. A stream of a few gigabytes takes a moment to delete.
const PATIENCE: Duration = Duration::from_secs(30);
/// Entries in one request of [`Yard::read_all`].
const BATCH: &str = "2000";
/// Commands in a pipeline of the client alone, and pipelines at once: more of either do not make it faster.
const PIPELINE: usize = 500;
const PIPELINES: usize = 2;

/// A server, seen from outside.
pub(crate) async fn open(url: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    let witness = RedisConnection::connect(url, destination).await?;
    Ok(Box::new(RedisYard { witness, url: url.to_owned() }))
}

struct RedisYard {
    witness: RedisConnection,
    url: String,
}

#[async_trait]
impl Yard for RedisYard {
    fn sink(&self) -> Map<String, Value> {
        Map::from_iter([("type".to_owned(), "redis".into()), ("url".to_owned(), self.url.as_str().into())])
    }

    async fn clear(&mut self, _window: Option<Duration>) -> YardResult<()> {
        let RedisConnection { stream, mark, .. } = &self.witness;
        let (stream, mark) = (stream.clone(), mark.clone());
        let there = self.witness.number(&["EXISTS", &stream]).await? > 0;
        if there && self.witness.number(&["EXISTS", &mark]).await? == 0 {
            let text =
                format!("there is a key {stream} that was not made by `posthaste-bench`: rename it first");
            return Err(YardError::new(text));
        }
        self.witness.call(&["DEL", &stream]).await?;
        self.witness.call(&["SET", &mark, "made for a measurement, may be deleted"]).await.map(drop)
    }

    async fn count(&mut self) -> YardResult<u64> {
        let stream = self.witness.stream.clone();
        self.witness.number(&["XLEN", &stream]).await
    }

    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        self.witness.read_all(seen).await
    }

    async fn follow(self: Box<Self>, arrived: Arrived) -> YardResult<Task<()>> {
        self.witness.follow(arrived).await
    }

    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration> {
        let client = ::redis::Client::open(self.url.as_str()).map_err(YardError::new)?;
        let options = ::redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&options).await;
        let connection = connection.map_err(YardError::new)?;
        let started = Instant::now();
        let mut answers = FuturesUnordered::new();
        for chunk in messages.chunks(PIPELINE) {
            if answers.len() >= PIPELINES {
                let answer: Option<Result<Vec<String>, _>> = answers.next().await;
                answer.transpose().map_err(YardError::new)?;
            }
            let (pipeline, mut connection) = (pipeline(chunk), connection.clone());
            answers.push(async move { pipeline.query_async::<Vec<String>>(&mut connection).await });
        }
        while let Some(answer) = answers.next().await {
            answer.map_err(YardError::new)?;
        }
        Ok(started.elapsed())
    }

    async fn remove(&mut self) -> YardResult<()> {
        let (stream, mark) = (self.witness.stream.clone(), self.witness.mark.clone());
        self.witness.call(&["DEL", &stream, &mark]).await.map(drop)
    }

    fn evidence(&self) -> &'static str {
        "the field id of every entry read from the stream"
    }
}

/// What one would write by hand, with the fields that the sink writes.
fn pipeline(messages: &[Message]) -> ::redis::Pipeline {
    let mut pipeline = ::redis::Pipeline::with_capacity(messages.len());
    for message in messages {
        pipeline.cmd("XADD").arg(&message.destination).arg("*").arg("id").arg(message.id());
        if let Some(key) = &message.stored.event.key {
            pipeline.arg("key").arg(key);
        }
        if let Some(payload) = &message.payload {
            pipeline.arg("payload").arg(&payload[..]);
        }
        message.each_header(|name, value| {
            if name != "Message-ID" && name != "key" {
                pipeline.arg(format!("h:{name}")).arg(value);
            }
        });
    }
    pipeline
}

/// A connection to the server.
struct RedisConnection {
    connection: BufReader<TcpStream>,
    stream: String,
    /// The key that says that the stream is ours.
    mark: String,
}

/// An answer of the server.
#[derive(Debug, PartialEq)]
enum RespValue {
    Text(Vec<u8>),
    Number(i64),
    List(Vec<Self>),
    Nothing,
}

impl RedisConnection {
    async fn connect(url: &str, destination: &str) -> YardResult<Self> {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        if address.contains(['/', '@', ',']) {
            return Err(YardError::new("a measurement wants one open Redis server: redis://host:port"));
        }
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:6379") };
        let stream = TcpStream::connect(&address).await;
        let stream = stream.map_err(|error| YardError(format!("cannot reach the Redis server: {error}")))?;
        stream.set_nodelay(true)?;
        let mut witness = Self {
            connection: BufReader::with_capacity(1 << 18, stream),
            stream: destination.to_owned(),
            mark: format!("{destination}:posthaste-bench"),
        };
        witness.call(&["PING"]).await?;
        Ok(witness)
    }

    async fn call(&mut self, words: &[&str]) -> YardResult<RespValue> {
        let call = async {
            self.ask(words).await?;
            self.answer().await
        };
        timeout(PATIENCE, call).await.map_err(|_| YardError::new("the Redis server does not answer"))?
    }

    async fn ask(&mut self, words: &[&str]) -> YardResult<()> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        Ok(self.connection.get_mut().write_all(text.as_bytes()).await?)
    }

    async fn answer(&mut self) -> YardResult<RespValue> {
        let mut line = String::new();
        if self.connection.read_line(&mut line).await? == 0 {
            return Err(YardError::new("the Redis server closed the connection"));
        }
        let strange = || YardError::new("the Redis server answers strangely");
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(strange)?;
        let number = || rest.parse::<i64>().map_err(|_| strange());
        match kind {
            "+" => Ok(RespValue::Text(rest.as_bytes().to_vec())),
            "-" => Err(YardError(format!("the Redis server says {rest}"))),
            ":" => Ok(RespValue::Number(number()?)),
            "$" | "*" if number()? < 0 => Ok(RespValue::Nothing),
            "$" => {
                let size = usize::try_from(number()?).map_err(YardError::new)?;
                let mut text = vec![0; size + 2];
                self.connection.read_exact(&mut text).await?;
                text.truncate(size);
                Ok(RespValue::Text(text))
            }
            "*" => {
                let mut list = Vec::new();
                for _ in 0..number()? {
                    list.push(Box::pin(self.answer()).await?);
                }
                Ok(RespValue::List(list))
            }
            _ => Err(strange()),
        }
    }

    async fn number(&mut self, words: &[&str]) -> YardResult<u64> {
        match self.call(words).await? {
            RespValue::Number(number) => u64::try_from(number).map_err(YardError::new),
            _ => Err(YardError(format!("the Redis server answers {} strangely", words[0]))),
        }
    }

    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        let (stream, mut from) = (self.stream.clone(), "-".to_owned());
        loop {
            let answer = self.call(&["XRANGE", &stream, &from, "+", "COUNT", BATCH]).await?;
            let entries = entries(answer)?;
            let Some((last, _)) = entries.last() else { return Ok(()) };
            from = format!("({last}");
            entries.iter().for_each(|(_, id)| seen(*id));
        }
    }

    /// Calls `arrived` for every entry that the stream gets from now on, until the task is dropped.
    async fn follow(mut self, mut arrived: Arrived) -> YardResult<Task<()>> {
        let stream = self.stream.clone();
        let newest = entries(self.call(&["XREVRANGE", &stream, "+", "-", "COUNT", "1"]).await?)?;
        let mut from = newest.into_iter().next().map_or("0-0".to_owned(), |(last, _)| last);
        Ok(spawn("bench witness", async move {
            loop {
                let words = ["XREAD", "COUNT", BATCH, "BLOCK", "0", "STREAMS", &stream, &from];
                if self.ask(&words).await.is_err() {
                    return;
                }
                let Ok(answer) = self.answer().await else { return };
                let now = Instant::now();
                let Ok(entries) = entries(of_first_stream(answer)) else { return };
                for (entry, id) in entries {
                    arrived(id, now);
                    from = entry;
                }
            }
        }))
    }
}

/// `XREAD` answers with a list of streams, each its name and its entries.
fn of_first_stream(answer: RespValue) -> RespValue {
    let RespValue::List(mut streams) = answer else { return RespValue::Nothing };
    match (streams.len(), streams.pop()) {
        (1, Some(RespValue::List(mut pair))) => pair.pop().unwrap_or(RespValue::Nothing),
        _ => RespValue::Nothing,
    }
}

/// The entries' own ids, and those of the events in them.
fn entries(answer: RespValue) -> YardResult<Vec<(String, Uuid)>> {
    let RespValue::List(list) = answer else { return Err(YardError::new("no list of entries")) };
    let read = |entry: RespValue| {
        let RespValue::List(pair) = entry else { return None };
        let [RespValue::Text(entry), RespValue::List(fields)] = pair.as_slice() else { return None };
        let id = fields.chunks_exact(2).find_map(|field| match field {
            [RespValue::Text(name), RespValue::Text(value)] if name == b"id" => Some(value),
            _ => None,
        })?;
        let id = Uuid::try_parse_ascii(id).ok()?;
        Some((String::from_utf8_lossy(entry).into_owned(), id))
    };
    let read = |entry| read(entry).ok_or_else(|| YardError::new("an entry without an id"));
    list.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_event_is_the_field_of_that_name() {
        let text = |text: &str| RespValue::Text(text.as_bytes().to_vec());
        let id = Uuid::now_v7();
        let entry =
            |fields| RespValue::List(vec![RespValue::List(vec![text("1-0"), RespValue::List(fields)])]);
        let fields = vec![text("key"), text("id"), text("id"), text(&id.to_string())];
        assert_eq!(entries(entry(fields)).expect("an entry"), [("1-0".to_owned(), id)]);
        assert!(entries(entry(vec![text("key"), text("id")])).is_err());
    }
}
