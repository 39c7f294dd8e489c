//! `posthaste demo --ui`, as somebody sees it who has read the README: the link, the poisonous event, an
//! outage, a replay, and at the end a ledger that balances. It takes two minutes, so it is a part of `./test
//! browser`.

use crate::binary::posthaste;
use crate::browser::{Browser, looks_at_all_pages, takes_its_time};
use posthaste_testkit::require_service;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

/// As long as all pages in all widths and themes take on a busy machine.
const MINUTES: &str = "8";

/// The demo. Dropping it ends it, and its processes with it.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_newcomer_finds_the_poison_replays_and_discards_it_and_the_ledger_balances() {
    if !takes_its_time("newcomer") {
        return;
    }
    let browser = require_service!(Browser::find());
    let mut command = posthaste(&["demo", "--ui", "--minutes", MINUTES]);
    let mut demo =
        Demo(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the binary starts"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("it is piped"));
    let mut said = String::new();
    let link = loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "no link: {said}");
        said.push_str(&line);
        if line.contains("#code=") {
            break line.trim().to_owned();
        }
    };
    let told = browser.runs("newcomer.mjs", &[&link]);
    let session = told.lines().skip_while(|line| *line != "session").nth(1).expect("a session");
    let address = link.split('#').next().expect("an address");
    looks_at_all_pages(&browser, "demo", address, session, "shop");
    // It ends by itself, and what was discarded is in its ledger.
    lines.read_to_string(&mut said).expect("text");
    let status = demo.0.wait().expect("it is ours");
    assert!(status.success() && said.contains("It balances."), "{said}");
}
