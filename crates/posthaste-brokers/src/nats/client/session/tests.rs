//! Who hears what, without a server.

use super::*;
use crate::nats::SHAPE;
use async_nats::StatusCode;
use proptest::prelude::*;
use std::task::Waker;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A session with a server that greets and says nothing more. Its inbox is `I.x.` for the tests.
pub(in crate::nats) async fn session() -> Arc<Session> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("somebody");
        stream.write_all(b"INFO {\"headers\":true}\r\nPONG\r\n").await.expect("taken");
        // Until the client goes.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let server = SHAPE.parse(&url).expect("an address").0;
    let client = async_nats::connect(url.as_str()).await.expect("connected");
    Arc::new(Session {
        info: client.server_info(),
        client,
        backlog: WriteBacklog::default(),
        is_hearsay: false,
        opened_at: Instant::now(),
        stale: Notify::new(),
        identity: "a user".to_owned(),
        server,
        inbox: "I.x.".to_owned(),
        calls: Mutex::default(),
        idle: Notify::new(),
        pongs: watch::Sender::new(0),
    })
}

fn deliver(session: &Session, subject: &str, status: Option<StatusCode>, payload: &str) {
    let message = Message {
        subject: subject.into(),
        reply: None,
        payload: payload.to_owned().into(),
        headers: None,
        status,
        description: None,
        length: 0,
    };
    let mut rung = Vec::new();
    session.deliver(&message, &mut rung);
    rung.into_iter().for_each(|mailbox| mailbox.notes.ring());
}

fn notes(registration: &Registration) -> Vec<String> {
    let mut notes = Vec::new();
    let _ = registration.poll_notes(&mut Context::from_waker(Waker::noop()), &mut notes);
    notes.iter().map(|note| format!("{note:?}")).collect()
}

const STORED: &str = r#"{"stream":"S", "seq":7}"#;

#[tokio::test]
async fn an_answer_goes_to_the_call_and_message_that_its_subject_names() {
    let session = session().await;
    let (first, second) = (session.register(1), session.register(40));
    assert_eq!((first.reply().as_str(), second.reply().as_str()), ("I.x.1-", "I.x.2-"));
    deliver(&session, "I.x.2-1f", None, STORED);
    deliver(&session, "I.x.1-0", Some(StatusCode::NO_RESPONDERS), "");
    assert_eq!(notes(&first), ["Reply(0, NoResponders)"]);
    assert_eq!(notes(&second), ["Reply(31, Stored)"]);
}

#[tokio::test]
async fn a_late_answer_and_a_strange_one_are_nobodys() {
    let session = session().await;
    drop(session.register(1));
    let open = session.register(1);
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
        "I.x.2-11111111111111111",
        "",
    ] {
        deliver(&session, subject, None, STORED);
    }
    deliver(&session, "I.x.2-0", None, r#"{"ok":true}"#);
    assert_eq!(notes(&open), [""; 0]);
    assert_eq!(session.register(1).reply(), "I.x.3-", "numbers are not used again");
}

#[tokio::test]
async fn the_end_is_told_to_everybody_and_to_whoever_comes_later() {
    let session = session().await;
    let early = session.register(1);
    session.end("gone");
    let late = session.register(1);
    for registration in [&early, &late] {
        assert_eq!(notes(registration), ["Ended(\"gone\")"]);
    }
}

#[tokio::test]
async fn whoever_is_there_or_comes_is_told_to_send_nothing_more() {
    let session = session().await;
    let early = session.register(1);
    session.leave();
    let late = session.register(1);
    deliver(&session, "I.x.1-0", None, STORED);
    assert_eq!(notes(&early), ["Leaving", "Reply(0, Stored)"]);
    assert_eq!(notes(&late), ["Leaving"]);
    drop((early, late));
    // Nobody is left, so there is nothing to wait for.
    session.until_idle().await;
}

#[tokio::test]
async fn what_the_server_does_not_allow() {
    let session = session().await;
    let call = session.register(1);
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

/// A ping that we may not send is answered all the same.
#[tokio::test]
async fn a_refused_ping_is_an_answer() {
    let session = session().await;
    let call = session.register(1);
    let mut pongs = session.pongs.subscribe();
    assert!(session.complain("Permissions Violation for Publish to \"I.x.ping\"").is_none());
    assert!(pongs.has_changed().expect("a sender"));
    pongs.mark_unchanged();
    deliver(&session, "I.x.ping", None, "");
    assert!(pongs.has_changed().expect("a sender"));
    assert_eq!(notes(&call), [""; 0]);
}

/// A call that is not polled hears of refusals of others' subjects, and of answers that come again and again.
#[tokio::test]
async fn g7_notes_have_a_bound_and_room_for_every_answer() {
    let session = session().await;
    let call = session.register(10);
    for n in 0..10_000 {
        assert!(session.complain(&format!("Permissions Violation for Publish to \"s.{n}\"")).is_none());
    }
    (0..10).for_each(|index| deliver(&session, &format!("I.x.1-{index:x}"), None, STORED));
    let heard = notes(&call);
    assert_eq!(heard.len(), 10 + SPARE_NOTES + 10);
    assert_eq!(heard.iter().filter(|note| note.starts_with("Reply")).count(), 10);
    (0..10_000).for_each(|_| deliver(&session, "I.x.1-0", None, STORED));
    assert_eq!(notes(&call).len(), 2 * (10 + SPARE_NOTES));
}

proptest! {
    /// Go's `%q`, as far as subjects need it.
    #[test]
    fn any_subject_that_is_quoted_is_read(subject in "\\PC{0,20}", escapes: bool) {
        let escape = |c: char| match c {
            '"' | '\\' => format!("\\{c}"),
            c if escapes && !c.is_ascii() => format!("\\U{:08x}", c as u32),
            c => c.to_string(),
        };
        let text: String = subject.chars().map(escape).collect();
        prop_assert_eq!(quoted(&format!("Permissions Violation for Publish to \"{text}\" and more")), Some(subject));
    }

    #[test]
    fn any_words_of_a_server_are_no_panic(text in "([\"\\\\xuU0-9a-f-]{1,9}|\\PC{1,2}){0,6}", payload: Vec<u8>, status: Option<u16>) {
        let _ = quoted(&text);
        let _ = PublishReply::read(status, &payload);
        let _ = parse(&text);
    }

    #[test]
    fn any_place_of_a_message_is_read(call: u64, index: usize) {
        prop_assert_eq!(parse(&format!("{call:x}-{index:x}")), Some((call, index)));
    }
}
