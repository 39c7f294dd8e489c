//! A body on its way over HTTP/2, and the word that all of it has left.
//!
//! hyper hands a body to `h2` and says no more about it, and an answer may come before its end. `h2` writes what a
//! [`Buf`] shows and then moves its beginning: who has moved it to its end has written all of it, and the end of the stream is
//! in the same frame. A buffer that is dropped before is a body that was given up.

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// A body in one piece.
pub(super) struct Parcel(Option<Piece>);

/// What is left of it.
pub(super) struct Piece {
    left: Bytes,
    gone: Option<oneshot::Sender<()>>,
}

/// Hears that a body has left, or that it never will.
pub(super) type Gone = oneshot::Receiver<()>;

impl Parcel {
    /// A body that holds nothing goes with the head.
    pub(super) fn new(payload: Bytes) -> (Self, Option<Gone>) {
        if payload.is_empty() {
            return (Self(None), None);
        }
        let (gone, heard) = oneshot::channel();
        (Self(Some(Piece { left: payload, gone: Some(gone) })), Some(heard))
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
            && let Some(gone) = self.gone.take()
        {
            // Usually nobody has to wait for it.
            let _ = gone.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn it_is_gone_when_all_of_it_was_taken() {
        let (mut parcel, gone) = Parcel::new(Bytes::from_static(b"abc"));
        let mut gone = gone.expect("something to wait for");
        let mut piece =
            parcel.frame().await.expect("a piece").expect("whole").into_data().ok().expect("data");
        assert!(parcel.is_end_stream(), "the end is in the same frame");
        piece.advance(2);
        assert!(gone.try_recv().is_err());
        piece.advance(1);
        assert_eq!(gone.await, Ok(()));
        let (parcel, gone) = Parcel::new(Bytes::from_static(b"abc"));
        drop(parcel);
        assert!(gone.expect("something to wait for").await.is_err());
        assert!(Parcel::new(Bytes::new()).1.is_none());
    }
}
