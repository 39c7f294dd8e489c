//! What the page costs. It measures, so it is alone in `./test browser`, and no part of `./test`.

use crate::binary::run;
use crate::browser::{Browser, takes_its_time};
use crate::rig::Rig;
use posthaste_testkit::require_service;
use rusqlite::Connection;
use std::path::Path;

const EVENTS: i64 = 10_000_000;
const LETTERS: i64 = 100_000;
const CAUSES: i64 = 200;

/// A log that is long, and letters of many causes at its end.
fn fill(file: &Path) {
    let file = Connection::open(file).expect("the file");
    // Nobody needs it behind a crash of the machine.
    file.pragma_update(None, "synchronous", "off").expect("a setting");
    let now = "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)";
    let events = format!(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < {EVENTS})
         insert into posthaste_outbox (seq, id, topic, key, payload, appended_at)
         select i, printf('01900000-0000-7000-8000-%012d', i), 'orders.placed', 'order-' || i, '{{}}', {now} from n"
    );
    let letters = format!(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < {LETTERS})
         insert into posthaste_dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key, attempts,
             error_class, error_code, error, dead_at, fingerprint)
         select 'out', {EVENTS} - i, 0, printf('01900000-0000-7000-8000-%012d', {EVENTS} - i), 'orders.placed', 'order-' || i,
                '{{}}', {now}, 'all', 0, 3, 'permanent', 'code.' || (i % {CAUSES}), 'refused for reason ' || (i % {CAUSES}),
                {now} - i, 1 + i % {CAUSES} from n"
    );
    for sql in [events, letters] {
        file.execute(&sql, []).expect("rows");
    }
}

#[test]
fn a_page_is_quick_and_stays_small() {
    if !takes_its_time("speed") {
        return;
    }
    let browser = require_service!(Browser::alone());
    let rig = Rig::with("", |dir| {
        let url = |name: &str| format!("sqlite:{}", dir.join(format!("{name}.db")).display());
        for name in ["a", "many"] {
            run(&["migrate", "up", "--url", &url(name)]).ok();
        }
        for n in 0..5 {
            run(&["append", "good", "--key", &format!("k{n}"), "--payload", "{}", "--url", &url("a")]).ok();
        }
        fill(&dir.join("many.db"));
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {:?}\n[[outbox]]\nname = \"many\"\nurl = {:?}\n\
             [sinks.out]\ntype = \"null\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n",
            url("a"),
            url("many")
        )
    });
    for outbox in ["a", "many"] {
        rig.eventually(&format!("/outboxes/{outbox}"), |one| one["sinks"][0]["sink"] == "out");
    }
    let address = format!("http://{}/", rig.address);
    eprintln!("{}", browser.runs("speed.mjs", &[&address, &rig.admin]));
}
