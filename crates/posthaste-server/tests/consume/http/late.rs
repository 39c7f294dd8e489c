//! A receiver that goes on with a request after its time is over: what is promised of the message then.

use super::service::{MarkedBy, Service, assert_first_effects_are_in_order, set};
use super::{EFFECTS, LETTERS};
use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use std::sync::atomic::Ordering;

const IDS: &str = "select count(distinct id) from trial.effects";
/// Effects of requests that were stalled, behind that of a later message of their key.
const BEHIND: &str = "select count(*) from trial.effects e where type = 'stall' and exists \
                      (select from trial.effects l where l.key = e.key and l.n > e.n and l.seq < e.seq)";

/// Lets the first requests for messages of the type `stall` go on, and waits for their end.
async fn release(service: &Service, count: usize) {
    service.shared.stalled.add_permits(count);
    eventually("nobody is at work", WAIT, || async {
        (service.shared.at_once.load(Ordering::SeqCst) == 0).then_some(())
    })
    .await;
}

/// The message comes again, and later ones of its key behind it, while the first request is still at work.
/// Where the application admits, whoever is first has the effect, and there is no other: one request sits
/// before its transaction, one in it. Without marks of its own it does the thing twice, the second time
/// behind what came later. Other keys do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_request_that_outlasts_its_time_has_no_second_effect_where_the_application_admits() {
    for marks in [MarkedBy::App, MarkedBy::Posthaste] {
        let settings = "batch_max = 8\nhandler_timeout_ms = 2000\nretry = { delays_ms = [50, 50, 50] }";
        let (rig, service) = require_service!(set(settings, marks).await);
        rig.publish(8, "order").await;
        rig.publish(2, "stall").await;
        rig.publish(1, "hold").await;
        rig.publish(24, "order").await;
        let member = rig.start();
        rig.until(IDS, 35).await;
        rig.until_saved().await;
        assert_eq!(service.shared.at_once.load(Ordering::SeqCst), 2, "those are still at work");
        assert_first_effects_are_in_order(&rig, "while requests are at work that nobody waits for").await;
        release(&service, 2).await;
        match marks {
            MarkedBy::App => {
                rig.check("after requests that ended late").await;
                assert_eq!(rig.count(EFFECTS).await, 35, "each once");
            }
            MarkedBy::Posthaste => {
                let twice = "select count(*) from (select from trial.effects where type in ('stall', 'hold') \
                             group by id having count(*) = 2) twice";
                assert_eq!((rig.count(twice).await, rig.count(BEHIND).await), (3, 2), "twice; out of order");
            }
        }
        assert_eq!(rig.count(LETTERS).await, 0, "it was an attempt, and there are more");
        member.stop().await;
    }
}

/// A message was given up while its request was at work, so its effect is behind those of its key. It happens
/// once, also when the letter is replayed.
#[tokio::test(flavor = "multi_thread")]
async fn g5_what_is_given_up_while_its_request_is_at_work_happens_once() {
    let settings = "handler_timeout_ms = 2000\nretry = { delays_ms = [] }";
    let (rig, service) = require_service!(set(settings, MarkedBy::App).await);
    rig.publish(1, "stall").await;
    rig.publish(16, "order").await;
    let member = rig.start();
    rig.until("select count(*) from posthaste.inbox_dead_letters where disposition = 'timeout'", 1).await;
    rig.until(EFFECTS, 16).await;
    release(&service, 1).await;
    assert_eq!((rig.count(EFFECTS).await, rig.count(BEHIND).await), (17, 1));
    // Replayed, it is asked about for the first time again, and would stall.
    service.shared.stalled.add_permits(1);
    let asked = service.shared.requests.load(Ordering::SeqCst);
    replay(&rig).await;
    assert!(service.shared.requests.load(Ordering::SeqCst) > asked, "what is replayed is posted");
    assert_eq!(rig.count(EFFECTS).await, 17, "and its effect happens once");
    member.stop().await;
}

async fn replay(rig: &Rig) {
    rig.cli(&["dead", "replay", "--consumer", "billing", "--all", "--yes", "--reason", "it is done"]).ok();
    eventually("the letter is gone", WAIT, || async {
        let waiting = "select count(*) from posthaste.inbox_deferred";
        ((rig.count(LETTERS).await, rig.count(waiting).await) == (0, 0)).then_some(())
    })
    .await;
}
