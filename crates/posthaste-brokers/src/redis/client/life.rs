//! When a connection was last heard.
//!
//! A question waits behind all that was sent before it, and a narrow line takes seconds for that. So a server
//! counts as silent when nothing at all comes from it, not when one answer is late.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

/// When something last came.
#[derive(Debug)]
pub(super) struct Life {
    began: Instant,
    /// Milliseconds after `began` at which something last came.
    heard: AtomicU64,
}

impl Life {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), heard: AtomicU64::new(0) })
    }

    /// Waits until nothing has come for this long, counted from now on.
    pub(super) async fn silence(&self, limit: Duration) {
        let asked = Instant::now();
        loop {
            let quiet = self.heard().max(asked).elapsed();
            if quiet >= limit {
                return;
            }
            sleep(limit - quiet).await;
        }
    }

    pub(super) fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard.load(Ordering::Relaxed))
    }

    fn hear(&self) {
        let after = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.fetch_max(after, Ordering::Relaxed);
    }
}

/// A stream that notes when something came.
pub(super) struct WatchedStream<S> {
    pub(super) stream: S,
    pub(super) life: Arc<Life>,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.life.hear();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
