//! The document of the API, read by others: a validator, and Schemathesis, which asks by it whatever it can
//! think of.

use crate::binary::run;
use crate::rig::{Rig, write};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{self, ServiceError, TestDatabase};
use std::path::PathBuf;
use std::process::Command;

/// What is a promise: no request is an error of ours, and an answer is what the document says.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method,\
                      missing_required_header";
/// What there is: of made-up names it would only be told that there is nothing.
const NAMES: &str = "[parameters]\n\"path.o\" = \"a\"\n\"path.s\" = \"out\"\n\"path.r\" = \"all\"\n\"path.event\" = \"1\"\n\
                     \"path.job\" = \"1\"\n\"path.c\" = \"billing\"\n\"path.letter\" = \"x1\"\n";

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

/// Asks for everything, as an administrator.
#[track_caller]
fn is_what_it_says(rig: &Rig, schemathesis: PathBuf) {
    write(&rig.dir.join("openapi.json"), &rig.get("/openapi.json", &rig.admin).ok().to_string());
    write(&rig.dir.join("schemathesis.toml"), NAMES);
    let examples = if std::env::var_os("POSTHASTE_SOAK").is_some() { "200" } else { "5" };
    // The same requests each time: what it finds once it finds again.
    let said = passes(
        Command::new(schemathesis)
            .current_dir(&rig.dir)
            .args(["--no-color", "run", "--phases", "examples,coverage,fuzzing", "--seed", "17"])
            .args(["--max-examples", examples, "--checks", CHECKS, "--continue-on-failure", "--no-shrink"])
            // A stream goes on for a minute: `stream` reads it.
            .args(["--exclude-path", "/api/v1/stream"])
            .args(["--request-timeout", "30", "--url", &format!("http://{}", rig.address)])
            .args(["--header", &format!("Authorization: Bearer {}", rig.admin), "openapi.json"]),
    );
    println!("{said}");
    let count = |line: &str| line.trim().split_once(" generated,")?.0.parse::<usize>().ok();
    let asked = said.lines().find_map(count);
    assert!(asked > Some(1_000), "it asked: {said}");
    rig.get("/me", &rig.read).ok();
    assert!(!rig.daemon.said().contains("panicked"), "{}", rig.daemon.said());
}

#[test]
fn the_document_is_valid_for_whoever_reads_it() {
    let validator = require_service!(tool("openapi-spec-validator"));
    let rig = Rig::start("");
    let all = [&rig.read, &rig.operate, &rig.admin].map(|token| rig.get("/openapi.json", token).ok());
    assert!(all.iter().all(|document| *document == all[0]), "it is the same for each role");
    let file = rig.dir.join("openapi.json");
    write(&file, &all[0].to_string());
    passes(Command::new(validator).args(["--schema", "3.1"]).arg(&file));
}

#[test]
fn the_api_is_what_its_document_says() {
    let schemathesis = require_service!(tool("st"));
    is_what_it_says(&Rig::start(""), schemathesis);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_what_its_document_says_on_postgresql() {
    let schemathesis = require_service!(tool("st"));
    let database = require_service!(TestDatabase::create().await);
    let url = database.url();
    run(&["migrate", "up", "--url", &url]).ok();
    run(&["append", "bad", "--key", "k", "--payload", "no JSON", "--url", &url]).ok();
    let client = database.connect().await.expect("a connection");
    client.batch_execute(crate::consumers::ROWS).await.expect("a consumer, as code in a service is one");
    let rig = Rig::with("", |_| {
        format!(
            "[[outbox]]\nname = \"a\"\nurl = {url:?}\nadmin_url = {url:?}\n[sinks.out]\ntype = \"null\"\n\
             start_at = \"earliest\"\n[[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\nvalidate = \"json\"\n"
        )
    });
    rig.eventually("/outboxes/a/dead", |page| page["dead"].as_array().is_some_and(|all| all.len() == 1));
    is_what_it_says(&rig, schemathesis);
}
