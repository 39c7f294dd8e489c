-- The inbox of a consuming service, in the service's own database. Harmless when repeated.
create table if not exists posthaste_inbox (
  consumer     text    not null,
  message_id   text    not null,
  topic        text,
  partition    integer,
  position     integer,
  processed_at integer not null,
  primary key (consumer, message_id)
) without rowid;

-- For the purge: oldest first. Marks arrive in the order of time, so an insert touches the last page only.
create index if not exists posthaste_inbox_age on posthaste_inbox (consumer, processed_at);
