use super::*;
use posthaste::event::Event;

fn made(event: Event) -> HeaderMap {
    let message = crate::testing::message("d", event);
    let fixed =
        HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), HeaderValue::from_static("ours"))]);
    let keys = Keys { signer: Signer::new(&[]).expect("no secrets"), headers: fixed, hidden: Vec::new() };
    headers(&message, &HeaderValue::from_static("h.example"), &keys, 1_700_000_000).expect("headers")
}

fn of<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
}

#[test]
fn the_list_is_sorted() {
    assert!(OURS.is_sorted() && KNOWN.is_sorted_by_key(|name| name.as_str()));
}

#[test]
fn values_that_http_cannot_carry_are_encoded_and_named() {
    let headers = made(
        Event::new("t", "x")
            .with_key("ключ 100%")
            .with_header("x-tab", "a\tb")
            .with_header("x-edge", " a ")
            .with_header("x-plain", "100% \"ok\""),
    );
    assert_eq!(of(&headers, "key"), ["%D0%BA%D0%BB%D1%8E%D1%87 100%25"]);
    assert_eq!((of(&headers, "x-tab"), of(&headers, "x-edge")), (vec!["a%09b"], vec!["%20a%20"]));
    assert_eq!(of(&headers, "x-plain"), ["100% \"ok\""]);
    let [names] = of(&headers, "posthaste-encoded")[..] else { panic!("one list") };
    let mut names: Vec<_> = names.split(", ").collect();
    names.sort_unstable();
    assert_eq!(names, ["key", "x-edge", "x-tab"]);
}

#[test]
fn an_event_cannot_pretend_to_be_http() {
    let event = Event::new("t", "x")
        .with_content_type("text/plain")
        .with_header("Host", "evil")
        .with_header("Transfer-Encoding", "chunked")
        .with_header("Content-Length", "0")
        .with_header("webhook-signature", "v1,forged")
        .with_header("Authorization", "Bearer forged")
        .with_header("X-Forwarded-For", "1.2.3.4")
        .with_header("Content-Type", "text/html")
        .with_header("X-Api-Key", "theirs");
    let id = event.id.hyphenated().to_string();
    let headers = made(event);
    assert_eq!(of(&headers, "host"), ["h.example"]);
    for name in ["transfer-encoding", "webhook-signature", "authorization"] {
        assert_eq!(of(&headers, name), [""; 0], "{name}");
    }
    assert_eq!(of(&headers, "content-length"), ["1"]);
    assert_eq!(of(&headers, "x-event-host"), ["evil"]);
    assert_eq!(of(&headers, "x-event-x-forwarded-for"), ["1.2.3.4"]);
    assert_eq!(of(&headers, "content-type"), ["text/plain"]);
    assert_eq!(of(&headers, "x-event-content-type"), ["text/html"]);
    assert_eq!(of(&headers, "x-api-key"), ["ours"]);
    assert_eq!((of(&headers, "webhook-id"), of(&headers, "idempotency-key")), (vec![&*id], vec![&*id]));
    assert_eq!(of(&headers, "webhook-timestamp"), ["1700000000"]);
}

#[test]
fn a_tombstone_is_marked() {
    assert_eq!(of(&made(Event::tombstone("t")), "posthaste-tombstone"), ["true"]);
    assert_eq!(of(&made(Event::new("t", "")), "posthaste-tombstone"), [""; 0]);
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const BODY: &[u8] = br#"{"test": 2432232314}"#;

fn signer(secrets: &[&str]) -> Signer {
    let secrets: Vec<_> = secrets.iter().map(|text| Secret::new(*text)).collect();
    Signer::new(&secrets).expect("secrets")
}

/// The vector that the specification's libraries are tested with.
#[test]
fn f47_the_published_vector() {
    let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    assert_eq!(signer(&[SECRET]).sign(ID, "1614265330", BODY).as_deref(), Some(expected));
    let bare = SECRET.trim_start_matches("whsec_");
    assert_eq!(signer(&[bare]).sign(ID, "1614265330", BODY).as_deref(), Some(expected));
}

#[test]
fn f47_every_secret_signs() {
    let other = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0";
    let one = |secret| signer(&[secret]).sign(ID, "1", BODY).expect("signed");
    let both = signer(&[SECRET, other]).sign(ID, "1", BODY).expect("signed");
    assert_eq!(both, format!("{} {}", one(SECRET), one(other)));
    assert_eq!(signer(&[]).sign(ID, "1", BODY), None);
}

#[test]
fn bad_secrets_are_refused_without_being_shown() {
    for bad in ["whsec_", "whsec_c2hvcnQ=", "whsec_not base64", "hunter2-hunter2"] {
        let error = Signer::new(&[Secret::new(bad)]).err().expect(bad).to_string();
        assert!(!error.contains("hunter") && !error.contains("not base64"), "{error}");
    }
}
