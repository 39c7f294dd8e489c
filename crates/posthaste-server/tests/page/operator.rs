//! The path of an operator: the outage is named, a cause is replayed with a rate, watched, cancelled; what
//! cannot be mended is discarded, and the audit has all of it. With the mouse on a file, by keyboard alone on
//! PostgreSQL.

use crate::binary::run;
use crate::browser::Browser;
use crate::rig::Rig;
use crate::shown;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, TestDatabase};
use std::fmt::Write as _;

/// As many as the script expects.
const LETTERS: usize = 12;

/// Two sinks: one takes what is JSON, nobody listens at the other one's address.
fn sinks(port: u16) -> String {
    format!(
        "[sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n\
         [sinks.mail]\ntype = \"http\"\nurl = \"http://127.0.0.1:{port}/\"\nallow_private = true\nstart_at = \"earliest\"\n\
         [[route]]\ntopic = \"bad\"\nsink = \"out\"\nvalidate = \"json\"\n\
         [[route]]\ntopic = \"mail.*\"\nsink = \"mail\"\ndestination = \"mail\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "http"), ignore = "the outage is a webhook's: --features http")]
async fn an_operator_sees_and_mends_it() {
    let browser = require_service!(Browser::find());
    let database = require_service!(TestDatabase::create().await);
    let nobody = Port::claim().expect("a free port");
    let rig = Rig::with("", |dir| {
        let mut file = String::new();
        for (name, url) in [("a", format!("sqlite:{}", dir.join("a.db").display())), ("p", database.url())] {
            run(&["migrate", "up", "--url", &url]).ok();
            for n in 0..LETTERS {
                let key = format!("order-{n}");
                run(&["append", "bad", "--key", &key, "--payload", "no <b>JSON</b>", "--url", &url]).ok();
            }
            run(&["append", "mail.sent", "--key", "m", "--payload", "{}", "--url", &url]).ok();
            write!(file, "[[outbox]]\nname = {name:?}\nurl = {url:?}\n").expect("text");
            // Acts need a login of their own; a file has one for everything.
            if name == "p" {
                writeln!(file, "admin_url = {url:?}").expect("text");
            }
        }
        file + &sinks(nobody.number())
    });
    for outbox in ["a", "p"] {
        rig.eventually(&format!("/outboxes/{outbox}/dead"), |page| {
            page["dead"].as_array().is_some_and(|all| all.len() == LETTERS)
        });
    }
    let address = format!("http://{}/", rig.address);
    let said = browser.runs("operator.mjs", &[&address, &rig.admin, "a", "p"]);
    let commands = shown::commands(&said);
    assert_eq!(commands.len(), 2 * 7, "{commands:#?}");
    for command in commands {
        // What was begun is over: that may be refused, and is understood.
        let ended = shown::runs(&rig, &command, &[]);
        assert!(ended.code == 0 || ended.code == 1, "{command}\n{}{}", ended.out, ended.err);
    }
}
