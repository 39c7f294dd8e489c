//! Controlled interleaving: the statements of T1, T2, T3, T4 and the replays of real stores, one at a time.
//!
//! Two or three members (one has the messages of long ago in its hands, one starts at the saved position),
//! one or two looks at what is deferred, and an operator act at once. Handlers fail, producers send things
//! twice. A seed says whose statement comes next; one that is behind a lock stays there until its holder
//! went on. In half of the schedules a part of the waits ends soon, as by `lock_timeout`. At the end
//! everything heals, and then effects, order, marks, rows and stuck keys are looked at (`world.rs`).
//!
//! `SCHEDULE_SEEDS=17..18` runs that one alone and tells what happened.

mod actors;
mod schedule;
mod wire;
mod world;

use crate::fixture::{InboxFixture, actor};
use actors::{Member, Operator, look, looks};
use posthaste::admin::{DeadAct, DeadFilter};
use posthaste::consumer::Filter;
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste_postgres::consumer::{Handlers, InboxOptions, PostgresInbox};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::faults::Dice;
use schedule::{Acting, Schedule};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use tokio_postgres::Client;
use wire::{Alterations, Line};
use world::{CLEAN, CheckingHandler, STUCK, TABLE, World};

/// Schedules for each way to treat the dead: here, and in `./test soak`.
const SCHEDULES: u64 = 60;
const SCHEDULES_SOAK: u64 = 300;
/// Within how many schedules what is broken on purpose is found.
const FOUND_WITHIN: u64 = 600;
const MEMBERS: usize = 3;
const LOOKS: usize = 2;

/// What is broken on purpose. Each of these must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    /// T1 does not look again for a hold that came while it waited.
    NoSecondLook,
    /// Nobody takes the lock of a key.
    NoKeyLock,
    /// Of deferred messages only the one that failed holds its key.
    FirstHolds,
    /// A range is copied beyond the saved position.
    NotClamped,
}

impl Mutation {
    fn alterations(self) -> Alterations {
        match self {
            Self::NoSecondLook => {
                &[("m.n in (select h from \"posthaste\".held($1, $3, $4) as h) as held", "false as held")]
            }
            Self::NoKeyLock => &[
                ("pg_advisory_xact_lock(", "public.no_lock("),
                ("pg_try_advisory_xact_lock(", "public.no_lock("),
            ],
            Self::FirstHolds => &[("'retry' end, true,", "'retry' end, m.delay is not null,")],
            Self::NotClamped => &[("m.position < p.position", "true")],
        }
    }
}

/// A database, and everybody who acts on it.
struct Ground {
    line: Arc<Line>,
    observer: Client,
    handler: CheckingHandler,
    members: Vec<Arc<PostgresInbox>>,
    looks: Vec<Arc<PostgresInbox>>,
    operator: Arc<PostgresAdmin>,
    _fixture: InboxFixture,
}

impl Ground {
    async fn open(mutation: Option<Mutation>) -> Option<Self> {
        let fixture = InboxFixture::make().await?;
        let observer = fixture.client().await;
        let name: String = observer.query_one("select current_database()::text", &[]).await.ok()?.get(0);
        let prepare = format!(
            "{TABLE}; alter database {name} set deadlock_timeout = '20ms';
             alter database {name} set synchronous_commit = off; set synchronous_commit = off;
             create function no_lock(integer, integer) returns boolean language sql as 'select true'"
        );
        observer.batch_execute(&prepare).await.expect("prepared");
        let (line, handler) = (Arc::new(Line::default()), CheckingHandler::default());
        let alterations = mutation.map_or(&[][..], Mutation::alterations);
        let direct = fixture.config();
        let mut configs = Vec::new();
        for actor in 0..=MEMBERS + LOOKS {
            let gate = line.open(actor, server(&direct), alterations).await;
            let url = direct.url.replacen(&server(&direct).to_string(), &gate.to_string(), 1);
            assert_ne!(url, direct.url, "everybody goes through the line");
            configs.push(PostgresConfig { url, ..direct.clone() });
        }
        let operator = PostgresAdmin::connect(configs.pop()?).await.expect("the operator connects");
        let mut members = Vec::new();
        for config in configs {
            members.push(inbox(config, &handler).await);
        }
        let looks = members.split_off(MEMBERS);
        let operator = Arc::new(operator);
        Some(Self { line, observer, handler, members, looks, operator, _fixture: fixture })
    }

    /// One schedule. Answers what was wrong.
    async fn run(&self, seed: u64, dead_hold: bool) -> (Schedule, Vec<String>) {
        let mut dice = Dice::new(seed);
        let world = Arc::new(World::throw(seed, dead_hold, &mut dice));
        self.handler.set(&world);
        self.observer.batch_execute(CLEAN).await.expect("cleaned");
        world.write_places(&self.observer).await;
        let actors = self.actors(&world, &mut dice);
        let short_waits = (seed % 2 == 1).then_some(seed);
        let schedule =
            schedule::run(&self.line, &self.observer, &world, &mut dice, short_waits, actors).await;
        self.end(&world, &mut dice).await;
        let problems = std::mem::take(&mut world.ledger().problems);
        (schedule, problems)
    }

    fn actors(&self, world: &Arc<World>, dice: &mut Dice) -> Vec<(String, Acting)> {
        let mut actors: Vec<(String, Acting)> = Vec::new();
        for (inbox, name) in self.members.iter().zip(["owner", "zombie", "successor"]) {
            let mut member = Member::new(world, inbox, name, dice);
            let (is_there, from_saved) = (name != "successor" || dice.happens(0.5), name == "successor");
            actors.push((
                name.to_owned(),
                Box::pin(async move {
                    if is_there {
                        member.read(from_saved).await;
                    }
                }),
            ));
        }
        let looking = dice.index(LOOKS) + 1;
        for (number, inbox) in self.looks.iter().enumerate() {
            let (world, inbox, dice) = (Arc::clone(world), Arc::clone(inbox), dice.fork());
            actors.push((
                format!("look {number}"),
                Box::pin(async move {
                    if number < looking {
                        looks(world, inbox, dice).await;
                    }
                }),
            ));
        }
        let (world, admin, dice) = (Arc::clone(world), Arc::clone(&self.operator), dice.fork());
        let operator = Operator { world, admin, dice };
        actors.push(("operator".to_owned(), Box::pin(operator.act())));
        actors
    }

    /// Everything heals: members go on, and what is due runs. Then the operator replays all letters.
    async fn end(&self, world: &Arc<World>, dice: &mut Dice) {
        world.check(&self.observer).await;
        world.heal();
        let mut member = Member::new(world, &self.members[0], "last", dice);
        for _ in 0..20 {
            member.read(false).await;
            if member.is_done() {
                break;
            }
        }
        if !member.is_done() {
            world.problem("stuck: a member cannot settle its messages".to_owned());
        }
        self.run_due(world).await;
        self.find_stuck(world).await;
        let all = DeadFilter { all: true, ..DeadFilter::default() };
        let replayed = self.operator.letter_act("billing", &all, DeadAct::Replay, &actor(), 1_000).await;
        replayed.expect("the letters are replayed");
        self.run_due(world).await;
        self.find_stuck(world).await;
        world.check(&self.observer).await;
        world.check_done(&self.observer).await;
    }

    async fn run_due(&self, world: &World) {
        // What somebody was in the way of has a time of its own.
        let now = "update posthaste.inbox_deferred set due_at = now() where isfinite(due_at)";
        for _ in 0..50 {
            self.observer.batch_execute(now).await.expect("due");
            if look(world, &self.members[0], 16).await.is_some_and(|due| due.next_due.is_none()) {
                break;
            }
        }
    }

    async fn find_stuck(&self, world: &World) {
        for row in self.observer.query(STUCK, &[]).await.expect("looked for") {
            world.problem(format!("stuck: {} stays deferred", row.get::<_, &str>(0)));
        }
    }
}

fn server(config: &PostgresConfig) -> SocketAddr {
    let url: tokio_postgres::Config = config.url.parse().expect("a URL");
    SocketAddr::from(([127, 0, 0, 1], url.get_ports()[0]))
}

async fn inbox(config: PostgresConfig, handler: &CheckingHandler) -> Arc<PostgresInbox> {
    let handlers: Handlers = vec![(Filter::default(), Arc::new(handler.clone()))];
    let inbox = PostgresInbox::connect(config, InboxOptions::new("billing"), handlers).await;
    Arc::new(inbox.expect("the inbox connects"))
}

/// The seeds that were asked for.
fn seeds() -> Option<Range<u64>> {
    let asked = std::env::var("SCHEDULE_SEEDS").ok()?;
    let (from, to) = asked.split_once("..").expect("SCHEDULE_SEEDS=from..to");
    Some(from.parse().expect("a number")..to.parse().expect("a number"))
}

async fn no_schedule_is_wrong(dead_hold: bool) {
    let Some(ground) = Ground::open(None).await else { return };
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some();
    let seeds = seeds().unwrap_or(0..if is_soak { SCHEDULES_SOAK } else { SCHEDULES });
    let (mut statements, mut waits, count) = (0, 0, seeds.clone().count());
    for seed in seeds {
        let (schedule, problems) = ground.run(seed, dead_hold).await;
        if count == 1 || !problems.is_empty() {
            println!("{}", schedule.statements.join("\n"));
        }
        assert!(problems.is_empty(), "SCHEDULE_SEEDS={seed}..{}: {problems:#?}", seed + 1);
        statements += schedule.statements.len();
        waits += schedule.waits;
    }
    println!("{statements} statements, {waits} waits for locks");
    assert!(count == 1 || waits > count, "the actors meet: {waits} of {statements} wait");
}

#[tokio::test(flavor = "current_thread")]
async fn g3_g5_any_order_of_statements_where_the_dead_let_others_pass() {
    no_schedule_is_wrong(false).await;
}

#[tokio::test(flavor = "current_thread")]
async fn g3_g5_any_order_of_statements_where_the_dead_hold() {
    no_schedule_is_wrong(true).await;
}

/// The schedules find what is broken on purpose. They begin shortly before a seed that is known to: without
/// that, the rarest is met once in 50.
async fn is_found(mutation: Mutation, from: u64) {
    let Some(ground) = Ground::open(Some(mutation)).await else { return };
    for seed in from..from + FOUND_WITHIN {
        let (_, problems) = ground.run(seed, seed % 4 < 2).await;
        if !problems.is_empty() {
            println!("{mutation:?}: seed {seed}: {problems:?}");
            return;
        }
    }
    panic!("{mutation:?} is not found");
}

#[tokio::test(flavor = "current_thread")]
async fn schedules_find_a_missing_second_look() {
    is_found(Mutation::NoSecondLook, 231).await;
}

#[tokio::test(flavor = "current_thread")]
async fn schedules_find_a_missing_lock() {
    is_found(Mutation::NoKeyLock, 128).await;
}

#[tokio::test(flavor = "current_thread")]
async fn schedules_find_rows_that_do_not_hold() {
    is_found(Mutation::FirstHolds, 10).await;
}

#[tokio::test(flavor = "current_thread")]
async fn schedules_find_a_range_beyond_the_position() {
    is_found(Mutation::NotClamped, 20).await;
}
