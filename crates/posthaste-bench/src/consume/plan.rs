//! One mode in a process of its own: this program again, with a file that says what to do.
//!
//! A consumer that shared a process with the ruler would share its memory and its runtime too. The baselines
//! are processes as well, so that nothing differs but what is compared. The file is printed: a figure can be
//! repeated by hand.

use super::{alone, baseline, consumer};
use crate::child::Scratch;
use crate::output::scrub;
use crate::sample::ProcessUsage;
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use posthaste::consumer::{ConsumerSettings, Order};
use posthaste_postgres::PostgresConfig;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;
use toml::{Table, Value};

/// What a child does with the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// A consumer whose handler inserts the effects of a batch by one statement
    Set,
    /// A consumer whose handler inserts one effect a message
    Batch,
    /// A consumer whose handler is a function in PL/pgSQL
    Sql,
    /// As set, with marks, traces and positions in the tables of a service
    Phoenix,
    /// A consumer with a store that does nothing
    Idle,
    /// A consumer that posts to a receiver which answers at once, and keeps its own marks
    Http,
    /// The same with marks of ours
    Asked,
    /// As batch, with messages that fail three times and messages that die
    Faulty,
    /// Baseline: the broker's client alone, read to the end
    Read,
    /// Baseline: marks and effects alone, 64 a transaction over one connection
    Insert,
    /// Baseline: a loop by hand, a transaction a message
    Seed,
    /// As set, beside one key with a long queue of deferred messages
    Hot,
    /// As set, with payloads that a schema is checked for, beside the same without it
    Schema,
    /// As set, telling each message when its transaction has committed
    #[value(skip)]
    Tell,
}

impl Mode {
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(super) fn has_effects(self) -> bool {
        !matches!(self, Self::Idle | Self::Read | Self::Http | Self::Asked)
    }

    /// Whether it has a statement or more for each message. Such a mode reads a shorter topic.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Self::Batch | Self::Sql | Self::Faulty | Self::Seed) || self.has_receiver()
    }

    /// Whether it is measured with all others, on the same topic.
    pub(super) fn is_common(self) -> bool {
        !matches!(self, Self::Hot | Self::Schema)
    }

    /// Whether its handler is somebody who answers requests.
    pub(super) fn has_receiver(self) -> bool {
        matches!(self, Self::Http | Self::Asked)
    }
}

/// What a child is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ModePlan {
    pub(super) mode: Mode,
    pub(super) messages: u64,
    pub(super) brokers: String,
    /// As a source names it.
    pub(super) topic: String,
    pub(super) partitions: i32,
    pub(super) keys: u32,
    pub(super) database: String,
    pub(super) schema: String,
    /// The consumer's name, and its group's.
    pub(super) consumer: String,
    pub(super) order: Order,
    /// Where messages are posted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receiver: Option<String>,
    pub(super) settings: ConsumerSettings,
}

/// What a child answers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) per_s: f64,
    pub(super) rss_peak_mb: f64,
    pub(super) cpu_us_per_message: f64,
    /// Of a consumer, by the transactions that committed.
    pub(super) messages_per_transaction: Option<f64>,
}

impl ModePlan {
    /// The plan for people. Settings that are not named are the defaults.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let (mut table, default) = (Table::try_from(self)?, Table::try_from(ConsumerSettings::default())?);
        if let Some(settings) = table.get_mut("settings").and_then(Value::as_table_mut) {
            settings.retain(|key, value| default.get(key) != Some(value));
        }
        Ok(toml::to_string(&table)?)
    }

    pub(super) fn postgres(&self) -> PostgresConfig {
        PostgresConfig { schema: self.schema.clone(), ..PostgresConfig::new(&self.database) }
    }

    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }

    /// The child, not yet started. It ends with us.
    pub(super) fn command(&self, scratch: &Scratch) -> anyhow::Result<Command> {
        let path = scratch.write(&self.consumer, &toml::to_string(self)?)?;
        let mut command = Command::new(std::env::current_exe()?);
        // Its database stands in the file, where no list of processes shows it.
        command.args(["consume", "--store", "-", "--child"]).arg(path);
        command.stdin(Stdio::null()).kill_on_drop(true);
        Ok(command)
    }

    /// Lets a child do it.
    pub(super) async fn measure(&self, scratch: &Scratch) -> anyhow::Result<Measured> {
        let answer = self.command(scratch)?.output().await.context("a child could not be started")?;
        if !answer.status.success() {
            let why = String::from_utf8_lossy(&answer.stderr);
            bail!("{}: {}", self.mode.name(), scrub(why.trim().trim_start_matches("error: ")));
        }
        Ok(serde_json::from_slice(&answer.stdout)?)
    }
}

/// What the child does.
pub(crate) async fn run(path: &Path) -> anyhow::Result<()> {
    let plan: ModePlan = toml::from_str(&std::fs::read_to_string(path)?)?;
    let messages = plan.messages as f64;
    let (time, transactions) = match plan.mode {
        Mode::Read if plan.brokers.starts_with("nats:") => (alone::nats(&plan).await?, None),
        Mode::Read if plan.brokers.starts_with("redis:") => (alone::redis(&plan).await?, None),
        Mode::Read => (tokio::task::spawn_blocking(move || baseline::read(&plan)).await??, None),
        Mode::Insert => (baseline::insert(&plan).await?, None),
        Mode::Seed => (baseline::seed(&plan).await?, None),
        _ => consumer::run(&plan).await.map(|(time, transactions)| (time, Some(transactions)))?,
    };
    let usage = ProcessUsage::of(std::process::id())?;
    let measured = Measured {
        per_s: messages / time.as_secs_f64(),
        rss_peak_mb: usage.rss_peak_mb,
        cpu_us_per_message: usage.cpu_s * 1e6 / messages,
        messages_per_transaction: transactions.map(|count| messages / count.max(1) as f64),
    };
    Ok(serde_json::to_writer(std::io::stdout(), &measured)?)
}
