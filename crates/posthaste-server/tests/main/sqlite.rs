//! An outbox in a SQLite file, through the binary: set up, append, relay, look, act.

use crate::binary::{Ended, Scratch, run};
use crate::daemon::Daemon;
use posthaste_sqlite::Synchronous;
use posthaste_sqlite::writer::{WriteError, Writer};
use std::path::PathBuf;

struct Shop(PathBuf);

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Shop {
    /// What was delivered and is not settled is delivered again when somebody moves the cursor.
    fn await_settled(&self) {
        let started = std::time::Instant::now();
        loop {
            let status = self.run(&["status", "--json"]).ok().json();
            if status["outboxes"][0]["sinks"][0]["backlog"]["count"] == 0 {
                return;
            }
            assert!(started.elapsed() < std::time::Duration::from_secs(60), "{status}");
        }
    }

    fn make() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-shop-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.0.join("shop.db").display())
    }

    fn run(&self, args: &[&str]) -> Ended {
        run(&[args, &["--url", &self.url()]].concat())
    }

    fn relay(&self) -> Daemon {
        Daemon::start(&["--url", &self.url(), "--sink", "stdout"])
    }

    fn execute(&self, sql: &'static str) {
        let writer = Writer::open(&self.0.join("shop.db"), Synchronous::Full).expect("the file opens");
        writer.run_blocking(move |tx| tx.execute_batch(sql).map_err(WriteError::from)).expect("a statement");
    }
}

#[test]
fn a_new_sink_behind_unread_events_says_so() {
    let shop = Shop::make();
    shop.run(&["migrate", "up"]).ok();
    shop.run(&["append", "a", "--payload", "1"]).ok();
    let relay = shop.relay();
    relay.events(1);
    assert!(!relay.stop().contains("no sink has read"), "the first sink reads all");
    for _ in 0..2 {
        shop.run(&["append", "b", "--payload", "2"]).ok();
    }
    let file = Scratch::new(&format!(
        "outbox.url = \"{}\"\nhttp.listen = \"127.0.0.1:0\"\n[sinks.other]\ntype = \"null\"\n\
         [[route]]\ntopics = [\"*\"]\nsinks = [\"other\"]\n",
        shop.url()
    ));
    let relay = Daemon::start(&["--config", file.path()]);
    let warning = relay.says("no sink has read");
    assert!(warning.contains("sink=other") && warning.contains("unread=2"), "{warning}");
    relay.stop();
}

/// What a newcomer does, in that order.
#[test]
fn set_up_append_relay_look_and_act() {
    let shop = Shop::make();
    let status = shop.run(&["migrate", "status"]);
    assert_eq!(status.code, 1, "{}{}", status.out, status.err);
    assert!(status.out.contains("not set up yet"), "{}", status.out);
    shop.run(&["migrate", "up"]).ok();
    shop.run(&["migrate", "status"]).ok();
    let id = shop.run(&["append", "orders.placed", "--key", "7", "--payload", "{\"total\":12}"]).ok().out;
    let once = ["append", "orders.placed", "--payload", "x", "--idempotency-key", "a"];
    assert_eq!(shop.run(&once).ok().out, shop.run(&once).ok().out, "the same id twice");
    let refused = shop.run(&["append", "or ders", "--payload", "x"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    // From any language, and one row that is no event.
    shop.execute(
        "create table orders (id integer primary key);
         insert into orders values (8);
         insert into posthaste_outbox (topic, key, payload) values ('orders.placed', '8', '{}');
         insert into posthaste_outbox (topic, headers) values ('orders.placed', 'no json');
         insert into posthaste_outbox (topic, payload) values ('orders.placed', 'last');",
    );
    let relay = shop.relay();
    let events = relay.events(4);
    assert_eq!(events[0]["id"], id.trim());
    assert_eq!(events[3]["payload"], "last");
    // Wakeups: an append of another process arrives although the relay has nothing to do.
    shop.run(&["append", "orders.placed", "--payload", "woken"]).ok();
    assert_eq!(relay.events(5)[4]["payload"], "woken");
    relay.stop();
    let status = shop.run(&["status", "--json"]).ok().json();
    let sink = &status["outboxes"][0]["sinks"][0];
    assert_eq!((&sink["backlog"]["count"], &sink["dead"]["count"]), (&0.into(), &1.into()), "{status}");
    let list = shop.run(&["dead", "list", "--json"]).ok().json();
    assert_eq!(list["dead"][0]["error_code"], "event.defect", "{list}");
    shop.run(&["dead", "discard", "--all", "--reason", "no event", "--yes"]).ok();
    assert_eq!(shop.run(&["dead", "list", "--json"]).ok().json()["dead"], serde_json::json!([]));
}

/// What nobody reads is told by `status` and by `doctor`, and an empty file is no reason to worry.
#[test]
fn a_log_that_no_relay_ever_read_is_told() {
    let shop = Shop::make();
    shop.run(&["migrate", "up"]).ok();
    let problems = || shop.run(&["status", "--json"]).ok().json()["outboxes"][0]["problems"].clone();
    assert_eq!(problems(), serde_json::json!([]));
    shop.run(&["doctor"]).ok();
    shop.run(&["append", "t", "--payload", "1"]).ok();
    let found = problems();
    assert_eq!((&found[0]["kind"], &found[0]["waiting"]), (&"no_relay".into(), &1.into()), "{found}");
    assert!(found[0]["since"].is_string() && found.as_array().map(Vec::len) == Some(1), "{found}");
    let relay = shop.relay();
    relay.events(1);
    shop.await_settled();
    relay.stop();
    assert_eq!(problems(), serde_json::json!([]), "it was read");
}

/// Pause, lanes, rewind: what is set is seen by a relay that starts afterwards and by one that runs.
#[test]
fn an_operator_acts_on_a_running_relay() {
    let shop = Shop::make();
    shop.run(&["migrate", "up"]).ok();
    let relay = shop.relay();
    shop.run(&["append", "t", "--key", "a", "--payload", "1"]).ok();
    relay.events(1);
    shop.await_settled();
    shop.run(&["lanes", "set", "3", "--reason", "test"]).ok();
    shop.run(&["append", "t", "--key", "b", "--payload", "2"]).ok();
    relay.events(2);
    shop.await_settled();
    shop.run(&["lanes", "rewind", "--sink", "stdout", "--to", "earliest", "--reason", "again"]).ok();
    let events = relay.events(4);
    assert_eq!(events.len(), 4, "both once more");
    let said = relay.says("rewound by ");
    assert!(said.contains("again"), "{said}");
    shop.run(&["pause", "--sink", "stdout", "--reason", "test"]).ok();
    let status = shop.run(&["status", "--json"]).ok().json();
    let sink = &status["outboxes"][0]["sinks"][0];
    assert_eq!(
        (&sink["paused"], sink["lanes"].as_array().map(Vec::len)),
        (&true.into(), Some(3)),
        "{status}"
    );
    relay.stop();
}
