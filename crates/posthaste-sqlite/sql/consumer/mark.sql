-- Marks a message, unless it has its mark. Transactions that write come one after the other, so two with the same
-- message cannot both be first (F70).
insert into posthaste_inbox (consumer, message_id, topic, partition, position, processed_at, outcome)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    on conflict do nothing
