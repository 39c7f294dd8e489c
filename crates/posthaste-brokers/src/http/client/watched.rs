//! A stream that says how far it has come.
//!
//! hyper and h2 copy what is small into buffers of their own, and TLS keeps back what the kernel does not
//! take. Both flush the stream only when they keep nothing back. So when a flush ends after a body was handed
//! on, the kernel has all of that body.

use super::connection::BoxedTransport;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;

/// How far a stream has come.
#[derive(Default)]
pub(crate) struct FlushProgress {
    flushes: AtomicUsize,
    is_closed: AtomicBool,
    /// A flush has ended, or the stream is closed.
    moved: Notify,
    /// What came in has been read and understood.
    pub(crate) heard: Notify,
}

/// A moment in the life of a stream. The flush that counts ends after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlushMark(usize);

impl FlushProgress {
    pub(crate) fn mark(&self) -> FlushMark {
        FlushMark(self.flushes.load(Ordering::Acquire))
    }

    /// Whether a flush has ended since that moment.
    pub(crate) fn is_flushed(&self, since: FlushMark) -> bool {
        self.mark() != since
    }

    /// Waits for a flush that ends after this moment, and answers whether there was one. Somebody else has to
    /// drive the stream meanwhile.
    pub(crate) async fn flushed(&self, since: FlushMark) -> bool {
        loop {
            // This is made before the look, so a change after the look is heard.
            let moved = self.moved.notified();
            let is_closed = self.is_closed.load(Ordering::Acquire);
            if is_closed || self.is_flushed(since) {
                return self.is_flushed(since);
            }
            moved.await;
        }
    }

    fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.moved.notify_waiters();
    }
}

pub(crate) struct TrackedStream {
    io: TokioIo<BoxedTransport>,
    progress: Arc<FlushProgress>,
    has_read: bool,
}

impl TrackedStream {
    pub(crate) fn new(stream: BoxedTransport) -> (Self, Arc<FlushProgress>) {
        let progress = Arc::<FlushProgress>::default();
        (Self { io: TokioIo::new(stream), progress: Arc::clone(&progress), has_read: false }, progress)
    }
}

impl Drop for TrackedStream {
    fn drop(&mut self) {
        self.progress.is_closed.store(true, Ordering::Release);
        self.progress.moved.notify_waiters();
    }
}

impl Read for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if std::mem::replace(&mut self.has_read, read.is_ready()) && read.is_pending() {
            self.progress.heard.notify_one();
        }
        read
    }
}

impl Write for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(context))?;
        self.progress.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
        self.progress.flush();
        Poll::Ready(Ok(()))
    }
}
