//! A connection of HTTP/1.1: one request out, one answer in.
//!
//! It has no task. It moves when somebody who waits for its answer polls it, so an answer wakes one task and not two, and
//! dropping the connection is all that it takes to end a request. Between requests nobody polls it; that the receiver
//! has closed it meanwhile is seen by the look that is taken before anything is written.
//!
//! hyper's `client::conn` does the same for everybody, and was measured here first (ADR 12): its maps of headers and its
//! channel between request and connection were a third of what the relay spent on an event. Here a request is one piece of
//! bytes that was written once, and an answer is read where it lies.
//!
//! Answers are read while the request is still being written: a receiver that refuses a large body says so before its end.
//! A 2xx before its end is a promise for what is not there yet: it counts once the rest is written, and not at all if it
//! cannot be.

use super::answer::{self, Framing, Head, Part};
use super::letter::Letter;
use super::link::{BoxError, Lost, Stream};
use bytes::{Buf, BytesMut};
use hyper::StatusCode;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Of an answer's head: four times what usual servers can be made to send.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most answers of a webhook are shorter than that.
const READ_BYTES: usize = 4 << 10;
/// A body that is longer is not read to its end: a new connection is cheaper.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Why there is no answer, where no other error says it.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum Ended {
    #[error("the connection was closed before the request")]
    Before,
    #[error("the connection was closed without an answer")]
    Unanswered,
    #[error("the head of the answer has no end")]
    Endless,
}

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    /// What was read and is not understood yet.
    buffer: BytesMut,
    /// Whether the last answer was read to its end and leaves the connection in order.
    is_free: bool,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(READ_BYTES), is_free: true }
    }

    pub(super) fn is_free(&self) -> bool {
        self.is_free && self.buffer.is_empty()
    }

    /// Whether a request can be sent: nobody has closed it, and nobody has said anything unasked.
    pub(super) async fn is_ready(&mut self) -> bool {
        self.is_free() && poll_fn(|context| Poll::Ready(self.poll_read(context).is_pending())).await
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&mut self, letter: &Letter) -> Result<Head, Lost> {
        if !self.is_ready().await {
            return Err(Lost { error: Ended::Before.into(), is_unsent: true });
        }
        // CRASH: whoever dies from here on has perhaps delivered. The event is not settled, and is sent again (G2).
        self.is_free = false;
        let mut writing = Writing::new(letter.pieces());
        let head = poll_fn(|context| self.poll_exchange(&mut writing, context)).await;
        let mut head = head.map_err(|error| Lost { error, is_unsent: false })?;
        if head.status.is_success() && !writing.is_flushed {
            let rest = self.finish(&mut writing, &mut head).await;
            rest.map_err(|error| Lost { error, is_unsent: false })?;
        }
        self.is_free = writing.is_flushed && head.keeps && head.framing == Framing::Length(0);
        // A body may follow, for the same reader: it is the connection's only if all of the request is out.
        Ok(Head { keeps: head.keeps && writing.is_flushed, ..head })
    }

    fn poll_exchange(
        &mut self,
        writing: &mut Writing<'_>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Head, BoxError>> {
        writing.advance(&mut self.stream, context);
        loop {
            // What went wrong first says more.
            let before = self.buffer.len();
            match ready!(self.poll_read(context)) {
                Ok(0) => return Poll::Ready(Err(writing.failure().unwrap_or(Ended::Unanswered.into()))),
                Err(error) => return Poll::Ready(Err(writing.failure().unwrap_or(error.into()))),
                Ok(_) => {}
            }
            if let Some(head) = self.head(before)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// Makes a 2xx count that came before the end of the request. Closing with something unread would take back what the
    /// kernel has not sent yet, so an answer that is not whole by then is waited for until the other side closes.
    async fn finish(&mut self, writing: &mut Writing<'_>, head: &mut Head) -> Result<(), BoxError> {
        poll_fn(|context| self.poll_rest(writing, context)).await?;
        let is_whole = matches!(answer::body(&self.buffer, head.framing, &mut Vec::new()), Part::Whole(_));
        if is_whole && !writing.is_torn {
            return Ok(());
        }
        self.stream.shutdown().await?;
        loop {
            match poll_fn(|context| self.poll_read(context)).await {
                Ok(1..) => self.buffer.clear(),
                Ok(0) => break,
                // Many end a connection of TLS without a word.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            }
        }
        (head.keeps, head.framing) = (false, Framing::Length(0));
        Ok(())
    }

    /// Writes the rest of a request whose answer has begun. The answer is read meanwhile, and dropped where it is long: who
    /// cannot get rid of it may not go on reading.
    fn poll_rest(
        &mut self,
        writing: &mut Writing<'_>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>> {
        loop {
            writing.advance(&mut self.stream, context);
            if writing.is_flushed {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = writing.failure() {
                return Poll::Ready(Err(failure));
            }
            if writing.is_unheard {
                return Poll::Pending;
            }
            // Who says no more may still read.
            writing.is_unheard = !ready!(self.poll_read(context)).is_ok_and(|bytes| bytes > 0);
            if self.buffer.len() > BODY_BYTES_MAX {
                self.buffer.clear();
                writing.is_torn = true;
            }
        }
    }

    /// The head that has come, if it is complete. What comes before the answer (1xx) is passed over. A head is looked at when it
    /// begins and after a line of it, of which there are few: one that comes byte by byte is not read again for each.
    fn head(&mut self, before: usize) -> Result<Option<Head>, BoxError> {
        let is_worth_it = before == 0 || self.buffer[before..].contains(&b'\n');
        while is_worth_it && let Some((head, length)) = answer::head(&self.buffer)? {
            self.buffer.advance(length);
            if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
        }
        if self.buffer.len() > HEAD_BYTES_MAX {
            return Err(Ended::Endless.into());
        }
        Ok(None)
    }

    /// The body, as far as it is read, into `data`. Once it is whole, the connection may be free again.
    pub(super) async fn read(&mut self, head: &Head, data: &mut Vec<u8>) {
        loop {
            data.clear();
            match answer::body(&self.buffer, head.framing, data) {
                Part::Whole(length) => {
                    self.buffer.advance(length);
                    self.is_free = head.keeps;
                    return;
                }
                Part::Broken => return,
                Part::More => {}
            }
            let is_enough = self.buffer.len() > BODY_BYTES_MAX;
            if is_enough || !poll_fn(|context| self.poll_read(context)).await.is_ok_and(|bytes| bytes > 0) {
                return;
            }
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(READ_BYTES);
        pin!(self.stream.read_buf(&mut self.buffer)).poll(context)
    }
}

/// A request on its way out.
struct Writing<'a> {
    left: [&'a [u8]; 2],
    is_flushed: bool,
    failed: Option<io::Error>,
    /// Nothing more comes from the other side.
    is_unheard: bool,
    /// Some of the answer's body was dropped.
    is_torn: bool,
}

impl<'a> Writing<'a> {
    fn new(left: [&'a [u8]; 2]) -> Self {
        Self { left, is_flushed: false, failed: None, is_unheard: false, is_torn: false }
    }

    /// Writes as much as can be written now. A failure is kept: an answer may be there all the same.
    fn advance(&mut self, stream: &mut Stream, context: &mut Context<'_>) {
        while !self.is_flushed && self.failed.is_none() {
            match self.step(Pin::new(&mut *stream), context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => self.failed = Some(error),
                Poll::Pending => return,
            }
        }
    }

    fn step(
        &mut self,
        stream: Pin<&mut (impl AsyncWrite + ?Sized)>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let written = match self.left {
            [[], []] => {
                ready!(stream.poll_flush(context))?;
                self.is_flushed = true;
                return Poll::Ready(Ok(()));
            }
            [one, []] | [[], one] => ready!(stream.poll_write(context, one))?,
            [one, two] => {
                ready!(stream.poll_write_vectored(context, &[IoSlice::new(one), IoSlice::new(two)]))?
            }
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let of_first = written.min(self.left[0].len());
        self.left = [&self.left[0][of_first..], &self.left[1][written - of_first..]];
        Poll::Ready(Ok(()))
    }

    fn failure(&mut self) -> Option<BoxError> {
        self.failed.take().map(Into::into)
    }
}
