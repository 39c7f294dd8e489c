//! A subscriber of NATS that knows nothing of Posthaste.

use serde_json::json;
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
