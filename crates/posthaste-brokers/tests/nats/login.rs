//! Who we are: passwords, tokens, keys and credentials, right and wrong, and no secret in any words.

use super::*;
use nkeys::KeyPair;
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;

#[tokio::test]
async fn users_and_passwords() {
    let server = require_service!(Nats::start(&NatsOptions::default().user("shop", SECRET)).await);
    let user = Some("shop".to_owned());
    let base = NatsConfig::new(&server.url()).with(|options| options.user = user);
    assert_gets_in(base.clone().with(|options| options.password = Some(Secret::new(SECRET)))).await;
    let file = TestFile::write(&format!("{SECRET}\n"));
    assert_gets_in(base.clone().with(|options| options.password_file = file.path())).await;
    let wrong = format!("{SECRET}-not");
    assert_refused(
        base.clone().with(|options| options.password = Some(Secret::new(&wrong))),
        "user \"shop\"",
    )
    .await;
    let file = TestFile::write(&wrong);
    let named = file.named();
    assert_refused(base.with(|options| options.password_file = file.path()), &named).await;
    assert_refused(NatsConfig::new(&server.url()), "a client without credentials").await;
}

#[tokio::test]
async fn tokens() {
    let server = require_service!(Nats::start(&NatsOptions::default().token(SECRET)).await);
    let base = NatsConfig::new(&server.url());
    assert_gets_in(NatsConfig { token: Some(Secret::new(SECRET)), ..base.clone() }).await;
    let file = TestFile::write(SECRET);
    assert_gets_in(NatsConfig { token_file: file.path(), ..base.clone() }).await;
    let wrong = Some(Secret::new(format!("{SECRET}-not")));
    assert_refused(NatsConfig { token: wrong, ..base }, "the configured token").await;
}

#[tokio::test]
async fn keys() {
    let (known, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", known.public_key());
    let server = require_service!(Nats::start(&NatsOptions::default().setting(&users)).await);
    let base = NatsConfig::new(&server.url());
    let file = TestFile::write(&format!("{}\n", known.seed().expect("a seed")));
    assert_gets_in(NatsConfig { nkey_file: file.path(), ..base.clone() }).await;
    let file = TestFile::write(&stranger.seed().expect("a seed"));
    let named = format!("the key in {}", file.named());
    assert_refused(NatsConfig { nkey_file: file.path(), ..base }, &named).await;
}

async fn assert_refused(config: NatsConfig, as_whom: &str) {
    assert_not_let_in(&build(config).await, "nowhere", "nats.auth", &[as_whom]).await;
}

/// A password that is changed in its file is used at the next connection.
#[tokio::test]
async fn a_rotated_password_is_read_again() {
    let server = require_service!(Nats::start(&NatsOptions::default().user("shop", SECRET)).await);
    let file = TestFile::write("yesterday's");
    let user = Some("shop".to_owned());
    let config = NatsConfig::new(&server.url()).with(|options| {
        options.user = user;
        options.password_file = file.path();
    });
    let sink = build(config).await;
    let verdict = publish_one(&sink, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "nats.auth", Scope::Sink);
    file.replace(SECRET);
    until_failed(&sink, "nowhere", "nats.no_stream").await;
}

/// A server with an operator, as `nsc` would make one, and the account that users belong to.
async fn realm() -> Result<(Nats, KeyPair), ServiceError> {
    let (operator, account, system) =
        (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let account_claims = r#"{"type":"account","version":2,"limits":{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1,"mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1}}"#;
    let system_claims = r#"{"type":"account","version":2,"limits":{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1}}"#;
    let settings = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}\n {}: {} }}",
        jwt(&operator, &operator, "", r#"{"type":"operator","version":2}"#),
        system.public_key(),
        account.public_key(),
        jwt(&account, &operator, "", account_claims),
        system.public_key(),
        jwt(&system, &operator, "", system_claims),
    );
    Ok((Nats::start(&NatsOptions::default().setting(&settings)).await?, account))
}

/// A user's credentials, signed by this account. `more` are members of the JWT beside the usual ones.
fn creds(user: &KeyPair, signer: &KeyPair, more: &str) -> String {
    let claims = r#"{"type":"user","version":2,"subs":-1,"data":-1,"payload":-1}"#;
    let (token, seed) = (jwt(user, signer, more, claims), user.seed().expect("a seed"));
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// Operator, account and user, as `nsc` would make them.
#[tokio::test]
async fn credentials() {
    let (server, account) = require_service!(realm().await);
    let user = KeyPair::new_user();
    let base = NatsConfig::new(&server.url());
    let good = TestFile::write(&creds(&user, &account, ""));
    assert_gets_in(NatsConfig { creds_file: good.path(), ..base.clone() }).await;
    let forged = TestFile::write(&creds(&user, &KeyPair::new_account(), ""));
    let named = format!("the credentials in {}", forged.named());
    assert_refused(NatsConfig { creds_file: forged.path(), ..base }, &named).await;
}

/// The server ends a connection whose credentials have run out, and says so. New ones are used without a
/// restart.
#[tokio::test]
async fn credentials_that_expire_are_named_and_renewed() {
    let (server, account) = require_service!(realm().await);
    let user = KeyPair::new_user();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let file = TestFile::write(&creds(&user, &account, &format!(r#""exp":{},"#, now.as_secs() + 4)));
    let sink = build(NatsConfig { creds_file: file.path(), ..NatsConfig::new(&server.url()) }).await;
    until_failed(&sink, "nowhere", "nats.no_stream").await;
    let words = until_failed(&sink, "nowhere", "nats.auth").await;
    assert!(words.contains(&file.named()), "{words}");
    file.replace(&creds(&user, &account, ""));
    until_failed(&sink, "nowhere", "nats.no_stream").await;
}

fn jwt(subject: &KeyPair, signer: &KeyPair, more: &str, claims: &str) -> String {
    let (subject, issuer) = (subject.public_key(), signer.public_key());
    let body = format!(
        r#"{{"jti":"x","iat":1700000000,{more}"iss":"{issuer}","name":"test","sub":"{subject}","nats":{claims}}}"#
    );
    let signed =
        format!("{}.{}", base64url(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#), base64url(body.as_bytes()));
    let signature = signer.sign(signed.as_bytes()).expect("signed");
    format!("{signed}.{}", base64url(&signature))
}

fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for n in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * n)) as usize & 63]));
        }
    }
    text
}

#[tokio::test]
async fn a_broken_configuration_is_an_error_that_names_the_option_or_the_file() {
    let base = || NatsConfig::new("nats://127.0.0.1:4222");
    let file = TestFile::write("nothing of use");
    let secret = || Some(Secret::new(SECRET));
    let table = [
        (base().with(|options| options.ca_file = missing()), "ca_file /nonexistent/secret: "),
        (
            base().with(|options| {
                options.user = Some("u".into());
                options.password_file = missing();
            }),
            "password_file /nonexistent/secret: ",
        ),
        (NatsConfig { token_file: missing(), ..base() }, "token_file /nonexistent/secret: "),
        (NatsConfig { creds_file: missing(), ..base() }, "creds_file /nonexistent/secret: "),
        (NatsConfig { nkey_file: missing(), ..base() }, "nkey_file /nonexistent/secret: "),
        (NatsConfig { creds_file: file.path(), ..base() }, "it holds no JWT"),
        (NatsConfig { nkey_file: file.path(), ..base() }, "it holds no seed"),
        (base().with(|options| options.cert_file = file.path()), "belong together"),
        (base().with(|options| options.user = Some("u".into())), "user: needs password"),
        (base().with(|options| options.password = secret()), "password: needs user"),
        (NatsConfig { token: secret(), token_file: file.path(), ..base() }, "given twice"),
        (NatsConfig { token: secret(), nkey_file: file.path(), ..base() }, "only one of"),
        (base().with(|options| options.max_in_flight = 0), "max_in_flight: "),
        (base().with(|options| options.delivery_timeout_ms = 0), "delivery_timeout_ms: "),
        (NatsConfig { inbox_prefix: "a b".into(), ..base() }, "inbox_prefix: "),
        (NatsConfig { inbox_prefix: "_R_.a".into(), ..base() }, "inbox_prefix: belongs to the server"),
        (NatsConfig::new("http://h"), "url: "),
        (NatsConfig { tls_first: true, ..NatsConfig::new("ws://h") }, "url: ws:// has no TLS"),
        (
            NatsConfig::new("wss://h, ws://h").with(|options| options.require_tls = true),
            "url: ws:// has no TLS",
        ),
        (NatsConfig::new(""), "url: "),
        (NatsConfig::new(&format!("nats://u:{SECRET}@h:4222")), "url: must not hold credentials"),
    ];
    assert_all_refused(table.map(|(config, expected)| (SinkConfig::Nats(Box::new(config)), expected))).await;
}

#[test]
fn no_secret_is_ever_printed() {
    let text = format!(
        r#"
        type = "nats"
        url = ["nats://u:{SECRET}@a:4222", "nats://b"]
        user = "shop"
        password = "{SECRET}"
        token = "{SECRET}"
        "#
    );
    assert_printed_without_secret(&text, "nats://***@a:4222");
}

#[test]
fn an_unknown_option_is_refused_and_the_defaults_are_the_documented_ones() {
    let nats = NatsConfig::new("nats://h");
    assert_eq!((nats.options.delivery_timeout_ms, nats.options.max_in_flight), (8_000, 4_096));
    assert_defaults("nats", "nats://h", SinkConfig::Nats(Box::new(nats)), "urll");
}
