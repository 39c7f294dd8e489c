//! The scheduler: gives one actor after the other its next statement, as the dice say.
//!
//! After each statement it waits until everybody stands still: done, at the gate, or at the server behind a
//! lock of somebody else, who must go on first. Then the next throw decides, and by nothing but the seed. (Of
//! those that one commit wakes together, the server decides who goes first.)

use super::wire::{At, Board, Line};
use super::world::World;
use posthaste_testkit::faults::Dice;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

pub(super) type Acting = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Nothing that was begun takes this long on any machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// A statement that has no answer after this long may wait for a lock: then the server is asked.
const GLANCE: Duration = Duration::from_millis(1);
/// After so many of the commits everything that must hold at any time is looked at.
const CHECKED: f64 = 0.25;

const BLOCKED: &str =
    "select pid from unnest($1::int[]) as p (pid) where cardinality(pg_blocking_pids(pid)) > 0";

/// What passed, in its order.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Each statement, with its actor.
    pub(super) statements: Vec<String>,
    /// Statements that had to wait for a lock.
    pub(super) waits: usize,
}

/// Marks its actor as done, also if it panicked.
struct Finish(Arc<Line>, usize);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish(self.1);
    }
}

/// Runs actors to their end.
pub(super) async fn run(
    line: &Arc<Line>,
    observer: &Client,
    world: &World,
    dice: &mut Dice,
    short_waits: Option<u64>,
    actors: Vec<(String, Acting)>,
) -> Schedule {
    line.begin(actors.len(), short_waits);
    let (names, actors): (Vec<String>, Vec<Acting>) = actors.into_iter().unzip();
    let start = |(actor, acting): (usize, Acting)| {
        let finish = Finish(Arc::clone(line), actor);
        tokio::spawn(async move {
            acting.await;
            drop(finish);
        })
    };
    let running: Vec<_> = actors.into_iter().enumerate().map(start).collect();
    let (mut passed, mut blocked) = (Schedule::default(), BTreeSet::new());
    // Some schedules change their actor with every statement. In others an actor goes on for a while: whole
    // transactions pass between two statements of others.
    let (lasting, mut last) = ([0.0, 0.6, 0.8, 0.9][dice.index(4)], 0);
    loop {
        passed.waits += stand_still(line, observer, &mut blocked).await;
        let is_committed = passed.statements.last().is_some_and(|last| last.ends_with(": commit"));
        if is_committed && dice.happens(CHECKED) {
            world.check(observer).await;
        }
        let gates: Vec<(usize, u64, Arc<str>)> = gates(&line.board());
        let again = gates.iter().find(|(actor, ..)| *actor == last && dice.happens(lasting));
        if let Some((actor, number, label)) = again.or(gates.get(dice.index(gates.len()))) {
            passed.statements.push(format!("{}: {label}", names[*actor]));
            last = *actor;
            line.pass(*number);
        } else if blocked.is_empty() {
            break;
        } else {
            // All of them wait for each other. The server finds that out and ends one of the waits.
            passed.statements.push("deadlock".to_owned());
            timeout(PATIENCE, line.changed.notified()).await.expect("the server ends a deadlock");
        }
    }
    line.end();
    for acting in running {
        if let Err(error) = acting.await {
            world.problem(format!("an actor failed: {error}"));
        }
    }
    passed
}

/// Who waits for the scheduler, by actor.
fn gates(board: &Board) -> Vec<(usize, u64, Arc<str>)> {
    let gate = |(number, connection): (&u64, &super::wire::Connection)| match &connection.at {
        At::Gate(label) => Some((connection.actor, *number, Arc::clone(label))),
        _ => None,
    };
    let mut gates: Vec<_> = board.connections.iter().filter_map(gate).collect();
    gates.sort_unstable();
    gates
}

/// Waits until nobody moves. `blocked` is who is behind a lock, by the server's process. Answers how many are
/// new there.
async fn stand_still(line: &Line, observer: &Client, blocked: &mut BTreeSet<i32>) -> usize {
    let until = Instant::now() + PATIENCE;
    let mut waits = 0;
    loop {
        assert!(Instant::now() < until, "nobody stands still: {:#?}", line.board());
        let Standing { version, moves, under_way, is_short } = Standing::of(&line.board());
        if moves {
            let _ = timeout(PATIENCE, line.changed.notified()).await;
            continue;
        }
        // Of those that were behind a lock before, the server is asked at once.
        let is_fresh = under_way.iter().any(|pid| !blocked.contains(pid));
        if is_fresh && timeout(GLANCE, line.changed.notified()).await.is_ok() {
            continue;
        }
        let rows = match under_way.is_empty() {
            true => Vec::new(),
            false => observer.query(BLOCKED, &[&under_way]).await.expect("the server is asked"),
        };
        let found: BTreeSet<i32> = rows.iter().map(|row| row.get(0)).collect();
        waits += found.difference(blocked).count();
        *blocked = found;
        // A wait that ends by itself is waited for.
        if blocked.len() == under_way.len() && !is_short && line.board().version == version {
            return waits;
        }
    }
}

/// How things are, at one moment.
struct Standing {
    version: u64,
    /// An actor has its next statement still to come.
    moves: bool,
    /// Processes of the server that have not answered.
    under_way: Vec<i32>,
    /// One of them has a short wait for locks.
    is_short: bool,
}

impl Standing {
    fn of(board: &Board) -> Self {
        let mut still = board.done.clone();
        for connection in board.connections.values().filter(|connection| connection.at != At::Rest) {
            still[connection.actor] = true;
        }
        let under_way = board.connections.values().filter(|connection| connection.at == At::Server);
        Self {
            version: board.version,
            moves: still.contains(&false),
            is_short: under_way.clone().any(|connection| connection.is_short),
            under_way: under_way.map(|connection| connection.pid).collect(),
        }
    }
}
