//! Dead letters of consumers, as `posthaste dead --consumer` shows them.

use super::{Context, consumer_admin, explain_act};
use crate::config::{Config, Outbox};
use crate::output::escape::line;
use crate::output::{Usage, fields, payload_field, plural, table, thousands, time, with_payload};
use posthaste::admin::DeadFilter;
use posthaste::consumer::admin::{ConsumerAdmin, ConsumerLetter, LetterCause};
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
    ) -> anyhow::Result<ExitCode> {
        let after = after.map(str::parse::<Uuid>).transpose();
        let after = after.map_err(|_| Usage("--after is a letter's id: that of a former list".to_owned()))?;
        let letters = self.admin.letters(self.consumer, filter, after, limit).await;
        let letters = letters.map_err(|error| explain_act(self.outbox, error))?;
        let next = letters.last().filter(|_| letters.len() as i64 == limit).map(|letter| letter.letter);
        self.context.out().data(&json!({ "dead": letters, "next": next }), || {
            let mut text = letters.iter().map(draw).collect::<Vec<_>>().join("\n");
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
        let draw = || letters.iter().map(draw_whole).collect::<Vec<_>>().join("\n\n");
        self.context.out().data(&values, draw)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn causes(&self, filter: &DeadFilter, limit: i64) -> anyhow::Result<ExitCode> {
        let causes = self.admin.letter_causes(self.consumer, filter, limit).await;
        let causes = causes.map_err(|error| explain_act(self.outbox, error))?;
        let row = |cause: &LetterCause| {
            vec![
                thousands(cause.count.unsigned_abs()),
                time(cause.last_at),
                cause.error_code.clone(),
                cause.error.clone(),
            ]
        };
        self.context.out().data(&json!({ "causes": causes }), || match causes.is_empty() {
            true => "no dead letters".to_owned(),
            false => table(&[">letters", "last", "code", "error"], causes.iter().map(row).collect()),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Two lines a letter: what it is, and why it died.
fn draw(letter: &ConsumerLetter) -> String {
    let key = letter.key.as_ref().map_or_else(String::new, |key| format!("  key {}", line(key)));
    let holds = if letter.holds_key { "  (later messages of its key wait for it)" } else { "" };
    format!(
        "{}  {}  {}{key}\n  {} {} after {}, {}: {}{holds}",
        letter.letter,
        line(&letter.id),
        line(&letter.topic),
        time(letter.dead_at),
        line(&letter.disposition),
        plural(letter.attempts.unsigned_abs().into(), "attempt"),
        line(&letter.error_code),
        line(&letter.error)
    )
}

fn draw_whole(letter: &ConsumerLetter) -> String {
    let none = || "none".to_owned();
    let position = letter.position.map_or_else(String::new, |position| format!("@{position}"));
    let mut lines = vec![
        ("letter", letter.letter.to_string()),
        ("message", letter.id.clone()),
        ("consumer", letter.consumer.clone()),
        ("place", format!("{}/{}{position}", letter.topic, letter.partition)),
        ("key", letter.key.clone().unwrap_or_else(none)),
        ("published", letter.published_at.map_or_else(none, time)),
        ("died", format!("{}, {}", time(letter.dead_at), letter.disposition)),
        (
            "attempts",
            format!("{}, replayed {}", letter.attempts, plural(letter.replays.unsigned_abs().into(), "time")),
        ),
        ("error", format!("{} ({}): {}", letter.error_code, letter.error_class, letter.error)),
        ("holds key", if letter.holds_key { "yes: later messages of its key wait" } else { "no" }.to_owned()),
        ("headers", letter.headers.to_string()),
    ];
    if let Some(stack) = &letter.stack {
        lines.push(("stack", stack.clone()));
    }
    format!("{}\n{}", fields(&lines, ""), payload_field(letter.payload.as_deref(), letter.payload_bytes))
}
