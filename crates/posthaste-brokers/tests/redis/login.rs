//! Who we are: users and passwords, right and wrong, and no secret in any words.

use super::*;
use crate::ground::load::complaint;
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;

async fn assert_refused(config: RedisConfig, as_whom: &str) {
    assert_not_let_in(&build(config).await, "s", "redis.auth", &[as_whom]).await;
}

#[tokio::test]
async fn users_and_passwords() {
    let user = format!("user shop on >{SECRET} ~* +@all");
    let options = RedisOptions::default().setting(&user).setting("requirepass default-pw");
    let server = require_service!(Redis::start(&options).await);
    let base = || RedisConfig::new(&server.url()).with(|options| options.user = Some("shop".to_owned()));
    assert_gets_in(base().with(|options| options.password = Some(Secret::new(SECRET)))).await;
    let file = TestFile::write(&format!("{SECRET}\n"));
    assert_gets_in(base().with(|options| options.password_file = file.path())).await;
    let wrong = format!("{SECRET}-not");
    assert_refused(base().with(|options| options.password = Some(Secret::new(&wrong))), "user \"shop\"")
        .await;
    let file = TestFile::write(&wrong);
    let named = file.named();
    assert_refused(base().with(|options| options.password_file = file.path()), &named).await;
    assert_refused(RedisConfig::new(&server.url()), "without a password").await;
    // A password without a user is the default user's.
    let default = |password: &str| {
        RedisConfig::new(&server.url()).with(|options| options.password = Some(Secret::new(password)))
    };
    assert_gets_in(default("default-pw")).await;
    assert_refused(default(SECRET), "user \"default\"").await;
}

/// F30: a right that is taken away under load stops its own stream, and the other one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_right_that_is_lost_under_load_stops_its_stream_only() {
    let user = format!("user shop on >{SECRET} ~losing ~keeping +@all");
    let bed = require_service!(Bed::start(&RedisOptions::default().setting(&user)).await);
    let (user, password) = (Some("shop".to_owned()), Some(Secret::new(SECRET)));
    let sink = build(bed.config().with(|options| {
        options.user = user;
        options.password = password;
    }))
    .await;
    let (losing, keeping) = (Load::start(&sink, "losing"), Load::start(&sink, "keeping"));
    losing.more(500).await;
    keeping.more(500).await;
    bed.run(&["ACL", "SETUSER", "shop", "resetkeys", "~keeping"]).await;
    let verdict = complaint(&sink, "losing").await;
    assert_seen(&verdict, "retry", "redis.denied", Scope::Destination);
    keeping.more(2_000).await;
    bed.run(&["ACL", "SETUSER", "shop", "~losing"]).await;
    until_delivered(&sink, "losing", BACK_WITHIN).await;
    for load in [losing, keeping] {
        let (stream, account) = (load.destination(), load.end().await);
        account.assert_all_there_in_order(&copies(&bed.stored(&stream).await));
        let denied = account.codes().iter().any(|(_, code, _)| *code == "redis.denied");
        assert_eq!(denied, stream == "losing", "{:?}", account.failures);
    }
}

/// A password that is changed in its file is used at the next connection.
#[tokio::test]
async fn a_rotated_password_is_read_again() {
    let options = RedisOptions::default().setting(&format!("requirepass {SECRET}"));
    let server = require_service!(Redis::start(&options).await);
    let file = TestFile::write("yesterday's");
    let sink =
        build(RedisConfig::new(&server.url()).with(|options| options.password_file = file.path())).await;
    assert_seen(&publish_one(&sink, loose("s")).await, "retry", "redis.auth", Scope::Sink);
    file.replace(SECRET);
    until_delivered(&sink, "s", BACK_WITHIN).await;
}

#[tokio::test]
async fn a_file_that_is_gone_is_an_outage_that_names_it() {
    let bed = require_service!(Bed::open().await);
    let user = TestFile::write(SECRET);
    let config = bed.config().with(|options| options.password_file = user.path());
    let named = user.named();
    bed.run(&["CONFIG", "SET", "requirepass", SECRET]).await;
    let sink = build(config).await;
    until_delivered(&sink, "s", DEADLINE).await;
    drop(user);
    bed.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let words = until_failed(&sink, "s", "redis.config").await;
    assert!(words.contains(&named), "{words}");
}

#[tokio::test]
async fn a_database_has_a_number() {
    let bed = require_service!(Bed::open().await);
    let sink = build(RedisConfig::new(&format!("{}/3", bed.server.url()))).await;
    assert_eq!(publish_one(&sink, loose("s")).await, Verdict::Delivered);
    assert_eq!(bed.length("s").await, 0);
    assert_eq!(bed.server.cli(&["-n", "3", "XLEN", "s"]).expect("asked"), "1");
    let verdict =
        publish_one(&build(RedisConfig::new(&format!("{}/99", bed.server.url()))).await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.denied", Scope::Sink);
    assert!(seen(&verdict).3.contains("database 99"), "{verdict:?}");
}

#[tokio::test]
async fn a_broken_configuration_is_an_error_that_names_the_option_or_the_file() {
    let base = || RedisConfig::new("redis://127.0.0.1:6379");
    let tls = || RedisConfig::new("rediss://127.0.0.1:6379");
    let file = TestFile::write("nothing of use");
    let secret = || Some(Secret::new(SECRET));
    let name = || Some("main".to_owned());
    let table = [
        (tls().with(|options| options.ca_file = missing()), "ca_file /nonexistent/secret: "),
        (base().with(|options| options.password_file = missing()), "password_file /nonexistent/secret: "),
        (tls().with(|options| options.cert_file = file.path()), "belong together"),
        (base().with(|options| options.user = name()), "user: needs password"),
        (
            base().with(|options| {
                options.password = secret();
                options.password_file = file.path();
            }),
            "given twice",
        ),
        (base().with(|options| options.ca_file = file.path()), "url: must begin with rediss://"),
        (base().with(|options| options.require_tls = true), "url: must begin with rediss://"),
        (RedisConfig { sentinel_master: name(), cluster: true, ..base() }, "cluster: "),
        (RedisConfig { sentinel_master: Some(String::new()), ..base() }, "sentinel_master: "),
        (RedisConfig { sentinel_password: secret(), ..base() }, "sentinel_master: "),
        (RedisConfig { sentinel_user: name(), sentinel_master: name(), ..base() }, "sentinel_user: "),
        (
            RedisConfig { sentinel_password_file: missing(), sentinel_master: name(), ..base() },
            "sentinel_password_file",
        ),
        (base().with(|options| options.max_in_flight = 0), "max_in_flight: "),
        (base().with(|options| options.delivery_timeout_ms = 0), "delivery_timeout_ms: "),
        (RedisConfig { maxlen: Some(0), ..base() }, "maxlen: "),
        (RedisConfig { maxlen: Some(u64::MAX), ..base() }, "maxlen: "),
        (RedisConfig { maxlen_exact: true, ..base() }, "maxlen_exact: "),
        (RedisConfig { cluster: true, ..RedisConfig::new("redis://h/1") }, "url: must name no database"),
        (RedisConfig::new("redis://a,rediss://b"), "url: must name the same"),
        (RedisConfig::new("http://h"), "url: "),
        (RedisConfig::new(""), "url: "),
        (RedisConfig::new(&format!("redis://u:{SECRET}@h:6379")), "url: must not hold credentials"),
    ];
    assert_all_refused(table.map(|(config, expected)| (SinkConfig::Redis(Box::new(config)), expected))).await;
}

#[test]
fn no_secret_is_ever_printed() {
    let text = format!(
        r#"
        type = "redis"
        url = ["redis://u:{SECRET}@a:6379", "redis://b"]
        user = "shop"
        password = "{SECRET}"
        sentinel_password = "{SECRET}"
        "#
    );
    assert_printed_without_secret(&text, "redis://***@a:6379");
}

#[test]
fn an_unknown_option_is_refused_and_the_defaults_are_the_documented_ones() {
    let redis = RedisConfig::new("redis://h");
    assert_eq!(
        (redis.options.delivery_timeout_ms, redis.options.max_in_flight, redis.maxlen),
        (8_000, 8_192, None)
    );
    assert_defaults("redis", "redis://h", SinkConfig::Redis(Box::new(redis)), "max_len");
}
