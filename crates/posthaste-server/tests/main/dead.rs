//! Dead letters by command: list, show, replay, discard.

use crate::binary::{Scratch, posthaste, run};
use crate::daemon::Daemon;
use crate::relay::Outbox;
use std::time::{Duration, Instant};

const NEEDS_KEY: &str = "[sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\nrequire_key = true\n";

/// Three letters of topic `a.x`, two of `b.x`.
async fn with_letters() -> Option<(Outbox, Scratch, Vec<String>)> {
    let outbox = Outbox::new().await?;
    let file = outbox.config(NEEDS_KEY);
    let topics = ["a.x", "a.x", "a.x", "b.x", "b.x"];
    let ids = topics
        .map(|topic| outbox.append(&[topic, "--payload", "{\"n\":1}", "--content-type", "application/json"]));
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["last", "--key", "k", "--payload", "x"]);
    daemon.events(1);
    daemon.stop();
    Some((outbox, file, ids.to_vec()))
}

fn count(outbox: &Outbox) -> u64 {
    outbox.cli(&["status", "--json"]).json()["outboxes"][0]["sinks"][0]["dead"]["count"]
        .as_u64()
        .expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_by_pages_and_shown_whole() {
    let Some((outbox, _file, ids)) = with_letters().await else { return };
    let page = outbox.cli(&["dead", "list", "--json", "--limit", "2"]).json();
    assert_eq!(
        (&page["dead"][0]["id"], page["dead"].as_array().map(Vec::len)),
        (&ids[0].as_str().into(), Some(2))
    );
    let next = page["next"].as_str().expect("a place").to_owned();
    let rest = outbox.cli(&["dead", "list", "--json", "--after", &next]).json();
    assert_eq!((rest["dead"].as_array().map(Vec::len), &rest["next"]), (Some(3), &serde_json::Value::Null));
    let filtered = outbox
        .cli(&["dead", "list", "--json", "--topic", "b.*", "--code", "route.key_missing", "--since", "1h"])
        .json();
    assert_eq!(filtered["dead"].as_array().map(Vec::len), Some(2));
    // A slip of the pen is no all-clear.
    for act in [vec!["list", "--sink", "nobody"], vec!["replay", "--sink", "nobody", "--reason", "test"]] {
        let refused = run(&[["dead"].as_slice(), &act, &["--url", &outbox.url()]].concat());
        assert!(
            refused.code == 1 && refused.err.contains("there is no sink `nobody`; known are"),
            "{}",
            refused.err
        );
    }
    let text = outbox.cli(&["dead", "list"]).out;
    assert!(text.contains(&ids[4]) && text.contains("route.key_missing: the route requires a key"), "{text}");
    let shown = outbox.cli(&["dead", "show", &ids[0], "--json"]).json();
    assert_eq!((&shown[0]["payload"], &shown[0]["attempts"]), (&"{\"n\":1}".into(), &0.into()));
    assert_eq!(outbox.cli(&["dead", "show", &ids[0], "--raw"]).out, "{\"n\":1}");
    assert!(outbox.cli(&["dead", "show", &ids[0]]).out.contains("content type  application/json"));
    let seq = shown[0]["seq"].to_string();
    assert_eq!(outbox.cli(&["dead", "show", &seq, "--json"]).json(), shown);
    for act in [vec!["show"], vec!["replay", "--reason", "test"], vec!["discard", "--reason", "test"]] {
        let id = ["0192f7a0-5c1e-7a3e-b1f2-000000000001", "--url", &outbox.url()];
        let missing = run(&[["dead"].as_slice(), &act, &id].concat());
        assert!(missing.code == 1 && missing.err.contains("no dead letter of event"), "{}", missing.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acts_mean_the_filter_and_the_dry_run_says_how_many() {
    let Some((outbox, file, ids)) = with_letters().await else { return };
    let dry = outbox.cli(&["dead", "discard", "--topic", "a.*", "--dry-run", "--json"]).json();
    assert_eq!((&dry["matched"], &dry["done"]), (&3.into(), &0.into()));
    let unsure = run(&["dead", "discard", "--topic", "a.*", "--reason", "test", "--url", &outbox.url()]);
    assert!(unsure.code == 2 && unsure.err.contains("--yes"), "{}", unsure.err);
    assert_eq!(count(&outbox), 5);
    let done = outbox
        .cli(&["dead", "discard", "--topic", "a.*", "--reason", "test", "--yes", "--chunk", "2", "--json"])
        .json();
    assert_eq!((&done["matched"], &done["done"], &done["stopped"]), (&3.into(), &3.into(), &false.into()));
    assert_eq!(count(&outbox), 2);
    // One letter needs no consent, and with the cause mended it is delivered. It is named as `show` names it.
    let seq = outbox.cli(&["dead", "show", &ids[3], "--json"]).json()[0]["seq"].to_string();
    for name in [&seq, &ids[3]] {
        let dry = outbox.cli(&["dead", "replay", name, "--dry-run", "--json"]).json();
        assert_eq!(dry["matched"], 1, "{name}");
    }
    outbox.cli(&["dead", "replay", &ids[3], "--reason", "mended"]);
    let mended = outbox.config(&NEEDS_KEY.replace("require_key = true", ""));
    let daemon = Daemon::start(&["--config", mended.path()]);
    assert_eq!(daemon.events(1)[0]["id"], ids[3]);
    daemon.stop();
    // With the cause still there a replay ends: at one letter a second the event dies again before the next
    // chunk is taken, and what died after the start is not part of it.
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, _| status == 200);
    let args = ["dead", "replay", "--all", "--reason", "test", "--yes", "--rate", "1/s", "--json", "--url"];
    let replay = Daemon::spawn(posthaste(&[args.as_slice(), &[&outbox.url()]].concat()));
    let again = &replay.events(1)[0];
    assert_eq!((&again["matched"], &again["done"]), (&1.into(), &1.into()));
    let end = Instant::now() + Duration::from_secs(60);
    while count(&outbox) == 0 {
        assert!(Instant::now() < end, "it does not die again: {}", daemon.said());
    }
    let letters = outbox.cli(&["dead", "list", "--json"]).json();
    assert_eq!(letters["dead"][0]["replays"], 1, "it died again, and was not replayed again: {letters}");
}

/// What a dry run saw is what is done: what is added behind it stays, however well it fits.
#[tokio::test(flavor = "multi_thread")]
async fn an_act_goes_no_further_than_a_dry_run_saw() {
    let Some((outbox, _file, _)) = with_letters().await else { return };
    let first = outbox.cli(&["dead", "list", "--json", "--limit", "2"]).json();
    let upto = first["next"].as_str().expect("a place").to_owned();
    let dry = outbox.cli(&["dead", "discard", "--error", "requires a key", "--dry-run", "--json"]).json();
    assert_eq!((&dry["goes"], &dry["exact"]), (&5.into(), &true.into()), "{dry}");
    let none = outbox.cli(&["dead", "discard", "--holds-key", "--replayed", "--dry-run", "--json"]).json();
    assert_eq!(none["matched"], 0, "{none}");
    let rest = outbox.cli(&["dead", "list", "--holds-key=false", "--class", "permanent", "--json"]).json();
    assert_eq!(rest["dead"].as_array().map(Vec::len), Some(5), "{rest}");
    let act = ["dead", "discard", "--error", "requires a key", "--reason", "test", "--yes", "--json"];
    let done = outbox.cli(&[act.as_slice(), &["--upto", &upto]].concat()).json();
    assert_eq!((&done["done"], &done["state"]), (&2.into(), &"done".into()), "{done}");
    assert_eq!(count(&outbox), 3);
    let dry = ["dead", "discard", "--all", "--dry-run", "--upto", "1"];
    let text = outbox.cli(&dry).out;
    assert!(text.contains("would be discarded, none beyond 1"), "{text}");
    let text = outbox.cli(&["dead", "replay", "--key", "none", "--upto", "1", "--reason", "test"]).out;
    assert!(text.contains("nothing would be replayed"), "{text}");
    for (upto, why) in [("x", "none that a dry run"), ("1", "cannot be used with")] {
        let named: &[&str] = if upto == "x" { &["--all"] } else { &["120000"] };
        let act = ["dead", "replay", "--upto", upto, "--reason", "test", "--yes", "--url", &outbox.url()];
        let refused = run(&[act.as_slice(), named].concat());
        assert!(refused.code == 2 && refused.err.contains(why), "{}", refused.err);
    }
    let every = run(&["dead", "discard", "--error", "", "--reason", "x", "--yes", "--url", &outbox.url()]);
    assert!(every.code == 2 && every.err.contains("name what is meant"), "{}", every.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_counted_by_cause_and_acted_on_by_it() {
    let Some((outbox, _file, ids)) = with_letters().await else { return };
    let causes = outbox.cli(&["dead", "causes", "--json"]).json();
    let cause = &causes["causes"][0];
    assert_eq!((&cause["count"], &cause["error_code"]), (&5.into(), &"route.key_missing".into()), "{causes}");
    let number = cause["fingerprint"].as_str().expect("a number of 16 digits");
    let text = outbox.cli(&["dead", "causes", "--sink", "out"]).out;
    assert!(text.starts_with(&format!("5 dead letters  {number}  out  a.x, b.x\n")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let newest = outbox.cli(&["dead", "list", "--newest", "--limit", "2", "--json"]).json();
    assert_eq!(
        (&newest["dead"][0]["id"], &newest["dead"][1]["id"]),
        (&ids[4].as_str().into(), &ids[3].as_str().into())
    );
    let next = newest["next"].as_str().expect("a place").to_owned();
    let rest = outbox.cli(&["dead", "list", "--newest", "--after", &next, "--json"]).json();
    let refused = run(&["dead", "list", "--after", "x'; select 1", "--url", &outbox.url()]);
    assert!(refused.code == 2 && refused.err.contains("no place in this list"), "{}", refused.err);
    assert_eq!(
        (&rest["dead"][0]["id"], rest["dead"].as_array().map(Vec::len)),
        (&ids[2].as_str().into(), Some(3))
    );
    for list in [outbox.cli(&["dead", "list"]).out, outbox.cli(&["dead", "show", &ids[0]]).out] {
        assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    }
    assert!(outbox.cli(&["dead", "show", &ids[0]]).out.contains(&format!("cause         {number}")));
    let by_cause = outbox.cli(&["dead", "reprocess", "--fingerprint", number, "--dry-run", "--json"]).json();
    assert_eq!((&by_cause["act"], &by_cause["matched"]), (&"replay".into(), &5.into()));
    let other = outbox.cli(&["dead", "reprocess", "--fingerprint", "1", "--dry-run", "--json"]).json();
    assert_eq!(other["matched"], 0);
    let purged =
        outbox.cli(&["dead", "purge", "--fingerprint", number, "--reason", "test", "--yes", "--json"]).json();
    assert_eq!((&purged["act"], &purged["done"]), (&"discard".into(), &5.into()));
    assert!(purged["trace_id"].as_str().is_some_and(|trace| trace.len() == 32), "{purged}");
    assert_eq!(outbox.cli(&["dead", "causes"]).out, "no dead letters\n");
}

/// Nobody serves the sink any more, and its letters are still there: in `status`, and in a metric.
#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_sink_that_left_are_seen() {
    let Some((outbox, _file, _)) = with_letters().await else { return };
    let other = outbox.config(&NEEDS_KEY.replace("sinks.out", "sinks.other").replace("\"out\"", "\"other\""));
    let daemon = Daemon::start(&["--config", other.path()]);
    let left = "outbox_dead_letters{service=\"shop\",outbox=\"default\",sink=\"out\"} 5";
    daemon.events(1);
    daemon.page("/metrics", |_, body| body.contains(left));
    let text = outbox.cli(&["status"]).out;
    let row = text.lines().find(|line| line.starts_with("out ")).unwrap_or_default();
    assert!(row.ends_with("retired") && text.contains("sink out left the configuration"), "{text}");
    outbox.cli(&["dead", "discard", "--sink", "out", "--reason", "test", "--yes"]);
    assert!(!outbox.cli(&["status"]).out.contains("retired"), "nothing is left of it");
    daemon.stop();
}

/// The login of a relay may move letters and write no jobs: its acts run without one, chunk by chunk, each
/// with its line in the audit.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_write_no_jobs_acts_without_one() {
    let Some((outbox, _file, _)) = with_letters().await else { return };
    let url = outbox.url_as("posthaste_relay").await;
    let cli = |args: &[&str]| run(&[args, &["--json", "--url", &url]].concat()).ok().json();
    let act = ["--reason", "test", "--yes", "--chunk", "2"];
    let done = cli(&[&["dead", "replay", "--topic", "a.*"], act.as_slice()].concat());
    assert_eq!((&done["matched"], &done["done"], &done["stopped"]), (&3.into(), &3.into(), &false.into()));
    let again = cli(&[&["events", "replay", "--sink", "out", "--topic", "last"], act.as_slice()].concat());
    assert_eq!((&again["matched"], &again["done"]), (&1.into(), &1.into()), "{again}");
    // All of them are due, so nothing is left to be tried sooner.
    let none = cli(&["deferred", "retry", "--all", "--reason", "test", "--yes"]);
    assert_eq!((&none["goes"], &none["left_alone"]["deferred.due"]), (&0.into(), &4.into()), "{none}");
    outbox.execute("update posthaste.deferred set due_at = now() + interval '1 hour'").await;
    let tried = cli(&["deferred", "retry", "--all", "--reason", "test", "--yes"]);
    assert_eq!((&tried["matched"], &tried["done"]), (&4.into(), &4.into()), "{tried}");
    let gone = cli(&["dead", "discard", "--all", "--reason", "test", "--yes"]);
    assert_eq!((&gone["done"], count(&outbox)), (&2.into(), 0), "{gone}");
    assert_eq!(outbox.cli(&["jobs", "--json"]).json()["jobs"], serde_json::json!([]));
    let trail = outbox.cli(&["audit", "--json"]).json();
    let lines = trail["audit"].as_array().expect("lines").iter().rev();
    let told: Vec<_> = lines
        .map(|line| (line["action"].as_str().unwrap_or_default(), line["detail"]["count"].as_i64()))
        .collect();
    let expected = [("replay", 2), ("replay", 1), ("replay_log", 1), ("retry", 4), ("discard", 2)];
    assert_eq!(told, expected.map(|(action, count)| (action, Some(count))), "{trail}");
    assert!(!trail.to_string().contains("\"job\""), "{trail}");
}
