//! Cursors of each list: what was made up, is of another list or outbox, or is of another version is refused
//! with a sentence and never leads to a page or to an error of the server.

use crate::rig::{Answered, Rig};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Lists, by path and by the name that their cursors have.
const LISTS: [(&str, &str, &str); 6] = [
    ("/outboxes/a/events", "events", "a"),
    ("/outboxes/a/deferred", "deferred", "a"),
    ("/outboxes/a/dead", "dead", "a"),
    ("/outboxes/a/jobs", "jobs", "a"),
    ("/audit", "audit", "*"),
    ("/audit.csv", "audit", "*"),
];
/// Those of a consumer.
pub(crate) const CONSUMERS: [(&str, &str, &str); 2] = [
    ("/consumers/billing/dead", "letters", "billing"),
    ("/consumers/billing/deferred", "messages", "billing"),
];

/// A cursor whose checksum is right: it is no secret.
fn forged(place: &Value) -> String {
    let text = place.to_string();
    let sum = Sha256::digest(text.as_bytes());
    URL_SAFE_NO_PAD.encode([&sum[..6], text.as_bytes()].concat())
}

#[track_caller]
fn is_refused(answer: &Answered, what: &str) {
    // A place that is well written and none of the store's own is refused by the store.
    let codes = ["api.bad_cursor", "admin.bad_place"];
    let is_one = answer.status == 400 && codes.contains(&answer.code().as_str());
    assert!(is_one, "{what}: {} {}", answer.status, answer.text);
}

#[test]
fn a_cursor_that_is_none_of_the_list_s_own_is_refused_by_each() {
    let rig = Rig::start("");
    each_is_its_own(&LISTS, |path| rig.get(path, &rig.admin));
}

/// Asks each list by the cursors of others, and by none.
pub(crate) fn each_is_its_own(lists: &[(&str, &str, &str)], get: impl Fn(&str) -> Answered) {
    let ask = |path: &str, cursor: &str| {
        let mark = if path.contains('?') { '&' } else { '?' };
        get(&format!("{path}{mark}cursor={cursor}"))
    };
    let places = [
        json!(null),
        json!("x"),
        json!(1.5),
        json!(-1.0e300),
        json!(18_446_744_073_709_551_615_u64),
        json!([1, 2]),
        json!(["out"]),
        json!(["out", "x"]),
        json!({ "a": "x" }),
        json!(true),
    ];
    for &(path, list, of) in lists {
        let own = |version: Value, list: &str, of: &str, at: &Value| {
            forged(&json!({ "v": version, "list": list, "of": of, "at": at }))
        };
        for place in &places {
            is_refused(&ask(path, &own(1.into(), list, of, place)), &format!("{path} at {place}"));
        }
        for version in [json!(0), json!(2), json!("1"), json!(null), json!(1.0e9)] {
            let answer = ask(path, &own(version.clone(), list, of, &json!(1)));
            is_refused(&answer, &format!("{path} of version {version}"));
            assert!(answer.text.contains("another version"), "{}", answer.text);
        }
        let all = LISTS.iter().chain(&CONSUMERS).map(|(_, name, _)| *name);
        for other in all.filter(|name| *name != list) {
            let answer = ask(path, &own(1.into(), other, of, &json!(1)));
            is_refused(&answer, &format!("{path} of {other}"));
            assert!(answer.text.contains("another list"), "{}", answer.text);
        }
        let answer = ask(path, &own(1.into(), list, "b", &json!(1)));
        is_refused(&answer, &format!("{path} of another outbox"));
        assert!(answer.text.contains("another outbox"), "{}", answer.text);
        let right = own(1.into(), list, of, &json!(1));
        for text in [
            "A".repeat(5_000),
            "%F0%9F%99%82".to_owned(),
            "AAAA====".to_owned(),
            "*".repeat(100),
            URL_SAFE_NO_PAD.encode([0; 6]),
            URL_SAFE_NO_PAD.encode(b"{\"v\":1}"),
            forged(&json!([])),
            forged(&json!({})),
            forged(&json!(0)),
            right[..right.len() - 4].to_owned(),
            format!("{right}AAAA"),
            right.to_ascii_uppercase(),
            STANDARD.encode(URL_SAFE_NO_PAD.decode(&right).expect("ours")).replace('+', "%2B"),
            URL_SAFE.encode(b"short"),
        ] {
            // Texts in which only the padding differs from ours may be ours.
            if text.trim_end_matches('=') != right {
                is_refused(&ask(path, &text), &format!("{path} {}", &text[..text.len().min(60)]));
            }
        }
        let twice = get(&format!("{path}?cursor={right}&cursor={right}"));
        assert_eq!((twice.status, twice.code().as_str()), (400, "api.bad_query"), "{path}");
    }
}

/// Whoever makes one up sees what their token shows them anyway: a place beyond the list is an empty page.
#[test]
fn a_place_beyond_the_list_is_an_empty_page_and_no_error() {
    let rig = Rig::start("");
    for at in [i64::MIN, -1, 0, i64::MAX] {
        for (list, members) in [("events", "events"), ("dead", "dead"), ("jobs", "jobs")] {
            let place = if list == "dead" { json!(at.max(0).to_string()) } else { json!(at) };
            let cursor = forged(&json!({ "v": 1, "list": list, "of": "a", "at": place }));
            let page = rig.get(&format!("/outboxes/a/{list}?cursor={cursor}"), &rig.admin).ok();
            assert!(page[members].is_array(), "{list} at {at}: {page}");
        }
        let cursor = forged(&json!({ "v": 1, "list": "deferred", "of": "a", "at": ["nothing", at] }));
        rig.get(&format!("/outboxes/a/deferred?cursor={cursor}"), &rig.admin).ok();
        let cursor = forged(&json!({ "v": 1, "list": "audit", "of": "*", "at": { "a": at, "nothing": at } }));
        rig.get(&format!("/audit?cursor={cursor}"), &rig.admin).ok();
    }
    // A place in another outbox opens nothing of it.
    let cursor = forged(&json!({ "v": 1, "list": "audit", "of": "*", "at": { "a": i64::MAX } }));
    let page = rig.get(&format!("/audit?cursor={cursor}"), &rig.other).ok();
    assert!(!page.to_string().contains("\"a\""), "{page}");
}
