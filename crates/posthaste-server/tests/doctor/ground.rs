//! What the tests stand on: a configuration, and what the doctor says of it.

use crate::binary::{Ended, Scratch, run};
use posthaste_testkit::services::Postgres;
use std::collections::BTreeMap;
use tokio_postgres::{Client, NoTls};

/// What the doctor said, by check, and how it ended.
pub(crate) struct Said {
    pub(crate) ended: Ended,
    /// Level and text. Of several findings of one check, the worst.
    pub(crate) found: BTreeMap<String, (String, String)>,
}

/// Asks the doctor.
pub(crate) fn doctor(args: &[&str]) -> Said {
    let ended = run(&[&["doctor", "--json"], args].concat());
    let remarks = ended.json();
    let mut found: BTreeMap<String, (String, String)> = BTreeMap::new();
    for remark in remarks.as_array().expect("a list") {
        let part = |name: &str| remark[name].as_str().expect("a text").to_owned();
        let (level, text) = (part("level"), part("text"));
        let worst = found.entry(part("check")).or_insert_with(|| (level.clone(), text.clone()));
        if rank(&level) > rank(&worst.0) {
            *worst = (level, text);
        }
    }
    Said { ended, found }
}

fn rank(level: &str) -> usize {
    ["ok", "warn", "fail"].iter().position(|known| *known == level).expect("a known level")
}

/// All was well before; now just this check is not, and the command ends with 1. A warning can be allowed.
pub(crate) fn only(check: &str, level: &str, before: &Said, after: &Said, args: &[&str]) {
    assert_eq!(before.ended.code, 0, "{}", bad(before));
    assert_eq!(after.ended.code, 1, "{check} was broken: {}", bad(after));
    let (found, text) = after.found.get(check).unwrap_or_else(|| panic!("{check} was not made"));
    assert_eq!(found, level, "{check}: {text}");
    assert!(text.len() > 60, "{check} says what it means and what to do: {text}");
    for (name, (level, text)) in &after.found {
        assert!(name == check || level == "ok", "{check} was broken, and {name} says: {text}");
    }
    let allowed = run(&[&["doctor", "--allow-warnings"], args].concat());
    assert_eq!(allowed.code, i32::from(level == "fail"), "{}", allowed.out);
    let words: Vec<&str> = allowed.out.split_whitespace().collect();
    assert!(words.contains(&check) && words.contains(&level), "{}", allowed.out);
}

fn bad(said: &Said) -> String {
    let bad = said.found.iter().filter(|(_, (level, _))| level != "ok");
    bad.map(|(name, (level, text))| format!("{name} ({level}): {text}")).collect::<Vec<_>>().join("\n")
}

/// A configuration of one outbox, with lines of `[outbox]` and what comes behind it.
pub(crate) fn file(url: &str, outbox: &str, rest: &str) -> Scratch {
    Scratch::new(&format!("[outbox]\nurl = \"{url}\"\n{outbox}\n{rest}"))
}

/// An outbox with some events and a sink with two lanes that has handled them.
pub(crate) async fn set_up(url: &str) {
    run(&["migrate", "up", "--url", url]).ok();
    let client = connect(url).await;
    execute(
        &client,
        "insert into posthaste.outbox (topic, key) select 't', 'k' || n from generate_series(1, 10) n;
         insert into posthaste.state values ('lanes', '2');
         insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n)
         select 's', n, 512 * n, 512 * n + 511, '', 0 from generate_series(0, 1) n;
         insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
         select 's', n, 1, 0, 'born', 0, 10, pg_current_snapshot() from generate_series(0, 1) n",
    )
    .await;
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

pub(crate) async fn execute(client: &Client, sql: &str) {
    if let Err(error) = client.batch_execute(sql).await {
        panic!("{sql}: {error:?}");
    }
}

/// The URL of a database of a server, as its superuser.
pub(crate) fn url_of(server: &Postgres, database: &str) -> String {
    server.url_for(database, "postgres")
}
