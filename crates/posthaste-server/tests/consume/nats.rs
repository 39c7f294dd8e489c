//! JetStream from end to end: streams as plain logs, with leases and positions in the service's database; and
//! as queues where no order is asked for.

use crate::member::{Member, WAIT};
use crate::members::{SETTINGS, kind, one_of_two_members_of_a_log_dies_under_load};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions};
use rustix::process::Signal;

const EFFECTS: &str = "select count(*) from trial.effects";

async fn open() -> Result<Nats, posthaste_testkit::services::ServiceError> {
    Nats::start(&NatsOptions::default()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_one_of_two_members_of_a_stream_dies_under_load() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, SETTINGS).await);
    one_of_two_members_of_a_log_dies_under_load(&rig).await;
}

/// F66, F20: frozen for longer than its lease lives, and back.
#[tokio::test(flavor = "multi_thread")]
async fn f66_a_member_that_was_stopped_past_its_lease_does_nothing_twice() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "batch_max = 8").await);
    rig.publish(200, "slow").await;
    let frozen = rig.start();
    rig.until(EFFECTS, 20).await;
    frozen.signal(Signal::STOP);
    let other = rig.start();
    rig.until_shared_by(&[&other]).await;
    rig.publish(40, "order").await;
    rig.until(EFFECTS, 150).await;
    frozen.signal(Signal::CONT);
    rig.publish(40, "order").await;
    rig.until_settled().await;
    rig.check("with a member that was stopped past its lease").await;
    frozen.stop().await;
    rig.finish(other, "after it left").await;
    assert_eq!(rig.count(EFFECTS).await, 280);
}

/// F22: handlers have all connections for longer than a lease lives, and it is renewed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn f22_handlers_that_hold_every_connection_cost_no_lease() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "transactions_max = 1\nbatch_max = 1").await);
    rig.run("select pg_advisory_lock(4711)").await;
    rig.publish(3, "block").await;
    let member = rig.start();
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 and not granted \
                   and database = (select oid from pg_database where datname = current_database())";
    rig.until(waiting, 1).await;
    rig.run("create table trial.lease as select epoch, expires_at from posthaste.inbox_partitions").await;
    // Handlers time out after ten seconds: that is longer than a lease lives.
    let renewed = "select count(*) from posthaste.inbox_partitions p join trial.lease l on p.epoch = l.epoch \
                   and p.expires_at > l.expires_at + interval '8 seconds'";
    rig.until(renewed, 1).await;
    rig.run("select pg_advisory_unlock(4711)").await;
    rig.finish(member, "after handlers that took long").await;
}

/// F31: a restart of the server is an ordinary day.
#[tokio::test(flavor = "multi_thread")]
async fn f31_the_server_is_killed_and_comes_back() {
    let mut nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "batch_max = 8").await);
    rig.publish(150, "slow").await;
    let member = rig.start();
    rig.until(EFFECTS, 20).await;
    nats.kill9().await.expect("killed");
    rig.until(EFFECTS, 21).await;
    nats.start_again().await.expect("started again");
    // The client of the test comes back by itself too.
    eventually("the stream is there", WAIT, || async { (rig.count(EFFECTS).await >= 150).then_some(()) })
        .await;
    rig.publish(40, "order").await;
    rig.finish(member, "after a restart of the server").await;
    assert_eq!(rig.count(EFFECTS).await, 190);
}

async fn stops(member: &Member, why: &str) {
    let is_told = |status, body: &str| status == 503 && body.contains(why);
    let told = member.page("/readyz", why, is_told).await;
    assert!(told.contains("posthaste consumers seek"), "{told}");
}

/// F6: the numbers begin again, and none of the new messages may be taken for done. An operator says where to
/// go on.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_stream_that_was_deleted_and_made_again_stops_the_consumer_until_it_is_told() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "").await);
    rig.publish(30, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let client = async_nats::connect(nats.url()).await.expect("connected");
    let jetstream = async_nats::jetstream::new(client);
    let config = jetstream.get_stream(&rig.topic).await.expect("there").cached_info().config.clone();
    jetstream.delete_stream(&rig.topic).await.expect("deleted");
    jetstream.create_stream(config).await.expect("made again");
    rig.publish(50, "order").await;
    stops(&member, "belongs to the log").await;
    assert_eq!(rig.count(EFFECTS).await, 30, "nothing is read in silence");
    let place = ["--topic", &rig.topic, "--partition", "0", "--to", "earliest", "--reason", "a trial"];
    rig.cli(&[&["consumers", "seek", "billing"], &place[..]].concat()).ok();
    rig.finish(member, "after the stream was made again").await;
    assert_eq!(rig.count(EFFECTS).await, 80);
}

/// Seed 001's case: the publisher sent it twice, and its mark is in the service's own table.
#[tokio::test(flavor = "multi_thread")]
async fn g5_what_was_sent_twice_has_one_effect_and_one_processed_event_id() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "tables = \"processed-event-ids\"").await);
    rig.publish(20, "order").await;
    rig.publish_again(7, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.publish_again(21, "order").await;
    rig.until_settled().await;
    member.stop().await;
    assert_eq!(rig.count(EFFECTS).await, 22);
    assert_eq!(rig.count("select count(distinct id) from trial.effects").await, 22);
    assert_eq!(rig.count("select count(*) from processed_event_ids").await, 22);
}

/// What people ask for: where the consumer is, and a range once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_a_stream_is_replayed_and_its_status_shown() {
    let nats = require_service!(open().await);
    let rig = require_service!(Rig::set_on_nats(&nats, "").await);
    rig.publish(25, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let status = rig.cli(&["consumers", "status"]).ok();
    // A long name goes on in the next line.
    assert!(status.contains(&rig.topic[..24]) && status.contains("26"), "{status}");
    let range = ["--from", "position:5", "--to", "position:11", "--repeat", "--reason", "a trial"];
    let base = ["consumers", "replay", "billing", "--topic", &rig.topic];
    rig.cli(&[&base[..], &range[..]].concat()).ok();
    rig.until(EFFECTS, 31).await;
    let doctor = rig.cli(&["doctor"]);
    for check in ["rights", "retention", "may be read"] {
        assert!(doctor.out.contains(check), "{check}: {}{}", doctor.out, doctor.err);
    }
    member.stop().await;
    assert_eq!(rig.count(EFFECTS).await, 31);
}

/// Without order two members share a stream, with retries, deferral and dead letters under way. One of them
/// is killed with its hands full, and others get that when `ack_wait` is over: each effect once.
#[tokio::test(flavor = "multi_thread")]
async fn g5_two_members_share_a_stream_without_order_and_one_is_killed() {
    let nats = require_service!(open().await);
    let settings = format!("order = \"none\"\n{SETTINGS}");
    let rig = require_service!(Rig::set_on_nats(&nats, &settings).await);
    let source = format!("[sources.queue]\ntype = \"nats\"\nurl = \"{}\"\nack_wait_ms = 2000\n", nats.url());
    rig.reconfigure("[consumers.billing]", &format!("{source}[consumers.billing]"));
    rig.reconfigure("source = \"broker\"", "source = \"queue\"");
    let (mut first, second) = (rig.start(), rig.start());
    for member in [&first, &second] {
        member.says("subscribed").await;
    }
    rig.publish_mixed(600, kind).await;
    rig.until(EFFECTS, 60).await;
    first.kill9();
    rig.check_but_order("right after a death").await;
    rig.publish_mixed(40, kind).await;
    rig.until("select count(*) from trial.marks where outcome <> 'w'", 640).await;
    let client = async_nats::connect(nats.url()).await.expect("connected");
    let stream = async_nats::jetstream::new(client).get_stream(&rig.topic).await.expect("the stream");
    eventually("everything is acknowledged", WAIT, || async {
        let info = stream.consumer_info(&rig.topic).await.expect("the consumer");
        ((info.num_pending, info.num_ack_pending) == (0, 0)).then_some(())
    })
    .await;
    let status = rig.cli(&["consumers", "status"]).ok();
    assert!(status.contains("has no positions"), "{status}");
    let doctor = rig.cli(&["doctor"]);
    for check in ["max-deliver", "ack-wait", "0 messages of stream"] {
        assert!(doctor.out.contains(check), "{check}: {}{}", doctor.out, doctor.err);
    }
    second.stop().await;
    rig.check_but_order("at the end").await;
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 32);
    assert_eq!(rig.count(EFFECTS).await, 608);
    assert!(rig.positions().await.values().all(|position| *position == 0), "a queue has none");
}
