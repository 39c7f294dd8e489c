//! A stream that says how far it has come.
//!
//! hyper and h2 copy what is small into buffers of their own, and TLS keeps back what the kernel does not take. Both flush the
//! stream only when they keep nothing back, so a flush that ends after a body was handed on means that the kernel has all of it.

use super::connection::Stream;
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
pub(crate) struct Progress {
    flushes: AtomicUsize,
    is_closed: AtomicBool,
    /// A flush has ended, or the stream is closed.
    moved: Notify,
    /// What came in has been understood, and more is waited for.
    pub(crate) heard: Notify,
}

/// A moment of a stream: before the flush that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mark(usize);

impl Progress {
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.flushes.load(Ordering::Acquire))
    }

    /// Whether a flush has ended since then.
    pub(crate) fn is_flushed(&self, since: Mark) -> bool {
        self.mark() != since
    }

    /// Waits for a flush that ends after this moment, and answers whether there was one. Only for a stream that somebody
    /// else drives.
    pub(crate) async fn flushed(&self, since: Mark) -> bool {
        loop {
            // Made before the look: what changes after it is heard.
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

pub(crate) struct Watched {
    io: TokioIo<Stream>,
    progress: Arc<Progress>,
    has_read: bool,
}

impl Watched {
    pub(crate) fn new(stream: Stream) -> (Self, Arc<Progress>) {
        let progress = Arc::<Progress>::default();
        (Self { io: TokioIo::new(stream), progress: Arc::clone(&progress), has_read: false }, progress)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.progress.is_closed.store(true, Ordering::Release);
        self.progress.moved.notify_waiters();
    }
}

impl Read for Watched {
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

impl Write for Watched {
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
