//! How a queue was declared, as far as AMQP shows it, and whether a consumer may trust it.
//!
//! The protocol has no question for it. But a broker that is told to declare a queue again, with other
//! arguments, refuses and names the first difference with its present value. So the declaration is guessed,
//! corrected and said again until the broker agrees: nothing is made or changed, for the queue was seen to
//! exist before. It takes the right to configure the queue. Where that is missing, the operator's word
//! (`quorum_queues`) counts, and without it the start is refused.
//!
//! What is set by a **policy** cannot be seen this way: a delivery limit or a dead-letter exchange of a
//! policy is known to the management alone.

use super::refusal::{self, Refusal};
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Connection, ErrorKind};
use posthaste::consumer::Order;
use std::collections::BTreeMap;

/// More arguments than a queue can have.
const GUESSES_MAX: usize = 32;
const TYPE: &str = "x-queue-type";
const SINGLE: &str = "x-single-active-consumer";
const LIMIT: &str = "x-delivery-limit";
const DEAD_LETTERS: &str = "x-dead-letter-exchange";
/// From this version on every quorum queue has a delivery limit.
const LIMITED_SINCE: u32 = 4;

/// What is known of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeclaredQueue {
    /// Messages that wait, and who is there to take them.
    pub(super) ready: u32,
    pub(super) consumers: u32,
    /// Its arguments by name, as text. `None`: this user may not look.
    pub(super) arguments: Option<BTreeMap<String, String>>,
}

/// Looks at a queue. A queue that does not exist is refused with `rabbitmq.no_queue`. What is right for the
/// order is guessed first: lapin's log calls each guess that is wrong an error.
pub(super) async fn look(
    connection: &Connection,
    queue: &str,
    order: Order,
) -> Result<DeclaredQueue, Refusal> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let channel = connection.create_channel().await.map_err(|error| refusal::of(&error, queue))?;
    let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
    let found = found.map_err(|error| refusal::of(&error, queue))?;
    let (ready, consumers) = (found.message_count(), found.consumer_count());
    Ok(DeclaredQueue { ready, consumers, arguments: arguments(connection, queue, order).await? })
}

/// Whether the queue may be read. A subscription that is no legal one is refused in any case, and its right
/// is looked at first.
pub(super) async fn may_read(connection: &Connection, queue: &str) -> Result<bool, Refusal> {
    let told = |error: lapin::Error| refusal::of(&error, queue);
    let channel = connection.create_channel().await.map_err(told)?;
    let illegal = BTreeMap::from([("x-priority".into(), text("none"))]);
    let options = BasicConsumeOptions::default();
    match channel.basic_consume(queue.into(), "".into(), options, FieldTable::from(illegal)).await {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            ErrorKind::ProtocolError(said) => Ok(said.get_id() != refusal::ACCESS_REFUSED),
            _ => Err(told(error)),
        },
    }
}

async fn arguments(
    connection: &Connection,
    queue: &str,
    order: Order,
) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut guess = BTreeMap::from([(TYPE.to_owned(), text("quorum"))]);
    if order != Order::None {
        guess.insert(SINGLE.to_owned(), AMQPValue::Boolean(true));
    }
    for _ in 0..GUESSES_MAX {
        let channel = connection.create_channel().await.map_err(|error| refusal::of(&error, queue))?;
        let table: BTreeMap<_, _> =
            guess.iter().map(|(name, value)| (name.as_str().into(), value.clone())).collect();
        let error = match channel.queue_declare(queue.into(), durable, FieldTable::from(table)).await {
            Ok(_) => break,
            Err(error) => error,
        };
        let ErrorKind::ProtocolError(said) = error.kind() else { return Err(refusal::of(&error, queue)) };
        match said.get_id() {
            refusal::ACCESS_REFUSED => return Ok(None),
            refusal::PRECONDITION_FAILED => {}
            _ => return Err(refusal::of(&error, queue)),
        }
        match difference(said.get_message().as_str()) {
            // A queue that is not durable is no quorum queue.
            Some((name, _)) if !name.starts_with("x-") => {
                guess = BTreeMap::from([(TYPE.to_owned(), text("classic"))]);
                break;
            }
            Some((name, None)) => drop(guess.remove(&name)),
            Some((name, Some(value))) => drop(guess.insert(name, value)),
            None => return Err(refusal::of(&error, queue)),
        }
    }
    Ok(Some(guess.into_iter().map(|(name, value)| (name, shown(&value))).collect()))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn shown(value: &AMQPValue) -> String {
    match value {
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::LongString(value) => value.to_string(),
        _ => String::new(),
    }
}

/// The argument that a broker finds different, and what it is there: "inequivalent arg 'x-queue-type' for
/// queue 'q' in vhost '/': received none but current is the value 'quorum' of type 'longstr'".
fn difference(words: &str) -> Option<(String, Option<AMQPValue>)> {
    let (name, rest) = words.split_once("inequivalent arg '")?.1.split_once('\'')?;
    let current = rest.rsplit_once("but current is ")?.1;
    if current.starts_with("none") {
        return Some((name.to_owned(), None));
    }
    let quoted = current.trim_start_matches("the value ").strip_prefix('\'')?;
    let (value, kind) = match quoted.rsplit_once("' of type '") {
        Some((value, kind)) => (value, kind.trim_end_matches('\'')),
        None => (quoted.trim_end_matches('\''), "longstr"),
    };
    let value = match (kind, value.parse()) {
        ("bool", _) => AMQPValue::Boolean(value == "true"),
        ("longstr", _) | (_, Err(_)) => text(value),
        (_, Ok(number)) => AMQPValue::LongLongInt(number),
    };
    Some((name.to_owned(), Some(value)))
}

impl DeclaredQueue {
    /// What the argument is.
    pub(super) fn argument(&self, name: &str) -> Option<&str> {
        self.arguments.as_ref().and_then(|arguments| arguments.get(name)).map(String::as_str)
    }

    pub(super) fn is_quorum(&self) -> bool {
        self.argument(TYPE) == Some("quorum")
    }

    pub(super) fn is_single(&self) -> bool {
        self.argument(SINGLE) == Some("true")
    }

    /// After how many returns the broker takes a message away, as far as it can be seen.
    pub(super) fn delivery_limit(&self, version: &str) -> Option<i64> {
        let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        match self.argument(LIMIT).map(str::parse) {
            Some(Ok(limit)) => Some(limit).filter(|limit| *limit >= 0),
            _ => (major >= LIMITED_SINCE).then_some(20),
        }
    }

    pub(super) fn dead_letters(&self) -> Option<&str> {
        self.argument(DEAD_LETTERS)
    }

    /// Whether what it is keeps what is promised. `is_vouched`: the operator says so where nobody can see it.
    pub(super) fn check(
        &self,
        queue: &str,
        version: &str,
        order: Order,
        is_vouched: bool,
    ) -> Result<(), Refusal> {
        if self.arguments.is_none() {
            return if is_vouched { Ok(()) } else { Err(refusal::unseen(queue)) };
        }
        if !self.is_quorum() {
            return Err(refusal::not_quorum(queue));
        }
        if order != Order::None && !self.is_single() {
            return Err(refusal::not_single(queue));
        }
        match self.delivery_limit(version) {
            Some(limit) if self.dead_letters().is_none() => Err(refusal::drops(queue, limit)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(arguments: &[(&str, &str)]) -> DeclaredQueue {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        DeclaredQueue { arguments: Some(arguments.collect()), ..DeclaredQueue::default() }
    }

    #[test]
    fn the_brokers_words_name_the_difference() {
        let said = |rest: &str| {
            difference(&format!("PRECONDITION_FAILED - inequivalent arg {rest}"))
                .map(|(name, value)| (name, value.as_ref().map(shown)))
        };
        let found = |name: &str, value: Option<&str>| Some((name.to_owned(), value.map(str::to_owned)));
        for (words, expected) in [
            (
                "'x-queue-type' for queue 'q' in vhost '/': received none but current is the value 'quorum' of type 'longstr'",
                found("x-queue-type", Some("quorum")),
            ),
            (
                "'x-single-active-consumer' for queue 'q' in vhost '/': received none but current is the value 'true' of type 'bool'",
                found("x-single-active-consumer", Some("true")),
            ),
            (
                "'x-delivery-limit' for queue 'q' in vhost '/': received none but current is the value '7' of type 'long'",
                found("x-delivery-limit", Some("7")),
            ),
            (
                "'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none",
                found("x-queue-type", None),
            ),
            (
                "'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
                found("durable", Some("false")),
            ),
            (
                "'x-queue-type' for queue 'it's' in vhost '/': received 'quorum' but current is 'classic'",
                found("x-queue-type", Some("classic")),
            ),
        ] {
            assert_eq!(said(words), expected, "{words}");
        }
        assert_eq!(difference("something else"), None);
    }

    #[test]
    fn f45_what_cannot_keep_the_order_or_drops_messages_is_refused() {
        let quorum = (TYPE, "quorum");
        let single = (SINGLE, "true");
        let check = |arguments: &[(&str, &str)], version: &str, order| {
            queue(arguments)
                .check("q", version, order, false)
                .map_err(|refusal| refusal.failure.code.to_string())
        };
        let refused = |code: &str| Err(code.to_owned());
        for (arguments, version, order, expected) in [
            (&[][..], "3.10.8", Order::Key, refused("rabbitmq.not_quorum")),
            (&[(TYPE, "classic")], "3.10.8", Order::None, refused("rabbitmq.not_quorum")),
            (&[quorum], "3.10.8", Order::Key, refused("rabbitmq.not_single")),
            (&[quorum], "3.10.8", Order::Partition, refused("rabbitmq.not_single")),
            (&[quorum], "3.10.8", Order::None, Ok(())),
            (&[quorum, single], "3.10.8", Order::Key, Ok(())),
            (&[quorum, single, (LIMIT, "5")], "3.10.8", Order::Key, refused("rabbitmq.delivery_limit")),
            (&[quorum, single], "4.0.5", Order::Key, refused("rabbitmq.delivery_limit")),
            (&[quorum, single, (LIMIT, "-1")], "4.0.5", Order::Key, Ok(())),
            (&[quorum, single, (LIMIT, "5"), (DEAD_LETTERS, "dlx")], "4.0.5", Order::Key, Ok(())),
        ] {
            assert_eq!(check(arguments, version, order), expected, "{arguments:?} {version}");
        }
        let unseen = DeclaredQueue::default();
        assert!(unseen.check("q", "4.0.5", Order::Key, false).is_err());
        assert!(unseen.check("q", "4.0.5", Order::Key, true).is_ok(), "the operator's word counts");
    }
}
