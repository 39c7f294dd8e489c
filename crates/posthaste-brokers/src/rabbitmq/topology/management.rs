//! The management API: JSON over HTTP, one connection for each request ([`crate::exchange`]).

use crate::BuildError;
use crate::address::{Address, Scheme, Shape};
use crate::exchange::{HttpReply, basic_login, connect, exchange, path_prefix};
use crate::options::Options;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "http", tls: false, port: 15_672 },
        Scheme { name: "https", tls: true, port: 15_671 },
    ],
    needs_scheme: true,
    has_path: true,
    example: "https://host:15671",
    credentials: "user with password_file",
};
/// How long a connection may take, and then an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The largest answer: some hundred thousand queues or bindings.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How much of a refusal is told.
const WORDS_MAX: usize = 300;
/// RabbitMQ's own first user. It is let in from the broker's machine only.
const GUEST: &str = "guest";

/// Where the management listens, and who we are.
#[derive(Debug)]
pub(super) struct ManagementClient {
    address: Address,
    /// What stands before `/api` in paths.
    prefix: String,
    options: Options,
}

/// An answer.
#[derive(Debug)]
pub(super) struct ManagementReply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl From<HttpReply> for ManagementReply {
    fn from(HttpReply { status, body }: HttpReply) -> Self {
        Self { status, body }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum ManagementError {
    /// Nothing was sent.
    Unreached(String),
    /// It was sent, and may be done.
    Lost(String),
}

impl ManagementReply {
    /// The broker's words about a refusal.
    pub(super) fn words(&self) -> String {
        let said: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let words = [&said["reason"], &said["error"]].into_iter().find_map(Value::as_str);
        match words {
            Some(words) => format!("{} ({})", words.chars().take(WORDS_MAX).collect::<String>(), self.status),
            None => self.status.to_string(),
        }
    }
}

impl ManagementClient {
    pub(super) fn new(options: &Options, url: &str) -> Result<Self, BuildError> {
        let bad = |why: String| BuildError::option("management_url", why);
        let (address, path) = SHAPE.parse(url).map_err(bad)?;
        if options.wants_tls() && !address.tls {
            let why = "must begin with https://, because TLS is required or one of its files is named";
            return Err(bad(why.to_owned()));
        }
        let prefix = path_prefix(path).ok_or_else(|| bad("holds a path that is none".to_owned()))?;
        Ok(Self { address, prefix, options: options.clone() })
    }

    /// As whom we ask, in words that hold no secret.
    pub(super) fn identity(&self) -> String {
        self.options.identity(&format!("the default user {GUEST:?}"))
    }

    /// Where it is, for people.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Asks, or orders. `path` begins with `/api`.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ManagementReply, ManagementError> {
        let late = |_| format!("{}: no answer within {} s", self.address, ANSWER.as_secs());
        let prepared = async {
            let request = self.request(method, path, body)?;
            Ok::<_, String>((request, connect(&self.address, &self.options).await?))
        };
        let prepared = timeout(ANSWER, prepared).await.map_err(late).flatten();
        let (request, stream) = prepared.map_err(ManagementError::Unreached)?;
        let answer = timeout(ANSWER, exchange(stream, request, ANSWER_BYTES_MAX)).await.map_err(late);
        let answer = answer.and_then(|answer| answer.map_err(|why| format!("{}: {why}", self.address)));
        answer.map(ManagementReply::from).map_err(ManagementError::Lost)
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<String>, String> {
        let password = self.options.read_password().map_err(|error| error.to_string())?;
        let login = match (&self.options.user, &password) {
            (Some(user), Some(password)) => basic_login(user, password.expose()),
            _ => basic_login(GUEST, GUEST),
        };
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", self.address);
        let login = login.map_err(|error| wrong(&error))?;
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, self.address.authority())
            .header(AUTHORIZATION, login)
            .header(CONTENT_TYPE, "application/json")
            .body(body.map(Value::to_string).unwrap_or_default())
            .map_err(|error| wrong(&error))
    }
}

/// A name as a part of a path. Every byte that could mean something there is escaped.
pub(super) fn segment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let escape =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escape).collect()
}

/// Whether a name can be a part of a path. These two are taken away before anybody reads the path, escaped or
/// not, and then another resource is meant.
pub(super) fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_is_one_part_of_a_path(name in "\\PC{0,20}") {
            let part = segment(&name);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~%".contains(c);
            prop_assert!(part.chars().all(is_plain), "{part}");
            let url = format!("amqp://h/{part}");
            if !name.is_empty() {
                prop_assert_eq!(crate::rabbitmq::client::Server::parse(&url).map(|server| server.vhost), Ok(name));
            }
        }
    }

    #[test]
    fn where_the_management_listens() {
        let options = Options::new(1);
        let client = |url: &str| ManagementClient::new(&options, url);
        let shown = |url: &str| client(url).map(|client| (client.address.to_string(), client.prefix));
        let (address, prefix) = shown("http://h").expect("an address");
        assert_eq!((address.as_str(), prefix.as_str()), ("http://h:15672", ""));
        let (address, prefix) = shown("https://h:1/mq/").expect("an address");
        assert_eq!((address.as_str(), prefix.as_str()), ("https://h:1", "/mq"));
        for bad in ["", "h:15672", "amqp://h", "http://u:secret@h", "http://h/a b", "http://h?x"] {
            let error = client(bad).expect_err(bad);
            assert_eq!(error.option_name(), "management_url");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let mut careful = options.clone();
        careful.require_tls = true;
        assert!(ManagementClient::new(&careful, "http://h").is_err());
        assert!(ManagementClient::new(&careful, "https://h").is_ok());
    }

    #[test]
    fn a_refusal_has_the_brokers_words_and_a_bound() {
        let reply = |body: &str| ManagementReply { status: StatusCode::BAD_REQUEST, body: body.into() };
        let words = reply(r#"{"error":"bad_request","reason":"inequivalent arg"}"#).words();
        assert_eq!(words, "inequivalent arg (400 Bad Request)");
        assert_eq!(reply("<html>").words(), "400 Bad Request");
        let long = reply(&format!(r#"{{"reason":"{}"}}"#, "ü".repeat(1_000))).words();
        assert!(long.chars().count() < 330, "{long}");
    }
}
