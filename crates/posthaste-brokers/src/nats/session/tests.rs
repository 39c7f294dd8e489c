//! Who hears what, without a server.

use super::*;
use std::task::Waker;

fn session() -> Arc<Session> {
    Session::new("I.x.".to_owned(), "a user".to_owned(), Info::default())
}

fn deliver(session: &Session, subject: &str, head: &str, payload: &str) {
    let mut round = Round::default();
    let (subject, head, payload) = (subject.as_bytes(), head.as_bytes(), payload.as_bytes());
    session.deliver(&Message { subject, head, payload }, &mut round);
    round.ring();
}

fn notes(registration: &Registration) -> Vec<String> {
    let mut notes = Vec::new();
    registration.take_notes(&mut notes);
    notes.iter().map(|note| format!("{note:?}")).collect()
}

const STORED: &str = r#"{"stream":"S", "seq":7}"#;

#[test]
fn an_answer_goes_to_the_call_and_message_that_its_subject_names() {
    let session = session();
    let (first, second) = (session.register(), session.register());
    assert_eq!((first.reply(), second.reply()), (b"I.x.1-".as_slice(), b"I.x.2-".as_slice()));
    deliver(&session, "I.x.2-1f", "", STORED);
    deliver(&session, "I.x.1-0", "NATS/1.0 503\r\n\r\n", "");
    assert_eq!(notes(&first), ["Answer(0, NoResponders)"]);
    assert_eq!(notes(&second), ["Answer(31, Stored)"]);
}

#[test]
fn a_late_answer_and_a_strange_one_are_nobodys() {
    let session = session();
    drop(session.register());
    let open = session.register();
    for subject in [
        "I.x.1-0",
        "I.x.3-0",
        "I.x.0-0",
        "I.x.2",
        "I.x.2-",
        "I.x.-0",
        "I.x.2-x",
        "I.x.2-0-0",
        "I.x.",
        "I.y.2-0",
        "I.x.q2",
        "I.x.q",
        "I.x.2-11111111111111111",
        "",
    ] {
        deliver(&session, subject, "", STORED);
    }
    deliver(&session, "I.x.2-0", "", r#"{"ok":true}"#);
    assert_eq!(notes(&open), [""; 0]);
    assert_eq!(session.register().reply(), b"I.x.3-", "numbers are not used again");
}

/// A mailbox that was looked up for one burst is not used for a call that ended in between.
#[test]
fn one_burst_for_two_calls_rings_each_once() {
    let session = session();
    let (first, second) = (session.register(), session.register());
    let mut round = Round::default();
    for subject in ["I.x.1-0", "I.x.1-1", "I.x.2-0", "I.x.1-2"] {
        let message = Message { subject: subject.as_bytes(), head: b"", payload: STORED.as_bytes() };
        session.deliver(&message, &mut round);
    }
    assert_eq!(round.rung.len(), 2);
    round.ring();
    assert_eq!((notes(&first).len(), notes(&second).len()), (3, 1));
}

#[test]
fn the_end_is_told_to_everybody_and_to_whoever_comes_later() {
    let session = session();
    let early = session.register();
    session.end("gone");
    let late = session.register();
    for registration in [&early, &late] {
        assert_eq!(notes(registration), ["Ended(\"gone\")"]);
    }
    assert!(session.outbox.poll_room(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn whoever_is_there_or_comes_is_told_to_send_nothing_more() {
    let session = session();
    let early = session.register();
    session.leave();
    let late = session.register();
    deliver(&session, "I.x.1-0", "", STORED);
    assert_eq!(notes(&early), ["Leaving", "Answer(0, Stored)"]);
    assert_eq!(notes(&late), ["Leaving"]);
}

#[tokio::test]
async fn questions_are_answered_denied_or_forgotten() {
    let session = session();
    let patience = Duration::from_secs(60);
    let ask = |subject: &'static str| {
        let session = Arc::clone(&session);
        tokio::spawn(async move { session.ask(subject, "{}", patience).await })
    };
    for (number, subject) in [(1, "A"), (2, "B"), (3, "C")] {
        let asked = ask(subject);
        while lock(&session.waiting).questions.is_empty() {
            tokio::task::yield_now().await; // pace
        }
        match subject {
            "A" => deliver(&session, "I.x.q1", "", "yes"),
            "B" => assert!(session.complain("Permissions Violation for Publish to \"B\"").is_none()),
            _ => deliver(&session, &format!("I.x.q{number}"), "NATS/1.0 503\r\n\r\n", ""),
        }
        let reply = asked.await.expect("no panic").expect("in time");
        let expected = ["Words([121, 101, 115])", "Denied", "Nobody"][number - 1];
        assert_eq!(format!("{reply:?}"), expected);
    }
    assert!(session.ask("D", "", Duration::from_millis(1)).await.is_none());
    assert!(lock(&session.waiting).questions.is_empty());
}

#[test]
fn what_the_server_does_not_allow() {
    let session = session();
    let call = session.register();
    assert!(session.complain("Permissions Violation for Publish to \"s.x\"").is_none());
    assert_eq!(notes(&call), ["Denied(\"s.x\")"]);
    assert!(session.complain(r#"Permissions Violation for Publish to "s.\"\\x\u200b\U000e0001ä""#).is_none());
    assert_eq!(notes(&call), [format!("Denied({:?})", "s.\"\\x\u{200b}\u{e0001}ä")]);
    let nowhere =
        session.complain("Permissions Violation for Publish with Reply of \"_R_.x\"").expect("of no use");
    assert!(nowhere.code == "nats.denied" && nowhere.message.contains("inbox_prefix"), "{nowhere:?}");
    let deaf = session.complain("Permissions Violation for Subscription to \"I.x.*\"").expect("of no use");
    assert!(deaf.code == "nats.denied" && deaf.message.contains("a user may not subscribe"), "{deaf:?}");
    for harmless in ["", "Stale Connection", "\"", "\"\\", "\"\\u12\"", "Slow Consumer \"x\""] {
        assert!(session.complain(harmless).is_none());
    }
    assert_eq!(notes(&call), [""; 0]);
}
