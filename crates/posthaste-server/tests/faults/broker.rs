//! A NATS client of a few lines: makes streams and watches what arrives.
//!
//! It speaks the protocol itself, because a watcher must see what the server did and not what a client
//! library made of it. Two ways to watch: a stream's contents, which is what a consumer would see (each event
//! once, the server drops duplicates by id), and the subject itself, where every publish shows.

use crate::ledger::{Deliveries, Delivery};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::SystemTime;

/// Who connects: user and password.
pub(crate) type Login<'a> = Option<(&'a str, &'a str)>;

struct Wire {
    reader: BufReader<TcpStream>,
}

struct Frame {
    headers: String,
    payload: Vec<u8>,
}

impl Wire {
    fn open(addr: SocketAddr, login: Login<'_>) -> Self {
        let stream = TcpStream::connect(addr).expect("NATS listens");
        stream.set_nodelay(true).expect("a socket option");
        let mut wire = Self { reader: BufReader::new(stream) };
        let mut options =
            serde_json::json!({"verbose": false, "headers": true, "no_responders": true, "protocol": 1});
        if let Some((user, password)) = login {
            options["user"] = user.into();
            options["pass"] = password.into();
        }
        wire.send(&format!("CONNECT {options}\r\n"));
        wire
    }

    fn send(&mut self, text: &str) {
        self.reader.get_mut().write_all(text.as_bytes()).expect("NATS reads");
    }

    fn subscribe(&mut self, subject: &str) {
        self.send(&format!("SUB {subject} 1\r\n"));
    }

    fn publish(&mut self, subject: &str, reply: &str, body: &str) {
        self.send(&format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len()));
    }

    /// The next message; `None` when the connection has ended.
    fn next(&mut self) -> Option<Frame> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first().copied() {
                Some("PING") => self.send("PONG\r\n"),
                Some("MSG") => return self.body(0, words.last()?.parse().ok()?),
                Some("HMSG") => {
                    let heads = words[words.len() - 2].parse().ok()?;
                    return self.body(heads, words.last()?.parse().ok()?);
                }
                Some("-ERR") => panic!("NATS says {line}"),
                _ => {}
            }
        }
    }

    fn body(&mut self, heads: usize, total: usize) -> Option<Frame> {
        let mut bytes = vec![0; total + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        let headers = String::from_utf8_lossy(&bytes[..heads]).into_owned();
        Some(Frame { headers, payload: bytes[heads..total].to_vec() })
    }

    /// Asks JetStream, and insists on a yes.
    fn ask(&mut self, api: &str, body: &serde_json::Value) -> serde_json::Value {
        self.subscribe("_INBOX.faults.answer");
        self.publish(&format!("$JS.API.{api}"), "_INBOX.faults.answer", &body.to_string());
        let frame = self.next().expect("JetStream answers");
        let answer: serde_json::Value =
            serde_json::from_slice(&frame.payload).expect("JetStream speaks JSON");
        assert!(answer["error"].is_null(), "JetStream says {answer}");
        answer
    }
}

fn header(headers: &str, name: &str) -> Option<String> {
    let line =
        headers.lines().find(|line| line.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name)))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

impl From<Frame> for Delivery {
    fn from(frame: Frame) -> Self {
        Self {
            id: header(&frame.headers, "Message-ID").unwrap_or_default(),
            key: header(&frame.headers, "key"),
            payload: frame.payload,
            at: SystemTime::now(),
        }
    }
}

/// Makes a stream on files for these subjects.
pub(crate) fn make_stream(addr: SocketAddr, login: Login<'_>, name: &str, subjects: &[&str]) {
    let config = serde_json::json!({
        "name": name, "subjects": subjects, "storage": "file", "retention": "limits", "num_replicas": 1,
    });
    Wire::open(addr, login).ask(&format!("STREAM.CREATE.{name}"), &config);
}

/// Collects what a stream holds and gets, until the server ends.
pub(crate) fn watch_stream(addr: SocketAddr, login: Login<'_>, name: &str) -> Deliveries {
    let mut wire = Wire::open(addr, login);
    let deliver = format!("_INBOX.faults.{name}");
    wire.subscribe(&deliver);
    let config = serde_json::json!({"stream_name": name, "config": {
        "deliver_subject": deliver, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant",
    }});
    Wire::open(addr, login).ask(&format!("CONSUMER.CREATE.{name}"), &config);
    collect(wire)
}

/// Collects every publish to a subject, the repeated ones too, until the server ends.
pub(crate) fn watch_subject(addr: SocketAddr, login: Login<'_>, subject: &str) -> Deliveries {
    let mut wire = Wire::open(addr, login);
    wire.subscribe(subject);
    // An answer to a question that came later: the subscription is in force.
    wire.send("PING\r\n");
    let mut line = String::new();
    while !line.starts_with("PONG") {
        line.clear();
        wire.reader.read_line(&mut line).expect("NATS answers");
    }
    collect(wire)
}

fn collect(mut wire: Wire) -> Deliveries {
    let deliveries = Deliveries::default();
    let collected = deliveries.clone();
    std::thread::spawn(move || {
        while let Some(frame) = wire.next() {
            collected.push(frame.into());
        }
    });
    deliveries
}
