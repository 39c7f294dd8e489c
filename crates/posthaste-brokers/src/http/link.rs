//! One connection to a receiver: HTTP/1.1 (`wire`), or HTTP/2, by hyper, where TLS has agreed on it.
//!
//! A connection of HTTP/2 serves many requests at once, and has a task of its own.

use super::answer::Head;
use super::letter::Letter;
use super::parcel::{Counted, Flushes, Gone, Parcel};
use super::place::Place;
use super::snippet;
use super::wire::Wire;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::header::RETRY_AFTER;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use posthaste::task::{Task, spawn};
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Of an answer's head: as for HTTP/1.1.
const HEAD_BYTES_MAX: u32 = 64 << 10;
/// A connection of HTTP/2 carries all requests of a host. One that has died silently must be noticed before
/// they all have timed out.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// TCP, or TLS on top of it.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}
pub(super) type Stream = Box<dyn Transport>;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The connection ended before the head of an answer was here.
pub(super) struct Lost {
    pub(super) error: BoxError,
    /// Whether it is certain that the receiver has not seen the request.
    pub(super) is_unsent: bool,
}

/// The head of an answer; its body is read with the connection that it came over.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<String>,
    body: Body,
}

enum Body {
    One(Head),
    Many(Incoming),
}

/// A connection.
pub(super) enum Link {
    One(Box<Wire>),
    Many(Many),
}

impl Link {
    pub(super) fn http1(stream: Stream) -> Self {
        Self::One(Box::new(Wire::new(stream)))
    }

    pub(super) async fn http2(stream: Stream) -> hyper::Result<Self> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES_MAX);
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let (stream, flushes) = Counted::new(stream);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let task = spawn("http2 connection", async move {
            // How it ended is told to those who wait for answers.
            let _ = connection.await;
        });
        Ok(Self::Many(Many { sender, flushes, task: Arc::new(task) }))
    }

    /// Whether it has nothing to do since its last answer.
    pub(super) fn is_free(&self) -> bool {
        match self {
            Self::One(wire) => wire.is_free(),
            Self::Many(many) => !many.is_closed(),
        }
    }

    /// The connection once more, if several can use it.
    pub(super) fn shared(&self) -> Option<Self> {
        match self {
            Self::One(_) => None,
            Self::Many(many) => Some(Self::Many(many.clone())),
        }
    }

    /// Whether a request can be sent now: looks whether the other side has closed it.
    pub(super) async fn is_ready(&mut self) -> bool {
        match self {
            Self::One(wire) => wire.is_ready().await,
            Self::Many(many) => !many.is_closed(),
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&mut self, letter: &Letter, place: &Place) -> Result<Answer, Lost> {
        match self {
            Self::One(wire) => {
                let mut head = wire.send(letter).await?;
                let retry_after = head.retry_after.take();
                Ok(Answer { status: head.status, retry_after, body: Body::One(head) })
            }
            Self::Many(many) => many.send(letter, place).await,
        }
    }

    /// The beginning of an answer's body, into `words`.
    pub(super) async fn read(&mut self, answer: &mut Answer, words: &mut Vec<u8>) {
        match (self, &mut answer.body) {
            (Self::One(wire), Body::One(head)) => wire.read(head, words).await,
            (_, Body::Many(incoming)) => read_http2(incoming, words).await,
            (Self::Many(_), Body::One(_)) => {}
        }
    }
}

/// Enough of it. What is left of the body is given up with it: other requests of the connection go on.
async fn read_http2(incoming: &mut Incoming, words: &mut Vec<u8>) {
    while words.len() < snippet::BYTES
        && let Some(Ok(part)) = incoming.frame().await
    {
        // What is no data is a trailer.
        words.extend_from_slice(&part.into_data().unwrap_or_default());
    }
}

/// HTTP/2: many requests at once. Clones are the same connection, which ends with the last of them.
#[derive(Clone)]
pub(super) struct Many {
    sender: http2::SendRequest<Parcel>,
    flushes: Flushes,
    task: Arc<Task<()>>,
}

impl Many {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.task, &other.task)
    }

    async fn send(&mut self, letter: &Letter, place: &Place) -> Result<Answer, Lost> {
        let (request, gone) = letter.request(place, &self.flushes);
        let mut response = self.sender.try_send_request(request).await.map_err(|failed| {
            let is_unsent =
                failed.message().is_some() || is_untouched(failed.error(), letter.payload.is_empty());
            Lost { error: failed.into_error().into(), is_unsent }
        })?;
        if let Some(gone) = gone.filter(|_| response.status().is_success()) {
            all_gone(gone, response.body_mut()).await?;
        }
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        Ok(Answer {
            status: response.status(),
            retry_after: retry_after.map(str::to_owned),
            body: Body::Many(response.into_body()),
        })
    }
}

/// A 2xx before the end of the request is a promise for what is not there yet. It counts once the request has left as a
/// whole and the answer has ended too: dropping an answer half way resets the stream, and a receiver that still reads would lose
/// what it has not read.
async fn all_gone(gone: Gone, incoming: &mut Incoming) -> Result<(), Lost> {
    let lost = |error: BoxError| Lost { error, is_unsent: false };
    let mut gone = pin!(gone.wait());
    // Usually it has left before the answer came.
    let mut has_left = gone.as_mut().now_or_never();
    if has_left.is_none() {
        while let Some(part) = incoming.frame().await {
            part.map_err(|error| lost(error.into()))?;
        }
        has_left = Some(gone.await);
    }
    has_left.flatten().ok_or_else(|| lost("the request was given up after its answer had begun".into()))
}

/// Whether a server of HTTP/2 says that it has not looked at the request. One that leaves may have taken a request that
/// is whole with its head.
fn is_untouched(error: &hyper::Error, is_empty: bool) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        let leaving = !is_empty && error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || leaving)
    })
}
