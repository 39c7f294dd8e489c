//! A registry of schemas by Confluent's API (Confluent's own, Apicurio, Karapace, Redpanda), and the wire
//! format of its serializers: a zero byte, the id of a schema in four bytes, the body.
//!
//! | what | is |
//! |---|---|
//! | no zero byte, or fewer than five bytes | poison `schema.wire` |
//! | 404 with the registry's own code for an id that it does not know | poison `schema.unknown_id` |
//! | Protobuf, references, a schema that cannot be compiled or is too large | poison `schema.unsupported` |
//! | no connection, no answer in time, any other status, an answer that is not a registry's | unavailable |
//!
//! An id means one schema for ever, so what was fetched is kept. Only "unknown" is forgotten again, after
//! some seconds: somebody may register the schema, and a dead letter that is replayed must see it. A 404 of
//! anybody else (a proxy, a wrong path) is a wrong answer: it would make dead letters of everything.

use super::avro::AvroSchema;
use super::json::JsonSchema;
use super::{SCHEMA_BYTES_MAX, poison};
use crate::address::{Address, Scheme, Shape};
use crate::exchange::{HttpReply, basic_login, connect, exchange, path_prefix};
use crate::lock::locked;
use crate::options::{Options, between};
use crate::{BuildError, Secret};
use async_trait::async_trait;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use posthaste::schema::{Away, Checked, Validator};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The name of the dependency that is away with the registry.
pub const REGISTRY: &str = "registry";
/// The largest answer: a schema, escaped as a JSON string.
const ANSWER_BYTES_MAX: usize = 2 * SCHEMA_BYTES_MAX + 65_536;
/// The registry's own code for an id that it does not know.
const NO_SUCH_SCHEMA: u64 = 40_403;
/// How long an id is unknown before the registry is asked again.
const UNKNOWN_FOR: Duration = Duration::from_secs(5);
/// How many ids are kept. A producer that makes ids up must not fill the memory.
const KEPT_MAX: usize = 1_000;
/// The zero byte and the id.
const HEAD: usize = 5;

const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "http", tls: false, port: 8081 },
        Scheme { name: "https", tls: true, port: 443 },
    ],
    needs_scheme: true,
    has_path: true,
    example: "https://registry.internal:8081",
    credentials: "user with password_file",
};

/// Where the registry is, and who we are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryConfig {
    /// Its address: `http://` or `https://`, with a path where it has one.
    pub url: String,
    /// How long an answer may take.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<Secret>,
    /// A file with the user's password. It is read anew for each question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The authority that signed its certificate, instead of those of the system (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM, not encrypted).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Refuse a registry without TLS. Naming one of the three files says the same.
    #[serde(default)]
    pub require_tls: bool,
}

/// It is asked inside a handler's time, of ten seconds by default.
fn timeout_ms() -> u64 {
    2_000
}

impl RegistryConfig {
    /// The registry at this address, with every default.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            timeout_ms: timeout_ms(),
            user: None,
            password: None,
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            require_tls: false,
        }
    }

    /// Reads the files that it names.
    pub fn check_files(&self) -> Result<(), BuildError> {
        self.options().check_files()
    }

    /// Login and TLS are those of every broker.
    fn options(&self) -> Options {
        Options {
            user: self.user.clone(),
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            ca_file: self.ca_file.clone(),
            cert_file: self.cert_file.clone(),
            key_file: self.key_file.clone(),
            require_tls: self.require_tls,
            ..Options::new(1)
        }
    }
}

/// What is known of an id.
#[derive(Clone)]
enum SchemaOfId {
    Json(Arc<JsonSchema>),
    Avro(Arc<AvroSchema>),
    /// Why nobody can check with it.
    Unsupported(Arc<str>),
    /// The registry did not know it at this time.
    Unknown(Instant),
}

/// Checks payloads that name their schema.
pub struct SchemaRegistry {
    address: Address,
    prefix: String,
    options: Options,
    timeout: Duration,
    kept: Mutex<FxHashMap<u32, SchemaOfId>>,
}

impl fmt::Debug for SchemaRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaRegistry").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SchemaRegistry {
    /// Nobody is asked before the first message.
    pub fn new(config: &RegistryConfig) -> Result<Self, BuildError> {
        between("timeout_ms", config.timeout_ms, 50, 60_000)?;
        let options = config.options();
        options.check_words(1)?;
        options.check_user()?;
        let bad = |why: &str| BuildError::option("url", why);
        let (address, path) = SHAPE.parse(&config.url).map_err(|why| bad(&why))?;
        if options.wants_tls() && !address.tls {
            return Err(bad(
                "must begin with https://, because TLS is required or one of its files is named",
            ));
        }
        let prefix = path_prefix(path).ok_or_else(|| bad("holds a path that is none"))?;
        let timeout = Duration::from_millis(config.timeout_ms);
        Ok(Self { address, prefix, options, timeout, kept: Mutex::default() })
    }

    /// How many ids are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        locked(&self.kept).len()
    }

    /// What is in memory. What was unknown a while ago is not.
    fn known(&self, id: u32) -> Option<SchemaOfId> {
        let kept = locked(&self.kept).get(&id).cloned();
        kept.filter(|kept| !matches!(kept, SchemaOfId::Unknown(at) if at.elapsed() >= UNKNOWN_FOR))
    }

    fn keep(&self, id: u32, found: SchemaOfId) {
        let mut kept = locked(&self.kept);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, kept| !matches!(kept, SchemaOfId::Unknown(_)));
        }
        if kept.len() >= KEPT_MAX
            && let Some(any) = kept.keys().next().copied()
        {
            kept.remove(&any);
        }
        kept.insert(id, found);
    }

    /// Asks the registry. An error is no answer, or a wrong one.
    async fn fetch(&self, id: u32) -> Result<SchemaOfId, String> {
        let path = format!("{}/schemas/ids/{id}", self.prefix);
        let asked = async {
            let request = self.request(&path)?;
            let stream = connect(&self.address, &self.options).await?;
            let reply = exchange(stream, request, ANSWER_BYTES_MAX).await;
            reply.map_err(|why| format!("{}: {why}", self.address))
        };
        let late = |_| format!("{}: no answer within {} ms", self.address, self.timeout.as_millis());
        let reply = timeout(self.timeout, asked).await.map_err(late)??;
        read(&reply).map_err(|why| format!("{}{path}: {why}", self.address))
    }

    fn request(&self, path: &str) -> Result<Request<String>, String> {
        let mut request = Request::builder()
            .uri(path)
            .header(HOST, self.address.authority())
            .header(ACCEPT, "application/vnd.schemaregistry.v1+json, application/json");
        let password = self.options.read_password().map_err(|error| error.to_string())?;
        if let (Some(user), Some(password)) = (&self.options.user, &password) {
            request = request.header(AUTHORIZATION, basic_login(user, password.expose())?);
        }
        request.body(String::new()).map_err(|error| error.to_string())
    }
}

/// What an answer says. An error is an answer that is not a registry's.
fn read(reply: &HttpReply) -> Result<SchemaOfId, String> {
    let said: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    match reply.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND if said["error_code"] == NO_SUCH_SCHEMA => {
            return Ok(SchemaOfId::Unknown(Instant::now()));
        }
        status => return Err(format!("a wrong answer ({status})")),
    }
    let Some(text) = said["schema"].as_str() else {
        return Err("a wrong answer (200 OK, and no schema in it)".to_owned());
    };
    let unsupported = |why: String| Ok(SchemaOfId::Unsupported(why.into()));
    if said["references"].as_array().is_some_and(|references| !references.is_empty()) {
        return unsupported("it refers to other schemas".to_owned());
    }
    let Ok(schema) = serde_json::from_str::<Value>(text) else {
        return match said["schemaType"].as_str() {
            Some("PROTOBUF") => unsupported("it is Protobuf's".to_owned()),
            _ => Err("a wrong answer (200 OK, and a schema that is no JSON)".to_owned()),
        };
    };
    if text.len() > SCHEMA_BYTES_MAX {
        return unsupported(format!("it is larger than {} MiB", SCHEMA_BYTES_MAX >> 20));
    }
    match said["schemaType"].as_str().unwrap_or("AVRO") {
        "JSON" => {
            JsonSchema::compile(&schema).map(|schema| SchemaOfId::Json(Arc::new(schema))).or_else(unsupported)
        }
        "AVRO" => {
            AvroSchema::parse(text).map(|schema| SchemaOfId::Avro(Arc::new(schema))).or_else(unsupported)
        }
        other => unsupported(format!("it is of the type {other:?}")),
    }
}

/// The id and the body.
fn split(payload: &[u8]) -> Result<(u32, &[u8]), &'static str> {
    match payload.split_first_chunk::<HEAD>() {
        Some(([0, id @ ..], body)) => Ok((u32::from_be_bytes(*id), body)),
        Some(_) => Err("it does not begin with a zero byte, as everything does that names its schema"),
        None => Err("it has fewer bytes than the id of a schema takes"),
    }
}

fn away(why: String) -> Away {
    Away { dependency: REGISTRY.into(), why }
}

#[async_trait]
impl Validator for SchemaRegistry {
    fn check(&self, payload: &[u8]) -> Checked {
        let (id, body) = match split(payload) {
            Ok(parts) => parts,
            Err(why) => return poison("schema.wire", why),
        };
        match self.known(id) {
            Some(SchemaOfId::Json(schema)) => schema.check(body),
            Some(SchemaOfId::Avro(schema)) => schema.check(body),
            Some(SchemaOfId::Unsupported(why)) => {
                poison("schema.unsupported", &format!("schema {id} cannot be checked with: {why}"))
            }
            Some(SchemaOfId::Unknown(_)) => {
                poison("schema.unknown_id", &format!("the registry at {} has no schema {id}", self.address))
            }
            None => Checked::Unavailable(away(format!("schema {id} was not fetched"))),
        }
    }

    async fn prepare(&self, payload: &[u8]) -> Result<(), Away> {
        // What names no schema is told apart by the check.
        let Ok((id, _)) = split(payload) else { return Ok(()) };
        if self.known(id).is_none() {
            let found = self.fetch(id).await.map_err(away)?;
            self.keep(id, found);
        }
        Ok(())
    }
}
