//! `posthaste topology apply`: the plan, a question, and the changes in their order.

use super::{FileArgs, RiskArgs, is_whole, load, show};
use crate::cli::Context;
use crate::output::{Usage, ask, is_interactive, plural, remark};
use crate::topology::{BrokerPlan, PlanFlags, SavedPlan, Unasked, end, plans};
use clap::Args;
use posthaste::crash_point;
use posthaste_brokers::topology::{Allowed, ChangeAct, Missing, TopologyChange};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Changes of one read-back, which asks for all rights each time. Requests are smaller.
const AT_ONCE: usize = 2_000;

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    /// A plan that `plan --out` wrote: exactly that is done, or nothing
    #[arg(value_name = "PLAN", conflicts_with_all = ["files", "only", "rotate"])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    risks: RiskArgs,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

pub(super) async fn run(context: &Context, args: ApplyArgs) -> anyhow::Result<ExitCode> {
    let saved = args.plan.as_deref().map(SavedPlan::read).transpose()?;
    let given = args.risks.flags();
    let (files, flags) = match &saved {
        Some(saved) => (saved.files.clone(), saved.flags.clone()),
        None => (args.file.files.clone(), given.clone()),
    };
    let setting = load(&files)?;
    let (found, unasked) = plans(&setting, &flags).await?;
    let allowed = allowed(&flags, &given, saved.is_some());
    if let Some(saved) = &saved {
        let stale =
            |why| anyhow::anyhow!("{}: {why}", args.plan.as_deref().unwrap_or(&PathBuf::new()).display());
        saved.compare(&found).map_err(stale)?;
    }
    if !context.out().json {
        show(context, &found, &unasked, &allowed, false, "")?;
    }
    if !unasked.is_empty() {
        anyhow::bail!("nothing was done: not every broker could be asked");
    }
    refuse(&found, &allowed)?;
    let count: usize = found.iter().map(|broker| broker.plan.changes.len()).sum();
    if count > 0 && !args.yes {
        if !is_interactive() {
            let why = "say --yes to do it; nobody is there to ask. Nothing was done";
            return Err(Usage(format!("{}: {why}", plural(count as u64, "change"))).into());
        }
        if !ask(&format!("Make {}", plural(count as u64, "change")))? {
            remark("nothing was done");
            return Ok(ExitCode::FAILURE);
        }
    }
    let made = make(context, &found, &unasked).await;
    end(found).await;
    made
}

/// What may be done. A plan file says what was reviewed; the risks are still named on this command line.
fn allowed(flags: &PlanFlags, given: &PlanFlags, is_saved: bool) -> Allowed {
    let mut allowed = given.allowed();
    if is_saved {
        // The password was named when the plan was made, and a flag for it means nothing else.
        let rotated = PlanFlags { rotate: flags.rotate.clone(), ..PlanFlags::default() };
        allowed.hazard.extend(rotated.allowed().hazard);
    }
    allowed
}

/// Refuses the whole plan before the first change, if anything in it may not be done.
fn refuse(found: &[BrokerPlan], allowed: &Allowed) -> anyhow::Result<()> {
    let missing: Vec<(&TopologyChange, Missing)> = found
        .iter()
        .flat_map(|broker| &broker.plan.changes)
        .flat_map(|change| change.missing(allowed).into_iter().map(move |missing| (change, missing)))
        .collect();
    let mut flags: Vec<String> = Vec::new();
    for (change, missing) in &missing {
        match missing {
            Missing::Blocked(why) => {
                let name = change.resource.flag_name();
                anyhow::bail!(
                    "nothing was done: {name} is blocked: {why}\n  Leave it out with --only for the others, or mend the file"
                );
            }
            Missing::Flag(flag, name) => {
                let flag = format!("{flag} {}", crate::output::shell_word(&name.to_string()));
                if !flags.contains(&flag) {
                    flags.push(flag);
                }
            }
        }
    }
    if flags.is_empty() {
        return Ok(());
    }
    Err(Usage(format!(
        "nothing was done: say what may be hurt or destroyed, by name:\n  {}",
        flags.join("\n  ")
    ))
    .into())
}

/// Makes the changes of all brokers, each in its order.
async fn make(context: &Context, found: &[BrokerPlan], unasked: &[Unasked]) -> anyhow::Result<ExitCode> {
    // CRASH(topology.begin): nothing was changed.
    crash_point!("topology.begin");
    let mut done = 0;
    for broker in found {
        for group in groups(&broker.plan.changes) {
            let answers = broker.admin.apply(group, &broker.topology.secrets).await;
            let mut failures = Vec::new();
            for (change, answer) in group.iter().zip(answers) {
                match answer {
                    Ok(()) => done += 1,
                    Err(error) => failures.push(format!("{}: {error}", change.resource.flag_name())),
                }
            }
            // CRASH(topology.between): a prefix of the order is done. The next plan shows the rest, and
            // nobody lacks a right that he had before and has afterwards.
            crash_point!("topology.between");
            if !failures.is_empty() {
                let rest = found.iter().map(|broker| broker.plan.changes.len()).sum::<usize>() - done;
                anyhow::bail!(
                    "broker `{}`: {}\n  {}, {rest} not. When that is mended, the same command again does the rest",
                    broker.table.name,
                    failures.join("\n  "),
                    made(done)
                );
            }
        }
    }
    let is_whole = is_whole(found, unasked);
    let words = match (done, is_whole) {
        (0, true) => "nothing to do".to_owned(),
        (done, true) => made(done),
        (done, false) => format!("{}, and not everything could be seen", made(done)),
    };
    context.out().data(&json!({ "changed": done, "complete": is_whole }), || words)?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `1 change was made`.
fn made(count: usize) -> String {
    format!("{} {} made", plural(count as u64, "change"), if count == 1 { "was" } else { "were" })
}

/// Neighbours that are changed in the same way go together.
fn groups(changes: &[TopologyChange]) -> impl Iterator<Item = &[TopologyChange]> {
    let permission = |change: &TopologyChange| change.resource.settings.get("permission").cloned();
    let is_alike = move |one: &TopologyChange, other: &TopologyChange| {
        let what =
            |change: &TopologyChange| (change.resource.kind, change.act == ChangeAct::Change, change.act);
        what(one) == what(other) && permission(one) == permission(other)
    };
    changes.chunk_by(is_alike).flat_map(|alike| alike.chunks(AT_ONCE))
}
