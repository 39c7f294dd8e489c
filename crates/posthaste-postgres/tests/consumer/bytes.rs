//! Whatever a stranger sends comes back as it was, in the letter and after it.

use crate::failing::{PATIENCE, work_with};
use crate::fixture::{InboxFixture, actor};
use crate::life::Effects;
use bytes::Bytes;
use posthaste::admin::{DeadAct, DeadFilter};
use posthaste::consumer::admin::{ConsumerAdmin, ConsumerLetter};
use posthaste::consumer::letter::DeadLetterTopic;
use posthaste::consumer::store::{Burial, DeferOrBury, InboxStore, MessageOutcome, SetAside, Work};
use posthaste::consumer::{Disposition, Failure, FailureKind, Filter};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::Partition;
use posthaste_postgres::consumer::{InboxOptions, PostgresInbox};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use std::sync::Arc;
use uuid::Uuid;

fn bury() -> DeferOrBury {
    let failure = Failure::new(FailureKind::Error, "a\0b", "it\0failed\nin two lines")
        .with_stack(Some("at\0one\nat two".to_owned()));
    DeferOrBury::Bury(Burial {
        letter: Uuid::now_v7(),
        disposition: Disposition::Exhausted,
        failure,
        holds_key: false,
    })
}

/// F71, F86: nothing in a message keeps it from being written down as dead.
#[tokio::test(flavor = "multi_thread")]
async fn f71_every_message_can_be_a_letter_byte_for_byte() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Effects).await;
    let large = vec![b'x'; 5 << 20];
    let payloads: [Option<&[u8]>; 6] = [
        Some(br#"{"a": "\u0000"}"#),
        Some(b"\xff\xfe\x00"),
        Some(b""),
        None,
        Some(&large),
        Some(b"{not json"),
    ];
    let admin = fixture.admin().await;
    for (position, payload) in payloads.into_iter().enumerate() {
        let work = work_with(position as i64, payload);
        let mut delivery = (*work.delivery).clone();
        delivery.message.headers = vec![("tenant".to_owned(), bytes::Bytes::from_static(b"7"))];
        let work = Work { delivery: Arc::new(delivery), ..work };
        let kept = inbox.defer(None, &[work], &bury()).await.expect("buried");
        assert_eq!(kept.outcomes, [SetAside::Kept]);
        let letters = admin.letter("billing", &format!("m{position}")).await.expect("shown");
        assert_eq!(letters.len(), 1);
        assert!(letters[0].payload.as_deref() == payload, "message {position}");
        assert_eq!(letters[0].error, "it\u{fffd}failed\nin two lines");
    }
    assert_eq!(admin.letter_count("billing", &DeadFilter::default()).await.expect("counted"), 6);
    let found = async |filter: DeadFilter| admin.letter_count("billing", &filter).await.expect("counted");
    let error = |text: &str| DeadFilter { error: Some(text.to_owned()), ..DeadFilter::default() };
    assert_eq!((found(error("failed")).await, found(error("%")).await), (6, 0));
    let shown = admin.letter("billing", "m0").await.expect("shown").remove(0);
    let of = |class: &str| DeadFilter { class: Some(class.to_owned()), ..DeadFilter::default() };
    assert_eq!((found(of(&shown.error_class)).await, found(of("x")).await), (6, 0));
    let header = |name: &str, value: Option<&str>| DeadFilter {
        header: Some(name.to_owned()),
        header_value: value.map(str::to_owned),
        holds_key: Some(false),
        replayed: Some(false),
        ..DeadFilter::default()
    };
    assert_eq!((found(header("tenant", None)).await, found(header("tenant", Some("7"))).await), (6, 6));
    assert_eq!((found(header("tenant", Some("8"))).await, found(header("7", None)).await), (0, 0));
    let causes = admin.letter_causes("billing", &DeadFilter::default(), 10).await.expect("listed");
    assert_eq!(causes.iter().map(|cause| cause.count).collect::<Vec<_>>(), [6], "one cause");
}

async fn telling(fixture: &InboxFixture) -> PostgresInbox {
    let topic =
        DeadLetterTopic { topic: "sys.deadletter.v1".to_owned(), key: Some("{partition}".to_owned()) };
    let options = InboxOptions { dead_letters: Some(topic), ..InboxOptions::new("billing") };
    let handlers: posthaste_postgres::consumer::Handlers = vec![(Filter::default(), Arc::new(Effects))];
    PostgresInbox::connect(fixture.config(), options, handlers).await.expect("the inbox connects")
}

/// F60: a message that dies, is published as a dead letter, sent back with everything it carries by then, and
/// dies again, has an event of the same size each time.
#[tokio::test(flavor = "multi_thread")]
async fn f60_three_rounds_of_dying_have_the_same_size() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = telling(&fixture).await;
    let mut work = work_with(1, Some(b"{}"));
    let mut sizes = Vec::new();
    for round in 0..3 {
        assert_eq!(
            inbox.defer(None, &[work.clone()], &bury()).await.expect("buried").outcomes,
            [SetAside::Kept]
        );
        let sql = "select key, octet_length(headers::text), headers::text, payload from posthaste.outbox
                    order by seq desc limit 1";
        let row = &fixture.rows(sql, &[]).await[0];
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &[u8]>(3)), ("0", &b"{}"[..]));
        sizes.push(row.get::<_, i32>(1));
        // Somebody's tool sends it back with the headers of the dead-letter topic, from another position.
        let headers: std::collections::BTreeMap<String, String> =
            serde_json::from_str(row.get(2)).expect("headers");
        let mut delivery = (*work.delivery).clone();
        delivery.position = Some(100 + round);
        delivery.message.headers =
            headers.into_iter().map(|(name, value)| (name, bytes::Bytes::from(value))).collect();
        work = Work { delivery: Arc::new(delivery), ..work };
        let applied = inbox.apply(None, &[work.clone()], PATIENCE).await.expect("redriven");
        assert_eq!(applied.outcomes, [MessageOutcome::Redriven]);
        let sent_again = inbox.apply(None, &[work.clone()], PATIENCE).await.expect("applied");
        assert_eq!(sent_again.outcomes, [MessageOutcome::Duplicate], "its redelivery is no redrive");
        fixture.run("delete from posthaste.inbox_deferred; delete from posthaste.inbox").await;
    }
    let digits = |size: i32| sizes[0].abs_diff(size) <= 4;
    assert!(sizes.iter().all(|size| digits(*size)), "the position may have more digits: {sizes:?}");
}

/// F58, F59: what people do is audited, and of two that do it one wins.
#[tokio::test(flavor = "multi_thread")]
async fn g6_letters_leave_by_audited_acts_alone() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Effects).await;
    for position in 0..5 {
        inbox.defer(None, &[work_with(position, Some(b"{}"))], &bury()).await.expect("buried");
    }
    let admin = fixture.admin().await;
    let nothing = admin.letter_act("billing", &DeadFilter::default(), DeadAct::Discard, &actor(), 9).await;
    assert_eq!(nothing.expect_err("an empty filter").code(), "admin.empty_filter");
    let page = admin.letters("billing", &DeadFilter::default(), None, 3).await.expect("a page");
    let rest =
        admin.letters("billing", &DeadFilter::default(), Some(page[2].letter), 3).await.expect("a page");
    assert_eq!((page.len(), rest.len()), (3, 2));
    let newest = admin.letters_newest("billing", &DeadFilter::default(), None, 3).await.expect("a page");
    let older = admin.letters_newest("billing", &DeadFilter::default(), Some(newest[2].letter), 3).await;
    let ids = |letters: &[ConsumerLetter]| letters.iter().map(|one| one.letter).collect::<Vec<_>>();
    let mut backwards = [ids(&newest), ids(&older.expect("a page"))].concat();
    backwards.reverse();
    assert_eq!(backwards, [ids(&page), ids(&rest)].concat());
    let first = DeadFilter { ids: vec![page[0].letter], ..DeadFilter::default() };
    assert_eq!(admin.letter_act("billing", &first, DeadAct::Replay, &actor(), 9).await.expect("replayed"), 1);
    let key = DeadFilter { key: Some("k1".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.letter_act("billing", &key, DeadAct::Discard, &actor(), 9).await.expect("discarded"), 1);
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    assert_eq!(admin.letter_act("billing", &all, DeadAct::Replay, &actor(), 2).await.expect("replayed"), 2);
    let audit = fixture.rows("select action from posthaste.audit order by id", &[]).await;
    let actions: Vec<String> = audit.iter().map(|row| row.get(0)).collect();
    assert_eq!(actions, ["replay", "discard", "replay"]);
    assert_eq!(fixture.letters("billing").await.len(), 1);
    let trace = admin.trace("m0").await.expect("traced");
    let found = (trace.len(), trace[0].outcome.as_deref());
    assert_eq!(found, (1, Some("w")), "no partition was ever taken, and its mark is found all the same");
    assert_eq!(trace[0].deferred.as_ref().map(|deferred| &*deferred.reason), Some("replayed"));
    inbox.take(&[Partition::new("orders", 0)], "one").await.expect("taken");
    let status = admin.consumers(Some("billing")).await.expect("a status");
    assert_eq!((status[0].deferred.count, status[0].dead.count, status[0].partitions.len()), (3, 1, 1));
}

/// What an operator leaves out of a message that is handled again is gone, of a letter and of a copy, and the
/// audit says so. What it is known by stays, and so does everything without a list.
#[tokio::test(flavor = "multi_thread")]
async fn g6_headers_that_are_dropped_at_a_replay_are_audited() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Effects).await;
    let with_headers = |position| {
        let mut work = work_with(position, Some(b"{}"));
        let headers = &mut Arc::make_mut(&mut work.delivery).message.headers;
        *headers = ["Message-ID", "saga-id", "X-Debug", "x-trace", "note"]
            .map(|name| (name.to_owned(), Bytes::from_static(b"v")))
            .into();
        work
    };
    let admin = fixture.admin().await;
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    let drop = KeptHeaders::but(&["x-*".to_owned()], &[]).expect("a list");
    let keep = KeptHeaders::only(&["note".to_owned()], &[]).expect("a list");
    let every = KeptHeaders::default();
    let rest = ["Message-ID", "saga-id", "note"];
    let cases = [
        (&drop, &rest[..]),
        (&keep, &rest),
        (&every, &["Message-ID", "saga-id", "X-Debug", "x-trace", "note"]),
    ];
    inbox.take(&[Partition::new("orders", 0)], "one").await.expect("taken");
    fixture.run("update posthaste.inbox_partitions set position = 1000").await;
    let names =
        "select array(select h ->> 0 from jsonb_array_elements(headers) h) from posthaste.inbox_deferred";
    for (position, (headers, expected)) in (0..).zip(cases) {
        for is_letter in [true, false] {
            let work = with_headers(position);
            if is_letter {
                inbox.defer(None, &[work], &bury()).await.expect("buried");
                assert_eq!(
                    admin.replay_letters("billing", &all, headers, &actor(), 9).await.expect("replayed"),
                    1
                );
            } else {
                let copied = admin.copy_range("billing", &[work], true, headers, &actor()).await;
                assert_eq!(copied.expect("copied"), 1);
            }
            let found: Vec<Vec<String>> =
                fixture.rows(names, &[]).await.iter().map(|row| row.get(0)).collect();
            assert_eq!(found, [expected], "{headers:?}, a letter: {is_letter}");
            let audit =
                "select detail -> 'headers' ->> 'drop', detail -> 'headers' ->> 'keep' from posthaste.audit
                          order by id desc limit 1";
            let audit = &fixture.rows(audit, &[]).await[0];
            let said: [Option<String>; 2] = [audit.get(0), audit.get(1)];
            let expected = headers.audited().map(|said| [said["drop"].clone(), said["keep"].clone()]);
            let expected =
                expected.unwrap_or_default().map(|list| (!list.is_null()).then(|| list.to_string()));
            assert_eq!(said, expected);
            fixture.run("delete from posthaste.inbox_deferred; delete from posthaste.inbox").await;
        }
    }
}
