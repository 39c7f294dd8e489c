//! Status and controls.

use crate::dead::{bury, defer};
use crate::setting::{Setting, connect};
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, Admin, AdminError, Control, ControlTarget, Count, DeadAct, DeadFilter, OutboxStatus, RewindTo,
    SinkStatus,
};
use posthaste_postgres::migrate::{self, Roles};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{PgBouncer, Postgres, PostgresOptions, TestDatabase, Version};
use std::time::{Duration, Instant};

pub(crate) fn somebody() -> Actor {
    Actor::new("somebody", "a test")
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
    // A topic may look like one of our tables.
    setting.sink("own", 1, "+posthaste.%").await;
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
    setting.append("posthaste.x", 7).await;
    let status = setting.admin().await.status().await.expect("readable");
    assert_eq!(sink(&status, "own").backlog, exact(7));
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
    assert!((100.0..160.0).contains(&s.oldest_age_seconds), "{s:?}");
    let average = s.average_age_seconds - (s.oldest_age_seconds - 100.0);
    assert!((49.0..55.0).contains(&average), "{s:?}");
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
    let small = timed(&admin, Duration::ZERO).await;
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
    // Thirty times the rows; the bound of what is looked at is a constant.
    let bound = small.0 * 8 + Duration::from_millis(300);
    let large = timed(&admin, bound).await;
    for (name, expected) in [("all", 310_000), ("many", 310_000), ("sparse", 31_000), ("none", 0)] {
        let backlog = sink(&large.1, name).backlog;
        assert!(!backlog.exact, "{name}");
        let off = (backlog.count as f64 - f64::from(expected)).abs();
        assert!(off <= f64::from(expected) * 0.25, "{name}: {backlog:?}, not {expected}");
    }
    assert!(large.0 < bound, "{:?} against {:?}", large.0, small.0);
}

/// The best of three, and the first answer. A machine that stands still now and then is asked again, a few
/// more times, until it is as quick as this: what is slow by itself never is.
async fn timed(admin: &impl Admin, enough: Duration) -> (Duration, OutboxStatus) {
    let mut best = Duration::MAX;
    let mut first = None;
    for look in 0..30 {
        if look >= 3 && (best < enough || enough.is_zero()) {
            break;
        }
        let start = Instant::now();
        let status = admin.status().await.expect("readable");
        best = best.min(start.elapsed());
        first.get_or_insert(status);
    }
    (best, first.expect("three looks"))
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
    let bound = Duration::from_millis(500);
    let (took, status) = timed(&setting.admin().await, bound).await;
    assert_eq!(sink(&status, "s").backlog, exact(0));
    let rate = sink(&status, "s").delivered_per_second;
    // What a slow machine takes to look counts as a time without any.
    assert!((60.0..=101.0).contains(&rate), "50 receipts a second of 2 events each: {rate}");
    assert!(took < bound, "{took:?}");
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
async fn a_retired_sink_of_which_nothing_is_left_is_not_shown() {
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
    let paused = &status.paused_routes[0];
    assert_eq!((status.paused_routes.len(), paused.route.as_str()), (1, "orders"));
    assert!(paused.set_by.as_ref().is_some_and(|set| !set.actor.is_empty() && set.until.is_none()));
    admin.control(&nats, &Control::Resume, &somebody()).await.expect("permitted");
    admin.control(&nats, &Control::RateLimit(None), &somebody()).await.expect("permitted");
    let status = admin.status().await.expect("readable");
    assert_eq!((sink(&status, "nats").paused, sink(&status, "nats").rate_limit), (false, None));
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 5);

    let unknown = admin.control(&ControlTarget::Sink("gnats".to_owned()), &Control::Pause, &somebody()).await;
    assert!(
        matches!(&unknown, Err(AdminError::NotFound { message: text, .. }) if text.contains("nats")),
        "{unknown:?}"
    );
    for wrong in [f64::NAN, 0.0, -1.0] {
        let refused = admin.control(&nats, &Control::RateLimit(Some(wrong)), &somebody()).await;
        assert!(matches!(refused, Err(AdminError::Invalid { .. })), "{wrong}");
    }
}

#[tokio::test]
async fn the_admin_role_is_enough() {
    let setting = require_service!(Setting::new().await);
    setting.sink("s", 1, "").await;
    setting.append("t", 5).await;
    bury(&setting, "s", 2).await;
    let config = setting.config_as(&setting.roles.admin).await;
    let admin = PostgresAdmin::connect(config).await.expect("permitted");
    assert_eq!(sink(&admin.status().await.expect("readable"), "s").backlog, exact(5));
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&filter, DeadAct::Replay, &somebody(), 1).await.expect("permitted"), 1);
    assert_eq!(admin.dead_act(&filter, DeadAct::Discard, &somebody(), 1).await.expect("permitted"), 1);
    admin
        .control(&ControlTarget::Sink("s".to_owned()), &Control::Pause, &somebody())
        .await
        .expect("permitted");
    admin.set_lanes(3, &somebody()).await.expect("permitted");
    admin.rewind("s", RewindTo::Earliest, &somebody()).await.expect("permitted");
    assert_eq!(setting.number("select count(*) from posthaste.audit").await, 5);
}

/// Every statement once.
#[tokio::test]
async fn an_outbox_is_administered_from_one_end_to_the_other() {
    let setting = require_service!(Setting::new().await);
    setting.append("t", 20).await;
    setting.sink("s", 2, "+t%").await;
    go_through(&setting, &PostgresAdmin::new(setting.config.clone())).await;
    let failed = PostgresAdmin::new(setting.config.clone()).doctor().await.expect("answers");
    let failed: Vec<_> = failed.iter().filter(|f| f.level == posthaste::sink::Level::Fail).collect();
    assert!(failed.is_empty(), "{failed:?}");
    setting.run("select setval('posthaste.outbox_seq', 1)").await;
    setting.admin().await.repair("s", &somebody()).await.expect("the owner may");
}

#[tokio::test]
async fn a_pooler_does_not_get_in_the_way() {
    let server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let pool = require_service!(PgBouncer::start(&server).await);
    migrate::up(&PostgresConfig::new(server.url()), &Roles::default()).await.expect("permitted");
    let setting =
        require_service!(Setting::on(require_service!(TestDatabase::create_on(&server).await)).await);
    setting.append("t", 20).await;
    setting.sink("s", 2, "").await;
    let pooled =
        PostgresConfig { pooled: true, ..PostgresConfig::new(pool.url_for(setting.database.name())) };
    go_through(&setting, &PostgresAdmin::connect(pooled).await.expect("the same version")).await;
}

/// Looks at everything and does one of each.
async fn go_through(setting: &Setting, admin: &PostgresAdmin) {
    bury(setting, "s", 4).await;
    setting.append("t", 30).await;
    assert_eq!(sink(&admin.status().await.expect("readable"), "s").backlog, exact(30));
    let filter = DeadFilter { topic: Some("t.*".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_list(&filter, None, 10).await.expect("readable").len(), 4);
    assert_eq!(admin.dead_act(&filter, DeadAct::Replay, &somebody(), 2).await.expect("permitted"), 2);
    assert_eq!(admin.dead_act(&filter, DeadAct::Discard, &somebody(), 9).await.expect("permitted"), 2);
    admin
        .control(&ControlTarget::Sink("s".to_owned()), &Control::Pause, &somebody())
        .await
        .expect("permitted");
    admin.rewind("s", RewindTo::Time(Timestamp(0)), &somebody()).await.expect("permitted");
    admin.set_lanes(5, &somebody()).await.expect("permitted");
    let status = admin.status().await.expect("readable");
    assert_eq!((sink(&status, "s").lanes.len(), sink(&status, "s").backlog), (5, exact(50)));
    assert_eq!((sink(&status, "s").deferred, sink(&status, "s").paused), (exact(2), true));
}
