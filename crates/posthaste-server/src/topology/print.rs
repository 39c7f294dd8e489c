//! A plan for people: what differs, in 80 columns or those of a narrow terminal, with the flag that each risk
//! needs.

use super::{BrokerPlan, Unasked};
use crate::output::{columns, escape, is_colourful, plural, thousands, wrap};
use posthaste_brokers::topology::{
    Allowed, ChangeAct, Kind, Missing, ResourceName, Risk, SettingChange, TopologyChange, TopologyPlan, Unit,
    in_words,
};
use std::collections::BTreeMap;

/// Wider lines are hard to read, and narrower ones hold no name.
const WIDTH: std::ops::RangeInclusive<usize> = 40..=80;

/// Colours, where somebody sees them, and the width that there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    is_on: bool,
    width: usize,
}

/// For standard output.
pub(crate) fn paint_for() -> Paint {
    let width = match columns() {
        0 => *WIDTH.end(),
        columns => usize::from(columns).clamp(*WIDTH.start(), *WIDTH.end()),
    };
    Paint { is_on: is_colourful(), width }
}

impl Paint {
    /// Names beyond this width get a line of their own.
    fn names_max(self) -> usize {
        self.width * 2 / 5 + 2
    }

    /// A text in the lines that it needs.
    pub(crate) fn lines(self, text: &str) -> String {
        wrap(&escape::line(text), self.width).join("\n")
    }

    fn sign(self, sign: char) -> String {
        let colour = match sign {
            '+' => 32,
            '~' => 36,
            '!' => 33,
            _ => 31,
        };
        if self.is_on { format!("\u{1b}[{colour}m{sign}\u{1b}[0m") } else { sign.to_string() }
    }
}

/// The plan of a broker. `all` lists what is somebody else's.
pub(crate) fn plan_text(broker: &BrokerPlan, allowed: &Allowed, all: bool, paint: Paint) -> String {
    let head = format!("{}  {}", broker.table.name, broker.look.words);
    let mut lines = vec![paint.lines(&head)];
    let labels: Vec<String> = broker.plan.changes.iter().map(label).collect();
    let longest =
        labels.iter().map(|label| label.chars().count()).filter(|width| *width <= paint.names_max()).max();
    let column = longest.unwrap_or(paint.names_max());
    for (change, label) in broker.plan.changes.iter().zip(&labels) {
        let mut details = details(change);
        details.extend(change.missing(allowed).into_iter().filter_map(|missing| match missing {
            Missing::Flag(flag, name) => Some(format!("{flag} {name}")),
            Missing::Blocked(_) => None,
        }));
        entry(&mut lines, paint, sign(change), (label, column), &details);
    }
    for unseen in &broker.plan.unseen {
        let what = unseen
            .name
            .as_ref()
            .map_or_else(|| plural_of(unseen.kind), |name| format!("{} {name}", unseen.kind));
        let why = [format!("not seen: {}", unseen.why)];
        entry(&mut lines, paint, '?', (&escape::line(&what), column), &why);
    }
    for note in &broker.plan.notes {
        lines
            .extend(wrap(&escape::line(note), paint.width - 4).into_iter().map(|line| format!("    {line}")));
    }
    lines.extend(
        wrap(&balance(&broker.plan, all), paint.width - 2).into_iter().map(|line| format!("  {line}")),
    );
    if all {
        for (kind, names) in grouped(&broker.plan.others) {
            for name in names {
                lines.push(format!("    {kind} {}", escape::line(name)));
            }
        }
    }
    lines.join("\n")
}

/// A sign, a name, and what there is to say about it.
fn entry(
    lines: &mut Vec<String>,
    paint: Paint,
    sign: char,
    (label, column): (&str, usize),
    details: &[String],
) {
    let (sign, indent) = (paint.sign(sign), 4 + column + 2);
    let mut rows = details.iter().flat_map(|detail| wrap(&escape::line(detail), paint.width - indent));
    let width = label.chars().count();
    if width > column {
        lines.push(format!("  {sign} {label}"));
    } else {
        let pad = " ".repeat(column - width);
        let first = rows.next().unwrap_or_default();
        lines.push(format!("  {sign} {label}{pad}  {first}").trim_end().to_owned());
    }
    lines.extend(rows.map(|row| format!("{}{row}", " ".repeat(indent))));
}

fn sign(change: &TopologyChange) -> char {
    let worst = change.risks().max().unwrap_or(&Risk::Plain);
    match (worst, change.act) {
        (Risk::Blocked(_), _) => 'x',
        (_, ChangeAct::Remove) | (Risk::Destroys(_), _) => '-',
        (Risk::Hazard(_), _) => '!',
        (Risk::Plain, ChangeAct::Add) => '+',
        (Risk::Plain, ChangeAct::Change) => '~',
    }
}

fn label(change: &TopologyChange) -> String {
    let name = &change.resource.name;
    let name =
        if change.resource.kind == Kind::Acl { name.strip_prefix("User:").unwrap_or(name) } else { name };
    escape::line(&format!("{} {name}", change.resource.kind)).into_owned()
}

fn details(change: &TopologyChange) -> Vec<String> {
    let because = |text: String, risk: &Risk| match risk.why() {
        Some(why) => format!("{text}: {why}"),
        None => text,
    };
    match change.act {
        ChangeAct::Add => vec![because(made_of(change), &change.risk)],
        ChangeAct::Change => {
            change.settings.iter().map(|setting| because(moved(setting), &setting.risk)).collect()
        }
        ChangeAct::Remove if change.resource.kind == Kind::Acl => {
            vec![because(format!("{} is not in the file", right(change)), &change.risk)]
        }
        ChangeAct::Remove => {
            vec![because("is not in the file, and is named for removal".to_owned(), &change.risk)]
        }
    }
}

/// What a new resource is, in a few words.
fn made_of(change: &TopologyChange) -> String {
    let settings = &change.resource.settings;
    match change.resource.kind {
        Kind::Acl => right(change),
        Kind::Topic => {
            let words = settings.iter().map(|(name, value)| match name.as_str() {
                "partitions" => (0, counted(value, "partition")),
                "replicas" => (1, counted(value, "replica")),
                "min.insync.replicas" => (2, format!("min ISR {value}")),
                "retention.ms" => (3, shown(name, value)),
                "compression.type" => (4, value.clone()),
                _ => (5, format!("{name} {}", shown(name, value))),
            });
            let mut words: Vec<_> = words.collect();
            words.sort();
            words.into_iter().map(|(_, word)| word).collect::<Vec<_>>().join(", ")
        }
        _ => {
            let words = settings.iter().map(|(name, value)| match (name.as_str(), value.as_str()) {
                ("password", _) => "with the password of the file".to_owned(),
                _ => format!("{name} {}", shown(name, value)),
            });
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

/// `1 partition`.
fn counted(value: &str, noun: &str) -> String {
    value.parse().map_or_else(|_| format!("{value} {noun}s"), |count| plural(count, noun))
}

/// `ALLOW READ topic core.*`.
fn right(change: &TopologyChange) -> String {
    let part = |name: &str| change.resource.settings.get(name).map_or("", String::as_str);
    let star = if part("pattern") == "PREFIXED" { "*" } else { "" };
    let what = part("resource").to_ascii_lowercase().replace('_', "-");
    let host = if part("host") == "*" { String::new() } else { format!(" from {}", part("host")) };
    let name = if what == "cluster" { String::new() } else { format!(" {}{star}", part("on")) };
    format!("{} {} {what}{name}{host}", part("permission"), part("operation"))
}

fn moved(setting: &SettingChange) -> String {
    let was = setting.was.as_ref().map_or_else(|| "nothing".to_owned(), |was| shown(&setting.name, was));
    let to = setting.to.as_ref().map_or_else(|| "the default".to_owned(), |to| shown(&setting.name, to));
    format!("{} {was} → {to}", setting.name)
}

/// A value in words.
fn shown(setting: &str, value: &str) -> String {
    let unit = match setting {
        "max_age" | "duplicate_window" => Unit::Nanoseconds,
        name if name.ends_with(".ms") => Unit::Milliseconds,
        name if name.ends_with("bytes") || name == "max_msg_size" => Unit::Bytes,
        _ => return value.to_owned(),
    };
    in_words(value, unit)
}

fn plural_of(kind: Kind) -> String {
    match kind {
        Kind::Acl => "ACLs".to_owned(),
        kind => format!("{kind}s"),
    }
}

/// `2 topics, 11 ACLs`.
fn counts(counts: &BTreeMap<Kind, usize>) -> String {
    let words = counts.iter().map(|(kind, count)| {
        let noun = if *kind == Kind::Acl { "ACL" } else { kind.as_str() };
        plural(*count as u64, noun)
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn grouped(names: &[ResourceName]) -> BTreeMap<Kind, Vec<&str>> {
    let mut groups: BTreeMap<Kind, Vec<&str>> = BTreeMap::new();
    for name in names {
        groups.entry(name.kind).or_default().push(&name.name);
    }
    groups
}

fn balance(plan: &TopologyPlan, all: bool) -> String {
    let others: BTreeMap<Kind, usize> =
        grouped(&plan.others).into_iter().map(|(kind, names)| (kind, names.len())).collect();
    let more = match (others.is_empty(), all) {
        (true, _) => String::new(),
        (false, true) => format!(" Of others: {}:", counts(&others)),
        (false, false) => format!(" Of others: {} (--all)", counts(&others)),
    };
    format!("as they should be: {}.{more}", counts(&plan.same))
}

/// One line for a difference, for pipelines.
pub(crate) fn short_line(broker: &str, change: &TopologyChange) -> String {
    let what = match change.act {
        ChangeAct::Add => "is missing".to_owned(),
        ChangeAct::Remove => "is not in the file".to_owned(),
        ChangeAct::Change => change.settings.iter().map(moved).collect::<Vec<_>>().join(", "),
    };
    let right = if change.resource.kind == Kind::Acl { format!(" {}", right(change)) } else { String::new() };
    escape::line(&format!("{broker}: {} {}{right}: {what}", change.resource.kind, change.resource.name))
        .into_owned()
}

/// `1 to add, 1 to change; 2 need a flag.`
pub(crate) fn totals(plans: &[BrokerPlan], unasked: &[Unasked], allowed: &Allowed) -> String {
    let changes: Vec<&TopologyChange> = plans.iter().flat_map(|broker| &broker.plan.changes).collect();
    let with = |wanted: char| changes.iter().filter(|change| sign(change) == wanted).count();
    let words = [
        (with('+'), "to add"),
        (with('~'), "to change"),
        (with('!'), if with('!') == 1 { "hazard" } else { "hazards" }),
        (with('-'), "to remove or shorten"),
        (with('x'), "blocked"),
    ];
    let mut words: Vec<String> = words
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", thousands(*count as u64)))
        .collect();
    if words.is_empty() {
        words.push("no difference".to_owned());
    }
    let is_flag = |missing: &Missing| matches!(missing, Missing::Flag(..));
    let flags = changes.iter().filter(|change| change.missing(allowed).iter().any(is_flag)).count();
    let unseen = plans.iter().any(|broker| !broker.plan.unseen.is_empty()) || !unasked.is_empty();
    let mut text = words.join(", ");
    match flags {
        0 => {}
        1 => text.push_str("; 1 needs a flag"),
        flags => text.push_str(&format!("; {flags} need a flag")),
    }
    if unseen {
        text.push_str("; not everything could be seen");
    }
    format!("{text}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_narrow_lines() {
        let details = ["ALLOW READ topic core.events.v1 is not in the file: User:x loses it".to_owned()];
        for width in [40, 60, 80] {
            let paint = Paint { is_on: false, width };
            let mut lines = Vec::new();
            for label in ["acl short".to_owned(), format!("topic {}", "x".repeat(paint.names_max()))] {
                entry(&mut lines, paint, '-', (&label, paint.names_max()), &details);
            }
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
            assert!(lines[0].starts_with("  - acl short"), "{lines:#?}");
        }
        let colours = Paint { is_on: true, width: 80 };
        assert_eq!(colours.sign('+'), "\u{1b}[32m+\u{1b}[0m");
    }
}
