//! `pause`, `resume`, `rate`: what an operator sets while relays and consumers run. It takes effect at their
//! next heartbeat, in every process, and is audited.

use super::{Context, admin, explain_act, time};
use crate::output::Usage;
use clap::Args;
use posthaste::Timestamp;
use posthaste::admin::{Control, ControlTarget, Ends};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

const PAUSE_EXAMPLES: &str = "\
Examples:
  posthaste pause --sink nats --reason 'broker upgrade'
  posthaste pause --route orders --for 2h --reason 'consumer is broken'
  posthaste pause --consumer billing --reason 'ledger is being repaired'

Nothing is lost while paused: events stay in the log and wait. A paused sink
reads nothing; events of a paused route wait among the deferred. A paused
consumer begins nothing, and the broker keeps its messages. With --for or --until
it ends by itself, by the database's clock. A pause and a limit of one sink have
one end.";

const RESUME_EXAMPLES: &str = "\
Examples:
  posthaste resume --sink nats --reason 'upgrade is done'
  posthaste resume --route orders
  posthaste resume --consumer billing

What waited is delivered, in order.";

const RATE_EXAMPLES: &str = "\
Examples:
  posthaste rate 500 --sink nats --for 1h --reason 'consumer is slow'
  posthaste rate off --sink nats --reason 'consumer was scaled up'
  posthaste rate 50 --consumer billing --reason 'the ledger is slow'

A sink's limit counts events a second over all relays together. It goes before
`rate_limit_per_s` of the configuration. A consumer's counts messages a second,
in each process that runs it. `off` lifts it.";

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// A sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// A route
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// A consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

/// When it ends by itself
#[derive(Debug, Default, Args)]
pub(crate) struct EndArgs {
    /// Ends by itself after this long: 30m, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = time::distance, conflicts_with = "until")]
    length: Option<Duration>,
    /// Ends by itself at this time: RFC 3339
    #[arg(long, value_name = "TIME", value_parser = time::later)]
    until: Option<Timestamp>,
}

impl EndArgs {
    pub(crate) fn ends(&self) -> Option<Ends> {
        self.length.map(Ends::In).or(self.until.map(Ends::At))
    }
}

/// What has a rate
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RatedArgs {
    /// The sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

/// Stop delivering to a sink or by a route, or stop a consumer
#[derive(Debug, Args)]
#[command(after_help = PAUSE_EXAMPLES)]
#[command(override_usage = "posthaste pause <--sink|--route|--consumer> <NAME> --reason <TEXT>")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    end: EndArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Go on delivering
#[derive(Debug, Args)]
#[command(after_help = RESUME_EXAMPLES)]
#[command(override_usage = "posthaste resume <--sink|--route|--consumer> <NAME> [OPTIONS]")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "resumed")]
    reason: String,
}

/// Limit how many events a second go to a sink or a consumer
#[derive(Debug, Args)]
#[command(after_help = RATE_EXAMPLES)]
pub(crate) struct RateArgs {
    /// Events a second, or `off`
    #[arg(value_parser = limit)]
    limit: RateArg,
    #[command(flatten)]
    target: RatedArgs,
    #[command(flatten)]
    end: EndArgs,
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
    let says = "is paused within a heartbeat: events wait";
    set(context, args.target, Control::Pause, &args.end, &args.reason, says).await
}

pub(crate) async fn resume(context: &Context, args: ResumeArgs) -> anyhow::Result<ExitCode> {
    let end = EndArgs::default();
    set(context, args.target, Control::Resume, &end, &args.reason, "goes on within a heartbeat").await
}

pub(crate) async fn rate(context: &Context, args: RateArgs) -> anyhow::Result<ExitCode> {
    let RatedArgs { sink, consumer } = args.target;
    let what = if sink.is_some() { "delivers at most" } else { "handles at most" };
    let target = TargetArgs { sink, route: None, consumer };
    let says = match args.limit.0 {
        Some(rate) => format!("{what} {rate} events a second"),
        None => "has no limit set by hand any more".to_owned(),
    };
    set(context, target, Control::RateLimit(args.limit.0), &args.end, &args.reason, &says).await
}

async fn set(
    context: &Context,
    target: TargetArgs,
    control: Control,
    end: &EndArgs,
    reason: &str,
    says: &str,
) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let (outbox, kind, name, target) = match (target.sink, target.route, target.consumer) {
        (Some(name), ..) => (context.outbox(&config)?, "sink", name.clone(), ControlTarget::Sink(name)),
        (_, Some(name), _) => {
            // Routes live in the configuration only, so a misspelt one would pause nothing, silently.
            let outbox = context.outbox(&config)?;
            let known = outbox.routes.routes();
            if !known.is_empty() && known.iter().all(|route| *route.name != *name) {
                let names: Vec<&str> = known.iter().map(|route| route.name.as_ref()).collect();
                return Err(Usage(format!(
                    "there is no route `{name}`; configured are: {}",
                    names.join(", ")
                ))
                .into());
            }
            (outbox, "route", name.clone(), ControlTarget::Route(name))
        }
        (_, _, Some(name)) => {
            (context.outbox_of(&config, &name)?, "consumer", name.clone(), ControlTarget::Consumer(name))
        }
        (None, None, None) => return Err(Usage("name a --sink, a --route or a --consumer".to_owned()).into()),
    };
    let actor = context.actor(reason);
    let act = admin(outbox).await?.control_until(&target, &control, end.ends(), &actor).await;
    act.map_err(|error| explain_act(outbox, error))?;
    let answer = json!({ "outbox": &*outbox.name, kind: name, "done": true });
    let text = || format!("{kind} {name} of outbox {} {says}", outbox.name);
    context.out().acted(answer, Some(&actor), text)?;
    Ok(ExitCode::SUCCESS)
}
