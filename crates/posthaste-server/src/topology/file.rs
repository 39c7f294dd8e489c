//! topology.toml: read, laid over by the environment, checked as a whole.

use crate::config::{ConfigError, Overlay, SinkConfig, TOPOLOGY_PREFIX, Tree, member, overlay, read_whole};
use posthaste_brokers::topology::{BrokerTable, BrokerTopology, TopologyFile, resolve};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that is read when nothing else is said.
pub(crate) const DEFAULT_FILE: &str = "topology.toml";
/// Larger files are somebody's mistake.
const FILE_BYTES_MAX: u64 = 32 << 20;
const TOP_LEVEL: [&str; 10] = [
    "brokers",
    "topic_defaults",
    "topic",
    "principal",
    "acl",
    "user",
    "stream",
    "exchange",
    "queue",
    "binding",
];

/// Files, checked.
pub(crate) struct TopologySetting {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) brokers: Vec<BrokerTable>,
    pub(crate) topologies: BTreeMap<String, BrokerTopology>,
    pub(crate) warnings: Vec<String>,
}

impl TopologySetting {
    /// Reads files, and the environment over the first of them.
    pub(crate) fn load(files: &[PathBuf]) -> Result<Self, ConfigError> {
        let variables = std::env::vars_os();
        let variables =
            variables.filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Self::load_with(files, variables)
    }

    /// The same with a given environment.
    pub(crate) fn load_with(
        files: &[PathBuf],
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let files = if files.is_empty() { vec![PathBuf::from(DEFAULT_FILE)] } else { files.to_vec() };
        let mut trees = files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
        let over: Overlay = (TOPOLOGY_PREFIX, &TOP_LEVEL, schema);
        let mut warnings = match trees.first_mut() {
            Some(first) => overlay(first, over, variables)?,
            None => Vec::new(),
        };
        let (mut problems, mut read) = (Vec::new(), Vec::new());
        for tree in &trees {
            read.push(read_whole::<TopologyFile>(tree, &mut problems)?);
        }
        let mut brokers = Vec::new();
        for (tree, file) in trees.iter().zip(&read) {
            for (name, value) in &file.brokers {
                match broker(tree, name, value) {
                    Ok(table) if brokers.iter().any(|known: &BrokerTable| known.name == table.name) => {
                        let place = tree.place(&member("brokers", name));
                        problems
                            .push(format!("{place}: broker `{name}` is described twice: keep one of them"));
                    }
                    Ok(table) => brokers.push(table),
                    Err(error) => problems.push(error.to_string()),
                }
            }
        }
        // Without its brokers every table would be a mistake.
        if problems.is_empty() {
            let (topologies, found) = resolve(&read, &brokers);
            for problem in found {
                let tree = &trees[problem.file];
                let line = format!("{}: {}", tree.place(&problem.path), problem.text);
                if problem.is_warning { warnings.push(line) } else { problems.push(line) }
            }
            if problems.is_empty() {
                return Ok(Self { files, brokers, topologies, warnings });
            }
        }
        Err(ConfigError::new(problems.join("\n")))
    }
}

fn read(file: &Path) -> Result<Tree, ConfigError> {
    let size = std::fs::metadata(file).map(|about| about.len()).unwrap_or_default();
    if size > FILE_BYTES_MAX {
        let why = format!("{} has {size} bytes, and {FILE_BYTES_MAX} is the limit", file.display());
        return Err(ConfigError::new(why));
    }
    Tree::read(file)
}

fn broker(tree: &Tree, name: &str, value: &Value) -> Result<BrokerTable, ConfigError> {
    let path = member("brokers", name);
    let wrong = |path: &str, why: &str| ConfigError::new(format!("{}: {why}", tree.place(path)));
    let Value::Object(table) = value else { return Err(wrong(&path, "a broker is a table with a type")) };
    let mut table = table.clone();
    let (sasl_url, management_url) = BrokerTable::split(&mut table)
        .map_err(|(key, why)| wrong(&member(&path, &key), &format!("`{}` {why}", member(&path, &key))))?;
    let kind = table.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let config = SinkConfig::read(tree, &path, Value::Object(table), BrokerTable::more_keys())?;
    #[cfg_attr(not(feature = "sqlite"), allow(clippy::infallible_destructuring_match))]
    let config = match config {
        SinkConfig::Broker(config) => config,
        #[cfg(feature = "sqlite")]
        SinkConfig::Local(_) => {
            let why = "the local broker needs nothing: topics are made by their first message";
            return Err(wrong(&member(&path, "type"), why));
        }
    };
    let table = BrokerTable { name: name.to_owned(), kind, config, sasl_url, management_url };
    table.config.check().map_err(|error| {
        let at = member(&path, error.option_name());
        wrong(&at, &format!("{path}.{error}"))
    })?;
    table.check_kind().map_err(|why| wrong(&member(&path, "type"), &why))?;
    Ok(table)
}

/// The JSON schema of the file, for editors.
pub(crate) fn schema() -> Value {
    let settings = || SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut file = settings().into_generator().into_root_schema_for::<TopologyFile>().to_value();
    let sink = settings().into_generator().into_root_schema_for::<posthaste_brokers::SinkConfig>().to_value();
    let kinds = sink["oneOf"].as_array().cloned().unwrap_or_default().into_iter().map(|mut kind| {
        kind["properties"]["sasl_url"] = json!({
            "description": "Kafka: where the passwords of users are tried.",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
        });
        kind["properties"]["management_url"] =
            json!({ "description": "RabbitMQ: where its management listens.", "type": "string" });
        kind
    });
    let kinds: Vec<Value> = kinds.collect();
    file["title"] = json!("topology.toml");
    file["properties"]["brokers"] = json!({ "type": "object", "additionalProperties": { "oneOf": kinds } });
    file
}
