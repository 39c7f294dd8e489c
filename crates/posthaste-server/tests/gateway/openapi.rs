//! The document of the gateway, read by others: a validator, and Schemathesis, which asks by it whatever it
//! can think of.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{self, ServiceError, TestDatabase};
use std::path::PathBuf;
use std::process::Command;

/// What is a promise: no request is an error of ours, and an answer is what the document says.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method,\
                      missing_required_header,ignored_auth";

/// A program of scripts/services' environment `openapi`.
fn tool(name: &str) -> Result<PathBuf, ServiceError> {
    let path = services::services_dir().join("openapi/bin").join(name);
    match path.exists() {
        true => Ok(path),
        false => Err(ServiceError::Missing {
            service: name.to_owned(),
            why: format!("no {} (scripts/services openapi installs it)", path.display()),
        }),
    }
}

/// Runs it, and shows all that it said if it found something.
#[track_caller]
fn passes(command: &mut Command) -> String {
    let ended = command.output().expect("it starts");
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ended.status.success(), "{said}");
    said
}

#[track_caller]
fn is_what_it_says(rig: &Rig, schemathesis: PathBuf) {
    let key = rig.key("acme", &[]);
    let document = rig.get("/v1/openapi.json", &key);
    assert_eq!(document.status, 200);
    std::fs::write(rig.dir.join("openapi.json"), &document.text).expect("it can be written");
    let examples = if std::env::var_os("POSTHASTE_SOAK").is_some() { "300" } else { "10" };
    // The same requests each time: what it finds once it finds again.
    let said = passes(
        Command::new(schemathesis)
            .current_dir(&rig.dir)
            .args(["--no-color", "run", "--phases", "examples,coverage,fuzzing", "--seed", "17"])
            .args(["--max-examples", examples, "--checks", CHECKS, "--continue-on-failure", "--no-shrink"])
            .args(["--request-timeout", "30", "--url", &format!("http://{}", rig.address)])
            .args(["--header", &format!("Authorization: Bearer {key}"), "openapi.json"]),
    );
    println!("{said}");
    let count = |line: &str| line.trim().split_once(" generated,")?.0.parse::<usize>().ok();
    let asked = said.lines().find_map(count);
    assert!(asked > Some(30), "it asked: {said}");
    assert!(!rig.events().is_empty(), "some of it was taken");
    let log = rig.daemon.said();
    assert!(!log.contains("panicked") && !log.contains("the database refused"), "{log}");
}

const FREE: &str = "limit = { rate_per_s = 100000, burst = 1000000 }\n";

#[test]
fn the_document_is_valid_and_says_what_the_key_may() {
    let validator = require_service!(tool("openapi-spec-validator"));
    let rig = Rig::start(FREE);
    let narrow = rig.get("/v1/openapi.json", &rig.key("acme", &["--topic", "raw"])).json();
    assert!(narrow["paths"]["/v1/topics/raw"].is_object(), "{narrow}");
    assert!(narrow["paths"]["/v1/topics/orders.placed"].is_null(), "{narrow}");
    let whole = rig.get("/v1/openapi.json", &rig.key("acme", &[])).text;
    let file = rig.dir.join("openapi.json");
    std::fs::write(&file, whole).expect("it can be written");
    passes(Command::new(validator).args(["--schema", "3.1"]).arg(&file));
}

#[test]
fn the_gateway_is_what_its_document_says() {
    let schemathesis = require_service!(tool("st"));
    is_what_it_says(&Rig::start(FREE), schemathesis);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_is_what_its_document_says_on_postgres() {
    let schemathesis = require_service!(tool("st"));
    let database = require_service!(TestDatabase::create().await);
    is_what_it_says(&Rig::on_postgres(database, FREE), schemathesis);
}
