//! The daemon that is measured: the same relay with the API beside it, or without.

use super::asker::Asker;
use super::fill::ApiField;
use crate::Bench;
use crate::child::{Relay, Setup, put, show};
use crate::sample::ProcessUsage;
use anyhow::{Context as _, bail, ensure};
use serde_json::Value as Json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use toml::{Table, Value};

/// The sink of all daemons: they share its cursor.
pub(super) const SINK: &str = "bench";
/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Who may enter, as `posthaste token new` writes it: somebody who may do everything, and those who watch.
pub(super) struct Tokens {
    file: PathBuf,
    token: String,
    watching: Vec<String>,
}

impl Tokens {
    pub(super) async fn make(bench: &Bench<'_>, watching: usize) -> anyhow::Result<Self> {
        let (mut entries, token) = new_token(bench, "bench", "admin").await?;
        let mut tokens = Vec::new();
        for n in 0..watching {
            let (entry, token) = new_token(bench, &format!("viewer-{n}"), "read").await?;
            entries.push('\n');
            entries.push_str(&entry);
            tokens.push(token);
        }
        Ok(Self { file: bench.scratch.write("tokens", &entries)?, token, watching: tokens })
    }
}

/// Its entry for the file, and itself.
async fn new_token(bench: &Bench<'_>, name: &str, role: &str) -> anyhow::Result<(String, String)> {
    let words = ["token", "new", "--name", name, "--role", role, "--json"];
    let made: Json = serde_json::from_str(&bench.product.ask(&words, None).await?)?;
    let text = |name: &str| made[name].as_str().with_context(|| format!("a new token without {name}"));
    Ok((text("entry")?.to_owned(), text("token")?.to_owned()))
}

/// A relay, with the API or without it.
pub(super) struct ApiDaemon {
    pub(super) relay: Relay,
    asker: Option<Asker>,
    viewers: Vec<Asker>,
}

impl ApiDaemon {
    /// Starts it, and waits until it serves and has its lanes.
    pub(super) async fn start(bench: &Bench<'_>, tokens: &Tokens, has_api: bool) -> anyhow::Result<Self> {
        let target = &bench.common.sink;
        let setup = Setup { sink: SINK, target, options: None, order: bench.order() };
        let text = with_admin(&setup.text(bench.common)?, tokens, has_api)?;
        // A name of its own, so that the log has nothing of an earlier one.
        let name = format!("api-{}", uuid::Uuid::now_v7().simple());
        let path = bench.scratch.write(&name, &text)?;
        bench.product.ask(&["config", "check"], Some(&path)).await?;
        show(&text);
        let (relay, _) = Relay::start(&bench.product, &path, false)?;
        let mut daemon = Self { relay, asker: None, viewers: Vec::new() };
        let deadline = Instant::now() + PATIENCE;
        loop {
            daemon.relay.check()?;
            if has_api
                && daemon.asker.is_none()
                && let Some(url) = address(&daemon.relay.words())
            {
                daemon.asker = Some(Asker::new(&url, &tokens.token)?);
                daemon.viewers = tokens
                    .watching
                    .iter()
                    .map(|token| Asker::new(&url, token))
                    .collect::<anyhow::Result<_>>()?;
            }
            if (daemon.asker.is_some() || !has_api) && owns_lanes(bench).await? {
                return Ok(daemon);
            }
            if Instant::now() > deadline {
                bail!("the daemon does not serve:\n{}", daemon.relay.last_words());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await; // pace
        }
    }

    /// Lets one without the API deliver all that is in the log.
    pub(super) async fn drain(field: &mut ApiField<'_>, tokens: &Tokens) -> anyhow::Result<()> {
        let mut daemon = Self::start(field.bench, tokens, false).await?;
        field.delivered(Some(&mut daemon.relay)).await?;
        daemon.stop().await
    }

    /// For requests. A daemon without the API has none.
    pub(super) fn asker(&self) -> anyhow::Result<&Asker> {
        self.asker.as_ref().context("this daemon has no API")
    }

    /// Those who watch.
    pub(super) fn viewers(&self) -> &[Asker] {
        &self.viewers
    }

    /// Its resident memory.
    pub(super) fn rss_mib(&self) -> anyhow::Result<f64> {
        Ok(ProcessUsage::of(self.relay.pid())?.rss_mib)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.relay.stop().await
    }
}

/// The relay's configuration, with the API or with none.
fn with_admin(text: &str, tokens: &Tokens, has_api: bool) -> anyhow::Result<String> {
    let mut root: Table = text.parse()?;
    if !has_api {
        put(&mut root, "admin.listen", Value::String("off".to_owned()))?;
        return Ok(toml::to_string(&root)?);
    }
    let url = root.get("outbox").and_then(|outbox| outbox.get("url")).and_then(Value::as_str);
    let url = url.context("the configuration has no database")?.to_owned();
    let file = tokens.file.to_str().context("the directory for temporary files has a strange name")?;
    put(&mut root, "admin.listen", Value::String("127.0.0.1:0".to_owned()))?;
    put(&mut root, "admin.tokens_file", Value::String(file.to_owned()))?;
    put(&mut root, "outbox.admin_url", Value::String(url))?;
    Ok(toml::to_string(&root)?)
}

/// Where it says that the API is.
fn address(words: &str) -> Option<String> {
    let from = words.find("API http")? + "API ".len();
    let (url, _) = words[from..].split_once(';')?;
    Some(url.trim().to_owned())
}

async fn owns_lanes(bench: &Bench<'_>) -> anyhow::Result<bool> {
    let sql =
        format!("select bool_and(owner is not null) from {}.lanes where sink = $1", bench.ground.schema);
    let row = bench.ground.client.query_one(&sql, &[&SINK]).await?;
    Ok(row.get::<_, Option<bool>>(0).unwrap_or(false))
}

/// A cursor that stays where it is would be waited for without an end.
pub(super) fn check_progress(since: Instant, patience: Duration, what: &str) -> anyhow::Result<()> {
    ensure!(since.elapsed() < patience, "{what}: nothing has moved for {} s", patience.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_out_of_the_first_line() {
        let line =
            "posthaste 0.1.0: relaying bench → bench; API http://127.0.0.1:7; metrics and health off\n";
        assert_eq!(address(line).as_deref(), Some("http://127.0.0.1:7"));
        assert_eq!(address("posthaste 0.1.0: metrics and health off\n"), None);
    }
}
