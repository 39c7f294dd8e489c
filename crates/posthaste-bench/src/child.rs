//! The binary under measurement: `posthaste run` as a process of its own, with a configuration on file.
//!
//! Nothing of it is measured in this process: a relay in here would share a runtime with the ruler, and would
//! be another thing than what people run. The configuration is printed, so that a figure can be repeated by
//! hand, and checked by the binary itself first, so that a mistake in `--config-set` has a name before
//! anything is made.

use super::Common;
use super::sqlite::broker_of;
use crate::output::{Usage, remark, scrub};
use crate::sample::ProcessUsage;
use anyhow::{Context as _, bail};
use posthaste::route::Order;
use posthaste_brokers::SinkConfig;
use posthaste_postgres::{PostgresConfig, TlsMode};
use posthaste_sqlite::{SqliteConfig, Synchronous};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use toml::{Table, Value};

/// A drained stop has its own deadline of 15 s; a relay that needs more than this is stuck.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A peak of memory is looked at so often.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The `posthaste` that is measured.
pub(super) struct Product {
    path: PathBuf,
    pub(super) version: String,
}

impl Product {
    /// The one that was named, or the one beside this program.
    pub(super) async fn find(named: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = match named {
            Some(path) => path,
            None => std::env::current_exe()
                .context("cannot find this program on disk")?
                .with_file_name("posthaste"),
        };
        let mut product = Self { path, version: String::new() };
        let version = product.ask(&["--version"], None).await.unwrap_or_default();
        match version.trim().strip_prefix("posthaste ") {
            Some(version) => product.version = version.to_owned(),
            None => bail!(Usage(format!(
                "{} is no posthaste to measure. Build one with `cargo build --profile dist -p posthaste-server --features full`, \
                 or name one with --posthaste; `./bench` does both",
                product.path.display()
            ))),
        }
        Ok(product)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        for (name, _) in std::env::vars_os() {
            // What this process is told is not meant for the one that is measured.
            if name.to_string_lossy().starts_with("POSTHASTE_") || name == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Lets it do something short, and gives what it prints. What it refuses is wrong use of the measurement.
    pub(super) async fn ask(&self, words: &[&str], config: Option<&Path>) -> anyhow::Result<String> {
        let mut command = self.command();
        command.args(words);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        let answer = command.output().await.with_context(|| format!("cannot run {}", self.path.display()))?;
        if answer.status.success() {
            return Ok(String::from_utf8_lossy(&answer.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&answer.stderr);
        let why = why.trim().trim_start_matches("error: ").to_owned();
        if answer.status.code() == Some(2) {
            bail!(Usage(why))
        } else {
            bail!("posthaste {}: {why}", words.join(" "))
        }
    }

    /// Lets it do something to its end, and gives what it prints and its memory at its peak, in MB.
    pub(super) async fn watched(&self, words: &[&str]) -> anyhow::Result<(String, f64)> {
        let mut command = self.command();
        let child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = child.id().context("it has ended")?;
        let (mut peak, ends) = (0_f64, child.wait_with_output());
        tokio::pin!(ends);
        let ended = loop {
            tokio::select! {
                ended = &mut ends => break ended?,
                () = tokio::time::sleep(BETWEEN_LOOKS) => {}
            }
            // Nothing is known of one that has just ended.
            peak = ProcessUsage::of(pid).map_or(peak, |usage| peak.max(usage.rss_peak_mb));
        };
        let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        if !ended.status.success() {
            bail!("posthaste {}: {}{out}", words.join(" "), err.trim());
        }
        Ok((out.into_owned(), peak))
    }
}

/// A directory for configuration and logs, removed at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn make() -> anyhow::Result<Self> {
        let name = format!("posthaste-bench-{}", uuid::Uuid::now_v7().simple());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Writes a relay's configuration. It may hold a password: nobody else may look.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(format!("{name}.toml"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One relay's configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setup<'a> {
    /// The sink's name: a new one has a cursor of its own, and the log is read again from its beginning.
    pub(super) sink: &'a str,
    /// `null`, `stdout` or a broker's URL.
    pub(super) target: &'a str,
    /// The sink's options, where a yard knows them better than the target.
    pub(super) options: Option<&'a serde_json::Map<String, serde_json::Value>>,
    pub(super) order: Order,
}

impl Setup<'_> {
    /// As a file's text.
    pub(super) fn text(self, common: &Common) -> anyhow::Result<String> {
        Ok(toml::to_string(&self.table(common)?)?)
    }

    fn table(self, common: &Common) -> anyhow::Result<Table> {
        let mut root = Table::new();
        let text = |text: &str| Value::String(text.to_owned());
        put(&mut root, "service", text("bench"))?;
        // Others may run a relay here, at the usual address.
        put(&mut root, "http.listen", text("off"))?;
        put(&mut root, "log.level", text("warn"))?;
        put(&mut root, "outbox.name", text("bench"))?;
        put(&mut root, "outbox.url", text(&common.store))?;
        if !common.store.starts_with("sqlite:") {
            put(&mut root, "outbox.schema", text(&common.schema))?;
            // Roles belong to the whole server: a measurement leaves none behind.
            put(&mut root, "outbox.roles.create", Value::Boolean(false))?;
        }
        let mut sink = Table::new();
        sink.insert("start_at".to_owned(), text("earliest"));
        match (self.options, posthaste_brokers::kind_of(self.target)) {
            (Some(options), _) => sink.extend(Table::try_from(options)?),
            (None, Some(kind)) => {
                sink.insert("type".to_owned(), text(kind));
                sink.insert("url".to_owned(), text(self.target));
            }
            (None, None) => drop(sink.insert("type".to_owned(), text(self.target))),
        }
        if self.target == "local" && common.store.starts_with("sqlite:") {
            // As durable as the outbox, in a file beside it.
            let outbox = SqliteConfig::from_url(&common.store)?;
            let path = broker_of(&outbox.path).to_string_lossy().into_owned();
            sink.insert("path".to_owned(), Value::String(path));
            if outbox.synchronous == Synchronous::Normal {
                sink.insert("synchronous".to_owned(), text("normal"));
            }
        }
        put(&mut root, &format!("sinks.{}", self.sink), Value::Table(sink))?;
        let mut route = Table::new();
        route.insert("topics".to_owned(), Value::Array(vec![text("*")]));
        route.insert("sinks".to_owned(), Value::Array(vec![text(self.sink)]));
        route.insert("order".to_owned(), text(if self.order == Order::Key { "key" } else { "none" }));
        root.insert("route".to_owned(), Value::Array(vec![Value::Table(route)]));
        put_all(&mut root, &common.config_set)?;
        Ok(root)
    }

    /// Writes the file and lets the binary check it, as it will read it.
    pub(super) async fn write(
        self,
        common: &Common,
        scratch: &Scratch,
        product: &Product,
    ) -> anyhow::Result<PathBuf> {
        let path = scratch.write(self.sink, &self.text(common)?)?;
        product.ask(&["config", "check"], Some(&path)).await?;
        Ok(path)
    }

    /// How the measurement itself reaches the database: as the relay does.
    pub(super) fn database(self, common: &Common) -> anyhow::Result<PostgresConfig> {
        let root = self.table(common)?;
        let of = |key: &str| root.get("outbox").and_then(|outbox| outbox.get(key));
        let text = |key: &str| of(key).and_then(Value::as_str);
        let file = |key: &str| text(key).map(PathBuf::from);
        let mut config = PostgresConfig::new(text("url").unwrap_or(&common.store));
        text("schema").unwrap_or(&common.schema).clone_into(&mut config.schema);
        config.tls = if text("tls") == Some("verify-full") { TlsMode::VerifyFull } else { TlsMode::Disable };
        config.pooled = of("pooled").and_then(Value::as_bool).unwrap_or(false);
        config.password_file = file("password_file");
        config.ca_file = file("ca_file");
        config.cert_file = file("cert_file");
        config.key_file = file("key_file");
        Ok(config)
    }

    /// The sink's own options, without what a relay wants to know of every sink.
    pub(super) fn sink_config(self, common: &Common) -> anyhow::Result<SinkConfig> {
        let mut root = self.table(common)?;
        let sinks = root.get_mut("sinks").and_then(Value::as_table_mut);
        let sink = sinks.and_then(|sinks| sinks.remove(self.sink));
        let Some(Value::Table(mut sink)) = sink else { bail!("the configuration has no sink") };
        sink.remove("start_at");
        Ok(sink.try_into()?)
    }
}

/// Sets what options say, `KEY=VALUE` each.
pub(super) fn put_all(table: &mut Table, settings: &[String]) -> anyhow::Result<()> {
    for setting in settings {
        let (path, value) = setting
            .split_once('=')
            .ok_or_else(|| Usage(format!("--config-set {setting}: must be KEY=VALUE")))?;
        put(table, path.trim(), literal(value.trim()))?;
    }
    Ok(())
}

/// Sets `a.b.c` in nested tables.
pub(super) fn put(table: &mut Table, path: &str, value: Value) -> anyhow::Result<()> {
    match path.split_once('.') {
        None => drop(table.insert(path.to_owned(), value)),
        Some((name, rest)) => {
            let inner = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
            let Some(inner) = inner.as_table_mut() else {
                bail!(Usage(format!("--config-set {path}: `{name}` is no table")));
            };
            put(inner, rest, value)?;
        }
    }
    Ok(())
}

/// A value as TOML writes it; what is none is a text.
fn literal(text: &str) -> Value {
    let parsed = format!("v = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Prints a configuration, without its passwords.
pub(super) fn show(text: &str) {
    remark(&format!("bench: the relay's configuration:\n\n{}\n", scrub(text.trim_end())));
}

/// A running relay. Dropping it kills it.
pub(super) struct Relay {
    child: Child,
    pid: u32,
    log: PathBuf,
}

impl Relay {
    /// Starts `posthaste run` with this file. Its standard output is ours to read if `piped`.
    pub(super) fn start(
        product: &Product,
        config: &Path,
        piped: bool,
    ) -> anyhow::Result<(Self, Option<ChildStdout>)> {
        let log = config.with_extension("log");
        let errors = std::fs::OpenOptions::new().append(true).create(true).open(&log)?;
        let mut command = product.command();
        command.arg("run").arg("--config").arg(config).stderr(errors);
        command.stdout(if piped { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().context("the relay could not be started")?;
        let pid = child.id().context("the relay ended at once")?;
        let stdout = child.stdout.take();
        Ok((Self { child, pid, log }, stdout))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// An error with the end of its log, if it is gone.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the relay ended by itself ({status}):\n{}", self.last_words()),
        }
    }

    /// What it has said so far.
    pub(super) fn words(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = self.words();
        let lines: Vec<&str> = text.lines().collect();
        scrub(&lines[lines.len().saturating_sub(12)..].join("\n"))
    }

    /// A drained stop (G8). One that leaves something behind is an error: it would spoil the next round.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the relay has no process number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = timeout(STOP_PATIENCE, self.child.wait()).await.context("the relay does not stop")??;
        if !status.success() {
            bail!("the relay did not drain ({status}):\n{}", self.last_words());
        }
        Ok(())
    }

    /// kill -9, and waits until it is gone.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("the relay could not be killed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_nested_and_typed() {
        let mut root = Table::new();
        for (path, value) in
            [("relay.page_events_max", "64"), ("outbox.tls", "verify-full"), ("a.b.c", "true")]
        {
            put(&mut root, path, literal(value)).expect("fits");
        }
        assert_eq!(root["relay"]["page_events_max"], Value::Integer(64));
        assert_eq!(root["outbox"]["tls"], Value::String("verify-full".to_owned()));
        assert_eq!(root["a"]["b"]["c"], Value::Boolean(true));
        assert!(put(&mut root, "relay.page_events_max.x", literal("1")).is_err());
    }
}
