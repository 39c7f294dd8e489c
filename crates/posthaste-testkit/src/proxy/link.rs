//! One connection through the proxy: two directions, each a queue of bytes that fall due.
//!
//! Whether a chunk passes is decided when it falls due, by the mode of that moment; so a switch also meets
//! what is still under way. A direction that has dropped something remembers it, and ends its connection as
//! soon as the mode would let it pass again.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::Instant,
};

/// Bytes of one direction that may be under way. Above that the sender is held up, as by a full line.
const UNDER_WAY_MAX_BYTES: usize = 4 * 1024 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Pass,
    Refuse,
    BlackHole,
    HalfOpen,
    Delay(Duration),
    CutAfter(u64),
    /// A text of the client's, and which of the server's answers to it and what follows is the end.
    CutAnswer(&'static str, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Mode {
    fn drops(self, direction: Direction) -> bool {
        match self {
            Self::BlackHole => true,
            Self::HalfOpen => direction == Direction::ToClient,
            Self::Pass | Self::Refuse | Self::Delay(_) | Self::CutAfter(_) | Self::CutAnswer(..) => false,
        }
    }

    fn delay(self) -> Duration {
        if let Self::Delay(delay) = self { delay } else { Duration::ZERO }
    }
}

/// What all connections of a proxy share.
#[derive(Debug)]
pub(super) struct ProxyState {
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
    pub(super) accepted: watch::Sender<u64>,
    pub(super) open: AtomicUsize,
    /// Connections that were reset because an order named their byte or their text.
    pub(super) aimed_cuts: AtomicU64,
    /// Answers of the server that passed.
    pub(super) answers: AtomicU64,
}

impl ProxyState {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self {
            target,
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
            accepted: watch::Sender::new(0),
            open: AtomicUsize::new(0),
            aimed_cuts: AtomicU64::new(0),
            answers: AtomicU64::new(0),
        }
    }

    pub(super) fn switch(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    pub(super) fn refuses(&self) -> bool {
        self.mode() == Mode::Refuse
    }

    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// How many of `wanted` bytes may still pass to the server, and whether the connection ends with them.
    fn spend(&self, wanted: usize) -> (usize, bool) {
        let Mode::CutAfter(left) = self.mode() else { return (wanted, false) };
        let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        // `allowed` is at most `left`.
        let left = left - allowed as u64;
        self.switch(if left == 0 { Mode::Pass } else { Mode::CutAfter(left) });
        (allowed, left == 0)
    }
}

/// Carries one connection to its end. A clean end on both sides is passed on as such; everything else resets
/// the client.
pub(super) fn carry(client: TcpStream, link: Arc<ProxyState>) -> impl Future<Output = ()> {
    // Before the first poll: a cut that comes in between is meant for this connection too.
    let cuts = link.cuts.subscribe();
    carry_until(cuts, client, link)
}

async fn carry_until(mut cuts: watch::Receiver<u64>, mut client: TcpStream, link: Arc<ProxyState>) {
    let broken = tokio::select! {
        biased;
        _ = cuts.changed() => true,
        ended = async {
            if link.mode() == Mode::BlackHole {
                return swallow(&mut client, link.mode.subscribe()).await;
            }
            let mut server = TcpStream::connect(link.target).await?;
            join(&mut client, &mut server, &link).await
        } => ended.is_err(),
    };
    if broken {
        // The reset is what closing does with a linger time of zero. Should that fail, the client sees an end
        // instead.
        let _ = client.set_zero_linger();
    }
}

/// A connection that was accepted into a black hole never reaches the server, and ends when the hole does.
async fn swallow(client: &mut TcpStream, mut modes: watch::Receiver<Mode>) -> io::Result<()> {
    let mut lost = BytesMut::with_capacity(CHUNK_BYTES);
    let mut open = true;
    loop {
        tokio::select! {
            read = client.read_buf(&mut lost), if open => open = matches!(read, Ok(1..)),
            _ = modes.wait_for(|mode| *mode != Mode::BlackHole) => return Err(reset()),
        }
        lost.clear();
    }
}

async fn join(client: &mut TcpStream, server: &mut TcpStream, link: &ProxyState) -> io::Result<()> {
    // Small writes are to arrive when they were sent, not when there are more of them.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let talk = Talk::default();
    tokio::try_join!(
        Flow::new(Direction::ToServer, link, &talk).run(from_client, to_server),
        Flow::new(Direction::ToClient, link, &talk).run(from_server, to_client),
    )?;
    Ok(())
}

/// Whose turn it is on a connection, and whether it is to end. All that a server sends between two things
/// that its client says is one answer.
#[derive(Default)]
struct Talk {
    /// The client has spoken, and the server has not answered.
    asked: AtomicBool,
    /// The answer with this number is not passed on any more; 0: all are.
    last_answer: AtomicU32,
}

impl Talk {
    /// The client says something.
    fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// The server says something. Whether its connection ends instead.
    fn answer(&self, link: &ProxyState) -> bool {
        if !self.asked.swap(false, Ordering::Relaxed) {
            return false;
        }
        let left = self.last_answer.load(Ordering::Relaxed);
        self.last_answer.store(left.saturating_sub(1), Ordering::Relaxed);
        if left != 1 {
            link.answers.fetch_add(1, Ordering::Relaxed);
        }
        left == 1
    }
}

/// One direction of a connection.
struct Flow<'a> {
    direction: Direction,
    link: &'a ProxyState,
    talk: &'a Talk,
    /// The end of what was said while a text is looked for: it may come in two parts.
    said: Vec<u8>,
    under_way: VecDeque<(Instant, Bytes)>,
    under_way_bytes: usize,
    latest: Instant,
    /// Something was dropped, be it only the end of the stream.
    lossy: bool,
}

impl<'a> Flow<'a> {
    fn new(direction: Direction, link: &'a ProxyState, talk: &'a Talk) -> Self {
        Self {
            direction,
            link,
            talk,
            said: Vec::new(),
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            latest: Instant::now(),
            lossy: false,
        }
    }

    async fn run(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut modes = self.link.mode.subscribe();
        let mut chunk = BytesMut::new();
        let mut open = true;
        loop {
            self.deliver_what_is_due(&mut to).await?;
            if !open && self.under_way.is_empty() && self.may_end()? {
                return to.shutdown().await;
            }
            chunk.reserve(CHUNK_BYTES);
            tokio::select! {
                read = from.read_buf(&mut chunk), if open && self.under_way_bytes < UNDER_WAY_MAX_BYTES => {
                    open = self.still_open(read)?;
                    self.send(chunk.split().freeze());
                }
                () = tokio::time::sleep_until(self.next_due()), if !self.under_way.is_empty() => {}
                _ = modes.changed() => self.heal()?,
            }
        }
    }

    /// A reset is an end of the stream as well, and a hole swallows that too.
    fn still_open(&self, read: io::Result<usize>) -> io::Result<bool> {
        match read {
            Err(error) if !self.link.mode().drops(self.direction) => Err(error),
            read => Ok(matches!(read, Ok(1..))),
        }
    }

    /// Nothing overtakes: a shorter delay does not bring bytes before those that were sent under a longer
    /// one.
    fn send(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.latest = self.latest.max(Instant::now() + self.link.mode().delay());
        self.under_way_bytes += bytes.len();
        self.under_way.push_back((self.latest, bytes));
    }

    fn next_due(&self) -> Instant {
        self.under_way.front().map_or(self.latest, |(due, _)| *due)
    }

    async fn deliver_what_is_due(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while self.under_way.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, bytes)) = self.under_way.pop_front() else { break };
            self.under_way_bytes -= bytes.len();
            if self.link.mode().drops(self.direction) {
                self.lossy = true;
                continue;
            }
            self.heal()?;
            let (allowed, last) = match self.direction {
                Direction::ToServer => {
                    self.talk.ask();
                    self.look_for_the_text(&bytes);
                    self.link.spend(bytes.len())
                }
                Direction::ToClient if self.talk.answer(self.link) => (0, true),
                Direction::ToClient => (bytes.len(), false),
            };
            to.write_all(&bytes[..allowed]).await?;
            if last {
                self.link.aimed_cuts.fetch_add(1, Ordering::Relaxed);
                return Err(reset());
            }
        }
        Ok(())
    }

    /// The first connection with the text is the one that is cut.
    fn look_for_the_text(&mut self, bytes: &[u8]) {
        let Mode::CutAnswer(text, answer) = self.link.mode() else { return self.said.clear() };
        self.said.extend_from_slice(bytes);
        if self.said.windows(text.len()).any(|part| part == text.as_bytes()) {
            self.talk.last_answer.store(answer, Ordering::Relaxed);
            self.link.switch(Mode::Pass);
        }
        let old = (self.said.len() + 1).saturating_sub(text.len());
        self.said.drain(..old);
    }

    /// The end of the stream is dropped like everything else; then the connection waits for a cut or for the
    /// mode.
    fn may_end(&mut self) -> io::Result<bool> {
        if self.link.mode().drops(self.direction) {
            self.lossy = true;
            return Ok(false);
        }
        self.heal()?;
        Ok(true)
    }

    /// Where bytes were lost and would pass again, the connection is over.
    fn heal(&self) -> io::Result<()> {
        if self.lossy && !self.link.mode().drops(self.direction) { Err(reset()) } else { Ok(()) }
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
