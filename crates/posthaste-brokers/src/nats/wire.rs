//! Carries a connection: bytes out, frames in.
//!
//! The client crate's own connection was here before, and cost more than all the rest of the sink: for each event a map
//! of headers, a command through a channel and a copy of everything, and for each acknowledgement a message with
//! subject, headers and payload. Now an event is written once, by `entry`, into the bytes that go to the socket, and an
//! acknowledgement is read where it lies.
//!
//! One future reads and writes. It reads all that has come before it wakes anybody, so that calls answer a burst of
//! acknowledgements with a burst of messages, and it writes those in one go. It writes what `outbox` has and nothing
//! beside it, from the first byte to the last, so no frame is ever cut by anything but the end of the connection.
//!
//! A silent server is asked for a sign of life: see [`PING_INTERVAL`].

use super::dial::{Info, Transport, is_refusal};
use super::frame::{Frame, Reader};
use super::session::{Round, Session};
use posthaste::sink::Failure;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often the server is asked for a sign of life. Two of them without any, and the connection is given up: a silent
/// one lasts 4 to 6 s, less than the delivery timeout.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const SILENT_MAX: u32 = 2;
/// Nobody tells when the last call has gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Reads in a row; then others have their turn, whatever a server sends.
const READS_MAX: usize = 16;

/// How it came to an end.
#[derive(Debug)]
pub(super) enum End {
    /// The connection is gone, or of no use.
    Lost(Failure),
    /// The server asks us to go. What is under way may still be answered.
    Leaving(Failure),
}

/// One connection, and what is half written or half read of it.
pub(super) struct Carrier {
    session: Arc<Session>,
    /// The server's address, for words.
    server: String,
    stream: Box<dyn Transport>,
    reader: Reader,
    round: Round,
    /// Taken from the outbox; `written` of it has left.
    bytes: Vec<u8>,
    written: usize,
    flushed: bool,
    /// One answer is enough for any number of questions.
    owes_pong: bool,
    pulse: Interval,
    silent: u32,
    is_leaving: bool,
    last_words: Option<String>,
}

impl Carrier {
    pub(super) fn new(
        session: Arc<Session>,
        stream: Box<dyn Transport>,
        reader: Reader,
        server: String,
    ) -> Self {
        let mut pulse = interval(PING_INTERVAL);
        // After a pause of our own the server gets its time all the same.
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            session,
            server,
            stream,
            reader,
            round: Round::default(),
            bytes: Vec::new(),
            written: 0,
            flushed: true,
            owes_pong: false,
            pulse,
            silent: 0,
            is_leaving: false,
            last_words: None,
        }
    }

    /// Carries until there is nothing more to carry.
    pub(super) async fn run(&mut self) -> End {
        poll_fn(|context| self.poll(context)).await
    }

    /// Goes on until no call waits for an answer. Bounded by whoever calls this.
    pub(super) async fn run_until_idle(&mut self) {
        let mut look = interval(LOOK_INTERVAL);
        poll_fn(|context| {
            while look.poll_tick(context).is_ready() {}
            if self.session.is_idle() { Poll::Ready(()) } else { self.poll(context).map(drop) }
        })
        .await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let read = self.poll_read(context);
        self.round.ring();
        if let Poll::Ready(end) = read {
            return Poll::Ready(end);
        }
        if let Err(error) = self.write(context) {
            return Poll::Ready(self.last_read(context, &error));
        }
        while self.pulse.poll_tick(context).is_ready() {
            self.silent += 1;
            if self.silent > SILENT_MAX {
                let words = format!("the server has been silent for {} s", 2 * PING_INTERVAL.as_secs());
                return Poll::Ready(self.lost(&words));
            }
            self.session.outbox.ping();
        }
        Poll::Pending
    }

    /// What a server says before it hangs up, or an alert of TLS, is still to be read when a write fails, and says why.
    fn last_read(&mut self, context: &mut Context<'_>, error: &io::Error) -> End {
        let read = self.poll_read(context);
        self.round.ring();
        if let Poll::Ready(end) = read { end } else { self.lost(error) }
    }

    /// Reads what has come.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<End> {
        for _ in 0..READS_MAX {
            let mut buffer = ReadBuf::new(self.reader.room());
            let read = ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer));
            let bytes = buffer.filled().len();
            match read {
                Ok(()) if bytes > 0 => self.reader.filled(bytes),
                Ok(()) => return Poll::Ready(self.lost(&"the server closed the connection")),
                Err(error) => return Poll::Ready(self.lost(&error)),
            }
            self.silent = 0;
            if let Some(end) = self.take_frames() {
                return Poll::Ready(end);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// All that has come, also behind the word that the server is about to stop: nobody looks again before it says more.
    fn take_frames(&mut self) -> Option<End> {
        let mut leaving = None;
        loop {
            let frame = match self.reader.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return leaving,
                Err(strange) => return Some(self.lost(&strange)),
            };
            if !matches!(frame, Frame::Error(_)) && self.last_words.is_some() {
                // It went on talking, so they were no reason to hang up.
                self.last_words = None;
            }
            match frame {
                Frame::Message(message) => self.session.deliver(&message, &mut self.round),
                Frame::Ping => self.owes_pong = true,
                Frame::Pong => self.session.hear_pong(),
                Frame::Ok => {}
                Frame::Info(json) => {
                    let info = Info::read(json);
                    leaving = leaving.or(info.and_then(|info| self.learn(info)));
                }
                Frame::Error(words) => {
                    let words = words.to_owned();
                    if let Some(failure) = self.hear(words) {
                        return Some(End::Lost(failure));
                    }
                }
            }
        }
    }

    /// A server may say something new of itself at any time.
    fn learn(&mut self, info: Info) -> Option<End> {
        let leaves = info.lame_duck && !self.is_leaving;
        self.session.learn(info);
        self.is_leaving |= leaves;
        let text = format!("{}: the server is about to stop (lame duck mode)", self.server);
        leaves.then(|| End::Leaving(Failure::of_sink("nats.unreachable", text)))
    }

    /// After most of its complaints the server hangs up; then they are the reason.
    fn hear(&mut self, words: String) -> Option<Failure> {
        if is_refusal(&words) {
            return Some(self.refused(&words));
        }
        let failure = self.session.complain(&words);
        // After this one it does not.
        self.last_words = Some(words).filter(|words| !words.starts_with("Permissions Violation"));
        failure
    }

    fn refused(&self, words: &str) -> Failure {
        let text = format!("{} refuses {}: {words}", self.server, self.session.identity());
        Failure::of_sink("nats.auth", text)
    }

    /// Writes what there is, as far as the socket takes it.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            while self.written < self.bytes.len() {
                let rest = &self.bytes[self.written..];
                match Pin::new(&mut *self.stream).poll_write(context, rest)? {
                    Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(bytes) => self.written += bytes,
                    Poll::Pending => return Ok(()),
                }
                self.flushed = false;
            }
            if self.take_bytes(context).is_pending() {
                break;
            }
        }
        if !self.flushed {
            self.flushed = Pin::new(&mut *self.stream).poll_flush(context)?.is_ready();
        }
        Ok(())
    }

    fn take_bytes(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.written = 0;
        let taken = self.session.outbox.poll_take(context, &mut self.bytes);
        if std::mem::take(&mut self.owes_pong) {
            self.bytes.extend_from_slice(b"PONG\r\n");
            return Poll::Ready(());
        }
        taken
    }

    fn lost(&self, why: &dyn std::fmt::Display) -> End {
        let last = self.last_words.as_ref().map(|words| format!("; its last words: {words}"));
        let last = last.unwrap_or_default();
        let text = format!("{}: the connection was lost: {why}{last}", self.server);
        End::Lost(Failure::of_sink("nats.unreachable", text))
    }
}

#[cfg(test)]
mod tests;
