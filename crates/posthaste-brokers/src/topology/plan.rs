//! The plan: a pure function of what is wanted, what is there, and the broker's rules.

use super::{
    ChangeAct, Kind, Resource, ResourceName, Risk, Rules, SettingChange, TopologyChange, TopologyLook,
    Unseen, WantedResource, in_order,
};
use posthaste::mutation::{Mutation, active};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What a plan is made of.
#[derive(Debug, Clone, Copy)]
pub struct PlanRequest<'a> {
    /// What the file names, of one broker.
    pub wanted: &'a [WantedResource],
    /// Principals that have no rights but those of the file.
    pub exclusive: &'a BTreeSet<String>,
    /// What is there.
    pub look: &'a TopologyLook,
    /// What the command line names for removal. It goes only if the file does not name it.
    pub remove: &'a BTreeSet<ResourceName>,
    /// The plan is about these alone; about everything, if there are none.
    pub only: &'a BTreeSet<ResourceName>,
}

/// The differences of one broker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TopologyPlan {
    /// What is to be done, in the order in which it is done.
    pub changes: Vec<TopologyChange>,
    /// How many are as the file wants them.
    pub same: BTreeMap<Kind, usize>,
    /// What is there and not in the file: somebody else's.
    pub others: Vec<ResourceName>,
    /// What could not be seen, and why. Nothing is known about these.
    pub unseen: Vec<Unseen>,
    /// What could not be compared.
    pub notes: Vec<String>,
}

/// What the command line allows, by names.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// What may be destroyed.
    pub destroy: BTreeSet<ResourceName>,
    /// What may be hurt.
    pub hazard: BTreeSet<ResourceName>,
}

/// What a change lacks before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// A flag of the command line, with its value.
    Flag(&'static str, ResourceName),
    /// It cannot be made at all, for this reason.
    Blocked(String),
}

impl TopologyChange {
    /// All risks of it: its own, and those of its settings.
    pub fn risks(&self) -> impl Iterator<Item = &Risk> {
        std::iter::once(&self.risk).chain(self.settings.iter().map(|setting| &setting.risk))
    }

    /// What it lacks, each once.
    #[must_use]
    pub fn missing(&self, allowed: &Allowed) -> Vec<Missing> {
        let name = self.resource.flag_name();
        let mut missing = Vec::new();
        for risk in self.risks() {
            let lacks =
                match risk {
                    Risk::Plain => None,
                    Risk::Hazard(_) => (!allowed.hazard.contains(&name))
                        .then(|| Missing::Flag("--allow-hazard", name.clone())),
                    Risk::Destroys(_) => (!allowed.destroy.contains(&name))
                        .then(|| Missing::Flag("--allow-destroy", name.clone())),
                    Risk::Blocked(why) => Some(Missing::Blocked(why.clone())),
                };
            missing.extend(lacks.filter(|lacks| !missing.contains(lacks)));
        }
        missing
    }
}

/// Compares what is wanted with what is there.
#[must_use]
pub fn plan(request: &PlanRequest<'_>, rules: &dyn Rules) -> TopologyPlan {
    let PlanRequest { wanted, look, .. } = *request;
    let (unseen, notes) = (look.unseen.clone(), look.notes.clone());
    let mut plan = TopologyPlan { unseen, notes, ..TopologyPlan::default() };
    let made: Vec<Resource> = wanted.iter().map(WantedResource::resource).collect();
    let mut live: HashMap<_, &Resource> =
        look.resources.iter().map(|resource| (resource.identity(), resource)).collect();
    for (wanted, made) in wanted.iter().zip(&made).filter(|(it, _)| look.sees(it.kind, &it.name)) {
        let change = match live.remove(&made.identity()) {
            None => {
                let (act, risk) = (ChangeAct::Add, rules.risk_of_adding(made, look));
                Some(TopologyChange { act, resource: made.clone(), settings: Vec::new(), risk })
            }
            Some(was) => changed(wanted, was, rules),
        };
        match change {
            Some(change) => plan.changes.push(change),
            None => *plan.same.entry(wanted.kind).or_default() += 1,
        }
    }
    let named: HashSet<(Kind, &str)> =
        wanted.iter().map(|wanted| (wanted.kind, wanted.name.as_str())).collect();
    let mut left: Vec<&Resource> = live.into_values().collect();
    left.sort_by(|one, other| one.identity().cmp(&other.identity()));
    for resource in left {
        if goes(request, &named, resource) {
            let risk = rules.risk_of_removing(resource);
            let resource = resource.clone();
            plan.changes.push(TopologyChange {
                act: ChangeAct::Remove,
                resource,
                settings: Vec::new(),
                risk,
            });
        } else {
            plan.others.push(resource.flag_name());
        }
    }
    if !request.only.is_empty() {
        plan.changes.retain(|change| request.only.contains(&change.resource.flag_name()));
    }
    in_order(&mut plan.changes);
    plan
}

/// Whether something that the file does not name is to be removed: because the command line names it, or
/// because it is one right too many of a principal that the file describes whole. That one still needs the
/// flag, by its risk.
fn goes(request: &PlanRequest<'_>, named: &HashSet<(Kind, &str)>, resource: &Resource) -> bool {
    let is_right = resource.kind == Kind::Acl;
    let is_drift = is_right && request.exclusive.contains(&resource.name);
    // A resource of the file cannot be meant, however it differs. A principal of it may have more rights.
    let is_of_file = !is_right && named.contains(&(resource.kind, resource.name.as_str()));
    let is_named = request.remove.contains(&resource.flag_name()) || active(Mutation::RemoveUnnamed);
    is_drift || (!is_of_file && is_named)
}

/// The settings of the file that differ. Those that it does not name are not looked at.
fn changed(wanted: &WantedResource, was: &Resource, rules: &dyn Rules) -> Option<TopologyChange> {
    let mut settings = Vec::new();
    for (name, to) in &wanted.settings {
        let now = was.settings.get(name);
        let is_same = match (now, to) {
            (Some(now), Some(to)) => rules.is_same(was.kind, name, now, to),
            (_, None) => now.is_none() || was.defaults.contains(name),
            (None, Some(_)) => false,
        };
        if !is_same {
            let risk = rules.risk_of_setting(was, name, to.as_deref());
            settings.push(SettingChange { name: name.clone(), was: now.cloned(), to: to.clone(), risk });
        }
    }
    let risk = settings.iter().map(|setting| setting.risk.clone()).max()?;
    let resource = was.clone();
    Some(TopologyChange { act: ChangeAct::Change, resource, settings, risk })
}
