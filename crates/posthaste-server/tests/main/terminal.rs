//! Text from elsewhere on an operator's terminal: what a terminal would obey is shown; `--raw` and `--json`
//! are exact.

use crate::binary::{Ended, Scratch, run};
use crate::daemon::Daemon;
use posthaste_sqlite::Synchronous;
use posthaste_sqlite::writer::{WriteError, Writer};
use std::path::PathBuf;

/// Clears the screen, in two ways; turns the line.
const KEY: &str = "k\x1b[2J\u{9b}2J\u{202e}drow";
const SHOWN: &str = "k\\x1b[2J\\x9b2J\\u{202e}drow";
const PAYLOAD: &str = "{\x1b]0;title\x07\n\nnull: delivered";

/// An outbox in a file, with a relay that gives every event up: no payload here is JSON.
struct Ground {
    dir: PathBuf,
    config: Scratch,
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Ground {
    fn make() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-terminal-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let config = Scratch::new(&format!(
            "outbox.url = \"sqlite:{}\"\nhttp.listen = \"off\"\n[sinks.null]\ntype = \"null\"\n\
             [[route]]\ntopics = [\"*\"]\nsinks = [\"null\"]\nvalidate = \"json\"\n",
            dir.join("shop.db").display()
        ));
        let ground = Self { dir, config };
        ground.run(&["migrate", "up"]).ok();
        ground
    }

    fn run(&self, args: &[&str]) -> Ended {
        run(&[args, &["--config", self.config.path()]].concat())
    }

    /// A row that no library checked.
    fn insert_a_hostile_row(&self) {
        let writer = Writer::open(&self.dir.join("shop.db"), Synchronous::Full).expect("the file opens");
        let sql = "insert into posthaste_outbox (topic, key, content_type, payload)
                   values ('t' || char(27) || '[2J', 'k' || char(155) || char(10) || '9  forged', 'x' || char(10) || 'y' || char(27), '{')";
        writer.run_blocking(move |tx| tx.execute_batch(sql).map_err(WriteError::from)).expect("a row");
    }
}

fn is_harmless(what: &str, text: &str) {
    let obeyed = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!text.contains(obeyed), "{what}: {text:?}");
    assert!(
        !text.lines().any(|line| line.starts_with("9  ") || line.starts_with("null: delivered")),
        "{text}"
    );
}

#[test]
fn what_a_terminal_would_obey_is_shown() {
    let ground = Ground::make();
    let append =
        ["append", "mail.sent", "--key", KEY, "--payload", PAYLOAD, "--header", "subject=\x1b[31m\u{9b}red"];
    let id = ground.run(&append).ok().out.trim().to_owned();
    ground.insert_a_hostile_row();
    let relay = Daemon::start(&["--config", ground.config.path()]);
    relay.says("topic=t\\x1b[2J");
    is_harmless("the log", &relay.stop());

    let commands: [&[&str]; 9] = [
        &["events", "list"],
        &["events", "show", &id],
        &["events", "show", "2"],
        &["dead", "list"],
        &["dead", "show", &id],
        &["events", "replay", "--sink", "null", "--from-seq", "1", "--dry-run"],
        &["status"],
        &["lanes"],
        &["doctor", "--allow-warnings"],
    ];
    for command in commands {
        let ended = ground.run(command);
        is_harmless(&command.join(" "), &ended.out);
        is_harmless(&command.join(" "), &ended.err);
    }
    for command in
        [&["events", "list"] as &[&str], &["events", "show", &id], &["dead", "list"], &["dead", "show", &id]]
    {
        let out = ground.run(command).ok().out;
        assert!(out.contains(SHOWN), "{command:?}: {out}");
    }
    let shown = ground.run(&["events", "list"]).ok().out;
    assert!(shown.contains("key k\\x9b\\n9  forged"), "a field is one line: {shown}");
    let shown = ground.run(&["dead", "show", &id]).ok().out;
    assert!(shown.contains("{\\x1b]0;title\\x07\n"), "a payload keeps its lines: {shown}");

    // Refusals quote what was said, too.
    let refused = ground.run(&["events", "list", "--outbox", "\x1b[2J"]);
    is_harmless("a refusal", &refused.err);
    assert!(refused.err.contains("`\\x1b[2J`"), "{}", refused.err);
}

#[test]
fn raw_and_json_are_exact() {
    let ground = Ground::make();
    let id = ground.run(&["append", "t", "--key", KEY, "--payload", PAYLOAD]).ok().out.trim().to_owned();
    assert_eq!(ground.run(&["events", "show", &id, "--raw"]).ok().out, PAYLOAD);
    let whole = ground.run(&["events", "show", &id, "--json"]).ok().json();
    assert_eq!((&whole["event"]["key"], &whole["event"]["payload"]), (&KEY.into(), &PAYLOAD.into()));
    let list = ground.run(&["events", "list", "--json"]).ok().json();
    assert_eq!(list["events"][0]["key"], KEY);
}
