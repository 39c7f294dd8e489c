//! Consumers from outside: what waits, jobs on it, and who may.

use crate::acts::over;
use crate::binary::{posthaste, run};
use crate::cursors::{CONSUMERS, each_is_its_own};
use crate::daemon::Daemon;
use crate::rig::{Answered, Rig, answered_by, directory, token, write};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Two letters and two deferred messages of each of two consumers, and a process that serves the API.
struct Setting {
    _database: TestDatabase,
    dir: PathBuf,
    _daemon: Daemon,
    address: String,
    tokens: Vec<String>,
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) const ROWS: &str = "
insert into posthaste.inbox (consumer, message_id, topic, partition, outcome)
  select c, o || n, 'orders', 0, o::\"char\"
    from unnest(array['billing', 'mail']) c, unnest(array['x', 'w']) o, generate_series(1, 2) n;
insert into posthaste.inbox_partitions (consumer, topic, partition) values ('billing', 'orders', 0), ('mail', 'orders', 0);
insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, order_id, headers, holds_key,
    attempts, disposition, error_class, error_code, error, fingerprint)
  select ('01990000-0000-7000-800' || whose || '-00000000000' || n)::uuid, c, 'x' || n, 'orders', 0,
         md5(n::text)::uuid, '[]', false, 1, 'exhausted', 'permanent', 'e', 'the card 4711 is not known', 1
    from unnest(array['billing', 'mail']) with ordinality as consumers (c, whose), generate_series(1, 2) n;
insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, key, order_id, headers, reason, holds,
    due_at, error_code, last_error)
  select c, 'w' || n, 'orders', 0, 'k'::bytea, md5('w' || n)::uuid, '[]', 'retry', true, now() + interval '1 hour',
         'smtp.full', 'the mailbox of bo is full'
    from unnest(array['billing', 'mail']) c, generate_series(1, 2) n;";

impl Setting {
    async fn new(database: TestDatabase) -> Self {
        let dir = directory();
        let url = database.url();
        run(&["migrate", "up", "--url", &url]).ok();
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connects");
        tokio::spawn(connection);
        client.batch_execute(ROWS).await.expect("rows");
        let made = [
            token(&["--name", "root", "--role", "admin"]),
            token(&["--name", "bill", "--role", "admin", "--for", "orders", "--consumer", "billing"]),
            token(&["--name", "none", "--role", "admin", "--for", "orders", "--consumer", "nobody"]),
            token(&["--name", "rita", "--role", "read"]),
            token(&["--name", "ella", "--role", "admin", "--for", "elsewhere"]),
        ];
        write(&dir.join("tokens.toml"), &made.each_ref().map(|(_, entry)| entry.as_str()).join("\n"));
        let file = dir.join("posthaste.toml");
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\ntokens_file = {:?}\n\
             [[outbox]]\nname = \"orders\"\nurl = {url:?}\nadmin_url = {url:?}\n\
             [sinks.out]\ntype = \"null\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n",
            dir.join("tokens.toml"),
        );
        write(&file, &text);
        let daemon = Daemon::spawn(posthaste(&["ui", "--config", file.to_str().expect("UTF-8")]));
        let line = daemon.says("API http://");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.expect("an address").to_owned();
        let tokens = made.into_iter().map(|(token, _)| token).collect();
        Self { _database: database, dir, _daemon: daemon, address, tokens }
    }

    fn ask(&self, who: usize, method: &str, path: &str, body: &Value) -> Answered {
        answered_by(&self.address, method, path, &self.tokens[who], &body.to_string())
    }

    fn get(&self, who: usize, path: &str) -> Answered {
        self.ask(who, "GET", path, &json!({}))
    }

    fn ended(&self, job: &Value) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let page = self.get(ROOT, &format!("/outboxes/orders/jobs/{}", job["job"])).ok();
            if over(&page) {
                return page;
            }
            assert!(Instant::now() < end, "{page}");
            std::thread::sleep(Duration::from_millis(50)); // pace: a page cannot call when it changes
        }
    }
}

const ROOT: usize = 0;
const BILL: usize = 1;
const NONE: usize = 2;
const RITA: usize = 3;
const ELLA: usize = 4;
const JOBS: &str = "/outboxes/orders/jobs";

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_consumer_is_listed_and_acted_on_by_those_it_is_for() {
    let setting = Setting::new(require_service!(TestDatabase::create().await)).await;
    let list = "/consumers/billing/deferred";
    let first = setting.get(BILL, &format!("{list}?limit=1")).ok();
    let next = first["next"].as_str().expect("there is more");
    let second = setting.get(BILL, &format!("{list}?limit=1&cursor={next}")).ok();
    assert_eq!((&first["deferred"][0]["id"], &second["deferred"][0]["id"]), (&"w1".into(), &"w2".into()));
    assert_eq!(setting.get(BILL, &format!("/consumers/billing/dead?cursor={next}")).code(), "api.bad_cursor");
    let seen = setting.get(BILL, "/consumers/billing").ok();
    let told = seen["problems"].as_array().into_iter().flatten();
    let told: Vec<_> = told.map(|one| (one["kind"].as_str(), one["waiting"].as_i64())).collect();
    assert_eq!(told, [(Some("no_process"), Some(2)), (Some("dead_letters"), Some(2))], "{seen}");
    assert!(seen["partitions"][0]["behind_seconds"].is_null() && seen["set_by"].is_null(), "{seen}");
    let causes = setting.get(BILL, &format!("{list}/causes")).ok();
    assert_eq!(
        (&causes["causes"][0]["count"], &causes["causes"][0]["error_code"]),
        (&2.into(), &"smtp.full".into())
    );
    assert_eq!(setting.get(BILL, &format!("{list}?sink=out")).code(), "api.bad_query");
    assert_eq!(setting.get(BILL, &format!("{list}/causes?code=nothing")).ok()["causes"], json!([]));
    // What quotes a message is hidden from those who may not see it.
    let hidden = setting.get(RITA, list).ok().to_string()
        + &setting.get(RITA, &format!("{list}/causes")).ok().to_string();
    assert!(!hidden.contains("mailbox") && hidden.contains("smtp.full"), "{hidden}");
    assert_eq!(setting.get(RITA, &format!("{list}?key=k")).status, 403);
    // Nobody sees or touches what belongs to another consumer.
    for path in ["", "/dead", "/dead/causes", "/dead/x1", "/deferred", "/deferred/causes"] {
        assert_eq!(setting.get(BILL, &format!("/consumers/mail{path}")).status, 403, "{path}");
        assert_eq!(setting.get(NONE, &format!("/consumers/billing{path}")).status, 403, "{path}");
    }
    let plan = |kind: &str, consumer: &str| json!({ "kind": kind, "consumer": consumer, "filter": { "all": true }, "reason": "mended" });
    for kind in ["consumer.replay", "consumer.discard", "consumer.deferred_retry"] {
        for (who, consumer) in [(BILL, "mail"), (NONE, "billing"), (NONE, "mail")] {
            for dry_run in [true, false] {
                let mut body = plan(kind, consumer);
                body["dry_run"] = dry_run.into();
                assert_eq!(setting.ask(who, "POST", JOBS, &body).status, 403, "{kind} {consumer}");
            }
        }
    }
    let retry = setting.ask(BILL, "POST", JOBS, &plan("consumer.deferred_retry", "billing")).ok();
    assert_eq!((&setting.ended(&retry)["done"], &retry["consumer"]), (&2.into(), &"billing".into()));
    let theirs = setting.ask(ROOT, "POST", JOBS, &plan("consumer.replay", "mail")).ok();
    assert_eq!(setting.ended(&theirs)["done"], 2);
    let gone = setting.ask(BILL, "POST", JOBS, &plan("consumer.discard", "billing")).ok();
    assert_eq!(setting.ended(&gone)["done"], 2);
    assert_eq!(setting.get(ROOT, "/consumers/billing/dead").ok()["dead"], json!([]));
    assert_eq!(
        setting.get(ROOT, "/consumers/mail/deferred").ok()["deferred"].as_array().map(Vec::len),
        Some(4)
    );
    // Jobs and lines of the audit are seen by those they are for.
    let seen = |who| {
        let jobs = setting.get(who, JOBS).ok()["jobs"].as_array().map_or(0, Vec::len);
        (jobs, setting.get(who, "/audit").ok()["audit"].to_string())
    };
    let (jobs, trail) = seen(ROOT);
    assert!(jobs == 3 && trail.contains("\"mail\"") && trail.contains("denied"), "{trail}");
    let (jobs, trail) = seen(BILL);
    assert!(jobs == 2 && !trail.contains("\"mail\"") && trail.contains("\"billing\""), "{trail}");
    let (jobs, trail) = seen(NONE);
    assert!(jobs == 0 && !trail.contains("\"mail\"") && !trail.contains("\"billing\""), "{trail}");
    let path = format!("{JOBS}/{}", theirs["job"]);
    assert_eq!(setting.get(BILL, &path).code(), "admin.unknown_job");
    for order in ["pause", "resume", "cancel"] {
        let answer = setting.ask(BILL, "POST", &format!("{path}/{order}"), &json!({ "reason": "x" }));
        assert_eq!(answer.code(), "admin.unknown_job", "{order}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_a_consumer_s_list_is_its_own() {
    let setting = Setting::new(require_service!(TestDatabase::create().await)).await;
    each_is_its_own(&CONSUMERS, |path| setting.get(ROOT, path));
    let first = setting.get(ROOT, "/consumers/billing/dead?limit=1").ok();
    let next = first["next"].as_str().expect("there is more");
    let second = setting.get(ROOT, &format!("/consumers/billing/dead?limit=1&cursor={next}")).ok();
    assert_eq!(
        (&first["dead"][0]["id"], &second["dead"][0]["id"]),
        (&"x2".into(), &"x1".into()),
        "newest first"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_a_consumer_does_not_know_makes_no_act_wider() {
    let setting = Setting::new(require_service!(TestDatabase::create().await)).await;
    for (kind, filter) in [
        ("consumer.discard", json!({ "sink": "nats" })),
        ("consumer.replay", json!({ "sink": "nats", "code": "e" })),
        ("consumer.deferred_retry", json!({ "sink": "nats" })),
        ("consumer.deferred_retry", json!({ "destination": "billing", "all": true })),
    ] {
        for dry_run in [true, false] {
            let body = json!({ "kind": kind, "consumer": "billing", "filter": filter, "reason": "x", "dry_run": dry_run });
            let refused = setting.ask(ROOT, "POST", JOBS, &body);
            assert_eq!((refused.status, refused.code().as_str()), (400, "admin.bad_filter"), "{body}");
        }
    }
    for path in ["/dead?sink=nats", "/dead/causes?sink=nats"] {
        assert_eq!(setting.get(ROOT, &format!("/consumers/billing{path}")).code(), "api.bad_query");
    }
    let letters = setting.get(ROOT, "/consumers/billing/dead").ok();
    assert_eq!(letters["dead"].as_array().map(Vec::len), Some(2));
    // What was shown waits for whoever goes by it.
    let mut body = json!({ "kind": "consumer.deferred_retry", "consumer": "billing", "filter": { "all": true }, "reason": "x" });
    body["dry_run"] = true.into();
    let seen = setting.ask(ROOT, "POST", JOBS, &body).ok();
    (body["dry_run"], body["upto"]) = (false.into(), seen["upto"].clone());
    let job = setting.ask(ROOT, "POST", JOBS, &body).ok();
    assert_eq!(setting.ended(&job)["done"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_shared_is_shared_with_those_who_may_ask() {
    let setting = Setting::new(require_service!(TestDatabase::create().await)).await;
    for path in ["/consumers/billing/dead/causes", "/consumers/billing/deferred/causes"] {
        setting.get(ROOT, path).ok();
        assert_eq!(
            setting.get(ELLA, path).status,
            404,
            "{path}: it is in an outbox that the token is not for"
        );
    }
}

/// A handler that notes what it was called with.
const BILLING: &str = "
create schema billing;
create table billing.effects (id text not null);
create function billing.on_order(m posthaste.message) returns void language sql as $$
  insert into billing.effects (id) values (m.id);
$$;";

/// What is said of each partition: whether it has an owner that works, and how far it is behind.
fn partitions(consumer: &Value) -> Vec<(bool, i64)> {
    let processes = consumer["processes"].as_array().cloned().unwrap_or_default();
    let works = |owner: &Value| owner.is_string() && processes.iter().any(|one| one["process"] == *owner);
    let all = consumer["partitions"].as_array().into_iter().flatten();
    all.map(|one| (works(&one["owner"]), one["lag"].as_i64().unwrap_or(-1))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_works_is_seen_and_paused_and_goes_on() {
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    let client = database.connect().await.expect("a connection");
    client.batch_execute(BILLING).await.expect("the service's tables");
    let rig = Rig::with("", |dir| {
        format!(
            "[[outbox]]\nname = \"shop\"\nurl = {url:?}\nadmin_url = {url:?}\n\
             [sinks.file]\ntype = \"local\"\npath = {:?}\npartitions = 2\nstart_at = \"earliest\"\n\
             [[route]]\ntopic = \"*\"\nsink = \"file\"\n\
             [consumers.billing]\noutbox = \"shop\"\nsource = \"file\"\ntopics = [\"orders\"]\n\
             start_from = \"earliest\"\n[[consumers.billing.handle]]\nsql = \"billing.on_order\"\n",
            dir.join("broker.db")
        )
    });
    let append = async |count: i32| {
        let sql =
            "select count(posthaste.append('orders', '{}'::jsonb, 'k' || n)) from generate_series(1, $1) n";
        client.query_one(sql, &[&count]).await.expect("appended");
    };
    let effects = async || {
        client.query_one("select count(*) from billing.effects", &[]).await.expect("a count").get::<_, i64>(0)
    };
    let page = "/consumers/billing";
    append(8).await;
    let seen = rig.eventually(page, |one| partitions(one) == [(true, 0); 2]);
    assert_eq!((effects().await, &seen["outbox"], &seen["paused"]), (8, &"shop".into(), &false.into()));
    let process = &seen["processes"][0];
    assert_eq!(process["version"], env!("CARGO_PKG_VERSION"), "{seen}");
    let report = &process["report"];
    assert!(
        report["ready"] == true && report["why"].is_string() && report["unavailable"] == json!([]),
        "{seen}"
    );
    // From the append to the commit, by both clocks of one machine.
    let late = |one: &Value, name: &str| one["processes"][0]["report"]["latency"][name].as_f64();
    let timed = rig.eventually(page, |one| late(one, "p99_ms").is_some());
    let (p50, p99) = (late(&timed, "p50_ms").expect("both"), late(&timed, "p99_ms").expect("both"));
    assert!(p50 > 0.0 && p50 <= p99 && p99 < 120_000.0, "{timed}");
    let listed = rig.get("/consumers", &rig.read).ok();
    assert_eq!(partitions(&listed["consumers"][0]), [(true, 0); 2], "{listed}");

    // Paused, it is behind and says so; what is seen does not ask the broker.
    let control =
        |token: &str, body: Value| rig.ask("PUT", &format!("{page}/control"), token, &body.to_string());
    let pause = json!({ "paused": true, "reason": "the ledger is closed" });
    assert_eq!(control(&rig.read, pause.clone()).status, 403);
    let done = control(&rig.operate, pause).ok();
    assert_eq!(
        (&done["done"], done["trace_id"].as_str().map(str::len)),
        (&"paused".into(), Some(32)),
        "{done}"
    );
    rig.eventually(page, |one| {
        one["paused"] == true && one["processes"][0]["report"]["why"] == "paused by an operator"
    });
    append(6).await;
    let behind = |one: &Value| partitions(one).iter().map(|(_, lag)| lag).sum::<i64>();
    let waits = rig.eventually(page, |one| behind(one) == 6);
    assert_eq!((partitions(&waits).len(), effects().await), (2, 8), "{waits}");
    let (problem, late) = (&waits["problems"][0], &waits["partitions"][0]["behind_seconds"]);
    let said = problem["sentence"].as_str().unwrap_or_default();
    assert!(
        said.contains(": \"the ledger is closed\"; 6 messages wait") && problem["kind"] == "paused",
        "{waits}"
    );
    assert!(waits["set_by"]["reason"] == "the ledger is closed" && late.is_number(), "{waits}");
    control(&rig.operate, json!({ "rate_per_s": 500.0, "reason": "slowly" })).ok();
    control(&rig.operate, json!({ "paused": false, "reason": "it is open" })).ok();
    let goes_on = rig.eventually(page, |one| partitions(one) == [(true, 0); 2]);
    assert_eq!(
        (&goes_on["paused"], &goes_on["rate_limit_per_s"]),
        (&false.into(), &500.0.into()),
        "{goes_on}"
    );
    assert_eq!(effects().await, 14);
    let trail = rig.get("/audit?outbox=shop", &rig.operate).ok();
    let pauses: Vec<&Value> =
        trail["audit"].as_array().into_iter().flatten().filter(|line| line["action"] == "pause").collect();
    assert_eq!(pauses.len(), 1, "{trail}");
    assert_eq!((&pauses[0]["actor"], &pauses[0]["reason"]), (&"ann".into(), &"the ledger is closed".into()));
    let nobody = rig.ask("PUT", "/consumers/nobody/control", &rig.operate, r#"{"paused":true,"reason":"x"}"#);
    assert_eq!((nobody.status, nobody.code().as_str()), (404, "api.unknown_consumer"));
}
