-- Version 2: the inbox. Only adds a table, so a relay of version 1 goes on as before.

-- What consumers have done: written in the handler's transaction, hence as durable as its effects. The id is
-- text, because messages of others have ids of any form. Where it came from is kept for whoever traces an
-- effect back; nothing depends on it.
create table posthaste.inbox (
  consumer     text        collate "C" not null,
  message_id   text        collate "C" not null,
  topic        text        collate "C",
  partition    integer,
  position     bigint,
  processed_at timestamptz not null default now(),
  primary key (consumer, message_id)
);

comment on table posthaste.inbox is
  'Messages that a consumer has handled. A mark must be kept for longer than its message can come again.';

-- For the purge: oldest first, a bounded number at a time. Marks arrive in the order of time, so an insert
-- touches the last page only.
create index inbox_age on posthaste.inbox (consumer, processed_at);
