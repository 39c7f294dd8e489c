//! The rest of the acceptance list, on a cluster as it is run: three nodes, certificates, rights. One cluster
//! for the tests here, which take turns.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Kafka, KafkaOptions, KafkaRight, KafkaSecurity, ServiceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OnceCell, RwLock};

const EFFECTS: &str = "select count(*) from trial.effects";
const PHOENIX: &str = "tables = \"phoenix\"";

struct Fort {
    certs: Certs,
    kafka: Arc<RwLock<Kafka>>,
    turn: Mutex<()>,
}

impl Fort {
    async fn enter() -> Result<(&'static Self, MutexGuard<'static, ()>), ServiceError> {
        static FORT: OnceCell<Result<Fort, ServiceError>> = OnceCell::const_new();
        let fort = FORT.get_or_init(Self::build).await.as_ref().map_err(Clone::clone)?;
        Ok((fort, fort.turn.lock().await))
    }

    async fn build() -> Result<Self, ServiceError> {
        let certs = Certs::make()?;
        let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
        let kafka =
            Kafka::start(&KafkaOptions::default().nodes(3).listener("MTLS", mtls).authorizer()).await?;
        Ok(Self { certs, kafka: Arc::new(RwLock::new(kafka)), turn: Mutex::default() })
    }

    /// The lines of a sink or source for whoever has this name on its certificate.
    async fn login(&self, who: &str) -> String {
        let pair = self.certs.client(who).expect("a certificate");
        let url = self.kafka.read().await.bootstrap_at("MTLS");
        let url: Vec<&str> = url.split(',').collect();
        format!(
            "type = \"kafka\"\nurl = {url:?}\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}",
            self.certs.ca(),
            pair.certificate,
            pair.key
        )
    }

    async fn allow(&self, right: KafkaRight) {
        self.kafka.read().await.allow(&right).await.expect("allowed");
    }

    /// A consumer that may read its topic, and write where its dead letters go if it is allowed to.
    async fn rig(&self, topic: &str, more: &str) -> Result<Rig, ServiceError> {
        for (topic, partitions) in [(topic.to_owned(), 3), (format!("{topic}.dead"), 1)] {
            self.kafka.read().await.create_topic(&topic, partitions, 3, &["min.insync.replicas=2"]).await?;
        }
        self.allow(KafkaRight::topic("billing", "READ", topic)).await;
        self.allow(KafkaRight::group("billing", "READ", topic)).await;
        let login = self.login("billing").await;
        Rig::set_on_topic(Arc::clone(&self.kafka), topic, &login, &format!("{PHOENIX}\n{more}")).await
    }
}

/// Persistence: the whole cluster is killed and started again. What nobody had consumed lies on its disks,
/// and the consumer that was there all the time goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn f31_a_restart_of_the_whole_cluster_loses_nothing() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    let rig = require_service!(fort.rig("kept", "").await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.cli(&["pause", "--consumer", "billing", "--reason", "a restart"]).ok();
    member.page("/readyz", "it is paused", |_, body| body.contains("paused by an operator")).await;
    rig.publish(60, "order").await;
    fort.kafka.write().await.kill9().await.expect("killed");
    fort.kafka.write().await.start_again().await.expect("started");
    assert_eq!(rig.count(EFFECTS).await, 40, "nobody consumed them");
    rig.cli(&["resume", "--consumer", "billing", "--reason", "it is over"]).ok();
    rig.until(EFFECTS, 100).await;
    rig.finish(member, "after a restart of the cluster").await;
    assert_eq!(rig.count("select count(*) from sys.request_keys").await, 100);
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 0);
}

/// The node that coordinates all groups: it leads the only partition of their positions.
async fn coordinator(fort: &Fort) -> Option<u32> {
    let partitions = fort.kafka.read().await.partitions("__consumer_offsets").await.ok()?;
    partitions.first()?.leader
}

/// F31: the node that coordinates the group dies under load. Another one takes its place, and the members go
/// on there, with nothing lost, twice or out of order.
#[tokio::test(flavor = "multi_thread")]
async fn f31_the_groups_coordinator_moves_under_load() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    let rig = require_service!(fort.rig("moved", "batch_max = 8").await);
    rig.publish(80, "slow").await;
    let (first, second) = (rig.start(), rig.start());
    rig.until_shared_by(&[&first, &second]).await;
    let is_over = AtomicBool::new(false);
    let load = async {
        while !is_over.load(Ordering::Relaxed) {
            rig.publish(24, "slow").await;
            tokio::time::sleep(Duration::from_millis(100)).await; // pace
        }
    };
    let moving = async {
        let so_far = rig.count(EFFECTS).await;
        rig.until(EFFECTS, so_far + 40).await;
        let dead = coordinator(fort).await.expect("there is a group");
        fort.kafka.write().await.node_mut(dead).kill9().await.expect("killed");
        let next = eventually("another node coordinates", WAIT, || async {
            coordinator(fort).await.filter(|node| *node != dead)
        })
        .await;
        assert_ne!(next, dead);
        let so_far = rig.count(EFFECTS).await;
        rig.until(EFFECTS, so_far + 100).await;
        rig.check("while the coordinator is another one").await;
        is_over.store(true, Ordering::Relaxed);
        dead
    };
    let ((), dead) = tokio::join!(load, moving);
    rig.until_settled().await;
    rig.until_shared_by(&[&first, &second]).await;
    rig.until_committed().await;
    fort.kafka.write().await.node_mut(dead).start_again().await.expect("started");
    second.stop().await;
    rig.finish(first, "after the coordinator moved").await;
    let letters = rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    assert_eq!((rig.count(EFFECTS).await, letters), (i64::from(rig.last()), 0), "all, dead");
}

/// Rights: a service without the right to read a topic gets nothing of it and is told by name, and others
/// flow. A dead-letter topic that may not be written holds nobody up, and its event comes when it may.
#[tokio::test(flavor = "multi_thread")]
async fn f36_whoever_may_not_read_is_refused_by_name_and_others_flow() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    fort.allow(KafkaRight::group("spy", "READ", "spies")).await;
    let spy = format!(
        "[sources.spy]\n{}\n[consumers.spy]\nsource = \"spy\"\ntopics = [\"secret\"]\ngroup = \"spies\"\n\
         [[consumers.spy.handle]]\nsql = \"trial.handle\"",
        fort.login("spy").await
    );
    let rig = require_service!(fort.rig("secret", &spy).await);
    rig.publish(20, "order").await;
    rig.publish(1, "reject").await;
    rig.publish(20, "order").await;
    let member = rig.start();
    let refused = member.says("client-spy.pem").await;
    assert!(refused.contains("secret") && refused.contains("READ"), "{refused}");
    rig.until_settled().await;
    let of_spy = "select count(*) from posthaste.inbox_partitions where consumer = 'spy'";
    assert_eq!((rig.count(EFFECTS).await, rig.count(of_spy).await), (40, 0));
    rig.until("select count(*) from sys.dead_letters", 1).await;
    let doctor = rig.cli(&["doctor", "--json"]);
    assert_eq!(doctor.code, 1, "{}", doctor.out);
    for words in ["client-spy.pem may not read topic", "client-billing.pem may write to no topic"] {
        assert!(doctor.out.contains(words), "{}", doctor.out);
    }

    fort.allow(KafkaRight::topic("billing", "WRITE", "secret.dead")).await;
    eventually("the dead-letter topic has its event", WAIT, || async {
        (fort.kafka.read().await.dump("secret.dead").await.expect("read").len() == 1).then_some(())
    })
    .await;
    rig.publish(20, "order").await;
    rig.until_settled().await;
    member.stop().await;
    rig.check("with a service that may not read").await;
}

/// A right that is taken away stops a consumer that runs, and it says which one. When a topology gives it
/// back, the consumer goes on by itself, with nothing lost or twice.
#[tokio::test(flavor = "multi_thread")]
async fn f36_a_right_that_is_taken_away_stops_a_running_consumer() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    let rig = require_service!(fort.rig("revoked", "").await);
    rig.publish(20, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let right = KafkaRight::topic("billing", "READ", "revoked");
    fort.kafka.read().await.revoke(&right).await.expect("revoked");
    let refused = member.says("client-billing.pem may not read revoked").await;
    assert!(refused.contains("allow READ on them"), "{refused}");
    // One broker has refused; the others learn of it in a moment.
    let doctor = || rig.cli(&["doctor", "--json"]).out;
    eventually("others are refused, too", WAIT, || async {
        doctor().contains("client-billing.pem may not read topic").then_some(())
    })
    .await;
    rig.publish(20, "order").await;
    doctor();
    assert_eq!(rig.count(EFFECTS).await, 20, "what came afterwards is not for its eyes");

    let url = fort.kafka.read().await.bootstrap();
    let url: Vec<&str> = url.split(',').collect();
    rig.write(
        "topology.toml",
        &format!(
            "[brokers.kafka]\ntype = \"kafka\"\nurl = {url:?}\n\
             [[principal]]\nname = \"billing\"\nread = [\"revoked\"]\ngroups = [\"revoked\"]\n"
        ),
    );
    let said = rig.cli(&["topology", "apply", "--yes"]).ok();
    assert!(said.contains("+ acl billing") && said.contains("1 change was made"), "{said}");
    rig.until_settled().await;
    rig.finish(member, "after a right was away").await;
    assert_eq!(rig.count(EFFECTS).await, 40);
}
