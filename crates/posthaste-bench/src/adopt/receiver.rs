//! An HTTP receiver that takes its time: each answer comes [`DELAY`] after its request, however many are
//! asked at once.

use bytes::BytesMut;
use posthaste::task::{Task, spawn};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a broker in another region takes.
pub(super) const DELAY: Duration = Duration::from_millis(10);

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[derive(Default)]
struct ReceivedIds {
    requests: u64,
    ids: HashSet<Vec<u8>>,
}

/// A receiver on a loopback port. Dropping it ends it.
pub(super) struct Receiver {
    address: SocketAddr,
    seen: Arc<Mutex<ReceivedIds>>,
    _task: Task<()>,
}

impl Receiver {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, seen) = (listener.local_addr()?, Arc::<Mutex<ReceivedIds>>::default());
        let task = spawn("bench receiver", accept(listener, Arc::clone(&seen)));
        Ok(Self { address, seen, _task: task })
    }

    /// Options of a sink that sends here, eight requests at once.
    pub(super) fn sink(&self) -> Map<String, Value> {
        let url = format!("http://{}", self.address);
        let options = json!({
            "type": "http", "url": url, "allow_networks": ["127.0.0.1"], "max_in_flight_per_host": 8,
        });
        options.as_object().cloned().unwrap_or_default()
    }

    /// Requests, and distinct ids among them.
    pub(super) fn seen(&self) -> (u64, u64) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.requests, seen.ids.len() as u64)
    }
}

async fn accept(listener: TcpListener, seen: Arc<Mutex<ReceivedIds>>) {
    let mut served = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        served.push(spawn("bench connection", async move { drop(serve(stream, &seen).await) }));
    }
}

async fn serve(mut stream: TcpStream, seen: &Mutex<ReceivedIds>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(16 << 10);
    loop {
        while let Some((id, whole)) = request(&buffer).filter(|(_, whole)| buffer.len() >= *whole) {
            let _ = buffer.split_to(whole);
            {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.requests += 1;
                seen.ids.insert(id);
            }
            tokio::time::sleep(DELAY).await;
            stream.write_all(ANSWER).await?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// The id of the request at the front and its length with the body, once its head is complete.
fn request(buffer: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let value = |wanted: &[u8]| {
        buffer[..end].split(|byte| *byte == b'\n').find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            line[..colon].eq_ignore_ascii_case(wanted).then(|| line[colon + 1..].trim_ascii())
        })
    };
    let length = value(b"content-length").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    Some((value(b"webhook-id").unwrap_or_default().to_vec(), end + 4 + length.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_its_head_and_its_body() {
        let head = "POST / HTTP/1.1\r\nWebhook-Id: a\r\ncontent-length: 3\r\n\r\n";
        let text = format!("{head}abcPOST");
        assert_eq!(request(text.as_bytes()), Some((b"a".to_vec(), head.len() + 3)));
        assert_eq!(request(&text.as_bytes()[..head.len() - 1]), None);
    }
}
