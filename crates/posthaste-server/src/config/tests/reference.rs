//! The schema and the reference say what the parser does. A key that is in one of them and not in the others
//! turns these red.

use super::*;

/// As much of JSON Schema as ours uses: what is wrong with a value, if anything.
fn violates(schema: &Value, value: &Value, path: &str) -> Option<String> {
    for several in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[several].as_array() {
            let wrong: Vec<String> =
                choices.iter().filter_map(|choice| violates(choice, value, path)).collect();
            return (wrong.len() == choices.len()).then(|| wrong.join("; "));
        }
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return Some(format!("{path} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|known| !known.contains(value)) {
        return Some(format!("{path} is none of {}", schema["enum"]));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = |name: &Value| name == kind || (name == "number" && kind == "integer");
    let is_of_kind = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(fits),
        one => fits(one),
    };
    if !is_of_kind {
        return Some(format!("{path} is {kind} and not {}", schema["type"]));
    }
    match value {
        Value::Array(items) => items.iter().find_map(|item| violates(&schema["items"], item, path)),
        Value::Object(table) => table.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match (schema["properties"].get(key), &schema["additionalProperties"]) {
                (Some(known), _) => violates(known, value, &path),
                (None, Value::Bool(false)) => Some(format!("{path} is unknown")),
                (None, other) => violates(other, value, &path),
            }
        }),
        _ => None,
    }
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn the_schema_takes_what_the_parser_takes_and_refuses_what_it_refuses() {
    let schema = schema();
    let parse = |text: &str| toml::from_str::<Value>(text).expect("TOML");
    assert_eq!(violates(&schema, &parse(EXAMPLE), ""), None);
    // Everything that can be set, with its default.
    assert_eq!(violates(&schema, &ok(EXAMPLE).effective, ""), None);
    let single = "[outbox]\nurl = \"postgres://h/d\"\n[sinks.n]\ntype = \"nats\"\nurl = [\"nats://a\", \"nats://b\"]\nstart_at = 5";
    assert_eq!(violates(&schema, &parse(single), ""), None);
    for (bad, expected) in [
        ("[relay]\npoll_min_sm = 3", ".relay.poll_min_sm is unknown"),
        ("[relay]\npoll_min_ms = \"3\"", ".relay.poll_min_ms is string"),
        ("[outbox]\ntls = \"maybe\"", ".outbox.tls is none of"),
        ("[sinks.n]\ntype = \"nats\"\nurl = 5", ".sinks.n.url is integer"),
        ("[sinks.n]\ntype = \"null\"\nurl = \"x\"", ".sinks.n.url is unknown"),
        ("[[route]]\norder = \"strict\"", ".route.order is"),
    ] {
        let found = violates(&schema, &parse(bad), "").unwrap_or_else(|| panic!("{bad} is taken"));
        assert!(found.contains(expected), "{bad}: {found}");
    }
}

/// The tables of docs/configuration.md, by heading, against the schema: every key is there, with its default,
/// and no other.
#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn the_reference_is_up_to_date() {
    let schema = schema();
    let top = &schema["properties"];
    let (outbox, route) = (&top["outbox"]["anyOf"][0]["properties"], &top["route"]["items"]["properties"]);
    let consumer = &top["consumers"]["additionalProperties"]["properties"];
    #[cfg(feature = "sqlite")]
    let local = top["sinks"]["additionalProperties"]["oneOf"]
        .as_array()
        .and_then(|kinds| kinds.iter().find(|kind| kind["properties"]["type"]["const"] == "local"))
        .expect("local is built in");
    let sections = [
        ("## `[relay]`", &top["relay"]["properties"]),
        ("## `[http]`", &top["http"]["properties"]),
        ("## `[gateway]`", &top["gateway"]["properties"]),
        ("### `[[gateway.topic]]`", &top["gateway"]["properties"]["topic"]["items"]["properties"]),
        ("### A gateway's `bounds`", &top["gateway"]["properties"]["bounds"]["properties"]),
        ("### A gateway's `tenants`", &top["gateway"]["properties"]["tenants"]["properties"]),
        ("### A gateway's `limit`", &top["gateway"]["properties"]["limit"]["properties"]),
        ("## `[log]`", &top["log"]["properties"]),
        ("## `[outbox]`", outbox),
        ("### `retention`", &outbox["retention"]["properties"]),
        ("### `limits`", &outbox["limits"]["properties"]),
        ("### `roles`", &outbox["roles"]["properties"]),
        #[cfg(feature = "sqlite")]
        ("### `type = \"local\"`", &local["properties"]),
        ("## `[[route]]`", route),
        ("### `retry`", &route["retry"]["properties"]),
        ("## `[consumers.NAME]`", consumer),
        ("### `[[consumers.NAME.handle]]`", &consumer["handle"]["items"]["properties"]),
        ("### A consumer's `retry`", &consumer["retry"]["properties"]),
        ("### A consumer's `retention`", &consumer["retention"]["properties"]),
    ];
    let text = include_str!("../../../../../docs/configuration.md");
    for (heading, properties) in sections {
        compare(text, heading, properties);
    }
}

/// The table `Settings` of each broker's page, or the table of its kind in the reference if the page has
/// none.
#[test]
fn the_pages_of_brokers_are_up_to_date() {
    let schema = schema();
    let kinds = schema["properties"]["sinks"]["additionalProperties"]["oneOf"].as_array().expect("kinds");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("a page for each kind");
    let reference = read("configuration.md");
    for kind in posthaste_brokers::built_in() {
        let found = kinds.iter().find(|found| found["properties"]["type"]["const"] == kind);
        let properties = &found.expect("it is built in")["properties"];
        let page = read(&format!("brokers/{kind}.md"));
        match page.contains(&format!("| `{}` |", posthaste_brokers::DELIVERY_TIMEOUT)) {
            true => compare(&page, "## Settings", properties),
            false => compare(&reference, &format!("### `type = \"{kind}\"`"), properties),
        }
    }
}

/// Every key is in the table under the heading, with its default, and no other.
fn compare(text: &str, heading: &str, properties: &Value) {
    let from = text.find(heading).unwrap_or_else(|| panic!("{heading} is missing"));
    let rest = &text[from + heading.len()..];
    let table = &rest[..rest.find("\n#").unwrap_or(rest.len())];
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split(" | ").collect())
        .collect();
    let names = |row: &Vec<&str>| row[0].split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    for (key, property) in properties.as_object().expect("a table") {
        assert!(property["description"].is_string(), "{heading} {key} has no description");
        // Tables of their own, and the keys of every sink, have rows elsewhere.
        let elsewhere =
            property["type"] == "object" || key == "type" || section::SINK_OWN.contains(&key.as_str());
        let row = rows.iter().find(|row| names(row).contains(key));
        let Some(row) = row else {
            assert!(elsewhere, "{heading} has no row for `{key}`");
            continue;
        };
        let shown = property["default"].to_string();
        let shown = shown.strip_suffix(".0").unwrap_or(&shown);
        let told = elsewhere || matches!(property["default"], Value::Null | Value::Array(_));
        assert!(told || row[1].contains(shown), "{heading} {key}: the default is {shown}, not {}", row[1]);
    }
    for name in rows.iter().flat_map(names) {
        assert!(properties.get(&name).is_some(), "{heading}: there is no key `{name}`");
    }
}
