//! A broker and a file, as the command line goes about them: look, plan, apply.

use posthaste_brokers::SinkConfig;
use posthaste_brokers::topology::{
    AdminFailure, BrokerAdmin, BrokerTable, ChangeAct, Kind, PlanRequest, ResourceName, Risk, Scope,
    TopologyChange, TopologyFile, TopologyLook, TopologyPlan, plan, resolve,
};
use std::collections::BTreeSet;

/// Somebody with a file and one broker.
pub(crate) struct Operator {
    table: BrokerTable,
    pub(crate) admin: Box<dyn BrokerAdmin>,
}

impl Operator {
    pub(crate) fn new(kind: &str, config: SinkConfig, management_url: Option<String>) -> Self {
        let (name, kind) = ("broker".to_owned(), kind.to_owned());
        let table = BrokerTable { name, kind, config, sasl_url: None, management_url };
        let admin = table.admin().expect("a valid configuration");
        Self { table, admin }
    }

    /// The plan of a file.
    pub(crate) async fn plan(&self, file: &str) -> TopologyPlan {
        self.plan_with(file, &[]).await
    }

    /// The plan of a file, with `--allow-destroy` for these.
    pub(crate) async fn plan_with(&self, file: &str, destroy: &[&str]) -> TopologyPlan {
        let file: TopologyFile = toml::from_str(file).expect("a file");
        let (mut found, problems) = resolve(&[file], std::slice::from_ref(&self.table));
        assert!(problems.is_empty(), "{problems:?}");
        let topology = found.remove(&self.table.name).unwrap_or_default();
        let remove: BTreeSet<ResourceName> =
            destroy.iter().map(|name| name.parse().expect("a name")).collect();
        let wanted = topology.wanted.iter().map(|wanted| ResourceName::new(wanted.kind, &wanted.name));
        let named: BTreeSet<ResourceName> = wanted.chain(remove.iter().cloned()).collect();
        let kinds = named.iter().map(|name| name.kind).collect();
        let look = self.admin.look(&Scope { named, kinds, ..Scope::default() }).await.expect("an answer");
        let request = PlanRequest {
            wanted: &topology.wanted,
            exclusive: &topology.exclusive,
            look: &look,
            remove: &remove,
            only: &BTreeSet::new(),
        };
        plan(&request, &*self.admin)
    }

    /// Everything that is there, of these kinds.
    pub(crate) async fn everything(&self, kinds: &[Kind]) -> TopologyLook {
        let kinds = kinds.iter().copied().collect();
        let scope = Scope { everything: true, kinds, ..Scope::default() };
        self.admin.look(&scope).await.expect("an answer")
    }

    /// Makes all changes of a plan, as if every flag was given. One answer for each.
    pub(crate) async fn try_apply(&self, plan: &TopologyPlan) -> Vec<Result<(), AdminFailure>> {
        let is_alike = |one: &TopologyChange, other: &TopologyChange| {
            (one.resource.kind, one.act) == (other.resource.kind, other.act)
        };
        let mut answers = Vec::new();
        for group in plan.changes.chunk_by(is_alike) {
            answers.extend(self.admin.apply(group, &[]).await);
        }
        assert_eq!(answers.len(), plan.changes.len());
        answers
    }

    pub(crate) async fn apply(&self, plan: &TopologyPlan) {
        for (change, answer) in plan.changes.iter().zip(self.try_apply(plan).await) {
            answer.unwrap_or_else(|error| panic!("{}: {error}", change.resource.flag_name()));
        }
    }
}

/// A plan in short: `add stream:S plain`, `change stream:S max_age 0 -> 5 destroys`.
pub(crate) fn rows(plan: &TopologyPlan) -> Vec<String> {
    let mut rows = Vec::new();
    for change in &plan.changes {
        let name = change.resource.flag_name();
        match change.act {
            ChangeAct::Add => rows.push(format!("add {name} {}", risk(&change.risk))),
            ChangeAct::Remove => rows.push(format!("remove {name} {}", risk(&change.risk))),
            ChangeAct::Change => rows.extend(change.settings.iter().map(|setting| {
                let [was, to] = [&setting.was, &setting.to].map(|text| text.as_deref().unwrap_or("nothing"));
                format!("change {name} {} {was} -> {to} {}", setting.name, risk(&setting.risk))
            })),
        }
    }
    rows
}

fn risk(risk: &Risk) -> &'static str {
    match risk {
        Risk::Plain => "plain",
        Risk::Hazard(_) => "hazard",
        Risk::Destroys(_) => "destroys",
        Risk::Blocked(_) => "blocked",
    }
}
