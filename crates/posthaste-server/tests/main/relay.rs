//! Append, run, look: the way of an event through the real process and a real database.

use crate::binary::{Scratch, finish, posthaste, run};
use crate::daemon::{Daemon, request};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A migrated database of its own. Its roles have names of their own too: roles belong to the whole server.
pub(crate) struct Outbox {
    database: TestDatabase,
}

impl Outbox {
    pub(crate) async fn new() -> Option<Self> {
        let outbox = Self { database: require_service!(TestDatabase::create().await, None) };
        outbox.cli(&["migrate", "up"]);
        Some(outbox)
    }

    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    /// The same for a login that may do what a role may.
    pub(crate) async fn url_as(&self, role: &str) -> String {
        let login = format!("login_{}", uuid::Uuid::now_v7().simple());
        self.execute(&format!("create role {login} login in role {role}")).await;
        self.database.url_as(&login)
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let client = self.database.connect().await.expect("a connection");
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Runs a command on it, which must succeed.
    #[track_caller]
    pub(crate) fn cli(&self, args: &[&str]) -> crate::binary::Ended {
        run(&[args, &["--url", &self.url()]].concat()).ok()
    }

    #[track_caller]
    pub(crate) fn append(&self, args: &[&str]) -> String {
        self.cli(&[&["append"], args].concat()).out.trim().to_owned()
    }

    /// A configuration file with these lines behind the outbox.
    pub(crate) fn config(&self, rest: &str) -> Scratch {
        Scratch::new(&format!(
            "service = \"shop\"\noutbox.url = \"{}\"\nhttp.listen = \"127.0.0.1:0\"\n{rest}",
            self.url()
        ))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_goes_from_append_to_the_sink() {
    let Some(outbox) = Outbox::new().await else { return };
    let first =
        outbox.append(&["orders.placed", "--key", "k", "--payload", "{\"a\": 1}", "--header", "region=eu"]);
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    let second = outbox.append(&["orders.paid", "--key", "k", "--tombstone", "--type", "Paid"]);
    let events = daemon.events(2);
    assert_eq!((events[0]["id"].as_str(), events[1]["id"].as_str()), (Some(&*first), Some(&*second)));
    assert_eq!(events[0]["payload"], "{\"a\": 1}");
    assert_eq!(events[0]["headers"]["region"], "eu");
    assert_eq!(events[0]["headers"]["source"], "default");
    assert_eq!(
        (&events[1]["payload"], &events[1]["headers"]["type"]),
        (&serde_json::Value::Null, &"Paid".into())
    );
    let said = daemon.stop();
    assert!(said.contains("relaying default → stdout") && said.contains("drained"), "{said}");
    let sinks = outbox.cli(&["status", "--json"]).json()["outboxes"][0]["sinks"].clone();
    assert_eq!((&sinks[0]["sink"], &sinks[0]["backlog"]["count"]), (&"stdout".into(), &0.into()));
    assert!(sinks[0]["lanes"][0]["owner"].is_null(), "{sinks}");
}

/// A broker that is down is no reason to restart the relay, and its code is where people look.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn health_says_which_sink_is_out_of_reach() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(
        "[sinks.far]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"far\"]\n",
    );
    outbox.append(&["a", "--payload", "1"]);
    let daemon = Daemon::start(&["--config", file.path()]);
    let told = |body: &str| {
        let ready: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let one = ready["outboxes"][0].clone();
        let problem = &one["problems"][0];
        let is_told = problem["kind"] == "sink_out_of_reach"
            && problem["sink"] == "far"
            && problem["code"].as_str().is_some_and(|code| code.starts_with("nats."))
            && problem["since"].is_string();
        is_told && one["why"].as_str().is_some_and(|why| why.ends_with("1 event waits"))
    };
    daemon.page("/readyz", |status, body| status == 200 && told(body));
    // Whoever looks at the database reads the same, as soon as it is written there.
    let end = Instant::now() + Duration::from_secs(60);
    let mut seen = outbox.cli(&["status"]).out;
    while !seen.contains("out of reach") {
        assert!(Instant::now() < end, "{seen}");
        seen = outbox.cli(&["status"]).out;
    }
    assert!(seen.contains("sink far is out of reach for ") && seen.contains("(nats."), "{seen}");
    let seen = outbox.cli(&["status", "--json"]).json();
    assert_eq!(seen["outboxes"][0]["problems"][0]["kind"], "sink_out_of_reach", "{seen}");
    daemon.stop();
}

/// Passed over by the new one, and never read by the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_sink_behind_unread_events_says_so() {
    let Some(outbox) = Outbox::new().await else { return };
    outbox.append(&["a", "--payload", "1"]);
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    daemon.events(1);
    let said = daemon.stop();
    assert!(!said.contains("no sink has read"), "the first sink reads all: {said}");
    outbox.append(&["b", "--payload", "2"]);
    let file =
        outbox.config("[sinks.other]\ntype = \"stdout\"\n[[route]]\ntopics = [\"c\"]\nsinks = [\"other\"]\n");
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.says("lane taken outbox=default lane=unrouted/0");
    outbox.append(&["nowhere", "--payload", "3"]);
    let last = outbox.append(&["c", "--payload", "4"]);
    assert_eq!(daemon.events(1)[0]["id"], *last);
    // By another lane, in its own time.
    daemon.says("topic=nowhere code=route.none");
    let said = daemon.stop();
    let warning = said.lines().find(|line| line.contains("no sink has read")).unwrap_or_default();
    assert!(warning.contains("sink=other") && warning.contains("unread=1"), "{said}");
    // A dead letter without a route that left is not delivered by anybody.
    let list = outbox.cli(&["dead", "list", "--json"]).json();
    let id = list["dead"][0]["id"].as_str().unwrap_or_else(|| panic!("{list}")).to_owned();
    outbox.cli(&["dead", "discard", "--id", &id, "--reason", "not ours"]);
    let shown = outbox.cli(&["events", "show", &id]).out;
    assert!(shown.contains("unrouted: no route took its topic; discarded"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_answers_with_the_first_id() {
    let Some(outbox) = Outbox::new().await else { return };
    let args = ["t", "--payload", "x", "--idempotency-key", "once", "--json"];
    let first = outbox.cli(&[&["append"], args.as_slice()].concat()).json();
    let again = outbox.cli(&[&["append"], args.as_slice()].concat()).json();
    assert_eq!(first["id"], again["id"]);
    assert_eq!((&first["appended"], &again["appended"]), (&true.into(), &false.into()));
    let refused = run(&["append", "", "--payload", "x", "--url", &outbox.url()]);
    assert_eq!(
        (refused.code, refused.err.as_str()),
        (2, "error: the event was not appended: topic is empty\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_delivery_waits_for_its_time() {
    let Some(outbox) = Outbox::new().await else { return };
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    // A machine that needs longer than this for the second append shows nothing, and is given more time.
    for (round, delay) in [2, 10, 40].into_iter().enumerate() {
        let begun = Instant::now();
        let late = outbox.append(&["t", "--payload", "late", "--deliver-at", &format!("+{delay}s")]);
        let soon = outbox.append(&["t", "--payload", "soon"]);
        daemon.events(2 * round + 1);
        let in_time = begun.elapsed() < Duration::from_secs(delay);
        let order: Vec<_> =
            daemon.events(2 * round + 2)[2 * round..].iter().map(|event| event["id"].clone()).collect();
        if in_time {
            assert_eq!(order, [soon, late]);
            return;
        }
    }
    panic!("no two appends within 40 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_health_have_their_names() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(
        "[sinks.out]\ntype = \"stdout\"\nstart_at = \"earliest\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n",
    );
    let daemon = Daemon::start(&["--config", file.path()]);
    outbox.append(&["t", "--payload", "x"]);
    daemon.events(1);
    let ready = daemon.page("/readyz", |status, _| status == 200);
    let ready: serde_json::Value = serde_json::from_str(&ready).expect("JSON");
    assert_eq!((&ready["ready"], &ready["outboxes"][0]["outbox"]), (&true.into(), &"default".into()));
    assert_eq!(ready["outboxes"][0]["lanes_owned"], 1);
    assert_eq!(daemon.get("/livez").0, 200);
    let counted = "outbox_published_total{service=\"shop\",outbox=\"default\",sink=\"out\"} 1";
    let metrics =
        daemon.page("/metrics", |_, body| body.contains(counted) && body.contains("outbox_backlog_gauge{"));
    for name in [
        "outbox_publish_attempts_total",
        "outbox_published_total",
        "outbox_retry_total",
        "outbox_failed_permanent_total",
        "outbox_backlog_gauge",
        "outbox_publish_latency_seconds",
        "outbox_pending_count",
        "outbox_oldest_age_seconds",
        "outbox_process_latency",
        "outbox_failure_count",
        "outbox_average_age_seconds",
        "outbox_dead_letters",
        "posthaste_deferred_events",
        "posthaste_lanes_owned",
        "posthaste_read_seconds",
        "posthaste_settle_seconds",
    ] {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is missing:\n{metrics}");
        assert!(metrics.contains(&format!("# HELP {name} ")), "{name} has no help");
    }
    let mut buckets =
        metrics.lines().filter(|line| line.starts_with("outbox_publish_latency_seconds_bucket{"));
    for bound in ["0.004", "0.05", "0.2"] {
        assert!(buckets.any(|line| line.contains(&format!("le=\"{bound}\""))), "{bound}:\n{metrics}");
    }
    assert_eq!(daemon.get("/nothing").0, 404);
    assert_eq!(request(&daemon.address(), "HEAD /livez HTTP/1.1\r\n\r\n"), (200, String::new()));
    assert_eq!(request(&daemon.address(), "HEAD /nothing HTTP/1.1\r\n\r\n"), (404, String::new()));
    assert_eq!(request(&daemon.address(), "POST /metrics HTTP/1.1\r\n\r\n").0, 405);
    daemon.stop();
}

/// Two sinks that print, told apart by their destinations.
const TWO: &str = "[sinks.one]\ntype = \"stdout\"\n[sinks.two]\ntype = \"stdout\"\n\
    [[route]]\nname = \"r1\"\ntopic = \"*\"\nsink = \"one\"\ndestination = \"one\"\n\
    [[route]]\nname = \"r2\"\ntopic = \"*\"\nsink = \"two\"\ndestination = \"two\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn pause_holds_a_sink_and_resume_lets_it_go() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config(TWO);
    // The first run makes the sinks known.
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |_, body| body.contains("\"lanes_owned\":2"));
    daemon.stop();
    outbox.cli(&["pause", "--sink", "one", "--reason", "test"]);
    let daemon = Daemon::start(&["--config", file.path()]);
    for n in 1..=5 {
        outbox.append(&["t", "--payload", "x"]);
        let passed = daemon.events(n);
        assert!(
            passed.iter().all(|event| event["destination"] == "two"),
            "nothing passes a paused sink: {passed:?}"
        );
    }
    let one = |outbox: &Outbox| outbox.cli(&["status", "--json"]).json()["outboxes"][0]["sinks"][0].clone();
    assert_eq!((&one(&outbox)["paused"], &one(&outbox)["backlog"]["count"]), (&true.into(), &5.into()));
    outbox.cli(&["resume", "--sink", "one"]);
    assert_eq!(daemon.events(10).iter().filter(|event| event["destination"] == "one").count(), 5);
    outbox.cli(&["rate", "1000", "--sink", "one"]);
    assert_eq!((&one(&outbox)["paused"], &one(&outbox)["rate_limit_per_s"]), (&false.into(), &1000.0.into()));
    outbox.cli(&["rate", "off", "--sink", "one"]);
    assert!(one(&outbox)["rate_limit_per_s"].is_null());
    let text = outbox.cli(&["status"]).out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let unknown = run(&["pause", "--route", "r3", "--reason", "test", "--config", file.path()]);
    assert!(unknown.code == 2 && unknown.err.contains("configured are: r1, r2"), "{}", unknown.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn hangup_applies_what_can_change_and_names_the_rest() {
    let Some(outbox) = Outbox::new().await else { return };
    let rest =
        "[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\nretry.max_attempts = 3\n";
    let file = outbox.config(rest);
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, _| status == 200);
    daemon.signal(Signal::HUP);
    daemon.says("SIGHUP: nothing has changed");
    let base = std::fs::read_to_string(&file.0).expect("it is there");
    let changed = base
        .replace("max_attempts = 3", "max_attempts = 4")
        .replace("type = \"stdout\"", "type = \"null\"\nrate_limit_per_s = 9");
    let write = |text: &str| std::fs::write(&file.0, text).expect("it is ours");
    write(&format!("{changed}[relay]\npoll_max_ms = 777\nlease_ttl_ms = 30000\n"));
    daemon.signal(Signal::HUP);
    daemon.says("SIGHUP: relay.poll_max_ms: 5000 → 777");
    daemon.says("SIGHUP: route.*.retry.max_attempts: 3 → 4");
    daemon.says("SIGHUP: sinks.out.rate_limit_per_s: not set → 9");
    daemon.says("SIGHUP: takes effect at the next start: sinks.out.type: \"stdout\" → \"null\"");
    daemon.says("SIGHUP: takes effect at the next start: relay.lease_ttl_ms: 20000 → 30000");
    write("[relay]\npoll_maxms = 1\n");
    daemon.signal(Signal::HUP);
    daemon.says("cannot be used, nothing was changed");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_listed_set_and_rewound() {
    let Some(outbox) = Outbox::new().await else { return };
    let id = outbox.append(&["t", "--payload", "x"]);
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    daemon.events(1);
    let lanes = outbox.cli(&["lanes", "--json"]).json();
    assert_eq!(lanes["sinks"][0]["lanes"].as_array().map(Vec::len), Some(1), "{lanes}");
    daemon.stop();
    let rewind = |to: &str| {
        let args = ["lanes", "rewind", "--sink", "stdout", "--to", to, "--reason", "test", "--json"];
        outbox.cli(&args).json()
    };
    let said = rewind("time:1h");
    let text = said["text"].as_str().expect("a text");
    assert!(said["events"] == 1 && text.contains("1 event is sent again"), "{said}");
    assert!(text.contains("duplicate_window"), "{said}");
    // An hour ago was before all of it: it is there already.
    let said = rewind("earliest");
    assert!(said["events"] == 0 && said["text"].to_string().contains("nothing to send again"), "{said}");
    outbox.cli(&["lanes", "set", "4", "--reason", "test"]);
    let lanes = outbox.cli(&["lanes", "--json"]).json();
    assert_eq!(lanes["sinks"][0]["lanes"].as_array().map(Vec::len), Some(4), "{lanes}");
    let daemon = Daemon::start(&["--url", &outbox.url(), "--sink", "stdout"]);
    assert_eq!(daemon.events(1)[0]["id"], id);
}

/// The number in the file is for a new outbox. Afterwards `lanes set` decides, and nobody has to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_lanes_in_the_file_gives_way_to_lanes_set() {
    let Some(outbox) = Outbox::new().await else { return };
    let rest = "[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n";
    let file = outbox.config(&format!("outbox.lanes = 2\n{rest}"));
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.page("/readyz", |status, body| status == 200 && body.contains("\"lanes_owned\":2"));
    outbox.cli(&["lanes", "set", "3", "--reason", "test"]);
    daemon.page("/readyz", |status, body| status == 200 && body.contains("\"lanes_owned\":3"));
    outbox.append(&["t", "--payload", "x"]);
    daemon.events(1);
    daemon.stop();
    let daemon = Daemon::start(&["--config", file.path()]);
    daemon.says("the outbox has 3 lanes and the configuration says 2");
    outbox.append(&["t", "--payload", "y"]);
    daemon.events(1);
    daemon.stop();
}

/// A bare number would not say its unit.
#[tokio::test(flavor = "multi_thread")]
async fn times_in_json_are_texts() {
    let Some(outbox) = Outbox::new().await else { return };
    let is_time = |value: &serde_json::Value| {
        let text = value.as_str().unwrap_or_else(|| panic!("{value} is no text"));
        assert!(text.len() == 27 && text.starts_with("20") && text.ends_with('Z'), "{text}");
    };
    let status = outbox.cli(&["status", "--json"]).json();
    is_time(&status["outboxes"][0]["now"]);
    is_time(&status["outboxes"][0]["segments"][0]["opened_at"]);
    is_time(&outbox.cli(&["migrate", "status", "--json"]).json()[0]["status"]["applied"][0]["applied_at"]);
    let dead =
        outbox.config("[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"nothing\"\nsink = \"out\"\n");
    let daemon = Daemon::start(&["--config", dead.path()]);
    outbox.append(&["t", "--payload", "x"]);
    let died = |line: &str| line.starts_with("outbox_dead_letters{") && line.ends_with(" 1");
    daemon.page("/metrics", |_, body| body.lines().any(died));
    daemon.stop();
    let letters = outbox.cli(&["dead", "list", "--json"]).json();
    is_time(&letters["dead"][0]["appended_at"]);
    is_time(&letters["dead"][0]["dead_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_logs_are_json_from_the_first_line_and_hold_no_payload() {
    let Some(outbox) = Outbox::new().await else { return };
    let mut command = posthaste(&[
        "run",
        "--url",
        &outbox.url(),
        "--sink",
        "stdout",
        "--log-format",
        "json",
        "--log-level",
        "trace",
    ]);
    command.env("POSTHASTE_HTTP__LISTEN", "off");
    let daemon = Daemon::spawn(command);
    outbox.append(&["t", "--payload", "very-secret-payload"]);
    daemon.events(1);
    let said = daemon.stop();
    for line in said.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    assert!(!said.contains("very-secret-payload"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_looks_at_store_and_sinks() {
    let Some(outbox) = Outbox::new().await else { return };
    let file = outbox.config("[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n");
    // The shared server allows prepared transactions, which is a warning beside wakeups.
    let asked = ["doctor", "--json", "--allow-warnings", "--config", file.path()];
    let remarks = finish(&mut posthaste(&asked)).ok().json();
    let of: Vec<&str> = remarks.as_array().into_iter().flatten().filter_map(|r| r["of"].as_str()).collect();
    assert!(of.contains(&"outbox default") && of.contains(&"sink out"), "{remarks}");
    let broken = run(&["doctor", "--url", &outbox.url(), "--schema", "nowhere"]);
    assert!(broken.code == 1 && broken.out.contains("fail"), "{}{}", broken.out, broken.err);
}
