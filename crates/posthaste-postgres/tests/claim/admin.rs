//! Looking and acting: a table with a status, and one whose dead have a table of their own.

use crate::ground::Ground;
use posthaste::admin::{
    Actor, Admin, AdminError, AuditFilter, Control, ControlTarget, DeadAct, DeadFilter, DeferredFilter,
};
use posthaste::sink::Level;
use posthaste_postgres::claim::{ClaimAdmin, audit_table, dead_letter_table, examine, table};

const ADR: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload jsonb,
    retry_count int not null default 0, next_retry_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now())";
const TALKIE: &str = "create table outbox (id bigint primary key generated always as identity, topic text, key text, payload_json jsonb not null default '{}',
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now())";

fn actor() -> Actor {
    Actor::new("test", "a test")
}

async fn admin(ground: &Ground) -> ClaimAdmin {
    ClaimAdmin::connect(ground.config(), ground.layout.clone(), "s".into()).await.expect("the admin connects")
}

fn of(topic: &str) -> DeadFilter {
    DeadFilter { topic: Some(topic.to_owned()), ..DeadFilter::default() }
}

/// A replay moves rows back the way they came, with no attempt spent; a relay delivers them.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_of_a_table_of_their_own() {
    let Some(ground) = Ground::make("outbox-events-adr", ADR).await else { return };
    let found = table(&ground.app, &ground.layout.table).await.expect("looks").expect("is there");
    ground.execute(&dead_letter_table(&ground.layout, &found).expect("it has one")).await;
    ground.execute("insert into outbox_events_dlq (id, aggregate_type, aggregate_id, event_type, payload, retry_count, next_retry_at, created_at, updated_at, last_error, error_class)
        select gen_random_uuid(), 'tenant', 'k' || g, case when g < 4 then 'a.x' else 'b.x' end, jsonb_build_object('n', g), 9, now(), now() - interval '1 h', now(), 'nats.denied: no', 'permanent' from generate_series(1, 5) g").await;
    ground.execute("insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, next_retry_at) values ('t', 'k', 'later', '{}', now() + interval '1 h'), ('t', 'k', 'due', '{}', now() - interval '1 min')").await;
    let admin = admin(&ground).await;
    let status = admin.status().await.expect("status");
    let sink = &status.sinks[0];
    assert_eq!((sink.backlog.count, sink.deferred.count, sink.dead.count), (1, 1, 5));
    // What such a table cannot do is told before anybody asks, in the words of the refusal.
    let why = |of: &str| admin.lacks().iter().find(|lack| lack.of == of).map(|lack| lack.why);
    let sink = ControlTarget::Sink("s".to_owned());
    let paused = admin.control(&sink, &Control::Pause, &actor()).await.expect_err("no place");
    let waiting =
        admin.deferred_list(&DeferredFilter::default(), None, 9).await.expect_err("rows of its own");
    let trail = admin.audit_lines(&AuditFilter::default(), None, 9).await.expect_err("a table of its own");
    for (of, refused) in [("control", paused), ("deferred", waiting), ("audit", trail)] {
        assert!(why(of).is_some_and(|why| refused.to_string().contains(why)), "{of}: {refused}");
    }
    assert!(admin.jobs().is_none() && why("jobs").is_some() && why("dead").is_none());
    let page = admin.dead_list(&of("*"), None, 3).await.expect("lists");
    let rest = admin.dead_list(&of("*"), Some(&page[2].cursor), 3).await.expect("lists");
    assert_eq!((page.len(), rest.len()), (3, 2));
    assert_eq!(
        (page[0].error_code.as_str(), page[0].error.as_str(), page[0].attempts),
        ("nats.denied", "no", 9)
    );
    let shown = admin.dead_show(page[0].id).await.expect("shows");
    assert!(shown[0].payload.as_deref().is_some_and(|payload| payload.starts_with(b"{\"n\"")));
    let denied = DeadFilter { code: Some("nats.denied".to_owned()), ..of("a.*") };
    assert_eq!(admin.dead_count(&denied).await.expect("counts"), 3);
    assert!(matches!(
        admin.dead_act(&DeadFilter::default(), DeadAct::Discard, &actor(), 10).await,
        Err(AdminError::Invalid { .. })
    ));
    ground.execute(&audit_table(&ground.layout)).await;
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 2, "by chunks");
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 1);
    assert_eq!(admin.dead_act(&denied, DeadAct::Replay, &actor(), 2).await.expect("replays"), 0);
    let back = "select count(*) = 3 and bool_and(retry_count = 0 and next_retry_at <= now() and published_at is null and created_at < now() - interval '50 min') from outbox_events where event_type = 'a.x'";
    assert!(ground.ask::<bool>(back).await);
    assert_eq!(admin.dead_act(&of("b.*"), DeadAct::Discard, &actor(), 10).await.expect("discards"), 2);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events_dlq").await, 0);
    let acts: String = ground
        .ask("select string_agg(actor || ' ' || action || ' ' || reason || ' ' || (detail ->> 'count'), ', ' order by id) from posthaste_audit")
        .await;
    assert_eq!(
        acts, "test replay a test 2, test replay a test 1, test discard a test 2",
        "G6: a line for each chunk"
    );
    let named = "select bool_and(detail ->> 'table' = 'outbox_events' and jsonb_array_length(detail -> 'rows') = (detail ->> 'count')::int and detail -> 'filter' ->> 'topic' is not null) from posthaste_audit";
    assert!(ground.ask::<bool>(named).await);
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 4 from outbox_events where published_at is not null)").await;
    drop(relay);
}

/// By a status: back to `pending`, and only the dead. An id that is no UUID is found by the event's id.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_by_their_status() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic, status, retry_count, last_error) values ('a', 'dead_lettered', 6, 'x.no: never'), ('a', 'failed', 3, 'x.no: never'), ('a', 'odd', 0, null), (null, 'dead_lettered', 6, 'event.limits: topic is empty')").await;
    let admin = admin(&ground).await;
    let listed = admin.dead_list(&of("a"), None, 10).await.expect("lists");
    assert_eq!(listed.len(), 1);
    let one = DeadFilter { ids: vec![listed[0].id], ..DeadFilter::default() };
    ground.execute(&audit_table(&ground.layout)).await;
    assert_eq!(admin.dead_act(&one, DeadAct::Replay, &actor(), 10).await.expect("replays"), 1);
    let states: String =
        ground.ask("select string_agg(status || ' ' || retry_count, ', ' order by id) from outbox").await;
    assert_eq!(states, "pending 0, failed 3, odd 0, dead_lettered 6");
    let elsewhere = DeadFilter { sink: Some("other".to_owned()), ..of("*") };
    assert_eq!(admin.dead_act(&elsewhere, DeadAct::Discard, &actor(), 10).await.expect("nothing"), 0);
    let findings = examine(&ground.config(), &ground.layout).await;
    let level =
        |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.level);
    assert_eq!(level("adopted_table"), Some(Level::Ok));
    assert_eq!(level("adopted_rehearsal"), Some(Level::Ok));
    assert_eq!(level("adopted_index"), Some(Level::Warn), "there is none");
    assert_eq!(level("adopted_status"), Some(Level::Warn), "somebody wrote `odd`");
}

/// G6: what cannot be written down is not done. The audit is a table beside the adopted one, or that of our
/// own log in the same database; an act and its line are there together, or neither is.
#[tokio::test(flavor = "multi_thread")]
async fn g6_an_act_without_an_audit_is_refused() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic, status, retry_count) select 'a', 'dead_lettered', 6 from generate_series(1, 3)").await;
    let admin = admin(&ground).await;
    let dead = "select count(*) from outbox where status = 'dead_lettered'";
    let act = async |actor: Actor| admin.dead_act(&of("a"), DeadAct::Replay, &actor, 1).await;
    let told = act(actor()).await.expect_err("there is no audit").to_string();
    assert!(told.contains("CREATE TABLE \"posthaste_audit\"") && told.contains("Nothing was done"), "{told}");
    let nameless = Actor { reason: " ".to_owned(), ..actor() };
    assert!(
        matches!(act(nameless).await, Err(AdminError::Invalid { .. })),
        "an audit without a reason is none"
    );
    // One that takes no line: the act is rolled back with it.
    ground.execute(&audit_table(&ground.layout)).await;
    ground.execute("alter table posthaste_audit add check (actor <> 'test')").await;
    act(actor()).await.expect_err("the audit refuses it");
    assert_eq!(ground.ask::<i64>(dead).await, 3, "nothing was done");
    ground.execute("drop table posthaste_audit").await;
    posthaste_postgres::migrate::up(&ground.config(), &Default::default()).await.expect("our own log");
    assert_eq!(act(actor()).await.expect("replays"), 1);
    assert_eq!(ground.ask::<i64>(dead).await, 2);
    assert_eq!(ground.ask::<i64>("select count(*) from posthaste.audit where action = 'replay' and detail ->> 'table' = 'outbox'").await, 1);
}

/// What a column would have to tell, and nobody tells: refused before anything is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_could_delete_nothing_is_refused() {
    let ddl = r#"create table "Outbox" ("id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" text not null default 'PENDING',
        "retries" integer not null default 0, "createdAt" timestamp(3) not null default current_timestamp, "processedAt" timestamp(3))"#;
    let Some(mut ground) = Ground::make("prisma-outbox", ddl).await else { return };
    ground.layout.keep_published = Some(std::time::Duration::from_secs(86_400));
    ground.store().await.expect("`processedAt` says when");
    ground.layout.keep_dead = ground.layout.keep_published;
    let told = ground.store().await.err().expect("nothing says when a row died").to_string();
    assert!(told.contains("`keep_dead_days` cannot be kept"), "{told}");
}

/// F27: rows that nobody marked are counted before a relay publishes them again.
#[tokio::test(flavor = "multi_thread")]
async fn f27_rows_that_wait_for_long_are_counted() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic) values ('young')").await;
    let backlog = async || {
        let found = examine(&ground.config(), &ground.layout).await;
        found.into_iter().find(|finding| finding.check == "adopted_backlog").expect("it is checked")
    };
    assert_eq!(backlog().await.level, Level::Ok);
    ground.execute("insert into outbox (topic, created_at) select 'old', now() - interval '2 days' from generate_series(1, 1200)").await;
    ground.execute("insert into outbox (topic, created_at, status) select 'done', now() - interval '2 days', 'published' from generate_series(1, 50)").await;
    let told = backlog().await;
    assert!(told.level == Level::Warn && told.text.starts_with("1200 rows have waited"), "{}", told.text);
}

/// All pages of a list, by the places that they answer. After the first page `between` runs.
async fn pages(
    admin: &ClaimAdmin,
    newest: bool,
    limit: i64,
    between: impl AsyncFnOnce(),
) -> Vec<(String, uuid::Uuid)> {
    let (mut found, mut place, mut between): (Vec<_>, Option<String>, _) = (Vec::new(), None, Some(between));
    loop {
        let page = match newest {
            true => admin.dead_newest(&of("*"), place.as_deref(), limit).await,
            false => admin.dead_list(&of("*"), place.as_deref(), limit).await,
        };
        let page = page.expect("a page");
        let Some(last) = page.last() else { return found };
        place = Some(last.cursor.clone());
        assert!(page.len() as i64 <= limit && page.iter().all(|letter| letter.payload.is_none()));
        found.extend(page.into_iter().map(|letter| (letter.topic, letter.id)));
        if let Some(between) = between.take() {
            between().await;
        }
    }
}

/// A table whose keys are of this type, with 40 dead rows: ten times, of three rows each, and ten rows whose
/// time nobody knows. The topic is the row's place among them.
async fn with_dead(id: &str, key: &str) -> Option<Ground> {
    let ddl = TALKIE
        .replace("id bigint primary key generated always as identity", &format!("id {id} primary key"))
        .replace("created_at timestamptz not null default now()", "created_at timestamp");
    let ground = Ground::make("talkie", &ddl).await?;
    ground
        .execute(&format!(
            "insert into outbox (id, status, last_attempt_at)
               select {key}, 'dead_lettered', case when g < 30 then timestamptz '2026-01-01' + g / 3 * interval '1 us' end from generate_series(0, 39) g;
             update outbox o set topic = n from (select id, row_number() over (order by coalesce(last_attempt_at, 'infinity'), id) - 1 as n from outbox) s where s.id = o.id"
        ))
        .await;
    Some(ground)
}

/// Pages go by when a row died, and by its key where that is the same: no row is listed twice or left out,
/// whoever leaves or dies between two pages.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_are_paged_both_ways_while_others_come_and_go() {
    for (id, key, hostile) in [
        ("uuid", "md5(g::text)::uuid", &["x", "17", "0192f7a0-5c1e-7a3e-b1f2-00000000000g"][..]),
        ("bigint", "20 - g * 3", &["x", "1e3", "9223372036854775808", ""]),
        (
            "text collate \"und-x-icu\"",
            "(array['a', 'B', 'c~', 'D e', 'é'''])[g % 5 + 1] || chr(60 + g)",
            &[],
        ),
    ] {
        let Some(ground) = with_dead(id, key).await else { return };
        let admin = admin(&ground).await;
        let numbers = |found: Vec<(String, uuid::Uuid)>| {
            found.into_iter().map(|(topic, _)| topic.parse::<i64>().expect("a number")).collect::<Vec<_>>()
        };
        let all: Vec<i64> = (0..40).collect();
        for limit in [1, 3, 7, 100] {
            assert_eq!(numbers(pages(&admin, false, limit, async || {}).await), all, "{id} {limit}");
            let mut back = numbers(pages(&admin, true, limit, async || {}).await);
            back.reverse();
            assert_eq!(back, all, "{id} {limit}");
        }
        // What was listed leaves, and so does what was not; a row dies before the place, and one behind it.
        let churn = async || {
            ground.execute("delete from outbox where topic::int in (0, 4, 20, 35, 39); update outbox set last_attempt_at = '2025-01-01', topic = '100' where topic = '21'; update outbox set last_attempt_at = '2027-01-01', topic = '101' where topic = '22'").await;
        };
        let here = |n: &i64| !(19..23).contains(n) && ![0, 4, 35, 39].contains(n);
        let left: Vec<i64> = all.iter().copied().filter(|n| here(n) || *n == 19).collect();
        let found = numbers(pages(&admin, false, 5, churn).await);
        assert_eq!(found[..5], [0, 1, 2, 3, 4], "{id}");
        let known: Vec<i64> = found[5..].iter().copied().filter(|n| *n < 100).collect();
        assert_eq!(known, left.iter().copied().filter(|n| *n > 4).collect::<Vec<_>>(), "{id}");
        assert_eq!(found.iter().filter(|n| **n >= 100).collect::<Vec<_>>(), [&101], "{id}: it died later");
        let mut back = numbers(pages(&admin, true, 5, async || {}).await);
        back.reverse();
        assert_eq!((back[0], back.len()), (100, left.len() + 2), "{id}");
        // Shown by its event's id, with the payload and the same place.
        let page = admin.dead_list(&of("*"), None, 2).await.expect("a page");
        let shown = admin.dead_show(page[1].id).await.expect("shows");
        assert_eq!((shown.len(), &shown[0].cursor), (1, &page[1].cursor), "{id}");
        assert_eq!((shown[0].payload.as_deref(), shown[0].payload_bytes), (Some(&b"{}"[..]), Some(2)));
        refuses_hostile_places(&admin, hostile).await;
        let whole = numbers(pages(&admin, false, 100, async || {}).await);
        assert_eq!(whole.len(), left.len() + 2, "{id}: nothing was done by them");
    }
}

/// What no list has answered is refused in words, and is never part of a statement.
async fn refuses_hostile_places(admin: &ClaimAdmin, keys: &[&str]) {
    let end = "7fffffffffffffff";
    let made = keys.iter().map(|key| format!("{end}.{key}"));
    let never = ["", "17", ".", "x.1", "-1.1", "0.1", "0.", "00064ac5c0a4d000.'; drop table outbox; --"];
    let out_of_time =
        ["7ffffffffffffffe.1".to_owned(), format!("{end}.~00"), format!("{end}.~zz"), format!("{end}.~4")];
    for hostile in never.iter().map(|text| (*text).to_owned()).chain(out_of_time).chain(made) {
        for newest in [false, true] {
            let refused = match newest {
                true => admin.dead_newest(&of("*"), Some(&hostile), 5).await,
                false => admin.dead_list(&of("*"), Some(&hostile), 5).await,
            };
            let refused = refused.expect_err(&hostile);
            assert_eq!(refused.code(), "admin.bad_place", "{hostile}: {refused}");
            assert!(matches!(refused, AdminError::Invalid { .. }), "{hostile}");
        }
    }
}

/// Causes are made out at reading, of the newest rows; what they cannot do as a filter is refused, because
/// left out it would mean all rows.
#[tokio::test(flavor = "multi_thread")]
async fn causes_are_made_out_of_the_newest_rows() {
    let Some(ground) = Ground::make("talkie", TALKIE).await else { return };
    ground.execute("insert into outbox (topic, status, last_error, last_attempt_at)
        select case when g % 2 = 0 then 'even' else 'odd' end, 'dead_lettered', case when g <= 12000 then 'http.status: order ' || g || ' is unknown' else 'nats.no: denied' end,
               timestamptz '2026-01-01' + g * interval '1 s' from generate_series(1, 12003) g").await;
    let admin = admin(&ground).await;
    let found = admin.dead_causes(&DeadFilter::default(), 10).await.expect("causes");
    assert_eq!(found.looked, Some(10_000));
    let told: Vec<_> = found
        .causes
        .iter()
        .map(|cause| (cause.count, cause.error_code.as_str(), cause.error.as_str(), cause.topics.join(" ")))
        .collect();
    assert_eq!(
        told,
        [
            (9_997, "http.status", "order 12000 is unknown", "even odd".to_owned()),
            (3, "nats.no", "denied", "even odd".to_owned())
        ]
    );
    let of_the_same = posthaste::admin::fingerprint("s", "", "http.status", "order 1 is unknown");
    assert_eq!(found.causes[0].fingerprint, Some(of_the_same), "as everywhere else");
    assert_eq!(found.causes[0].last_at.rfc3339(), "2026-01-01T03:20:00.000000Z");
    assert_eq!(admin.dead_list(&of("*"), None, 1).await.expect("lists")[0].fingerprint, Some(of_the_same));
    let few = DeadFilter { code: Some("nats.no".to_owned()), ..of("even") };
    let found = admin.dead_causes(&few, 10).await.expect("causes");
    assert_eq!((found.looked, found.causes.len(), found.causes[0].count), (Some(1), 1, 1));
    assert_eq!(admin.dead_causes(&DeadFilter::default(), 1).await.expect("causes").causes.len(), 1);
    let elsewhere = DeadFilter { sink: Some("other".to_owned()), ..of("*") };
    assert_eq!(admin.dead_causes(&elsewhere, 10).await.expect("none").looked, Some(0));
    ground.execute(&audit_table(&ground.layout)).await;
    let by_cause = DeadFilter { fingerprint: Some(of_the_same), ..DeadFilter::default() };
    let by_text = DeadFilter { error: Some("order".to_owned()), ..DeadFilter::default() };
    let by_header = DeadFilter { header: Some("tenant".to_owned()), ..DeadFilter::default() };
    let refusals = [
        admin.dead_count(&by_text).await.map(drop),
        admin.dead_act(&by_header, DeadAct::Discard, &actor(), 1).await.map(drop),
        admin.dead_list(&by_cause, None, 1).await.map(drop),
        admin.dead_newest(&by_cause, None, 1).await.map(drop),
        admin.dead_causes(&by_cause, 1).await.map(drop),
        admin.dead_count(&by_cause).await.map(drop),
        admin.dead_act(&by_cause, DeadAct::Discard, &actor(), 1).await.map(drop),
        admin.dead_act(&by_cause, DeadAct::Replay, &actor(), 1).await.map(drop),
    ];
    for refused in refusals {
        assert_eq!(refused.expect_err("no column has it").code(), "admin.adopted");
    }
    assert_eq!(ground.ask::<i64>("select count(*) from outbox where status = 'dead_lettered'").await, 12_003);
}
