//! Dead letters of consumers, as `posthaste dead --consumer` shows them.

pub(super) mod draw;
pub(super) mod filter;

use super::{Context, consumer_admin, explain_act};
use crate::config::{Config, Outbox};
use crate::output::escape::line;
use crate::output::{Usage, thousands, with_payload};
use posthaste::admin::DeadFilter;
use posthaste::consumer::admin::ConsumerAdmin;
use serde_json::{Value, json};
use std::process::ExitCode;
use uuid::Uuid;

/// Where a consumer's letters are looked at.
pub(super) struct Desk<'a> {
    pub(super) context: &'a Context,
    pub(super) outbox: &'a Outbox,
    pub(super) admin: &'a dyn ConsumerAdmin,
    pub(super) consumer: &'a str,
}

/// Tells whoever looks at the letters of sinks that there are others.
pub(super) async fn remark_on_others(
    context: &Context,
    config: &Config,
    outbox: &Outbox,
) -> anyhow::Result<ExitCode> {
    if !context.out().json
        && outbox.database.has_consumers()
        && let Ok(admin) = consumer_admin(config, outbox, None).await
    {
        // A database of an older version, or a login that may not look, has nothing to tell.
        let all = admin.consumers(None).await.unwrap_or_default();
        let with: Vec<_> = all.iter().filter(|status| status.dead.count > 0).collect();
        if !with.is_empty() {
            let count = thousands(with.iter().map(|status| status.dead.count).sum());
            let names = with.iter().map(|status| line(&status.consumer)).collect::<Vec<_>>().join(", ");
            context.out().text(&format!("and {count} of consumers: --consumer NAME, of {names}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Desk<'_> {
    pub(super) async fn list(
        &self,
        filter: &DeadFilter,
        after: Option<&str>,
        limit: i64,
        newest: bool,
    ) -> anyhow::Result<ExitCode> {
        let after = after.map(str::parse::<Uuid>).transpose();
        let after = after.map_err(|_| Usage("--after is a letter's id: that of a former list".to_owned()))?;
        let letters = match newest {
            true => self.admin.letters_newest(self.consumer, filter, after, limit).await,
            false => self.admin.letters(self.consumer, filter, after, limit).await,
        };
        let letters = letters.map_err(|error| explain_act(self.outbox, error))?;
        let next = letters.last().filter(|_| letters.len() as i64 == limit).map(|letter| letter.letter);
        self.context.out().data(&json!({ "dead": letters, "next": next }), || {
            let mut text = letters.iter().map(draw::of_consumer).collect::<Vec<_>>().join("\n");
            match next {
                _ if letters.is_empty() => text.push_str("no dead letters"),
                Some(letter) => text.push_str(&format!("\nthere may be more: --after {letter}")),
                None => {}
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn show(&self, id: &str, raw: bool) -> anyhow::Result<ExitCode> {
        let letters = self.admin.letter(self.consumer, id).await;
        let letters = letters.map_err(|error| explain_act(self.outbox, error))?;
        let Some(first) = letters.first() else {
            let why = "it was handled, replayed, discarded, or never died";
            anyhow::bail!("consumer `{}` has no dead letter of {id:?}: {why}", self.consumer);
        };
        if raw {
            self.context.out().bytes(first.payload.as_deref().unwrap_or_default())?;
            return Ok(ExitCode::SUCCESS);
        }
        let values = letters.iter().map(|letter| with_payload(letter, letter.payload.as_deref()));
        let values = values.collect::<Result<Vec<Value>, _>>()?;
        let all = || letters.iter().map(draw::whole_of_consumer).collect::<Vec<_>>().join("\n\n");
        self.context.out().data(&values, all)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn causes(&self, filter: &DeadFilter, limit: i64) -> anyhow::Result<ExitCode> {
        let causes = self.admin.letter_causes(self.consumer, filter, limit).await;
        let causes = causes.map_err(|error| explain_act(self.outbox, error))?;
        self.context.out().data(&json!({ "causes": causes }), || match causes.is_empty() {
            true => "no dead letters".to_owned(),
            false => causes.iter().map(draw::cause_of_consumer).collect::<Vec<_>>().join("\n"),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Why a letter is not there.
pub(super) fn no_letter(outbox: &Outbox, id: Uuid, of_consumer: bool) -> anyhow::Error {
    let why = match of_consumer {
        true => {
            "a letter has an id of its own, the first in `dead list --consumer`. Or it was replayed, or discarded"
        }
        false => "it was delivered, replayed, discarded, or never died",
    };
    anyhow::anyhow!("outbox `{}` has no dead letter of event {id}: {why}", outbox.name)
}
