//! Consumers and sources: what is read, and what is refused with which words.

use super::*;
use posthaste::consumer::OnDead;

/// A file that can be used, of which each test changes something.
const BASE: &str = r#"[[outbox]]
name = "finance"
url = "postgres://relay@db/finance"
ca_file = "/x"
tls = "verify-full"

[sinks.file]
type = "local"
path = "broker.db"

[sinks.out]
type = "stdout"

[[route]]
topics = ["finance.*", "sys.deadletter.v1"]
sinks = ["out"]

[consumers.finance-service]
source = "file"
topics = ["core.events.v1"]
url = "postgres://finance@db/finance"
dead_letters = { topic = "sys.deadletter.v1" }

[[consumers.finance-service.handle]]
types = ["campaign_*"]
sql = "finance.on_campaign"
"#;

/// The file with one text in place of another.
fn with(from: &str, to: &str) -> String {
    assert!(BASE.contains(from), "{from}");
    BASE.replacen(from, to, 1)
}

#[test]
fn a_consumer_has_its_own_login_and_the_engines_settings() {
    let more = "order = \"partition\"\non_dead = \"hold\"\nbatch_max = 7\nretry = { delays_ms = [5] }\n\
                password_file = \"/run/p\"\ntopics = [\"core.events.v1\"]";
    let config = ok(&with("topics = [\"core.events.v1\"]", more));
    assert!(config.warnings.is_empty(), "a sink that is a source is used: {:?}", config.warnings);
    let [consumer] = config.consumers.as_slice() else { panic!("one consumer") };
    assert_eq!(
        (&*consumer.name, consumer.group(), &*consumer.outbox),
        ("finance-service", "finance-service", "finance")
    );
    assert_eq!((consumer.settings.batch_max, consumer.settings.on_dead), (7, OnDead::Hold));
    assert_eq!(consumer.settings.retry.delays_ms, [5]);
    let database = &consumer.database;
    assert_eq!(
        (database.url.as_str(), &database.tls),
        ("postgres://finance@db/finance", &posthaste_postgres::TlsMode::VerifyFull)
    );
    assert_eq!(database.password_file, Some("/run/p".into()));
    let handlers: Vec<_> = consumer.handlers().collect();
    let crate::handlers::HandledBy::Function(function) = handlers[0].1 else { panic!("a function") };
    assert_eq!((handlers.len(), function), (1, "finance.on_campaign"));
    assert!(handlers[0].0.takes("any", None, Some("campaign_created")));
    // What nobody set is shown, too.
    let shown = &config.shown()["consumers"]["finance-service"];
    assert_eq!((&shown["identity"], &shown["transactions_max"]), (&json!(["id", "position"]), &json!(4)));
    config.check_runnable().expect("it can run");
}

#[test]
fn variables_reach_consumers_and_sources() {
    let file = File::new(BASE);
    let config = file.load(&[
        ("POSTHASTE_CONSUMERS__FINANCE_SERVICE__BATCH_MAX", "3"),
        ("POSTHASTE_SOURCES__OTHER__TYPE", "local"),
        ("POSTHASTE_SOURCES__OTHER__PATH", "other.db"),
        ("POSTHASTE_CONSUMERS__FINANCE_SERVICE__SOURCE", "other"),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.consumers[0].settings.batch_max, 3);
    let error =
        file.load(&[("POSTHASTE_CONSUMERS__FINANCE_SERVICE__BATCH_MXA", "3")]).err().expect("unknown");
    assert!(
        error.contains("variable POSTHASTE_CONSUMERS__FINANCE_SERVICE__BATCH_MXA: unknown key"),
        "{error}"
    );
    assert!(error.contains("did you mean `batch_max`?"), "{error}");
}

#[test]
fn consumers_may_run_without_a_relay() {
    let alone = with("ca_file", "relay = false\nca_file");
    let config = ok(&alone);
    assert!(config.outboxes[0].routes.routes().is_empty(), "no route applies");
    config.check_runnable().expect("consumers alone");
    // Whoever relays it takes the topic, or not: nobody knows here.
    ok(&alone.replace("\"sys.deadletter.v1\"]", "\"other\"]"));
    let nothing = ok("[outbox]\nurl = \"postgres://h/d\"\nrelay = false");
    let error = nothing.check_runnable().expect_err("nothing to run").to_string();
    assert!(error.contains("nothing to run"), "{error}");
    let named = wrong(&alone.replace("sinks = [\"out\"]", "sinks = [\"out\"]\noutboxes = [\"finance\"]"));
    assert!(named.contains("line 4: relay = false contradicts the route `finance.*,sys"), "{named}");
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    let consumer = "[consumers.finance-service]";
    let long = "x".repeat(201);
    let adopted = "[[outbox]]\nname = \"old\"\nurl = \"postgres://db/old\"\nadopt.preset = \"outbox-events\"\n[[outbox]]\nname = \"finance\"";
    let handle = BASE.find("[[consumers").expect("a handler");
    let table = [
        (
            with("source = \"file\"", "source = \"fiel\""),
            "line 19: there is no source `fiel`, did you mean `file`?",
        ),
        (with("source = \"file\"\n", ""), "line 18: `consumers.finance-service.source` is missing"),
        (with("source = \"file\"", "source = \"out\""), "line 19: `out` is no source: nothing can be read"),
        (
            with(consumer, "[sources.s]\ntype = \"null\"\n[consumers.finance-service]"),
            "line 19: `sources.s` is no source",
        ),
        (
            with(consumer, "[sources.file]\ntype = \"local\"\npath = \"b\"\n[consumers.finance-service]"),
            "line 18: `file` is both a source and a sink",
        ),
        (with("[\"core.events.v1\"]", "[]"), "line 20: a consumer needs `topics`"),
        (
            format!(
                "{BASE}[consumers.second]\nsource = \"file\"\ntopics = [\"a\"]\ngroup = \"finance-service\"\n\
                 [[consumers.second.handle]]\nsql = \"a.b\"\n"
            ),
            "group `finance-service` is in use by consumer `finance-service`: each would get a part",
        ),
        (
            with("[\"core.events.v1\"]", "[\"a\", \"b\"]"),
            "line 20: with more than one topic `identity_scope` must be said",
        ),
        (
            with("topics = [\"core", "outbox = \"finanze\"\ntopics = [\"core"),
            "line 20: there is no outbox `finanze`, did you mean `finance`?",
        ),
        (
            with("[[outbox]]\nname = \"finance\"", adopted)
                .replace(consumer, &format!("{consumer}\noutbox = \"old\"")),
            "outbox `old` is an adopted table, and a consumer needs our own schema",
        ),
        (
            with(
                "[[outbox]]\nname = \"finance\"",
                "[[outbox]]\nname = \"b\"\nurl = \"postgres://db/b\"\n[[outbox]]\nname = \"finance\"",
            ),
            "must say which `outbox`: b, finance",
        ),
        (
            with("[\"core.events.v1\"]", "[\"sys.deadletter.v1\"]"),
            "line 22: dead_letters.topic `sys.deadletter.v1` is among its `topics`",
        ),
        (
            with(", \"sys.deadletter.v1\"]", "]"),
            "line 22: no route of outbox `finance` takes the topic `sys.deadletter.v1`",
        ),
        (BASE[..handle].to_owned(), "line 18: [consumers.finance-service] has no handler"),
        (with("sql = \"finance.on_campaign\"", ""), "line 24: a handler needs `sql`"),
        (
            with("sql = \"f", "http = \"http://h/\"\nsql = \"f"),
            "line 24: a handler has `sql` or `http`, not both",
        ),
        (with("sql = \"f", "marks = \"app\"\nsql = \"f"), "`marks` is for handlers with `http`"),
        (
            with("url = \"postgres://finance", "url_file = \"/x\"\nurl = \"postgres://finance"),
            "a consumer has `url` or `url_file`, not both",
        ),
        (
            with("postgres://finance@db/finance", "mysql://finance@db"),
            "line 21: `consumers.finance-service.url` begins with mysql://",
        ),
        (
            BASE.replace("consumers.finance-service", &format!("consumers.{long}")),
            "must have 1 to 200 letters",
        ),
        (
            with("topics = [\"core", "tables = { request_keyz = {} }\ntopics = [\"core"),
            "line 20: unknown key `consumers.finance-service.tables.request_keyz`",
        ),
        (
            with(
                "topics = [\"core.events.v1",
                &format!("tables = \"phoenix\"\ntopics = [\"{}", &long[..101]),
            ),
            "is longer than 100 characters",
        ),
        (
            with("topics = [\"core", "tables = \"fenix\"\ntopics = [\"core"),
            "line 20: `consumers.finance-service.tables` cannot be `fenix`",
        ),
        (
            with("topics = [\"core", "batch_mxa = 3\ntopics = [\"core"),
            "line 20: unknown key `consumers.finance-service.batch_mxa`, did you mean `batch_max`?",
        ),
        (
            with("topics = [\"core", "topisc = 3\ntopics = [\"core"),
            "line 20: unknown key `consumers.finance-service.topisc`, did you mean `topics`?",
        ),
        (
            with("types =", "tpyes ="),
            "line 25: unknown key `consumers.finance-service.handle[0].tpyes`, did you mean `types`?",
        ),
        (
            with("types =", "batch_max = 3\ntypes ="),
            "line 25: unknown key `consumers.finance-service.handle[0].batch_max`: `batch_max` belongs to \
             [consumers.finance-service]",
        ),
        (
            with("types =", "topics = [\"core.evnts.v1\"]\ntypes ="),
            "line 25: `core.evnts.v1` is none of the consumer's `topics`: this handler would get nothing",
        ),
        (
            with("types =", "addresses = [\"orders.placed\"]\ntypes ="),
            "line 25: messages of this broker have no addresses: this handler would get nothing",
        ),
        (
            with("types = [\"campaign_*\"", "types = [\"campaign_>\""),
            "line 25: `campaign_>` would match nothing: only a last `*` stands for the rest of a name",
        ),
        (
            with("topics = [\"core", "batch_max = 0\ntopics = [\"core"),
            "line 20: consumers.finance-service.batch_max must be at least 1",
        ),
        (
            with("topics = [\"core", "retry = { then = { max_attempts = 0 } }\ntopics = [\"core"),
            "line 20: retry.then.max_attempts must be at least 1",
        ),
        (
            with("topics = [\"core", "identity = [\"hash\"]\ntopics = [\"core"),
            "line 20: `consumers.finance-service.identity[0]`: \"hash\" is no identity",
        ),
        (
            with("topics = [\"core", "identity = []\ntopics = [\"core"),
            "line 20: identity must name at least one place",
        ),
        (
            format!(
                "require_tls = true\n{}",
                with("tls = \"verify-full\"", "tls = \"disable\"")
                    .replace("ca_file = \"/x\"\n", "")
                    .replace("@db/", "@localhost/")
            ),
            "the database of a consumer is reached without TLS",
        ),
    ];
    for (text, expected) in table {
        let error = wrong(&text);
        assert!(error.contains(expected), "{text}\n gave: {error}\n want: {expected}");
    }
}

#[test]
fn a_consumer_in_a_sqlite_file_is_code() {
    let text = with("postgres://relay@db/finance", "sqlite:finance.db");
    let error = wrong(&text.replace("ca_file = \"/x\"\ntls = \"verify-full\"\n", ""));
    assert!(
        error.contains("is a SQLite file, which has no SQL functions to be handlers: they need PostgreSQL"),
        "{error}"
    );
}

/// A broker's source has the keys of a connection, and no others.
#[test]
fn a_source_of_a_broker_has_the_keys_of_its_connection() {
    let consumer = "[consumers.finance-service]";
    let source = |keys: &str| {
        with(consumer, &format!("[sources.far]\n{keys}\n{consumer}")).replace("\"file\"", "\"far\"")
    };
    let kinds = posthaste_brokers::source_checks();
    for kind in kinds.iter().map(|(kind, _)| kind) {
        let url = posthaste_brokers::addresses().find(|url| posthaste_brokers::kind_of(url) == Some(kind));
        let text = source(&format!("type = \"{kind}\"\nurl = \"{}\"", url.expect("an address")));
        ok(&text);
        let error = wrong(&text.replacen("[consumers.", "delivery_timeout_ms = 1\n[consumers.", 1));
        assert!(error.contains("line 21: unknown key `sources.far.delivery_timeout_ms`"), "{error}");
        // The same broker as a sink is a source, too.
        ok(&text.replace("[sources.far]", "[sinks.far]"));
    }
    for kind in posthaste_brokers::built_in().filter(|kind| kinds.iter().all(|(known, _)| known != kind)) {
        let error = wrong(&source(&format!("type = \"{kind}\"\nurl = \"x\"")));
        assert!(error.contains("line 19: `sources.far` is no source: nothing can be read"), "{error}");
    }
    if let Some(kind) = posthaste_brokers::left_out().next() {
        let error = wrong(&source(&format!("type = \"{kind}\"")));
        assert!(error.contains(&format!("line 19: this binary was built without `{kind}`")), "{error}");
    }
}

#[test]
#[cfg(feature = "kafka")]
fn how_a_group_is_joined_is_a_key_of_the_source() {
    let consumer = "[consumers.finance-service]";
    let read = |keys: &str| {
        let source = format!("[sources.log]\ntype = \"kafka\"\nurl = \"k:1\"\n{keys}\n{consumer}");
        with(consumer, &source).replace("\"file\"", "\"log\"")
    };
    for (keys, words) in [
        ("", "protocol classic"),
        ("protocol = \"consumer\"", "protocol consumer"),
        ("instance = \"f-0\"", "protocol classic, instance f-0"),
    ] {
        let consumer = ok(&read(keys)).consumers.remove(0);
        assert_eq!(consumer.source.broker().and_then(|broker| broker.joins()).as_deref(), Some(words));
    }
    for (keys, words) in [
        ("instance = \"\"", "line 21: sources.log.instance: must not be empty"),
        ("instance = \"a b\"", "letters, digits"),
        ("protocol = \"eager\"", "cannot be `eager`, known are: classic, consumer"),
    ] {
        let error = wrong(&read(keys));
        assert!(error.contains(words), "{keys}: {error}");
    }
    // One static member twice, by two sources.
    let second = "[sources.again]\ntype = \"kafka\"\nurl = \"k:1\"\ninstance = \"f-0\"\n[consumers.second]\n\
                  source = \"again\"\ntopics = [\"a\"]\ngroup = \"finance-service\"\n[[consumers.second.handle]]\n\
                  sql = \"a.b\"\n";
    let error = wrong(&format!("{}{second}", read("instance = \"f-0\"")));
    assert!(error.contains("group `finance-service` is in use by consumer `finance-service`"), "{error}");
    ok(&format!("{}{second}", read("instance = \"f-1\"")));
}
