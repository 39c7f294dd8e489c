//! `[outbox.adopt]`: an outbox table that somebody else designed.
//!
//! A preset or a description of its own; every key of a preset can be overridden, and an empty text takes a
//! column away. What a preset says about retries, order and the envelope is the default of the routes of its
//! outbox: a route that says something itself is obeyed, key by key.

use super::resolve::Review;
use super::tree::member;
use posthaste::route::{Envelope, Order, Route};
use posthaste_postgres::claim::{Layout, PRESETS, StatusWords, TableName, TopicSource, preset};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// `[outbox.adopt]`. Columns are named as in the catalog; an empty text means that there is none.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdoptSection {
    /// A layout to start from.
    pub(crate) preset: Option<String>,
    /// `table` or `schema.table`.
    pub(crate) table: Option<String>,
    /// The primary key.
    pub(crate) id: Option<String>,
    /// A column, or a template over columns: `{aggregate_type}.{event_type}`.
    pub(crate) topic: Option<String>,
    /// The same topic for all rows, instead of `topic`.
    pub(crate) fixed_topic: Option<String>,
    /// The key of order and partition.
    pub(crate) key: Option<String>,
    /// json, jsonb, text or bytea.
    pub(crate) payload: Option<String>,
    /// Media type of the payload.
    pub(crate) content_type: Option<String>,
    /// A JSON object of strings.
    pub(crate) headers: Option<String>,
    /// Columns that travel as headers: header = column.
    pub(crate) header_columns: Option<BTreeMap<String, String>>,
    /// The status column and its words.
    pub(crate) status: Option<StatusSection>,
    /// Attempts spent.
    pub(crate) attempts: Option<String>,
    /// Not before.
    pub(crate) next_attempt_at: Option<String>,
    /// The last error.
    pub(crate) last_error: Option<String>,
    /// When it happened.
    pub(crate) last_error_at: Option<String>,
    /// `transient`, `permanent` or `unknown`.
    pub(crate) error_class: Option<String>,
    /// Since when a relay has the row.
    pub(crate) claimed_at: Option<String>,
    /// Which relay has it.
    pub(crate) claimed_by: Option<String>,
    /// When a relay took it last.
    pub(crate) last_attempt_at: Option<String>,
    /// When it was published.
    pub(crate) published_at: Option<String>,
    /// When it was written.
    pub(crate) created_at: Option<String>,
    /// Set at each of our writes.
    pub(crate) updated_at: Option<String>,
    /// Travels as the header `idempotency-key`.
    pub(crate) idempotency_key: Option<String>,
    /// Columns to claim in the order of.
    pub(crate) order_by: Option<Vec<String>>,
    /// A further condition of what is claimed, in SQL.
    #[serde(rename = "where")]
    pub(crate) condition: Option<String>,
    /// Published rows are deleted instead of marked.
    pub(crate) delete_published: Option<bool>,
    /// Where dead rows are moved.
    pub(crate) dead_letter_table: Option<String>,
    /// What a topic that the broker does not have is: a failure of the row, or an outage.
    pub(crate) missing_topic: Option<MissingTopic>,
    /// Time zone of columns without one.
    pub(crate) time_zone: Option<String>,
    /// Rows claimed at once, at most.
    pub(crate) batch: Option<usize>,
    /// Pause after a look that found nothing…
    pub(crate) poll_min_ms: Option<u64>,
    /// … and the longest one.
    pub(crate) poll_max_ms: Option<u64>,
    /// A claim that is older belongs to nobody any more.
    pub(crate) lease_ms: Option<u64>,
    /// Published rows are deleted after so many days; 0 keeps them.
    pub(crate) keep_published_days: Option<f64>,
    /// Dead rows are deleted after so many days; 0 keeps them.
    pub(crate) keep_dead_days: Option<f64>,
}

/// What a topic that the broker does not have is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MissingTopic {
    /// A failure of the row: it counts, and the row is given up in the end.
    Count,
    /// An outage: the row waits, and nothing is counted.
    Wait,
}

/// The status column and its words.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StatusSection {
    /// The column.
    pub(crate) column: Option<String>,
    /// Words of rows that wait.
    pub(crate) pending: Option<Vec<String>>,
    /// What a relay has in hand.
    pub(crate) claimed: Option<String>,
    /// After a failure that is tried again.
    pub(crate) retry: Option<String>,
    /// Published.
    pub(crate) published: Option<String>,
    /// Given up.
    pub(crate) dead: Option<String>,
}

/// An adopted table, as configured.
#[derive(Clone)]
pub(super) struct Adopted {
    pub(super) layout: Layout,
    envelope: Envelope,
}

/// Reads the section. Problems go to the review.
pub(super) fn adopted(review: &mut Review<'_>, path: &str, section: &AdoptSection) -> Option<Adopted> {
    let mut fault = |key: &str, why: String| {
        let place = if key.is_empty() { path.to_owned() } else { member(path, key) };
        review.problem(&place, why);
    };
    let (mut layout, envelope) = match &section.preset {
        Some(name) => match preset(name) {
            Some(preset) => (preset.layout, preset.envelope),
            None => {
                fault("preset", format!("there is no preset `{name}`; known are: {}", PRESETS.join(", ")));
                return None;
            }
        },
        None => (
            Layout::new(TableName::named(""), "id", TopicSource::Fixed(String::new()), "payload"),
            Envelope::None,
        ),
    };
    if section.preset.is_none() {
        let needed = [
            ("table", section.table.is_some()),
            ("topic", section.topic.is_some() || section.fixed_topic.is_some()),
        ];
        for (key, _) in needed.iter().filter(|(_, given)| !given) {
            fault("", format!("an adopted table without a preset needs `{key}`"));
        }
    }
    if let Err((key, why)) = lay(section, &mut layout) {
        fault(key, why);
        return None;
    }
    if let Err(why) = layout.check() {
        fault("", why);
        return None;
    }
    if layout.needs_a_start() {
        let why = "say where to begin: published rows may still be in the table, and nothing in a row tells. \
                   `where = \"true\"` publishes every row that is there; a condition leaves the old ones out";
        fault("", why.to_owned());
        return None;
    }
    Some(Adopted { layout, envelope })
}

type LayoutFault = (&'static str, String);

/// An empty text takes a column away.
fn put(given: Option<&str>, column: &mut Option<String>) {
    if let Some(name) = given {
        *column = (!name.is_empty()).then(|| name.to_owned());
    }
}

/// Lays what the section says over a layout.
fn lay(section: &AdoptSection, layout: &mut Layout) -> Result<(), LayoutFault> {
    if let Some(table) = &section.table {
        layout.table = TableName::parse(table).map_err(|why| ("table", why))?;
    }
    if let Some(topic) = &section.topic {
        layout.topic = TopicSource::parse(topic).map_err(|why| ("topic", why))?;
    }
    if let Some(topic) = &section.fixed_topic {
        layout.topic = TopicSource::Fixed(topic.clone());
    }
    if let Some(table) = &section.dead_letter_table {
        let named = (!table.is_empty()).then(|| TableName::parse(table)).transpose();
        layout.dead_letters = named.map_err(|why| ("dead_letter_table", why))?;
    }
    for (given, column) in [(&section.id, &mut layout.id), (&section.payload, &mut layout.payload)] {
        column.clone_from(given.as_ref().unwrap_or(&column.clone()));
    }
    let given = serde_json::to_value(section).unwrap_or_default();
    for (role, column) in layout.column.roles_mut() {
        let name = given.get(role.name).and_then(Value::as_str);
        put(name, column);
    }
    put(section.content_type.as_deref(), &mut layout.content_type);
    put(section.condition.as_deref(), &mut layout.condition);
    if let Some(columns) = &section.header_columns {
        layout.header_columns =
            columns.iter().map(|(header, column)| (header.clone(), column.clone())).collect();
    }
    if let Some(columns) = &section.order_by {
        layout.order_by.clone_from(columns);
    }
    if let Some(status) = &section.status {
        lay_status(status, layout)?;
    }
    lay_numbers(section, layout)
}

fn lay_status(section: &StatusSection, layout: &mut Layout) -> Result<(), LayoutFault> {
    let missing = |what: &str| ("status", format!("`status` needs `{what}`"));
    let before = layout.status.take();
    let word = |given: &Option<String>, before: Option<String>| match given {
        Some(word) => (!word.is_empty()).then(|| word.clone()),
        None => before,
    };
    let was = before.as_ref();
    let pending = section.pending.clone().or_else(|| was.map(|status| status.pending.clone()));
    let pending = pending.ok_or_else(|| missing("pending"))?;
    let retry =
        word(&section.retry, was.map(|status| status.retry.clone())).or_else(|| pending.first().cloned());
    layout.status = Some(StatusWords {
        column: word(&section.column, was.map(|status| status.column.clone()))
            .ok_or_else(|| missing("column"))?,
        claimed: word(&section.claimed, was.and_then(|status| status.claimed.clone())),
        retry: retry.ok_or_else(|| missing("retry"))?,
        published: word(&section.published, was.map(|status| status.published.clone()))
            .ok_or_else(|| missing("published"))?,
        dead: word(&section.dead, was.and_then(|status| status.dead.clone())),
        pending,
    });
    Ok(())
}

fn lay_numbers(section: &AdoptSection, layout: &mut Layout) -> Result<(), LayoutFault> {
    layout.batch = section.batch.unwrap_or(layout.batch);
    layout.delete_published = section.delete_published.unwrap_or(layout.delete_published);
    layout.waits_for_topics = section.missing_topic == Some(MissingTopic::Wait);
    if let Some(zone) = &section.time_zone {
        layout.time_zone.clone_from(zone);
    }
    let millis = |given: Option<u64>, before: Duration| given.map_or(before, Duration::from_millis);
    layout.poll_min = millis(section.poll_min_ms, layout.poll_min);
    layout.poll_max = millis(section.poll_max_ms, layout.poll_max).max(layout.poll_min);
    layout.lease = millis(section.lease_ms, layout.lease);
    let kept = [
        ("keep_published_days", section.keep_published_days, &mut layout.keep_published),
        ("keep_dead_days", section.keep_dead_days, &mut layout.keep_dead),
    ];
    for (key, given, keep) in kept {
        let Some(days) = given else { continue };
        if !(0.0..365_250.0).contains(&days) {
            return Err((key, format!("`{key}` must be 0 (for ever) or above")));
        }
        *keep = (days > 0.0).then(|| Duration::from_secs_f64(days * 86_400.0));
    }
    Ok(())
}

impl Adopted {
    /// A route of this outbox: what it does not say itself is what the layout's owners expect. `given` is the
    /// route as it was written.
    pub(super) fn route(
        &self,
        review: &mut Review<'_>,
        path: &str,
        given: &Value,
        mut route: Route,
    ) -> Route {
        if given.get("envelope").is_none() {
            route.envelope = self.envelope;
        }
        if given.get("order").is_none() {
            route.order = Order::None;
        } else if route.order == Order::Key {
            review.problem(
                &member(path, "order"),
                "order = \"key\" cannot be kept on an adopted table: its rows are claimed by several relays and settle each for \
                 itself. Write order = \"none\", or move the service to the native log",
            );
        }
        if let (Ok(Value::Object(mut retry)), given) =
            (serde_json::to_value(self.layout.retry), given.get("retry"))
        {
            retry.extend(given.and_then(Value::as_object).cloned().unwrap_or_default());
            // What was given has been read once already: it fits.
            route.retry = serde_json::from_value(Value::Object(retry)).unwrap_or(route.retry);
        }
        route
    }

    /// One table, one sink: a row has one status, and cannot say that it reached one of two.
    pub(super) fn check_sinks(&self, review: &mut Review<'_>, path: &str, routes: &[Route]) {
        let mut sinks: Vec<&String> = routes.iter().flat_map(|route| &route.sinks).collect();
        sinks.sort();
        sinks.dedup();
        if sinks.len() > 1 {
            let names: Vec<&str> = sinks.iter().map(|name| name.as_str()).collect();
            review.problem(
                path,
                format!(
                    "an adopted table feeds one sink, and its routes name {}: a row has one status, and cannot be published \
                     here and failed there. Name one sink in the routes of this outbox (`outboxes` says which are meant)",
                    names.join(", ")
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::tests::ok;
    use posthaste::lifecycle::ClassOverrides;
    use posthaste::retry::Permanent;
    use posthaste::route::{Envelope, Order};
    use posthaste::store::ErrorClass;
    use posthaste_postgres::claim::{Columns, Style};
    use std::path::Path;

    const ENDS: &str = "\n[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n";

    fn refused(adopt: &str, route: &str) -> String {
        let text = format!("[outbox]\nurl = \"postgres://h/d\"\n[outbox.adopt]\n{adopt}{ENDS}{route}");
        match Config::parse(Path::new("posthaste.toml"), &text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_preset_is_the_default_of_its_routes_key_by_key() {
        let text = |retry: &str| {
            format!(
                "[outbox]\nurl = \"postgres://h/d\"\n[outbox.adopt]\npreset = \"outbox-events\"\ntable = \"app.events\"\nkey = \"\"\nbatch = 7{ENDS}{retry}"
            )
        };
        let config = ok(&text(""));
        let route = &config.outboxes[0].routes.routes()[0];
        assert_eq!((route.order, route.envelope), (Order::None, Envelope::MessageId));
        assert_eq!((route.retry.max_attempts, route.retry.initial_ms, route.retry.jitter), (6, 1_000, 0.0));
        let (_, layout) = config.outboxes[0].database.layout().expect("adopted");
        assert_eq!(
            (layout.table.to_string().as_str(), layout.column.key.as_deref(), layout.batch),
            ("app.events", None, 7)
        );
        let config = ok(&text("envelope = \"none\"\nretry = { max_attempts = 2 }"));
        let route = &config.outboxes[0].routes.routes()[0];
        assert_eq!((route.retry.max_attempts, route.retry.initial_ms), (2, 1_000));
        assert_eq!((route.envelope, route.retry.permanent), (Envelope::None, Permanent::Retry));
    }

    #[test]
    fn a_layout_of_ones_own() {
        let text = "[outbox]\nurl = \"postgres://h/d\"\n[outbox.adopt]\ntable = \"\\\"Msg\\\"\"\nid = \"pk\"\ntopic = \"ev.{kind}\"\npayload = \"body\"\nclaimed_at = \"taken\"\nkeep_published_days = 7\nwhere = \"not held\"\n\
                    status = { column = \"state\", pending = [\"new\"], claimed = \"busy\", published = \"done\", dead = \"bad\" }\nheader_columns = { tenant = \"tenant_id\" }";
        let config = ok(&format!("{text}{ENDS}"));
        let (_, layout) = config.outboxes[0].database.layout().expect("adopted");
        assert_eq!(
            (layout.style(), layout.table.name.as_str(), layout.topic.columns()),
            (Style::Marked, "Msg", vec!["kind"])
        );
        let status = layout.status.as_ref().expect("a status");
        assert_eq!((status.retry.as_str(), status.dead.as_deref()), ("new", Some("bad")));
        assert_eq!(layout.keep_published.map(|keep| keep.as_secs()), Some(7 * 86_400));
        assert_eq!(layout.header_columns, [("tenant".to_owned(), "tenant_id".to_owned())]);
    }

    #[test]
    fn every_role_is_a_key_and_an_empty_text_takes_it_away() {
        let laid = |value: &str| {
            let keys = Columns::ROLES.iter().map(|role| format!("{} = \"{value}\"\n", role.name));
            let keys: String = keys.collect();
            let status =
                "status = { column = \"s\", pending = [\"new\"], published = \"done\", dead = \"bad\" }\n";
            let adopt = format!("[outbox.adopt]\ntable = \"t\"\ntopic = \"x\"\n{status}{keys}");
            let config = ok(&format!("[outbox]\nurl = \"postgres://h/d\"\n{adopt}{ENDS}"));
            config.outboxes[0].database.layout().expect("adopted").1.column.clone()
        };
        assert!(laid("c").roles().all(|(_, column)| column == Some("c")));
        assert_eq!(laid(""), Columns::default());
    }

    #[test]
    fn a_topic_that_does_not_exist_counts_unless_it_is_waited_for() {
        let classes = |adopt: &str, own: &ClassOverrides| {
            let config = ok(&format!("[outbox]\nurl = \"postgres://h/d\"\n{adopt}{ENDS}"));
            config.outboxes[0].database.classes(own)
        };
        let none = ClassOverrides::new();
        let talkie = "[outbox.adopt]\npreset = \"talkie\"";
        assert_eq!(classes(talkie, &none).get("kafka.no_topic"), Some(&ErrorClass::Transient));
        let own = ClassOverrides::from([("kafka.no_topic".to_owned(), ErrorClass::Permanent)]);
        assert_eq!(
            classes(talkie, &own).get("kafka.no_topic"),
            Some(&ErrorClass::Permanent),
            "the sink's own goes first"
        );
        assert_eq!(classes(&format!("{talkie}\nmissing_topic = \"wait\""), &none), none);
        assert_eq!(classes("", &none), none, "a log of our own waits");
    }

    #[test]
    fn what_cannot_be_adopted_is_told_with_its_line() {
        let cases = [
            (
                "preset = \"outbox_events\"",
                "",
                "line 4: there is no preset `outbox_events`; known are: prisma-outbox",
            ),
            ("table = \"t\"", "", "needs `topic`"),
            ("table = \"t\"\ntopic = \"x\"", "", "nothing says that a row is done"),
            ("table = \"t\"\ntopic = \"x\"\npublished_at = \"p\"", "", "nothing says that a row is given up"),
            ("preset = \"talkie\"\nlast_attempt_at = \"\"", "", "needs a time beside it"),
            ("preset = \"talkie\"", "order = \"key\"\n", "cannot be kept on an adopted table"),
            (
                "preset = \"talkie\"",
                "[sinks.two]\ntype = \"null\"\n[[route]]\ntopic = \"a\"\nsink = \"two\"",
                "feeds one sink, and its routes name out, two",
            ),
            ("preset = \"talkie\"\nbatch = 0", "", "`batch` must be"),
            ("preset = \"debezium-outbox\"", "", "say where to begin"),
            (
                "preset = \"talkie\"\ntopics = \"x\"",
                "",
                "unknown key `outbox.adopt.topics`, did you mean `topic`?",
            ),
        ];
        for (adopt, route, expected) in cases {
            let told = refused(adopt, route);
            assert!(told.contains(expected), "{adopt} {route}\n  told: {told}");
        }
    }
}
