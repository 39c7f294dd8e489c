//! `posthaste tune`: lay a few settings of `[relay]` over the file's for a while, on all relays.

use super::control::EndArgs;
use super::{Context, admin, explain_act};
use crate::config::Outbox;
use crate::output::{paragraph, table, time as shown_time};
use crate::tuning::{HOUR, ShownSetting, ShownTuning, setting};
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use posthaste::admin::{Admin, Ends, SetBy, Tunable, TuneAct};
use posthaste::relay::RelaySettings;
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  posthaste tune                                       what is in force
  posthaste tune set --poll-max-ms 1000 --reason 'wakeups do not come'
  posthaste tune set --page-events-max 256 --due-events-max 64 --for 2h \\
      --reason 'the database is busy'
  posthaste tune clear --reason 'it is quiet again'

All relays of the outbox go by it within a heartbeat, also after a restart or a
SIGHUP, until it ends or is cleared. Then the file's values are back.";

const SHOW_EXAMPLES: &str = "\
Examples:
  posthaste tune show
  posthaste tune show --json | jq '.settings[] | select(.tuned)'

The file is the one that this command reads: relays that run with another one
judge what is set by theirs, and say so in their log.";

const SET_EXAMPLES: &str = "\
Examples:
  posthaste tune set --poll-max-ms 1000 --reason 'wakeups do not come'
  posthaste tune set --page-events-max 256 --for 2h --reason 'busy database'
  posthaste tune set --settle-interval-ms 100 --until 2026-11-15T20:00:00Z \\
      --reason 'the disk is slow tonight'

Without --for or --until it ends after an hour, by the database's clock. A value
stays within a tenth and ten times of the file's. What is tuned already and not
named stays as it is.";

const CLEAR_EXAMPLES: &str = "\
Examples:
  posthaste tune clear --reason 'it is quiet again'
  posthaste tune clear page_events_max --reason 'the index is built'

The file's values are back within a heartbeat.";

/// Set intervals and batches of all relays for a while
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TuneArgs {
    #[command(subcommand)]
    act: Option<TuneCommand>,
}

#[derive(Debug, Subcommand)]
enum TuneCommand {
    /// Show what the file says, what is in force, and by whom
    #[command(after_help = SHOW_EXAMPLES)]
    Show,
    /// Lay settings over the file's, for a while
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Go back to the file's settings
    #[command(after_help = CLEAR_EXAMPLES)]
    Clear {
        /// Which; all, if none is named
        #[arg(value_name = "SETTING", value_parser = setting)]
        settings: Vec<Tunable>,
        /// Why, for the audit
        #[arg(long, value_name = "TEXT", default_value = "cleared")]
        reason: String,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Shortest pause between two reads that found nothing
    #[arg(long, value_name = "MS")]
    poll_min_ms: Option<u64>,
    /// Longest such pause
    #[arg(long, value_name = "MS")]
    poll_max_ms: Option<u64>,
    /// Most events in one page
    #[arg(long, value_name = "N")]
    page_events_max: Option<u64>,
    /// Most deferred events tried at once
    #[arg(long, value_name = "N")]
    due_events_max: Option<u64>,
    /// Shortest time between two settlements of a lane
    #[arg(long, value_name = "MS")]
    settle_interval_ms: Option<u64>,
    #[command(flatten)]
    end: EndArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl SetArgs {
    fn values(&self) -> Vec<(Tunable, u64)> {
        let value = |setting: Tunable| match setting {
            Tunable::PollMin => self.poll_min_ms,
            Tunable::PollMax => self.poll_max_ms,
            Tunable::PageEvents => self.page_events_max,
            Tunable::DueEvents => self.due_events_max,
            Tunable::SettleInterval => self.settle_interval_ms,
        };
        Tunable::ALL.into_iter().filter_map(|setting| Some((setting, value(setting)?))).collect()
    }
}

pub(crate) async fn run(context: &Context, args: TuneArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let admin = &*admin(outbox).await?;
    let (act, reason) = match args.act {
        None | Some(TuneCommand::Show) => return show(context, outbox, &config.relay, admin).await,
        Some(TuneCommand::Set(set)) => {
            let (values, ends) = (set.values(), set.end.ends().unwrap_or(Ends::In(HOUR)));
            (TuneAct::Set { values, ends, file: Box::new(config.relay.clone()) }, set.reason)
        }
        Some(TuneCommand::Clear { settings, reason }) => (TuneAct::Clear(settings), reason),
    };
    let actor = context.actor(&reason);
    let until = admin.tune(&act, &actor).await.map_err(|error| explain_act(outbox, error))?;
    let answer = json!({ "outbox": &*outbox.name, "done": true, "until": until });
    context.out().acted(answer, Some(&actor), || said(&outbox.name, until))?;
    Ok(ExitCode::SUCCESS)
}

fn said(outbox: &str, until: Option<Timestamp>) -> String {
    match until {
        Some(until) => {
            let end = shown_time(until);
            format!("all relays of outbox {outbox} go by it within a heartbeat, until {end}")
        }
        None => format!("all relays of outbox {outbox} go by their file again within a heartbeat"),
    }
}

async fn show(
    context: &Context,
    outbox: &Outbox,
    file: &RelaySettings,
    admin: &dyn Admin,
) -> anyhow::Result<ExitCode> {
    let stored = admin.tuning().await.map_err(|error| explain_act(outbox, error))?;
    let found = ShownTuning::new(&outbox.name, file, &stored);
    context.out().data(&found, || draw(&found))?;
    Ok(ExitCode::SUCCESS)
}

fn draw(found: &ShownTuning) -> String {
    let headers = ["setting", ">file", ">in force", "from", "since", "until"];
    let mut lines = vec![table(&headers, found.settings.iter().map(row).collect())];
    let mut reasons: Vec<&str> = Vec::new();
    for set in found.settings.iter().filter_map(|one| one.set_by.as_ref()) {
        if !reasons.contains(&&*set.reason) {
            reasons.push(&set.reason);
            lines.push(paragraph(&format!("{}: \"{}\"", set.actor, set.reason), ""));
        }
    }
    lines.extend(found.passed_over.iter().map(|why| paragraph(why, "")));
    lines.join("\n")
}

fn row(one: &ShownSetting) -> Vec<String> {
    let from = |set: &SetBy| set.actor.clone();
    let nobody = if one.tuned { "by hand" } else { "the file" };
    let set = one.set_by.as_ref();
    vec![
        one.setting.to_owned(),
        one.file.to_string(),
        one.in_force.to_string(),
        set.map_or_else(|| nobody.to_owned(), from),
        set.map(|set| shown_time(set.at)).unwrap_or_default(),
        set.and_then(|set| set.until).map(shown_time).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::admin::Tuned;

    #[test]
    fn each_setting_says_where_it_comes_from_within_80_columns() {
        let set_by = SetBy {
            actor: "bo@laptop".to_owned(),
            reason: "the database is busy ".repeat(8),
            at: Timestamp(1_700_000_000_000_000),
            until: Some(Timestamp(1_700_003_600_000_000)),
        };
        let tuned =
            |setting: &str, value| Tuned { setting: setting.to_owned(), value, set_by: Some(set_by.clone()) };
        let file = RelaySettings::default();
        let found = ShownTuning::new(
            "orders",
            &file,
            &[tuned("poll_max_ms", json!(700)), tuned("warp_factor", json!(9))],
        );
        let text = draw(&found);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("poll_min_ms 3 3 the file"), "{text}");
        assert!(flat.contains("poll_max_ms 5000 700 bo@laptop"), "{text}");
        assert!(
            flat.contains("bo@laptop: \"the database is busy") && flat.contains("`warp_factor`"),
            "{text}"
        );
    }
}
