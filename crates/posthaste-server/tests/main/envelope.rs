//! CloudEvents from an append to a subscriber of a real NATS server that knows nothing of Posthaste.

use crate::daemon::Daemon;
use crate::relay::Outbox;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection that speaks the protocol: a line of text, then bytes.
pub(crate) struct Subscriber {
    wire: TcpStream,
    reader: BufReader<TcpStream>,
}

/// A message as it arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) subject: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Subscriber {
    pub(crate) fn connect(nats: SocketAddr) -> Self {
        let wire = TcpStream::connect(nats).expect("it listens");
        wire.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        let reader = BufReader::new(wire.try_clone().expect("a second handle"));
        Self { wire, reader }
    }

    /// Makes a stream of these subjects, and hears what is published to them.
    pub(crate) fn stream(&mut self, name: &str, subjects: &str) {
        let config = json!({ "name": name, "subjects": [subjects] }).to_string();
        let create = format!("PUB $JS.API.STREAM.CREATE.{name} inbox.made {}\r\n{config}", config.len());
        let connect = "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}";
        write!(self.wire, "{connect}\r\nSUB inbox.made 1\r\nSUB {subjects} 2\r\n{create}\r\n")
            .expect("it reads");
        let made = self.next();
        assert!(
            made.subject == "inbox.made" && !String::from_utf8_lossy(&made.body).contains("\"error\""),
            "{made:?}"
        );
    }

    pub(crate) fn next(&mut self) -> Arrived {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("it answers");
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |back: usize| words[words.len() - back].parse::<usize>().expect("a length");
            let (head, whole) = match words.first() {
                Some(&"HMSG") => (number(2), number(1)),
                Some(&"MSG") => (0, number(1)),
                Some(&"PING") => {
                    self.wire.write_all(b"PONG\r\n").expect("it reads");
                    continue;
                }
                _ => continue,
            };
            let mut bytes = vec![0; whole + 2];
            self.reader.read_exact(&mut bytes).expect("it sends what it announced");
            let text = String::from_utf8(bytes[..head].to_vec()).expect("headers are text");
            let pairs = text.lines().filter_map(|line| line.split_once(": "));
            let headers = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            return Arrived { subject: words[1].to_owned(), headers, body: bytes[head..whole].to_vec() };
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cloudevents_arrive_in_both_modes() {
    let Some(outbox) = Outbox::new().await else { return };
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let mut subscriber = Subscriber::connect(nats.addr());
    subscriber.stream("EVENTS", "ev.>");
    let file = outbox.config(&format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"{}\"\nstart_at = \"earliest\"\n\
         [[route]]\ntopic = \"binary.*\"\nsink = \"nats\"\ndestination = \"ev.{{topic}}\"\nenvelope = \"cloudevents\"\n\
         [[route]]\ntopic = \"json.*\"\nsink = \"nats\"\ndestination = \"ev.{{topic}}\"\nenvelope = \"cloudevents-json\"\n",
        nats.url()
    ));
    let json = ["--content-type", "application/json", "--header", "tenant=t-1", "--header", "X-Own=1"];
    let common = [&["--key", "order 7", "--payload", "{\"total\": 12}"] as &[&str], &json].concat();
    let first =
        outbox.append(&[&["binary.placed", "--type", "com.example.placed"], common.as_slice()].concat());
    let daemon = Daemon::start(&["--config", file.path()]);
    let arrived = subscriber.next();
    assert_eq!(
        (arrived.subject.as_str(), arrived.body.as_slice()),
        ("ev.binary.placed", b"{\"total\": 12}".as_slice())
    );
    let headers = &arrived.headers;
    let (time, expected) = (
        headers["ce-time"].as_str(),
        [
            ("ce-specversion", "1.0"),
            ("ce-id", first.as_str()),
            ("ce-source", "shop"),
            ("ce-type", "com.example.placed"),
            ("ce-subject", "order%207"),
            ("ce-partitionkey", "order%207"),
            ("ce-datacontenttype", "application/json"),
            ("ce-tenant", "t-1"),
            ("content-type", "application/json"),
            ("X-Own", "1"),
            ("Nats-Msg-Id", first.as_str()),
        ],
    );
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    for (name, value) in expected {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}: {arrived:?}");
    }
    let second = outbox.append(&[&["json.placed"], common.as_slice()].concat());
    let arrived = subscriber.next();
    assert_eq!(arrived.headers["content-type"], "application/cloudevents+json");
    let body: Value = serde_json::from_slice(&arrived.body).expect("JSON");
    let whole = json!({
        "specversion": "1.0", "id": second, "source": "shop", "type": "json.placed", "time": body["time"],
        "datacontenttype": "application/json", "subject": "order 7", "partitionkey": "order 7", "tenant": "t-1",
        "data": { "total": 12 },
    });
    assert_eq!(body, whole);
    outbox.append(&["json.gone", "--key", "k", "--tombstone"]);
    let arrived = subscriber.next();
    assert_eq!((arrived.body.len(), arrived.headers["ce-subject"].as_str()), (0, "k"), "{arrived:?}");
    assert_eq!(arrived.headers["Posthaste-Tombstone"], "true");
    daemon.stop();
}
