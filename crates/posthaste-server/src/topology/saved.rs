//! A plan in a file: what was reviewed is what is done, or nothing is.
//!
//! The file holds the differences, not what to do about them: `apply` reads the topology again, looks at the
//! brokers again, and goes on only if the same differences come out. So an edited plan, a plan of another
//! cluster and a plan that somebody was faster than are all refused by one comparison. No password is in it.

use super::{BrokerPlan, PlanFlags};
use crate::output::Usage;
use posthaste_brokers::topology::TopologyChange;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The shape of the file.
const FORMAT: u32 = 1;

/// A plan, as it is kept.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedPlan {
    format: u32,
    /// The topology files it was made of.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) flags: PlanFlags,
    brokers: Vec<SavedBroker>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBroker {
    name: String,
    /// The cluster's own name.
    cluster: String,
    changes: Vec<TopologyChange>,
}

impl SavedPlan {
    pub(crate) fn new(files: &[PathBuf], flags: &PlanFlags, plans: &[BrokerPlan]) -> Self {
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let broker = |broker: &BrokerPlan| SavedBroker {
            name: broker.table.name.clone(),
            cluster: broker.look.cluster.clone(),
            changes: broker.plan.changes.clone(),
        };
        Self {
            format: FORMAT,
            files: files.iter().map(absolute).collect(),
            flags: flags.clone(),
            brokers: plans.iter().map(broker).collect(),
        }
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        let mut out =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        out.write_all(text.as_bytes())?;
        Ok(())
    }

    pub(crate) fn read(file: &Path) -> Result<Self, Usage> {
        let wrong = |why: String| Usage(format!("{}: {why}", file.display()));
        let text =
            std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot read it: {error}")))?;
        let plan: Self =
            serde_json::from_str(&text).map_err(|error| wrong(format!("this is no plan: {error}")))?;
        if plan.format != FORMAT {
            return Err(wrong(format!("its format is {}, and this binary knows {FORMAT}", plan.format)));
        }
        Ok(plan)
    }

    /// Whether the brokers still differ in the same way; if not, how.
    pub(crate) fn compare(&self, plans: &[BrokerPlan]) -> Result<(), String> {
        let now = Self::new(&self.files, &self.flags, plans);
        for (then, now) in self.brokers.iter().zip(&now.brokers) {
            if then.name == now.name && then.cluster != now.cluster {
                return Err(format!("broker `{}` is another cluster than the plan's", now.name));
            }
        }
        if *self == now {
            return Ok(());
        }
        Err("the brokers or the file have moved since, or the plan was edited. Nothing was done: plan again"
            .to_owned())
    }
}
