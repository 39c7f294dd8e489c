//! The table without a broker: what it writes is read as frames, and the broker's words are put in by hand.

use super::super::channel::CHANNELS;
use super::*;
use bytes::BytesMut;
use proptest::prelude::*;
use std::ops::Range;

const FRAME_MAX: usize = 4_096;
/// With as many channels as we like.
const TRIALS: Range<u16> = 2..5;

struct Harness {
    table: ChannelTable,
    mailbox: Arc<Mailbox<Note>>,
    call: u64,
}

impl Harness {
    fn new() -> Self {
        Self::with(CHANNELS)
    }

    fn with(channels: u16) -> Self {
        let (mut table, mailbox) = (ChannelTable::new(channels, FRAME_MAX), Arc::default());
        let call = table.register(&mailbox);
        Self { table, mailbox, call }
    }

    /// With an exchange that has proven itself.
    fn trusting(exchange: &str) -> Self {
        let mut harness = Self::new();
        harness.table.trust(exchange.to_owned());
        harness
    }

    fn submit(&mut self, index: usize, exchange: &str, routing_key: &str, bytes: usize) {
        let message = Publish {
            index,
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            id: format!("id-{index}"),
            properties: frames::Properties { message_id: &format!("id-{index}"), ..Default::default() }
                .encode(|_| {}),
            payload: vec![b'x'; bytes].into(),
        };
        self.table.submit(self.call, message);
    }

    /// What is written now.
    fn frames(&mut self) -> Vec<(u16, Heard)> {
        let mut out = Vec::new();
        self.table.fill(&mut out);
        let mut buffer = BytesMut::from(out.as_slice());
        let next = || frames::next_frame(&mut buffer, 1 << 20).expect("frames");
        std::iter::from_fn(next).collect()
    }

    /// Channels of the messages that are written now, in order.
    fn written(&mut self) -> Vec<u16> {
        let frames = self.frames();
        let headers = frames.iter().filter(|(_, heard)| matches!(heard, Heard::Header { .. }));
        headers.map(|(channel, _)| *channel).collect()
    }

    fn hear(&mut self, channel: u16, heard: Heard) {
        assert_eq!(self.table.hear(channel, heard, &mut Vec::new()), None);
    }

    fn give_back(&mut self, channel: u16, index: usize) {
        self.hear(channel, Heard::Return(close(312, "NO_ROUTE")));
        self.hear(channel, Heard::Header { size: 0, message_id: Some(format!("id-{index}")) });
    }

    fn answers(&self) -> Vec<(usize, &'static str)> {
        let mut notes = Vec::new();
        self.mailbox.take(&mut notes);
        let name = |answer: &PublishOutcome| match answer {
            PublishOutcome::Stored => "stored",
            PublishOutcome::Returned(_) => "returned",
            PublishOutcome::Nacked => "nacked",
            PublishOutcome::Closed { culprit: true, .. } => "culprit",
            PublishOutcome::Closed { culprit: false, .. } => "collateral",
            PublishOutcome::Lost { left: true, .. } => "lost",
            PublishOutcome::Lost { left: false, .. } => "not sent",
        };
        let answers = notes.iter().filter_map(|note| match note {
            Note::Outcome(index, answer) => Some((*index, name(answer))),
            Note::Ended(_) => None,
        });
        answers.collect()
    }
}

fn close(code: u16, text: &str) -> Close {
    Close { code, text: text.to_owned() }
}

fn ack(tag: u64, multiple: bool) -> Heard {
    Heard::Ack { tag, multiple }
}

#[test]
fn f43_a_return_finds_its_message_whatever_is_confirmed_first() {
    let mut harness = Harness::trusting("e");
    (0..4).for_each(|index| harness.submit(index, "e", "k", 1));
    let channel = harness.written()[0];
    harness.give_back(channel, 1);
    harness.give_back(channel, 3);
    // An older one, then everything: neither takes a return that is another's.
    harness.hear(channel, ack(1, false));
    harness.hear(channel, ack(4, true));
    let expected = [(0, "stored"), (1, "returned"), (2, "stored"), (3, "returned")];
    assert_eq!((harness.answers(), harness.table.unanswered()), (expected.to_vec(), 0));
}

#[test]
fn confirmations_out_of_turn_repeated_or_of_nothing() {
    let mut harness = Harness::trusting("e");
    (0..3).for_each(|index| harness.submit(index, "e", "k", 1));
    let channel = harness.written()[0];
    harness.hear(channel, ack(2, false));
    harness.hear(channel, ack(2, false));
    harness.hear(channel, ack(9, true));
    harness.hear(channel, ack(0, true));
    harness.hear(channel, Heard::Nack { tag: 3, multiple: false });
    assert_eq!(harness.answers(), [(1, "stored"), (2, "nacked")]);
    harness.hear(channel, ack(3, true));
    assert_eq!(harness.answers(), [(0, "stored")]);
}

#[test]
fn the_first_for_an_exchange_goes_alone_and_the_others_follow() {
    let mut harness = Harness::new();
    (0..3).for_each(|index| harness.submit(index, "e", "k", 1));
    assert_eq!(harness.written(), [TRIALS.start]);
    assert!(harness.written().is_empty(), "one at a time");
    harness.hear(TRIALS.start, Heard::QosOk);
    let channels = harness.written();
    assert_eq!(channels.len(), 2);
    assert!(channels.iter().all(|channel| *channel >= TRIALS.end), "{channels:?}");
}

/// However few channels there are, none above them is used, and everything is sent and asked in the end.
#[test]
fn the_channels_that_were_agreed_on_are_enough() {
    for channels in 1..=CHANNELS {
        let mut harness = Harness::with(channels);
        (0..40).for_each(|index| harness.submit(index, &format!("e{}", index % 4), "k", 1));
        let (answer, mut answered) = oneshot::channel();
        harness.table.ask(Question::Ping, answer);
        let mut tags: FxHashMap<u16, u64> = FxHashMap::default();
        for _ in 0..200 {
            for (channel, heard) in harness.frames() {
                assert!(channel <= channels, "{channel} of {channels}");
                match heard {
                    Heard::Header { .. } => {
                        let tag = tags.entry(channel).or_default();
                        *tag += 1;
                        harness.hear(channel, ack(*tag, false));
                    }
                    Heard::Other(60, 10) => harness.hear(channel, Heard::QosOk),
                    _ => {}
                }
            }
        }
        let answers = harness.answers();
        assert_eq!((answers.len(), harness.table.unanswered()), (40, 0), "{channels}");
        assert!(answers.iter().all(|(_, answer)| *answer == "stored"), "{channels}");
        assert_eq!(answered.try_recv(), Ok(Ok(())), "{channels}");
    }
}

/// Questions and trials that share a channel: the first that has no answer has closed it.
#[test]
fn a_question_behind_a_refused_trial_is_asked_again_and_a_refused_question_blames_no_message() {
    for channels in [1, 2] {
        let mut harness = Harness::with(channels);
        let refusal = close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'");
        harness.submit(0, "gone", "k", 1);
        assert_eq!(harness.written(), [1]);
        let (answer, mut answered) = oneshot::channel();
        harness.table.ask(Question::Ping, answer);
        assert!(harness.written().is_empty());
        harness.hear(1, Heard::ChannelClose(refusal.clone()));
        assert_eq!(harness.answers(), [(0, "culprit")]);
        assert!(answered.try_recv().is_err() && harness.table.is_asking());
        assert!(harness.written().is_empty());
        harness.hear(1, Heard::QosOk);
        assert_eq!(answered.try_recv(), Ok(Ok(())));
        // The other way round.
        let (answer, mut answered) = oneshot::channel();
        harness.table.ask(Question::Exchange("gone".to_owned()), answer);
        assert!(harness.written().is_empty());
        harness.submit(1, "e", "k", 1);
        assert_eq!(harness.written(), [1]);
        harness.hear(1, Heard::ChannelClose(refusal.clone()));
        assert_eq!(harness.answers(), [(1, "collateral")]);
        assert_eq!(answered.try_recv(), Ok(Err(refusal)));
    }
}

#[test]
fn an_exchange_without_an_answer_holds_up_itself_only() {
    let mut harness = Harness::new();
    harness.submit(0, "hangs", "k", 1);
    harness.submit(1, "hangs", "k", 1);
    assert_eq!(harness.written(), [TRIALS.start]);
    for index in 2..10 {
        harness.submit(index, &format!("e{index}"), "k", 1);
    }
    for _ in 0..8 {
        for channel in harness.written() {
            assert_ne!(channel, TRIALS.start);
            harness.hear(channel, Heard::QosOk);
        }
    }
    assert_eq!(harness.table.withdraw(harness.call), [1], "the others were sent");
}

#[test]
fn a_full_queue_does_not_keep_a_trial_waiting() {
    let mut harness = Harness::trusting("e");
    (0..8).for_each(|index| harness.submit(index, "e", "k", OUT_BYTES / 4));
    harness.submit(8, "new", "k", 1);
    let channels = harness.written();
    assert!(channels.contains(&TRIALS.start) && channels.len() < 9, "{channels:?}");
}

#[test]
fn a_refused_trial_takes_its_like_along_and_nobody_else() {
    let mut harness = Harness::new();
    harness.submit(0, "gone", "a", 1);
    harness.submit(1, "gone", "b", 1);
    harness.submit(2, "e", "k", 1);
    assert_eq!(harness.written(), [TRIALS.start, TRIALS.start + 1], "one for each exchange");
    harness
        .hear(TRIALS.start, Heard::ChannelClose(close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'")));
    let mut answers = harness.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(0, "culprit"), (1, "culprit")]);
    harness.hear(TRIALS.start + 1, Heard::QosOk);
    harness.hear(TRIALS.start + 1, ack(1, false));
    assert_eq!(harness.answers(), [(2, "stored")]);
}

#[test]
fn a_denied_routing_key_does_not_discredit_its_exchange() {
    let mut harness = Harness::trusting("e");
    harness.submit(0, "e", "shut", 1);
    harness.submit(1, "e", "open", 1);
    let channel = harness.written()[0];
    let denied = close(403, "ACCESS_REFUSED - access to topic 'shut' in exchange 'e' in vhost '/' refused");
    harness.hear(channel, Heard::ChannelClose(denied.clone()));
    assert_eq!(harness.answers(), [(0, "collateral"), (1, "collateral")]);
    // Both are under suspicion; one clears itself, the other does not.
    harness.submit(2, "e", "open", 1);
    let trial = harness.written()[0];
    harness.hear(trial, Heard::QosOk);
    harness.hear(trial, ack(1, false));
    harness.submit(3, "e", "shut", 1);
    harness.submit(4, "e", "open", 1);
    let channels = harness.written();
    assert!(TRIALS.contains(&channels[0]) && channels[1] >= TRIALS.end, "{channels:?}");
    harness.hear(channels[0], Heard::ChannelClose(denied));
    assert_eq!(harness.answers(), [(2, "stored"), (3, "culprit")]);
}

#[test]
fn what_is_larger_than_anything_before_goes_alone() {
    let mut harness = Harness::trusting("e");
    harness.submit(0, "e", "k", ORDINARY_BYTES + 1);
    harness.submit(1, "e", "k", ORDINARY_BYTES);
    assert_eq!(harness.written().first(), Some(&TRIALS.start));
    let text = "PRECONDITION_FAILED - message size 65537 is larger than configured max size 65536";
    harness.hear(TRIALS.start, Heard::ChannelClose(close(406, text)));
    assert_eq!((harness.answers(), harness.table.bytes_max()), (vec![(0, "culprit")], Some(65_536)));
}

#[test]
fn a_blocked_connection_keeps_what_it_has_and_gives_it_back() {
    let mut harness = Harness::trusting("e");
    harness.hear(0, Heard::Blocked("low on memory".to_owned()));
    (0..3).for_each(|index| harness.submit(index, "e", "k", 1));
    assert_eq!((harness.written(), harness.table.blocked()), (vec![], Some("low on memory")));
    assert_eq!(harness.table.withdraw(harness.call), [0, 1, 2]);
    harness.submit(3, "e", "k", 1);
    harness.hear(0, Heard::Unblocked);
    assert_eq!(harness.written().len(), 1, "what was taken back is not sent");
}

#[test]
fn at_the_end_it_is_known_what_had_left() {
    let mut harness = Harness::trusting("e");
    let mut out = Vec::new();
    harness.submit(0, "e", "k", 10);
    harness.table.fill(&mut out);
    let first = out.len();
    out.clear();
    harness.submit(1, "e", "k", 10);
    harness.table.fill(&mut out);
    // All of the first, and all but one byte of the second.
    harness.table.wrote(first + out.len() - 1);
    harness.submit(2, "e", "k", 10);
    harness.table.end(&"gone".into(), &mut Vec::new());
    let mut answers = harness.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(0, "lost"), (1, "not sent")]);
    harness.submit(3, "e", "k", 10);
    assert!(harness.written().is_empty(), "nothing is sent after the end");
}

#[test]
fn a_dropped_calls_answers_are_nobodys() {
    let mut harness = Harness::trusting("e");
    harness.submit(0, "e", "k", 1);
    let channel = harness.written()[0];
    harness.submit(1, "e", "k", 1);
    harness.table.forget(harness.call);
    assert!(harness.written().is_empty(), "what had not left stays");
    harness.hear(channel, ack(1, false));
    assert_eq!((harness.answers(), harness.table.unanswered()), (vec![], 0));
}

/// G7: a broker that asks without end and does not read gets one answer for each channel, and no more.
#[test]
fn g7_a_flood_of_questions_does_not_grow_what_we_hold() {
    let mut harness = Harness::trusting("e");
    harness.submit(0, "e", "k", 1);
    let channel = harness.written()[0];
    for n in 0..100_000 {
        harness.hear(channel, Heard::Flow(n % 2 == 1));
        harness.hear(n as u16, Heard::Flow(false));
        harness.hear(200, Heard::ChannelClose(close(404, "NOT_FOUND")));
        harness.table.beat();
    }
    let mut out = Vec::new();
    harness.table.fill(&mut out);
    assert!(out.len() < 1_000, "{} bytes", out.len());
    // Calls ask and stop waiting, and nothing can be written.
    for _ in 0..1_000 {
        harness.table.ask(Question::Ping, oneshot::channel().0);
    }
    assert_eq!(harness.table.questions.len(), 1);
}

#[derive(Debug, Clone)]
enum TableStep {
    Submit { exchange: u8, key: u8, bytes: usize },
    Write,
    Ask,
    Hear(u16, Heard),
    Withdraw,
}

fn steps() -> impl Strategy<Value = Vec<TableStep>> {
    let refusals = ["no exchange 'e0'", "access to topic 'k1'", "is larger than max size 90000", "internal"];
    let refusal =
        (prop::sample::select(vec![403_u16, 404, 406, 541]), prop::sample::select(refusals.to_vec()))
            .prop_map(|(code, text)| close(code, text));
    let heard = prop_oneof![
        4 => (0..12_u64, any::<bool>()).prop_map(|(tag, multiple)| ack(tag, multiple)),
        1 => (0..12_u64, any::<bool>()).prop_map(|(tag, multiple)| Heard::Nack { tag, multiple }),
        4 => Just(Heard::QosOk),
        1 => Just(Heard::QueueDeclareOk),
        1 => refusal.clone().prop_map(Heard::ChannelClose),
        1 => refusal.prop_map(Heard::Return),
        1 => (0..40_usize).prop_map(|index| Heard::Header { size: 0, message_id: Some(format!("id-{index}")) }),
        1 => any::<bool>().prop_map(Heard::Flow),
        1 => Just(Heard::Blocked("low on memory".to_owned())),
        1 => Just(Heard::Unblocked),
    ];
    let step = prop_oneof![
        6 => (0..3_u8, 0..2_u8, prop::sample::select(vec![0_usize, 10, 100_000]))
            .prop_map(|(exchange, key, bytes)| TableStep::Submit { exchange, key, bytes }),
        6 => Just(TableStep::Write),
        1 => Just(TableStep::Ask),
        8 => (0..14_u16, heard).prop_map(|(channel, heard)| TableStep::Hear(channel, heard)),
        1 => Just(TableStep::Withdraw),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a broker says, in whatever order: each message has one end, and at the end nothing is left.
    #[test]
    fn every_message_has_one_end(channels in 1..=CHANNELS, steps in steps()) {
        let mut harness = Harness::with(channels);
        let (mut submitted, mut ends, mut waiting) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                TableStep::Submit { exchange, key, bytes } => {
                    harness.submit(submitted, &format!("e{exchange}"), &format!("k{key}"), bytes);
                    submitted += 1;
                }
                TableStep::Write => prop_assert!(harness.frames().iter().all(|(channel, _)| *channel <= channels)),
                TableStep::Ask => {
                    let (answer, answered) = oneshot::channel();
                    harness.table.ask(Question::Ping, answer);
                    waiting.push(answered);
                }
                TableStep::Hear(channel, heard) => harness.hear(channel, heard),
                TableStep::Withdraw => ends.extend(harness.table.withdraw(harness.call)),
            }
            prop_assert!(harness.table.channels.len() <= usize::from(channels));
            let held = harness.table.channels.values().flat_map(|channel| channel.entries.iter().flatten());
            prop_assert_eq!(held.count(), harness.table.unanswered());
        }
        ends.extend(harness.table.withdraw(harness.call));
        harness.table.end(&"gone".into(), &mut Vec::new());
        ends.extend(harness.answers().iter().map(|(index, _)| *index));
        ends.sort_unstable();
        prop_assert_eq!(ends, (0..submitted).collect::<Vec<_>>());
    }
}
