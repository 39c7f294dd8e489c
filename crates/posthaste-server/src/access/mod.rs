//! Who may enter, and what they may: the file of tokens.
//!
//! Each token has a role, the outboxes and consumers that it is for, and apart from the role the right to see
//! payloads. The file is read at the start and on SIGHUP. One that others than its owner may write is
//! refused: whoever may write it is an administrator. One that cannot be read on SIGHUP changes nothing.

mod acting;
mod mask;
mod section;
mod session;

pub(crate) use acting::acting;
pub(crate) use mask::masked;
pub(crate) use section::{AdminSection, AdminSetting, admin, listen};
pub(crate) use session::Sessions;

use crate::http::token::{TokenHash, id_of};
use anyhow::{Context as _, bail};
use posthaste::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// What operators' tokens begin with.
pub(crate) const PREFIX: &str = "pht";

/// What somebody may do. Each may what the one before may.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OperatorRole {
    /// Look.
    Read,
    /// Look at the audit; replay, retry, pause, resume.
    Operate,
    /// Discard, rewind, change lanes, see the configuration.
    Admin,
}

/// How much of payloads, headers, keys and error texts somebody sees.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PayloadRight {
    /// Sizes, names of headers, codes.
    Hidden,
    /// The same, with keys and error texts.
    Masked,
    /// Everything.
    Shown,
}

impl PayloadRight {
    /// What a role sees if nothing else is said.
    pub(crate) fn of(role: OperatorRole) -> Self {
        match role {
            OperatorRole::Read => Self::Hidden,
            OperatorRole::Operate => Self::Masked,
            OperatorRole::Admin => Self::Shown,
        }
    }
}

/// One token, as the file has it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    name: String,
    role: OperatorRole,
    #[serde(default = "all")]
    outboxes: Vec<String>,
    #[serde(default = "all")]
    consumers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payloads: Option<PayloadRight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    sha256: String,
}

fn all() -> Vec<String> {
    vec!["*".to_owned()]
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lines {
    token: Vec<Line>,
}

/// What a token gives.
pub(crate) struct Grant {
    /// Whose it is, for the audit.
    pub(crate) name: String,
    pub(crate) role: OperatorRole,
    pub(crate) payloads: PayloadRight,
    outboxes: Vec<String>,
    consumers: Vec<String>,
    expires: Option<Timestamp>,
    pub(crate) hash: TokenHash,
    id: String,
}

impl Grant {
    /// Whoever had the one-time code of a terminal on this machine.
    pub(crate) fn of_terminal(hash: TokenHash) -> Self {
        Self {
            name: "one-time code".to_owned(),
            role: OperatorRole::Admin,
            payloads: PayloadRight::Shown,
            outboxes: all(),
            consumers: all(),
            expires: None,
            hash,
            id: "code".to_owned(),
        }
    }

    /// Somebody without a token: for opening a session, and for nothing else.
    pub(crate) fn nobody() -> Self {
        Self {
            name: "nobody".to_owned(),
            role: OperatorRole::Read,
            payloads: PayloadRight::Hidden,
            outboxes: Vec::new(),
            consumers: Vec::new(),
            expires: None,
            hash: TokenHash::of(""),
            id: String::new(),
        }
    }

    /// Which token it is.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is for this outbox.
    pub(crate) fn has_outbox(&self, name: &str) -> bool {
        is_in(&self.outboxes, name)
    }

    /// Whether it is for this consumer.
    pub(crate) fn has_consumer(&self, name: &str) -> bool {
        is_in(&self.consumers, name)
    }

    /// Whether it is for everything there is and will be.
    pub(crate) fn has_all(&self) -> bool {
        [&self.outboxes, &self.consumers].iter().all(|names| names.iter().any(|name| name == "*"))
    }

    /// The outboxes it is for, as the file says.
    pub(crate) fn outboxes(&self) -> &[String] {
        &self.outboxes
    }

    /// The consumers it is for, as the file says.
    pub(crate) fn consumers(&self) -> &[String] {
        &self.consumers
    }

    /// When it ends.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= now())
    }
}

fn is_in(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known == "*" || known == name)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
}

/// The tokens in force.
pub(crate) struct Tokens {
    file: Option<PathBuf>,
    current: RwLock<Arc<Vec<Arc<Grant>>>>,
    trouble: Mutex<Option<String>>,
}

impl Tokens {
    /// Reads the file.
    pub(crate) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let grants = file.map_or_else(|| Ok(Vec::new()), read)?;
        let current = RwLock::new(Arc::new(grants));
        Ok(Self { file: file.map(Path::to_owned), current, trouble: Mutex::default() })
    }

    /// Reads it again.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let read = self.file.as_deref().map_or_else(|| Ok(Vec::new()), read);
        let trouble = read.as_ref().err().map(|error| format!("{error:#}"));
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read?);
        Ok(())
    }

    /// Why it could not be read the last time.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a token gives, if it is one and its time is not over.
    pub(crate) fn find(&self, token: &str) -> Option<Arc<Grant>> {
        let id = id_of(PREFIX, token)?;
        self.find_hash(&TokenHash::of(token)).filter(|grant| grant.id == id)
    }

    /// The same by the token's hash.
    pub(crate) fn find_hash(&self, hash: &TokenHash) -> Option<Arc<Grant>> {
        let grants = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        // All are compared, whichever it is.
        let same =
            grants.iter().fold(None, |same, grant| if grant.hash.is(hash) { Some(grant) } else { same });
        same.filter(|grant| !grant.is_over()).cloned()
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<Arc<Grant>>> {
    let shown = file.display();
    let about = |what: &str| format!("the file of tokens {shown} {what}");
    let mode = std::fs::metadata(file).with_context(|| about("cannot be read"))?.permissions().mode();
    if mode & 0o022 != 0 {
        bail!(
            "{}: whoever may write it is an administrator. `chmod go-w {shown}` mends that",
            about("can be written by others than its owner")
        );
    }
    let text = std::fs::read_to_string(file).with_context(|| about("cannot be read"))?;
    // Its words may be secrets: what is wrong is told by its place.
    let lines: Lines = toml::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{}: {}", about("is not understood"), error.message()))?;
    lines.token.into_iter().map(|line| grant(line).with_context(|| about("has a wrong entry"))).collect()
}

fn grant(line: Line) -> anyhow::Result<Arc<Grant>> {
    let Some(hash) = TokenHash::read(&line.sha256) else {
        bail!("`sha256` of `{}` is not 64 hex digits", line.name);
    };
    if line.name.is_empty() || line.name.len() > 200 {
        bail!("the `name` of token {} must have 1 to 200 characters", line.id);
    }
    Ok(Arc::new(Grant {
        payloads: line.payloads.unwrap_or(PayloadRight::of(line.role)),
        name: line.name,
        role: line.role,
        outboxes: line.outboxes,
        consumers: line.consumers,
        expires: line.expires,
        hash,
        id: line.id,
    }))
}

/// The entry of the file for a new token.
pub(crate) fn token_line(
    (id, token): (&str, &str),
    name: &str,
    role: OperatorRole,
    scope: (Vec<String>, Vec<String>),
    payloads: Option<PayloadRight>,
    expires: Option<Timestamp>,
) -> anyhow::Result<String> {
    let or_all = |names: Vec<String>| if names.is_empty() { all() } else { names };
    let line = Line {
        id: id.to_owned(),
        name: name.to_owned(),
        role,
        outboxes: or_all(scope.0),
        consumers: or_all(scope.1),
        payloads: Some(payloads.unwrap_or(PayloadRight::of(role))),
        expires,
        sha256: TokenHash::of(token).text(),
    };
    grant(line.clone())?;
    Ok(toml::to_string(&Lines { token: vec![line] })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::token::mint;

    #[test]
    fn a_line_gives_what_it_says_and_no_other_token_does() {
        let file = std::env::temp_dir().join(format!("posthaste-tokens-{}", uuid::Uuid::now_v7().simple()));
        let (id, token) = mint(PREFIX).expect("random numbers");
        let scope = (vec!["a".to_owned()], Vec::new());
        let line =
            token_line((&id, &token), "ann", OperatorRole::Operate, scope, None, None).expect("a line");
        std::fs::write(&file, &line).expect("it can be written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
        let tokens = Tokens::open(Some(&file)).expect("it is read");
        let grant = tokens.find(&token).expect("it is there");
        assert_eq!(
            (grant.name.as_str(), grant.role, grant.payloads),
            ("ann", OperatorRole::Operate, PayloadRight::Masked)
        );
        assert!(
            grant.has_outbox("a") && !grant.has_outbox("b") && grant.has_consumer("x") && !grant.has_all()
        );
        assert!(tokens.find(&mint(PREFIX).expect("random numbers").1).is_none());
        // Broken, the old ones stay.
        std::fs::write(&file, "[[token]]\nname = 5").expect("it can be written");
        assert!(tokens.reload().is_err() && tokens.trouble().is_some() && tokens.find(&token).is_some());
        // Over, it is none.
        let over = line.replace("sha256", "expires = \"2020-01-01T00:00:00Z\"\nsha256");
        std::fs::write(&file, over).expect("it can be written");
        assert!(tokens.reload().is_ok() && tokens.trouble().is_none() && tokens.find(&token).is_none());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o620)).expect("ours");
        let refused = tokens.reload().expect_err("a group may write it").to_string();
        assert!(refused.contains("chmod go-w"), "{refused}");
        std::fs::remove_file(&file).expect("it was there");
    }
}
