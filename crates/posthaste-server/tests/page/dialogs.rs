//! Every dialog, sent in a browser to a relay and a consumer that run, with its effect; and the command that
//! it shows, run as somebody would who copies it.

use crate::binary::run;
use crate::browser::{Browser, looks_at_all_pages};
use crate::rig::Rig;
use crate::shown::{self, commands};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions, TestDatabase};

/// A handler that rejects some messages and fails for others, until it is mended.
const SERVICE: &str = "
create table mended (at timestamptz);
create function handle(m posthaste.message) returns void language plpgsql as $$
begin
  if exists (select from mended) then return; end if;
  if m.type = 'reject' then raise exception 'no order' using errcode = 'PH001'; end if;
  if m.type = 'late' then raise exception 'not yet'; end if;
end $$;";

/// Sinks that deliver, and put off for an hour what fails.
fn file(url: &str, dir: &std::path::Path, hook: &str) -> String {
    format!(
        "[[outbox]]\nname = \"shop\"\nurl = {url:?}\nadmin_url = {url:?}\n\
         [sinks.broker]\ntype = \"local\"\npath = {:?}\nstart_at = \"earliest\"\n\
         [sinks.hook]\ntype = \"http\"\nurl = {hook:?}\nallow_private = true\nstart_at = \"earliest\"\n\
         [[route]]\nname = \"orders\"\ntopic = \"orders\"\nsink = \"broker\"\n\
         [[route]]\nname = \"mail\"\ntopic = \"mail\"\nsink = \"hook\"\ndestination = \"hook\"\n\
         retry = {{ initial_ms = 3600000, max_ms = 3600000 }}\n\
         [[route]]\nname = \"bad\"\ntopic = \"bad\"\nsink = \"hook\"\ndestination = \"hook\"\nvalidate = \"json\"\n\
         [consumers.billing]\nsource = \"broker\"\ntopics = [\"orders\"]\n\
         retry = {{ delays_ms = [], then = {{ initial_ms = 3600000, max_ms = 3600000 }} }}\n\
         [[consumers.billing.handle]]\nsql = \"handle\"\n\
         [gateway]\nlisten = \"127.0.0.1:0\"\n[gateway.tenants]\nrefresh_ms = 50\n[[gateway.topic]]\ntopic = \"orders\"\n",
        dir.join("broker.db"),
    )
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "http"), ignore = "one of its sinks is a webhook: --features http")]
async fn every_dialog_does_what_it_says_and_so_does_its_command() {
    let browser = require_service!(Browser::find());
    let database = require_service!(TestDatabase::create().await);
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    receiver.always("/hook", Answer::status(500));
    let (url, client) = (database.url(), database.connect().await.expect("a connection"));
    run(&["migrate", "up", "--url", &url]).ok();
    client.batch_execute(SERVICE).await.expect("the service's own");
    for (n, kind) in ["order", "reject", "reject", "late", "order"].into_iter().enumerate() {
        let key = format!("k{n}");
        run(&["append", "orders", "--key", &key, "--type", kind, "--payload", "{}", "--url", &url]).ok();
    }
    run(&["append", "mail", "--payload", "{}", "--url", &url]).ok();
    run(&["append", "bad", "--payload", "no <b>JSON</b>", "--url", &url]).ok();
    let rig = Rig::with("", |dir| file(&url, dir, &receiver.url()));
    rig.eventually("/outboxes/shop/deferred", |page| page["deferred"][0]["topic"] == "mail");
    rig.eventually("/outboxes/shop/dead", |page| page["dead"][0]["topic"] == "bad");
    rig.eventually("/consumers", |page| {
        let billing = &page["consumers"][0];
        billing["dead"]["count"] == 2 && billing["deferred"]["count"] == 1
    });
    for tenant in ["acme", "zeta"] {
        rig.cli(&["gateway", "keys", "new", tenant]).ok();
    }
    rig.cli(&["gateway", "tenants", "set", "acme", "--rate", "50/s", "--note", "a <b>partner</b>"]).ok();
    rig.cli(&["gateway", "tenants", "pause", "zeta", "--reason", "a test"]).ok();
    let address = format!("http://{}/", rig.address);
    looks_at_all_pages(&browser, "postgres", &address, &rig.admin, "shop");
    let mut script = browser.starts("dialogs.mjs", &[&address, &rig.admin, "shop"]);
    script.asks("mend");
    receiver.always("/hook", Answer::status(200));
    client.batch_execute("insert into mended values (now())").await.expect("it is ours");
    script.tell("done");
    let commands = commands(&script.ends());
    assert!(commands.len() >= 17, "{commands:#?}");
    // The event failed; it was delivered when it was tried again, once more by a replay, and once more by a
    // rewind.
    receiver.until(4).await;
    assert_eq!(receiver.requests_for("/hook").len(), 4);
    for command in commands {
        let ended = shown::runs(&rig, &command, &[]);
        // A letter that was named is gone by now.
        let is_gone = ended.code == 1 && ended.err.contains("Or it was replayed, or discarded");
        assert!(ended.code == 0 || is_gone, "{command}\n{}{}", ended.out, ended.err);
    }
}
