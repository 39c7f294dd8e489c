//! What others have in the same database: functions of strangers, triggers that refuse, rows that nobody can
//! publish.

use super::rows::{OPEN, PLAN, logged};
use super::{TALKIE, actor, ground, handover, log_relay, refusal, started};
use crate::ground::Ground;
use posthaste_postgres::claim::{Done, Handover, PATIENCE, TableName, Trigger};

const ROW: &str = "insert into outbox (topic, key, payload_json) values ('t', 'k', '{}')";
const PLAN_ROW: &str = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) values (gen_random_uuid(), 'o', gen_random_uuid(), 'e', '{}')";

/// Whoever may make functions where ours looks things up could have theirs run with the definer's rights.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_nothing_run_as_the_definer() {
    let Some(ground) = ground("outbox-events", PLAN).await else { return };
    let mallory = format!("mallory_{}", ground.database.name());
    ground
        .execute(&format!(
            "create table loot (who name); grant insert on loot to public; create role {mallory}; grant create on schema public to public;
             set role {mallory};
             create function convert_to(a text, b text) returns bytea language plpgsql as
               $$ begin insert into public.loot values (current_user); return pg_catalog.convert_to(a, b::name); end $$;
             create function same(a varchar, b varchar) returns boolean language plpgsql as
               $$ begin insert into public.loot values (current_user); return a::text = b::text; end $$;
             create operator public.= (leftarg = varchar, rightarg = varchar, function = same);
             reset role"
        ))
        .await;
    let mut handover = handover(&ground).await;
    let refused = refusal(handover.start(&[], PATIENCE, &actor()).await);
    assert!(refused.contains("REVOKE CREATE ON SCHEMA public FROM PUBLIC"), "{refused}");
    let script = handover.script();
    let by_hand = ground.app.batch_execute(&script).await.expect_err("the script refuses, too");
    let by_hand = by_hand.as_db_error().expect("the server's own words").message();
    assert!(by_hand.contains("REVOKE CREATE ON SCHEMA public FROM PUBLIC"), "{by_hand}");
    ground.execute("rollback; revoke create on schema public from public").await;
    ground.execute(&format!("grant create on schema public to {mallory}")).await;
    let refused = refusal(handover.start(&[], PATIENCE, &actor()).await);
    assert!(refused.contains(&format!("FROM {mallory}")), "{refused}");
    ground.execute(&format!("revoke create on schema public from {mallory}")).await;
    // What was made before is still there, and is not used.
    handover.start(&[], PATIENCE, &actor()).await.expect("it starts");
    ground.execute("delete from loot").await;
    ground.execute(PLAN_ROW).await;
    let loot: i64 = ground.ask("select count(*) from loot").await;
    ground.execute(&format!("drop owned by {mallory} cascade; drop role {mallory}")).await;
    assert_eq!((loot, logged(&ground).await.len()), (0, 1));
}

const ONLY_THE_WORKER: &str = "create function guard() returns trigger language plpgsql as
    $$ begin if old.status = 'PENDING' and new.status = 'PUBLISHED' then raise 'only the worker'; end if; return new; end $$;
  create trigger guard before update on outbox_events for each row execute function guard()";

/// The rehearsal marks a row that waits, or one that is made to wait, or one that is made up.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_refuses_the_mark_is_found_whatever_is_in_the_table() {
    let Some(ground) = ground("outbox-events", PLAN).await else { return };
    ground.execute(ONLY_THE_WORKER).await;
    let published = PLAN_ROW.replace("payload)", "payload, status)").replace("'{}')", "'{}', 'PUBLISHED')");
    for rows in ["select", published.as_str(), PLAN_ROW] {
        ground.execute(rows).await;
        let before: i64 = ground.ask("select count(*) from outbox_events").await;
        let refused = refusal(handover(&ground).await.start(&[], PATIENCE, &actor()).await);
        assert!(refused.contains("only the worker"), "{rows}: {refused}");
        ground.execute(PLAN_ROW).await;
        let (after, waiting): (i64, i64) = (
            ground.ask("select count(*) from outbox_events").await,
            ground.ask("select count(*) from outbox_events where status = 'PENDING'").await,
        );
        assert_eq!(after, before + 1, "{rows}: the rehearsal left nothing");
        assert!(waiting > 0);
        ground.execute("delete from outbox_events").await;
    }
}

/// One that is refused at the end of the transaction is found, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_trigger_that_refuses_the_mark_is_found() {
    let Some(ground) = ground("outbox-events", PLAN).await else { return };
    ground
        .execute(&ONLY_THE_WORKER.replace(
            "create trigger guard before update on outbox_events",
            "create constraint trigger guard after update on outbox_events deferrable initially deferred",
        ))
        .await;
    ground.execute(PLAN_ROW).await;
    let refused = refusal(handover(&ground).await.start(&[], PATIENCE, &actor()).await);
    assert!(refused.contains("only the worker"), "{refused}");
}

/// Where no row can be had, it starts and says that nothing was tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_takes_no_row_of_ours_is_not_rehearsed() {
    let Some(ground) = ground("outbox-events", PLAN).await else { return };
    ground.execute("alter table outbox_events add check (aggregate_type in ('Order', 'User'))").await;
    let mut handover = started(&ground).await;
    assert!(!handover.was_rehearsed());
    handover.stop(PATIENCE, &actor()).await.expect("it stops");
    ground.execute(&PLAN_ROW.replace("'o'", "'Order'")).await;
    assert!(started(&ground).await.was_rehearsed());
}

/// After `finish` nobody claims any more: what cannot be published is in the log's dead letters, by name.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_published_is_buried_by_the_log() {
    let ddl = OPEN.replace("event_type text not null", "event_type text");
    let Some(mut ground) = ground("open-outbox", &ddl).await else { return };
    ground.layout.header_columns = vec![("by".to_owned(), "partition_key".to_owned())];
    let mut handover = started(&ground).await;
    handover.finish(&actor()).await.expect("nothing waits");
    ground
        .execute("insert into openoutbox_events (event_type, partition_key, payload, headers) values ('t', 'a', 'x', '[1]'), (null, 'b', 'x', '{}'), ('t', 'c', 'x', 'null')")
        .await;
    let relay = log_relay(&ground, "log").await;
    ground.until("(select count(*) = 3 from posthaste.dead_letters)").await;
    let codes: String =
        ground.ask("select string_agg(error_code, ' ' order by key) from posthaste.dead_letters").await;
    assert_eq!(codes, "event.defect event.limits event.defect");
    assert_eq!(ground.ask::<i64>("select count(*) from openoutbox_events where status = 'PENDING'").await, 0);
    drop(relay);
}

async fn paused(ground: &Ground) -> String {
    ground
        .ask("select coalesce(string_agg(name, ',' order by name), '') from posthaste.controls where paused")
        .await
}

/// Two tables that go to one log: a sink goes on when the last of them is drained.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_is_held_until_the_last_table_is_drained() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.execute("create table other (like outbox including all)").await;
    let mut layout = ground.layout.clone();
    layout.table = TableName::named("other");
    let sinks = ["s".to_owned()];
    for first in [0, 1] {
        let mut one = handover(&ground).await;
        let mut two =
            Handover::connect(&ground.config(), &layout, "posthaste").await.expect("table and log fit");
        one.start(&sinks, PATIENCE, &actor()).await.expect("it starts");
        two.start(&sinks, PATIENCE, &actor()).await.expect("so does the other");
        assert_eq!(two.standing().await.expect("a look").held, ["s"]);
        let (first, last) = if first == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        assert_eq!(first.finish(&actor()).await.expect("the first"), Vec::<String>::new());
        assert_eq!(paused(&ground).await, "s", "the other table drains");
        assert_eq!(last.finish(&actor()).await.expect("the last"), ["s"]);
        assert_eq!(paused(&ground).await, "");
        one.stop(PATIENCE, &actor()).await.expect("it stops");
        two.stop(PATIENCE, &actor()).await.expect("so does the other");
    }
}

/// A pause by hand while a sink is held is not lifted by `finish`.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_by_hand_outlives_the_hold() {
    use posthaste::admin::{Admin, Control, ControlTarget};
    let Some(mut ground) = ground("talkie", TALKIE).await else { return };
    (ground.settings.lease_ttl_ms, ground.settings.publish_timeout_ms) = (2_000, 1_000);
    let relay = log_relay(&ground, "log").await;
    ground.until("(select count(*) > 0 from posthaste.lanes where sink = 's')").await;
    let admin = posthaste_postgres::PostgresAdmin::connect(ground.config()).await.expect("the log");
    let sink = ControlTarget::Sink("s".to_owned());
    let mut handover = handover(&ground).await;
    for (controls, left, resumed) in [
        (&[Control::Pause][..], "s", &[][..]),
        (&[Control::Pause, Control::Resume, Control::Pause], "s", &[]),
        (&[Control::RateLimit(Some(1e6))], "", &["s"]),
    ] {
        handover.start(&["s".to_owned()], PATIENCE, &actor()).await.expect("it starts");
        for control in controls {
            admin.control(&sink, control, &actor()).await.expect("an operator");
        }
        assert_eq!(handover.finish(&actor()).await.expect("it is drained"), resumed, "{controls:?}");
        assert_eq!(paused(&ground).await, left, "{controls:?}");
        handover.stop(PATIENCE, &actor()).await.expect("it stops");
        admin.control(&sink, &Control::Resume, &actor()).await.expect("an operator");
    }
    drop(relay);
}

/// A row at the end of time is waited for by nobody; one that waits for its time can be left to the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_does_not_wait_for_the_end_of_time() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let at = |time: &str| {
        ROW.replace("payload_json)", "payload_json, next_attempt_at)")
            .replace("'{}')", &format!("'{{}}', {time})"))
    };
    ground.execute(&at("'infinity'")).await;
    let mut handover = handover(&ground).await;
    let sinks = ["s".to_owned()];
    handover.start(&sinks, PATIENCE, &actor()).await.expect("it starts");
    let standing = handover.standing().await.expect("a look");
    assert_eq!((standing.later.count, standing.never.count, standing.is_drained()), (0, 1, true));
    assert_eq!(handover.finish(&actor()).await.expect("nothing else waits"), ["s"]);
    handover.stop(PATIENCE, &actor()).await.expect("it stops");
    ground.execute(&at("now() + interval '30 days'")).await;
    handover.start(&sinks, PATIENCE, &actor()).await.expect("it starts");
    let refused = refusal(handover.finish(&actor()).await);
    assert!(refused.contains("1 for their time") && refused.contains("--anyway"), "{refused}");
    assert_eq!(handover.finish_anyway(&actor()).await.expect("the operator says so"), ["s"]);
    ground.execute("update outbox set next_attempt_at = now()").await;
    assert!(refusal(handover.finish_anyway(&actor()).await).contains("2 wait now"));
}

/// Tables below the table have its rows but not its key: one event for one row, and no other row is touched.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_inheriting_table_are_left_alone() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let mut handover = started(&ground).await;
    ground.execute("create table child () inherits (outbox); alter table child add primary key (id)").await;
    let id = "0192f7a0-5c1e-7a3e-b1f2-000000000001";
    ground
        .execute(&format!(
            "insert into child (id, topic, payload_json, status) values ('{id}', 'dead', '{{}}', 'dead_lettered');
             insert into outbox (id, topic, payload_json) values ('{id}', 'new', '{{}}')"
        ))
        .await;
    let topics: Vec<String> = logged(&ground).await.into_iter().map(|event| event.topic).collect();
    assert_eq!(topics, ["new"]);
    assert_eq!(ground.ask::<String>("select status::text from child").await, "dead_lettered");
    handover.stop(PATIENCE, &actor()).await.expect("it stops");
    let refused = refusal(handover.start(&[], PATIENCE, &actor()).await);
    assert!(refused.contains("child inherits from"), "{refused}");
}

/// Only who is in the way is named: a reader, and one that locks rows, are not.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_in_the_way_is_not_named() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.execute(ROW).await;
    let connect = async || ground.database.connect().await.expect("a connection");
    let (reader, locker, writer) = (connect().await, connect().await, connect().await);
    reader.batch_execute("begin; select from outbox").await.expect("a read");
    locker.batch_execute("begin; select from outbox for key share").await.expect("a lock");
    writer.batch_execute(&format!("begin; {ROW}")).await.expect("a row");
    let refused = refusal(handover(&ground).await.start(&[], std::time::Duration::ZERO, &actor()).await);
    assert_eq!(refused.matches("in a transaction for").count(), 1, "{refused}");
}

/// A trigger that only fires on replicas does nothing here.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_for_replicas_is_disabled() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let mut handover = started(&ground).await;
    for (how, trigger) in [("replica", Trigger::Disabled), ("always", Trigger::On)] {
        ground.execute(&format!("alter table outbox enable {how} trigger posthaste_hand_over")).await;
        assert_eq!(handover.standing().await.expect("a look").trigger, trigger, "{how}");
    }
    ground.execute("alter table outbox enable replica trigger posthaste_hand_over").await;
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it is enabled"), Done::Now);
    ground.execute(ROW).await;
    assert_eq!(logged(&ground).await.len(), 1);
}
