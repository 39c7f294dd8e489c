//! What a consumer cannot work with is told before anything is taken.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::os::unix::fs::{MetadataExt, chown};

/// Whoever cannot write the inbox takes no message: it says why, and the outbox is relayed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_in_the_database_is_told_before_anything_is_taken() {
    let options = PostgresOptions::default().scram_user("stranger", "s3same");
    let server = require_service!(Postgres::start(Version::V15, &options).await);
    let at = |login: &str, database: &str| {
        format!("url = \"postgres://{login}@127.0.0.1:{}/{database}\"\n", server.port())
    };
    let (wrong, right, empty) =
        (at("stranger:wr0ng", "postgres"), at("stranger:s3same", "postgres"), at("stranger:s3same", "empty"));
    let mut rig = Rig::set_on(server, "# login\n").await;
    rig.run("create database empty").await;
    rig.publish(20, "order").await;
    let mut before = "# login\n".to_owned();
    for (lines, sql, said) in [
        (wrong, "select", "password authentication failed"),
        (empty, "select", "posthaste migrate up"),
        (right.clone(), "select", "permission denied"),
        (right.clone(), "grant posthaste_consumer to stranger", "permission denied for schema trial"),
        (
            right.clone(),
            "revoke execute on function trial.handle from public; grant usage on schema trial to stranger",
            "EXECUTE",
        ),
        (right, "drop function trial.handle", "there is no function"),
    ] {
        rig.reconfigure(&before, &lines);
        before = lines;
        rig.run(sql).await;
        let member = rig.start();
        let line = member.says(said).await;
        assert!(!line.contains("wr0ng") && !line.contains("s3same"), "no secret: {line}");
        let not_ready = |status: u16, body: &str| status == 503 && body.contains(said);
        member.page("/readyz", said, not_ready).await;
    }
    let taken = "select count(*) from posthaste.inbox_partitions";
    let marks = "select count(*) from posthaste.inbox";
    assert_eq!((rig.count(taken).await, rig.count(marks).await), (0, 0), "nothing was taken");

    rig.run(
        "create function trial.handle(m posthaste.message) returns void language plpgsql as $$ begin
           insert into trial.effects (id, type, key, n) values (m.id, m.type, convert_from(m.key, 'UTF8'), (posthaste.json(m) ->> 'n')::int);
         end $$;
         grant all on all tables in schema trial to stranger; grant all on all sequences in schema trial to stranger;
         alter role stranger set default_transaction_read_only = on",
    )
    .await;
    let member = rig.start();
    let away = |status: u16, body: &str| status == 503 && body.contains("the database");
    member.page("/readyz", "that nothing can be written", away).await;
    member.says("read-only transaction").await;
    drop(member);
    assert_eq!((rig.count(taken).await, rig.count(marks).await), (0, 0), "nothing was taken");
    rig.run("alter role stranger reset default_transaction_read_only").await;
    let member = rig.start();
    rig.finish(member, "with the service's own login").await;
    let trace = rig.cli(&["trace", "m1"]).ok();
    assert!(trace.contains("consumer  billing: done") && !trace.contains("not looked at"), "{trace}");

    // A standby has everything, and cannot take a mark.
    let data = rig.server().data_dir();
    rig.server().stop_fast().await.expect("stopped");
    let signal = data.join("standby.signal");
    std::fs::write(&signal, "").expect("a file for the server");
    let owner = std::fs::metadata(&data).expect("the data directory");
    chown(&signal, Some(owner.uid()), Some(owner.gid())).expect("the server's own file");
    rig.server().start_again().await.expect("a standby answers too");
    let member = rig.start();
    member.says("consumer `billing`: ").await;
    let said = member.said();
    assert!(said.contains("standby"), "{said}");
}
