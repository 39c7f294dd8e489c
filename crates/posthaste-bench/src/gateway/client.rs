//! Whoever hands in: clients with a connection each that they keep, and requests made before the clock runs.
//!
//! They are the same for the gateway and for what it is compared with, and as small as can be: one write and
//! one read a request, with nothing of an answer looked at but its status and its length.

use anyhow::{Context as _, bail};
use bytes::{Buf as _, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A request without an answer is one that failed.
const PATIENCE: Duration = Duration::from_secs(30);
const ACCEPTED: u16 = 202;

/// A request, whole.
pub(super) fn request(path: &str, key: &str, content_type: &str, body: &[u8]) -> Bytes {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n\
         content-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat().into()
}

/// A connection that is kept.
pub(super) struct ClientLine {
    stream: TcpStream,
    buffer: BytesMut,
}

impl ClientLine {
    pub(super) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("no connection")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: BytesMut::with_capacity(4 << 10) })
    }

    /// Sends a request, and reads the whole answer.
    pub(super) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<u16> {
        timeout(PATIENCE, self.exchange(request)).await.context("no answer")?
    }

    async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<u16> {
        self.stream.write_all(request).await?;
        loop {
            if let Some((status, whole)) = answer(&self.buffer)?
                && self.buffer.len() >= whole
            {
                self.buffer.advance(whole);
                return Ok(status);
            }
            self.buffer.reserve(4 << 10);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the connection was closed");
            }
        }
    }
}

/// The status of the answer at the front and its length with the body, once its head is complete.
fn answer(buffer: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
    let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&buffer[..end])?;
    let status = head.get(9..12).and_then(|text| text.parse().ok()).context("an answer that is none")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    Ok(Some((status, end + 4 + length.context("an answer without a length")?)))
}

/// What clients do: whom they ask for what.
#[derive(Clone)]
pub(super) struct Asking {
    pub(super) address: SocketAddr,
    /// Of each client; there may be fewer than clients.
    pub(super) requests: Arc<Vec<Bytes>>,
    pub(super) clients: usize,
}

/// When times count.
#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    until: Instant,
}

impl Window {
    /// The first part is for warming up.
    fn of(time: Duration) -> Self {
        let from = Instant::now() + (time / 4).min(Duration::from_secs(1));
        Self { from, until: from + time }
    }

    fn seconds(self) -> f64 {
        (self.until - self.from).as_secs_f64()
    }
}

/// What became of requests.
#[derive(Default)]
pub(super) struct Answers {
    /// Of those that were accepted within the time.
    pub(super) times_ms: Vec<f64>,
    /// All of them.
    pub(super) by_status: BTreeMap<u16, u64>,
    /// How long that time was.
    seconds: f64,
}

impl Answers {
    fn note(&mut self, status: u16, began: Instant, window: Window) {
        *self.by_status.entry(status).or_default() += 1;
        let now = Instant::now();
        if status == ACCEPTED && (window.from..window.until).contains(&now) {
            self.times_ms.push((now - began).as_secs_f64() * 1e3);
        }
    }

    /// Requests a second that were accepted.
    pub(super) fn per_s(&self) -> f64 {
        self.times_ms.len() as f64 / self.seconds
    }

    pub(super) fn accepted(&self) -> u64 {
        self.by_status.get(&ACCEPTED).copied().unwrap_or_default()
    }

    /// An error if one was refused.
    pub(super) fn all_accepted(self, what: &str) -> anyhow::Result<Self> {
        if self.by_status.keys().any(|status| *status != ACCEPTED) {
            bail!("{what}: answers by status, and 202 was expected of all: {:?}", self.by_status);
        }
        Ok(self)
    }
}

impl Asking {
    /// Each client sends the next request when it has its answer.
    pub(super) async fn closed(&self, time: Duration) -> anyhow::Result<Answers> {
        let window = Window::of(time);
        let client = |address, request: Bytes| async move {
            let (mut line, mut answers) = (ClientLine::open(address).await?, Answers::default());
            loop {
                let began = Instant::now();
                if began >= window.until {
                    return Ok(answers);
                }
                answers.note(line.ask(&request).await?, began, window);
            }
        };
        let all = (0..self.clients).map(|index| client(self.address, self.request(index)));
        gather(all, window).await
    }

    /// Request n goes out at its intended time, or as soon as a client is free, and its time counts from
    /// there (F90).
    pub(super) async fn paced(&self, rate: f64, time: Duration) -> anyhow::Result<Answers> {
        let (next, start, window) = (Arc::new(AtomicU64::new(0)), Instant::now(), Window::of(time));
        let client = |address, request: Bytes, next: Arc<AtomicU64>| async move {
            let (mut line, mut answers) = (ClientLine::open(address).await?, Answers::default());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let intended = start + Duration::from_secs_f64(number as f64 / rate);
                if intended >= window.until {
                    return Ok(answers);
                }
                tokio::time::sleep_until(intended.into()).await; // pace
                answers.note(line.ask(&request).await?, intended, window);
            }
        };
        let all = (0..self.clients).map(|index| client(self.address, self.request(index), Arc::clone(&next)));
        gather(all, window).await
    }

    fn request(&self, index: usize) -> Bytes {
        self.requests[index % self.requests.len()].clone()
    }
}

async fn gather<F>(clients: impl Iterator<Item = F>, window: Window) -> anyhow::Result<Answers>
where
    F: Future<Output = anyhow::Result<Answers>> + Send + 'static,
{
    let mut under_way: JoinSet<_> = clients.collect();
    let mut all = Answers { seconds: window.seconds(), ..Answers::default() };
    while let Some(answers) = under_way.join_next().await {
        let answers = answers??;
        all.times_ms.extend(answers.times_ms);
        for (status, count) in answers.by_status {
            *all.by_status.entry(status).or_default() += count;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_head_and_its_body() {
        let text = b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\ndate: today\r\n\r\nabcHTTP";
        let head = text.len() - 7;
        assert_eq!(answer(text).expect("an answer"), Some((202, head + 3)));
        assert_eq!(answer(&text[..head - 1]).expect("half of it"), None);
        assert!(answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length");
        assert!(answer(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn a_rate_is_of_what_was_accepted_within_its_time() {
        let now = Instant::now();
        let window = Window { from: now - Duration::from_secs(1), until: now + Duration::from_secs(9) };
        let mut answers = Answers { seconds: window.seconds(), ..Answers::default() };
        for status in [202, 202, 429] {
            answers.note(status, now, window);
        }
        answers.note(202, now, Window { from: now + Duration::from_secs(5), ..window });
        assert_eq!((answers.per_s(), answers.accepted()), (0.2, 3));
        assert!(answers.all_accepted("it").is_err());
    }
}
