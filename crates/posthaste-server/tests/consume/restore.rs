//! The database goes back under a living consumer: it is restored from an older copy, directly and behind a
//! pooler that hides the restart.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, Version};
use std::path::PathBuf;
use std::process::Command;
use tokio_postgres::{Client, NoTls};

const SETTINGS: &str = "batch_max = 8";
const EFFECTS: &str = "select count(*) from trial.effects";
const RETAKEN: &str = "posthaste_consumer_retaken_total";

/// What stands between the consumer and its database.
struct Pooler {
    console: Client,
    _bouncer: PgBouncer,
}

impl Pooler {
    async fn start(rig: &mut Rig) -> Self {
        let bouncer = PgBouncer::start(rig.server()).await.expect("a pooler");
        let (console, connection) =
            tokio_postgres::connect(&bouncer.url_for("pgbouncer"), NoTls).await.expect("its console");
        tokio::spawn(connection);
        let direct = format!("url = \"{}\"", rig.url());
        rig.reconfigure(&direct, &format!("url = \"{}\"\npooled = true\nrelay = false", bouncer.url()));
        Self { console, _bouncer: bouncer }
    }

    async fn say(&self, word: &str) {
        self.console.simple_query(word).await.expect("the pooler obeys");
    }
}

/// A service whose database is changed while nobody looks. Behind a pooler no client loses its connection:
/// it is paused meanwhile, as one does.
struct Scene {
    rig: Rig,
    pooler: Option<Pooler>,
}

impl Scene {
    async fn swap(&mut self, files: impl Fn(&PathBuf, &PathBuf)) {
        if let Some(pooler) = &self.pooler {
            pooler.say("PAUSE").await;
        }
        let data = self.rig.server().data_dir();
        self.rig.server().stop_fast().await.expect("stopped");
        files(&data, &data.with_extension("copy"));
        self.rig.server().start_again().await.expect("started");
        if let Some(pooler) = &self.pooler {
            pooler.say("RESUME").await;
        }
        self.rig.reconnect().await;
    }

    async fn copy(&mut self) {
        self.swap(|data, copy| run(Command::new("cp").arg("-a").arg(data).arg(copy))).await;
    }

    async fn restore(&mut self) {
        self.swap(|data, copy| {
            run(Command::new("rm").arg("-r").arg(data));
            run(Command::new("mv").arg(copy).arg(data));
        })
        .await;
    }
}

#[track_caller]
pub(crate) fn run(command: &mut Command) {
    assert!(command.status().expect("it starts").success(), "{command:?}");
}

/// Without the witness, what was handled since the copy would be missing for ever. In the second round
/// nothing that was settled since has been saved: the restored position is the one that the consumer saved
/// last, so nobody could tell by positions that the database is another one.
async fn goes_back(pooled: bool) {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set_on(server, SETTINGS).await;
    let pooler = if pooled { Some(Pooler::start(&mut rig).await) } else { None };
    let mut scene = Scene { rig, pooler };
    let member = scene.rig.start();
    for is_saved in [true, false] {
        let when = format!("after a restore, with positions saved: {is_saved}");
        scene.rig.publish(100, "order").await;
        scene.rig.until_settled().await;
        scene.copy().await;
        // The consumer has seen that restart, and nothing is in its hand.
        scene.rig.publish(8, "order").await;
        scene.rig.until_settled().await;
        let (saved, retaken) = (scene.rig.positions().await, member.metric(RETAKEN).await);
        if !is_saved {
            scene.rig.run("begin; select from posthaste.inbox_partitions for update").await;
        }
        scene.rig.publish(60, "order").await;
        let all = i64::from(scene.rig.last());
        scene.rig.until(EFFECTS, all).await;
        match is_saved {
            true => scene.rig.until_saved().await,
            false => assert_eq!(scene.rig.positions().await, saved, "nobody could save"),
        }

        scene.restore().await;
        scene.rig.publish(20, "order").await;
        scene.rig.until_settled().await;
        assert_eq!(scene.rig.count(EFFECTS).await, all + 20, "everything since is handled again, {when}");
        eventually("everything was taken anew", WAIT, || async {
            (member.metric(RETAKEN).await > retaken).then_some(())
        })
        .await;
        scene.rig.check(&when).await;
    }
    let letters = scene.rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    assert_eq!(
        (letters, member.metric("posthaste_consumer_retries_total").await),
        (0, 0.0),
        "letters, retries"
    );
    scene.rig.finish(member, "after two restores").await;
}

/// F6: a database that is restored under a living consumer takes it back with it.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_restored_database_takes_the_living_consumer_back_with_it() {
    goes_back(false).await;
}

/// F6: the same behind a pooler, where no connection of the consumer breaks.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_restore_that_a_pooler_hides_takes_the_consumer_back_too() {
    goes_back(true).await;
}
