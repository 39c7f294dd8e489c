//! What waits of a consumer: `posthaste deferred --consumer`.

use super::retry::{self, RetryArgs};
use super::{DeferredCommand, due};
use crate::cli::jobs::ask::{self, Asked};
use crate::cli::letters::draw::{error, short};
use crate::cli::{Context, consumer_admin, explain_act};
use crate::config::{Config, Outbox};
use crate::output::escape::line;
use crate::output::{exact_time, paragraph, plural, time};
use posthaste::admin::DeferredFilter;
use posthaste::admin::job::{JobPlan, Preview};
use posthaste::consumer::admin::{ConsumerAdmin, DeferredMessage, MessageCause};
use serde_json::json;
use std::process::ExitCode;

/// Where a consumer's messages are looked at.
struct MessageDesk<'a> {
    context: &'a Context,
    outbox: &'a Outbox,
    admin: &'a dyn ConsumerAdmin,
    consumer: &'a str,
}

pub(super) async fn run(
    context: &Context,
    config: &Config,
    consumer: &str,
    act: DeferredCommand,
) -> anyhow::Result<ExitCode> {
    let outbox = context.outbox_of(config, consumer)?;
    let admin = &*consumer_admin(config, outbox, Some(consumer)).await?;
    let waiting = MessageDesk { context, outbox, admin, consumer };
    match act {
        DeferredCommand::List { filter, limit, after } => {
            waiting.list(&filter.filter(), after.map(|(_, seq)| seq), limit).await
        }
        DeferredCommand::Causes { filter, limit } => waiting.causes(&filter.filter(), limit).await,
        DeferredCommand::Retry(args) => waiting.retry(args).await,
    }
}

impl MessageDesk<'_> {
    async fn list(
        &self,
        filter: &DeferredFilter,
        after: Option<i64>,
        limit: i64,
    ) -> anyhow::Result<ExitCode> {
        let messages = self.admin.deferred_messages(self.consumer, filter, after, limit).await;
        let messages = messages.map_err(|error| explain_act(self.outbox, error))?;
        let next = messages.last().filter(|_| messages.len() as i64 == limit);
        let next = next.map(|last| format!("{}/{}", last.consumer, last.seq));
        self.context.out().data(&json!({ "deferred": messages, "next": next }), || {
            let mut text = messages.iter().map(draw).collect::<Vec<_>>().join("\n");
            match &next {
                _ if messages.is_empty() => text.push_str("nothing waits"),
                Some(place) => text.push_str(&format!("\nthere may be more: --after {}", line(place))),
                None => {}
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn causes(&self, filter: &DeferredFilter, limit: i64) -> anyhow::Result<ExitCode> {
        let causes = self.admin.message_causes(self.consumer, filter, limit).await;
        let causes = causes.map_err(|error| explain_act(self.outbox, error))?;
        self.context.out().data(&json!({ "causes": causes }), || match causes.is_empty() {
            true => "nothing waits".to_owned(),
            false => causes.iter().map(draw_cause).collect::<Vec<_>>().join("\n"),
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Always a job: whoever may move messages may write jobs.
    async fn retry(&self, args: RetryArgs) -> anyhow::Result<ExitCode> {
        let (consumer, filter) = (self.consumer.to_owned(), args.filter.filter());
        let plan = JobPlan::ConsumerRetry { consumer, filter };
        let ask = retry::job_of(plan, |count| plural(count, "message"), &args);
        let Some(jobs) = self.admin.jobs() else { anyhow::bail!("this database keeps no jobs") };
        match ask::run(self.context, self.outbox, jobs, &ask).await? {
            Asked::Ended(ended) => Ok(ended),
            Asked::Nothing(seen) => {
                let nothing = Preview { samples: Vec::new(), ..seen };
                ask::look(self.context, &ask, &nothing, "nothing would be tried now")?;
                Ok(ExitCode::SUCCESS)
            }
            Asked::NoJobs(_) => anyhow::bail!(
                "the login of outbox `{}` may write no jobs: nothing was done, and the messages wait as before. Set \
                 `admin_url` to a login of the role `admin`",
                self.outbox.name
            ),
        }
    }
}

/// Two lines a message, and one more for its error.
fn draw(message: &DeferredMessage) -> String {
    let key = message.key.as_ref().map_or_else(String::new, |key| format!("  key {}", line(key)));
    let place = message.position.map_or_else(String::new, |position| format!("@{position}"));
    let from = format!("{}/{}{place}", line(&message.topic), message.partition);
    let head = format!("{}  {}/{}  {from}{key}", line(&message.id), message.consumer, message.seq);
    let tries = match message.attempts {
        0 => String::new(),
        attempts => format!(", {}", plural(attempts.unsigned_abs().into(), "attempt")),
    };
    let repeat = if message.repeat { ", to be done again" } else { "" };
    let next = when(&message.reason, message.due_at);
    let wait = format!("waits ({}), {next}{tries}{repeat}", line(&message.reason));
    let mut lines = vec![paragraph(&head, ""), paragraph(&wait, "  ")];
    if let Some(last) = &message.last_error {
        let at = message.last_error_at.map_or_else(String::new, |at| format!("{}  ", exact_time(at)));
        let code = message.error_code.as_deref().unwrap_or_default();
        lines.push(paragraph(&format!("{at}{}", error(code, "", &short(last))), "  "));
    }
    lines.join("\n")
}

/// When it goes on. A dependency that is away is asked at the time of the row.
fn when(reason: &str, due_at: Option<posthaste::Timestamp>) -> String {
    match due_at {
        None => "behind an earlier message of its key".to_owned(),
        Some(_) if reason == "outage" => due("retry", due_at),
        Some(_) => due(reason, due_at),
    }
}

/// Two lines a cause, and one more for the error.
fn draw_cause(cause: &MessageCause) -> String {
    let messages = plural(cause.count.unsigned_abs(), "message");
    let head = format!("{messages}  {}  {}", line(&cause.reason), line(&cause.consumer));
    let next = match cause.due_at {
        None => "behind earlier messages of their keys".to_owned(),
        Some(at) => format!("the next is due {}", exact_time(at)),
    };
    let when = format!("the oldest was set aside {}; {next}", time(cause.oldest_at));
    let mut lines = vec![paragraph(&head, ""), paragraph(&when, "  ")];
    if let Some(last) = &cause.error {
        let code = cause.error_code.as_deref().unwrap_or_default();
        lines.push(paragraph(&error(code, "", &short(last)), "  "));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;
    use posthaste::admin::History;

    #[test]
    fn what_waits_of_a_consumer_fits_into_80_columns_and_steers_no_terminal() {
        let message = DeferredMessage {
            consumer: "billing".to_owned(),
            seq: 123_456_789,
            id: "0198f2a4-5b6c-7d8e-9f00-112233445566".to_owned(),
            topic: "orders.placed".to_owned(),
            partition: 3,
            position: Some(1_000_000_007),
            key: Some("order\u{1b}[2J-7".to_owned()),
            reason: "retry".to_owned(),
            due_at: Some(Timestamp(1_700_000_060_500_000)),
            attempts: 3,
            replays: 0,
            error_code: Some("handler.error".to_owned()),
            last_error: Some("try again later ".repeat(30)),
            last_error_at: Some(Timestamp(1_700_000_000_123_456)),
            history: History::default(),
            repeat: false,
            published_at: None,
            deferred_at: Timestamp(1_700_000_000_000_000),
        };
        let text = draw(&message);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("due 2023-11-14 22:14:20.500Z, 3 attempts"), "{text}");
        assert!(flat.contains("orders.placed/3@1000000007") && flat.contains("handler.error: try"), "{text}");
        let behind = draw(&DeferredMessage { due_at: None, reason: "held".to_owned(), ..message });
        assert!(behind.contains("behind an earlier message of its key"), "{behind}");
    }
}
