//! The bytes of one connection: TCP, and TLS over it.
//!
//! What is written waits in [`Transport::out`] and leaves in order. For each byte it is known whether the
//! kernel, or TLS, has taken it: a message of which one byte has not left cannot have arrived.
//!
//! TLS is driven by hand: its state machine takes bytes and gives bytes, and one task owns it together with
//! the socket, so there is nothing to share and nothing to wait for in between.

use super::wire::{self, Heard};
use bytes::BytesMut;
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes read in one go. Answers are small; a burst of them is not.
const READ_BYTES: usize = 64 << 10;
/// Reads before the frames are looked at.
const READS_MAX: usize = 16;
/// Largest frame that is accepted before one is agreed on, and the largest that we ask for: RabbitMQ's default.
pub(super) const FRAME_MAX: usize = 128 << 10;

/// One connection.
pub(super) struct Transport {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Encrypted, and not taken by the kernel yet.
    sealed: Vec<u8>,
    sealed_from: usize,
    /// To be written.
    pub(super) out: Vec<u8>,
    out_from: usize,
    input: BytesMut,
    scratch: Box<[u8]>,
    pub(super) frame_max: usize,
}

impl Transport {
    pub(super) fn new(tcp: TcpStream, tls: Option<ClientConnection>) -> Self {
        Self {
            tcp,
            tls: tls.map(Box::new),
            sealed: Vec::new(),
            sealed_from: 0,
            out: Vec::new(),
            out_from: 0,
            input: BytesMut::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            frame_max: FRAME_MAX,
        }
    }

    /// Whether the other end is on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.tcp.peer_addr().is_ok_and(|addr| addr.ip().is_loopback())
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Waits until something can be read, or written if there is something to write.
    pub(super) async fn ready(&self) -> io::Result<()> {
        let interest = match self.wants_write() {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        self.tcp.ready(interest).await.map(drop)
    }

    fn wants_write(&self) -> bool {
        self.out_from < self.out.len() || self.sealed_from < self.sealed.len()
    }

    /// Whether everything of [`out`](Self::out) has been taken. It is empty then.
    pub(super) fn is_drained(&self) -> bool {
        self.out.is_empty()
    }

    /// Writes what can be written without waiting. `left` grows by the bytes of `out` that have left, also when
    /// the connection breaks after some of them: what has left is in doubt, and must not count as kept.
    pub(super) fn write(&mut self, left: &mut usize) -> io::Result<()> {
        loop {
            let flushed = self.flush_sealed()?;
            let rest = &self.out[self.out_from..];
            let taken = match &mut self.tls {
                _ if rest.is_empty() => 0,
                Some(_) if !flushed => 0,
                Some(tls) => tls.writer().write(rest)?,
                None => or_later(self.tcp.try_write(rest))?,
            };
            *left += taken;
            self.out_from += taken;
            if let Some(tls) = &mut self.tls {
                seal(tls, &mut self.sealed)?;
            }
            if taken == 0 {
                break;
            }
        }
        if self.out_from == self.out.len() {
            self.out.clear();
            self.out_from = 0;
        }
        Ok(())
    }

    /// Whether the kernel has taken everything that was encrypted.
    fn flush_sealed(&mut self) -> io::Result<bool> {
        while self.sealed_from < self.sealed.len() {
            let taken = or_later(self.tcp.try_write(&self.sealed[self.sealed_from..]))?;
            if taken == 0 {
                return Ok(false);
            }
            self.sealed_from += taken;
        }
        self.sealed.clear();
        self.sealed_from = 0;
        Ok(true)
    }

    /// Reads what is there. `false`: nothing was.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        let mut any = false;
        // Not without end: what was read is looked at in between.
        for _ in 0..READS_MAX {
            let size = match self.tcp.try_read(&mut self.scratch) {
                // First what came before the end.
                Ok(0) | Err(_) if any => return Ok(true),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(size) => size,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            };
            any = true;
            match &mut self.tls {
                Some(tls) => {
                    unseal(tls, &self.scratch[..size], &mut self.input)?;
                    // Answers of TLS itself: keys are changed now and then.
                    seal(tls, &mut self.sealed)?;
                }
                None => self.input.extend_from_slice(&self.scratch[..size]),
            }
            if size < self.scratch.len() {
                return Ok(any);
            }
        }
        Ok(any)
    }

    /// The next frame of what was read.
    pub(super) fn frame(&mut self) -> io::Result<Option<(u16, Heard)>> {
        wire::next_frame(&mut self.input, self.frame_max).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "the answer is no AMQP 0-9-1; is this a port for TLS?")
        })
    }

    /// For the beginning, when one word follows the other: writes all of `out`, then waits for a frame.
    pub(super) async fn converse(&mut self) -> io::Result<(u16, Heard)> {
        loop {
            self.write(&mut 0)?;
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            if !self.read()? {
                self.ready().await?;
            }
        }
    }

    /// Waits until everything has been written.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        loop {
            self.write(&mut 0)?;
            if !self.wants_write() {
                return Ok(());
            }
            self.tcp.writable().await?;
        }
    }

    /// Greets by way of TLS. An error of TLS is inside of the error.
    pub(super) async fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            if let Some(tls) = &mut self.tls {
                seal(tls, &mut self.sealed)?;
            }
            self.flush_sealed()?;
            let Some(tls) = &self.tls else { return Ok(()) };
            if !tls.is_handshaking() && self.sealed.is_empty() {
                return Ok(());
            }
            match self.read() {
                Ok(true) => {}
                Ok(false) => self.ready().await?,
                Err(error) => {
                    // The server is told why, if it still listens.
                    let _ = self.flush_sealed();
                    return Err(error);
                }
            }
        }
    }
}

/// What has been encrypted, for the socket.
fn seal(tls: &mut ClientConnection, sealed: &mut Vec<u8>) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(sealed)?;
    }
    Ok(())
}

/// Decrypts.
fn unseal(tls: &mut ClientConnection, mut bytes: &[u8], input: &mut BytesMut) -> io::Result<()> {
    while !bytes.is_empty() {
        if tls.read_tls(&mut bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let state =
            tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let (from, more) = (input.len(), state.plaintext_bytes_to_read());
        input.resize(from + more, 0);
        tls.reader().read_exact(&mut input[from..])?;
        if state.peer_has_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Nothing, if it would have to wait.
fn or_later(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
