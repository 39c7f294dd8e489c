//! The command line: one file a command, all of them thin.
//!
//! A command reads its words, asks the library, prints the answer. Global flags say which configuration and
//! which outbox; [`Context`] is what a command gets of them.

mod adopt;
mod append;
mod audit;
mod chunks;
mod completions;
mod config;
mod consumers;
mod control;
mod dead;
mod deferred;
#[cfg(feature = "sqlite")]
mod demo;
mod doctor;
mod events;
mod gateway;
mod headers;
mod health;
mod init;
mod jobs;
mod lanes;
mod letters;
mod life;
#[cfg(feature = "sqlite")]
mod local;
mod looks;
mod migrate;
mod place;
mod run;
mod status;
mod time;
mod token;
mod topology;
mod trace;
mod tune;
mod ui;

use crate::config::{Config, Flags, LogFormat, Outbox};
use crate::logging;
use crate::output::{Out, Usage, host, remark};
use clap::{Args, Parser, Subcommand};
use posthaste::admin::{Actor, Admin, AdminCode, AdminError, EventName, trace_of};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::store::StoreError;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste demo                                           see it all at work
  export POSTHASTE_OUTBOX__URL=postgres://localhost/shop   which database
  posthaste migrate up                                     set up the outbox
  posthaste append orders.placed --payload '{\"id\": 1}'     append an event
  posthaste run --sink stdout                              see it arrive
  posthaste init --sink nats://localhost                   a file to start from
  posthaste run                                            relay what it says
  posthaste status --watch                                 look on
  posthaste events list --key order-7                      what was appended
  posthaste deferred causes                                what waits, and why
  posthaste dead causes                                    what was given up
  posthaste audit                                          who did what, and why
  posthaste consumers                                      how consumers are
  posthaste gateway keys new acme                          events over HTTP
  posthaste topology plan                                  what brokers lack
  posthaste doctor                                         what is wrong, if so

Configuration: ./posthaste.toml, or --config, or POSTHASTE_CONFIG. Every key can
be set by the environment: POSTHASTE_RELAY__POLL_MIN_MS=10 is relay.poll_min_ms,
POSTHASTE_SINKS__NATS__TOKEN_FILE=/run/secrets/nats is sinks.nats.token_file.

Exit codes: 0 done, 1 failure, 2 wrong usage or configuration.";

/// A command's examples, and which of the sinks in them this binary has.
fn with_sinks(examples: &str) -> String {
    let list = |names: Vec<&str>| names.join(", ");
    let own =
        ["local", "stdout", "null"].into_iter().filter(|name| *name != "local" || cfg!(feature = "sqlite"));
    let have = list(posthaste_brokers::built_in().chain(own).collect());
    let left_out = list(posthaste_brokers::left_out().collect());
    match left_out.is_empty() {
        true => format!("{examples}\n\nSinks of this binary: {have}."),
        false => format!(
            "{examples}\n\nSinks of this binary: {have}. It was built without {left_out}: \
             build it with `--features NAME`, or with `--features full` for all of them."
        ),
    }
}

/// Moves events reliably from a service's database to a broker, and into the next one's.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, after_help = with_sinks(EXAMPLES), propagate_version = true, term_width = 80)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// Configuration file [default: POSTHASTE_CONFIG or ./posthaste.toml]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    /// Database of a single outbox, instead of a configuration file
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// Schema of the outbox, with --url
    #[arg(long, global = true, value_name = "NAME", requires = "url")]
    schema: Option<String>,
    /// Which outbox, where several are configured
    #[arg(long, global = true, value_name = "NAME")]
    outbox: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// error, warn, info, debug, trace, or directives as RUST_LOG takes them
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How log lines look: human or json
    #[arg(long, global = true, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,
    // Not a doc comment: there, brackets are a link.
    #[arg(long, global = true, value_name = "NAME")]
    #[arg(help = "Who acts, for the audit [default: POSTHASTE_ACTOR, or user@host]")]
    actor: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "sqlite")]
    Demo(demo::DemoArgs),
    Init(init::InitArgs),
    Run(run::RunArgs),
    Migrate(migrate::MigrateArgs),
    Adopt(adopt::AdoptArgs),
    Append(append::AppendArgs),
    Status(status::StatusArgs),
    Events(events::EventsArgs),
    Trace(trace::TraceArgs),
    Deferred(deferred::DeferredArgs),
    Dead(dead::DeadArgs),
    Audit(audit::AuditArgs),
    Consumers(consumers::ConsumersArgs),
    Jobs(jobs::JobsArgs),
    Pause(control::PauseArgs),
    Resume(control::ResumeArgs),
    Rate(control::RateArgs),
    Tune(tune::TuneArgs),
    Lanes(lanes::LanesArgs),
    #[cfg(feature = "sqlite")]
    Local(local::LocalArgs),
    Doctor(doctor::DoctorArgs),
    Health(health::HealthArgs),
    Gateway(gateway::GatewayArgs),
    Topology(topology::TopologyArgs),
    Ui(ui::UiArgs),
    Token(token::TokenArgs),
    Config(config::ConfigArgs),
    Completions(completions::CompletionsArgs),
}

/// Runs the command.
pub(crate) async fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let context = Context { global: cli.global };
    match cli.command {
        Command::Init(args) => Box::pin(init::run(&context, args)).await,
        Command::Run(args) => Box::pin(run::run(&context, args)).await,
        Command::Config(args) => config::run(&context, args),
        Command::Token(args) => token::run(&context, args),
        Command::Ui(args) => Box::pin(ui::run(&context, args)).await,
        Command::Completions(args) => completions::run(&context, &args),
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => Box::pin(demo::run(&context, args)).await,
        Command::Migrate(args) => Box::pin(migrate::run(&context, args)).await,
        Command::Adopt(args) => Box::pin(adopt::run(&context, args)).await,
        Command::Append(args) => Box::pin(append::run(&context, args)).await,
        Command::Status(args) => Box::pin(status::run(&context, args)).await,
        Command::Events(args) => Box::pin(events::run(&context, args)).await,
        Command::Trace(args) => Box::pin(trace::run(&context, args)).await,
        Command::Deferred(args) => Box::pin(deferred::run(&context, args)).await,
        Command::Dead(args) => Box::pin(dead::run(&context, args)).await,
        Command::Audit(args) => Box::pin(audit::run(&context, args)).await,
        Command::Jobs(args) => Box::pin(jobs::run(&context, args)).await,
        Command::Consumers(args) => Box::pin(consumers::run(&context, args)).await,
        Command::Pause(args) => Box::pin(control::pause(&context, args)).await,
        Command::Resume(args) => Box::pin(control::resume(&context, args)).await,
        Command::Rate(args) => Box::pin(control::rate(&context, args)).await,
        Command::Tune(args) => Box::pin(tune::run(&context, args)).await,
        Command::Lanes(args) => Box::pin(lanes::run(&context, args)).await,
        #[cfg(feature = "sqlite")]
        Command::Local(args) => Box::pin(local::run(&context, args)).await,
        Command::Doctor(args) => Box::pin(doctor::run(&context, args)).await,
        Command::Health(args) => Box::pin(health::run(&context, args)).await,
        Command::Gateway(args) => Box::pin(gateway::run(&context, args)).await,
        Command::Topology(args) => Box::pin(topology::run(&context, args)).await,
    }
}

/// What every command may ask for.
pub(crate) struct Context {
    global: Global,
}

impl Context {
    /// The flags that make a configuration. The environment's file gives way to --url.
    pub(crate) fn flags(&self) -> Flags {
        let from_env = std::env::var_os("POSTHASTE_CONFIG").filter(|file| !file.is_empty());
        Flags {
            config: self.global.config.clone().or(from_env.map(PathBuf::from)),
            url: self.global.url.clone(),
            schema: self.global.schema.clone(),
            ..Flags::default()
        }
    }

    /// The configuration of a command that is no daemon: logs from warnings up.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let config = Config::load(&self.flags())?;
        self.start_logging(&config, "warn")?;
        Ok(config)
    }

    /// Logging by flag, environment, then this level.
    pub(crate) fn start_logging(&self, config: &Config, level: &str) -> anyhow::Result<()> {
        let format = self.global.log_format.unwrap_or(config.log_format);
        Ok(logging::start(format, self.global.log_level.as_deref(), level)?)
    }

    /// Logging of a command that reads no posthaste.toml.
    pub(crate) fn start_plain_logging(&self) -> anyhow::Result<()> {
        let format = self.global.log_format.unwrap_or(LogFormat::Human);
        Ok(logging::start(format, self.global.log_level.as_deref(), "warn")?)
    }

    /// How log lines look.
    pub(crate) fn log_format(&self, config: &Config) -> LogFormat {
        self.global.log_format.unwrap_or(config.log_format)
    }

    /// Standard output.
    pub(crate) fn out(&self) -> Out {
        Out { json: self.global.json }
    }

    /// The outboxes a command is about: the chosen one, or all.
    pub(crate) fn outboxes<'a>(&self, config: &'a Config) -> anyhow::Result<Vec<&'a Outbox>> {
        let Some(name) = &self.global.outbox else { return Ok(config.outboxes.iter().collect()) };
        match config.outboxes.iter().find(|outbox| *outbox.name == **name) {
            Some(outbox) => Ok(vec![outbox]),
            None => {
                Err(Usage(format!("there is no outbox `{name}`; configured are: {}", names(config))).into())
            }
        }
    }

    /// Whether nobody chose an outbox.
    pub(crate) fn names_no_outbox(&self) -> bool {
        self.global.outbox.is_none()
    }

    /// The one outbox a command is about.
    pub(crate) fn outbox<'a>(&self, config: &'a Config) -> anyhow::Result<&'a Outbox> {
        match self.outboxes(config)?.as_slice() {
            [outbox] => Ok(outbox),
            _ => Err(Usage(format!(
                "several outboxes are configured; choose one with --outbox: {}",
                names(config)
            ))
            .into()),
        }
    }

    /// The outbox whose database has the inbox of a consumer. One that is not in the configuration is code
    /// in a service: then the outbox is the chosen one.
    pub(crate) fn outbox_of<'a>(&self, config: &'a Config, consumer: &str) -> anyhow::Result<&'a Outbox> {
        if self.global.outbox.is_some() || config.consumers.is_empty() {
            return self.outbox(config);
        }
        let found = config.consumers.iter().find(|known| *known.name == *consumer);
        let outbox =
            found.and_then(|found| config.outboxes.iter().find(|outbox| outbox.name == found.outbox));
        outbox.ok_or_else(|| {
            let known: Vec<&str> = config.consumers.iter().map(|known| &*known.name).collect();
            let known = known.join(", ");
            let why = "for one that is code in a service, name the outbox of its inbox with --outbox";
            Usage(format!("there is no consumer `{consumer}`; configured are: {known}; {why}")).into()
        })
    }

    /// Who was named at the command line: of whom the audit is asked.
    pub(crate) fn named_actor(&self) -> Option<String> {
        self.global.actor.clone()
    }

    /// Who acts and why, for the audit; with the trace that the surroundings are in, if they say so.
    pub(crate) fn actor(&self, reason: &str) -> Actor {
        let variable = || std::env::var("POSTHASTE_ACTOR").ok().filter(|name| !name.is_empty());
        let name = self.global.actor.clone().or_else(variable).unwrap_or_else(|| {
            let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
            let user = named.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
            format!("{user}@{}", host())
        });
        let actor = Actor::new(name, reason);
        let traceparent = std::env::var("TRACEPARENT").unwrap_or_default();
        match trace_of(&traceparent) {
            Some(trace) => return actor.traced(trace),
            None if traceparent.is_empty() => {}
            None => {
                remark("TRACEPARENT is none of W3C's (00-TRACE-SPAN-FLAGS): the act gets a trace of its own")
            }
        }
        actor
    }
}

fn names(config: &Config) -> String {
    config.outboxes.iter().map(|outbox| outbox.name.as_ref()).collect::<Vec<_>>().join(", ")
}

/// A pattern of topics, as a flag says it.
fn pattern(text: &str) -> Result<String, String> {
    posthaste::route::Pattern::check(text).map(|()| text.to_owned())
}

/// So many a second, as a flag says it.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse::<f64>();
    number
        .ok()
        .filter(|rate| *rate > 0.0 && rate.is_finite())
        .ok_or_else(|| "must be a number above 0, like 100/s".to_owned())
}

/// An event by its id or its number, as an argument says it.
fn event_name(text: &str) -> Result<EventName, String> {
    let number = text.parse().ok().filter(|seq| *seq > 0).map(EventName::Seq);
    let id = || text.parse().ok().map(EventName::Id);
    number.or_else(id).ok_or_else(|| "must be an event's id (a UUID) or its number".to_owned())
}

/// Connects for looking and acting.
pub(crate) async fn admin(outbox: &Outbox) -> anyhow::Result<Box<dyn Admin>> {
    outbox.database.admin().await.map_err(|error| explain(outbox, error))
}

/// Connects for looking at consumers and acting on them: with the login of this one, where it has its own.
pub(crate) async fn consumer_admin(
    config: &Config,
    outbox: &Outbox,
    consumer: Option<&str>,
) -> anyhow::Result<Box<dyn ConsumerAdmin>> {
    let here = config.consumers.iter().filter(|setting| setting.outbox == outbox.name);
    let here: Vec<_> = here.filter(|setting| consumer.is_none_or(|name| *setting.name == *name)).collect();
    let login = here.first().map(|setting| &setting.database);
    let admin = outbox.database.consumer_admin(login, &here).await;
    admin.map_err(|error| explain(outbox, error))?.ok_or_else(|| {
        let why = "it is an adopted table, and consumers have their inbox in a schema of our own";
        Usage(format!("outbox `{}`: {why}", outbox.name)).into()
    })
}

/// A store's error in an operator's words: what happened, what it means for the events, what to do.
pub(crate) fn explain(outbox: &Outbox, error: StoreError) -> anyhow::Error {
    let name = &outbox.name;
    let advice = match &error {
        StoreError::Transient { outcome_known, .. } => {
            let outcome = if *outcome_known {
                "Nothing was changed."
            } else {
                "It is not known whether the change was made: look before you repeat it."
            };
            let url = outbox.database.address();
            format!(
                "{outcome} Appended events stay in the database and are delivered when it can be reached. Check that the server is up and that {url} is right, then try again."
            )
        }
        StoreError::Fatal { message: said, .. } => {
            // Many say it themselves.
            let fate = if said.contains("No event") { "" } else { "No event is lost. " };
            format!("{fate}`posthaste doctor` shows what is missing.")
        }
        StoreError::Broken { .. } => {
            "The lane stands still and loses nothing. See `posthaste lanes repair --help`.".to_owned()
        }
        _ => "Nothing was changed.".to_owned(),
    };
    anyhow::anyhow!("outbox `{name}`: {error}\n  {advice}")
}

/// How to look further for an event that is not where its id says.
const SEARCH_WIDER: &str = ". Say when it was appended with --near TIME, or look through all of the log with --scan; \
                            `events list --key` or `--topic` with `--since` find it too";

/// The same for an administrative act.
pub(crate) fn explain_act(outbox: &Outbox, error: AdminError) -> anyhow::Error {
    match error {
        AdminError::Store(error) => explain(outbox, error),
        AdminError::Invalid { message, .. } => Usage(message).into(),
        other => {
            let advice = if other.code() == AdminCode::SearchWider.as_str() { SEARCH_WIDER } else { "" };
            anyhow::anyhow!("outbox `{}`: {other}{advice}", outbox.name)
        }
    }
}

/// Shows what the configuration has to say.
pub(crate) fn show_warnings(config: &Config) {
    for warning in &config.warnings {
        remark(&format!("warning: {warning}"));
    }
}
