//! `posthaste run --dry-run`: the next batch of each adopted table, as it would be published.

use super::super::{Context, explain};
use crate::config::{Config, Outbox};
use crate::output::{Usage, table};
use posthaste::event::StoredEvent;
use posthaste_postgres::claim;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Claims in a transaction that is rolled back, and encodes what it finds.
pub(crate) async fn dry_run(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let mut events = Vec::new();
    for outbox in &config.outboxes {
        let Some((server, layout)) = outbox.database.layout() else {
            let text = format!(
                "outbox `{}` is a log of our own: --dry-run is for adopted tables. See `posthaste events list`",
                outbox.name
            );
            return Err(Usage(text).into());
        };
        let filter = posthaste::route::Filter::Everything;
        let found = claim::preview(server, layout, &filter).await.map_err(|error| explain(outbox, error))?;
        events.extend(found.into_iter().map(|(stored, attempts)| judged(outbox, stored, attempts)));
    }
    context.out().data(&events, || draw(&events))?;
    Ok(ExitCode::SUCCESS)
}

fn judged(outbox: &Outbox, stored: StoredEvent, attempts: u32) -> Value {
    let event = &stored.event;
    let mut answer = json!({
        "outbox": &*outbox.name, "id": event.id, "topic": event.topic, "key": event.key, "attempts": attempts,
        "appended_at": stored.appended_at,
    });
    let route = outbox.routes.routes().iter().find(|route| {
        route.sinks.iter().any(|sink| {
            outbox.routes.find(sink, &stored.event.topic).is_some_and(|found| found.name == route.name)
        })
    });
    let Some(route) = route else {
        answer["refused"] = json!("no route matches the topic");
        return answer;
    };
    match route.encode(stored, &outbox.service, &outbox.database.limits()) {
        Ok(message) => {
            answer["sink"] = json!(route.sinks.first());
            answer["destination"] = json!(message.destination);
            answer["bytes"] = json!(message.payload.as_ref().map(|payload| payload.len()));
        }
        Err(refused) => answer["refused"] = json!(refused.failure.message),
    }
    answer
}

fn draw(events: &[Value]) -> String {
    if events.is_empty() {
        return "nothing is due; nothing was changed".to_owned();
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let row = |event: &Value| {
        let fate = match event.get("refused") {
            Some(why) => format!("refused: {}", text(why)),
            None => format!("{} at {}", text(&event["destination"]), text(&event["sink"])),
        };
        let key = event["key"].as_str().unwrap_or("-").to_owned();
        vec![text(&event["id"]), key, text(&event["attempts"]), fate]
    };
    let rows: Vec<Vec<String>> = events.iter().map(row).collect();
    format!(
        "{}\n\n{} would be claimed next; nothing was changed",
        table(&["EVENT", "KEY", ">ATTEMPTS", "WOULD GO TO"], rows),
        events.len()
    )
}
