//! The steps: each once, repeated, at the same time, in the wrong state, with somebody in the way.

use super::rows::logged;
use super::{TALKIE, actor, finished, ground, handover, log_relay, refusal, set_up_log, started};
use crate::ground::{Ground, WAIT};
use posthaste::admin::Admin;
use posthaste::relay::DrainOutcome;
use posthaste_postgres::claim::{Done, Handover, PATIENCE, Trigger};
use posthaste_postgres::{PostgresAdmin, PostgresConfig};
use posthaste_testkit::conformance::eventually;
use std::time::{Duration, Instant};

const ROW: &str = "insert into outbox (topic, key, payload_json) values ('t', 'k', '{}')";

async fn triggers(ground: &Ground) -> i64 {
    ground.ask("select count(*) from pg_trigger where tgname = 'posthaste_hand_over'").await
}

/// From the first row to the last, with a relay on each side.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_moves_to_the_log_and_back() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground.execute(ROW).await;
    let mut handover = handover(&ground).await;
    let standing = handover.standing().await.expect("a look");
    assert_eq!(
        (standing.trigger, standing.waiting.count, standing.is_drained()),
        (Trigger::Absent, 1, false)
    );
    assert!(refusal(handover.finish(&actor()).await).contains("does not hand its rows over"));
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it starts"), Done::Now);
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("again"), Done::Before);
    ground.execute(ROW).await;
    assert!(refusal(handover.finish(&actor()).await).contains("is not drained: 1 wait now"));
    let (claim, log) = (ground.relay("claim").await, log_relay(&ground, "log").await);
    eventually("both are delivered", WAIT, async || (ground.broker.deliveries().len() == 2).then_some(()))
        .await;
    let mut by: Vec<String> = ground.broker.deliveries().iter().map(|one| one.by.to_string()).collect();
    by.sort();
    assert_eq!(by, ["claim", "log"]);
    finished(&mut handover).await;
    assert_eq!(handover.finish(&actor()).await.expect("again"), Vec::<String>::new());
    assert_eq!(handover.stop(PATIENCE, &actor()).await.expect("it stops"), Done::Now);
    assert_eq!(handover.stop(PATIENCE, &actor()).await.expect("again"), Done::Before);
    assert_eq!(triggers(&ground).await, 0);
    ground.execute(ROW).await;
    ground.until("(select count(*) = 3 from outbox where status = 'published')").await;
    assert_eq!(logged(&ground).await.len(), 1, "the third stayed in its table");
    assert_eq!((claim.drain().await, log.drain().await), (DrainOutcome::Clean, DrainOutcome::Clean));
    let acts: String = ground.ask("select string_agg(action, ' ' order by id) from posthaste.audit").await;
    assert_eq!(acts, "adopt.start adopt.finish adopt.finish adopt.stop", "each act once, with who and why");
}

/// What is set back by hand belongs to the claim; so does what was inserted while the trigger was disabled.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_back_by_hand_is_claimed() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let mut handover = started(&ground).await;
    ground.execute(ROW).await;
    ground.execute("update outbox set status = 'pending'").await;
    ground.execute("alter table outbox disable trigger posthaste_hand_over").await;
    ground.execute(ROW).await;
    let standing = handover.standing().await.expect("a look");
    assert_eq!((standing.trigger, standing.waiting.count), (Trigger::Disabled, 2));
    let relay = ground.relay("claim").await;
    ground.until("(select count(*) = 2 from outbox where status = 'published')").await;
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it is enabled"), Done::Now);
    ground.execute(ROW).await;
    assert_eq!(logged(&ground).await.len(), 2);
    drop(relay);
}

/// Another layout: the same trigger, brought up to date in one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_layout_changes_the_function() {
    let Some(mut ground) = ground("talkie", TALKIE).await else { return };
    drop(started(&ground).await);
    ground.layout.column.key = None;
    let mut handover = handover(&ground).await;
    assert_eq!(handover.standing().await.expect("a look").trigger, Trigger::Other);
    assert!(
        refusal(handover.finish(&actor()).await).contains("does not hand its rows over as this layout says")
    );
    // A writer in its transaction is not in the way: the table's lock is not needed.
    ground.execute(&format!("begin; {ROW}")).await;
    assert_eq!(handover.start(&[], Duration::ZERO, &actor()).await.expect("at once"), Done::Now);
    ground.execute("commit").await;
    assert_eq!(logged(&ground).await.first().map(|event| event.key.clone()), Some(None));
    assert_eq!(triggers(&ground).await, 1);
}

/// Two who start, and two who stop, at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn two_at_once() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let (mut one, mut two) = (handover(&ground).await, handover(&ground).await);
    let by = actor();
    let (first, second) = tokio::join!(one.start(&[], PATIENCE, &by), two.start(&[], PATIENCE, &by));
    first.expect("starts");
    second.expect("starts, or has nothing to do");
    assert_eq!(triggers(&ground).await, 1);
    let (first, second) = tokio::join!(one.stop(PATIENCE, &by), two.stop(PATIENCE, &by));
    first.expect("stops");
    second.expect("stops, or has nothing to do");
    assert_eq!(triggers(&ground).await, 0);
}

/// Somebody writes to the table for long: `start` gives up by name, and the application waits for it for a
/// moment at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_is_named_and_nobody_waits_for_us() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let long = ground.database.connect().await.expect("a connection");
    long.batch_execute(&format!("begin; {ROW}")).await.expect("a row");
    let mut handover = handover(&ground).await;
    let begun = Instant::now();
    let writes = async {
        let mut longest = Duration::ZERO;
        while begun.elapsed() < Duration::from_secs(6) {
            let one = Instant::now();
            ground.execute(ROW).await;
            longest = longest.max(one.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await; // pace
        }
        longest
    };
    let by = actor();
    let (refused, longest) = tokio::join!(handover.start(&[], Duration::from_secs(5), &by), writes);
    let refused = refusal(refused);
    assert!(refused.contains("In the way: process") && refused.contains("in a transaction for"), "{refused}");
    assert!(longest < Duration::from_secs(4), "an insert waited for all of our patience: {longest:?}");
    assert_eq!((triggers(&ground).await, logged(&ground).await.len()), (0, 0), "nothing was changed");
    long.batch_execute("commit").await.expect("commit");
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("now"), Done::Now);
}

/// Somebody reads for long, as a backup does: `stop` switches off at once, and removes the trigger when it
/// can.
#[tokio::test(flavor = "multi_thread")]
async fn stop_takes_effect_under_a_long_read() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let mut handover = started(&ground).await;
    let backup = ground.database.connect().await.expect("a connection");
    backup.batch_execute("begin; select count(*) from outbox").await.expect("a read");
    assert_eq!(handover.stop(Duration::ZERO, &actor()).await.expect("it is off"), Done::Off);
    assert_eq!(handover.standing().await.expect("a look").trigger, Trigger::Off);
    ground.execute(ROW).await;
    assert_eq!(logged(&ground).await.len(), 0);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox where status = 'pending'").await, 1);
    backup.batch_execute("commit").await.expect("commit");
    assert_eq!(handover.stop(PATIENCE, &actor()).await.expect("it is removed"), Done::Now);
    assert_eq!(triggers(&ground).await, 0);
}

/// Sinks of the log are held before the first row is handed over, and go on when the table is drained.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_log_delivers_after_the_table() {
    let Some(mut ground) = ground("talkie", TALKIE).await else { return };
    // Noticed after two beats, each a third of a lease; and nothing is delivered twice because a machine
    // stood still.
    (ground.settings.lease_ttl_ms, ground.settings.publish_timeout_ms) = (9_000, 6_000);
    ground.execute("insert into outbox (topic, key, payload_json) select 't', 'k', to_jsonb(g) from generate_series(1, 60) g").await;
    let log = log_relay(&ground, "log").await;
    ground.until("(select count(*) > 0 from posthaste.lanes where sink = 's' and owner is not null)").await;
    let mut handover = handover(&ground).await;
    let sinks = ["s".to_owned()];
    assert_eq!(handover.start(&sinks, PATIENCE, &actor()).await.expect("it starts"), Done::Now);
    assert_eq!(handover.standing().await.expect("a look").held, ["s"]);
    assert!(refusal(handover.start(&sinks, PATIENCE, &actor()).await).contains("handed over already"));
    ground.execute("insert into outbox (topic, key, payload_json) select 't', 'k', to_jsonb(g) from generate_series(61, 100) g").await;
    let claim = ground.relay("claim").await;
    ground.until("(select count(*) = 100 from outbox where status = 'published')").await;
    assert_eq!(ground.broker.deliveries().len(), 60, "the log waits");
    assert_eq!(handover.finish(&actor()).await.expect("it is drained"), ["s"]);
    eventually("the log goes on", WAIT, async || (ground.broker.deliveries().len() == 100).then_some(()))
        .await;
    let first_of_log = ground.broker.deliveries().iter().position(|one| &*one.by == "log");
    assert_eq!(first_of_log, Some(60), "what is new comes after what is old");
    assert_eq!(
        ground.ask::<i64>("select count(*) from posthaste.state where name like 'hand_over%'").await,
        0
    );
    assert_eq!((claim.drain().await, log.drain().await), (DrainOutcome::Clean, DrainOutcome::Clean));
}

/// A start that cannot be done lets go what it held; somebody else's pause stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_holds_nothing() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    ground
        .execute("insert into posthaste.controls (kind, name, paused) values ('sink', 'theirs', true)")
        .await;
    let long = ground.database.connect().await.expect("a connection");
    long.batch_execute(&format!("begin; {ROW}")).await.expect("a row");
    let mut handover = handover(&ground).await;
    let sinks = ["s".to_owned(), "theirs".to_owned()];
    refusal(handover.start(&sinks, Duration::ZERO, &actor()).await);
    let paused = "select string_agg(name, ',') from posthaste.controls where paused";
    assert_eq!(ground.ask::<String>(paused).await, "theirs");
    long.batch_execute("commit").await.expect("commit");
    handover.start(&sinks, PATIENCE, &actor()).await.expect("now");
    assert_eq!(handover.standing().await.expect("a look").held, ["s"]);
    handover.stop(PATIENCE, &actor()).await.expect("it stops");
    assert_eq!(ground.ask::<String>(paused).await, "theirs");
}

/// What cannot be handed over is told before anything is changed.
#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_told_by_name() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    let mut without = handover(&ground).await;
    assert!(refusal(without.start(&[], PATIENCE, &actor()).await).contains("no log in schema posthaste"));
    set_up_log(&ground).await;
    // A role that relays, and owns nothing.
    let role = format!("relay_{}", ground.database.name());
    ground
        .execute(&format!(
            "create role {role} login in role {}_relay; grant select, update on outbox to {role}",
            ground.database.name()
        ))
        .await;
    let config = PostgresConfig::new(ground.database.url_as(&role));
    let mut relay = Handover::connect(&config, &ground.layout, "posthaste").await.expect("it may look");
    assert_eq!(relay.standing().await.expect("a look").trigger, Trigger::Absent);
    let refused = refusal(relay.start(&[], PATIENCE, &actor()).await);
    for right in
        ["TRIGGER on \"public\".\"outbox\"", "CREATE on schema posthaste", "INSERT on \"posthaste\".outbox"]
    {
        assert!(refused.contains(right), "{right}: {refused}");
    }
    let mut owner = started(&ground).await;
    let refused = refusal(relay.stop(PATIENCE, &actor()).await);
    assert!(
        refused.contains("permission denied") && refused.contains("as the role that ran `start`"),
        "{refused}"
    );
    drop(relay);
    ground.execute(&format!("drop owned by {role}; drop role {role}")).await;
    // Another log in the same database.
    let mut other = Handover::connect(&ground.config(), &ground.layout, "elsewhere").await.expect("it fits");
    assert!(refusal(other.standing().await).contains("no log in schema elsewhere"));
    let config = PostgresConfig { schema: "elsewhere".to_owned(), ..ground.config() };
    let name = |role| format!("{}_{role}", ground.database.name());
    let roles = posthaste_postgres::migrate::Roles {
        app: name("app"),
        consumer: name("consumer"),
        relay: name("relay"),
        admin: name("admin"),
        gateway: name("gateway"),
        create: true,
    };
    posthaste_postgres::migrate::up(&config, &roles).await.expect("a second log");
    assert!(
        refusal(other.start(&[], PATIENCE, &actor()).await)
            .contains("another log already, in schema posthaste")
    );
    owner.stop(PATIENCE, &actor()).await.expect("it stops");
    // A trigger of the owners that refuses the mark.
    ground.execute(ROW).await;
    ground.execute("create function no() returns trigger language plpgsql as $$ begin raise 'hands off'; end $$; create trigger no before update on outbox for each row execute function no()").await;
    let refused = refusal(owner.start(&[], PATIENCE, &actor()).await);
    assert!(refused.contains("hands off") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(triggers(&ground).await, 0);
}

/// No leftovers: dropping the log takes the trigger along, and the application goes on as before it all.
#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_log_takes_the_trigger_along() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    drop(started(&ground).await);
    ground.execute("drop schema posthaste cascade").await;
    ground.execute(ROW).await;
    assert_eq!(
        (
            triggers(&ground).await,
            ground.ask::<i64>("select count(*) from outbox where status = 'pending'").await
        ),
        (0, 1)
    );
}

/// The script for somebody else's hands does the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_script_does_what_start_does() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let mut handover = handover(&ground).await;
    ground.execute(&handover.script()).await;
    assert_eq!(handover.standing().await.expect("a look").trigger, Trigger::On);
    ground.execute(ROW).await;
    assert_eq!(logged(&ground).await.len(), 1);
    ground.execute(&handover.script_back()).await;
    assert_eq!(handover.standing().await.expect("a look").trigger, Trigger::Absent);
    let admin = PostgresAdmin::connect(ground.config()).await.expect("the log");
    assert!(admin.doctor().await.is_ok(), "and the log is as it was");
}
