//! Letters outside ASCII in the configuration: a fault of the configuration is never the event's.

use super::rotation::{Dir, until};
use super::*;
use posthaste::sink::Level;
use posthaste_brokers::Secret;

fn headers(value: &str) -> std::collections::BTreeMap<String, Secret> {
    [("x-api-key".to_owned(), Secret::new(value))].into()
}

/// Who starts with it would make a dead letter of every event.
#[tokio::test]
async fn what_no_header_can_carry_is_refused_at_the_start() {
    let (receiver, dir) = (receiver().await, Dir::make());
    let token_file = Some(dir.write("token", "töken\n"));
    let rows = [
        (HttpConfig { headers: headers("schlüssel"), ..near(&receiver) }, "headers"),
        (HttpConfig { headers: headers("a\nb"), ..near(&receiver) }, "headers"),
        (HttpConfig { token: Some(Secret::new("töken")), ..near(&receiver) }, "token"),
        (HttpConfig { token_file, ..near(&receiver) }, "token_file"),
    ];
    for (config, option) in rows {
        let needs_file = config.token_file.is_some();
        let config = SinkConfig::Http(Box::new(config));
        let words = config.check().err().map(|error| error.option_name());
        assert_eq!(words, (!needs_file).then_some(option), "what stands in the configuration");
        let error = config.build("test").await.err().expect("refused");
        assert_eq!(error.option_name(), option);
        assert!(!error.to_string().contains("öken"), "it is a secret: {error}");
    }
}

/// They travel as base64 of UTF-8 (RFC 7617).
#[tokio::test]
async fn a_user_and_a_password_may_hold_any_letters() {
    let receiver = receiver().await;
    let sink = build(near(&receiver).with(|options| {
        options.user = Some("jürgen".into());
        options.password = Some(Secret::new("pässwort"));
    }));
    assert_eq!(publish_one(&sink.await, loose("x")).await, Verdict::Delivered);
    let sent = receiver.requests()[0].header("authorization").map(str::to_owned);
    assert_eq!(sent.as_deref(), Some("Basic asO8cmdlbjpww6Rzc3dvcnQ="));
}

/// A file that is replaced by one that cannot be used changes nothing, and `doctor` says so.
#[tokio::test]
async fn a_rotated_token_that_cannot_travel_is_not_the_events_fault() {
    let (receiver, dir) = (receiver().await, Dir::make());
    let token_file = Some(dir.write("token", "one\n"));
    let sink = build(HttpConfig { token_file, ..near(&receiver) }).await;
    let token = |wanted: &'static str| {
        move |request: &posthaste_testkit::services::Recorded| request.header("authorization") == Some(wanted)
    };
    until(&sink, &receiver, token("Bearer one")).await;
    dir.write("token", "zwei-ü\n");
    // It looks at the files at once.
    assert_found(&sink.examine(&[]).await, "files", Level::Fail, "token_file");
    until(&sink, &receiver, token("Bearer one")).await;
    dir.write("token", "three\n");
    until(&sink, &receiver, token("Bearer three")).await;
}
