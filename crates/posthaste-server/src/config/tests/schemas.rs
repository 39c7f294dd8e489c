//! Schemas of payloads: what is read, and what is refused with which words.

use super::*;

const ROUTE: &str = "[outbox]\nurl = \"postgres://h/d\"\n[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n";
const CONSUMER: &str = "[consumers.billing]\nsource = \"file\"\ntopics = [\"orders\"]\n";

#[test]
fn a_check_is_a_word_or_a_schema() {
    for (line, expected) in [
        ("validate = \"jsn\"", "line 8: `route[0].validate` cannot be `jsn`, did you mean `json`?"),
        (
            "validate = { json_shema = \"x\" }",
            "line 8: unknown key `route[0].validate.json_shema`, did you mean `json_schema`?",
        ),
        ("validate = {}", "line 8: `route[0].validate.json_schema` is missing"),
        (
            "validate = 5",
            "line 8: `route[0].validate` must be \"none\", \"json\" or { json_schema = \"FILE\" }",
        ),
    ] {
        let error = wrong(&format!("{ROUTE}{line}\n"));
        assert!(error.contains(expected), "{line} gave: {error}");
    }
    assert_eq!(ok(ROUTE).effective["route"][0]["validate"], "none");
    assert_eq!(ok(&format!("{ROUTE}validate = \"json\"")).effective["route"][0]["validate"], "json");
}

/// A file of a consumer, with this line in its table.
#[cfg(feature = "sqlite")]
fn consumer(line: &str) -> String {
    let handle = "[[consumers.billing.handle]]\nsql = \"billing.on_order\"\n";
    format!("{ROUTE}[sinks.file]\ntype = \"local\"\npath = \"b.db\"\n{CONSUMER}{line}\n{handle}")
}

/// Whoever wrote a schema must not believe that something is checked.
#[cfg(not(feature = "schemas"))]
#[test]
fn a_build_without_schemas_refuses_them_and_names_the_feature() {
    let words = "this binary was built without `schemas`, and nothing would be checked: build it with `--features schemas`";
    let error = wrong(&format!("{ROUTE}validate = {{ json_schema = \"x.json\" }}"));
    assert!(error.contains("line 8: ") && error.contains(words), "{error}");
    #[cfg(feature = "sqlite")]
    for entry in ["json_schema = \"x.json\"", "registry = { url = \"http://h\" }"] {
        let error = wrong(&consumer(&format!("schema = [{{ {entry} }}]")));
        assert!(error.contains("line 14: ") && error.contains(words), "{error}");
    }
}

#[cfg(feature = "schemas")]
mod built_in {
    use super::*;
    use posthaste::route::Validate;

    #[test]
    fn a_schema_of_a_route_is_compiled_with_the_file() {
        let schema = File::new(r#"{"type": "object"}"#);
        let line = format!("validate = {{ json_schema = {:?} }}", schema.0);
        let config = ok(&format!("{ROUTE}{line}"));
        let routes = config.outboxes[0].routes.routes();
        assert!(matches!(routes[0].validate, Validate::Schema(_)));
        assert_eq!(
            config.effective["route"][0]["validate"]["json_schema"],
            schema.0.to_str().expect("UTF-8")
        );
        let bad = File::new(r#"{"type": "objcet"}"#);
        let none = File::new("{");
        let outside = File::new(r#"{"$ref": "https://example.com/order.json"}"#);
        for (file, expected) in [
            (Path::new("/nowhere/order.json"), "No such file"),
            (Path::new("/"), "directory"),
            (&*bad.0, "it is no JSON Schema that can be used here: /type"),
            (&*none.0, "it is no JSON"),
            (&*outside.0, "it is no JSON Schema that can be used here"),
        ] {
            let error = wrong(&format!("{ROUTE}validate = {{ json_schema = {file:?} }}"));
            let begins = format!("line 8: json_schema {}: ", file.display());
            assert!(error.contains(&begins) && error.contains(expected), "{error}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_consumer_has_schemas_of_files_and_of_a_registry() {
        let schema = File::new(r#"{"type": "object"}"#);
        let both = format!(
            "schema = [{{ types = [\"order_*\"], json_schema = {:?} }}, {{ topics = [\"orders\"], registry = {{ url = \"http://h\" }} }}]",
            schema.0
        );
        let config = ok(&consumer(&both));
        assert!(!config.consumers[0].checks.is_empty());
        let shown = &config.shown()["consumers"]["billing"]["schema"];
        assert_eq!(
            (&shown[0]["types"], &shown[1]["registry"]["timeout_ms"]),
            (&json!(["order_*"]), &json!(2_000))
        );
        assert!(ok(&consumer("")).consumers[0].checks.is_empty());
        let at = "consumers.billing.schema[0]";
        for (entry, expected) in [
            ("json_schema = \"/nowhere/o.json\"", "json_schema /nowhere/o.json: No such file".to_owned()),
            ("types = [\"a\"]", "a schema is a `json_schema` or a `registry`: write one of them".to_owned()),
            ("tpyes = [\"a\"]", format!("unknown key `{at}.tpyes`, did you mean `types`?")),
            ("registry = {}", format!("`{at}.registry.url` is missing")),
            ("registry = { ulr = \"x\" }", format!("unknown key `{at}.registry.ulr`, did you mean `url`?")),
            ("registry = { url = \"h:1\" }", "registry.url: ".to_owned()),
            (
                "registry = { url = \"http://h\", timeout_ms = 9000 }",
                "must be at most half of handler_timeout_ms".to_owned(),
            ),
            ("registry = { url = \"http://h\", user = \"u\" }", "registry.user: needs password".to_owned()),
        ] {
            let error = wrong(&consumer(&format!("schema = [{{ {entry} }}]")));
            assert!(error.contains("line 14: ") && error.contains(&expected), "{entry} gave: {error}");
        }
        let plain =
            format!("require_tls = true\n{}", consumer("schema = [{ registry = { url = \"http://h\" } }]"));
        assert!(wrong(&plain).contains("registry.url: must begin with https://"), "{}", wrong(&plain));
        let missing = "schema = [{ registry = { url = \"https://h\", ca_file = \"/nowhere/ca.pem\" } }]";
        let error = ok(&consumer(missing)).check_files().expect_err("no such file").to_string();
        assert!(
            error.contains("line 14: consumers.billing.schema[0].registry.ca_file /nowhere/ca.pem"),
            "{error}"
        );
        let secret = ok(&consumer(
            "schema = [{ registry = { url = \"http://h\", user = \"u\", password = \"hunter2\" } }]",
        ));
        assert!(!secret.shown().to_string().contains("hunter2"));
    }
}
