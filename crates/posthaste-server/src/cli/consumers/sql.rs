//! `posthaste consumers sql`: the service's own tables that consumers write.

use crate::cli::Context;
use std::collections::BTreeSet;
use std::process::ExitCode;

pub(super) fn run(context: &Context, only: Option<&str>) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    if let Some(name) = only {
        context.outbox_of(&config, name)?;
    }
    let mut texts = BTreeSet::new();
    for setting in config.consumers.iter().filter(|setting| only.is_none_or(|name| *setting.name == *name)) {
        let outbox = config.outboxes.iter().find(|outbox| outbox.name == setting.outbox);
        let text = outbox.map(|outbox| outbox.database.tables_of(setting)).transpose()?;
        texts.extend(text.filter(|text| !text.is_empty()));
    }
    let script = texts.into_iter().collect::<Vec<_>>().join("\n");
    let nothing = "-- All consumers write our own tables: posthaste migrate up makes them.\n";
    context.out().exact(if script.is_empty() { nothing } else { &script })?;
    Ok(ExitCode::SUCCESS)
}
