//! Dead letters in PostgreSQL, as many as a test wants, and a process that runs jobs on them. No relay: what
//! is replayed stays where it is put.

use crate::binary::run;
use crate::jobs::Ui;
use crate::rig::{directory, token, write};
use posthaste_testkit::services::TestDatabase;
use std::path::PathBuf;
use tokio_postgres::Client;

/// What the database of a desk has of its letters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) dead: i64,
    pub(crate) deferred: i64,
    /// What the first job says.
    pub(crate) done: i64,
    /// What the audit says.
    pub(crate) audited: i64,
}

pub(crate) struct Desk {
    pub(crate) dir: PathBuf,
    pub(crate) token: String,
    pub(crate) client: Client,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Desk {
    /// `url`: the way by which the process comes to the database.
    pub(crate) async fn set(database: &TestDatabase, url: &str, letters: i64) -> Self {
        run(&["migrate", "up", "--url", &database.url()]).ok();
        let client = database.connect().await.expect("a connection");
        let bury = format!(
            "insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n) values ('s', 0, 0, 1023, '', 0);
             insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key,
                                                 attempts, error_class, error_code, error)
             select 's', n, 0, gen_random_uuid(), 't', 'k' || n, convert_to(repeat('x', 200), 'UTF8'), now(), 'r', false, 5,
                    'permanent', 'x.no', 'no'
               from generate_series(1, {letters}) n;
             analyze posthaste.dead_letters"
        );
        client.batch_execute(&bury).await.expect("letters");
        let (dir, (token, entry)) = (directory(), token(&["--name", "root", "--role", "admin"]));
        let tokens = dir.join("tokens.toml");
        write(&tokens, &entry);
        let file = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\ntokens_file = {tokens:?}\n\
             [[outbox]]\nname = \"a\"\nurl = {url:?}\nadmin_url = {url:?}\n\
             [sinks.s]\ntype = \"null\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"s\"\n"
        );
        write(&dir.join("posthaste.toml"), &file);
        Self { dir, token, client }
    }

    /// `posthaste ui` on them.
    pub(crate) fn serve(&self) -> Ui {
        Ui::at(&self.dir, &self.token)
    }

    pub(crate) async fn tally(&self) -> Tally {
        let sql = "select (select count(*) from posthaste.dead_letters), (select count(*) from posthaste.deferred),
                     (select done from posthaste.jobs),
                     (select coalesce(sum((detail ->> 'count')::bigint), 0)::bigint from posthaste.audit where action = 'replay')";
        let row = self.client.query_one(sql, &[]).await.expect("a look");
        Tally { dead: row.get(0), deferred: row.get(1), done: row.get(2), audited: row.get(3) }
    }
}
