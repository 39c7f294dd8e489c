//! Each row of the table of answers in docs/consumers/http.md, by a receiver that has a path for each status.

use super::LETTERS;
use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions, ServiceError};
use std::time::{Duration, Instant};

/// A dead letter at once.
const REJECTED: [u16; 3] = [400, 410, 422];
/// An attempt.
const TRIED_AGAIN: [u16; 9] = [302, 404, 405, 408, 409, 413, 500, 502, 504];
/// The receiver is away.
const AWAY: [u16; 4] = [401, 403, 429, 503];

fn path(status: u16) -> String {
    format!("/{status}")
}

/// A handler for each status, at the path of that name, and one for all other messages. Messages of a status
/// have it as their type. The receiver's breaker is quick.
async fn set() -> Result<(Rig, Receiver), ServiceError> {
    let receiver = Receiver::start(&ReceiverOptions::default()).await?;
    let settings = format!(
        "retry = {{ delays_ms = [50] }}\ndependencies = {{ \"{}\" = {{ initial_ms = 50, max_ms = 100 }} }}",
        receiver.addr()
    );
    let rig = Rig::set(&settings).await?;
    let mut handlers = String::new();
    for status in [&REJECTED[..], &TRIED_AGAIN, &AWAY].concat() {
        let url = receiver.url() + &path(status);
        handlers += &format!("types = [\"{status}\"]\nhttp = \"{url}\"\n[[consumers.billing.handle]]\n");
        receiver.always(&path(status), Answer::status(status).body("because"));
    }
    rig.reconfigure("sql = \"trial.handle\"", &format!("{handlers}http = \"{}/other\"", receiver.url()));
    Ok((rig, receiver))
}

#[tokio::test(flavor = "multi_thread")]
async fn f50_each_status_means_what_the_table_says() {
    let (rig, receiver) = require_service!(set().await);
    for status in [&REJECTED[..], &TRIED_AGAIN].concat() {
        rig.publish(1, &status.to_string()).await;
    }
    rig.publish(8, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    for (statuses, disposition, attempts_max) in
        [(&REJECTED[..], "rejected", 1), (&TRIED_AGAIN, "exhausted", 2)]
    {
        for status in statuses {
            let letter = format!(
                "select count(*) from posthaste.inbox_dead_letters where error_code = 'http.{status}' \
                 and disposition = '{disposition}' and attempts = {attempts_max} and stack = 'because'"
            );
            let asked = receiver.requests_for(&path(*status));
            let attempts: Vec<_> =
                asked.iter().filter_map(|request| request.header("posthaste-attempt")).collect();
            assert_eq!(rig.count(&letter).await, 1, "{letter}");
            assert_eq!(attempts, ["1", "2"][..attempts_max], "{asked:?}");
        }
    }
    let letters = (REJECTED.len() + TRIED_AGAIN.len()) as i64;
    assert_eq!(receiver.requests_for("/other").len(), 8, "others do not notice");

    let attempts = member.metric("posthaste_consumer_retries_total").await;
    for status in AWAY {
        rig.publish(1, &status.to_string()).await;
        // More often than attempts would allow.
        eventually("it is probed again and again", WAIT, || async {
            (receiver.requests_for(&path(status)).len() > 3).then_some(())
        })
        .await;
        let (address, code) = (receiver.addr().to_string(), format!("http.{status}"));
        let named = |ready: u16, text: &str| ready == 503 && text.contains(&address) && text.contains(&code);
        member.page("/readyz", "who is away, and what it said", named).await;
        receiver.always(&path(status), Answer::status(200));
        rig.until_settled().await;
        let asked = receiver.requests_for(&path(status));
        assert!(asked.iter().all(|request| request.header("posthaste-attempt") == Some("1")), "{status}");
    }
    assert_eq!(rig.count(LETTERS).await, letters, "nobody who waited is dead");
    assert_eq!(member.metric("posthaste_consumer_retries_total").await, attempts, "nor has spent an attempt");
    member.stop().await;
}

/// The receiver says for how long it wants to be left alone, and that is far longer than the breaker's pause.
#[tokio::test(flavor = "multi_thread")]
async fn f50_nobody_is_asked_before_the_time_that_retry_after_names() {
    let (rig, receiver) = require_service!(set().await);
    receiver.next("/429", [Answer::status(429).header("retry-after", "4")]);
    receiver.always("/429", Answer::status(200));
    let member = rig.start();
    rig.publish(1, "429").await;
    receiver.until(1).await;
    let began = Instant::now();
    rig.publish(20, "429").await;
    receiver.until(2).await;
    // The receiver's clock began a moment before ours.
    assert!(began.elapsed() > Duration::from_millis(3_500), "asked after {:?}", began.elapsed());
    rig.until_settled().await;
    assert_eq!(receiver.requests().len(), 22, "one of them twice");
    crate::handlers::assert_innocent(&rig, &member, "after a receiver was left alone").await;
    member.stop().await;
}
