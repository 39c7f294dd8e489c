//! The chain's rule, by example and by chance.

use super::*;
use crate::event::{Event, StoredEvent, Timestamp};
use crate::sink::Failure;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn message(key: Option<&str>) -> Message {
    let mut event = Event::new("t", "x");
    event.key = key.map(str::to_owned);
    let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
    Message {
        stored,
        destination: "t".into(),
        payload: None,
        ordered: true,
        source: "".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

fn enter<'a>(chain: &'a Chain, keys: &[&str]) -> Call<'a> {
    let messages: Vec<_> = keys.iter().map(|key| message((*key != "-").then_some(key))).collect();
    chain.enter(&messages)
}

fn turns(call: &mut Call<'_>) -> Vec<(usize, Turn)> {
    let mut turns = Vec::new();
    let _ = call.poll_turns(&mut Context::from_waker(Waker::noop()), &mut turns);
    turns.sort_by_key(|(index, _)| *index);
    turns
}

fn failed() -> Verdict {
    Verdict::Retry(Failure::of_event("x", "x"))
}

#[test]
fn one_message_of_a_key_goes_at_a_time_and_keys_are_independent() {
    let chain = Chain::default();
    let mut call = enter(&chain, &["a", "a", "b", "-", "-"]);
    assert_eq!(turns(&mut call), [(0, Turn::Go), (2, Turn::Go), (3, Turn::Go), (4, Turn::Go)]);
    assert_eq!(turns(&mut call), []);
    call.decide(0, &Verdict::Delivered);
    assert_eq!(turns(&mut call), [(1, Turn::Go)]);
}

#[test]
fn a_failure_holds_what_is_behind_it_in_later_calls_too_until_its_call_is_over() {
    let chain = Chain::default();
    let mut first = enter(&chain, &["a", "a", "b"]);
    let mut second = enter(&chain, &["a", "b"]);
    assert_eq!(turns(&mut first), [(0, Turn::Go), (2, Turn::Go)]);
    first.decide(0, &failed());
    assert_eq!(turns(&mut first), [(1, Turn::Held)]);
    assert_eq!(turns(&mut second), [(0, Turn::Held)]);
    let mut third = enter(&chain, &["a"]);
    assert_eq!(turns(&mut third), [(0, Turn::Held)]);
    drop((second, third));
    let mut fourth = enter(&chain, &["a"]);
    assert_eq!(turns(&mut fourth), [(0, Turn::Held)], "the failed message's call is still open");
    drop((first, fourth));
    assert_eq!(turns(&mut enter(&chain, &["a", "b"])), [(0, Turn::Go), (1, Turn::Go)]);
}

#[test]
fn a_dropped_call_has_failed_and_leaves_nothing_behind() {
    let chain = Chain::default();
    let mut first = enter(&chain, &["a", "b"]);
    let mut second = enter(&chain, &["a"]);
    let mut third = enter(&chain, &["a", "b"]);
    first.decide(1, &Verdict::Delivered);
    drop(second);
    assert_eq!(turns(&mut third), [(0, Turn::Held), (1, Turn::Go)]);
    first.decide(0, &Verdict::Delivered);
    second = enter(&chain, &["a"]);
    assert_eq!(turns(&mut second), [(0, Turn::Held)]);
    drop((first, second, third));
    let table = chain.table();
    assert!(table.calls.is_empty() && table.numbers.is_empty());
    assert_eq!(table.free.len(), table.keys.len());
}

/// A waker that counts.
#[derive(Default)]
struct Bell(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn a_waiting_call_is_woken_by_another_calls_verdict_and_by_its_end() {
    let chain = Chain::default();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    for end in [false, true] {
        let mut first = enter(&chain, &["a"]);
        let mut second = enter(&chain, &["a"]);
        let mut got = Vec::new();
        assert!(second.poll_turns(&mut Context::from_waker(&waker), &mut got).is_pending());
        if end {
            drop(first);
        } else {
            first.decide(0, &Verdict::Delivered);
        }
        assert_eq!(bell.0.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(turns(&mut second), [(0, if end { Turn::Held } else { Turn::Go })]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enter(Vec<u8>),
    Decide(usize, bool),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(0_u8..4, 1..6).prop_map(Step::Enter),
        8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, ok)| Step::Decide(which, ok)),
        2 => any::<usize>().prop_map(Step::Drop),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Waiting,
    Flying,
    Delivered,
    Failed,
}

proptest! {
    /// The rule itself, checked at every turn: nothing goes while an earlier message of its key
    /// whose call is open has not been delivered.
    #[test]
    fn nothing_overtakes(steps in prop::collection::vec(step(), 1..60)) {
        let chain = Chain::default();
        let mut calls: BTreeMap<u64, (Call<'_>, Vec<(u8, Fate)>)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Enter(keys) => {
                    let names: Vec<_> = keys.iter().map(u8::to_string).collect();
                    let call = enter(&chain, &names.iter().map(String::as_str).collect::<Vec<_>>());
                    calls.insert(call.id, (call, keys.into_iter().map(|k| (k, Fate::Waiting)).collect()));
                }
                Step::Decide(which, ok) => {
                    let flying: Vec<_> = calls.iter().flat_map(|(id, (_, fates))| {
                        fates.iter().enumerate().filter(|(_, (_, f))| *f == Fate::Flying).map(|(i, _)| (*id, i))
                    }).collect();
                    if flying.is_empty() { continue }
                    let (id, index) = flying[which % flying.len()];
                    let (call, fates) = calls.get_mut(&id).expect("open");
                    call.decide(index, &if ok { Verdict::Delivered } else { failed() });
                    fates[index].1 = if ok { Fate::Delivered } else { Fate::Failed };
                }
                Step::Drop(which) => {
                    if calls.is_empty() { continue }
                    let id = *calls.keys().nth(which % calls.len()).expect("in range");
                    calls.remove(&id);
                }
            }
            let ids: Vec<u64> = calls.keys().copied().collect();
            for id in ids {
                for (index, turn) in turns(&mut calls.get_mut(&id).expect("open").0) {
                    let key = calls[&id].1[index].0;
                    let before = calls.range(..=id).flat_map(|(c, (_, fates))| {
                        fates.iter().enumerate().filter(move |(i, _)| *c < id || *i < index)
                    }).filter(|(_, (k, _))| *k == key);
                    let clear = before.clone().all(|(_, (_, fate))| *fate == Fate::Delivered);
                    prop_assert!(clear || turn == Turn::Held, "message {index} of call {id} overtakes");
                    prop_assert_eq!(calls[&id].1[index].1, Fate::Waiting);
                    let fate = if turn == Turn::Go { Fate::Flying } else { Fate::Failed };
                    calls.get_mut(&id).expect("open").1[index].1 = fate;
                }
            }
        }
        // Whatever is left comes to an end: no message waits for ever.
        while let Some((id, index)) = calls.iter().find_map(|(id, (_, fates))| {
            fates.iter().position(|(_, f)| *f == Fate::Flying).map(|i| (*id, i))
        }) {
            let (call, fates) = calls.get_mut(&id).expect("open");
            call.decide(index, &Verdict::Delivered);
            fates[index].1 = Fate::Delivered;
            for (call, fates) in calls.values_mut() {
                for (index, turn) in turns(call) {
                    fates[index].1 = if turn == Turn::Go { Fate::Flying } else { Fate::Failed };
                }
            }
        }
        prop_assert!(calls.values().all(|(_, fates)| fates.iter().all(|(_, f)| *f != Fate::Waiting)));
    }
}
