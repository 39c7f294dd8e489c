//! Adopted tables by command: found, proposed, printed, tried, run, killed, mended.

use crate::binary::{Scratch, run};
use crate::daemon::Daemon;
use crate::subscriber::Subscriber;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{self, Nats, NatsOptions, TestDatabase};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const PRISMA: &str = r#"create type "OutboxStatus" as enum ('PENDING', 'PROCESSED', 'FAILED');
  create table "Outbox" ("id" text primary key, "topic" text, "key" text, "payload" jsonb not null, "status" "OutboxStatus" not null default 'PENDING',
    "retries" integer not null default 0, "createdAt" timestamp(3) not null default current_timestamp, "processedAt" timestamp(3));
  create index on "Outbox" ("status", "createdAt")"#;
const ADR: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text,
    payload jsonb, retry_count int not null default 0, next_retry_at timestamptz not null default now(), published_at timestamptz,
    created_at timestamptz not null default now(), updated_at timestamptz not null default now())";
pub(crate) const PLAN: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type varchar(50) not null, aggregate_id uuid not null,
    event_type varchar(100) not null, payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
    retry_count int default 0, next_attempt_at timestamptz default now(), last_error text, processed_at timestamptz);
  create index idx_outbox_poll on outbox_events (status, next_attempt_at)";
pub(crate) const TALKIE: &str = "create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null,
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now(),
    unique (topic, idempotency_key))";

/// A database with somebody else's table in it.
pub(crate) struct Service {
    pub(crate) database: TestDatabase,
    pub(crate) client: Client,
}

impl Service {
    pub(crate) async fn new(ddl: &str) -> Option<Self> {
        let database = services::require(TestDatabase::create().await)?;
        let client = database.connect().await.expect("a connection");
        client.batch_execute(ddl).await.expect("the owners' DDL");
        Some(Self { database, client })
    }

    fn config(&self, adopt: &str, more: &str) -> Scratch {
        Scratch::new(&format!(
            "[outbox]\nurl = \"{}\"\n[outbox.adopt]\n{adopt}\n[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n{more}",
            self.database.url()
        ))
    }

    pub(crate) async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.client.query_one(sql, &[]).await.expect("a question of the test").get(0)
    }

    pub(crate) async fn until(&self, condition: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.ask::<bool>(&format!("select {condition}")).await {
            assert!(Instant::now() < end, "{condition}");
            tokio::time::sleep(Duration::from_millis(20)).await; // pace
        }
    }
}

/// Each of the four is known without being told which, and a file is written that runs.
#[tokio::test(flavor = "multi_thread")]
async fn inspect_knows_the_four_tables() {
    let cases = [
        (PRISMA, "prisma-outbox", "Outbox"),
        (ADR, "outbox-events-adr", "outbox_events"),
        (PLAN, "outbox-events", "outbox_events"),
        (TALKIE, "talkie", "outbox"),
    ];
    for (ddl, preset, table) in cases {
        let Some(service) = Service::new(ddl).await else { return };
        // Something that is no outbox.
        service
            .client
            .batch_execute("create table invoices (id int primary key, data jsonb, created_at timestamptz)")
            .await
            .expect("DDL");
        let file =
            std::env::temp_dir().join(format!("posthaste-adopt-{}.toml", uuid::Uuid::now_v7().simple()));
        let found = run(&[
            "adopt",
            "inspect",
            "--json",
            "--url",
            &service.database.url(),
            "--write",
            &file.display().to_string(),
        ])
        .ok()
        .json();
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(
            (&found[0]["preset"], &found[0]["table"]),
            (&preset.into(), &format!("public.{table}").into())
        );
        // What the claim lacks: 001 a table for the dead, 004 as it stands here an index.
        assert_eq!(found[0]["dead_letter_table"].is_string(), preset == "outbox-events-adr", "{found}");
        assert_eq!(found[0]["index"].is_string(), preset == "talkie", "{preset}: {found}");
        if let Some(ddl) = found[0]["dead_letter_table"].as_str() {
            service.client.batch_execute(ddl).await.expect("the printed DDL runs");
        }
        let written = file.display().to_string();
        let sql = run(&["adopt", "sql", "--config", &written]).ok().out;
        assert!(sql.contains("for update of t skip locked"), "{sql}");
        let dry = run(&["run", "--dry-run", "--config", &written]).ok().out;
        assert!(dry.contains("nothing is due"), "{dry}");
        let again = run(&["adopt", "inspect", "--url", &service.database.url(), "--write", &written]);
        assert_eq!(again.code, 2, "a file is never overwritten: {}", again.err);
        std::fs::remove_file(&file).expect("it was written");
    }
}

/// All six presets' tables in one database, among tables that are no outbox: each is known, and nothing else
/// is taken for one.
#[tokio::test(flavor = "multi_thread")]
async fn inspect_knows_all_presets_at_once() {
    const DEBEZIUM: &str = "create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
        type varchar(255) not null, payload jsonb)";
    const OPEN: &str = "create table openoutbox_events (event_id uuid primary key default gen_random_uuid(), event_type text not null, partition_key text,
        payload bytea not null, headers jsonb, created_at timestamptz not null default now(), status text not null default 'PENDING', delivered_at timestamptz,
        attempts int not null default 0, available_at timestamptz not null default now(), locked_by text, locked_at timestamptz, last_error text)";
    let cases = [
        ("s000", PRISMA, "prisma-outbox", "Outbox"),
        ("s001", ADR, "outbox-events-adr", "outbox_events"),
        ("s002", PLAN, "outbox-events", "outbox_events"),
        ("s004", TALKIE, "talkie", "outbox"),
        ("router", DEBEZIUM, "debezium-outbox", "outbox"),
        ("open", OPEN, "open-outbox", "openoutbox_events"),
    ];
    let mut ddl = "create table invoices (id int primary key, data jsonb, created_at timestamptz);
        create table audit_log (id bigint primary key, payload jsonb, status text default 'new')"
        .to_owned();
    for (schema, table, ..) in cases {
        ddl.push_str(&format!("; create schema {schema}; set search_path = {schema}; {table}"));
    }
    let Some(service) = Service::new(&ddl).await else { return };
    let found = run(&["adopt", "inspect", "--json", "--url", &service.database.url()]).ok().json();
    let found: Vec<(&str, &str)> = found
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["table"].as_str().expect("a table"), one["preset"].as_str().unwrap_or("none")))
        .collect();
    assert_eq!(found.len(), cases.len(), "{found:?}");
    for (schema, _, preset, table) in cases {
        let name = format!("{schema}.{table}");
        assert!(found.contains(&(name.as_str(), preset)), "{name} is not {preset}: {found:?}");
    }
    // F27: nothing goes out of the router's table before somebody says where to begin.
    let adopt = "preset = \"debezium-outbox\"\ntable = \"router.outbox\"";
    let refused = run(&["run", "--dry-run", "--config", service.config(adopt, "").path()]);
    assert!(refused.code != 0 && refused.err.contains("say where to begin"), "{}", refused.err);
    let missing =
        run(&["adopt", "sql", "--config", service.config(&format!("{adopt}\nwhere = \"true\""), "").path()])
            .ok()
            .out;
    assert!(missing.contains("CREATE TABLE \"outbox_dead_letters\""), "{missing}");
}

/// A table that nobody described: columns by their names.
#[tokio::test(flavor = "multi_thread")]
async fn inspect_describes_a_table_of_its_own_kind() {
    let ddl = r#"create schema app; create table app."OutboxMessages" ("Id" bigint primary key generated always as identity, "EventType" text not null, "Data" text not null,
        "State" text not null default 'New', "Attempts" int not null default 0, "NextAttemptAt" timestamptz not null default now(), "SentAt" timestamptz, "CreatedAt" timestamptz not null default now());
      insert into app."OutboxMessages" ("EventType", "Data", "State") values ('a', '1', 'Sent'), ('b', '2', 'Failed'), ('c', '3', 'New')"#;
    let Some(service) = Service::new(ddl).await else { return };
    let file = std::env::temp_dir().join(format!("posthaste-adopt-{}.toml", uuid::Uuid::now_v7().simple()));
    let written = file.display().to_string();
    let found = run(&[
        "adopt",
        "inspect",
        "--url",
        &service.database.url(),
        "--table",
        "app.OutboxMessages",
        "--write",
        &written,
    ])
    .ok()
    .out;
    assert!(found.contains("rows wait while `State` is New, and are done when it is Sent"), "{found}");
    assert!(found.contains("CREATE INDEX CONCURRENTLY ON \"app\".\"OutboxMessages\" (\"NextAttemptAt\", \"CreatedAt\") WHERE \"State\" IN ('New')"), "{found}");
    let dry = run(&["run", "--dry-run", "--json", "--config", &written]).ok().json();
    assert_eq!((dry.as_array().map(Vec::len), &dry[0]["destination"]), (Some(1), &"c".into()), "{dry}");
    assert_eq!(
        service.ask::<i64>(r#"select count(*) from app."OutboxMessages" where "State" = 'New'"#).await,
        1,
        "nothing was changed"
    );
    let daemon = Daemon::start(&["--config", &written]);
    daemon.events(1);
    service.until(r#"(select count(*) = 2 from app."OutboxMessages" where "State" = 'Sent')"#).await;
    daemon.stop();
    std::fs::remove_file(&file).expect("it was written");
}

/// A flag beside a time: whoever polls by the flag must not take the rows again.
#[tokio::test(flavor = "multi_thread")]
async fn a_boolean_flag_of_done_rows_is_set() {
    let ddl = "create table outbox (id bigint primary key generated always as identity, topic text not null, payload jsonb not null,
        sent boolean not null default false, sent_at timestamptz);
      create table outbox_dead_letters (id bigint primary key, topic text, payload jsonb, sent boolean, sent_at timestamptz, error text, dead_at timestamptz default now());
      insert into outbox (topic, payload, sent, sent_at) values ('old', '1', true, now());
      insert into outbox (topic, payload) values ('a', '2'), ('b', '3')";
    let Some(service) = Service::new(ddl).await else { return };
    let url = service.database.url();
    let nobody = run(&["adopt", "inspect", "--url", &url, "--table", "nosuch"]);
    assert!(nobody.code == 1 && nobody.out.contains("there is no table nosuch"), "{}", nobody.out);
    let file = std::env::temp_dir().join(format!("posthaste-adopt-{}.toml", uuid::Uuid::now_v7().simple()));
    let written = file.display().to_string();
    let found = run(&["adopt", "inspect", "--url", &url, "--table", "outbox", "--write", &written]).ok().out;
    assert!(found.contains("`sent` is set to true when a row is done"), "{found}");
    assert!(found.contains("few rows, or never analysed"), "{found}");
    let daemon = Daemon::start(&["--config", &written]);
    daemon.events(2);
    service.until("(select bool_and(sent) and count(sent_at) = 3 from outbox)").await;
    let status = run(&["status", "--config", &written]).ok().out;
    assert!(
        status.contains("adopted table public.outbox") || status.contains("adopted table outbox"),
        "{status}"
    );
    assert!(!status.contains("no relay is running") && !status.contains("lanes"), "{status}");
    daemon.stop();
    std::fs::remove_file(&file).expect("it was written");
}

/// kill -9 in the middle, in both styles: nothing lost, nothing stuck, and what was published twice is a
/// batch at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_loses_nothing_and_leaves_nothing_stuck() {
    let cases = [
        (
            TALKIE,
            "preset = \"talkie\"\nlease_ms = 1000",
            "outbox (topic, payload_json, idempotency_key) select 't', jsonb_build_object('n', g), g::text",
            "outbox where status = 'published'",
        ),
        (
            PLAN,
            "preset = \"outbox-events\"",
            "outbox_events (aggregate_type, aggregate_id, event_type, payload) select 'o', gen_random_uuid(), 't', jsonb_build_object('n', g)",
            "outbox_events where status = 'PUBLISHED'",
        ),
    ];
    for (ddl, adopt, insert, done) in cases {
        let Some(service) = Service::new(ddl).await else { return };
        let file = service.config(adopt, "");
        // Leases as short as they may be: a stuck row comes back after the longer of the two.
        let short = Scratch::new(&format!(
            "{}\n[relay]\nlease_ttl_ms = 2000\nheartbeat_ms = 200\npublish_timeout_ms = 1000\n",
            std::fs::read_to_string(file.path()).expect("it is there")
        ));
        service
            .client
            .batch_execute(&format!("insert into {insert} from generate_series(1, 2000) g"))
            .await
            .expect("INSERT");
        let mut seen = std::collections::HashMap::<String, usize>::new();
        for round in 0..3 {
            let daemon = Daemon::start(&["--config", short.path()]);
            let events = daemon.events(100 * (round + 1));
            daemon.signal(Signal::KILL);
            for event in events {
                *seen.entry(event["id"].as_str().expect("an id").to_owned()).or_default() += 1;
            }
        }
        let daemon = Daemon::start(&["--config", short.path()]);
        service.until(&format!("(select count(*) = 2000 from {done})")).await;
        daemon.stop();
        assert!(seen.values().all(|times| *times <= 3));
    }
}

/// The owners' dead rows by our commands: listed, shown, replayed the way they would do it, discarded; and
/// `status`, `doctor` and the commands that mean our own log.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_are_listed_replayed_and_discarded() {
    let Some(service) = Service::new(PLAN).await else { return };
    let file = service.config(
        "preset = \"outbox-events\"",
        "require_key = true\nretry = { max_attempts = 1 }\nvalidate = \"json\"\n",
    );
    let insert = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values ('o', gen_random_uuid(), 'bad', '[1]'), ('o', gen_random_uuid(), 'worse', '[2]'), ('o', gen_random_uuid(), 'good', '{}')";
    service.client.batch_execute(insert).await.expect("INSERT");
    let daemon = Daemon::start(&["--config", file.path()]);
    service
        .until("(select count(*) = 2 from outbox_events where status = 'FAILED' and retry_count = 1)")
        .await;
    daemon.page("/metrics", |_, body| {
        body.lines().any(|line| line.starts_with("outbox_dead_letters{") && line.ends_with(" 2"))
    });
    daemon.stop();
    let cli = |args: &[&str]| run(&[args, &["--config", file.path()]].concat()).ok();
    let listed = cli(&["dead", "list", "--json"]).json();
    assert_eq!(listed["dead"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(listed["dead"][0]["error_code"], "payload.not_object", "{listed}");
    let id = listed["dead"]
        .as_array()
        .and_then(|dead| dead.iter().find(|one| one["topic"] == "o.bad"))
        .expect("it is dead")["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    // Pages go by when a row died, from both ends. Causes are made out at reading: the answer says of what.
    let first = cli(&["dead", "list", "--limit", "1", "--json"]).json();
    let next = first["next"].as_str().expect("a place");
    let second = cli(&["dead", "list", "--limit", "1", "--after", next, "--json"]).json();
    assert_eq!(
        (&first["dead"][0]["id"], &second["dead"][0]["id"]),
        (&listed["dead"][0]["id"], &listed["dead"][1]["id"])
    );
    let newest = cli(&["dead", "list", "--newest", "--json"]).json();
    assert_eq!(newest["dead"][0]["id"], listed["dead"][1]["id"]);
    let causes = cli(&["dead", "causes", "--json"]).json();
    assert_eq!((&causes["causes"][0]["count"], &causes["looked"]), (&2.into(), &2.into()), "{causes}");
    let told = cli(&["dead", "causes"]).out;
    assert!(told.ends_with("of 2 dead rows, the newest; no more than 10,000 are looked at\n"), "{told}");
    let number = causes["causes"][0]["fingerprint"].as_str().expect("a number");
    for act in [
        &["list"][..],
        &["causes"],
        &["replay", "--yes", "--reason", "x"],
        &["discard", "--yes", "--reason", "x"],
    ] {
        let refused = run(&[&["dead"], act, &["--fingerprint", number, "--config", file.path()]].concat());
        assert!(refused.code == 2 && refused.err.contains("made out at reading"), "{act:?}: {}", refused.err);
    }
    assert_eq!(service.ask::<i64>("select count(*) from outbox_events where status = 'FAILED'").await, 2);
    assert_eq!(cli(&["dead", "show", &id, "--raw"]).out, "[1]");
    // G6: nothing leaves the dead without a line in an audit, and the table for it is the owners' to make.
    let replay = ["dead", "replay", "--id", &id, "--reason", "mended", "--actor", "ana", "--yes"];
    let refused = run(&[&replay[..], &["--config", file.path()]].concat());
    assert!(refused.code != 0 && refused.err.contains("CREATE TABLE \"posthaste_audit\""), "{}", refused.err);
    let printed = cli(&["adopt", "sql", "--json"]).json();
    service
        .client
        .batch_execute(printed["missing"][0].as_str().expect("DDL"))
        .await
        .expect("the printed DDL runs");
    cli(&replay);
    let back = "select status = 'PENDING' and retry_count = 0 and next_attempt_at <= now() from outbox_events where event_type = 'bad'";
    assert!(service.ask::<bool>(back).await);
    cli(&["dead", "discard", "--topic", "o.worse", "--reason", "not needed", "--yes"]);
    assert_eq!(service.ask::<i64>("select count(*) from outbox_events").await, 2);
    let acts = "select string_agg(actor || ' ' || action || ' ' || reason, ', ' order by id) from posthaste_audit where actor = 'ana' or action = 'discard'";
    assert!(service.ask::<String>(acts).await.starts_with("ana replay mended, "), "audited");
    assert_eq!(service.ask::<i64>("select count(*) from posthaste_audit").await, 2);
    let sql = cli(&["adopt", "sql"]).out;
    for part in [
        "posthaste dead replay",
        "posthaste dead discard",
        "insert into \"posthaste_audit\"",
        "keep_published_days",
    ] {
        assert!(sql.contains(part), "{part}: {sql}");
    }
    let status = cli(&["status", "--json"]).json();
    assert_eq!(status["outboxes"][0]["sinks"][0]["backlog"]["count"], 1, "{status}");
    let doctor = cli(&["doctor"]).out;
    assert!(doctor.contains("adopted_table"), "{doctor}");
    // Beside a log of ours it is left alone.
    let url = service.database.url();
    let both = Scratch::new(&format!(
        "[[outbox]]\nname = \"log\"\nurl = \"{url}\"\n[[outbox]]\nname = \"old\"\nurl = \"{url}\"\n[outbox.adopt]\n\
         preset = \"outbox-events\"\n[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"out\"]\n"
    ));
    let status = run(&["migrate", "status", "--config", both.path()]);
    assert!(status.code == 1 && status.out.contains("not set up yet"), "{}{}", status.out, status.err);
    assert!(status.err.contains("outbox old") && status.err.contains("an adopted table"), "{}", status.err);
    let refused = run(&["migrate", "up", "--config", file.path()]);
    assert!(refused.code == 1 && refused.err.contains("belongs to its owners"), "{}", refused.err);
    let refused = run(&["pause", "--sink", "out", "--reason", "x", "--config", file.path()]);
    assert!(refused.code != 0 && refused.err.contains("adopted table"), "{}", refused.err);
}

/// How much is claimed at once, and how often, is what an operator turns while it runs. Rows that one
/// settlement wrote share their `xmin`.
#[tokio::test(flavor = "multi_thread")]
async fn hangup_changes_the_pace_of_a_running_relay() {
    let Some(service) = Service::new(TALKIE).await else { return };
    let file = service.config("preset = \"talkie\"\nbatch = 1\npoll_min_ms = 50\npoll_max_ms = 50", "");
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, _| status == 200);
    let settlements = async |topic: &str| -> i64 {
        let rows = format!(
            "insert into outbox (topic, payload_json, idempotency_key) select '{topic}', '{{}}', n::text from generate_series(1, 12) n"
        );
        service.client.batch_execute(&rows).await.expect("INSERT");
        service
            .until(&format!(
                "(select bool_and(published_at is not null) from outbox where topic = '{topic}')"
            ))
            .await;
        service.ask(&format!("select count(distinct xmin::text) from outbox where topic = '{topic}'")).await
    };
    assert_eq!(settlements("one").await, 12, "one by one");
    let text = std::fs::read_to_string(&file.0).expect("it is there");
    let faster = text.replace("batch = 1", "batch = 50");
    let faster = faster
        .replace("poll_min_ms = 50", "poll_min_ms = 20")
        .replace("poll_max_ms = 50", "poll_max_ms = 90");
    std::fs::write(&file.0, faster).expect("it is ours");
    daemon.signal(Signal::HUP);
    daemon.says("SIGHUP: outbox.default.adopt.batch: 1 → 50");
    daemon.says("SIGHUP: outbox.default.adopt.poll_min_ms: 50 → 20");
    daemon.says("SIGHUP: outbox.default.adopt.poll_max_ms: 50 → 90");
    let settled = settlements("many").await;
    assert!(settled <= 2, "{settled} settlements: all at once, or with a claim in between");
    daemon.stop();
}

/// Looks of an adopted table are as far apart as its owner says, also above the two seconds of our own log. A
/// row that comes right after a look waits for the next one; on a busy machine one of several does.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_more_than_two_seconds_holds() {
    let Some(service) = Service::new(TALKIE).await else { return };
    let file = service.config("preset = \"talkie\"\npoll_min_ms = 6000\npoll_max_ms = 6000", "");
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, _| status == 200);
    let mut waited: Vec<f64> = Vec::new();
    while waited.last().is_none_or(|last| *last < 3.5) {
        assert!(waited.len() < 6, "nothing waited for longer than a look of two seconds: {waited:?}");
        let row = format!("insert into outbox (topic, payload_json) values ('t{}', '{{}}')", waited.len());
        service.client.batch_execute(&row).await.expect("INSERT");
        service.until("(select bool_and(published_at is not null) from outbox)").await;
        let newest = "select extract(epoch from published_at - created_at)::float8 from outbox order by created_at desc limit 1";
        waited.push(service.ask(newest).await);
    }
    daemon.stop();
}

/// The preset `outbox-events-adr` to a real JetStream, where a missing topic is to be waited for: published
/// with its id in the dedup slot; a subject without a stream waits and spends nothing; a subject that NATS
/// cannot have goes to the dead-letter table at once.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn the_adr_table_to_jetstream() {
    let Some(service) = Service::new(ADR).await else { return };
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let mut subscriber = Subscriber::connect(nats.addr());
    subscriber.stream("GOVERNANCE", "governance.>");
    let sink = format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"{}\"\n[[route]]\ntopic = \"*\"\nsink = \"nats\"\n",
        nats.url()
    );
    let adopt = "[outbox.adopt]\npreset = \"outbox-events-adr\"\nmissing_topic = \"wait\"\n";
    let file = Scratch::new(&format!("[outbox]\nurl = \"{}\"\n{adopt}{sink}", service.database.url()));
    let sql = run(&["adopt", "sql", "--json", "--config", file.path()]).ok().json();
    let ddl = sql["missing"][0].as_str().expect("the dead-letter table is missing").to_owned();
    service.client.batch_execute(&ddl).await.expect("the printed DDL runs");
    let insert = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values
        ('tenant', 't-1', 'governance.changed', '{\"n\": 1}'), ('tenant', 't-1', 'nobody.listens', '{}'), ('tenant', 't-1', 'bad.*.subject', '{}')";
    service.client.batch_execute(insert).await.expect("INSERT");
    let daemon = Daemon::start(&["--config", file.path()]);
    let arrived = subscriber.next();
    let id: String =
        service.ask("select id::text from outbox_events where event_type = 'governance.changed'").await;
    assert_eq!(
        (arrived.subject.as_str(), arrived.headers["Message-ID"].as_str()),
        ("governance.changed", id.as_str())
    );
    assert_eq!(
        (arrived.headers["aggregate_type"].as_str(), arrived.headers["key"].as_str()),
        ("tenant", "t-1")
    );
    assert_eq!(arrived.body, b"{\"n\": 1}");
    service.until("(select published_at is not null and retry_count = 0 from outbox_events where event_type = 'governance.changed')").await;
    service.until("(select count(*) = 1 from outbox_events_dlq where event_type = 'bad.*.subject' and error_class = 'permanent' and last_error like 'nats.bad_subject: %')").await;
    // F50, F36: a stream that is missing is the destination's affair.
    assert!(service.ask::<bool>("select retry_count = 0 and published_at is null from outbox_events where event_type = 'nobody.listens'").await);
    let mut late = Subscriber::connect(nats.addr());
    late.stream("NOBODY", "nobody.>");
    assert_eq!(late.next().subject, "nobody.listens");
    service.until("(select bool_and(published_at is not null and retry_count = 0) from outbox_events)").await;
    daemon.stop();
}
