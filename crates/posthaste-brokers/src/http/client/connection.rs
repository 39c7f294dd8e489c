//! One connection to a host: HTTP/1.1, or HTTP/2 where TLS has agreed on it. hyper speaks both.
//!
//! A connection of HTTP/1.1 has no task. Whoever waits for a response drives it. So a response wakes one task
//! and not two, and dropping the connection ends a request. A connection of HTTP/2 serves many requests at
//! once and has a task of its own.
//!
//! # A 2xx before the end of the request
//!
//! Responses are read while the request is being written. A refusal counts at once. A 2xx before the end of
//! the request is a promise for what is not there yet. It counts when hyper has handed the whole body on
//! ([`BodyChunk`]), nobody keeps any of it back ([`TrackedStream`]), and the response has ended. If one of
//! these does not happen, it does not count at all.
//!
//! What lies in the kernel must not be lost with the connection. Closing a socket with something unread
//! resets it, and what has not left is lost. So a connection whose 2xx is not read to its end goes on in the
//! background for a while, and is closed after that ([`Http1::close`]).

use super::endpoint::Endpoint;
use super::streams::{self, StreamPermit, Streams};
use super::watched::{FlushMark, FlushProgress, TrackedStream};
use super::{BoxError, Request};
use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use posthaste::task::spawn;
use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The largest head of a response: four times what usual servers can be made to send. hyper takes 100
/// headers.
const HEAD_BYTES_MAX: u16 = u16::MAX;
/// A longer body is not read to its end, because a new connection is cheaper.
const BODY_BYTES_MAX: usize = 16 << 10;
/// How much of a body is kept.
const WORDS_BYTES_MAX: usize = 4 << 10;
/// A connection of HTTP/2 carries all requests of a host. One that has died silently must be noticed before
/// they all have timed out.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection that nobody uses any more may take to write what is left.
const CLOSE_WAIT: Duration = Duration::from_secs(3);
/// How much of a response is read meanwhile. A server that cannot get rid of its response may not go on
/// reading the request.
const CLOSE_BYTES_MAX: usize = 4 << 20;

/// TCP, or TLS on top of it.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}
pub(crate) type BoxedTransport = Box<dyn Transport>;

/// The connection ended before the head of a response was here.
pub(crate) struct Lost {
    pub(crate) error: BoxError,
    /// The request, where it is certain that the receiver has not seen it.
    pub(crate) unsent: Option<Request>,
}

/// The head of a response. Its body is read with the connection that it came over.
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<String>,
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) body: Incoming,
    /// The permit is given back when the response is dropped.
    _stream: Option<StreamPermit>,
}

impl ResponseHead {
    fn new(response: Response<Incoming>, stream: Option<StreamPermit>) -> Self {
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let (status, retry_after) = (response.status(), retry_after.map(str::to_owned));
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        Self { status, retry_after, content_type, body: response.into_body(), _stream: stream }
    }
}

/// A connection.
pub(crate) enum Connection {
    One(Box<Http1>),
    Many(Http2),
}

impl Connection {
    pub(crate) async fn http1(stream: BoxedTransport) -> hyper::Result<Self> {
        Ok(Self::One(Box::new(Http1::open(stream).await?)))
    }

    pub(crate) async fn http2(stream: BoxedTransport) -> hyper::Result<Self> {
        Http2::open(stream).await.map(Self::Many)
    }

    /// The same connection for another user, if several can use it.
    pub(crate) fn shared(&self) -> Option<Self> {
        match self {
            Self::One(_) => None,
            Self::Many(many) => Some(Self::Many(many.clone())),
        }
    }

    /// Whether a request can be sent now. It looks whether the other side has closed the connection.
    pub(crate) async fn is_ready(&mut self) -> bool {
        match self {
            Self::One(one) => one.is_ready().await,
            Self::Many(many) => !many.is_closed(),
        }
    }

    /// Waits until the server has room for one more request. A server of HTTP/1.1 has room when the
    /// connection is ready.
    pub(crate) async fn stream(&mut self) -> Option<StreamPermit> {
        match self {
            Self::One(_) => None,
            Self::Many(many) => Some(many.streams.open().await),
        }
    }

    /// Sends a request over this stream of the connection and waits for the head of its response.
    pub(crate) async fn send(
        &mut self,
        request: Request,
        to: &Endpoint,
        stream: Option<StreamPermit>,
    ) -> Result<ResponseHead, Lost> {
        match self {
            Self::One(one) => one.send(request, to).await,
            Self::Many(many) => many.send(request, to, stream).await,
        }
    }

    /// Reads the beginning of a response's body into `words`, and answers whether the connection can be used
    /// again.
    pub(crate) async fn read(&mut self, answer: &mut ResponseHead, words: &mut Vec<u8>) -> bool {
        match self {
            Self::One(one) => one.read(answer, words).await,
            Self::Many(many) => {
                // The rest is given up with the stream. Other requests of the connection go on.
                while words.len() < WORDS_BYTES_MAX
                    && let Some(Ok(part)) = frame(&mut answer.body).await
                {
                    words.extend_from_slice(&part.into_data().unwrap_or_default());
                }
                !many.is_closed()
            }
        }
    }

    /// Writes what is left and reads the rest, within bounds.
    pub(crate) async fn close(self, answer: ResponseHead) {
        // A connection of HTTP/2 ends by itself when nobody has it any more.
        if let Self::One(one) = self {
            one.close(answer.body).await;
        }
    }
}

async fn frame(body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// HTTP/1.1: one request at a time.
pub(crate) struct Http1 {
    sender: http1::SendRequest<Payload>,
    /// `None`: it has ended.
    connection: Option<http1::Connection<TrackedStream, Payload>>,
    progress: Arc<FlushProgress>,
}

impl Http1 {
    async fn open(stream: BoxedTransport) -> hyper::Result<Self> {
        let (io, progress) = TrackedStream::new(stream);
        let mut builder = http1::Builder::new();
        let (sender, connection) = builder.max_buf_size(HEAD_BYTES_MAX.into()).handshake(io).await?;
        Ok(Self { sender, connection: Some(connection), progress })
    }

    /// Lets hyper read and write. Whoever waits for a response is told how the connection ended.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        self.connection.take_if(|connection| connection.poll_unpin(context).is_ready());
    }

    async fn is_ready(&mut self) -> bool {
        poll_fn(|context| {
            self.drive(context);
            Poll::Ready(self.connection.is_some() && self.sender.is_ready())
        })
        .await
    }

    async fn send(&mut self, request: Request, to: &Endpoint) -> Result<ResponseHead, Lost> {
        let (mut request, taken) = Payload::carry(request, &self.progress);
        *request.uri_mut() = to.path.clone();
        // CRASH: whoever dies from here on has perhaps delivered. The event is not settled, and is sent again
        // (G2).
        let mut sent = pin!(self.sender.try_send_request(request));
        let response = poll_fn(|context| {
            self.drive(context);
            sent.as_mut().poll(context)
        })
        .await;
        let mut answer = ResponseHead::new(response.map_err(Lost::new)?, None);
        if let Some(taken) = taken.filter(|_| answer.status.is_success()) {
            self.finish(&mut answer.body, taken).await?;
        }
        Ok(answer)
    }

    /// Makes a 2xx count. A response before the end of the request is read to its own end while the rest is
    /// written.
    async fn finish(&mut self, body: &mut Incoming, mut taken: BodyTaken) -> Result<(), Lost> {
        let mut mark = taken.try_recv().ok();
        if mark.is_some_and(|mark| self.progress.is_flushed(mark)) {
            return Ok(());
        }
        let mut is_read = false;
        let whole = poll_fn(|context| {
            loop {
                self.drive(context);
                if mark.is_none()
                    && let Poll::Ready(taken) = taken.poll_unpin(context)
                {
                    mark = taken.ok();
                    if mark.is_none() {
                        return Poll::Ready(false);
                    }
                }
                let is_written = mark.is_some_and(|mark| self.progress.is_flushed(mark));
                if is_read && (is_written || self.connection.is_none()) {
                    return Poll::Ready(is_written);
                }
                if is_read {
                    return Poll::Pending;
                }
                match ready!(Pin::new(&mut *body).poll_frame(context)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return Poll::Ready(false),
                    None => is_read = true,
                }
            }
        });
        if whole.await { Ok(()) } else { Err(Lost::given_up()) }
    }

    async fn read(&mut self, answer: &mut ResponseHead, words: &mut Vec<u8>) -> bool {
        let mut length = 0;
        while !answer.body.is_end_stream() && length <= BODY_BYTES_MAX {
            let next = poll_fn(|context| {
                self.drive(context);
                Pin::new(&mut answer.body).poll_frame(context)
            });
            match next.await {
                Some(Ok(part)) => {
                    let part = part.into_data().unwrap_or_default();
                    length += part.len();
                    words.extend_from_slice(&part[..part.len().min(WORDS_BYTES_MAX - words.len())]);
                }
                Some(Err(_)) => return false,
                None => break,
            }
        }
        length <= BODY_BYTES_MAX && self.connection.is_some()
    }

    async fn close(self, mut body: Incoming) {
        let Self { sender, connection: Some(connection), .. } = self else { return };
        drop(sender);
        let drain = async {
            let mut length = 0;
            while let Some(Ok(part)) = frame(&mut body).await {
                length += part.data_ref().map_or(0, Bytes::len);
                if length > CLOSE_BYTES_MAX {
                    // Nothing more is read, and the connection stays open until its time is up.
                    std::future::pending().await
                }
            }
        };
        let _ = timeout(CLOSE_WAIT, async { tokio::join!(connection, drain) }).await;
    }
}

/// HTTP/2: many requests at once. Clones are the same connection.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: http2::SendRequest<Payload>,
    streams: Arc<Streams>,
    progress: Arc<FlushProgress>,
    /// Dropped with the last clone.
    in_use: Arc<oneshot::Sender<Infallible>>,
}

impl Http2 {
    async fn open(stream: BoxedTransport) -> hyper::Result<Self> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES_MAX.into());
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        builder.initial_max_send_streams(streams::FIRST);
        let ((io, progress), streams) = (TrackedStream::new(stream), Streams::new());
        let (sender, connection) = builder.handshake(io).await?;
        let (in_use, unused) = oneshot::channel();
        let (allowed, heard) = (Arc::clone(&streams), Arc::clone(&progress));
        let task = spawn("http2 connection", async move {
            let (mut connection, mut unused) = (pin!(connection), pin!(unused));
            loop {
                // Those who wait for responses are told how it ended.
                tokio::select! {
                    _ = connection.as_mut() => break,
                    _ = unused.as_mut() => break drop(timeout(CLOSE_WAIT, connection).await),
                    () = heard.heard.notified() => allowed.allow(connection.current_max_send_streams()),
                }
            }
            // Whoever waits for a stream finds that the connection is closed.
            allowed.allow(usize::MAX);
        });
        // The task writes what is left, and ends in time.
        task.detach();
        Ok(Self { sender, streams, progress, in_use: Arc::new(in_use) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether both are the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.in_use, &other.in_use)
    }

    async fn send(
        &mut self,
        request: Request,
        to: &Endpoint,
        stream: Option<StreamPermit>,
    ) -> Result<ResponseHead, Lost> {
        let kept = request.clone();
        let (mut request, taken) = Payload::carry(request, &self.progress);
        *request.uri_mut() = to.whole.clone();
        request.headers_mut().remove(HOST);
        let response = self.sender.try_send_request(request).await.map_err(|failed| {
            let is_unseen = is_unseen(failed.error(), kept.payload.is_empty());
            let lost = Lost::new(failed);
            Lost { unsent: lost.unsent.or_else(|| is_unseen.then_some(kept)), error: lost.error }
        })?;
        let mut answer = ResponseHead::new(response, stream);
        if let Some(taken) = taken.filter(|_| answer.status.is_success()) {
            self.finish(&mut answer.body, taken).await?;
        }
        Ok(answer)
    }

    /// Makes a 2xx count. A response before the end of the request is read to its own end. Dropping it half
    /// way resets the stream, and a receiver that still reads would lose what it has not read.
    async fn finish(&self, body: &mut Incoming, mut taken: BodyTaken) -> Result<(), Lost> {
        let mark = taken.try_recv().ok();
        if mark.is_some_and(|mark| self.progress.is_flushed(mark)) {
            return Ok(());
        }
        while let Some(part) = frame(body).await {
            part.map_err(|error| Lost { error: error.into(), unsent: None })?;
        }
        let mark = match mark {
            Some(mark) => mark,
            None => taken.await.map_err(|_| Lost::given_up())?,
        };
        if self.progress.flushed(mark).await { Ok(()) } else { Err(Lost::given_up()) }
    }
}

/// Whether a server of HTTP/2 says that it has not looked at the request. A server that leaves may have taken
/// a request without a body, which is whole with its head.
fn is_unseen(error: &hyper::Error, is_empty: bool) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        let leaving = !is_empty && error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || leaving)
    })
}

impl Lost {
    fn new(mut failed: TrySendError<hyper::Request<Payload>>) -> Self {
        let unsent = failed.take_message().map(Payload::unload);
        Self { unsent, error: failed.into_error().into() }
    }

    fn given_up() -> Self {
        Self { error: "the request was given up after its response had begun".into(), unsent: None }
    }
}

/// The waiting end hears when a body has been handed on as a whole, or that it never will be.
type BodyTaken = oneshot::Receiver<FlushMark>;

/// The body of a request, in one piece.
pub(crate) struct Payload(Option<BodyChunk>);

/// The rest of a body. Whoever writes it, or copies it to write it with something else, moves its beginning.
/// When nothing is left of it, the next flush has all of the body.
pub(crate) struct BodyChunk {
    left: Bytes,
    progress: Arc<FlushProgress>,
    taken: Option<oneshot::Sender<FlushMark>>,
}

impl Payload {
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// An empty body goes with the head.
    fn new(payload: Bytes, progress: &Arc<FlushProgress>) -> (Self, Option<BodyTaken>) {
        if payload.is_empty() {
            return (Self::empty(), None);
        }
        let (tell, taken) = oneshot::channel();
        let piece = BodyChunk { left: payload, progress: Arc::clone(progress), taken: Some(tell) };
        (Self(Some(piece)), Some(taken))
    }

    fn carry(request: Request, progress: &Arc<FlushProgress>) -> (hyper::Request<Self>, Option<BodyTaken>) {
        let (payload, taken) = Self::new(request.payload, progress);
        let mut carried = hyper::Request::new(payload);
        *carried.method_mut() = Method::POST;
        *carried.headers_mut() = request.headers;
        (carried, taken)
    }

    /// A request that was not begun.
    fn unload(carried: hyper::Request<Self>) -> Request {
        let (head, body) = carried.into_parts();
        Request { headers: head.headers, payload: body.0.map(|piece| piece.left).unwrap_or_default() }
    }
}

impl Body for Payload {
    type Data = BodyChunk;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyChunk>, Infallible>>> {
        Poll::Ready(self.0.take().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |piece| piece.left.len() as u64))
    }
}

impl Buf for BodyChunk {
    fn remaining(&self) -> usize {
        self.left.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.left
    }

    fn advance(&mut self, count: usize) {
        self.left.advance(count);
        if self.left.is_empty()
            && let Some(taken) = self.taken.take()
        {
            // Nobody listens any more: the call was dropped, or there was no 2xx.
            let _ = taken.send(self.progress.mark());
        }
    }
}

#[cfg(test)]
mod tests;
