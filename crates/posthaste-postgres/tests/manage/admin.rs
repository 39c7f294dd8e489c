//! Status, dead letters and controls.

use crate::setting::{Setting, connect};
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, Admin, AdminError, Control, ControlTarget, Count, DeadAct, DeadFilter, OutboxStatus, SinkStatus,
};
use posthaste_testkit::require_service;
use std::time::{Duration, Instant};
use uuid::Uuid;

pub(crate) fn somebody() -> Actor {
    Actor { name: "somebody".to_owned(), reason: "a test".to_owned() }
}

fn sink<'a>(status: &'a OutboxStatus, name: &str) -> &'a SinkStatus {
    status.sinks.iter().find(|sink| sink.sink == name).unwrap_or_else(|| panic!("{name} in {status:?}"))
}

fn exact(count: u64) -> Count {
    Count { count, exact: true }
}

#[tokio::test]
async fn an_empty_outbox_has_a_status() {
    let setting = require_service!(Setting::new().await);
    let status = setting.admin().await.status().await.expect("readable");
    assert!(status.sinks.is_empty() && status.relays.is_empty() && status.paused_routes.is_empty());
    assert_eq!(status.segments.len(), 8);
    assert_eq!((status.segments[0].state.as_str(), status.segments[1].state.as_str()), ("current", "empty"));
    assert!(status.now > Timestamp(1_700_000_000_000_000));
}

#[tokio::test]
async fn backlog_counts_rows_by_filter_and_lane_and_no_rolled_back_numbers() {
    let setting = require_service!(Setting::new().await);
    setting.append("old", 5).await;
    setting.sink("all", 1, "").await;
    setting.sink("some", 4, "+a.%\nb\\_c").await;
    setting.sink("others", 3, "-a.%").await;
    let status = setting.admin().await.status().await.expect("readable");
    assert_eq!(sink(&status, "all").backlog, exact(0), "idle is zero");

    setting.append("a.x", 70).await;
    setting.append("b_c", 20).await;
    setting.append("bxc", 10).await;
    setting
        .run(
            "begin; insert into posthaste.outbox (topic) select 'a.x' from generate_series(1, 500); rollback",
        )
        .await;
    // One lane of four has handled everything: its share is not counted.
    let lane = "slot between 256 and 511 and (topic like 'a.%' or topic = 'b_c')";
    setting
        .run("insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
              values ('some', 1, 2, 0, 'settle', 0, pg_sequence_last_value('posthaste.outbox_seq'), pg_current_snapshot())")
        .await;
    let handled = setting.number(&format!("select count(*) from posthaste.outbox where {lane}")).await;
    assert!(handled > 0);
    let status = setting.admin().await.status().await.expect("readable");
    assert_eq!(sink(&status, "all").backlog, exact(100));
    assert_eq!(sink(&status, "some").backlog, exact(90 - handled as u64));
    assert_eq!(sink(&status, "others").backlog, exact(30));
    assert_eq!(sink(&status, "some").lanes.len(), 4);
}

#[tokio::test]
async fn ages_come_from_the_rows() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 1, "").await;
    setting
        .run(
            "insert into posthaste.outbox (topic, appended_at)
              select 't', clock_timestamp() - interval '100 s' from generate_series(1, 10);
              insert into posthaste.outbox (topic) select 't' from generate_series(1, 10)",
        )
        .await;
    let status = setting.admin().await.status().await.expect("readable");
    let s = sink(&status, "s");
    assert!((100.0..105.0).contains(&s.oldest_age_seconds), "{s:?}");
    assert!((49.0..55.0).contains(&s.average_age_seconds), "{s:?}");
    // An overdue deferred event is older than anything in the log.
    defer(&setting, "s", 900_000, "k", "clock_timestamp() - interval '1 s'").await;
    setting.run("update posthaste.deferred set appended_at = clock_timestamp() - interval '500 s'").await;
    let status = setting.admin().await.status().await.expect("readable");
    assert!(sink(&status, "s").oldest_age_seconds >= 500.0);
    assert_eq!(sink(&status, "s").deferred, exact(1));
}

#[tokio::test]
async fn a_large_backlog_is_estimated_and_costs_no_more_than_a_small_one() {
    let setting = require_service!(Setting::new().await);
    for (name, lanes, filter) in
        [("all", 1, ""), ("many", 16, ""), ("sparse", 1, "+rare"), ("none", 1, "+never")]
    {
        setting.sink(name, lanes, filter).await;
    }
    setting.append("common", 9_000).await;
    setting.append("rare", 1_000).await;
    let admin = setting.admin().await;
    let small = timed(&admin).await;
    assert_eq!(sink(&small.1, "all").backlog, exact(10_000));
    assert_eq!(sink(&small.1, "sparse").backlog, exact(1_000));

    // Every third number is rolled back; rows of the rare topic are spread evenly.
    setting
        .run("do $$ begin for n in 1..100 loop
                insert into posthaste.outbox (topic, key, payload)
                select case when g % 10 = 0 then 'rare' else 'common' end, 'k' || g, '\\x00' from generate_series(1, 3000) g;
                perform setval('posthaste.outbox_seq', nextval('posthaste.outbox_seq') + 1500);
              end loop; end $$")
        .await;
    setting.run("analyze posthaste.outbox").await;
    let large = timed(&admin).await;
    for (name, expected) in [("all", 310_000), ("many", 310_000), ("sparse", 31_000), ("none", 0)] {
        let backlog = sink(&large.1, name).backlog;
        assert!(!backlog.exact, "{name}");
        let off = (backlog.count as f64 - f64::from(expected)).abs();
        assert!(off <= f64::from(expected) * 0.25, "{name}: {backlog:?}, not {expected}");
    }
    // Thirty times the rows; the bound of what is looked at is a constant.
    assert!(large.0 < small.0 * 8 + Duration::from_millis(300), "{:?} against {:?}", large.0, small.0);
}

/// The best of three.
async fn timed(admin: &impl Admin) -> (Duration, OutboxStatus) {
    let mut best = Duration::MAX;
    let mut last = None;
    for _ in 0..3 {
        let start = Instant::now();
        last = Some(admin.status().await.expect("readable"));
        best = best.min(start.elapsed());
    }
    (best, last.expect("three looks"))
}

#[tokio::test]
async fn a_long_history_costs_nothing() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 300_000).await;
    setting
        .run("insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n) values ('s', 0, 0, 1023, '', 0);
              insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot, settled_at, segments, counts, sums)
              select 's', 0, n, 0, 'settle', 0, n, pg_current_snapshot(),
                     clock_timestamp() - make_interval(secs => (300000 - n) / 50.0), array[1::smallint], array[2::bigint], array[0::bigint]
                from generate_series(1, 300000) n;
              analyze posthaste.receipts")
        .await;
    let (took, status) = timed(&setting.admin().await).await;
    assert_eq!(sink(&status, "s").backlog, exact(0));
    let rate = sink(&status, "s").settled_per_second;
    assert!((90.0..=101.0).contains(&rate), "50 receipts a second of 2 events each: {rate}");
    assert!(took < Duration::from_millis(500), "{took:?}");
    // The statements of an idle look touch few pages, whatever the tables hold.
    let plan = "explain (analyze, buffers, format json) select count(*) from
                (select seq from posthaste.outbox where seq > 299990 order by seq limit 10001) w";
    let plan: serde_json::Value = setting.client.query_one(plan, &[]).await.expect("explained").get(0);
    let pages = &plan[0]["Plan"];
    let touched =
        pages["Shared Hit Blocks"].as_i64().unwrap_or(0) + pages["Shared Read Blocks"].as_i64().unwrap_or(0);
    assert!(touched < 100, "{touched} pages");
}

#[tokio::test]
async fn lanes_show_live_owners_only() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 4, "").await;
    let heart = connect(&setting.database.url()).await;
    heart.execute("select pg_advisory_lock(1886351476, 7)", &[]).await.expect("locked");
    setting
        .run("insert into posthaste.relays (relay, heart, routes, expires_at)
              values ('alive', 7, '', clock_timestamp() + interval '1 min'), ('dead', 8, '', clock_timestamp() + interval '1 min'),
                     ('gone', 7, '', clock_timestamp() - interval '1 s'), ('pooled', null, '', clock_timestamp() + interval '1 min');
              update posthaste.lanes set owner = 'r', epoch = 3, heart = (array[7, 8, 7, null])[lane + 1],
                     expires_at = clock_timestamp() + (array[60, 60, -1, 60])[lane + 1] * interval '1 s'")
        .await;
    let status = setting.admin().await.status().await.expect("readable");
    assert_eq!(status.relays, ["alive", "pooled"]);
    let owned: Vec<bool> = sink(&status, "s").lanes.iter().map(|lane| lane.owner.is_some()).collect();
    assert_eq!(owned, [true, false, false, true], "heart gone, expired");
    let leases: Vec<i64> = sink(&status, "s").lanes.iter().filter_map(|lane| lane.lease_ms).collect();
    assert!(leases[0] > 50_000 && leases[2] < 0, "{leases:?}");
    drop(heart);
}

#[tokio::test]
async fn retired_sinks_are_left_out() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 1, "").await;
    setting.run("update posthaste.lanes set retired_at = clock_timestamp()").await;
    assert!(setting.admin().await.status().await.expect("readable").sinks.is_empty());
}

#[tokio::test]
async fn many_deferred_and_dead_are_estimated() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 1, "").await;
    setting.sink("t", 1, "").await;
    setting
        .run("insert into posthaste.deferred (sink, seq, slot, id, topic, key, appended_at, route, destination, reason, holds, due_at)
              select 's', n, 0, gen_random_uuid(), 't', 'k' || n, now(), 'r', '', 'retry', true, now() from generate_series(1, 50000) n;
              analyze posthaste.deferred")
        .await;
    bury(&setting, "s", 30_000).await;
    bury(&setting, "t", 10_000).await;
    setting.run("analyze posthaste.dead_letters").await;
    let status = setting.admin().await.status().await.expect("readable");
    let s = sink(&status, "s");
    assert!(!s.deferred.exact && (45_000..55_000).contains(&s.deferred.count), "{:?}", s.deferred);
    assert!(!s.dead.exact && (25_000..35_000).contains(&s.dead.count), "{:?}", s.dead);
    assert_eq!(sink(&status, "t").dead, exact(10_000));
}

/// Dead letters of a sink: numbers 1, 2, … with a key each, topics `t.0` to `t.9`.
async fn bury(setting: &Setting, sink: &str, count: i64) {
    setting
        .run(&format!(
            "insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, headers, content_type, payload, appended_at,
                                                 route, holds_key, attempts, error_class, error_code, error)
             select '{sink}', n, 0, gen_random_uuid(), 't.' || n % 10, 'k' || n, '{{\"a\": \"b\"}}', 'text/plain', '\\x010203', now(),
                    'r', false, 5, 'permanent', 'x.no', 'no' from generate_series(1, {count}) n"
        ))
        .await;
}

async fn defer(setting: &Setting, sink: &str, seq: i64, key: &str, due: &str) {
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
    let mut after = 0;
    loop {
        let page = admin.dead_list(&filter, after, 10).await.expect("readable");
        let Some(last) = page.last() else { break };
        after = last.cursor;
        seen.extend(page.iter().map(|letter| letter.seq));
    }
    assert_eq!(seen, (1..=25).collect::<Vec<i64>>());

    let some = admin
        .dead_list(&DeadFilter { topic: Some("*.3".to_owned()), ..filter.clone() }, 0, 100)
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

#[tokio::test]
async fn an_empty_filter_or_reason_is_refused() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 2).await;
    let admin = setting.admin().await;
    let empty = admin.dead_act(&DeadFilter::default(), DeadAct::Discard, &somebody(), 10).await;
    assert!(matches!(empty, Err(AdminError::Invalid(_))), "{empty:?}");
    let nobody = Actor { name: "me".to_owned(), reason: " ".to_owned() };
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    let unexplained = admin.dead_act(&filter, DeadAct::Discard, &nobody, 10).await;
    assert!(matches!(unexplained, Err(AdminError::Invalid(_))), "{unexplained:?}");
    assert_eq!(admin.dead_count(&filter).await.expect("readable"), 2);
}

#[tokio::test]
async fn of_two_acts_on_one_letter_one_wins() {
    let setting = require_service!(Setting::new().await);
    bury(&setting, "s", 40).await;
    let letters = setting.admin().await.dead_list(&DeadFilter::default(), 0, 100).await.expect("readable");
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
                Err(AdminError::Conflict(_)) => lost += 1,
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
    assert!(matches!(refused, Err(AdminError::Conflict(_))), "{refused:?}");
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
    let note = tokio::time::timeout(Duration::from_secs(10), notes.recv()).await.expect("in time");
    assert_eq!(note.as_deref(), Some("posthaste_wakeup"));
}

#[tokio::test]
async fn controls_are_set_one_by_one_and_audited() {
    let setting = require_service!(Setting::new().await);
    setting.sink("nats", 1, "").await;
    let admin = setting.admin().await;
    let nats = ControlTarget::Sink("nats".to_owned());
    admin.control(&nats, &Control::RateLimit(Some(12.5)), &somebody()).await.expect("permitted");
    admin.control(&nats, &Control::Pause, &somebody()).await.expect("permitted");
    admin
        .control(&ControlTarget::Route("orders".to_owned()), &Control::Pause, &somebody())
        .await
        .expect("permitted");
    let status = admin.status().await.expect("readable");
    assert_eq!((sink(&status, "nats").paused, sink(&status, "nats").rate_limit), (true, Some(12.5)));
    assert_eq!(status.paused_routes, ["orders"]);
    admin.control(&nats, &Control::Resume, &somebody()).await.expect("permitted");
    admin.control(&nats, &Control::RateLimit(None), &somebody()).await.expect("permitted");
    let status = admin.status().await.expect("readable");
    assert_eq!((sink(&status, "nats").paused, sink(&status, "nats").rate_limit), (false, None));
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 5);

    let unknown = admin.control(&ControlTarget::Sink("gnats".to_owned()), &Control::Pause, &somebody()).await;
    assert!(matches!(&unknown, Err(AdminError::NotFound(text)) if text.contains("nats")), "{unknown:?}");
    for wrong in [f64::NAN, 0.0, -1.0] {
        let refused = admin.control(&nats, &Control::RateLimit(Some(wrong)), &somebody()).await;
        assert!(matches!(refused, Err(AdminError::Invalid(_))), "{wrong}");
    }
}

#[tokio::test]
async fn the_admin_role_is_enough() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 1, "").await;
    setting.append("t", 5).await;
    bury(&setting, "s", 2).await;
    let config = setting.config_as(&setting.roles.admin).await;
    let admin = posthaste_postgres::PostgresAdmin::connect(config).await.expect("permitted");
    assert_eq!(sink(&admin.status().await.expect("readable"), "s").backlog, exact(5));
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&filter, DeadAct::Replay, &somebody(), 1).await.expect("permitted"), 1);
    assert_eq!(admin.dead_act(&filter, DeadAct::Discard, &somebody(), 1).await.expect("permitted"), 1);
    admin
        .control(&ControlTarget::Sink("s".to_owned()), &Control::Pause, &somebody())
        .await
        .expect("permitted");
    admin.set_lanes(3, &somebody()).await.expect("permitted");
    admin.rewind("s", posthaste::admin::RewindTo::Earliest, &somebody()).await.expect("permitted");
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 5);
}
