//! Why a queue is not read, in words that say what to do.

pub(super) use crate::rabbitmq::client::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};
use lapin::ErrorKind;
use posthaste::sink::Failure;

/// Why a queue is not read now.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) failure: Failure,
    /// Whether somebody has to declare another queue, or say something else in the configuration.
    pub(super) is_final: bool,
}

fn refused(code: &'static str, text: String) -> Refusal {
    Refusal { failure: Failure::of_sink(code, text), is_final: true }
}

/// The broker's or the client's own words.
pub(super) fn of(error: &lapin::Error, queue: &str) -> Refusal {
    let passing =
        |code: &'static str, text: String| Refusal { failure: Failure::of_sink(code, text), is_final: false };
    let ErrorKind::ProtocolError(said) = error.kind() else {
        return passing("rabbitmq.connection_lost", format!("queue {queue:?}: {error}"));
    };
    let words = said.get_message();
    match said.get_id() {
        NOT_FOUND => passing(
            "rabbitmq.no_queue",
            format!(
                "there is no queue {queue:?}: {words}. The consumer waits for it; declare it, or correct its name in `topics`"
            ),
        ),
        ACCESS_REFUSED => passing(
            "rabbitmq.denied",
            format!("queue {queue:?} may not be read: {words}. Its messages wait; allow `read` on it"),
        ),
        _ => passing("rabbitmq.channel_closed", format!("queue {queue:?}: {words}. It is read again")),
    }
}

pub(super) fn not_quorum(queue: &str) -> Refusal {
    refused(
        "rabbitmq.not_quorum",
        format!(
            "queue {queue:?} is no quorum queue: it neither survives the loss of its machine nor counts returns. Nothing is read. \
             Declare one of another name with x-queue-type = quorum, and let its publishers go over"
        ),
    )
}

pub(super) fn not_single(queue: &str) -> Refusal {
    refused(
        "rabbitmq.not_single",
        format!(
            "queue {queue:?} has no single active consumer, so two members would handle one key at once. Nothing is read. Declare \
             one with x-single-active-consumer = true, or say order = \"none\""
        ),
    )
}

pub(super) fn drops(queue: &str, limit: i64) -> Refusal {
    refused(
        "rabbitmq.delivery_limit",
        format!(
            "queue {queue:?} drops a message that came back {limit} times, and has no dead-letter exchange: members that die would \
             lose messages. Nothing is read. Declare it with x-dead-letter-exchange, or with x-delivery-limit = -1"
        ),
    )
}

pub(super) fn unseen(queue: &str) -> Refusal {
    refused(
        "rabbitmq.unseen",
        format!(
            "this user may not see how queue {queue:?} was declared. Nothing is read. Allow `configure` on it (nothing is made or \
             changed), or vouch for it with quorum_queues = true"
        ),
    )
}
