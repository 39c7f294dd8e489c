//! What must not happen to whoever looks on: a selection that becomes everything, an event that freezes the
//! page, a stream whose ordinary end is an alarm, and the like. One walk through all of them, on a file.

use crate::binary::run;
use crate::browser::Browser;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use rusqlite::{Connection, params};
use std::path::Path;

/// More than a page of letters has.
const MORE: usize = 250;

const SINKS: &str = "[sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n\
     [sinks.two]\ntype = \"null\"\nstart_at = \"earliest\"\n\
     [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\nvalidate = \"json\"\n\
     [[route]]\nname = \"bad\"\ntopic = \"bad*\"\nsink = \"two\"\nvalidate = \"json\"\n";

/// Events whose payload is no JSON, in one transaction.
fn bury(file: &Path, many: usize) {
    let mut file = Connection::open(file).expect("the file");
    file.busy_timeout(std::time::Duration::from_secs(30)).expect("it waits");
    let append = file.transaction().expect("it can be written");
    for _ in 0..many {
        append
            .execute("insert into posthaste_outbox (topic, headers, payload) values ('bad', '{}', 'no')", [])
            .expect("an event");
    }
    append.commit().expect("it is written");
}

fn dead(rig: &Rig, many: u64) {
    rig.eventually("/outboxes/a/dead/causes", |page| {
        let causes = page["causes"].as_array().map_or(&[][..], |all| all);
        causes.iter().filter_map(|cause| cause["count"].as_u64()).sum::<u64>() == many
    });
}

#[test]
fn nothing_that_goes_wrong_is_silent_and_no_act_is_more_than_was_asked_for() {
    let browser = require_service!(Browser::find());
    let rig = Rig::with("", |dir| {
        let file = dir.join("a.db");
        let url = format!("sqlite:{}", file.display());
        run(&["migrate", "up", "--url", &url]).ok();
        bury(&file, 3);
        // As far away as a number can be.
        let far = "insert into posthaste_outbox (topic, headers, payload, deliver_at) values ('far', '{}', '{}', ?1)";
        Connection::open(&file).expect("the file").execute(far, params![i64::MAX - 1]).expect("an event");
        format!("[[outbox]]\nname = \"a\"\nurl = {url:?}\n{SINKS}")
    });
    let file = rig.dir.join("a.db");
    let url = format!("sqlite:{}", file.display());
    dead(&rig, 6);
    let body = r#"{"paused": true, "reason": "frozen"}"#;
    let address = format!("http://{}/", rig.address);
    let mut script = browser.starts("mishaps.mjs", &[&address, &rig.admin]);
    script.asks("bury");
    bury(&file, MORE);
    dead(&rig, 6 + 2 * MORE as u64);
    rig.ask("PUT", "/outboxes/a/routes/all/control", &rig.admin, body).ok();
    script.tell("done");
    for topic in ["tail.first", "tail.second"] {
        script.asks("append");
        run(&["append", topic, "--payload", "{}", "--url", &url]).ok();
        script.tell("done");
    }
    script.ends();
}
