-- Version 2: the consumer. Only adds, so a relay of version 1 goes on as before.

-- The inbox may be there already: `posthaste_sqlite::inbox::set_up` makes it in a file without an outbox too.
create table if not exists posthaste_inbox (
  consumer     text    not null,
  message_id   text    not null,
  topic        text,
  partition    integer,
  position     integer,
  processed_at integer not null,
  primary key (consumer, message_id)
) without rowid;
create index if not exists posthaste_inbox_age on posthaste_inbox (consumer, processed_at);

-- What became of a message: d done, w deferred, x dead.
alter table posthaste_inbox add column outcome text not null default 'd';

-- Messages that wait: for a retry, or behind an earlier one of their key. Copies stand by themselves: the broker need
-- not keep them any longer. due_at = 9223372036854775807: behind another of its key.
create table posthaste_inbox_deferred (
  seq              integer primary key autoincrement,  -- order within a key; a replay brings its old one
  consumer         text not null,
  message_id       text not null,
  topic            text not null,
  partition        integer not null,
  position         integer,
  address          text,              -- subject, routing key
  key              blob,
  order_id         blob,              -- hash of what is kept in order; null: nothing waits for it
  headers          text not null,     -- [[name, text | {"base64": …}], …] as they came
  payload          blob,
  published_at     integer,
  reason           text not null,
  holds            integer not null,  -- every row of a live message holds; only rows of a range replay do not
  repeat           integer not null default 0,
  attempts         integer not null default 0,
  earlier_attempts integer not null default 0,
  replays          integer not null default 0,
  due_at           integer not null,
  error_class      text,
  error_code       text,
  last_error       text,
  last_error_at    integer,
  history          text,              -- the last ten attempts
  deferred_at      integer not null,
  unique (consumer, message_id, repeat)
) strict;
create index posthaste_inbox_deferred_due on posthaste_inbox_deferred (consumer, due_at);
-- Not partial: replayed rows are a second queue of the key.
create index posthaste_inbox_deferred_key on posthaste_inbox_deferred (consumer, topic, order_id, holds, seq);

create table posthaste_inbox_dead_letters (
  letter       text primary key,      -- UUIDv7; also the Message-ID on the dead-letter topic
  seq          integer not null,      -- a number of posthaste_inbox_deferred, whether it was deferred before or not
  consumer     text not null,
  message_id   text not null,
  topic        text not null,
  partition    integer not null,
  position     integer,
  address      text,
  key          blob,
  order_id     blob,
  headers      text not null,
  payload      blob,
  published_at integer,
  repeat       integer not null default 0,
  holds_key    integer not null,
  attempts     integer not null,
  replays      integer not null default 0,
  disposition  text not null check (disposition in ('decode', 'schema', 'rejected', 'exhausted', 'panic', 'timeout',
                 'crashed', 'unfit', 'unmatched', 'committed-by-handler', 'operator')),
  error_class  text not null,
  error_code   text not null,
  error        text not null,
  stack        text,
  history      text,
  fingerprint  integer not null,
  dead_at      integer not null,
  unique (consumer, message_id, repeat)
) strict;
create index posthaste_inbox_dead_key on posthaste_inbox_dead_letters (consumer, topic, order_id, seq) where holds_key;

-- How far a consumer has decided. The row is made when the partition is assigned.
create table posthaste_inbox_partitions (
  consumer         text not null,
  topic            text not null,
  partition        integer not null,
  position         integer,           -- null: nothing decided yet; else all before it is decided
  position_time    integer,           -- the broker's time of the record just before it
  saved_at         integer,
  log_id           text,              -- which log the number belongs to
  seeks            integer not null default 0,  -- how often an operator moved it
  owner            text,
  clean            integer not null default 1,
  taken_at         integer,
  expires_at       integer,
  epoch            integer not null default 0,
  unclean          integer not null default 0,
  unclean_position integer,
  in_hand          integer,           -- as in `posthaste_lanes`
  suspect          integer,
  suspect_deaths   integer not null default 0,
  primary key (consumer, topic, partition)
) strict, without rowid;

-- What processes say about themselves: breakers, dependencies, paused and stopped partitions, the last error.
create table posthaste_processes (
  process    text primary key,
  role       text not null,
  name       text not null,
  version    text not null,
  host       text not null,
  started_at integer not null,
  seen_at    integer not null,
  report     text not null check (length(cast(report as blob)) <= 8192)
) strict, without rowid;

-- The lowest version whose binaries can live with this one. Null: the one before.
alter table posthaste_migrations add column oldest integer;

-- A check cannot be altered, so the table is made anew.
create table posthaste_controls_new (
  kind       text not null check (kind in ('sink', 'route', 'consumer')),
  name       text not null,
  paused     integer not null default 0,
  rate_limit real,
  primary key (kind, name)
) strict, without rowid;
insert into posthaste_controls_new select kind, name, paused, rate_limit from posthaste_controls;
drop table posthaste_controls;
alter table posthaste_controls_new rename to posthaste_controls;
