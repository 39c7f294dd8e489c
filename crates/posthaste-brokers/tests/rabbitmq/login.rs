//! Who we are: passwords and certificates, right and wrong, and no secret in any words.

use super::*;
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Certs;

async fn assert_refused(config: RabbitmqConfig, code: &str, words: &[&str]) {
    assert_not_let_in(&build(config).await, "nowhere", code, words).await;
}

/// A user of its own name, who may do everything.
async fn user(server: &Rabbitmq) -> String {
    let name = unique("shop");
    server.add_user(&name, SECRET, [".*", ".*", ".*"]).await.expect("a user");
    name
}

#[tokio::test]
async fn users_and_passwords() {
    let server = require_service!(shared().await);
    let name = user(server).await;
    let base = RabbitmqConfig::new(&server.url()).with(|options| options.user = Some(name.clone()));
    assert_gets_in(base.clone().with(|options| options.password = Some(Secret::new(SECRET)))).await;
    let file = TestFile::write(&format!("{SECRET}\n"));
    assert_gets_in(base.clone().with(|options| options.password_file = file.path())).await;
    let wrong = TestFile::write(&format!("{SECRET}-not"));
    let path = wrong.named();
    let config = base.clone().with(|options| options.password_file = wrong.path());
    assert_refused(config, "rabbitmq.auth", &[&name, &path, "ACCESS_REFUSED"]).await;
    let stranger = base.with(|options| {
        options.user = Some("nobody".into());
        options.password = Some(Secret::new(SECRET));
    });
    assert_refused(stranger, "rabbitmq.auth", &["user \"nobody\""]).await;
}

#[tokio::test]
async fn a_virtual_host_must_be_there_and_ours() {
    let server = require_service!(shared().await);
    let (name, ours, theirs) = (user(server).await, unique("ours"), unique("theirs"));
    for vhost in [&ours, &theirs] {
        server
            .eval(&format!("ok = rabbit_vhost:add(<<{vhost:?}>>, <<\"test\">>)"))
            .await
            .expect("a virtual host");
    }
    let allow = format!(
        "ok = rabbit_auth_backend_internal:set_permissions(<<{name:?}>>, <<{ours:?}>>, <<\".*\">>, <<\".*\">>, <<\".*\">>, <<\"test\">>)"
    );
    server.eval(&allow).await.expect("allowed");
    let at = |vhost: &str| {
        RabbitmqConfig::new(&format!("{}/{vhost}", server.url())).with(|options| {
            options.user = Some(name.clone());
            options.password = Some(Secret::new(SECRET));
        })
    };
    assert_gets_in(at(&ours)).await;
    assert_refused(at(&theirs), "rabbitmq.vhost", &[&name, &theirs, "NOT_ALLOWED"]).await;
    assert_refused(at("no-such"), "rabbitmq.vhost", &["no-such", "not found"]).await;
}

/// The certificate alone is a login where the broker has been told so.
#[tokio::test]
async fn a_certificate_can_be_the_login() {
    let server = require_service!(shared().await);
    let (certs, name) = (Certs::make().expect("certificates"), user(server).await);
    let listener = server.tls_listener(certs.server(), Some(certs.ca())).await.expect("a port");
    let with = |common_name: &str| {
        let pair = certs.client(common_name).expect("a certificate");
        RabbitmqConfig::new(&listener.url()).with(|options| {
            options.ca_file = Some(certs.ca().to_owned());
            options.cert_file = Some(pair.certificate);
            options.key_file = Some(pair.key);
        })
    };
    assert_gets_in(with(&name)).await;
    let stranger = with("nobody");
    let path = stranger.options.cert_file.as_ref().expect("a file").display().to_string();
    assert_refused(stranger, "rabbitmq.auth", &[&path]).await;
    // With a user, the certificate is for TLS alone.
    let both = with("nobody").with(|options| {
        options.user = Some(name);
        options.password = Some(Secret::new(SECRET));
    });
    assert_gets_in(both).await;
}

#[tokio::test]
async fn a_rotated_password_is_read_again() {
    let server = require_service!(shared().await);
    let bed = require_service!(Bed::open().await);
    let (name, queue, file) = (user(server).await, bed.queue().await, TestFile::write(SECRET));
    let config = bed.config().with(|options| {
        options.user = Some(name.clone());
        options.password_file = file.path();
    });
    let sink = build(config).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    server
        .eval(&format!(
            "ok = rabbit_auth_backend_internal:change_password(<<{name:?}>>, <<\"next\">>, <<\"test\">>)"
        ))
        .await
        .expect("changed");
    file.replace("next");
    server
        .eval(&format!("ok = rabbit_networking:close_all_user_connections(<<{name:?}>>, <<\"rotated\">>)"))
        .await
        .expect("closed");
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    std::fs::remove_file(&file.0).expect("removed");
    server
        .eval(&format!("ok = rabbit_networking:close_all_user_connections(<<{name:?}>>, <<\"again\">>)"))
        .await
        .expect("closed");
    let words = until_failed(&sink, &queue, "rabbitmq.config").await;
    assert!(words.contains(&file.named()), "{words}");
}

#[tokio::test]
async fn a_broken_configuration_is_an_error_that_names_the_option_or_the_file() {
    let base = || RabbitmqConfig::new("amqps://127.0.0.1:5671");
    let file = TestFile::write("nothing of use");
    let (secret, name) = (|| Some(Secret::new(SECRET)), || Some("u".to_owned()));
    let table = [
        (base().with(|options| options.ca_file = missing()), "ca_file /nonexistent/secret: "),
        (
            base().with(|options| {
                options.user = name();
                options.password_file = missing();
            }),
            "password_file /nonexistent/secret: ",
        ),
        (base().with(|options| options.cert_file = file.path()), "belong together"),
        (
            base().with(|options| {
                options.cert_file = file.path();
                options.key_file = missing();
            }),
            "cert_file ",
        ),
        (base().with(|options| options.user = name()), "user: needs password"),
        (base().with(|options| options.password = secret()), "password: needs user"),
        (
            base().with(|options| {
                options.user = name();
                options.password = secret();
                options.password_file = file.path();
            }),
            "given twice",
        ),
        (base().with(|options| options.max_in_flight = 0), "max_in_flight: "),
        (base().with(|options| options.delivery_timeout_ms = 0), "delivery_timeout_ms: "),
        (RabbitmqConfig { exchange: Some("x".repeat(256)), ..base() }, "exchange: "),
        (RabbitmqConfig { heartbeat_secs: 3, ..base() }, "heartbeat_secs: must be between 5 and 300"),
        (
            RabbitmqConfig::new("amqp://h").with(|options| options.require_tls = true),
            "url: must begin with amqps",
        ),
        (RabbitmqConfig::new("http://h"), "url: "),
        (RabbitmqConfig::new(""), "url: "),
        (RabbitmqConfig::new(&format!("amqp://u:{SECRET}@h")), "url: must not hold credentials"),
    ];
    assert_all_refused(table.map(|(config, expected)| (SinkConfig::Rabbitmq(Box::new(config)), expected)))
        .await;
}

#[test]
fn no_secret_is_ever_printed() {
    let text = format!(
        r#"
        type = "rabbitmq"
        url = ["amqp://u:{SECRET}@a:5672", "amqp://b"]
        user = "shop"
        password = "{SECRET}"
        "#
    );
    assert_printed_without_secret(&text, "amqp://***@a:5672");
}

#[test]
fn an_unknown_option_is_refused_and_the_defaults_are_the_documented_ones() {
    let rabbitmq = RabbitmqConfig::new("amqp://h");
    assert_eq!((rabbitmq.options.delivery_timeout_ms, rabbitmq.options.max_in_flight), (8_000, 1_024));
    assert_eq!(rabbitmq.heartbeat_secs, 10);
    assert_defaults("rabbitmq", "amqp://h", SinkConfig::Rabbitmq(Box::new(rabbitmq)), "urll");
}
