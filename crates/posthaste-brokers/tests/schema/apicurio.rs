//! Apicurio, which has Confluent's API too: its answers as they were recorded, and in the tier `soak` the
//! real one.

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Port, ServiceError};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Where it has Confluent's API.
const API: &str = "/apis/ccompat/v7";
/// What Apicurio 2.6.13 answered to `GET /apis/ccompat/v7/schemas/ids/…`.
const RECORDED: [(u32, u16, &str); 4] = [
    (
        1,
        200,
        r#"{"schema":"{\"type\":\"object\",\"properties\":{\"price\":{\"type\":\"integer\"}},\"required\":[\"price\"]}","schemaType":"JSON","references":[]}"#,
    ),
    (
        2,
        200,
        r#"{"schema":"{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"price\",\"type\":\"int\"}]}","references":[]}"#,
    ),
    (
        3,
        200,
        r#"{"schema":"syntax = \"proto3\"; message Order { int32 price = 1; }","schemaType":"PROTOBUF","references":[]}"#,
    ),
    (9, 404, r#"{"error_code":40403,"message":"No content with id/hash 'contentId-9' was found."}"#),
];
/// What is registered for these answers, one after the other.
const REGISTERED: [&str; 3] = [
    JSON,
    AVRO,
    r#"{"schemaType":"PROTOBUF","schema":"syntax = \"proto3\"; message Order { int32 price = 1; }"}"#,
];

async fn assert_is_understood(url: &str) {
    let registry = registry(&format!("{url}{API}"));
    let expected = [
        (framed(1, br#"{"price":3}"#), "fine"),
        (framed(1, br#"{"price":"3"}"#), "schema.invalid"),
        (framed(2, &[6]), "fine"),
        (framed(2, &[6, 6]), "schema.invalid"),
        (framed(3, &[0, 8, 3]), "schema.unsupported"),
        (framed(9, b"{}"), "schema.unknown_id"),
    ];
    for (payload, expected) in expected {
        assert_eq!(code(&registry, &payload).await, expected, "{payload:?}");
    }
}

#[tokio::test]
async fn answers_of_apicurio_are_understood() {
    let receiver = receiver().await;
    for (id, status, body) in RECORDED {
        let answer = Answer::status(status).header("content-type", "application/json").body(body);
        receiver.always(&format!("{API}/schemas/ids/{id}"), answer);
    }
    assert_is_understood(&receiver.url()).await;
}

/// In the tier `soak` alone: it takes 142 MB to fetch, and seconds to start.
#[tokio::test]
async fn a_real_apicurio_is_understood_and_says_what_was_recorded() {
    if std::env::var_os("POSTHASTE_SOAK").is_none_or(|value| value.is_empty() || value == "0") {
        return;
    }
    let apicurio = require_service!(Apicurio::start().await);
    for (number, schema) in REGISTERED.iter().enumerate() {
        let path = format!("{API}/subjects/orders-{number}/versions");
        let (status, body) = apicurio.ask("POST", &path, schema).expect("an answer");
        assert_eq!((status, body), (200, format!("{{\"id\":{}}}", number + 1)));
    }
    for (id, status, body) in RECORDED {
        let answer = apicurio.ask("GET", &format!("{API}/schemas/ids/{id}"), "").expect("an answer");
        assert_eq!(answer, (status, body.to_owned()));
    }
    assert_is_understood(&format!("http://{}", apicurio.addr)).await;
}

/// A registry in memory. It ends with this value, and with the test process, whatever that dies of.
struct Apicurio {
    shell: Child,
    addr: String,
    _port: Port,
}

impl Apicurio {
    async fn start() -> Result<Self, ServiceError> {
        let missing = |why: String| ServiceError::Missing { service: "Apicurio".to_owned(), why };
        let services = std::env::var_os("POSTHASTE_SERVICES").unwrap_or_default();
        let jar = Path::new(&services).join("apicurio/registry.jar");
        if !jar.exists() {
            return Err(missing(format!("no {} (scripts/services apicurio installs it)", jar.display())));
        }
        let port = Port::claim().expect("a free port");
        let addr = format!("127.0.0.1:{}", port.number());
        // The shell waits for the end of its input, which is ours, and ends the server.
        let shell = Command::new("sh")
            .args(["-c", r#""$@" >/dev/null 2>&1 & read -r _; kill -9 $!"#, "apicurio", "java", "-Xmx384m"])
            .args([
                "-Dquarkus.http.host=127.0.0.1".to_owned(),
                format!("-Dquarkus.http.port={}", port.number()),
            ])
            .args([Path::new("-jar"), &jar])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| missing(format!("no shell: {error}")))?;
        let apicurio = Self { shell, addr, _port: port };
        let end = Instant::now() + Duration::from_secs(180);
        while !matches!(apicurio.ask("GET", &format!("{API}/subjects"), ""), Ok((200, _))) {
            if Instant::now() > end {
                let (service, why) = ("Apicurio".to_owned(), "not ready after three minutes".to_owned());
                return Err(ServiceError::Failed { service, why });
            }
            tokio::time::sleep(Duration::from_millis(100)).await; // pace: nobody can signal us
        }
        Ok(apicurio)
    }

    /// Its status and what it says.
    fn ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.addr)?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.unwrap_or_default(), body.to_owned()))
    }
}

impl Drop for Apicurio {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
