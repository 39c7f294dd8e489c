//! Exchanges, queues and bindings from a file. What is there is made and changed by hand by another client,
//! and read from the broker's own list of definitions.

use super::*;
use crate::ground::topology::{Operator, rows};
use lapin::options::QueueBindOptions;
use posthaste_brokers::Secret;
use posthaste_brokers::topology::{AdminFailure, Kind};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Certs, Manner, Port, Receiver, ReceiverOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

const FILE: &str = r##"
exchange = [
    { name = "events", kind = "topic", arguments = { "alternate-exchange" = "amq.fanout" } },
    { name = "of heads/ü%2F#", kind = "headers" },
]
queue = [
    { name = "billing", arguments = { "x-delivery-limit" = 20 } },
    { name = "audit log/ü%2F#?", kind = "classic", arguments = { "x-max-length" = 1000, "x-overflow" = "reject-publish" } },
]
binding = [
    { exchange = "events", queue = "billing", routing_key = "orders.#" },
    { exchange = "events", queue = "audit log/ü%2F#?", routing_key = "#" },
    { exchange = "of heads/ü%2F#", queue = "billing", arguments = { "x-match" = "all", text = "5", number = 5 } },
]
"##;

/// A broker with its management.
struct Managed {
    server: Rabbitmq,
    port: Port,
}

/// The one of all tests here. Each has a virtual host of its own.
async fn managed() -> Result<&'static Managed, ServiceError> {
    static SHARED: OnceCell<Result<Managed, ServiceError>> = OnceCell::const_new();
    let start = async || {
        let port = Port::claim().expect("a port");
        let at = format!("management.tcp.port = {}", port.number());
        let server = Rabbitmq::start(&[&at, "management.tcp.ip = 127.0.0.1"]).await?;
        Ok(Managed { server, port })
    };
    SHARED.get_or_init(start).await.as_ref().map_err(Clone::clone)
}

/// A virtual host, and two clients that look at it from outside.
struct Host {
    broker: &'static Managed,
    name: String,
    _connection: Connection,
    channel: Channel,
}

impl Host {
    async fn open() -> Result<Self, ServiceError> {
        let broker = managed().await?;
        let name = unique("host");
        broker.order("PUT", &format!("/api/vhosts/{name}"), &json!({})).await;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        broker.order("PUT", &format!("/api/permissions/{name}/guest"), &all).await;
        let url = format!("{}/{name}", broker.server.url());
        let connected = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connected.expect("the test's own client connects");
        let channel = connection.create_channel().await.expect("a channel");
        Ok(Self { broker, name, _connection: connection, channel })
    }

    fn config(&self) -> RabbitmqConfig {
        RabbitmqConfig::new(&format!("{}/{}", self.broker.server.url(), self.name))
    }

    fn operator(&self) -> Operator {
        operator(self.config(), &self.broker.url())
    }

    fn of_user(&self, user: &str, password: &str) -> Operator {
        let config = self.config().with(|options| {
            options.user = Some(user.to_owned());
            options.password = Some(Secret::new(password));
        });
        operator(config, &self.broker.url())
    }

    async fn user(&self, tag: &str, rights: Option<[&str; 3]>) -> String {
        let name = unique("user");
        let user = json!({ "password": "pw", "tags": tag });
        self.broker.order("PUT", &format!("/api/users/{name}"), &user).await;
        if let Some([configure, write, read]) = rights {
            let rights = json!({ "configure": configure, "write": write, "read": read });
            self.broker.order("PUT", &format!("/api/permissions/{}/{name}", self.name), &rights).await;
        }
        name
    }

    /// All that was defined there, of one kind, as the broker tells it.
    async fn defined(&self, kind: &str) -> Vec<Value> {
        let all = self.broker.ask(&format!("/api/definitions/{}", self.name)).await;
        let mut found = all[kind].as_array().expect("a list").clone();
        found.sort_by_key(Value::to_string);
        found
    }

    async fn one(&self, kind: &str, name: &str) -> Value {
        let found = self.defined(kind).await.into_iter().find(|found| found["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not there"))
    }

    async fn queue(&self, name: &str, arguments: FieldTable) {
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), durable, arguments).await.expect("a queue");
    }

    async fn exchange(&self, name: &str, kind: ExchangeKind) {
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let made = self.channel.exchange_declare(name.into(), kind, durable, FieldTable::default());
        made.await.expect("an exchange");
    }

    async fn bind(&self, exchange: &str, queue: &str, key: &str) {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let bound = self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, none);
        bound.await.expect("bound");
    }
}

fn operator(config: RabbitmqConfig, at: &str) -> Operator {
    Operator::new("rabbitmq", SinkConfig::Rabbitmq(Box::new(config)), Some(at.to_owned()))
}

impl Managed {
    fn url(&self) -> String {
        format!("http://{}", self.port.addr())
    }

    /// The tests' own client of the management, which shares no code with ours.
    async fn http(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.port.addr()).await.expect("the management listens");
        let login = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nContent-Type: application/json";
        let size = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\n{login}\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    async fn ask(&self, path: &str) -> Value {
        let (status, body) = self.http("GET", path, "").await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn order(&self, method: &str, path: &str, body: &Value) {
        let (status, words) = self.http(method, path, &body.to_string()).await;
        assert!((200..300).contains(&status), "{path}: {status} {words}");
    }
}

#[tokio::test]
async fn from_empty_to_the_file_and_then_nothing() {
    let host = require_service!(Host::open().await);
    host.exchange("theirs", ExchangeKind::Fanout).await;
    host.queue("theirs", reject_above(7)).await;
    host.bind("theirs", "theirs", "k").await;
    let others = [host.one("exchanges", "theirs").await, host.one("queues", "theirs").await];
    let operator = host.operator();
    let first = operator.plan(FILE).await;
    assert_eq!(rows(&first).len(), 7, "{first:?}");
    assert!(rows(&first).iter().all(|row| row.starts_with("add ") && row.ends_with(" plain")), "{first:?}");
    assert_eq!(host.defined("queues").await.len(), 1, "a plan changes nothing");
    operator.apply(&first).await;

    let events = host.one("exchanges", "events").await;
    assert_eq!((&events["type"], &events["durable"]), (&json!("topic"), &json!(true)));
    assert_eq!(events["arguments"], json!({ "alternate-exchange": "amq.fanout" }));
    assert_eq!(host.one("exchanges", "of heads/ü%2F#").await["type"], "headers");
    let billing = host.one("queues", "billing").await;
    assert_eq!(billing["arguments"], json!({ "x-queue-type": "quorum", "x-delivery-limit": 20 }));
    let audit = host.one("queues", "audit log/ü%2F#?").await;
    assert_eq!((&audit["durable"], &audit["auto_delete"]), (&json!(true), &json!(false)));
    assert_eq!(audit["arguments"]["x-max-length"], 1_000);
    let bindings = host.defined("bindings").await;
    assert_eq!(bindings.len(), 4, "{bindings:?}");
    let heads = bindings.iter().find(|bound| bound["source"] == "of heads/ü%2F#").expect("bound");
    assert_eq!(heads["arguments"], json!({ "x-match": "all", "text": "5", "number": 5 }));

    let second = operator.plan(FILE).await;
    let same = [Kind::Exchange, Kind::Queue, Kind::Binding].map(|kind| second.same.get(&kind).copied());
    assert_eq!((rows(&second), same), (Vec::new(), [Some(2), Some(2), Some(3)]), "{second:?}");
    for name in ["exchange:theirs", "queue:theirs", "binding:theirs/theirs/k"] {
        assert!(second.others.iter().any(|other| other.to_string() == name), "{name}: {second:?}");
    }
    // To make the same again harms nobody.
    operator.apply(&first).await;
    assert_eq!([host.one("exchanges", "theirs").await, host.one("queues", "theirs").await], others);
    assert_eq!(host.defined("bindings").await, bindings);
}

#[tokio::test]
async fn one_thing_changed_by_hand_is_the_whole_difference() {
    let host = require_service!(Host::open().await);
    let operator = host.operator();
    operator.apply(&operator.plan(FILE).await).await;
    host.queue("theirs", FieldTable::default()).await;
    let whole =
        [host.defined("exchanges").await, host.defined("queues").await, host.defined("bindings").await];
    // Something of others on what is ours.
    host.bind("events", "theirs", "orders.#").await;
    assert_eq!(rows(&operator.plan(FILE).await), [""; 0]);
    let unbound =
        host.channel.queue_unbind("theirs".into(), "events".into(), "orders.#".into(), Default::default());
    unbound.await.expect("unbound");

    let unbound =
        host.channel.queue_unbind("billing".into(), "events".into(), "orders.#".into(), Default::default());
    unbound.await.expect("unbound");
    let plan = operator.plan(FILE).await;
    assert_eq!(rows(&plan), ["add binding:events/billing/orders.# plain"]);
    operator.apply(&plan).await;
    let mended =
        [host.defined("exchanges").await, host.defined("queues").await, host.defined("bindings").await];
    assert_eq!(mended, whole);

    // A queue and an exchange that somebody made anew. They differ, and are not touched.
    host.channel.queue_delete("billing".into(), QueueDeleteOptions::default()).await.expect("deleted");
    host.queue("billing", FieldTable::default()).await;
    host.channel.exchange_delete("events".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    host.exchange("events", ExchangeKind::Direct).await;
    let before = [host.one("exchanges", "events").await, host.one("queues", "billing").await];
    let plan = operator.plan(FILE).await;
    let blocked: Vec<String> = rows(&plan).into_iter().filter(|row| row.starts_with("change")).collect();
    assert_eq!(
        blocked,
        [
            "change exchange:events alternate-exchange nothing -> amq.fanout blocked",
            "change exchange:events type direct -> topic blocked",
            "change queue:billing type classic -> quorum blocked",
            "change queue:billing x-delivery-limit nothing -> 20 blocked",
        ]
    );
    // Even if somebody asked for it.
    let answers = operator.try_apply(&plan).await;
    let refused = answers.iter().filter(|answer| matches!(answer, Err(AdminFailure::Refused(_)))).count();
    assert_eq!(refused, 2, "{answers:?}");
    assert_eq!([host.one("exchanges", "events").await, host.one("queues", "billing").await], before);
}

#[tokio::test]
async fn f87_a_thing_goes_by_its_name_alone() {
    let host = require_service!(Host::open().await);
    let operator = host.operator();
    for name in ["a", "a.b", "kept"] {
        host.queue(name, FieldTable::default()).await;
        host.exchange(name, ExchangeKind::Topic).await;
        host.bind(name, name, "x/y#").await;
        host.bind(name, name, "z").await;
    }
    let kept = r#"queue = [ { name = "kept", kind = "classic" } ]"#;
    for nothing in [vec![], vec!["queue:*"], vec!["queue:kept"], vec!["queue:A"], vec!["binding:a/a/"]] {
        assert_eq!(rows(&operator.plan_with(kept, &nothing).await), [""; 0], "{nothing:?}");
    }
    for (name, what, left) in
        [("binding:a/a/x/y#", "bindings", 5), ("exchange:a", "exchanges", 2), ("queue:a", "queues", 2)]
    {
        let plan = operator.plan_with(kept, &[name]).await;
        assert_eq!(rows(&plan), [format!("remove {name} destroys")]);
        operator.apply(&plan).await;
        // To remove it twice is to remove it once.
        operator.apply(&plan).await;
        assert_eq!(host.defined(what).await.len(), left, "{name}");
    }
    for own in ["exchange:amq.topic", "binding:/kept/kept"] {
        assert_eq!(rows(&operator.plan_with(kept, &[own]).await), [format!("remove {own} blocked")]);
    }
    let ours = r#"exchange = [ { name = "amq.ours", kind = "topic" } ]"#;
    assert_eq!(rows(&operator.plan(ours).await), ["add exchange:amq.ours blocked"]);
}

/// A headers exchange may have bindings that differ in nothing but their arguments.
#[tokio::test]
async fn bindings_that_cannot_be_told_apart_are_left_alone() {
    let host = require_service!(Host::open().await);
    let operator = host.operator();
    let file = r#"
        exchange = [ { name = "h", kind = "headers" } ]
        queue = [ { name = "q", kind = "classic" } ]
        binding = [ { exchange = "h", queue = "q", arguments = { region = "eu" } } ]
    "#;
    operator.apply(&operator.plan(file).await).await;
    let mut arguments = FieldTable::default();
    arguments.insert("region".into(), AMQPValue::LongString("us".into()));
    let bound =
        host.channel.queue_bind("q".into(), "h".into(), "".into(), QueueBindOptions::default(), arguments);
    bound.await.expect("bound");
    for destroy in [vec![], vec!["binding:h/q/"]] {
        let plan = operator.plan_with(file, &destroy).await;
        assert_eq!(rows(&plan), [""; 0], "{plan:?}");
        assert_eq!(plan.unseen.len(), 1, "{plan:?}");
        assert!(plan.unseen[0].why.contains("2 bindings have this name"), "{plan:?}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let host = require_service!(Host::open().await);
    let admin = host.operator();
    let scope = || posthaste_brokers::topology::Scope {
        kinds: [Kind::Exchange, Kind::Queue, Kind::Binding].into(),
        ..Default::default()
    };
    // No tag, and a wrong password.
    let plain = host.user("", Some([".*", ".*", ".*"])).await;
    for (operator, user) in
        [(host.of_user(&plain, "pw"), &plain), (host.of_user("guest", SECRET), &"guest".into())]
    {
        let failure = operator.admin.look(&scope()).await.expect_err("refused").to_string();
        let named = format!("refuses user {user:?}");
        assert!(failure.contains(&named) && failure.contains("`management`"), "{failure}");
        assert!(!failure.contains(SECRET), "{failure}");
    }
    // A tag, and no right to the virtual host.
    let stranger = host.of_user(&host.user("management", None).await, "pw");
    let plan = stranger.plan(FILE).await;
    assert!(plan.changes.is_empty() && plan.same.is_empty(), "{plan:?}");
    assert_eq!(plan.unseen.len(), 3, "{plan:?}");
    assert!(plan.unseen.iter().all(|unseen| unseen.why.contains(&host.name)), "{plan:?}");
    // A tag, and the right to read.
    let name = host.user("management", Some(["", "", ".*"])).await;
    let reader = host.of_user(&name, "pw");
    let plan = reader.plan(r#"queue = [ { name = "mine" } ]"#).await;
    assert_eq!(rows(&plan), ["add queue:mine plain"]);
    let answers = reader.try_apply(&plan).await;
    let Err(AdminFailure::Refused(why)) = &answers[0] else { panic!("{answers:?}") };
    let expected = format!("the right to configure queue \"mine\" is missing for user {name:?}");
    assert!(why.starts_with(&expected), "{why}");
    // No such virtual host.
    let config = RabbitmqConfig::new(&format!("{}/nowhere", host.broker.server.url()));
    let nowhere = operator(config, &host.broker.url()).plan(FILE).await;
    assert!(nowhere.changes.is_empty() && nowhere.unseen.len() == 3, "{nowhere:?}");
    assert_eq!(rows(&admin.plan(r#"queue = [ { name = "mine" } ]"#).await), ["add queue:mine plain"]);
}

/// An answer that is lost is looked up and not guessed; one that makes no sense is no answer.
#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a port");
    let config = || RabbitmqConfig::new("amqp://127.0.0.1:1");
    let operator = operator(config(), &receiver.url());
    let list = "/api/queues/%2F?columns=name,type,durable,auto_delete,arguments";
    receiver.always("/api/overview", Answer::status(200).body(r#"{"cluster_name":"c"}"#));
    receiver.next(list, [Answer::status(200).body("[]")]);
    let plan = operator.plan(r#"queue = [ { name = "q" } ]"#).await;
    assert_eq!(rows(&plan), ["add queue:q plain"]);
    receiver.always("/api/queues/%2F/q", Answer::in_manner(Manner::CloseUnanswered));
    let made = r#"[{"name":"q","type":"quorum","durable":true,"arguments":[]}]"#;
    receiver.next(list, [Answer::status(200).body("[]"), Answer::status(200).body(made)]);
    operator.apply(&plan).await;
    let orders = receiver.requests_for("/api/queues/%2F/q");
    assert_eq!(orders.len(), 1, "what may be done is not done again: {orders:?}");
    assert_eq!(orders[0].header("authorization"), Some("Basic Z3Vlc3Q6Z3Vlc3Q="));

    for (answer, words) in [
        (Answer::status(200).body("<html>"), "a strange answer"),
        (Answer::status(500).body("{}"), "500"),
        (Answer::status(302).header("location", "http://elsewhere"), "302"),
        (Answer::in_manner(Manner::Garbage), &receiver.addr().to_string()),
        (Answer::in_manner(Manner::HalfBody), &receiver.addr().to_string()),
    ] {
        receiver.next("/api/overview", [answer]);
        let failure = operator.admin.look(&Default::default()).await.expect_err(words).to_string();
        assert!(failure.contains(words), "{failure}");
    }
}

/// The right server is asked, and a wrong one never hears the password (F29).
#[tokio::test]
async fn f29_the_management_over_tls() {
    let certs = Certs::make().expect("certificates");
    let receiver = Receiver::start(&ReceiverOptions::default().tls(certs.server())).await.expect("a port");
    receiver.always("/api/overview", Answer::status(200).body(r#"{"cluster_name":"c"}"#));
    let trusting = |ca: &std::path::Path| {
        let config = RabbitmqConfig::new("amqps://127.0.0.1:1");
        operator(config.with(|options| options.ca_file = Some(ca.to_owned())), &receiver.url())
    };
    let look = trusting(certs.ca()).admin.look(&Default::default()).await.expect("an answer");
    assert_eq!(look.cluster, "c//");
    let heard = receiver.requests().len();
    let other = certs.other_ca();
    let failure = trusting(other).admin.look(&Default::default()).await.expect_err("a stranger").to_string();
    assert!(
        failure.contains("no TLS connection") && failure.contains(&other.display().to_string()),
        "{failure}"
    );
    receiver.show_certificate(certs.expired_server());
    assert!(trusting(certs.ca()).admin.look(&Default::default()).await.is_err());
    assert_eq!(receiver.requests().len(), heard, "nobody else hears the password");
}
