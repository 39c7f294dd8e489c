//! The log by command: list, show, tail, replay.

use crate::binary::{Scratch, posthaste, run};
use crate::daemon::Daemon;
use crate::relay::Outbox;
use rustix::process::Signal;
use serde_json::Value;

const ALL: &str = "[sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\ndestination = \"ev.{topic}\"\n";

fn ids(page: &Value) -> Vec<&str> {
    page["events"].as_array().expect("events").iter().filter_map(|event| event["id"].as_str()).collect()
}

/// Four events that a relay has delivered.
async fn delivered() -> Option<(Outbox, Scratch, Vec<String>)> {
    let outbox = Outbox::new().await?;
    let file = outbox.config(ALL);
    let events = [("a.x", "k1"), ("a.y", "k2"), ("b.x", "k1"), ("a.x", "k1")];
    let ids = events.map(|(topic, key)| outbox.append(&[topic, "--key", key, "--payload", "{\"n\":1}"]));
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.events(4);
    daemon.stop();
    Some((outbox, file, ids.to_vec()))
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_listed_by_pages_topic_key_time_and_number() {
    let Some((outbox, _file, all)) = delivered().await else { return };
    let list = |args: &[&str]| outbox.cli(&[&["events", "list", "--json"], args].concat()).json();
    let page = list(&["--limit", "3"]);
    assert_eq!(ids(&page), all[..3]);
    let rest = list(&["--after", &page["next"].to_string()]);
    assert_eq!((ids(&rest), &rest["next"]), (vec![all[3].as_str()], &Value::Null));
    assert_eq!(ids(&list(&["--topic", "a.*", "--key", "k1"])), [&all[0], &all[3]]);
    assert_eq!(ids(&list(&["--since", "1h", "--from-seq", "2", "--to-seq", "3"])), all[1..3]);
    assert_eq!(ids(&list(&["--until", "1h"])), [""; 0]);
    let text = outbox.cli(&["events", "list", "--limit", "1"]).out;
    assert!(text.contains("a.x  key k1") && text.contains(&all[0]) && text.contains("--after 1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(outbox.cli(&["events", "list", "--key", "nobody"]).out.starts_with("no events"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_says_what_became_of_an_event() {
    let Some((outbox, file, all)) = delivered().await else { return };
    let show = |args: &[&str]| run(&[&["events", "show", "--config", file.path()], args].concat()).ok();
    let life = show(&[&all[0], "--json"]).json();
    assert_eq!((&life["event"]["payload"], &life["in_log"]), (&"{\"n\":1}".into(), &true.into()));
    let sink =
        life["sinks"].as_array().expect("sinks").iter().find(|sink| sink["sink"] == "out").expect("out");
    assert_eq!((&sink["progress"], &sink["way"]["destination"]), (&"passed".into(), &"ev.a.x".into()));
    assert!(sink["passed"]["settled_at"].is_string(), "{life}");
    let text = show(&[&all[0]]).out;
    assert!(text.contains("out: delivered") && text.contains("ev.a.x (route all)"), "{text}");
    assert_eq!(show(&["2", "--json"]).json()["event"]["id"], all[1]);
    assert_eq!(show(&["2", "--raw"]).out, "{\"n\":1}");
    // One that the relay has not come to, and one whose id says nothing.
    let odd = "8a1b3c4d-0000-4000-8000-000000000001";
    outbox.append(&["a.x", "--payload", "x", "--id", odd]);
    for more in [&[odd] as &[&str], &[odd, "--near", "1s"], &[odd, "--scan"]] {
        assert!(show(more).out.contains("out: not read yet\n  cursor        at 4"), "{more:?}");
    }
    let missing = run(&["events", "show", "0192f7a0-5c1e-7a3e-b1f2-000000000001", "--url", &outbox.url()]);
    assert!(missing.code == 1 && missing.err.contains("no event has the id"), "{}", missing.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_shows_a_death_what_waits_behind_it_and_who_acted() {
    let Some(outbox) = Outbox::new().await else { return };
    let holding = format!("{ALL}validate = \"json\"\non_dead = \"hold\"\n");
    let file = outbox.config(&holding);
    let bad = outbox.append(&["t", "--key", "k", "--payload", "{"]);
    let next = outbox.append(&["t", "--key", "k", "--payload", "{}"]);
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["t", "--key", "other", "--payload", "{}"]);
    daemon.events(1);
    let said = daemon.stop();
    let line = said.lines().find(|line| line.contains("event is dead")).unwrap_or_default();
    assert!([&*bad, "topic=t", "code=payload.not_json"].iter().all(|part| line.contains(part)), "{said}");
    let life = outbox.cli(&["events", "show", &bad, "--json"]).json();
    let out = |life: &Value| {
        life["sinks"]
            .as_array()
            .expect("sinks")
            .iter()
            .find(|sink| sink["sink"] == "out")
            .expect("out")
            .clone()
    };
    let sink = out(&life);
    assert_eq!((&sink["progress"], &sink["holds_back"]), (&"dead".into(), &1.into()), "{life}");
    assert_eq!(sink["dead"]["error_code"], "payload.not_json");
    let sink = out(&outbox.cli(&["events", "show", &next, "--json"]).json());
    assert_eq!((&sink["progress"], &sink["behind"]), (&"deferred".into(), &1.into()), "{sink}");
    assert!(outbox.cli(&["events", "show", &next]).out.contains("waits for     event 1 of its key"));
    let text = run(&["events", "show", &bad, "--config", file.path()]).ok().out;
    assert!(text.contains("would go to   ev.t (route") && !text.contains("went to"), "{text}");
    outbox.cli(&["dead", "discard", "--id", &bad, "--reason", "not ours", "--actor", "eve"]);
    let text = outbox.cli(&["events", "show", &bad]).out;
    assert!(text.contains("eve  discard: not ours"), "{text}");
}

/// A cursor's position alone does not say that an event was read: its transaction may have been running.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_is_not_called_delivered() {
    let Some(outbox) = Outbox::new().await else { return };
    let (late, connection) =
        tokio_postgres::connect(&outbox.url(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    late.batch_execute("begin; select posthaste.append('late', 'x'::text)").await.expect("appends");
    let file = outbox.config(ALL);
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["early", "--payload", "x"]);
    daemon.events(1);
    daemon.stop();
    late.batch_execute("commit").await.expect("commits");
    let shown = outbox.cli(&["events", "show", "1"]).out;
    assert!(shown.contains("out: not read yet\n  cursor        at 2"), "{shown}");
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.events(1);
    daemon.stop();
    assert!(outbox.cli(&["events", "show", "1"]).out.contains("out: delivered"));
}

/// The log forgets, copies do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_event_is_shown_when_its_time_in_the_log_is_over() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(&format!("{ALL}validate = \"json\"\n"));
    let bad = outbox.append(&["t", "--payload", "{"]);
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["t", "--payload", "{}"]);
    daemon.events(1);
    daemon.stop();
    let (client, connection) =
        tokio_postgres::connect(&outbox.url(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client.batch_execute("truncate posthaste.outbox_1").await.expect("truncates");
    for name in [bad.as_str(), "1"] {
        let life = outbox.cli(&["events", "show", name, "--json"]).json();
        assert_eq!((&life["event"]["id"], &life["in_log"]), (&bad.as_str().into(), &false.into()), "{life}");
        assert!(life.to_string().contains("payload.not_json"), "{life}");
    }
    let gone = run(&["events", "show", "2", "--url", &outbox.url()]);
    assert!(gone.code == 1 && gone.err.contains("no event has the number 2"), "{}", gone.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_shows_what_comes_late_commits_too() {
    let Some(outbox) = Outbox::new().await else { return };
    outbox.append(&["old", "--payload", "x"]);
    let (late, connection) =
        tokio_postgres::connect(&outbox.url(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    late.batch_execute("begin; select posthaste.append('late', 'x'::text)").await.expect("appends");
    let args = ["events", "tail", "--json", "--interval", "20ms", "--limit", "3", "--url", &outbox.url()];
    let tail = Daemon::spawn(posthaste(&args));
    tail.says("following the log");
    outbox.append(&["new", "--payload", "x"]);
    assert_eq!(tail.events(1)[0]["topic"], "new");
    late.batch_execute("commit").await.expect("commits");
    outbox.append(&["newest", "--payload", "x"]);
    let mut topics: Vec<Value> = tail.events(3).iter().map(|event| event["topic"].clone()).collect();
    topics.sort_by_key(ToString::to_string);
    assert_eq!(
        topics,
        ["late", "new", "newest"],
        "what committed late is there, what was there before is not"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_goes_by_the_ordinary_way_and_is_audited() {
    let Some((outbox, file, all)) = delivered().await else { return };
    let replay =
        |args: &[&str]| run(&[&["events", "replay", "--sink", "out", "--url", &outbox.url()], args].concat());
    let dry = replay(&["--topic", "a.*", "--dry-run", "--json"]).ok().json();
    assert_eq!((&dry["goes"], &dry["samples"][0]["id"]), (&3.into(), &all[0].as_str().into()), "{dry}");
    let unsure = replay(&["--topic", "a.*", "--reason", "test"]);
    assert!(unsure.code == 2 && unsure.err.contains("--yes"), "{}", unsure.err);
    assert_eq!(replay(&["--reason", "test"]).code, 2, "a filter is needed");
    let args = ["--topic", "a.*", "--reason", "lost", "--actor", "eve", "--yes", "--chunk", "2", "--json"];
    let done = replay(&args).ok().json();
    assert_eq!((&done["done"], &done["stopped"]), (&3.into(), &false.into()), "{done}");
    // They wait: a second time they are left alone.
    let again = replay(&["--topic", "a.*", "--reason", "twice", "--yes", "--json"]).ok().json();
    assert_eq!(
        (&again["done"], &again["left_alone"]["events.waits_or_dead"]),
        (&0.into(), &3.into()),
        "{again}"
    );
    let shown = outbox.cli(&["events", "show", &all[3]]).out;
    assert!(
        shown.contains("waits behind an earlier event") && shown.contains("eve  replay_log: lost"),
        "{shown}"
    );
    let daemon = Daemon::start(&["--config", file.path()]);
    let order: Vec<Value> = daemon.events(3).iter().map(|event| event["id"].clone()).collect();
    let place = |id: &String| order.iter().position(|there| there == id.as_str()).expect("sent again");
    assert!(place(&all[0]) < place(&all[3]) && order.contains(&all[1].as_str().into()), "{order:?}");
    daemon.stop();
    let shown = outbox.cli(&["events", "show", &all[0]]).out;
    assert!(shown.contains("out: delivered"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_ends_where_the_cursor_stood_and_needs_a_sink_that_is_served() {
    let Some((outbox, _file, _)) = delivered().await else { return };
    outbox.append(&["a.x", "--payload", "not read yet"]);
    let url = outbox.url();
    let replay = |sink: &str| {
        run(&["events", "replay", "--sink", sink, "--from-seq", "1", "--dry-run", "--json", "--url", &url])
    };
    let dry = replay("out").ok().json();
    assert_eq!((&dry["goes"], &dry["upto"]), (&4.into(), &"4".into()), "{dry}");
    let nobody = replay("nobody");
    assert!(nobody.code == 1 && nobody.err.contains("known are: out"), "{}", nobody.err);
    let other = outbox.config(&ALL.replace("sinks.out", "sinks.other").replace("\"out\"", "\"other\""));
    let daemon = Daemon::start(&["--config", other.path()]);
    daemon.events(5);
    daemon.stop();
    let retired = replay("out");
    assert!(retired.code == 1 && retired.err.contains("no relay serves `out`"), "{}", retired.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_replay_is_a_paused_job() {
    let Some((outbox, _file, _)) = delivered().await else { return };
    let url = outbox.url();
    let args = [
        "events",
        "replay",
        "--sink",
        "out",
        "--from-seq",
        "1",
        "--rate",
        // Slower than any machine asks for the status.
        "0.05/s",
        "--reason",
        "x",
        "--yes",
        "--json",
        "--url",
        &url,
    ];
    let replay = Daemon::spawn(posthaste(&args));
    // The first chunk is in the database: stop before the last.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let waiting =
        || outbox.cli(&["status", "--json"]).json()["outboxes"][0]["sinks"][0]["deferred"]["count"].clone();
    while waiting() == 0 {
        assert!(std::time::Instant::now() < end, "nothing is sent");
    }
    replay.signal(Signal::INT);
    let stopped = replay.events(1)[0].clone();
    assert_eq!((&stopped["stopped"], replay.ends().0), (&true.into(), 1), "{stopped}");
    assert_eq!(stopped["state"], "paused", "{stopped}");
    let job = stopped["job"].to_string();
    let outbox_url = outbox.url();
    // At its rate the rest would take a minute: another job does it, and this one is over.
    run(&["jobs", "cancel", &job, "--reason", "too slow", "--url", &outbox_url]).ok();
    let rest = ["events", "replay", "--sink", "out", "--from-seq", "1", "--reason", "x", "--yes", "--json"];
    let rest = outbox.cli(&rest).json();
    assert_eq!(waiting(), 4, "{stopped} {rest}");
    let sent = stopped["done"].as_i64().zip(rest["done"].as_i64()).map(|(first, rest)| first + rest);
    assert_eq!(sent, Some(4), "nothing twice: {stopped} {rest}");
}

/// The same commands on a file.
#[test]
fn everything_works_on_sqlite_too() {
    let place = std::env::temp_dir().join(format!("posthaste-events-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir(&place).expect("the temporary directory can be written to");
    let url = format!("sqlite:{}", place.join("shop.db").display());
    let cli = |args: &[&str]| run(&[args, &["--url", &url]].concat()).ok();
    cli(&["migrate", "up"]);
    let first = cli(&["append", "a.x", "--key", "k", "--payload", "{}"]).out.trim().to_owned();
    cli(&["append", "b.x", "--payload", "{}"]);
    let file = Scratch::new(&format!("outbox.url = \"{url}\"\nhttp.listen = \"127.0.0.1:0\"\n{ALL}"));
    let relay = || Daemon::start(&["--config", file.path()]);
    let daemon = relay();
    daemon.events(2);
    daemon.stop();
    let page = cli(&["events", "list", "--topic", "a.*", "--json"]).json();
    assert_eq!(ids(&page), [&first]);
    let shown = cli(&["events", "show", &first]).out;
    assert!(shown.contains("out: delivered"), "{shown}");
    let tail = Daemon::spawn(posthaste(&[
        "events",
        "tail",
        "--json",
        "--interval",
        "20ms",
        "--limit",
        "1",
        "--url",
        &url,
    ]));
    tail.says("following the log");
    cli(&["append", "c.x", "--payload", "{}"]);
    assert_eq!(tail.events(1)[0]["topic"], "c.x");
    let replay = ["events", "replay", "--sink", "out", "--key", "k", "--reason", "lost", "--yes", "--json"];
    assert_eq!(cli(&replay).json()["done"], 1);
    let daemon = relay();
    let topics: Vec<Value> = daemon.events(2).iter().map(|event| event["headers"]["type"].clone()).collect();
    assert!(topics.contains(&"a.x".into()) && topics.contains(&"c.x".into()), "{topics:?}");
    daemon.stop();
    let _ = std::fs::remove_dir_all(&place);
}

/// Whoever is asked says when to come again: what waits for a retry is due then, and shown so. What waits for
/// a destination has no time of its own: one of them asks for all, when the header's time has come.
#[cfg(feature = "http")]
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_by_retry_after_is_due_when_the_header_says() {
    use posthaste::Timestamp;
    use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions};
    const WAIT_S: i64 = 1_800;
    let Some(outbox) = Outbox::new().await else { return };
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    // The first is the event's own failure, the others are its destination's.
    let statuses = [500_u16, 429, 503];
    let mut rest =
        "[sinks.hook]\ntype = \"http\"\nstart_at = \"earliest\"\nallow_private = true\n".to_owned();
    for status in statuses {
        let path = format!("/{status}");
        receiver.always(&path, Answer::status(status).header("Retry-After", &WAIT_S.to_string()));
        let to = format!("{}{path}", receiver.url());
        rest.push_str(&format!(
            "[[route]]\nname = \"r{status}\"\ntopic = \"t{status}\"\nsink = \"hook\"\ndestination = \"{to}\"\n"
        ));
    }
    let file = outbox.config(&rest);
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        since.as_micros() as i64
    };
    let before = now();
    let ids = statuses.map(|status| outbox.append(&[&format!("t{status}"), "--payload", "x"]));
    let daemon = Daemon::start(&["--config", file.path()]);
    for (status, id) in statuses.into_iter().zip(&ids) {
        let show =
            |more: &[&str]| run(&[&["events", "show", id, "--config", file.path()], more].concat()).ok();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let due_at = loop {
            let life = show(&["--json"]).json();
            let sinks = life["sinks"].as_array().expect("sinks");
            let hook = sinks.iter().find(|sink| sink["sink"] == "hook").cloned().unwrap_or_default();
            let waiting = &hook["waiting"];
            if waiting["history"][0]["code"] == format!("http.{status}") {
                break waiting["due_at"].clone();
            }
            assert!(std::time::Instant::now() < end, "{life}\n{}", daemon.said());
            std::thread::sleep(std::time::Duration::from_millis(50)); // pace: an answer cannot call when it changes
        };
        let text = show(&[]).out;
        if status != 500 {
            assert!(text.contains("waits (outage), until its destination answers again"), "{status}: {text}");
            continue;
        }
        let due: Timestamp = serde_json::from_value(due_at.clone()).expect("a time");
        let answered = before + WAIT_S * 1_000_000..=now() + WAIT_S * 1_000_000;
        assert!(answered.contains(&due.0), "{status}: due {due_at}, and now is {}", now());
        let shown = due_at.as_str().expect("a text")[..19].replace('T', " ");
        assert!(text.contains(&format!("due {shown}")), "{status}: {text}");
    }
    daemon.stop();
}
