//! A body on its way over HTTP/2, and the word that all of it has left.
//!
//! hyper hands a body to `h2` and says no more about it, and an answer may come before its end. `h2` writes what a
//! [`Buf`] shows and then moves its beginning: who has moved it to its end has taken all of it, and the end of the stream is
//! in the same frame. A buffer that is dropped before is a body that was given up. Behind `h2` lie its own buffer and that of
//! TLS, so the connection counts how often they were empty ([`Counted`]): after the next time, all of the body is with the kernel.

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};

/// A body in one piece.
pub(super) struct Parcel(Option<Piece>);

/// What is left of it.
pub(super) struct Piece {
    left: Bytes,
    /// Told the count of flushes when all of it was taken.
    taken: Option<oneshot::Sender<u64>>,
    flushes: Flushes,
}

/// How often all that was written to a connection had left.
pub(super) type Flushes = watch::Receiver<u64>;

/// Hears that a body has left, or that it never will.
pub(super) struct Gone {
    taken: oneshot::Receiver<u64>,
    flushes: Flushes,
}

impl Gone {
    /// Until it has left. `None`: it was given up.
    pub(super) async fn wait(mut self) -> Option<()> {
        let before = self.taken.await.ok()?;
        self.flushes.wait_for(|flushes| *flushes > before).await.ok().map(drop)
    }
}

impl Parcel {
    /// A body that holds nothing goes with the head.
    pub(super) fn new(payload: Bytes, flushes: &Flushes) -> (Self, Option<Gone>) {
        if payload.is_empty() {
            return (Self(None), None);
        }
        let (told, taken) = oneshot::channel();
        let piece = Piece { left: payload, taken: Some(told), flushes: flushes.clone() };
        (Self(Some(piece)), Some(Gone { taken, flushes: flushes.clone() }))
    }
}

impl Body for Parcel {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        Poll::Ready(self.0.take().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |piece| piece.left.len() as u64))
    }
}

impl Buf for Piece {
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
            let _ = taken.send(*self.flushes.borrow());
        }
    }
}

/// A connection that counts its flushes.
pub(super) struct Counted<S> {
    stream: S,
    flushes: watch::Sender<u64>,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S) -> (Self, Flushes) {
        let (flushes, count) = watch::channel(0);
        (Self { stream, flushes }, count)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.flushes.send_modify(|flushes| *flushes += 1);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::pin::pin;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn it_is_gone_when_all_of_it_was_taken_and_flushed() {
        let (mut connection, flushes) = Counted::new(tokio::io::sink());
        let (mut parcel, gone) = Parcel::new(Bytes::from_static(b"abc"), &flushes);
        let mut gone = pin!(gone.expect("something to wait for").wait());
        let mut piece =
            parcel.frame().await.expect("a piece").expect("whole").into_data().ok().expect("data");
        assert!(parcel.is_end_stream(), "the end is in the same frame");
        piece.advance(2);
        connection.flush().await.expect("flushed");
        assert!(futures_util::poll!(gone.as_mut()).is_pending());
        piece.advance(1);
        assert!(futures_util::poll!(gone.as_mut()).is_pending());
        connection.flush().await.expect("flushed");
        assert_eq!(gone.await, Some(()));
        let (parcel, gone) = Parcel::new(Bytes::from_static(b"abc"), &flushes);
        drop(parcel);
        assert_eq!(gone.expect("something to wait for").wait().await, None);
        assert!(Parcel::new(Bytes::new(), &flushes).1.is_none());
    }
}
