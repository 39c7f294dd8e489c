//! The bytes of one connection: TCP, or TLS over it.
//!
//! What is to be written waits in [`Transport::out`] and leaves in order. For each byte it is known whether
//! it can have left, and a message of which one byte has not left cannot have arrived. Without TLS a byte has
//! left when the kernel has taken it. With TLS it has left when it was handed to the TLS stream, although
//! that may still hold it. This errs on the careful side: such a message is in doubt, and is sent again.

use super::frames::{self, Heard};
use bytes::BytesMut;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes that are read in one go. Answers are small, but a burst of them is not.
const READ_BYTES: usize = 64 << 10;
/// How many reads come before the frames are looked at.
const READS_MAX: usize = 16;
/// Bytes that are handed to TLS in one go: as many as it buffers. If the connection breaks meanwhile, all of
/// them are in doubt.
const SEALED_BYTES: usize = 64 << 10;
/// The largest frame that is accepted before one is agreed on, and the largest that we ask for. It is
/// RabbitMQ's default.
pub(super) const FRAME_MAX: usize = 128 << 10;

/// Whom we trust, and whom we expect.
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Makes the TLS handshake, if there is TLS. An error of TLS is inside of the error.
pub(super) async fn secure(tcp: TcpStream, tls: Option<Tls>) -> io::Result<Box<dyn ByteStream>> {
    Ok(match tls {
        Some(Tls { config, name }) => Box::new(TlsConnector::from(config).connect(name, tcp).await?),
        None => Box::new(tcp),
    })
}

/// One connection.
pub(super) struct Transport {
    stream: Box<dyn ByteStream>,
    is_encrypted: bool,
    is_local: bool,
    /// Bytes that are to be written.
    pub(super) out: Vec<u8>,
    out_from: usize,
    input: BytesMut,
    scratch: Box<[u8]>,
    pub(super) frame_max: usize,
}

impl Transport {
    pub(super) async fn open(tcp: TcpStream, tls: Option<Tls>) -> io::Result<Self> {
        let is_local = tcp.peer_addr().is_ok_and(|addr| addr.ip().is_loopback());
        let is_encrypted = tls.is_some();
        Ok(Self::over(secure(tcp, tls).await?, is_encrypted, is_local))
    }

    fn over(stream: Box<dyn ByteStream>, is_encrypted: bool, is_local: bool) -> Self {
        Self {
            stream,
            is_encrypted,
            is_local,
            out: Vec::new(),
            out_from: 0,
            input: BytesMut::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            frame_max: FRAME_MAX,
        }
    }

    /// Whether the other end is on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether everything of [`out`](Self::out) has left. It is empty then.
    pub(super) fn is_drained(&self) -> bool {
        self.out.is_empty()
    }

    /// Writes what can be written without waiting. `left` grows by the bytes of `out` that may have left. It
    /// grows also when the connection breaks, because bytes in doubt must not count as kept.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, left: &mut usize) -> Poll<io::Result<()>> {
        while self.out_from < self.out.len() {
            let rest = &self.out[self.out_from..];
            let piece = if self.is_encrypted { &rest[..rest.len().min(SEALED_BYTES)] } else { rest };
            let taken = match ready!(Pin::new(&mut self.stream).poll_write(context, piece)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(taken) => taken,
                Err(error) => {
                    // TLS does not say how much of it was written before the error.
                    *left += if self.is_encrypted { piece.len() } else { 0 };
                    return Poll::Ready(Err(error));
                }
            };
            *left += taken;
            self.out_from += taken;
        }
        self.out.clear();
        self.out_from = 0;
        // TLS may hold something back.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Reads what is there, at least something.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The loop has an end, so that what was read is looked at in between.
        for reads in 0..READS_MAX {
            let mut buffer = ReadBuf::new(&mut self.scratch);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            let size = match polled {
                Poll::Ready(Ok(())) => buffer.filled().len(),
                // What came before the end is handled first.
                _ if reads > 0 => return Poll::Ready(Ok(())),
                other => return other,
            };
            if size == 0 {
                let end = if reads > 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
                return Poll::Ready(end);
            }
            self.input.extend_from_slice(&self.scratch[..size]);
            // A socket that gave less has no more. TLS gives what one record held.
            if size < self.scratch.len() && !self.is_encrypted {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what is there now, and answers whether anything was.
    pub(super) fn read_now(&mut self) -> bool {
        matches!(self.poll_read(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
    }

    /// The next frame of what was read.
    pub(super) fn frame(&mut self) -> io::Result<Option<(u16, Heard)>> {
        frames::next_frame(&mut self.input, self.frame_max).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "the answer is no AMQP 0-9-1; is this a port for TLS?")
        })
    }

    /// Writes all of `out`. No part of a message may be in it, because nobody is told what has left.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_write(context, &mut 0)).await
    }

    /// Writes all of `out`, then waits for a frame. That is for the beginning and the end, when one word
    /// follows the other.
    pub(super) async fn converse(&mut self) -> io::Result<(u16, Heard)> {
        self.flush().await?;
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            poll_fn(|context| self.poll_read(context)).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Takes so many bytes, then breaks.
    struct Breaking(usize);

    impl AsyncRead for Breaking {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Breaking {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.0 == 0 {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A socket says how much it took. TLS does not say how much of a piece it wrote before it broke: all of
    /// it may have left.
    #[test]
    fn f28_what_may_have_left_counts_as_left_when_the_connection_breaks() {
        for (is_encrypted, expected) in [(false, 1_000), (true, 1_000 + SEALED_BYTES)] {
            let mut transport = Transport::over(Box::new(Breaking(1_000)), is_encrypted, true);
            transport.out = vec![0; 10 * SEALED_BYTES];
            let mut left = 0;
            let written = transport.poll_write(&mut Context::from_waker(Waker::noop()), &mut left);
            assert!(matches!(written, Poll::Ready(Err(_))));
            assert_eq!((left, transport.is_drained()), (expected, false));
        }
    }

    #[tokio::test]
    async fn what_came_before_the_end_is_read_first() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut transport = Transport::over(Box::new(ours), false, true);
        assert!(!transport.read_now(), "nothing is there");
        let mut beat = Vec::new();
        frames::heartbeat(&mut beat);
        theirs.write_all(&beat.repeat(20_000)).await.expect("written");
        drop(theirs);
        for _ in 0..20_000 {
            assert_eq!(transport.converse().await.expect("a frame"), (0, Heard::Heartbeat));
        }
        let end = transport.converse().await.expect_err("the end");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}
