//! One connection at work: reading and writing, until it ends.

use super::answer::Close;
use super::failure;
use super::frames::{self, Heard};
use super::session::Session;
use super::transport::Transport;
use posthaste::sink::Failure;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::time::{interval, timeout};

/// Unanswered messages of calls that have given up. With more of them the connection is not worth keeping.
const UNANSWERED_MAX: usize = 65_536;
/// The time for saying goodbye.
pub(super) const FAREWELL: Duration = Duration::from_millis(200);

/// An open connection. It works while somebody polls [`serve`](Self::serve).
pub(crate) struct Connection {
    session: Arc<Session>,
    transport: Transport,
}

impl Connection {
    pub(super) fn new(session: Arc<Session>, transport: Transport) -> Self {
        Self { session, transport }
    }

    /// What calls see of it.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Reads and writes until the connection ends, and tells everybody who waits. The answer is why it ended.
    pub(crate) async fn serve(&mut self) -> Failure {
        let failure = match self.exchange_frames().await {
            Ok(failure) => failure,
            Err(error) => {
                // What came before the end still counts: confirmations, and the broker's reason for hanging
                // up.
                let _ = self.transport.read_now();
                self.hear().ok().flatten().unwrap_or_else(|| failure::lost(&error))
            }
        };
        self.session.end(&failure.message);
        failure
    }

    /// Ends it, and tells everybody who waits why.
    ///
    /// The broker hears a goodbye, so that its log does not complain of a client that vanished. But half a
    /// message must not be finished now, because its call has been told that it was not sent. And behind half
    /// a message nothing can be said.
    pub(crate) async fn close(mut self, why: &str) {
        self.session.end(why);
        if !self.transport.is_drained() {
            return;
        }
        frames::connection_close(&mut self.transport.out);
        let goodbye = async {
            while self.transport.converse().await?.1 != Heard::ConnectionCloseOk {}
            io::Result::Ok(())
        };
        // We do not wait longer for a broker that does not answer.
        let _ = timeout(FAREWELL, goodbye).await;
    }

    async fn exchange_frames(&mut self) -> io::Result<Failure> {
        let heartbeat = self.session.terms().heartbeat;
        let mut tick = interval(heartbeat / 4);
        let (mut heard_at, mut idle) = (Instant::now(), false);
        let session = Arc::clone(&self.session);
        loop {
            let mut wrote = false;
            let ticked = tokio::select! {
                heard = poll_fn(|context| {
                    wrote |= self.write(context)?;
                    self.transport.poll_read(context)
                }) => {
                    heard?;
                    heard_at = Instant::now();
                    if let Some(failure) = self.hear()? {
                        return Ok(failure);
                    }
                    false
                }
                () = session.woken() => false,
                _ = tick.tick() => true,
            };
            idle &= !wrote;
            if !ticked {
                continue;
            }
            let patience = silence_max(heartbeat, session.is_asking());
            if heard_at.elapsed() > patience {
                // This process may have been stopped. What came meanwhile counts.
                if !self.transport.read_now() {
                    return Ok(failure::silent(patience));
                }
                heard_at = Instant::now();
                if let Some(failure) = self.hear()? {
                    return Ok(failure);
                }
            }
            if std::mem::replace(&mut idle, true) {
                session.table().beat();
            }
        }
    }

    /// Writes what the broker takes now, and answers whether anything was written.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut any = false;
        loop {
            if self.transport.is_drained() {
                self.session.table().fill(&mut self.transport.out);
            }
            let mut left = 0;
            let written = self.transport.poll_write(context, &mut left);
            self.session.table().wrote(left);
            any |= left > 0;
            match written? {
                Poll::Ready(()) if left > 0 => {}
                _ => return Ok(any),
            }
        }
    }

    /// Handles every frame that is there. If it is `Some`, the connection is over.
    fn hear(&mut self) -> io::Result<Option<Failure>> {
        let mut bells = Vec::new();
        let mut table = self.session.table();
        let mut closed = None;
        while closed.is_none()
            && let Some((channel, heard)) = self.transport.frame()?
        {
            closed = table.hear(channel, heard, &mut bells);
        }
        let too_many = table.unanswered() > UNANSWERED_MAX;
        drop(table);
        bells.iter().for_each(|mailbox| mailbox.ring());
        if let Some(close) = closed {
            return Ok(Some(self.answer_close(&close)));
        }
        Ok(too_many.then(failure::too_many_unanswered))
    }

    /// Answers the broker's last word, unless half a message stands before the answer.
    fn answer_close(&mut self, close: &Close) -> Failure {
        if self.transport.is_drained() {
            frames::connection_close_ok(&mut self.transport.out);
            let mut nobody = Context::from_waker(Waker::noop());
            let _ = self.transport.poll_write(&mut nobody, &mut 0);
        }
        failure::closed(close)
    }
}

/// How long a broker may be silent, heartbeats included. A broker that leaves a question unanswered as well
/// gets half of that.
fn silence_max(heartbeat: Duration, is_asking: bool) -> Duration {
    if is_asking { heartbeat } else { heartbeat * 2 }
}
