//! `pause`, `resume`, `rate`: what an operator sets while relays run. It takes effect at their next
//! heartbeat, on every relay, and is audited.

use super::{Context, admin, explain_act};
use crate::output::Usage;
use clap::Args;
use posthaste::admin::{Control, ControlTarget};
use serde_json::json;
use std::process::ExitCode;

const PAUSE_EXAMPLES: &str = "\
Examples:
  posthaste pause --sink nats --reason 'broker upgrade'
  posthaste pause --route orders --reason 'consumer is broken'

Nothing is lost while paused: events stay in the log and wait. A paused sink
reads nothing; events of a paused route wait among the deferred.";

const RESUME_EXAMPLES: &str = "\
Examples:
  posthaste resume --sink nats --reason 'upgrade is done'
  posthaste resume --route orders

What waited is delivered, in order.";

const RATE_EXAMPLES: &str = "\
Examples:
  posthaste rate 500 --sink nats --reason 'consumer is slow'
  posthaste rate off --sink nats --reason 'consumer was scaled up'

The limit counts events a second over all relays together. It goes before
`rate_limit_per_s` of the configuration; `off` lifts it.";

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// A sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// A route
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
}

/// Stop delivering to a sink or by a route
#[derive(Debug, Args)]
#[command(after_help = PAUSE_EXAMPLES)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Go on delivering
#[derive(Debug, Args)]
#[command(after_help = RESUME_EXAMPLES)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "resumed")]
    reason: String,
}

/// Limit how many events a second go to a sink
#[derive(Debug, Args)]
#[command(after_help = RATE_EXAMPLES)]
pub(crate) struct RateArgs {
    /// Events a second, or `off`
    #[arg(value_parser = limit)]
    limit: RateArg,
    /// The sink
    #[arg(long, value_name = "NAME")]
    sink: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "rate changed")]
    reason: String,
}

#[derive(Debug, Clone, Copy)]
struct RateArg(Option<f64>);

fn limit(text: &str) -> Result<RateArg, String> {
    match text.strip_suffix("/s").unwrap_or(text).parse::<f64>() {
        _ if text == "off" => Ok(RateArg(None)),
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(RateArg(Some(rate))),
        _ => Err("must be a number above 0, or `off`; to stop a sink, use `posthaste pause`".to_owned()),
    }
}

pub(crate) async fn pause(context: &Context, args: PauseArgs) -> anyhow::Result<ExitCode> {
    set(context, args.target, Control::Pause, &args.reason, "is paused within a heartbeat: events wait").await
}

pub(crate) async fn resume(context: &Context, args: ResumeArgs) -> anyhow::Result<ExitCode> {
    set(context, args.target, Control::Resume, &args.reason, "goes on within a heartbeat").await
}

pub(crate) async fn rate(context: &Context, args: RateArgs) -> anyhow::Result<ExitCode> {
    let target = TargetArgs { sink: Some(args.sink), route: None };
    let says = match args.limit.0 {
        Some(rate) => format!("delivers at most {rate} events a second"),
        None => "has no limit set by hand any more".to_owned(),
    };
    set(context, target, Control::RateLimit(args.limit.0), &args.reason, &says).await
}

async fn set(
    context: &Context,
    target: TargetArgs,
    control: Control,
    reason: &str,
    says: &str,
) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let (kind, name, target) = match (target.sink, target.route) {
        (Some(name), _) => ("sink", name.clone(), ControlTarget::Sink(name)),
        (None, Some(name)) => {
            // Routes live in the configuration only, so a misspelt one would pause nothing, silently.
            let known = outbox.routes.routes();
            if !known.is_empty() && known.iter().all(|route| *route.name != *name) {
                let names: Vec<&str> = known.iter().map(|route| route.name.as_ref()).collect();
                return Err(Usage(format!(
                    "there is no route `{name}`; configured are: {}",
                    names.join(", ")
                ))
                .into());
            }
            ("route", name.clone(), ControlTarget::Route(name))
        }
        (None, None) => return Err(Usage("name a --sink or a --route".to_owned()).into()),
    };
    let act = admin(outbox).await?.control(&target, &control, &context.actor(reason)).await;
    act.map_err(|error| explain_act(outbox, error))?;
    let answer = json!({ "outbox": &*outbox.name, kind: name, "done": true });
    context.out().data(&answer, || format!("{kind} {name} of outbox {} {says}", outbox.name))?;
    Ok(ExitCode::SUCCESS)
}
