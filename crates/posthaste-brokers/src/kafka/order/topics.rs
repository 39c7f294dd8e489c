//! What is known of each topic: whether it has proven itself.
//!
//! A failure that Kafka calls permanent ends a whole producer of the main line, because the messages behind
//! it must not go on (see [`super`]). So the main line gets only topics that work. A topic begins on trial:
//! its messages go to another producer, one for each request, few at a time, until the first one is
//! delivered. A topic that fails on the main line is on trial again, for a time that doubles with each
//! relapse.

use super::MessageRef;
use crate::kafka::verdict::DeliveryFault;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of one topic that may be out on the trial line. A sound topic leaves the trial after the first. A
/// topic that stays for a while keeps some speed with this many.
const TRIAL_OUT_MAX: usize = 64;
/// A topic that nobody has heard of yet shows with one message whether it works.
const PROBE_OUT_MAX: usize = 1;
/// First and longest probation of a topic that failed on the main line.
const PROBATION_MIN: Duration = Duration::from_secs(5);
const PROBATION_MAX: Duration = Duration::from_secs(600);
/// Probation of a topic that was silent. Its messages come again at once, and the trial line finds out why
/// they were given up. A success in another partition does not end the probation.
const SILENCE_PROBATION: Duration = Duration::from_secs(2);
/// Topics that are remembered. Names may be made from events, so they need a bound.
const TOPICS_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kafka) enum TopicStanding {
    /// The topic works: the main line takes its messages.
    Proven,
    /// The topic must show that it works.
    Trial,
}

#[derive(Debug)]
struct TopicState {
    name: Arc<str>,
    standing: TopicStanding,
    /// The topic is not proven before this time.
    on_trial_until: Option<Instant>,
    probation: Duration,
    /// Messages that are out on the trial line.
    out: usize,
    /// Whether the last message on trial was delivered.
    sound: bool,
    /// Messages that may go as soon as others are back.
    queue: VecDeque<MessageRef>,
    /// Messages in the table.
    references: usize,
}

#[derive(Debug, Default)]
pub(in crate::kafka) struct Topics {
    numbers: FxHashMap<Arc<str>, u32>,
    topics: Vec<Option<TopicState>>,
    free: Vec<u32>,
    /// The topic that was asked for last. Messages of one call mostly have one topic.
    last: Option<(Arc<str>, u32)>,
}

impl Topics {
    /// The number of a topic, for one more message.
    pub(in crate::kafka) fn number(&mut self, name: &str) -> u32 {
        let known = match &self.last {
            Some((last, number)) if **last == *name => Some(*number),
            _ => self.numbers.get(name).copied(),
        };
        let number = known.unwrap_or_else(|| self.add(name));
        if let Some(topic) = self.get(number) {
            topic.references += 1;
            let name = Arc::clone(&topic.name);
            if self.last.as_ref().is_none_or(|(_, last)| *last != number) {
                self.last = Some((name, number));
            }
        }
        number
    }

    fn add(&mut self, name: &str) -> u32 {
        if self.numbers.len() >= TOPICS_MAX {
            self.forget_idle();
        }
        let name: Arc<str> = name.into();
        let topic = TopicState {
            name: Arc::clone(&name),
            standing: TopicStanding::Trial,
            on_trial_until: None,
            probation: PROBATION_MIN,
            out: 0,
            sound: false,
            queue: VecDeque::new(),
            references: 0,
        };
        let number = self.free.pop().unwrap_or(self.topics.len() as u32);
        if number as usize == self.topics.len() {
            self.topics.push(Some(topic));
        } else {
            self.topics[number as usize] = Some(topic);
        }
        self.numbers.insert(name, number);
        number
    }

    /// Topics without messages in the table have to prove themselves again.
    fn forget_idle(&mut self) {
        self.last = None;
        for (number, slot) in (0..).zip(&mut self.topics) {
            if let Some(topic) = slot.take_if(|topic| topic.references == 0) {
                self.numbers.remove(&topic.name);
                self.free.push(number);
            }
        }
    }

    fn get(&mut self, number: u32) -> Option<&mut TopicState> {
        self.topics.get_mut(number as usize)?.as_mut()
    }

    /// A message has left the table.
    pub(in crate::kafka) fn release(&mut self, number: u32) {
        if let Some(topic) = self.get(number) {
            topic.references -= 1;
        }
    }

    pub(in crate::kafka) fn standing(&self, number: u32) -> TopicStanding {
        let topic = self.topics.get(number as usize).and_then(Option::as_ref);
        topic.map_or(TopicStanding::Trial, |topic| topic.standing)
    }

    /// Lets a message go, or keeps it until others of the topic are back.
    pub(in crate::kafka) fn admit(&mut self, number: u32, message: MessageRef) -> Option<TopicStanding> {
        let topic = self.get(number)?;
        if topic.standing == TopicStanding::Proven {
            return Some(TopicStanding::Proven);
        }
        if topic.out < topic.out_max() {
            topic.out += 1;
            return Some(TopicStanding::Trial);
        }
        topic.queue.push_back(message);
        None
    }

    /// A message is back, which was out on trial if `trial` says so. The answer is the list of messages that
    /// may go now.
    pub(in crate::kafka) fn finish(
        &mut self,
        number: u32,
        trial: bool,
        delivered: bool,
    ) -> Vec<(MessageRef, TopicStanding)> {
        let Some(topic) = self.get(number) else { return Vec::new() };
        if trial {
            topic.out -= 1;
            topic.sound = delivered;
            if delivered && topic.on_trial_until.is_none_or(|until| until <= Instant::now()) {
                topic.standing = TopicStanding::Proven;
            }
        }
        let mut released = Vec::new();
        while !topic.queue.is_empty()
            && (topic.standing == TopicStanding::Proven || topic.out < topic.out_max())
        {
            let Some(message) = topic.queue.pop_front() else { break };
            topic.out += usize::from(topic.standing == TopicStanding::Trial);
            released.push((message, topic.standing));
        }
        released
    }

    /// Takes the messages that wait for the topic's trial.
    pub(in crate::kafka) fn take_queued(&mut self, number: u32) -> VecDeque<MessageRef> {
        self.get(number).map(|topic| std::mem::take(&mut topic.queue)).unwrap_or_default()
    }

    /// A message that waited is gone.
    pub(in crate::kafka) fn forget(&mut self, number: u32, message: MessageRef) {
        if let Some(topic) = self.get(number) {
            topic.queue.retain(|other| *other != message);
        }
    }

    /// A message of this topic failed on the main line.
    pub(in crate::kafka) fn suspect(&mut self, name: &str, fault: DeliveryFault) {
        let Some(number) = self.numbers.get(name).copied() else { return };
        let Some(topic) = self.get(number) else { return };
        let relapse = topic.standing == TopicStanding::Proven;
        if relapse {
            topic.standing = TopicStanding::Trial;
            topic.sound = false;
            topic.on_trial_until = None;
        }
        if fault.is_silence() && topic.on_trial_until.is_none() {
            topic.on_trial_until = Some(Instant::now() + SILENCE_PROBATION);
        }
        // A fault that heals by itself is over with the first success. A fault that events bring along comes
        // again.
        if fault.is_events() && topic.on_trial_until.is_none() {
            topic.on_trial_until = Some(Instant::now() + topic.probation);
            topic.probation = (topic.probation * 2).min(PROBATION_MAX);
        }
    }
}

impl TopicState {
    fn out_max(&self) -> usize {
        if self.sound { TRIAL_OUT_MAX } else { PROBE_OUT_MAX }
    }
}
