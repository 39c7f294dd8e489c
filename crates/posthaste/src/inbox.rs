//! The inbox: what a consumer has already done, remembered in the transaction that did it.
//!
//! A broker delivers at least once. The handler's first act in its transaction is `admit`: it writes
//! `(consumer, message id)` or finds it written. So the mark and the handler's effects commit together or not
//! at all, and the effects happen once for each event, whatever is redelivered (G5). The mark is inserted,
//! not looked for: two deliveries of one message that race would both pass a look (F70). The second
//! transaction waits for the first; then it is a duplicate if the first committed, and goes on if it rolled
//! back.
//!
//! `admit` lives with each database (`posthaste_postgres::admit`, `posthaste_sqlite::admit`) and takes that
//! database's transaction: a pool or a connection does not compile. This module holds the words they share.
//!
//! The rest of the database's side of a [`consumer`](crate::consumer) is below: [`store`] is the seam,
//! [`failure`] and [`policy`] say what follows from a failure, [`identity`] what a message is known by,
//! [`letter`] what a dead one becomes, [`filter`] and [`message`] what a handler takes and gets, [`remote`]
//! handlers in another process, [`admin`] what people see of it and do.
//!
//! **Retention.** Marks are purged by age. The age must exceed the longest time after which a message can
//! come again: the broker's own retention, every replay that anybody plans, and the longest outage (F69). A
//! message that comes again later is done again. Five or thirty minutes, as elsewhere, is less than an
//! outage; [`RETENTION_DAYS`] is the default here.

pub mod admin;
pub(crate) mod begin;
pub mod failure;
pub mod filter;
pub mod headers;
pub mod identity;
pub mod kept;
pub mod letter;
pub mod message;
pub mod policy;
pub mod range;
pub mod remote;
pub mod settings;
pub mod store;

/// Days for which marks are kept, unless declared otherwise. Longer than the retention that brokers are
/// usually given (seven days), so that a replay from their beginning finds its marks.
pub const RETENTION_DAYS: u32 = 14;

/// Longest consumer name, in bytes: it stands in every mark.
pub const CONSUMER_BYTES_MAX: usize = 200;

/// Longest message id, in bytes. Ours have 36; an index entry has to hold it, and PostgreSQL's holds 2,700.
pub const MESSAGE_ID_BYTES_MAX: usize = 1024;

/// What `admit` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a duplicate must not be handled again"]
pub enum Admission {
    /// Nobody has done it: do it, in this transaction.
    First,
    /// It is done: do nothing, and acknowledge it.
    Duplicate,
}

impl Admission {
    /// Whether the handler should run.
    #[must_use]
    pub fn is_first(self) -> bool {
        self == Self::First
    }
}

/// Where a message came from, kept with its mark so that an effect can be traced to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The broker's topic.
    pub topic: Option<&'a str>,
    /// The partition.
    pub partition: Option<i32>,
    /// The position there.
    pub position: Option<i64>,
}

impl<'a> From<&'a crate::source::Delivery> for Origin<'a> {
    fn from(delivery: &'a crate::source::Delivery) -> Self {
        let partition = delivery.partition();
        Self { topic: Some(&partition.topic), partition: Some(partition.number), position: delivery.position }
    }
}

/// Why a mark cannot be written, whatever the database does. No retry mends it: such a message is a dead
/// letter, or the consumer gives it another identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The consumer has no name, or one that is too long.
    #[error("the consumer's name must have 1 to {CONSUMER_BYTES_MAX} bytes and no zero byte")]
    Consumer,
    /// The message id is empty, too long, or holds a zero byte, which PostgreSQL cannot keep.
    #[error(
        "the message id has {bytes} bytes; it must have 1 to {MESSAGE_ID_BYTES_MAX}, none of them zero. Give the message \
         another identity, or let it be a dead letter"
    )]
    MessageId {
        /// Its length.
        bytes: usize,
    },
}

/// Checks what a mark is made of. Every inbox does it first, so that all of them refuse the same.
pub fn check(consumer: &str, message_id: &str) -> Result<(), Unfit> {
    let unfit = |text: &str, max: usize| text.is_empty() || text.len() > max || text.contains('\0');
    if unfit(consumer, CONSUMER_BYTES_MAX) {
        return Err(Unfit::Consumer);
    }
    if unfit(message_id, MESSAGE_ID_BYTES_MAX) {
        return Err(Unfit::MessageId { bytes: message_id.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_mark_is_refused_before_the_database_sees_it() {
        assert_eq!(check("billing", "0195-ä"), Ok(()));
        assert_eq!(check("", "x"), Err(Unfit::Consumer));
        assert_eq!(check(&"c".repeat(201), "x"), Err(Unfit::Consumer));
        for id in ["".to_owned(), "i".repeat(1025), "a\0b".to_owned()] {
            assert_eq!(check("billing", &id), Err(Unfit::MessageId { bytes: id.len() }));
        }
        assert_eq!(check("billing", &"i".repeat(1024)), Ok(()));
    }
}
