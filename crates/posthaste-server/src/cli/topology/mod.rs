//! `posthaste topology`: what must be at the brokers, as a file. Plan, apply, check, export.

mod apply;

use super::Context;
use crate::output::{Usage, remark};
use crate::topology::{
    BrokerPlan, DEFAULT_FILE, PlanFlags, SavedPlan, TopologySetting, Unasked, end, export, paint_for,
    plan_text, plans, schema, short_line, totals,
};
use clap::{Args, Subcommand};
use posthaste_brokers::topology::{
    AdminFailure, Allowed, BrokerTable, Kind, Missing, Resource, ResourceName, Scope,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste topology export --broker kafka://127.0.0.1:9092 > topology.toml
  posthaste topology plan                 what differs, and what would be done
  posthaste topology apply                do it, after asking
  posthaste topology check                for a pipeline: exit code 3 if it differs
  posthaste topology schema > topology.schema.json      for editors

A small topology.toml:

  [brokers.kafka]
  type = \"kafka\"
  url = \"kafka://127.0.0.1:9092\"

  [[topic]]
  name = \"orders.placed\"
  partitions = 12
  replicas = 3
  min_insync_replicas = 2
  retention = \"7d\"

  [[principal]]
  name = \"billing\"
  read = [\"orders.*\"]
  groups = [\"billing\"]

What the file does not name is somebody else's, and stays. Nothing is removed,
shortened or made anew unless the command line names it: see `apply --help`.
A file of its own, because whoever uses it has rights that a relay must not have.";

const PLAN_EXAMPLES: &str = "\
Examples:
  posthaste topology plan
  posthaste topology plan -f topology.toml -f team-b.toml --all
  posthaste topology plan --out reviewed.plan     apply exactly this, later
  posthaste topology plan --json | jq '.brokers[].changes[]'

  +  to add            ~  to change
  !  a hazard: it works, and hurts     (--allow-hazard KIND:NAME)
  -  removes or deletes data           (--allow-destroy KIND:NAME)
  x  blocked: it cannot be done in place; the text says what to do by hand
  ?  could not be seen: nothing is known about it, and nothing is done

Nothing is changed. --validate asks the broker itself for a dry run, too.";

const APPLY_EXAMPLES: &str = "\
Examples:
  posthaste topology apply
  posthaste topology apply --yes                  in a pipeline
  posthaste topology apply reviewed.plan          what was reviewed, or nothing
  posthaste topology apply --allow-hazard topic:orders.placed
  posthaste topology apply --allow-destroy topic:old.orders
  posthaste topology apply --rotate billing       a new password

--allow-destroy topic:NAME removes a topic that the file does not name, or lets
one that it names lose data (shorter retention). acl:User:NAME takes away the
rights of a principal that the file does not give. Each flag names one resource,
and takes no pattern.

Changes are made in an order in which nobody lacks a right in between. Each is
read back until the cluster shows it. Whatever stops it, the same command again
does the rest.";

const CHECK_EXAMPLES: &str = "\
Examples:
  posthaste topology check || exit 1

A line for each difference. Exit codes: 0 as the file says, 3 it differs, 1 it
could not be told (a broker is away, a right is missing), 2 the file is wrong.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  posthaste topology export --broker kafka://127.0.0.1:9092 > topology.toml
  posthaste topology export -f admin.toml --match 'orders.*' --kinds topic,acl

Writes a file from what is there. Its plan is empty. Topics of the cluster's own
(__…) are left out unless --match names them. No password is in it: users are
comments that say what they need. With -f, the brokers of that file are asked.";

/// Topics, rights, users, streams and queues from a file
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopologyArgs {
    #[command(subcommand)]
    act: TopologyAct,
}

#[derive(Debug, Subcommand)]
enum TopologyAct {
    /// Show what differs, and change nothing
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Change what differs
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(apply::ApplyArgs),
    /// Say by the exit code whether something differs
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Write a file from what is there
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Print the file's JSON schema, for editors
    Schema,
}

#[derive(Debug, Args)]
struct FileArgs {
    /// A topology file, as often as needed [default: topology.toml]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Which risks are taken, by name.
#[derive(Debug, Args)]
struct RiskArgs {
    /// Plan only this resource, as often as needed
    #[arg(long, value_name = "KIND:NAME")]
    only: Vec<ResourceName>,
    /// Let this resource be removed, or lose data
    #[arg(long, value_name = "KIND:NAME")]
    allow_destroy: Vec<ResourceName>,
    /// Let this resource be hurt
    #[arg(long, value_name = "KIND:NAME")]
    allow_hazard: Vec<ResourceName>,
    /// Set this user's password to that of the file
    #[arg(long, value_name = "USER")]
    rotate: Vec<String>,
}

impl RiskArgs {
    fn flags(&self) -> PlanFlags {
        PlanFlags {
            destroy: self.allow_destroy.iter().cloned().collect(),
            hazard: self.allow_hazard.iter().cloned().collect(),
            only: self.only.iter().cloned().collect(),
            rotate: self.rotate.iter().cloned().collect(),
        }
    }
}

#[derive(Debug, Args)]
struct PlanArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    risks: RiskArgs,
    /// List what is somebody else's, too
    #[arg(long)]
    all: bool,
    /// Ask the brokers for a dry run
    #[arg(long)]
    validate: bool,
    /// Write the plan to a file, for `apply FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    file: FileArgs,
}

#[derive(Debug, Args)]
struct ExportArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The broker's address, instead of a file
    #[arg(long, value_name = "URL", conflicts_with = "files")]
    broker: Option<String>,
    /// Only these kinds: topic, user, acl, stream, exchange, queue, binding
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = kind)]
    kinds: Vec<Kind>,
    /// Only names that match; `*` stands for any run of characters
    #[arg(long = "match", value_name = "PATTERN", value_parser = super::pattern)]
    pattern: Option<String>,
}

fn kind(text: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
    known.ok_or_else(|| format!("kinds are {}", Kind::ALL.map(Kind::as_str).join(", ")))
}

pub(crate) async fn run(context: &Context, args: TopologyArgs) -> anyhow::Result<ExitCode> {
    context.start_plain_logging()?;
    match args.act {
        TopologyAct::Plan(args) => plan(context, args).await,
        TopologyAct::Apply(args) => apply::run(context, args).await,
        TopologyAct::Check(args) => check(context, &args).await,
        TopologyAct::Export(args) => write_export(context, args).await,
        TopologyAct::Schema => {
            context.out().exact(&serde_json::to_string_pretty(&schema())?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn load(files: &[PathBuf]) -> anyhow::Result<TopologySetting> {
    if files.is_empty() && !std::path::Path::new(DEFAULT_FILE).exists() {
        let why = "name one with -f, or begin with `posthaste topology export --broker URL`";
        return Err(Usage(format!("there is no {DEFAULT_FILE} here: {why}")).into());
    }
    let setting = TopologySetting::load(files)?;
    for warning in &setting.warnings {
        remark(&format!("warning: {warning}"));
    }
    if setting.brokers.is_empty() {
        return Err(
            Usage("the file has no broker: add [brokers.NAME] with its type and url".to_owned()).into()
        );
    }
    Ok(setting)
}

/// What is printed of plans.
fn show(
    context: &Context,
    found: &[BrokerPlan],
    unasked: &[Unasked],
    allowed: &Allowed,
    all: bool,
    end: &str,
) -> anyhow::Result<()> {
    if context.out().json {
        return context.out().data(&as_json(found, unasked, allowed), String::new);
    }
    let paint = paint_for();
    let mut parts: Vec<String> = found.iter().map(|broker| plan_text(broker, allowed, all, paint)).collect();
    for broker in unasked {
        parts.push(paint.lines(&format!("{}  {}", broker.broker, broker.why)));
    }
    parts.push(paint.lines(&format!("{}{end}", totals(found, unasked, allowed))));
    context.out().exact(&parts.join("\n"))
}

fn as_json(found: &[BrokerPlan], unasked: &[Unasked], allowed: &Allowed) -> Value {
    let change = |change: &posthaste_brokers::topology::TopologyChange| {
        let mut value = serde_json::to_value(change).unwrap_or_default();
        let missing = change.missing(allowed);
        let flags: Vec<String> = missing
            .iter()
            .filter_map(|missing| match missing {
                Missing::Flag(flag, name) => Some(format!("{flag} {name}")),
                Missing::Blocked(_) => None,
            })
            .collect();
        value["needs"] = json!(flags);
        value
    };
    let brokers: Vec<Value> = found
        .iter()
        .map(|broker| {
            let plan = &broker.plan;
            json!({
                "name": broker.table.name, "cluster": broker.look.cluster, "about": broker.look.words,
                "changes": plan.changes.iter().map(change).collect::<Vec<_>>(),
                "same": plan.same, "others": plan.others, "unseen": plan.unseen, "notes": plan.notes,
            })
        })
        .collect();
    let unasked: Vec<Value> =
        unasked.iter().map(|broker| json!({ "name": broker.broker, "why": broker.why })).collect();
    json!({ "brokers": brokers, "unreachable": unasked })
}

/// Whether everything could be seen.
fn is_whole(found: &[BrokerPlan], unasked: &[Unasked]) -> bool {
    unasked.is_empty() && found.iter().all(|broker| broker.plan.unseen.is_empty())
}

async fn plan(context: &Context, args: PlanArgs) -> anyhow::Result<ExitCode> {
    let setting = load(&args.file.files)?;
    let flags = args.risks.flags();
    let (found, unasked) = plans(&setting, &flags).await?;
    show(context, &found, &unasked, &flags.allowed(), args.all, " Nothing was changed.")?;
    let mut is_fine = is_whole(&found, &unasked);
    if args.validate {
        is_fine &= validate(&found).await;
    }
    if let Some(file) = &args.out {
        if !is_whole(&found, &unasked) {
            anyhow::bail!("no plan was written: not everything could be seen");
        }
        SavedPlan::new(&setting.files, &flags, &found).write(file)?;
        remark(&format!("written to {}: `posthaste topology apply {}`", file.display(), file.display()));
    }
    end(found).await;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets the brokers try every change. Says which ones they would refuse.
async fn validate(found: &[BrokerPlan]) -> bool {
    let mut is_fine = true;
    for broker in found {
        for change in &broker.plan.changes {
            match broker.admin.validate(change).await {
                Ok(_) => {}
                Err(error) => {
                    is_fine = false;
                    let what = if matches!(error, AdminFailure::Refused(_)) {
                        "would refuse"
                    } else {
                        "did not say"
                    };
                    remark(&format!(
                        "{} {what}: {}: {error}",
                        broker.table.name,
                        change.resource.flag_name()
                    ));
                }
            }
        }
    }
    is_fine
}

async fn check(context: &Context, args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let setting = load(&args.file.files)?;
    let (found, unasked) = plans(&setting, &PlanFlags::default()).await?;
    let changes =
        found.iter().flat_map(|broker| broker.plan.changes.iter().map(|change| (&broker.table.name, change)));
    let lines: Vec<String> = changes.map(|(broker, change)| short_line(broker, change)).collect();
    if context.out().json {
        context.out().data(&as_json(&found, &unasked, &Allowed::default()), String::new)?;
    } else if !lines.is_empty() {
        context.out().text(&lines.join("\n"))?;
    }
    for broker in &unasked {
        remark(&format!("{}: {}", broker.broker, broker.why));
    }
    for (broker, unseen) in
        found.iter().flat_map(|broker| broker.plan.unseen.iter().map(|unseen| (&broker.table.name, unseen)))
    {
        let name = unseen.name.as_deref().unwrap_or("all of them");
        remark(&format!("{broker}: {} {name}: not seen: {}", unseen.kind, unseen.why));
    }
    for note in found.iter().flat_map(|broker| &broker.plan.notes) {
        remark(note);
    }
    let is_whole = is_whole(&found, &unasked);
    end(found).await;
    Ok(match (is_whole, lines.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(3),
    })
}

async fn write_export(context: &Context, args: ExportArgs) -> anyhow::Result<ExitCode> {
    let brokers = match &args.broker {
        Some(url) => vec![broker_of(url)?],
        None => load(&args.file.files)?.brokers,
    };
    let kinds = if args.kinds.is_empty() { Kind::ALL.to_vec() } else { args.kinds.clone() };
    let scope = Scope { everything: true, kinds: kinds.iter().copied().collect(), ..Scope::default() };
    let mut looks = Vec::new();
    for table in &brokers {
        let admin = table.admin().map_err(|error| Usage(format!("broker `{}`: {error}", table.name)))?;
        let look = admin.look(&scope).await;
        admin.end().await;
        looks.push((table, look.map_err(|error| anyhow::anyhow!("broker `{}`: {error}", table.name))?));
    }
    let pattern = args.pattern.as_deref().map(posthaste::route::Pattern::new);
    let is_meant = |resource: &Resource| match &pattern {
        Some(pattern) => pattern.matches(&resource.name),
        None => !resource.internal,
    };
    let looks: Vec<_> = looks.iter().map(|(table, look)| (*table, look)).collect();
    context.out().exact(&export(&looks, &is_meant))?;
    let unseen: Vec<_> = looks
        .iter()
        .flat_map(|(table, look)| look.unseen.iter().map(|unseen| (&table.name, unseen)))
        .collect();
    for (broker, unseen) in &unseen {
        remark(&format!("{broker}: {} not seen: {}", unseen.kind, unseen.why));
    }
    // That a cluster has no rights at all is no failure to see them.
    Ok(ExitCode::SUCCESS)
}

/// A broker by its address alone.
fn broker_of(url: &str) -> anyhow::Result<BrokerTable> {
    let Some(kind) = posthaste_brokers::kind_of(url) else {
        return Err(
            Usage(format!("{url}: whose address is that? Write kafka://…, nats://… or amqp://…")).into()
        );
    };
    if let Some(words) = posthaste_brokers::missing(kind) {
        return Err(Usage(words).into());
    }
    let config = serde_json::from_value(json!({ "type": kind, "url": url }))?;
    Ok(BrokerTable {
        name: kind.to_owned(),
        kind: kind.to_owned(),
        config,
        sasl_url: None,
        management_url: None,
    })
}
