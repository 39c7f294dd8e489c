//! A consumer through the real process: from an outbox over the local broker into SQL functions of
//! PostgreSQL.

use crate::binary::{Ended, Scratch, run};
use crate::daemon::Daemon;
use posthaste_postgres::{PostgresConfig, connect};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Long enough for a loaded machine; a test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// A service with a handler that notes what it was called with, and nothing that would stop it from being
/// called twice. Messages of the type `bad` are rejected.
const SERVICE: &str = "
create schema billing;
create table billing.effects (id text not null, key text not null, n integer not null,
  place bigint generated always as identity);
create function billing.on_order(m posthaste.message) returns void language plpgsql as $$
begin
  if m.type = 'bad' then
    raise exception 'no order' using errcode = 'PH001';
  end if;
  insert into billing.effects (id, key, n) values (m.id, convert_from(m.key, 'UTF8'), (posthaste.json(m) ->> 'n')::int);
  perform posthaste.append('invoices.made', jsonb_build_object('n', posthaste.json(m) -> 'n'));
end $$;";

struct Billing {
    database: TestDatabase,
    client: Client,
    dir: PathBuf,
    config: Scratch,
}

impl Billing {
    async fn new() -> Option<Self> {
        let database = require_service!(TestDatabase::create().await, None);
        let client = connect(&PostgresConfig::new(database.url())).await.expect("a connection");
        let dir = std::env::temp_dir().join(format!("posthaste-consume-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let config = Scratch::new(&format!(
            "[outbox]\nname = \"shop\"\nurl = \"{url}\"\n\
             [sinks.file]\ntype = \"local\"\npath = \"{dir}/broker.db\"\npartitions = 2\n\
             [[route]]\ntopics = [\"*\"]\nsinks = [\"file\"]\n\
             [consumers.billing]\nsource = \"file\"\ntopics = [\"orders.placed\"]\nunmatched = \"skip\"\n\
             dead_letters = {{ topic = \"billing.dead\" }}\nbatch_max = 8\n\
             [[consumers.billing.handle]]\ntypes = [\"order\", \"bad\"]\nsql = \"billing.on_order\"\n",
            url = database.url(),
            dir = dir.display(),
        ));
        Some(Self { database, client, dir, config })
    }

    /// The same with a schema and handlers.
    async fn set_up() -> Option<Self> {
        let billing = Self::new().await?;
        billing.cli(&["migrate", "up"]).ok();
        billing.client.batch_execute(SERVICE).await.expect("the service's tables");
        Some(billing)
    }

    fn cli(&self, args: &[&str]) -> Ended {
        run(&[args, &["--config", self.config.path()]].concat())
    }

    fn start(&self) -> Daemon {
        Daemon::start(&["--config", self.config.path()])
    }

    /// Appends so many orders of four keys, numbered from here on.
    async fn append(&self, from: i32, count: i32) {
        let sql = "select count(posthaste.append('orders.placed', jsonb_build_object('n', n), 'k' || n % 4, \
                   headers => '{\"type\": \"order\"}')) from generate_series($1::int, $1::int + $2::int - 1) n";
        self.client.query_one(sql, &[&from, &count]).await.expect("append");
    }

    /// What people see of a dead letter.
    fn look_at_letter(&self, id: &str) {
        let list = self.cli(&["dead", "list", "--consumer", "billing", "--json"]).ok().json();
        let letter = &list["dead"][0];
        assert_eq!((&letter["id"], &letter["disposition"]), (&id.into(), &"rejected".into()), "{list}");
        let by_letter =
            self.cli(&["dead", "show", "--consumer", "billing", letter["letter"].as_str().expect("an id")]);
        let by_message = self.cli(&["dead", "show", "--consumer", "billing", id]);
        assert!(by_letter.out == by_message.out && by_letter.out.contains("no order"), "{}", by_letter.out);
        let raw = self.cli(&["dead", "show", "--consumer", "billing", id, "--raw"]).ok().out;
        assert_eq!(raw, "{}");
        let causes = self.cli(&["dead", "causes", "--consumer", "billing", "--json"]).ok().json();
        assert_eq!(causes["causes"][0]["count"], 1, "{causes}");
        let others = self.cli(&["dead", "list"]).ok().out;
        assert!(others.contains("and 1 of consumers: --consumer NAME, of billing"), "{others}");
        let others = self.cli(&["dead", "causes"]).ok().out;
        assert!(others.contains("no dead letters\nand 1 of consumers"), "{others}");
        assert_eq!(self.cli(&["dead", "show", "--consumer", "billing", "nobody"]).code, 1);
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("a count").get(0)
    }

    async fn wait(&self, daemon: &Daemon, sql: &str, wanted: i64) {
        let end = Instant::now() + DEADLINE;
        loop {
            let count = self.count(sql).await;
            if count >= wanted {
                return;
            }
            assert!(Instant::now() < end, "{sql}: {count}, not {wanted}\n{}", daemon.said());
            tokio::time::sleep(Duration::from_millis(10)).await; // pace: a table cannot call when it changes
        }
    }
}

impl Drop for Billing {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

const EFFECTS: &str = "select count(*) from billing.effects";

/// G5, and G3 for each key: whenever the process dies, each order has one effect and one invoice, in order.
#[tokio::test(flavor = "multi_thread")]
async fn g5_effects_happen_once_whenever_the_process_dies() {
    let Some(billing) = Billing::set_up().await else { return };
    billing.append(1, 300).await;
    for stop_at in [1, 60, 150] {
        let daemon = billing.start();
        billing.wait(&daemon, EFFECTS, stop_at).await;
        daemon.signal(Signal::KILL);
        daemon.ends();
    }
    let daemon = billing.start();
    billing.append(301, 100).await;
    billing.wait(&daemon, "select count(distinct id) from billing.effects", 400).await;
    let ready = daemon.page("/readyz", |status, body| status == 200 && body.contains("\"why\":\"idle\""));
    assert!(ready.contains("\"consumer\":\"billing\""), "{ready}");
    let said = daemon.stop();
    assert!(said.contains("consuming billing ← orders.placed") && said.contains("drained"), "{said}");
    assert_eq!(billing.count(EFFECTS).await, 400, "once each");
    let invoices = "select count(*) from posthaste.outbox where topic = 'invoices.made'";
    assert_eq!(billing.count(invoices).await, 400, "once each");
    let disorder = "select count(*) from (select n < lag(n) over (partition by key order by place) as back \
                    from billing.effects) e where back";
    assert_eq!(billing.count(disorder).await, 0, "each key in order");
    let owned = "select count(*) from posthaste.inbox_partitions where not clean or owner is not null";
    assert_eq!(billing.count(owned).await, 0, "a drained shutdown gives its partitions back");
    let status = billing.cli(&["consumers", "status", "--json"]).ok().json();
    let consumer = &status["consumers"][0];
    assert_eq!((&consumer["consumer"], &consumer["outbox"]), (&"billing".into(), &"shop".into()));
    let partitions = consumer["partitions"].as_array().expect("partitions");
    let decided: i64 = partitions.iter().filter_map(|partition| partition["position"].as_i64()).sum();
    assert_eq!(decided, 400, "{status}");
    assert!(
        partitions.iter().all(|partition| partition["lag"] == 0 && partition["stopped"].is_null()),
        "{status}"
    );
    let shown = billing.cli(&["consumers"]).ok().out;
    assert!(shown.contains("consumer billing  outbox shop  deferred 0  dead 0"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_dead_and_told_and_others_go_on() {
    let Some(billing) = Billing::set_up().await else { return };
    let bad =
        billing.cli(&["append", "orders.placed", "--key", "k1", "--payload", "{}", "--type", "bad"]).ok();
    billing.cli(&["append", "orders.placed", "--key", "k2", "--payload", "{}", "--type", "other"]).ok();
    billing.append(1, 8).await;
    let daemon = billing.start();
    billing.wait(&daemon, EFFECTS, 8).await;
    billing.wait(&daemon, "select count(*) from posthaste.inbox_dead_letters", 1).await;
    let told = "select count(*) from posthaste.outbox where topic = 'billing.dead'";
    assert_eq!(billing.count(told).await, 1);
    // The letter's event goes to the broker like any other.
    let end = Instant::now() + DEADLINE;
    let line = loop {
        let read = billing.cli(&["local", "read", "billing.dead"]);
        if read.out.contains("dead-code") {
            break read.out;
        }
        assert!(Instant::now() < end, "{}\n{}", read.err, daemon.said());
        tokio::time::sleep(Duration::from_millis(20)).await; // pace: nobody can signal us
    };
    assert!(line.contains(bad.out.trim()) && line.contains("no order"), "{line}");
    billing.look_at_letter(bad.out.trim());
    // Mended, it is handled in its place, and nothing is left.
    let mended = SERVICE[SERVICE.find("create function").expect("it")..]
        .replace("create function", "create or replace function")
        .replace("m.type = 'bad'", "false")
        .replace("(posthaste.json(m) ->> 'n')::int", "coalesce((posthaste.json(m) ->> 'n')::int, 0)");
    billing.client.batch_execute(&mended).await.expect("a mended handler");
    let dead = ["dead", "replay", "--consumer", "billing", "--all", "--reason", "mended"];
    assert_eq!(billing.cli(&[&dead[..], &["--dry-run", "--json"]].concat()).ok().json()["matched"], 1);
    assert_eq!(billing.cli(&[&dead[..], &["--json"]].concat()).ok().json()["done"], 1);
    billing.wait(&daemon, EFFECTS, 9).await;
    let trace = billing.cli(&["trace", bad.out.trim(), "--json"]).ok().json();
    let marks = &trace["outboxes"][0];
    assert_eq!((&marks["consumers"][0]["outcome"], &marks["event"]["in_log"]), (&"d".into(), &true.into()));
    assert_eq!(billing.cli(&["trace", "nobody"]).code, 1);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_consumer_begins_nothing_and_the_relay_goes_on() {
    let Some(billing) = Billing::set_up().await else { return };
    billing.append(1, 4).await;
    let daemon = billing.start();
    billing.wait(&daemon, EFFECTS, 4).await;
    billing.cli(&["pause", "--consumer", "billing", "--reason", "a test"]).ok();
    daemon.page("/readyz", |_, body| body.contains("paused by an operator"));
    billing.append(5, 16).await;
    let end = Instant::now() + DEADLINE;
    while !billing.cli(&["local", "read", "orders.placed"]).out.contains(r#"\"n\": 20}"#) {
        assert!(Instant::now() < end, "{}", daemon.said());
        tokio::time::sleep(Duration::from_millis(20)).await; // pace: nobody can signal us
    }
    assert_eq!(billing.count(EFFECTS).await, 4, "the messages are at the broker, and none was begun");
    billing.cli(&["resume", "--consumer", "billing"]).ok();
    billing.wait(&daemon, EFFECTS, 20).await;
    let misspelt = billing.cli(&["pause", "--consumer", "biling", "--reason", "x"]);
    assert!(misspelt.code == 2 && misspelt.err.contains("configured are: billing"), "{}", misspelt.err);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_our_tables_is_told_before_anything_is_taken() {
    let Some(billing) = Billing::new().await else { return };
    let daemon = billing.start();
    let (code, said) = daemon.ends();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("consumer `billing`") && said.contains("posthaste migrate up"), "{said}");
}

/// An operator moves a partition: what was never done is done, what has its mark is not done again.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_moves_a_partition_and_marks_still_protect() {
    let Some(billing) = Billing::set_up().await else { return };
    billing.append(1, 40).await;
    let daemon = billing.start();
    billing.wait(&daemon, EFFECTS, 40).await;
    daemon.stop();
    let seek = |partition, to| {
        let place = ["--topic", "orders.placed", "--partition", partition, "--to", to, "--reason", "a test"];
        billing.cli(&[&["consumers", "seek", "billing", "--json"], &place[..]].concat())
    };
    for partition in ["0", "1"] {
        assert_eq!(seek(partition, "earliest").ok().json()["position"], 0);
    }
    assert_eq!((seek("7", "position:0").code, seek("0", "position:-1").code), (2, 2));
    // Nobody remembers these.
    billing.client.batch_execute("delete from posthaste.inbox where position < 5").await.expect("marks");
    let forgotten = 40 - billing.count("select count(*) from posthaste.inbox").await;
    let daemon = billing.start();
    billing.wait(&daemon, EFFECTS, 40 + forgotten).await;
    daemon.page("/readyz", |status, body| {
        status == 200 && body.contains("\"consumer\":\"billing\",\"ready\":true")
    });
    daemon.stop();
    assert!(forgotten > 0 && billing.count(EFFECTS).await == 40 + forgotten);
    let audited = "select count(*) from posthaste.audit where action = 'seek'";
    assert_eq!(billing.count(audited).await, 2);
    let status = billing.cli(&["consumers", "status", "billing", "--json"]).ok().json();
    assert_eq!(status["consumers"][0]["partitions"][0]["seeks"], 1, "{status}");
}

/// docs/consume.md, as it is written: its file, its function and its first commands.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_works_as_written() {
    let page = include_str!("../../../../docs/consume.md");
    let block = |language: &str| {
        let from = page.find(&format!("```{language}\n")).expect("a block") + language.len() + 4;
        &page[from..from + page[from..].find("```").expect("its end")]
    };
    let Some(mut billing) = Billing::new().await else { return };
    let file = block("toml").replace("postgres://localhost/shop", &billing.database.url());
    billing.config =
        Scratch::new(&file.replace("broker.db", &format!("{}/broker.db", billing.dir.display())));
    billing.cli(&["migrate", "up"]).ok();
    billing.client.batch_execute(block("sql")).await.expect("the page's SQL");
    let appends = block("sh").lines().filter_map(|line| line.strip_prefix("posthaste append "));
    for line in appends {
        let (words, payload) = line.split_once(" --payload ").expect("a payload");
        let words: Vec<&str> = words.split(' ').chain(["--payload", payload.trim_matches('\'')]).collect();
        billing.cli(&[&["append"], &words[..]].concat()).ok();
    }
    let daemon = billing.start();
    billing.wait(&daemon, "select count(*) from billing.invoices where order_id = 7", 1).await;
    billing.wait(&daemon, "select count(*) from posthaste.inbox_dead_letters", 1).await;
    let follows = "select count(*) from posthaste.outbox made join posthaste.outbox placed
                     on made.headers ->> 'causation-id' = placed.id::text where made.topic = 'invoices.made'";
    billing.wait(&daemon, follows, 1).await;
    let others =
        block("sh").lines().filter_map(|line| line.split('#').next()?.trim().strip_prefix("posthaste "));
    for line in others.filter(|line| line.starts_with("consumers") || line.starts_with("dead")) {
        let said = billing.cli(&line.split(' ').collect::<Vec<_>>()).ok().out;
        assert!(said.contains("orders.placed") || said.contains("a negative total"), "{line}: {said}");
    }
    daemon.stop();
}
