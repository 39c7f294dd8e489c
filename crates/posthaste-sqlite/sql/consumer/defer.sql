-- A copy of a message among the deferred. Its number is its place in its key: numbers are never drawn twice.
insert into posthaste_inbox_deferred
       (consumer, message_id, topic, partition, position, address, key, order_id, headers, payload, published_at,
        attempts, history, reason, due_at, error_class, error_code, last_error, last_error_at, deferred_at, holds, repeat)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
        ?21, ?22)
