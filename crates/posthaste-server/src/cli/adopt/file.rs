//! A proposal as a configuration file.

use posthaste_postgres::claim::{Layout, Proposal, TopicSource, preset};

fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

fn list(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| text(value)).collect();
    format!("[{}]", values.join(", "))
}

/// `[outbox.adopt]` of a proposal.
pub(super) fn section(proposal: &Proposal) -> String {
    let mut lines = vec!["[outbox.adopt]".to_owned()];
    match proposal.preset {
        Some(name) => {
            lines.push(format!("preset = {}", text(name)));
            let usual = preset(name).map(|preset| preset.layout.table.name);
            let table = &proposal.table.name;
            if usual.as_deref() != Some(table.name.as_str()) || table.schema.as_deref() != Some("public") {
                lines.push(format!("table = {}", text(&table.to_string())));
            }
        }
        None => columns(&proposal.layout, &mut lines),
    }
    if proposal.layout.needs_a_start() {
        lines.push("# Publishes every row that is there. Leave out what was published before!".to_owned());
        lines.push("where = \"true\"".to_owned());
    }
    lines.join("\n") + "\n"
}

fn columns(layout: &Layout, lines: &mut Vec<String>) {
    let mut put =
        |key: &str, value: Option<String>| lines.extend(value.map(|value| format!("{key} = {value}")));
    put("table", Some(text(&layout.table.to_string())));
    put("id", Some(text(&layout.id)));
    if let TopicSource::Column(column) = &layout.topic {
        put("topic", Some(text(column)));
    }
    put("payload", Some(text(&layout.payload)));
    for (role, column) in layout.column.roles() {
        put(role.name, column.map(text));
    }
    put("order_by", (!layout.order_by.is_empty()).then(|| list(&layout.order_by)));
    put("dead_letter_table", layout.dead_letters.as_ref().map(|table| text(&table.to_string())));
    if let Some(status) = &layout.status {
        let dead = status.dead.as_ref().map(|word| format!(", dead = {}", text(word))).unwrap_or_default();
        put(
            "status",
            Some(format!(
                "{{ column = {}, pending = {}, published = {}{dead} }}",
                text(&status.column),
                list(&status.pending),
                text(&status.published)
            )),
        );
    }
    if !layout.header_columns.is_empty() {
        let pairs: Vec<String> = layout
            .header_columns
            .iter()
            .map(|(header, column)| format!("{} = {}", text(header), text(column)))
            .collect();
        put("header_columns", Some(format!("{{ {} }}", pairs.join(", "))));
    }
}

/// The whole file. The address has no password: it comes from the environment or a password file.
pub(super) fn whole(proposal: &Proposal, url: &str) -> String {
    format!(
        "# Written by `posthaste adopt inspect`. docs/adopt.md says what each key means.\n\n\
         [outbox]\nurl = {}\n# password_file = \"/run/secrets/database\"\n\n{}\n\
         # Where events go. Try it with `posthaste run --dry-run` first.\n\
         [sinks.out]\ntype = \"stdout\"\n\n[[route]]\ntopics = [\"*\"]\nsinks = [\"out\"]\n",
        text(url),
        section(proposal)
    )
}
