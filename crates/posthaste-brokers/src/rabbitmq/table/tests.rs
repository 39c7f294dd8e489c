//! The table without a broker: what it writes is read as frames, and the broker's words are put in by hand.

use super::*;
use bytes::BytesMut;

const FRAME_MAX: usize = 4_096;

struct Bench {
    table: Table,
    mailbox: Arc<Mailbox<Note>>,
    call: u64,
}

impl Bench {
    fn new() -> Self {
        let (mut table, mailbox) = (Table::new(CHANNELS, FRAME_MAX), Arc::default());
        let call = table.register(&mailbox);
        Self { table, mailbox, call }
    }

    /// With an exchange that has proven itself.
    fn trusting(exchange: &str) -> Self {
        let mut bench = Self::new();
        bench.table.trust(exchange.to_owned());
        bench
    }

    fn submit(&mut self, index: usize, exchange: &str, routing_key: &str, bytes: usize) {
        let parcel = Parcel {
            index,
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            id: format!("id-{index}"),
            properties: wire::Properties { message_id: &format!("id-{index}"), ..Default::default() }
                .encode(|_| {}),
            payload: vec![b'x'; bytes].into(),
        };
        self.table.submit(self.call, parcel);
    }

    /// Channels of the messages that are written now, in order.
    fn written(&mut self) -> Vec<u16> {
        let mut out = Vec::new();
        self.table.fill(&mut out);
        let mut buffer = BytesMut::from(out.as_slice());
        let mut channels = Vec::new();
        while let Some((channel, heard)) = wire::next_frame(&mut buffer, 1 << 20).expect("frames") {
            channels.extend(matches!(heard, Heard::Header { .. }).then_some(channel));
        }
        channels
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
        let name = |answer: &Answer| match answer {
            Answer::Stored => "stored",
            Answer::Returned(_) => "returned",
            Answer::Nacked => "nacked",
            Answer::Closed { culprit: true, .. } => "culprit",
            Answer::Closed { culprit: false, .. } => "collateral",
            Answer::Lost { left: true, .. } => "lost",
            Answer::Lost { left: false, .. } => "not sent",
        };
        let answers = notes.iter().filter_map(|note| match note {
            Note::Answer(index, answer) => Some((*index, name(answer))),
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
    let mut bench = Bench::trusting("e");
    (0..4).for_each(|index| bench.submit(index, "e", "k", 1));
    let channel = bench.written()[0];
    bench.give_back(channel, 1);
    bench.give_back(channel, 3);
    // An older one, then everything: neither takes a return that is another's.
    bench.hear(channel, ack(1, false));
    bench.hear(channel, ack(4, true));
    let expected = [(0, "stored"), (1, "returned"), (2, "stored"), (3, "returned")];
    assert_eq!((bench.answers(), bench.table.unanswered()), (expected.to_vec(), 0));
}

#[test]
fn confirmations_out_of_turn_repeated_or_of_nothing() {
    let mut bench = Bench::trusting("e");
    (0..3).for_each(|index| bench.submit(index, "e", "k", 1));
    let channel = bench.written()[0];
    bench.hear(channel, ack(2, false));
    bench.hear(channel, ack(2, false));
    bench.hear(channel, ack(9, true));
    bench.hear(channel, ack(0, true));
    bench.hear(channel, Heard::Nack { tag: 3, multiple: false });
    assert_eq!(bench.answers(), [(1, "stored"), (2, "nacked")]);
    bench.hear(channel, ack(3, true));
    assert_eq!(bench.answers(), [(0, "stored")]);
}

#[test]
fn the_first_for_an_exchange_goes_alone_and_the_others_follow() {
    let mut bench = Bench::new();
    (0..3).for_each(|index| bench.submit(index, "e", "k", 1));
    assert_eq!(bench.written(), [TRIALS.start]);
    assert!(bench.written().is_empty(), "one at a time");
    bench.hear(TRIALS.start, Heard::QosOk);
    let channels = bench.written();
    assert_eq!(channels.len(), 2);
    assert!(channels.iter().all(|channel| *channel >= TRIALS.end), "{channels:?}");
}

#[test]
fn a_full_queue_does_not_keep_a_trial_waiting() {
    let mut bench = Bench::trusting("e");
    (0..8).for_each(|index| bench.submit(index, "e", "k", OUT_BYTES / 4));
    bench.submit(8, "new", "k", 1);
    let channels = bench.written();
    assert!(channels.contains(&TRIALS.start) && channels.len() < 9, "{channels:?}");
}

#[test]
fn a_refused_trial_takes_its_like_along_and_nobody_else() {
    let mut bench = Bench::new();
    bench.submit(0, "gone", "a", 1);
    bench.submit(1, "gone", "b", 1);
    bench.submit(2, "e", "k", 1);
    bench.written();
    bench.hear(TRIALS.start, Heard::ChannelClose(close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'")));
    let mut answers = bench.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(0, "culprit"), (1, "culprit")]);
    assert_eq!(bench.written().len(), 1, "the next trial");
}

#[test]
fn a_denied_routing_key_does_not_discredit_its_exchange() {
    let mut bench = Bench::trusting("e");
    bench.submit(0, "e", "shut", 1);
    bench.submit(1, "e", "open", 1);
    let channel = bench.written()[0];
    let denied = close(403, "ACCESS_REFUSED - access to topic 'shut' in exchange 'e' in vhost '/' refused");
    bench.hear(channel, Heard::ChannelClose(denied.clone()));
    assert_eq!(bench.answers(), [(0, "collateral"), (1, "collateral")]);
    // Both are under suspicion; one clears itself, the other does not.
    bench.submit(2, "e", "open", 1);
    let trial = bench.written()[0];
    bench.hear(trial, Heard::QosOk);
    bench.hear(trial, ack(1, false));
    bench.submit(3, "e", "shut", 1);
    bench.submit(4, "e", "open", 1);
    let channels = bench.written();
    assert!(TRIALS.contains(&channels[0]) && channels[1] >= TRIALS.end, "{channels:?}");
    bench.hear(channels[0], Heard::ChannelClose(denied));
    assert_eq!(bench.answers(), [(2, "stored"), (3, "culprit")]);
}

#[test]
fn what_is_larger_than_anything_before_goes_alone() {
    let mut bench = Bench::trusting("e");
    bench.submit(0, "e", "k", ORDINARY_BYTES + 1);
    bench.submit(1, "e", "k", ORDINARY_BYTES);
    assert_eq!(bench.written().first(), Some(&TRIALS.start));
    let text = "PRECONDITION_FAILED - message size 65537 is larger than configured max size 65536";
    bench.hear(TRIALS.start, Heard::ChannelClose(close(406, text)));
    assert_eq!((bench.answers(), bench.table.bytes_max()), (vec![(0, "culprit")], Some(65_536)));
}

#[test]
fn a_blocked_connection_keeps_what_it_has_and_gives_it_back() {
    let mut bench = Bench::trusting("e");
    bench.hear(0, Heard::Blocked("low on memory".to_owned()));
    (0..3).for_each(|index| bench.submit(index, "e", "k", 1));
    assert_eq!((bench.written(), bench.table.blocked()), (vec![], Some("low on memory")));
    assert_eq!(bench.table.withdraw(bench.call), [0, 1, 2]);
    bench.submit(3, "e", "k", 1);
    bench.hear(0, Heard::Unblocked);
    assert_eq!(bench.written().len(), 1, "what was taken back is not sent");
}

#[test]
fn at_the_end_it_is_known_what_had_left() {
    let mut bench = Bench::trusting("e");
    let mut out = Vec::new();
    bench.submit(0, "e", "k", 10);
    bench.table.fill(&mut out);
    let first = out.len();
    out.clear();
    bench.submit(1, "e", "k", 10);
    bench.table.fill(&mut out);
    // All of the first, and all but one byte of the second.
    bench.table.wrote(first + out.len() - 1);
    bench.submit(2, "e", "k", 10);
    bench.table.end(&"gone".into(), &mut Vec::new());
    let mut answers = bench.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(0, "lost"), (1, "not sent")]);
    bench.submit(3, "e", "k", 10);
    assert!(bench.written().is_empty(), "nothing is sent after the end");
}

#[test]
fn a_dropped_calls_answers_are_nobodys() {
    let mut bench = Bench::trusting("e");
    bench.submit(0, "e", "k", 1);
    let channel = bench.written()[0];
    bench.submit(1, "e", "k", 1);
    bench.table.forget(bench.call);
    assert!(bench.written().is_empty(), "what had not left stays");
    bench.hear(channel, ack(1, false));
    assert_eq!((bench.answers(), bench.table.unanswered()), (vec![], 0));
}
