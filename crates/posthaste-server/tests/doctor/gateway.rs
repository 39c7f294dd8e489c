//! The checks of a gateway: its login, the file where there is one, and the Redis of its limits.

use crate::binary::Scratch;
#[cfg(feature = "sqlite")]
use crate::binary::run;
use crate::broker::outbox;
use crate::ground::{Said, connect, doctor, execute, file, only};
use posthaste_testkit::require_service;

fn config(outbox: &str, login: &str, limit: &str) -> Scratch {
    let gateway = format!(
        "[sinks.out]\ntype = \"stdout\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"out\"]\n[gateway]\n{login}\n\
         [[gateway.topic]]\ntopic = \"orders.placed\"\n[gateway.limit]\n{limit}\n"
    );
    file(outbox, "", &gateway)
}

fn ask(file: &Scratch) -> Said {
    doctor(&["--config", file.path()])
}

/// A port that nobody listens on.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("redis = {{ url = \"redis://{}\" }}", listener.local_addr().expect("an address"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_lacks_is_named() {
    let server = require_service!(outbox().await);
    let client = connect(&server.url()).await;
    execute(&client, "create role door login in role posthaste_gateway").await;
    let of = |user: &str| format!("url = \"{}\"", server.url_for("postgres", user));
    let good = config(&server.url(), &of("door"), "");
    let before = ask(&good);
    assert_eq!(before.found["gateway_rights"].0, "ok");
    for (check, level, file) in [
        ("connect", "fail", config(&server.url(), &of("nobody"), "")),
        ("limiter", "warn", config(&server.url(), &of("door"), &nowhere())),
        (
            "limiter",
            "fail",
            config(&server.url(), &of("door"), &format!("on_loss = \"closed\"\n{}", nowhere())),
        ),
    ] {
        only(check, level, &before, &ask(&file), &["--config", file.path()]);
    }
    execute(&client, "revoke insert on posthaste.gateway_requests from posthaste_gateway").await;
    only("gateway_rights", "fail", &before, &ask(&good), &["--config", good.path()]);
    // A default that would harm others is no obstacle.
    execute(
        &client,
        "grant insert on posthaste.gateway_requests to posthaste_gateway; alter role door set synchronous_commit = off",
    )
    .await;
    let said = doctor(&["--config", good.path()]).ended.json();
    let own = said.as_array().expect("a list").iter();
    let mut own = own.filter(|one| one["of"] == "gateway" && one["check"] == "synchronous_commit");
    let text = own.next().expect("it is looked at")["text"].to_string();
    assert!(text.contains("the gateway switches it on"), "{text}");
}

/// A file whose commits a power cut may take back is refused.
#[cfg(feature = "sqlite")]
#[test]
fn a_file_that_is_not_durable_is_named() {
    let dir = std::env::temp_dir().join(format!("posthaste-doctor-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let url = format!("sqlite:{}", dir.join("orders.db").display());
    run(&["migrate", "up", "--url", &url]).ok();
    let good = ask(&config(&url, "", ""));
    assert_eq!(good.found["gateway_file"].0, "ok");
    let unsafe_file = config(&format!("{url}?synchronous=normal"), "", "");
    let said = ask(&unsafe_file);
    assert!(
        [("gateway_file", "fail")].iter().all(|(check, level)| said.found[*check].0 == *level),
        "{:?}",
        said.found
    );
    assert!(said.found["gateway_file"].1.contains("power"), "{:?}", said.found["gateway_file"]);
    let _ = std::fs::remove_dir_all(&dir);
}
