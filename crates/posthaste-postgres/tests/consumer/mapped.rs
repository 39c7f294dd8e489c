//! Tables that a service has already: what is written there, and when.

use crate::failing::{PATIENCE, work, work_with};
use crate::fixture::{InboxFixture, actor};
use crate::life::Effects;
use bytes::Bytes;
use posthaste::admin::{DeadAct, DeadFilter};
use posthaste::clock::SystemClock;
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::store::{
    Burial, ConsumerRetention, DeferOrBury, DueHeads, InboxError, InboxStore, MessageOutcome, SavedPosition,
    SetAside, Work,
};
use posthaste::consumer::{
    ConsumerPlan, ConsumerRetry, ConsumerSettings, Disposition, Failure, FailureKind, Filter, start,
};
use posthaste::event::TYPE_HEADER;
use posthaste::relay::DrainOutcome;
use posthaste::sink::Level;
use posthaste::source::{Partition, Received, StartFrom};
use posthaste::store::StoreError;
use posthaste_postgres::consumer::mapped::{self, Traceability};
use posthaste_postgres::consumer::{InboxOptions, InboxTables, PostgresInbox, TablePreset};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::conformance::eventually;
use std::sync::Arc;
use uuid::Uuid;

const PHOENIX: InboxTables = InboxTables::Preset(TablePreset::Phoenix);
const EVENT_IDS: InboxTables = InboxTables::Preset(TablePreset::ProcessedEventIds);

/// Two consumers may share these.
fn suffixed() -> InboxTables {
    let mut mapping = PHOENIX.mapping().expect("mapped");
    mapping.traceability = Some(Traceability { suffix: true, ..Traceability::default() });
    InboxTables::Mapping(Box::new(mapping))
}

async fn shared() -> Option<InboxFixture> {
    InboxFixture::mapped(suffixed()).await
}

// Of the suite what marks have a part in, but for their purge: they belong to the service.
posthaste_testkit::__conformance_tests!(consumer, [shared, tokio::test(flavor = "multi_thread")],
    g5_the_first_runs_and_every_copy_is_a_duplicate
    g5_a_batch_is_one_transaction
    g5_a_message_twice_in_a_batch_runs_once
    g5_members_that_race_do_each_message_once
    g5_consumers_share_nothing
    f68_a_failure_names_its_message_and_its_kind
    g3_a_batch_runs_in_its_order
    g3_nothing_of_a_held_key_runs_and_others_do
    g3_a_message_without_a_key_is_never_held
    g6_a_deferred_message_has_its_mark_and_a_copy
    g6_what_has_its_mark_is_not_set_aside_again
    g3_followers_run_behind_their_head
    g3_behind_a_hold_that_is_gone_is_free
    g3_behind_a_message_that_is_done_is_free
    g6_a_burial_has_its_mark_and_a_letter
    g3_a_dead_letter_holds_its_key_when_asked
    f86_whatever_a_failure_says_can_be_written_down
    attempts_and_history_grow_until_a_message_dies
    g3_after_a_death_the_followers_run_or_wait
    g5_what_no_handler_takes_any_more_is_a_dead_letter
    g5_two_looks_at_once_do_each_message_once
    f57_a_replayed_letter_returns_to_its_place
    f59_of_two_replays_one_wins
    a_replay_starts_again_and_keeps_its_history
    a_discard_lets_the_key_go_on
    g6_a_letter_that_is_sent_back_is_handled_again
    a_redelivery_of_a_dead_letter_changes_nothing
    a_repeat_is_done_once_more_and_its_mark_stays
    a_repeat_that_dies_has_a_letter_and_its_mark_stays
    a_repeat_that_dies_again_has_one_letter
    rows_of_a_range_are_a_queue_of_their_own
    f26_of_two_positions_the_higher_one_stays
    a_seek_is_not_undone_by_an_older_save
    letters_are_purged_when_declared_and_their_keys_go_on
);

/// The same message at another position.
fn copy_of(work: &Work, position: i64) -> Work {
    let mut delivery = (*work.delivery).clone();
    (delivery.position, delivery.ticket.number) = (Some(position), position);
    Work { delivery: Arc::new(delivery), ..work.clone() }
}

fn with_id(work: &Work, id: &str) -> Work {
    Work { id: id.into(), ..work.clone() }
}

fn with_header(work: &Work, name: &str, value: &str) -> Work {
    let mut delivery = (*work.delivery).clone();
    delivery.message.headers.push((name.to_owned(), Bytes::from(value.to_owned())));
    Work { delivery: Arc::new(delivery), ..work.clone() }
}

fn bury(letter: Uuid) -> DeferOrBury {
    let failure =
        Failure::new(FailureKind::Error, "sqlstate.23505", "it failed").with_stack(Some("line 7".into()));
    DeferOrBury::Bury(Burial { letter, disposition: Disposition::Exhausted, failure, holds_key: false })
}

impl InboxFixture {
    async fn apply(&self, inbox: &PostgresInbox, batch: &[Work]) -> Vec<MessageOutcome> {
        inbox.apply(None, batch, PATIENCE).await.expect("applied").outcomes
    }

    /// One text a row.
    async fn lines(&self, sql: &str) -> Vec<String> {
        self.rows(sql, &[]).await.iter().map(|row| row.get(0)).collect()
    }

    async fn traces(&self) -> Vec<String> {
        self.lines(
            "select concat_ws(' ', kafka_message_id, status, topic || '/' || partition || '@' || \"offset\",
                           consumer_group, saga_correlation_id)
                      from sys.message_traceability order by 1",
        )
        .await
    }

    async fn refused(&self, consumer: &str, tables: &InboxTables) -> String {
        let options = InboxOptions { tables: tables.clone(), ..InboxOptions::new(consumer) };
        let handlers: posthaste_postgres::consumer::Handlers = vec![(Filter::default(), Arc::new(Effects))];
        match PostgresInbox::connect(self.config(), options, handlers).await {
            Err(StoreError::Fatal { message, .. }) => message,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it was not refused"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_has_a_row_that_says_what_became_of_it() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    let saga = Uuid::now_v7();
    let first = with_header(&work_with(0, Some(b"{}")), "Saga-Id", &saga.to_string());
    let odd = with_header(&work_with(1, Some(b"{}")), "saga-id", "none of ours");
    let batch = [first.clone(), odd.clone(), copy_of(&first, 5)];
    let done = [MessageOutcome::Done, MessageOutcome::Done, MessageOutcome::Duplicate];
    assert_eq!(fixture.apply(&inbox, &batch).await, done);
    // Redeliveries, of the copy too, add nothing.
    assert_eq!(fixture.apply(&inbox, &batch).await, [MessageOutcome::Duplicate; 3]);
    assert_eq!(fixture.apply(&inbox, &[copy_of(&odd, 6)]).await, [MessageOutcome::Duplicate]);
    inbox.trace_skipped(&[work_with(7, None), work_with(8, None), odd.clone()]).await.expect("written");
    assert!(inbox.traces_skipped());
    let place = |row: &str, position: i64| {
        let topic = &first.delivery.partition().topic;
        format!("{row} {topic}/0@{position} billing")
    };
    let topic = &first.delivery.partition().topic;
    assert_eq!(
        fixture.traces().await,
        [
            format!("{} {saga}", place("m0 PROCESSED", 0)),
            format!("{} {saga}", place(&format!("m0#{topic}/0@5 DUPLICATE"), 5)),
            place("m1 PROCESSED", 1),
            place(&format!("m1#{topic}/0@6 DUPLICATE"), 6),
            place("m7 SKIPPED", 7),
            place("m8 SKIPPED", 8),
        ]
    );
    assert_eq!(
        fixture.lines("select request_key from sys.request_keys order by 1").await,
        ["billing:m0", "billing:m1"]
    );
    assert!(fixture.lines("select message_id from posthaste.inbox").await.is_empty());
    // Never purged by us.
    fixture.run("update sys.request_keys set created_at = now() - interval '1 year'").await;
    let swept =
        inbox.sweep(ConsumerRetention { marks_days: 1, dead_letter_days: 0 }, 10).await.expect("swept");
    assert_eq!(swept.marks, 0);
    assert_eq!(fixture.apply(&inbox, &[odd]).await, [MessageOutcome::Duplicate]);
}

/// The seed's own test: malformed JSON is in `sys.dead_letters`, and the next message is handled.
#[tokio::test(flavor = "multi_thread")]
async fn f71_poison_is_a_dead_letter_for_people_and_the_next_message_is_handled() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    inbox.take(&[Partition::new("orders", 0)], "me").await.expect("taken");
    let large = vec![b'x'; 2 << 20];
    let payloads: [(Option<&[u8]>, &str); 7] = [
        (Some(br#"{"a": 1}"#), r#"{"a": 1}"#),
        (Some(b"{not json"), "invalid input syntax for type json"),
        (Some(br#"{"a": "\u0000"}"#), "unsupported Unicode escape sequence"),
        (Some(b"\xff\xfe\x00"), "invalid byte sequence for encoding"),
        (Some(b""), "invalid input syntax for type json"),
        (Some(&large), "invalid input syntax for type json"),
        (None, r#"{"posthaste": {"encoding": "none"}}"#),
    ];
    let mut letters = Vec::new();
    for (position, (payload, _)) in payloads.iter().enumerate() {
        let work = with_header(&work_with(position as i64, *payload), "tenant", "t\0");
        let letter = Uuid::now_v7();
        letters.push(letter);
        inbox.defer(None, &[work], &bury(letter)).await.expect("buried");
    }
    assert_eq!(fixture.apply(&inbox, &[work_with(9, Some(b"{}"))]).await, [MessageOutcome::Done]);
    let rows = fixture
        .rows(
            "select id, coalesce(payload #>> '{posthaste,why}', payload::text), payload ->> 'data',
                                    exception_class, exception_message, replay_status, original_offset,
                                    headers -> 'tenant' ->> 'base64'
                               from sys.dead_letters order by original_offset",
            &[],
        )
        .await;
    for ((row, letter), (payload, said)) in rows.iter().zip(&letters).zip(payloads) {
        assert_eq!(row.get::<_, Uuid>(0), *letter);
        assert!(row.get::<_, &str>(1).starts_with(said), "{} instead of {said}", row.get::<_, &str>(1));
        if let (Some(data), Some(payload)) = (row.get::<_, Option<String>>(2), payload) {
            let decoded = fixture.rows("select decode($1, 'base64')", &[&data]).await;
            assert!(decoded[0].get::<_, &[u8]>(0) == payload && !data.contains('\n'));
        }
        assert_eq!((row.get::<_, &str>(3), row.get::<_, &str>(4)), ("sqlstate.23505", "it failed\nline 7"));
        assert_eq!((row.get::<_, &str>(5), row.get::<_, &str>(7)), ("PENDING", "dAA="));
    }
    assert_eq!(rows.len(), 7);
    assert_eq!(fixture.traces().await.iter().filter(|line| line.contains(" DLQ ")).count(), 7);

    // What people do shows, and what is done in the end is no dead letter any more.
    let admin = fixture.admin().await;
    for (act, letter) in [(DeadAct::Replay, letters[0]), (DeadAct::Discard, letters[1])] {
        let filter = DeadFilter { ids: vec![letter], ..DeadFilter::default() };
        assert_eq!(admin.letter_act("billing", &filter, act, &actor(), 10).await.expect("done"), 1);
    }
    let states =
        fixture.lines("select replay_status from sys.dead_letters order by original_offset limit 3").await;
    assert_eq!(states, ["REPLAYED", "ARCHIVED", "PENDING"]);
    assert_eq!(inbox.apply_deferred(&heads()).await.expect("a look").done(), 1);
    let traces = fixture.traces().await;
    assert!(traces[0].starts_with("m0 PROCESSED") && traces[1].starts_with("m1 DLQ"), "{traces:?}");
    let outcome = |id| {
        let admin = &admin;
        async move { admin.trace(id).await.expect("traced").remove(0).outcome }
    };
    assert_eq!((outcome("m0").await.as_deref(), outcome("m2").await.as_deref()), (Some("d"), Some("x")));
    // Nobody reads them back: what is changed by hand does nothing.
    fixture.run("update sys.dead_letters set replay_status = 'REPLAYED'").await;
    assert_eq!(admin.letter_count("billing", &DeadFilter::default()).await.expect("counted"), 5);
}

fn heads() -> DueHeads {
    DueHeads {
        messages_max: 64,
        handler_time_max: PATIENCE,
        handler_timeout: PATIENCE,
        retry: ConsumerRetry::default(),
        dead_hold: false,
        unavailable_pause: PATIENCE,
        careful: false,
        chance: 0.0,
    }
}

/// The engine tells the store what it skips, before the position goes past it.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_handler_takes_is_skipped_and_has_its_row() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let broker = MemoryBroker::new(BrokerKind::Log, 100);
    broker.declare("orders", 1);
    for (id, kind) in [("a", "made"), ("b", "seen"), ("c", "seen"), ("d", "made")] {
        let headers = vec![(TYPE_HEADER.to_owned(), Bytes::from_static(kind.as_bytes()))];
        broker.publish("orders", Received { id: Some(id.to_owned()), headers, ..Received::default() });
    }
    let options = InboxOptions { tables: PHOENIX, ..InboxOptions::new("billing") };
    let handlers: posthaste_postgres::consumer::Handlers = vec![(Filter::types(["made"]), Arc::new(Effects))];
    let inbox = PostgresInbox::connect(fixture.config(), options, handlers).await.expect("connects");
    let source = broker.join("billing", "orders", "me", StartFrom::Earliest, PATIENCE);
    let (_settings, settings) = tokio::sync::watch::channel(ConsumerSettings::default());
    let plan = ConsumerPlan::new("billing", Arc::new(source), Arc::new(inbox));
    let consumer = start(plan, settings, Arc::new(SystemClock));
    let log = "select committed_offset::text from sys.consumer_offsets_log";
    let saved = || async { (fixture.lines(log).await == ["4"]).then_some(()) };
    eventually("the position", PATIENCE, saved).await;
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    let rows = "select kafka_message_id || ' ' || status from sys.message_traceability order by 1";
    assert_eq!(fixture.lines(rows).await, ["a PROCESSED", "b SKIPPED", "c SKIPPED", "d PROCESSED"]);
    assert_eq!(
        fixture.lines("select request_key from sys.request_keys order by 1").await,
        ["billing:a", "billing:d"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_are_written_as_the_next_to_read() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    let partition = Partition::new("orders", 3);
    let taking = inbox.take(std::slice::from_ref(&partition), "me").await.expect("taken");
    let log = "select concat_ws(' ', consumer_group, topic, partition, committed_offset) from sys.consumer_offsets_log";
    let save = async |position| {
        let saved = SavedPosition {
            partition: partition.clone(),
            position,
            position_time: None,
            log_id: None,
            in_hand: None,
            seeks: 0,
            release: false,
        };
        inbox.save("me", taking.witness, &[saved], None).await.expect("saved");
    };
    save(None).await;
    assert!(fixture.lines(log).await.is_empty(), "nothing is decided yet");
    save(Some(7)).await;
    save(Some(5)).await;
    assert_eq!(fixture.lines(log).await, ["billing orders 3 7"]);
    fixture.admin().await.seek("billing", &partition, 2, None, &actor()).await.expect("moved");
    assert_eq!(fixture.lines(log).await, ["billing orders 3 2"]);
    save(Some(9)).await;
    assert_eq!(fixture.lines(log).await, ["billing orders 3 2"], "an older save undoes no seek");
}

/// A key of the service's own API may look like a message's id.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_key_of_an_api_is_no_mark() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    fixture.run("insert into sys.request_keys values ('m0')").await;
    let work = work_with(0, Some(b"{}"));
    assert_eq!(fixture.apply(&inbox, std::slice::from_ref(&work)).await, [MessageOutcome::Done]);
    assert_eq!(fixture.apply(&inbox, &[work]).await, [MessageOutcome::Duplicate]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_consumer_is_refused_where_rows_could_not_be_told_apart() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    let why = fixture.refused("audit", &PHOENIX).await;
    assert!(why.contains("sys.message_traceability belongs to the consumer `billing`"), "{why}");
    assert!(why.contains("`suffix = true`"), "{why}");
    fixture.with(Effects).await;
    // With a suffix both write.
    let options = InboxOptions { tables: suffixed(), ..InboxOptions::new("audit") };
    let handlers: posthaste_postgres::consumer::Handlers = vec![(Filter::default(), Arc::new(Effects))];
    let audit = PostgresInbox::connect(fixture.config(), options, handlers).await.expect("connects");
    for inbox in [&inbox, &audit] {
        assert_eq!(fixture.apply(inbox, &[work_with(0, Some(b"{}"))]).await, [MessageOutcome::Done]);
    }
    let ids = fixture.lines("select kafka_message_id from sys.message_traceability order by 1").await;
    assert_eq!(ids, ["m0", "m0#audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_is_a_hash_or_refused_and_never_cut() {
    let Some(fixture) = InboxFixture::mapped(PHOENIX).await else { return };
    let inbox = fixture.with(Effects).await;
    let long = "é".repeat(250);
    let longer = with_id(&work_with(1, Some(b"{}")), &format!("{long}abcdef"));
    let first = with_id(&work_with(0, Some(b"{}")), &long);
    let batch = [first, longer];
    assert_eq!(fixture.apply(&inbox, &batch).await, [MessageOutcome::Done; 2]);
    assert_eq!(fixture.apply(&inbox, &batch).await, [MessageOutcome::Duplicate; 2]);
    // The longer one, and the shorter one with what makes it a key or a copy of it.
    assert_eq!(fixture.apply(&inbox, &[copy_of(&batch[0], 5)]).await, [MessageOutcome::Duplicate]);
    let ids = "select kafka_message_id from sys.message_traceability where kafka_message_id like 'sha256:%'";
    assert_eq!(fixture.lines(ids).await.len(), 2);
    let keys = "select request_key from sys.request_keys where request_key like 'sha256:%'";
    assert_eq!(fixture.lines(keys).await.len(), 2);

    let topic = Partition::new("t".repeat(101), 0);
    let refused = inbox.take(&[topic], "me").await.expect_err("refused");
    assert!(
        matches!(&refused, InboxError::Broken(why) if why.contains("longer than 100 characters")),
        "{refused}"
    );
    assert!(
        fixture.lines("select topic from posthaste.inbox_partitions").await.is_empty(),
        "nothing was taken"
    );
    let why = fixture.refused(&"g".repeat(101), &PHOENIX).await;
    assert!(why.contains("the group `ggg") && why.contains("never cut"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_told_before_anything_is_taken() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let config = fixture.config();
    let examine = || mapped::examine(&config, &PHOENIX, "billing", "billing");
    let why = fixture.refused("billing", &PHOENIX).await;
    assert!(
        why.contains("there is no table sys.request_keys here; `posthaste consumers sql` prints it"),
        "{why}"
    );
    let sql = mapped::sql(&PHOENIX, &posthaste_postgres::migrate::Roles::default()).expect("text");
    // Where the extension is missing, the server's own function will do.
    let sql = sql.replace("create extension if not exists \"uuid-ossp\";", "");
    fixture.run(&sql.replace("uuid_generate_v4()", "gen_random_uuid()")).await;
    assert_eq!(examine().await[0].level, Level::Ok, "{:?}", examine().await);
    for (change, back, said) in [
        (
            "alter table sys.request_keys add tenant text not null",
            "alter table sys.request_keys drop tenant",
            "column `tenant` of sys.request_keys is NOT NULL, has no default and is not mapped",
        ),
        (
            "alter table sys.request_keys rename created_at to made_at",
            "alter table sys.request_keys rename made_at to created_at",
            "sys.request_keys has no column `created_at`; it has request_key, made_at",
        ),
        (
            "alter table sys.request_keys drop constraint request_keys_pkey",
            "alter table sys.request_keys add primary key (request_key)",
            "`request_key` is not unique in sys.request_keys",
        ),
        (
            "alter table sys.message_traceability alter \"offset\" type integer",
            "alter table sys.message_traceability alter \"offset\" type bigint",
            "column `offset` of sys.message_traceability is integer, and must hold a bigint",
        ),
        (
            "alter table sys.consumer_offsets_log drop constraint consumer_offsets_log_pkey, add unique (topic)",
            "alter table sys.consumer_offsets_log add primary key (consumer_group, topic, partition)",
            "`consumer_group, topic, partition` is not unique in sys.consumer_offsets_log",
        ),
        (
            "alter table sys.dead_letters alter payload type text using payload::text",
            "alter table sys.dead_letters alter payload type jsonb using payload::jsonb",
            "column `payload` of sys.dead_letters is text, and must hold jsonb",
        ),
    ] {
        fixture.run(change).await;
        let why = fixture.refused("billing", &PHOENIX).await;
        assert!(why.contains(said) && why.contains("Nothing was taken"), "{why}");
        let finding = examine().await.remove(0);
        assert_eq!(finding.check, "mapped_tables");
        assert!(finding.level == Level::Fail && finding.text.contains(said), "{finding:?}");
        fixture.run(back).await;
    }
    let mut fixture = fixture;
    fixture.tables = PHOENIX;
    let inbox = fixture.with(Effects).await;
    assert!(inbox.apply(None, &[work_with(0, Some(b"{}"))], PATIENCE).await.is_ok());
}

/// A table of event ids, by text or by uuid, has the marks and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn event_ids_are_marks() {
    let Some(fixture) = InboxFixture::mapped(EVENT_IDS).await else { return };
    for (round, change) in [
        "",
        "drop table processed_event_ids;
        create table processed_event_ids (event_id uuid primary key, at timestamptz not null default now())",
    ]
    .iter()
    .enumerate()
    {
        fixture.run(change).await;
        let inbox = fixture.with(Effects).await;
        let id = Uuid::now_v7().to_string();
        let work = with_id(&work_with(0, Some(b"{}")), &id);
        let odd = with_id(&work_with(1, Some(b"{}")), &format!("no uuid {round}"));
        let batch = [work, odd];
        assert_eq!(fixture.apply(&inbox, &batch).await, [MessageOutcome::Done; 2]);
        assert_eq!(fixture.apply(&inbox, &batch).await, [MessageOutcome::Duplicate; 2]);
        assert!(fixture.lines("select event_id::text from processed_event_ids").await.contains(&id));
        // Its dead letter lives with us.
        inbox.defer(None, &[work_with(2 + round as i64, None)], &bury(Uuid::now_v7())).await.expect("buried");
        assert!(!inbox.traces_skipped());
    }
    let why = fixture.refused("audit", &EVENT_IDS).await;
    assert!(why.contains("processed_event_ids belongs to the consumer `billing`"), "{why}");
}

/// The table is the service's, which may delete a key while the message waits, or while its letter is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_key_was_deleted_waits_and_dies_once_more() {
    let Some(fixture) = shared().await else { return };
    let inbox = fixture.with(Effects).await;
    let letters = [Uuid::now_v7(), Uuid::now_v7()];
    let defer =
        DeferOrBury::Defer { delay: PATIENCE, failure: Failure::new(FailureKind::Error, "test", "deferred") };
    for letter in letters {
        for (position, how) in [(1, bury(letter)), (2, defer.clone())] {
            let kept = inbox.defer(None, &[work(position)], &how).await.expect("set aside");
            assert_eq!(kept.outcomes, [SetAside::Kept]);
        }
        fixture.run("delete from sys.request_keys").await;
    }
    let open: Vec<Uuid> = fixture.letters("billing").await.iter().map(|open| open.letter).collect();
    assert_eq!((open, fixture.deferred("billing").await.len()), (vec![letters[1]], 1));
    let rows = fixture.rows("select replay_status from sys.dead_letters order by id", &[]).await;
    let said: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(said, ["REPLAYED", "PENDING"]);
}
