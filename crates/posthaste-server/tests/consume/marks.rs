//! Where marks are: in our own inbox, or in the tables of the service.

/// Marks as everything here reads them.
pub(crate) const MARKS: &str =
    "create view trial.marks as select message_id as id, outcome::text as outcome from posthaste.inbox";

/// The same where they are request keys, which have no outcome: the traces do, and what is deferred.
pub(crate) const REQUEST_KEYS: &str = "create view trial.marks as
select k.id, case when d.seq is not null then 'w' when t.status = 'DLQ' then 'x' when t.status = 'PROCESSED' then 'd' end as outcome
  from (select substr(request_key, length('billing:') + 1) as id from sys.request_keys) k
  left join posthaste.inbox_deferred d on d.message_id = k.id
  left join sys.message_traceability t on t.kafka_message_id = k.id";

/// The same where they are the event ids of a service's own table.
pub(crate) const EVENT_IDS: &str =
    "create view trial.marks as select event_id::text as id, 'd' as outcome from processed_event_ids";
