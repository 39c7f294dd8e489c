//! Dead letters: pages, chunks, races, and who goes first of a key.

use crate::admin::somebody;
use crate::setting::{Setting, connect};
use posthaste::Timestamp;
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Version;
use std::time::Duration;
use uuid::Uuid;

/// Dead letters of a sink that is served: numbers 1, 2, … with a key each, topics `t.0` to `t.9`.
pub(crate) async fn bury(setting: &Setting, sink: &str, count: i64) {
    setting
        .run(&format!(
            "insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n) values ('{sink}', 0, 0, 1023, '', 0)
                 on conflict do nothing"
        ))
        .await;
    setting
        .run(&format!(
            "insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, headers, content_type, payload, appended_at,
                                                 route, holds_key, attempts, error_class, error_code, error)
             select '{sink}', n, 0, gen_random_uuid(), 't.' || n % 10, 'k' || n, '{{\"a\": \"b\"}}', 'text/plain', '\\x010203', now(),
                    'r', false, 5, 'permanent', 'x.no', 'no' from generate_series(1, {count}) n"
        ))
        .await;
}

pub(crate) async fn defer(setting: &Setting, sink: &str, seq: i64, key: &str, due: &str) {
    setting
        .run(&format!(
            "insert into posthaste.deferred (sink, seq, slot, id, topic, key, appended_at, route, destination, reason, holds, due_at)
             values ('{sink}', {seq}, 0, gen_random_uuid(), 't', '{key}', now(), 'r', '', 'held', true, {due})"
        ))
        .await;
}

#[tokio::test]
async fn dead_letters_are_listed_by_page_and_filter() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 25).await;
    bury(&setting, "other", 5).await;
    let admin = setting.admin().await;
    let filter = DeadFilter { sink: Some("s".to_owned()), ..DeadFilter::default() };
    let mut seen = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = admin.dead_list(&filter, after.as_deref(), 10).await.expect("readable");
        let Some(last) = page.last() else { break };
        after = Some(last.cursor.clone());
        seen.extend(page.iter().map(|letter| letter.seq));
    }
    assert_eq!(seen, (1..=25).collect::<Vec<i64>>());
    let newest = admin.dead_newest(&filter, None, 10).await.expect("readable");
    let next = admin.dead_newest(&filter, Some(&newest[9].cursor), 10).await.expect("readable");
    assert_eq!((newest[0].seq, next[0].seq), (25, 15));
    for hostile in ["", "-1", "x", "1e3", "9223372036854775808", "0002d3f0a1b2c3d4.17"] {
        let refused = admin.dead_list(&filter, Some(hostile), 10).await.expect_err(hostile);
        assert_eq!(refused.code(), "admin.bad_place");
        assert!(matches!(refused, AdminError::Invalid { .. }));
    }

    let some = admin
        .dead_list(&DeadFilter { topic: Some("*.3".to_owned()), ..filter.clone() }, None, 100)
        .await
        .expect("readable");
    assert_eq!(some.iter().map(|letter| letter.seq).collect::<Vec<_>>(), [3, 13, 23]);
    assert!(some[0].payload.is_none() && some[0].payload_bytes == Some(3));
    let shown = admin.dead_show(some[0].id).await.expect("readable");
    assert_eq!(shown[0].payload.as_deref(), Some(&[1, 2, 3][..]));
    assert_eq!(shown[0].headers, Some(serde_json::json!({ "a": "b" })));
    assert_eq!((shown[0].attempts, shown[0].replays, shown[0].error_code.as_str()), (5, 0, "x.no"));
    assert!(admin.dead_show(Uuid::nil()).await.expect("readable").is_empty());

    let count = async |filter: DeadFilter| admin.dead_count(&filter).await.expect("readable");
    assert_eq!(count(DeadFilter::default()).await, 30);
    assert_eq!(count(DeadFilter { key: Some("k7".to_owned()), ..filter.clone() }).await, 1);
    assert_eq!(count(DeadFilter { code: Some("x.no".to_owned()), ..filter.clone() }).await, 25);
    let now = admin.status().await.expect("readable").now;
    assert_eq!(count(DeadFilter { since: Some(now), ..filter.clone() }).await, 0);
    assert_eq!(count(DeadFilter { until: Some(now), ..filter.clone() }).await, 25);
    let died = some[0].dead_at;
    let exactly =
        DeadFilter { since: Some(died), until: Some(Timestamp(died.0 + 1)), ids: vec![some[0].id], ..filter };
    assert_eq!(count(exactly).await, 1, "an instant survives the way to the database and back");
}

#[tokio::test]
async fn replay_brings_letters_back_in_chunks_with_their_history() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 25).await;
    let admin = setting.admin().await;
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    let mut chunks = Vec::new();
    loop {
        match admin.dead_act(&filter, DeadAct::Replay, &somebody(), 10).await.expect("permitted") {
            0 => break,
            count => chunks.push(count),
        }
    }
    assert_eq!(chunks, [10, 10, 5]);
    assert_eq!(setting.number("select count(*) from posthaste.dead_letters").await, 0);
    let back = "select count(*) from posthaste.deferred where reason = 'replayed' and attempts = 0 and earlier_attempts = 5
                  and replays = 1 and holds and due_at <= clock_timestamp() and payload = '\\x010203' and headers = '{\"a\": \"b\"}'";
    assert_eq!(setting.number(back).await, 25);
    assert_eq!(setting.number("select sum((detail ->> 'count')::bigint)::bigint from posthaste.audit where action = 'replay'").await, 25);
    let line = setting.text("select detail::text from posthaste.audit order by id limit 1").await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["ids"].as_array().map(Vec::len), Some(10));
    assert_eq!(line["filter"]["all"], true);
    assert_eq!(
        setting.text("select distinct actor || ': ' || reason from posthaste.audit").await,
        "somebody: a test"
    );
}

/// As a deferred event it would wait for a relay that never comes.
#[tokio::test]
async fn a_letter_of_a_sink_that_left_is_not_replayed() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "stays", 2).await;
    bury(&setting, "left", 3).await;
    setting.run("update posthaste.lanes set retired_at = clock_timestamp() where sink = 'left'").await;
    let admin = setting.admin().await;
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    let refused = admin.dead_act(&all, DeadAct::Replay, &somebody(), 10).await;
    let Err(AdminError::Conflict { message: text, .. }) = &refused else { panic!("{refused:?}") };
    assert!(text.contains("`left`") && !text.contains("`stays`") && text.contains("--sink"), "{text}");
    assert_eq!(setting.number("select count(*) from posthaste.deferred").await, 0);
    assert_eq!(admin.dead_count(&all).await.expect("readable"), 5);

    let stays = DeadFilter { sink: Some("stays".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&stays, DeadAct::Replay, &somebody(), 10).await.expect("permitted"), 2);
    // What no route took goes to whoever takes its topic now, whichever sink it died for.
    setting.run("update posthaste.dead_letters set error_code = 'route.none' where seq = 3").await;
    let unrouted = DeadFilter { code: Some("route.none".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&unrouted, DeadAct::Replay, &somebody(), 10).await.expect("permitted"), 1);
    let left = DeadFilter { sink: Some("left".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&left, DeadAct::Discard, &somebody(), 10).await.expect("permitted"), 2);
}

#[tokio::test]
async fn an_empty_filter_or_reason_is_refused() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 2).await;
    let admin = setting.admin().await;
    let empty = admin.dead_act(&DeadFilter::default(), DeadAct::Discard, &somebody(), 10).await;
    assert!(matches!(empty, Err(AdminError::Invalid { .. })), "{empty:?}");
    let nobody = Actor::new("me", " ");
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    let unexplained = admin.dead_act(&filter, DeadAct::Discard, &nobody, 10).await;
    assert!(matches!(unexplained, Err(AdminError::Invalid { .. })), "{unexplained:?}");
    assert_eq!(admin.dead_count(&filter).await.expect("readable"), 2);
}

#[tokio::test]
async fn of_two_acts_on_one_letter_one_wins() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 40).await;
    let letters = setting.admin().await.dead_list(&DeadFilter::default(), None, 100).await.expect("readable");
    let (mut won, mut lost) = (0, 0);
    for letter in letters {
        let filter = DeadFilter { ids: vec![letter.id], ..DeadFilter::default() };
        let acts: Vec<_> = [DeadAct::Replay, DeadAct::Replay, DeadAct::Discard]
            .map(|act| {
                let (filter, config) = (filter.clone(), setting.config.clone());
                tokio::spawn(async move {
                    let admin = posthaste_postgres::PostgresAdmin::new(config);
                    admin.dead_act(&filter, act, &somebody(), 10).await
                })
            })
            .into_iter()
            .collect();
        let mut winners = 0;
        for act in acts {
            match act.await.expect("no panic") {
                Ok(1) => winners += 1,
                // It came when the other was done: nothing of that name is left.
                Ok(0) => {}
                Err(AdminError::Conflict { .. }) => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(winners, 1);
        won += winners;
    }
    assert_eq!(won, 40);
    let done = "select sum((detail ->> 'count')::bigint)::bigint from posthaste.audit";
    assert_eq!(setting.number(done).await, 40, "{lost} were told so");

    // Deterministically: a letter in somebody's hand is a conflict at once, for whoever names it.
    bury(&setting, "u", 2).await;
    let other = connect(&setting.database.url()).await;
    other
        .batch_execute("begin; select from posthaste.dead_letters where sink = 'u' and seq = 1 for update")
        .await
        .expect("locked");
    let id: Uuid = setting
        .client
        .query_one("select id from posthaste.dead_letters where sink = 'u' and seq = 1", &[])
        .await
        .expect("there")
        .get(0);
    let admin = setting.admin().await;
    let named = DeadFilter { ids: vec![id], ..DeadFilter::default() };
    let refused = admin.dead_act(&named, DeadAct::Replay, &somebody(), 10).await;
    assert!(matches!(refused, Err(AdminError::Conflict { .. })), "{refused:?}");
    let rest = DeadFilter { sink: Some("u".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&rest, DeadAct::Discard, &somebody(), 10).await.expect("the other one"), 1);
}

/// Which of a key's deferred events are due, by number.
async fn due(setting: &Setting, key: &str) -> Vec<(i64, bool)> {
    let sql = "select seq, due_at < 'infinity' from posthaste.deferred where key = $1 order by seq";
    let rows = setting.client.query(sql, &[&key]).await.expect("readable");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn a_replayed_event_goes_before_what_waits_of_its_key() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    bury(&setting, "s", 30).await;
    setting.run("update posthaste.dead_letters set key = 'k'").await;
    // The letter 20 holds its key: 25 waits for it. 40 is behind 25.
    setting.run("update posthaste.dead_letters set holds_key = true where seq = 20").await;
    defer(&setting, "s", 125, "k", "'infinity'").await;
    defer(&setting, "s", 140, "k", "'infinity'").await;
    let replay = async |seq: i64| {
        let id: Uuid = setting
            .client
            .query_one("select id from posthaste.dead_letters where seq = $1", &[&seq])
            .await
            .expect("there")
            .get(0);
        let filter = DeadFilter { ids: vec![id], ..DeadFilter::default() };
        admin.dead_act(&filter, DeadAct::Replay, &somebody(), 10).await.expect("permitted")
    };
    replay(22).await;
    assert_eq!(
        due(&setting, "k").await,
        [(22, false), (125, false), (140, false)],
        "behind the letter that holds"
    );
    replay(10).await;
    assert_eq!(due(&setting, "k").await[0], (10, true));
    replay(5).await;
    assert_eq!(
        due(&setting, "k").await[..3],
        [(5, true), (10, false), (22, false)],
        "the earlier one goes first"
    );
    replay(20).await;
    assert_eq!(due(&setting, "k").await.iter().filter(|(_, due)| *due).count(), 1);
    // Other sinks and keys are not touched.
    assert_eq!(setting.number("select count(*) from posthaste.deferred where sink <> 's'").await, 0);
}

#[tokio::test]
async fn discarding_what_holds_a_key_lets_the_next_go() {
    let setting = require_service!(Setting::new().await);
    let admin = setting.admin().await;
    bury(&setting, "s", 3).await;
    setting.run("update posthaste.dead_letters set key = 'k', holds_key = seq in (1, 2)").await;
    defer(&setting, "s", 10, "k", "'infinity'").await;
    defer(&setting, "s", 11, "k", "'infinity'").await;
    defer(&setting, "other", 10, "k", "'infinity'").await;
    let discard = async |key: &str, seq: i64| {
        let id: Uuid = setting
            .client
            .query_one("select id from posthaste.dead_letters where seq = $1", &[&seq])
            .await
            .expect("there")
            .get(0);
        let filter = DeadFilter { ids: vec![id], key: Some(key.to_owned()), ..DeadFilter::default() };
        admin.dead_act(&filter, DeadAct::Discard, &somebody(), 10).await.expect("permitted")
    };
    discard("k", 2).await;
    assert!(due(&setting, "k").await.iter().all(|(_, due)| !due), "another one still holds it");
    discard("k", 1).await;
    let rows = setting.number("select seq from posthaste.deferred where due_at < 'infinity'").await;
    assert_eq!(rows, 10);
    assert_eq!(setting.number("select count(*) from posthaste.deferred where due_at = 'infinity'").await, 2);
}

#[tokio::test]
async fn an_act_wakes_a_relay() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 1).await;
    let (client, mut connection) =
        tokio_postgres::connect(&setting.database.url(), tokio_postgres::NoTls).await.expect("reachable");
    let (sender, mut notes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                let _ = sender.send(note.channel().to_owned());
            }
        }
    });
    client.batch_execute("listen posthaste_wakeup").await.expect("listening");
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    setting.admin().await.dead_act(&filter, DeadAct::Replay, &somebody(), 10).await.expect("permitted");
    let note = tokio::time::timeout(Duration::from_secs(60), notes.recv()).await.expect("in time");
    assert_eq!(note.as_deref(), Some("posthaste_wakeup"));
}

/// A settlement that defers an event behind a dead letter, and the discard of that letter, at the same
/// moment: neither sees the other's change, and without a lock the event would wait for ever.
#[tokio::test]
async fn an_act_and_a_settlement_agree_on_who_goes_first() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 1).await;
    setting.run("update posthaste.dead_letters set key = 'k', holds_key = true").await;
    let settlement = connect(&setting.database.url()).await;
    let defer = "begin; insert into posthaste.deferred (sink, seq, slot, id, topic, key, appended_at, route, destination, reason, holds, due_at)
                 values ('s', 10, 0, gen_random_uuid(), 't', 'k', now(), 'r', '', 'held', true, 'infinity')";
    settlement.batch_execute(defer).await.expect("deferred");
    let admin = setting.admin().await;
    let act = tokio::spawn(async move {
        let filter = DeadFilter { all: true, ..DeadFilter::default() };
        admin.dead_act(&filter, DeadAct::Discard, &somebody(), 10).await
    });
    let waiting =
        "select count(*) from pg_locks where relation = 'posthaste.deferred'::regclass and not granted";
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while setting.number(waiting).await == 0 {
        assert!(std::time::Instant::now() < deadline && !act.is_finished(), "the act does not wait");
    }
    settlement.batch_execute("commit").await.expect("settled");
    assert_eq!(act.await.expect("no panic").expect("permitted"), 1);
    assert_eq!(due(&setting, "k").await, [(10, true)]);
}

/// One letter of very many, and a chunk of them, cost about what they are.
#[tokio::test]
async fn a_letter_is_found_among_many() {
    require_service!(Version::V15.or_newer("an older one tells its statistics late"));
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 200_000).await;
    setting.run("analyze posthaste.dead_letters").await;
    let id: Uuid = setting
        .client
        .query_one("select id from posthaste.dead_letters where seq = 199000", &[])
        .await
        .expect("there")
        .get(0);
    let named = DeadFilter { ids: vec![id], ..DeadFilter::default() };
    setting.run("select pg_stat_force_next_flush()").await;
    let read = "select (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables where relname = 'dead_letters'";
    let before = setting.number(read).await;
    let admin = setting.admin().await;
    assert_eq!(admin.dead_list(&named, None, 10).await.expect("readable").len(), 1);
    assert_eq!(admin.dead_count(&named).await.expect("readable"), 1);
    assert_eq!(admin.dead_act(&named, DeadAct::Replay, &somebody(), 10).await.expect("permitted"), 1);
    drop(admin);
    setting.until_alone().await;
    let rows = setting.number(read).await - before;
    assert!((1..5_000).contains(&rows), "{rows} rows were read: a walk through all of them");
}
