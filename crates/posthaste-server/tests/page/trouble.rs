//! What goes wrong around an open page: its stream is cut, its server is restarted, it stands behind a proxy
//! under a path, databases are away, slow or too old, a relay is newer than the page, and a table was
//! adopted.

use crate::binary::run;
use crate::browser::Browser;
use crate::daemon::Daemon;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, Proxy, TestDatabase};
use rusqlite::Connection;

#[test]
fn a_page_under_a_path_lives_through_a_cut_stream_and_a_restart() {
    let browser = require_service!(Browser::find());
    let mut rig = Rig::start("");
    let address = format!("http://{}/", rig.address);
    let mut script = browser.starts("lines.mjs", &[&address, &rig.admin]);
    script.asks("restart");
    let file = rig.dir.join("posthaste.toml");
    rig.daemon = Daemon::start(&["--config", file.to_str().expect("UTF-8")]);
    let line = rig.daemon.says("API http");
    let address = line.split("API ").nth(1).and_then(|rest| rest.split(';').next()).expect("an address");
    script.tell(address);
    script.ends();
}

const OUT: &str = "[sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n";

/// As a service had it before it knew us.
const TABLE: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), \
      aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null, \
      payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING', \
      retry_count int default 0, next_attempt_at timestamptz default now(), last_error text, processed_at timestamptz); \
    create index idx_outbox_poll on outbox_events (status, next_attempt_at)";

#[tokio::test(flavor = "multi_thread")]
async fn of_several_databases_each_says_what_it_lacks_and_the_one_that_is_well_works() {
    let browser = require_service!(Browser::find());
    let adopted = require_service!(TestDatabase::create().await);
    let (slow, old) = (
        TestDatabase::create().await.expect("a database"),
        TestDatabase::create().await.expect("a database"),
    );
    let client = adopted.connect().await.expect("a connection");
    client.batch_execute(TABLE).await.expect("the owners' DDL");
    for database in [&slow, &old] {
        run(&["migrate", "up", "--url", &database.url()]).ok();
    }
    let client = old.connect().await.expect("a connection");
    let forget =
        "delete from posthaste.migrations where version = (select max(version) from posthaste.migrations)";
    client.batch_execute(forget).await.expect("it is ours");
    // It takes connections and never answers.
    let (hole, slow) = Proxy::start_before(&slow.url()).await.expect("a proxy");
    hole.black_hole().await;
    let port = Port::claim().expect("a free port");
    let rig = Rig::with("", |dir| {
        let well = format!("sqlite:{}", dir.join("well.db").display());
        run(&["migrate", "up", "--url", &well]).ok();
        run(&["append", "good", "--payload", "{}", "--url", &well]).ok();
        let outbox = |name: &str, url: &str, is_relayed: bool| {
            format!("[[outbox]]\nname = {name:?}\nrelay = {is_relayed}\nurl = {url:?}\n")
        };
        [
            outbox("well", &well, true),
            outbox("away", &format!("postgres://u:hunter2@127.0.0.1:{}/d", port.number()), false),
            outbox("slow", &slow, false),
            outbox("old", &old.url(), false),
            outbox("adopted", &adopted.url(), true),
            format!("admin_url = {:?}\n[outbox.adopt]\npreset = \"outbox-events\"\n", adopted.url()),
            OUT.to_owned(),
        ]
        .concat()
    });
    rig.eventually("/outboxes/well", |one| one["reports"].as_array().is_some_and(|all| !all.is_empty()));
    // A relay of a version that is to come.
    let file = Connection::open(rig.dir.join("well.db")).expect("the file");
    file.busy_timeout(std::time::Duration::from_secs(30)).expect("it waits");
    let relay = "insert into posthaste_relays (relay, routes, joined_at, expires_at)
                 select 'new:9', routes, joined_at, expires_at + 3600000000 from posthaste_relays limit 1";
    let report = "insert into posthaste_processes (process, role, name, version, host, started_at, seen_at, report)
                  select relay, 'relay', relay, '9.0.0', 'far', joined_at, joined_at, '{\"shape\": 9, \"moods\": []}'
                    from posthaste_relays where relay = 'new:9'";
    for sql in [relay, report] {
        file.execute(sql, []).expect("it is ours");
    }
    let address = format!("http://{}/", rig.address);
    let mut script = browser.starts("databases.mjs", &[&address, &rig.admin]);
    script.asks("slow comes back");
    hole.pass().await;
    script.ends();
}
