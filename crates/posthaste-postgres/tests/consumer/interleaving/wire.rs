//! A line between a store and its server on which statements wait until the scheduler lets them pass.
//!
//! The store does not know of it: what passes are the store's own bytes. So what is tested is the text of
//! `sql/consumer/` in the order in which the store really sends it. A statement is what ends with Sync, or a
//! simple query. Only those wait that can change what others see or wait for others: everything that is
//! executed, and COMMIT. Settings, preparations, guards and ROLLBACK pass by themselves.
//!
//! Texts can be altered on the way: for shorter or longer waits for locks, and for the mutations.

use bytes::{Buf, Bytes, BytesMut};
use posthaste_testkit::faults::Dice;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A wait for a lock that ends at once, as far as anybody in the schedule can tell.
const SHORT: &str = "lock_timeout = '4ms'";
/// One that never ends within a schedule.
const LONG: &str = "lock_timeout = '60s'";
/// What the store sets.
const SET: [&str; 2] = ["lock_timeout = '1s'", "lock_timeout = '10s'"];

/// Nobody dies here, so nothing need be on the disk.
const NOT_FLUSHED: (&str, &str) = ("'synchronous_commit', 'on'", "'synchronous_commit', 'off'");

/// Texts that are replaced, and by what.
pub(super) type Alterations = &'static [(&'static str, &'static str)];

/// What a connection is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum At {
    /// Its client has nothing under way.
    Rest,
    /// This statement waits for the scheduler.
    Gate(Arc<str>),
    /// The server has not answered yet.
    Server,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) actor: usize,
    pub(super) at: At,
    /// Of the server's process.
    pub(super) pid: i32,
    /// Its waits for locks end soon.
    pub(super) is_short: bool,
    /// They were set for the whole session, and not for a transaction.
    keeps_waits: bool,
    may_pass: bool,
    woken: Arc<Notify>,
}

/// All connections of the actors, and who is done.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) connections: BTreeMap<u64, Connection>,
    /// Actors of the schedule, and whether they are done. Nobody waits at the gate while it is empty.
    pub(super) done: Vec<bool>,
    /// Grows with every change.
    pub(super) version: u64,
    /// Half of the transactions of this seed have short waits.
    pub(super) short_waits: Option<u64>,
    /// Transactions by actor, for the same choice with the same seed.
    begun: HashMap<usize, u64>,
    next: u64,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    board: Mutex<Board>,
    /// Something changed; the scheduler alone waits for it.
    pub(super) changed: Notify,
}

impl Line {
    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Board) -> T) -> T {
        let mut board = self.board();
        board.version += 1;
        let changed = change(&mut board);
        drop(board);
        self.changed.notify_one();
        changed
    }

    /// A schedule of so many actors begins.
    pub(super) fn begin(&self, actors: usize, short_waits: Option<u64>) {
        self.change(|board| {
            (board.done, board.short_waits) = (vec![false; actors], short_waits);
            board.begun.clear();
        });
    }

    /// The schedule is over: everything passes.
    pub(super) fn end(&self) {
        self.change(|board| {
            (board.done, board.short_waits) = (Vec::new(), None);
            board.connections.values().for_each(|connection| connection.woken.notify_one());
        });
    }

    pub(super) fn finish(&self, actor: usize) {
        self.change(|board| board.done[actor] = true);
    }

    /// Lets the statement at the gate of this connection pass.
    pub(super) fn pass(&self, number: u64) {
        self.change(|board| {
            if let Some(connection) = board.connections.get_mut(&number) {
                (connection.may_pass, connection.at) = (true, At::Server);
                connection.woken.notify_one();
            }
        });
    }

    /// A port that leads to the server, for this actor.
    pub(super) async fn open(
        self: &Arc<Self>,
        actor: usize,
        server: SocketAddr,
        alterations: Alterations,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let line = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let carrier = Carrier::new(Arc::clone(&line), actor, alterations);
                // How a connection ends, its client says.
                tokio::spawn(async move { drop(carrier.carry(client, server).await) });
            }
        });
        address
    }
}

/// Messages of the protocol up to one that the server answers with "ready".
#[derive(Default)]
struct Step {
    bytes: BytesMut,
    label: Option<Arc<str>>,
    /// Waits at the gate.
    is_gated: bool,
    /// Begins a transaction.
    begins: bool,
}

struct Carrier {
    line: Arc<Line>,
    number: u64,
    actor: usize,
    alterations: Alterations,
    woken: Arc<Notify>,
    /// What prepared statements are about, by name.
    prepared: HashMap<Bytes, Arc<str>>,
    gathering: Step,
    steps: VecDeque<Step>,
    is_ready: bool,
}

impl Carrier {
    fn new(line: Arc<Line>, actor: usize, alterations: Alterations) -> Self {
        let woken = Arc::new(Notify::new());
        let connection = Connection {
            actor,
            at: At::Rest,
            pid: 0,
            is_short: false,
            keeps_waits: false,
            may_pass: false,
            woken: Arc::clone(&woken),
        };
        let number = line.change(|board| {
            board.next += 1;
            board.connections.insert(board.next, connection);
            board.next
        });
        let (prepared, gathering, steps) = Default::default();
        Self { line, number, actor, alterations, woken, prepared, gathering, steps, is_ready: false }
    }

    async fn carry(mut self, mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let mut server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        // The first message has no type.
        let length = client.read_u32().await?;
        let mut hello = vec![0; length.saturating_sub(4) as usize];
        client.read_exact(&mut hello).await?;
        server.write_u32(length).await?;
        server.write_all(&hello).await?;
        let (mut from_client, mut from_server) = (BytesMut::new(), BytesMut::new());
        loop {
            tokio::select! {
                read = client.read_buf(&mut from_client) => if read? == 0 { return Ok(()) },
                read = server.read_buf(&mut from_server) => if read? == 0 { return Ok(()) },
                () = self.woken.notified() => {}
            }
            let mut answers = BytesMut::new();
            while let Some(message) = split(&mut from_server) {
                self.answered(&message);
                answers.extend_from_slice(&message);
            }
            client.write_all(&answers).await?;
            let mut login = BytesMut::new();
            while let Some(message) = split(&mut from_client) {
                match message[0] {
                    b'p' => login.extend_from_slice(&message),
                    _ => self.gather(&message),
                }
            }
            server.write_all(&login).await?;
            if let Some(step) = self.next_step() {
                server.write_all(&step.bytes).await?;
            }
        }
    }

    fn answered(&mut self, message: &[u8]) {
        match message[0] {
            b'K' => {
                let pid = (&message[5..]).get_i32();
                self.change(|connection| connection.pid = pid);
            }
            b'Z' => {
                self.is_ready = true;
                self.change(|connection| connection.at = At::Rest);
            }
            _ => {}
        }
    }

    fn change(&self, change: impl FnOnce(&mut Connection)) {
        self.line.change(|board| board.connections.get_mut(&self.number).map(change));
    }

    /// Adds a message to the step that it belongs to.
    fn gather(&mut self, message: &[u8]) {
        let body = &message[5..];
        let step = &mut self.gathering;
        match message[0] {
            b'Q' => {
                let sql = String::from_utf8_lossy(text(body)).to_lowercase();
                step.begins = sql.starts_with("start transaction") || sql.starts_with("begin");
                step.is_gated = sql.starts_with("commit");
                step.label = step.is_gated.then(|| "commit".into());
                if sql.contains("set lock_timeout") {
                    self.change(|connection| connection.keeps_waits = true);
                }
                let altered = self.alter(text(body));
                self.gathering.bytes.extend_from_slice(&framed(b'Q', &[&altered, b"\0"]));
            }
            b'P' => {
                let name = text(body);
                let sql = text(&body[name.len() + 1..]);
                let rest = &body[name.len() + 1 + sql.len()..];
                self.prepared.insert(Bytes::copy_from_slice(name), label(sql));
                let altered = self.alter(sql);
                self.gathering.bytes.extend_from_slice(&framed(b'P', &[name, b"\0", &altered, rest]));
            }
            kind => {
                step.bytes.extend_from_slice(message);
                if kind == b'B' {
                    let portal = text(body);
                    step.label = self.prepared.get(text(&body[portal.len() + 1..])).cloned();
                }
                step.is_gated |= kind == b'E';
            }
        }
        if matches!(message[0], b'Q' | b'S') {
            self.steps.push_back(std::mem::take(&mut self.gathering));
        }
    }

    fn alter(&self, sql: &[u8]) -> Vec<u8> {
        let mut sql = String::from_utf8_lossy(sql).into_owned();
        let is_short = self.line.board().connections.get(&self.number).is_some_and(|found| found.is_short);
        for set in SET {
            sql = sql.replace(set, if is_short { SHORT } else { LONG });
        }
        for (from, to) in [NOT_FLUSHED].iter().chain(self.alterations) {
            sql = sql.replace(from, to);
        }
        sql.into_bytes()
    }

    /// What the server gets next: one step at a time, and what is gated with the scheduler's leave.
    fn next_step(&mut self) -> Option<Step> {
        let next = self.steps.front().filter(|_| self.is_ready)?;
        let mut board = self.line.board();
        let is_open = board.done.is_empty();
        if next.begins {
            let begun = board.begun.entry(self.actor).or_default();
            *begun += 1;
            let throw = (self.actor as u64) << 32 ^ *begun << 40;
            let chance = |seed: u64| Dice::new(seed ^ throw).happens(0.5);
            let is_short = board.short_waits.is_some_and(chance);
            let connection = board.connections.get_mut(&self.number)?;
            connection.is_short = is_short && !connection.keeps_waits;
        }
        let connection = board.connections.get_mut(&self.number)?;
        let passes = !next.is_gated || is_open || std::mem::take(&mut connection.may_pass);
        let at = match passes {
            true => At::Server,
            false => At::Gate(next.label.clone().unwrap_or_else(|| "?".into())),
        };
        if std::mem::replace(&mut connection.at, at.clone()) != at {
            board.version += 1;
            self.line.changed.notify_one();
        }
        drop(board);
        if !passes {
            return None;
        }
        self.is_ready = false;
        self.steps.pop_front()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.line.change(|board| board.connections.remove(&self.number));
    }
}

/// Takes one whole message, with its type and length.
fn split(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = (buffer.get(1..5)?).get_u32() as usize;
    (buffer.len() > length).then(|| buffer.split_to(length + 1).freeze())
}

/// A text up to its zero byte.
fn text(body: &[u8]) -> &[u8] {
    body.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn framed(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = u32::try_from(body.len() + 4).expect("a message of the protocol");
    [&[kind][..], &length.to_be_bytes(), &body].concat()
}

/// What a statement is about: its first line, which is a comment in `sql/consumer/`.
fn label(sql: &[u8]) -> Arc<str> {
    let sql = String::from_utf8_lossy(sql);
    let line = sql.lines().next().unwrap_or_default().trim_start_matches("-- ");
    line.chars().take(60).collect::<String>().into()
}
