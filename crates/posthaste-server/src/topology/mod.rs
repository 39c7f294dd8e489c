//! Topology as code: what must be at the brokers is a file. This room reads its words, shows plans and keeps
//! them in files. Which differences there are, and how they are made, is for `posthaste_brokers::topology`.
//!
//! The file is apart from posthaste.toml, because it is used with rights that a relay must not have.

mod export;
mod file;
mod print;
mod saved;

pub(crate) use export::export;
pub(crate) use file::{DEFAULT_FILE, TopologySetting, schema};
pub(crate) use print::{paint_for, plan_text, short_line, totals};
pub(crate) use saved::SavedPlan;

use crate::output::Usage;
use posthaste_brokers::topology::{
    Allowed, BrokerAdmin, BrokerTable, BrokerTopology, Kind, PASSWORD, PASSWORD_OTHER, PlanRequest,
    ResourceName, Scope, TopologyLook, TopologyPlan, plan,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the command line says about a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanFlags {
    /// What may be destroyed; what is removed, if the file does not name it.
    pub(crate) destroy: BTreeSet<ResourceName>,
    /// What may be hurt.
    pub(crate) hazard: BTreeSet<ResourceName>,
    /// The plan is about these alone.
    pub(crate) only: BTreeSet<ResourceName>,
    /// Users that get the password of the file.
    pub(crate) rotate: BTreeSet<String>,
}

impl PlanFlags {
    /// What these flags allow. To name a user for a new password is to allow it.
    pub(crate) fn allowed(&self) -> Allowed {
        let rotated = self.rotate.iter().map(|user| ResourceName::new(Kind::User, user));
        Allowed {
            destroy: self.destroy.clone(),
            hazard: self.hazard.iter().cloned().chain(rotated).collect(),
        }
    }
}

/// One broker, what was seen there, and what is to be done.
pub(crate) struct BrokerPlan {
    pub(crate) table: BrokerTable,
    pub(crate) topology: BrokerTopology,
    pub(crate) admin: Box<dyn BrokerAdmin>,
    pub(crate) look: TopologyLook,
    pub(crate) plan: TopologyPlan,
}

/// Why a broker could not be asked.
pub(crate) struct Unasked {
    pub(crate) broker: String,
    pub(crate) why: String,
}

/// Ends what was asked.
pub(crate) async fn end(plans: Vec<BrokerPlan>) {
    for broker in plans {
        broker.admin.end().await;
    }
}

/// Looks at every broker of the file and compares.
pub(crate) async fn plans(
    setting: &TopologySetting,
    flags: &PlanFlags,
) -> anyhow::Result<(Vec<BrokerPlan>, Vec<Unasked>)> {
    let (mut plans, mut unasked) = (Vec::new(), Vec::new());
    for table in &setting.brokers {
        let topology = setting.topologies.get(&table.name).cloned().unwrap_or_default();
        let admin = table.admin().map_err(|error| Usage(format!("broker `{}`: {error}", table.name)))?;
        let scope = scope(&topology, flags);
        match admin.look(&scope).await {
            Ok(mut look) => {
                rotate(&mut look, flags);
                let request = PlanRequest {
                    wanted: &topology.wanted,
                    exclusive: &topology.exclusive,
                    look: &look,
                    remove: &flags.destroy,
                    only: &flags.only,
                };
                let plan = plan(&request, &*admin);
                plans.push(BrokerPlan { table: table.clone(), topology, admin, look, plan });
            }
            Err(error) => {
                admin.end().await;
                unasked.push(Unasked { broker: table.name.clone(), why: error.to_string() });
            }
        }
    }
    unknown_names(flags, &plans, &unasked)?;
    Ok((plans, unasked))
}

/// What has to be seen: what the file names, and what the command line does.
fn scope(topology: &BrokerTopology, flags: &PlanFlags) -> Scope {
    let wanted = topology.wanted.iter().map(|wanted| ResourceName::new(wanted.kind, wanted.name.clone()));
    let named: BTreeSet<ResourceName> = wanted.chain(flags.destroy.iter().cloned()).collect();
    let mut kinds: BTreeSet<Kind> = named.iter().map(|name| name.kind).collect();
    if !topology.exclusive.is_empty() {
        kinds.insert(Kind::Acl);
    }
    Scope { named, kinds, secrets: topology.secrets.clone(), ..Scope::default() }
}

/// A user that is to be rotated has another password, whatever it is.
fn rotate(look: &mut TopologyLook, flags: &PlanFlags) {
    for user in look.resources.iter_mut().filter(|resource| resource.kind == Kind::User) {
        if flags.rotate.contains(&user.name) {
            user.settings.insert(PASSWORD.to_owned(), PASSWORD_OTHER.to_owned());
            let about = format!("user {}: password not compared", user.name);
            look.notes.retain(|note| !note.starts_with(&about));
        }
    }
}

/// A flag that names nothing is a slip of the finger.
fn unknown_names(flags: &PlanFlags, plans: &[BrokerPlan], unasked: &[Unasked]) -> Result<(), Usage> {
    if !unasked.is_empty() {
        return Ok(());
    }
    let is_known = |name: &ResourceName| {
        plans.iter().any(|found| {
            let is_live = found.look.resources.iter().any(|resource| resource.flag_name() == *name);
            let is_wanted = found
                .topology
                .wanted
                .iter()
                .any(|wanted| wanted.kind == name.kind && wanted.name == name.name);
            is_live || is_wanted || !found.look.sees(name.kind, &name.name)
        })
    };
    let users: Vec<ResourceName> =
        flags.rotate.iter().map(|user| ResourceName::new(Kind::User, user)).collect();
    let named =
        [("--allow-destroy", &flags.destroy), ("--allow-hazard", &flags.hazard), ("--only", &flags.only)];
    let named = named.into_iter().flat_map(|(flag, names)| names.iter().map(move |name| (flag, name)));
    let unknown = named.chain(users.iter().map(|name| ("--rotate", name))).find(|(_, name)| !is_known(name));
    match unknown {
        Some((flag, name)) => {
            let why = "neither the file nor a broker has it. A flag names one resource, and takes no pattern";
            Err(Usage(format!("{flag} {name}: {why}")))
        }
        None => Ok(()),
    }
}
