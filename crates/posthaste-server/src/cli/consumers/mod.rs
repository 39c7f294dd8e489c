//! `posthaste consumers`: how far consumers are, what waits, what their processes say; and where they go on.

mod replay;
mod seek;
mod sql;
mod status;

use super::Context;
use crate::config::{Config, ConsumerSetting};
use crate::output::Usage;
use clap::{Args, Subcommand};
use posthaste::source::SourceError;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste consumers                       all of the configuration
  posthaste consumers status billing        one of them
  posthaste consumers status --json | jq '.consumers[].partitions[].lag'
  posthaste consumers seek billing --topic orders.placed --partition 0 \\
      --to position:120 --reason 'look at them again'
  posthaste consumers replay billing --topic orders.placed --from 2h \\
      --type order --repeat --reason 'invoices were deleted'
  posthaste pause --consumer billing --reason 'ledger is being repaired'
  posthaste dead list --consumer billing

A consumer takes messages from a broker and runs handlers, in the transaction of
the database that has its inbox. Its effects happen once.";

const STATUS_EXAMPLES: &str = "\
Examples:
  posthaste consumers status
  posthaste consumers status billing --json | jq '.consumers[0].processes'

position  everything before it is decided: done, deferred, or a dead letter
lag       messages behind it: by the broker, or else as its processes said last
behind    how old the last message before the position is, where others wait
deferred  messages that wait for a retry, or for an earlier one of their key
dead      messages given up
state     who has the partition, by the numbers of the processes; `stopped` needs
          somebody's help, and says why; `foreign`: somebody else moved the
          group's position at the broker, which has no effect

First what keeps messages from being handled, a sentence for each thing. A
database that cannot be reached is shown with the reason; the exit code is 1
then. In JSON it is in `unreachable`. Times are texts in RFC 3339 there, and
every other name of a quantity ends with its unit.";

const SQL_EXAMPLES: &str = "\
Examples:
  posthaste consumers sql billing
  posthaste consumers sql | psql shop

Prints the tables that `tables` of a consumer names, where they are not ours, and
the grants for the roles of consumers and operators. What is there already is
left alone. Nothing is connected to.";

const SEEK_EXAMPLES: &str = "\
Examples:
  posthaste consumers seek billing --topic orders.placed --partition 0 \\
      --to earliest --reason 'the projection was dropped'
  posthaste consumers seek billing --topic orders.placed --partition 0 \\
      --to position:120 --reason 'the topic was made anew'
  posthaste consumers seek billing --topic orders.placed --partition 0 \\
      --to 2026-11-15T08:00:00Z --reason 'before that it is of no use'

The partition goes on there, whether or not the consumer runs, and this is
audited. Marks still protect: what is done is not done again. Going forward
skips what lies between. Only a position can be said while the broker is away.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  posthaste consumers replay billing --topic orders.placed --from 2h --dry-run
  posthaste consumers replay billing --topic orders.placed --from 2h \\
      --type order_cancelled --reason 'a handler was added'
  posthaste consumers replay billing --topic orders.placed --partition 0 \\
      --from position:120 --to position:400 --repeat --reason 'invoices lost'

Reads the range without joining the group, and copies what matches into the
inbox. The running consumer handles it, in order of the key, beside what comes
in. The group's offsets and the saved positions stay as they are.

Without --repeat only what has no mark is handled: what was skipped, or had no
handler. Then the range begins no earlier than marks are kept
(retention.marks_days). With it everything is handled once more, its effects
too. The range ends at the saved position at the latest.

At most 10,000 messages wait at a time. Ctrl-C stops between two chunks, and the
command says how to go on.";

/// Show consumers: positions, lag, what waits; move one, or handle a range again
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConsumersArgs {
    #[command(subcommand)]
    act: Option<ConsumersAct>,
}

#[derive(Debug, Subcommand)]
enum ConsumersAct {
    /// Show positions, lag, owners, what waits, and what processes say
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Only this consumer
        #[arg(value_name = "NAME")]
        consumer: Option<String>,
    },
    /// Print the service's own tables that a consumer writes, and the grants
    #[command(after_help = SQL_EXAMPLES)]
    Sql {
        /// Only this consumer
        #[arg(value_name = "NAME")]
        consumer: Option<String>,
    },
    /// Move a partition to another place
    #[command(after_help = SEEK_EXAMPLES)]
    #[command(
        override_usage = "posthaste consumers seek <NAME> --topic <TOPIC> \\\n           --partition <NUMBER> --to <PLACE> --reason <TEXT>"
    )]
    Seek(seek::SeekArgs),
    /// Handle messages of a range again, or those that were passed over
    #[command(after_help = REPLAY_EXAMPLES)]
    #[command(
        override_usage = "posthaste consumers replay <NAME> --topic <TOPIC> \\\n           --from <PLACE> [OPTIONS] --reason <TEXT>"
    )]
    Replay(replay::ReplayArgs),
}

pub(crate) async fn run(context: &Context, args: ConsumersArgs) -> anyhow::Result<ExitCode> {
    match args.act.unwrap_or(ConsumersAct::Status { consumer: None }) {
        ConsumersAct::Status { consumer } => status::run(context, consumer.as_deref()).await,
        ConsumersAct::Sql { consumer } => sql::run(context, consumer.as_deref()),
        ConsumersAct::Seek(args) => seek::run(context, args).await,
        ConsumersAct::Replay(args) => replay::run(context, args).await,
    }
}

/// A consumer as it is configured: only that says which broker is asked, and how.
fn setting<'a>(config: &'a Config, name: &str) -> anyhow::Result<&'a ConsumerSetting> {
    config.consumers.iter().find(|setting| *setting.name == *name).ok_or_else(|| {
        let why = "the configuration has no [consumers] table of it, so its broker cannot be asked";
        Usage(format!("consumer `{name}`: {why}. A position of its own can be said to `seek`")).into()
    })
}

/// Why a broker did not answer, for people.
fn ask_source(setting: &ConsumerSetting, error: &SourceError) -> anyhow::Error {
    let source = setting.own.source.as_deref().unwrap_or_default();
    if let SourceError::Unsupported(_) = error {
        return anyhow::anyhow!("consumer `{}`, source `{source}`: {error}", setting.name);
    }
    anyhow::anyhow!(
        "consumer `{}`: its source `{source}` gives no answer: {error}\n  `posthaste doctor` shows more.",
        setting.name
    )
}
