//! Handlers behind HTTP: a service that answers requests, and what goes wrong with it.
//!
//! The service notes each request as an effect. With `marks = "app"` it admits the message in the same
//! transaction; otherwise nothing of its own would stop it from doing a thing twice.

mod late;
mod request;
mod service;
mod statuses;

use crate::member::{Member, WAIT};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, Version};
use service::{MarkedBy, Service, assert_first_effects_are_in_order, set};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
/// A message that fails is deferred at once.
const DEFERRING: &str = "batch_max = 8\nhandler_timeout_ms = 4000\nretry = { delays_ms = [], then = { max_attempts = 5, initial_ms = 50, max_ms = 100 } }";

/// Marks are ours: each message is asked about once while nobody dies, its events are appended with its mark,
/// and what fails is tried again, deferred and given up as with any other handler.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_receivers_answers_are_marked_and_its_events_appended() {
    let (rig, service) = require_service!(set(DEFERRING, MarkedBy::Posthaste).await);
    rig.publish(40, "order").await;
    rig.publish(8, "late").await;
    rig.publish(16, "chain").await;
    rig.publish(3, "reject").await;
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.until(EFFECTS, 104).await;
    rig.check("with a receiver").await;
    let events = "select count(*) from posthaste.outbox where topic = 'invoices' and headers ->> 'causation-id' like 'm%' \
                  and headers ->> 'correlation-id' is not null and convert_from(payload, 'UTF8')::jsonb ? 'of'";
    assert_eq!(rig.count(events).await, 16, "events of answers");
    let letters = "select count(*) from posthaste.inbox_dead_letters where disposition = 'rejected' and error_code = 'http.422' \
                   and attempts = 1 and stack like '%no order%' and error || stack not like '%hunter2%'";
    assert_eq!(
        (rig.count(letters).await, rig.count(LETTERS).await),
        (3, 3),
        "refused at once, secrets masked"
    );
    // 8 late ones are asked three times; nobody else twice.
    assert_eq!(service.shared.requests.load(Ordering::SeqCst), 107 + 16, "requests");
    rig.finish(member, "with a receiver").await;
}

/// The process dies under load: effects outside happen at least once, marks and events once, keys in order.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_death_repeats_requests_and_nothing_else() {
    let (rig, _service) = require_service!(set(DEFERRING, MarkedBy::Posthaste).await);
    rig.publish_mixed(400, |n| if n % 5 == 0 { "chain" } else { "order" }).await;
    for round in 1..=2 {
        let mut member = rig.start();
        rig.until(EFFECTS, round * 100).await;
        member.kill9();
    }
    let member = rig.start();
    rig.until_settled().await;
    assert_eq!(rig.count("select count(distinct id) from trial.effects").await, 400);
    let events = rig.count("select count(*) from posthaste.outbox where topic = 'invoices'").await;
    assert_eq!(events, 80, "events of answers, each once");
    assert_first_effects_are_in_order(&rig, "after two deaths").await;
    member.stop().await;
}

/// The receiver has answered, and the process dies before anything is written about it: it is asked again.
/// Where the application keeps the marks, they are found, and it has its effects once.
#[tokio::test(flavor = "multi_thread")]
async fn g5_an_answer_that_nobody_wrote_down_is_asked_for_again() {
    for marks in [MarkedBy::Posthaste, MarkedBy::App] {
        let (rig, service) = require_service!(set("batch_max = 8", marks).await);
        let kind = |n: i32| if marks == MarkedBy::Posthaste && n % 5 == 0 { "chain" } else { "order" };
        rig.publish_mixed(40, kind).await;
        let mut member = rig.start_to_die(&format!("{}@2", crate::points::OUTSIDE[0]));
        assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL");
        let answered = service.shared.requests.load(Ordering::SeqCst);
        let member = rig.start();
        rig.until("select count(distinct id) from trial.effects", 40).await;
        rig.until_saved().await;
        let (requests, effects) = (service.shared.requests.load(Ordering::SeqCst), rig.count(EFFECTS).await);
        assert!(answered > 8, "{answered} before the death");
        match marks {
            MarkedBy::Posthaste => {
                assert!(requests > 40, "some were asked about twice: {requests}");
                let events =
                    rig.count("select count(*) from posthaste.outbox where topic = 'invoices'").await;
                assert_eq!(events, 8, "events of answers, each once");
            }
            MarkedBy::App => assert_eq!(effects, 40, "its effects, each once"),
        }
        assert_first_effects_are_in_order(&rig, "after a death between answer and mark").await;
        member.stop().await;
    }
}

/// A message's own headers cannot say who it is: they travel under another name.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_cannot_forge_what_we_say_of_it() {
    let (rig, _service) = require_service!(set("", MarkedBy::App).await);
    let forged = [
        ("type", "order"),
        ("Posthaste-Id", "m1"),
        ("posthaste-consumer", "another"),
        ("posthaste-topic", "another"),
        ("posthaste-position", "7"),
        ("posthaste-attempt", "9"),
    ];
    rig.publish_with(4, &forged).await;
    rig.publish(4, "order").await;
    let member = rig.start();
    rig.until("select count(distinct id) from trial.effects", 8).await;
    rig.until_saved().await;
    rig.check("with headers that pretend to be ours").await;
    member.stop().await;
}

/// F50: one message fails by itself while the receiver is back again: others do not wait for its pauses.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_probe_that_fails_by_itself_lets_the_others_through() {
    let settings = "dependencies = {}\nretry = { delays_ms = [1000, 1000, 1000, 1000, 1000, 1000] }";
    let (rig, service) = require_service!(set(settings, MarkedBy::Posthaste).await);
    rig.publish(3, "gone").await;
    let member = rig.start();
    eventually("somebody was asked", WAIT, || async {
        (service.shared.requests.load(Ordering::SeqCst) > 2).then_some(())
    })
    .await;
    service.shared.away.store(true, Ordering::SeqCst);
    let why =
        |status: u16, text: &str| status == 503 && text.contains("waiting for") && text.contains("http.503");
    member.page("/readyz", "the receiver is named, and what it said", why).await;
    service.shared.away.store(false, Ordering::SeqCst);
    rig.publish(20, "order").await;
    let began = std::time::Instant::now();
    rig.until(EFFECTS, 20).await;
    assert!(began.elapsed().as_secs() < 30, "they waited for {:?}", began.elapsed());
    member.says("a dependency is away").await;
    member.stop().await;
}

/// Marks are the application's: its effects happen once, whatever dies, and nothing of ours is in its way.
#[tokio::test(flavor = "multi_thread")]
async fn g5_an_application_that_admits_has_its_effects_once() {
    let (rig, service) = require_service!(set(DEFERRING, MarkedBy::App).await);
    rig.publish_mixed(400, |n| if n % 40 == 0 { "late" } else { "order" }).await;
    service.shared.dies.store(true, Ordering::SeqCst);
    let mut member = rig.start();
    rig.until(EFFECTS, 100).await;
    member.kill9();
    let mut member = rig.start();
    rig.until(EFFECTS, 200).await;
    member.kill9();
    rig.publish(2, "reject").await;
    let member = rig.start();
    rig.until(LETTERS, 2).await;
    rig.until(EFFECTS, 400).await;
    // The application commits first. Our row of a message that waited goes right after it.
    rig.until("select 1 - least(count(*), 1) from posthaste.inbox_deferred", 1).await;
    rig.until_saved().await;
    rig.check("where the application keeps the marks").await;
    let ours = "select count(*) from posthaste.inbox where outcome <> 'd'";
    assert_eq!(rig.count(ours).await, 0, "we mark nothing");
    // A replayed letter is asked about again, and refused again.
    rig.cli(&["dead", "replay", "--consumer", "billing", "--all", "--yes", "--reason", "again"]).ok();
    rig.until("select count(*) from posthaste.inbox_dead_letters where replays > 0", 2).await;
    member.stop().await;
}

/// A receiver that is away pauses what needs it: no attempt, no letter, `Retry-After` is kept, it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_receiver_that_is_away_costs_no_attempt() {
    for marks in [MarkedBy::Posthaste, MarkedBy::App] {
        let (rig, service) = require_service!(set("", marks).await);
        service.shared.away.store(true, Ordering::SeqCst);
        rig.publish(60, "order").await;
        let member = rig.start();
        eventually("somebody was asked", WAIT, || async {
            (service.shared.requests.load(Ordering::SeqCst) > 0).then_some(())
        })
        .await;
        let why = |status: u16, text: &str| status == 503 && text.contains(&service.address.to_string());
        member.page("/readyz", "the receiver is named", why).await;
        let asked = service.shared.requests.load(Ordering::SeqCst);
        assert!(asked < 60, "nobody is asked again and again while it is away: {asked}");
        service.shared.away.store(false, Ordering::SeqCst);
        rig.until(EFFECTS, 60).await;
        rig.until_saved().await;
        assert_innocent(&rig, &member).await;
        assert!(service.shared.most_at_once.load(Ordering::SeqCst) <= 16);
        member.stop().await;
    }
}

async fn assert_innocent(rig: &Rig, member: &Member) {
    crate::handlers::assert_innocent(rig, member, "after a receiver was away").await;
}

/// Answers that are none: half of one, one of ten megabytes, events that cannot be, 404, a redirect. Each is
/// an attempt of its message, and others do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn f49_an_answer_that_is_none_is_an_attempt() {
    let settings = "retry = { delays_ms = [50] }";
    let (rig, _service) = require_service!(set(settings, MarkedBy::Posthaste).await);
    for kind in ["half", "huge", "odd", "gone", "moved"] {
        rig.publish(1, kind).await;
    }
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let codes = "select count(*) from posthaste.inbox_dead_letters where disposition = 'exhausted' and attempts = 2 \
                 and error_code in ('http.404', 'http.302')";
    assert_eq!((rig.count(codes).await, rig.count(LETTERS).await), (2, 2));
    let done = "select count(distinct id) from trial.effects";
    assert_eq!(rig.count(done).await, 43, "the others are done");
    member.stop().await;
}

/// Nobody listens: a receiver that is refused is away, and doctor says so.
#[tokio::test(flavor = "multi_thread")]
async fn f85_a_receiver_that_is_not_there_is_named() {
    let rig = require_service!(Rig::set("").await);
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("one").port();
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"http://127.0.0.1:{port}/events\""));
    let found = rig.cli(&["doctor"]);
    assert!(
        found.out.contains("handlers") && found.out.contains(&format!("127.0.0.1:{port}")),
        "{}",
        found.out
    );
    rig.publish(5, "order").await;
    let member = rig.start();
    let named = |status: u16, text: &str| status == 503 && text.contains(&format!("127.0.0.1:{port}"));
    member.page("/readyz", "the receiver is named", named).await;
    assert_eq!(rig.count(LETTERS).await, 0);
    member.stop().await;
}

/// A request that takes longer than the handler's time has failed, and is an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_says_nothing_is_out_of_time() {
    let settings = "handler_timeout_ms = 1000\nretry = { delays_ms = [] }";
    let rig = require_service!(Rig::set(settings).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let silent = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"http://{address}/events\""));
    rig.publish(2, "order").await;
    let member = rig.start();
    let dead = "select count(*) from posthaste.inbox_dead_letters where disposition = 'timeout' and error_code = 'http.timeout'";
    rig.until(dead, 2).await;
    silent.abort();
    member.stop().await;
}

/// Three consumers behind a pooler with 20 connections, and a receiver that takes its time: a request holds
/// no connection, so none of them starves.
#[tokio::test(flavor = "multi_thread")]
async fn f30_consumers_that_wait_for_answers_hold_no_connections() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set_on(server, "in_hand_max = 512").await;
    let service = Service::start(&rig, MarkedBy::Posthaste).await;
    let bouncer = require_service!(PgBouncer::start(rig.server()).await);
    let direct = format!("url = \"{}\"", rig.url());
    rig.reconfigure(&direct, &format!("url = \"{}\"\npooled = true\nrelay = false", bouncer.url()));
    let http = format!("http = \"http://{}/events\"", service.address);
    let others = ["second", "third"].map(|name| {
        format!(
            "[consumers.{name}]\nsource = \"broker\"\ntopics = [\"orders\"]\n[[consumers.{name}.handle]]\n{http}\n"
        )
    });
    rig.reconfigure("sql = \"trial.handle\"", &format!("{http}\n{}", others.concat()));
    rig.publish(48, "slow").await;
    let member = rig.start();
    rig.until("select count(*) from posthaste.inbox where outcome = 'd'", 3 * 48).await;
    let each = "select count(*) from (select from posthaste.inbox group by consumer having count(*) = 48) c";
    assert_eq!(rig.count(each).await, 3);
    assert_innocent(&rig, &member).await;
    member.stop().await;
}
