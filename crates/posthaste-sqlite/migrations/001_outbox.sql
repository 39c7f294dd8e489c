-- Version 1: the append-only outbox log and everything around it.
-- SQLite has no schemas: everything of ours begins with `posthaste_`. Instants are microseconds since 1970.

-- The log. A row is written once, read by every sink, and removed as a whole when its time is over.
-- AUTOINCREMENT, not a bare rowid: a number must never be drawn twice, also when the newest rows have been removed.
-- The defaults are for whoever appends with plain SQL, in any language and with a SQLite of some years ago: a UUIDv7
-- (milliseconds, version, random bits), and the clock.
create table posthaste_outbox (
  seq          integer primary key autoincrement,
  id           text not null default (
                 printf('%08x-%04x-7%s-%s%s-%s',
                   cast((julianday('now') - 2440587.5) * 86400000 as integer) >> 16,
                   cast((julianday('now') - 2440587.5) * 86400000 as integer) & 65535,
                   substr(lower(hex(randomblob(2))), 2),
                   substr('89ab', 1 + (random() & 3), 1), substr(lower(hex(randomblob(2))), 2),
                   lower(hex(randomblob(6))))),
  topic        text not null,
  key          text,
  headers      text,                  -- a JSON object of strings
  content_type text,
  payload      any,                   -- bytes, or text as plain SQL has it; null: a tombstone
  deliver_at   integer,               -- null: now
  appended_at  integer not null default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer))
) strict;

-- The log is append-only: a row that changed after it was read would have been published as something else.
create trigger posthaste_outbox_no_update before update on posthaste_outbox
begin
  select raise(abort, 'posthaste: rows of the outbox are never updated; append another event');
end;

-- Nor does a row leave before every sink has handled it: nobody could say any more what became of it.
create trigger posthaste_outbox_no_early_delete before delete on posthaste_outbox
  when exists (select 1 from posthaste_lanes l
                where l.retired_at is null
                  and old.seq > (select position from posthaste_receipts r
                                  where r.sink = l.sink and r.lane = l.lane order by n desc limit 1))
begin
  select raise(abort, 'posthaste: this event is not handled by every sink yet; the relay removes it when its time is over');
end;

-- (topic, idempotency_key) of events that carry one, for a declared time.
create table posthaste_idempotency_keys (
  topic       text not null,
  key         text not null,
  id          text not null,
  appended_at integer not null,
  primary key (topic, key)
) strict, without rowid;
create index posthaste_idempotency_keys_age on posthaste_idempotency_keys (appended_at);

-- Small facts agreed by all relays: routes in force, lane count, how often a lane became free.
create table posthaste_state (
  name  text primary key,
  value text not null
) strict, without rowid;

create table posthaste_relays (
  relay      text primary key,
  heart      text,                    -- name of the file whose lock says that the process lives; null: none
  routes     text not null,
  joined_at  integer not null,
  expires_at integer not null
) strict, without rowid;

-- Owner, epoch and lease of each lane of each sink.
create table posthaste_lanes (
  sink             text not null,
  lane             integer not null,
  slot_from        integer not null,
  slot_to          integer not null,
  filter           text not null,     -- what the sink reads
  filter_before    text,              -- what was read before the routes changed …
  filter_until     integer not null default 0,  -- … and is still read up to this number, so that nothing is skipped
  owner            text,
  heart            text,
  epoch            integer not null default 0,
  expires_at       integer,
  unclean          integer not null default 0,
  unclean_position integer,
  in_hand          integer,           -- the event about to be published, while the owner goes carefully
  suspect          integer,           -- the event that was in hand at the last death
  suspect_deaths   integer not null default 0,
  retired_at       integer,           -- the sink left the configuration: holds up nothing any more
  primary key (sink, lane)
) strict, without rowid;

-- The history of each cursor; its last row is the cursor: everything up to `position` is handled.
create table posthaste_receipts (
  sink       text not null,
  lane       integer not null,
  n          integer not null,
  epoch      integer not null,
  kind       text not null,           -- born, takeover, settle, rewind, repair, relane
  position   integer not null,
  count      integer not null default 0,  -- events handled by this receipt
  settled_at integer not null,
  primary key (sink, lane, n)
) strict, without rowid;

-- The exceptions: events that wait for a retry, their time, or an earlier event of their key. Copies stand by
-- themselves: they outlive the log's row. due_at = 9223372036854775807: behind another of its key.
create table posthaste_deferred (
  sink             text not null,
  seq              integer not null,
  slot             integer not null,
  id               text not null,
  topic            text not null,
  key              text,
  headers          text,
  content_type     text,
  payload          any,
  deliver_at       integer,
  appended_at      integer not null,
  route            text not null,
  destination      text not null,
  reason           text not null,
  holds            integer not null,
  attempts         integer not null default 0,
  earlier_attempts integer not null default 0,
  replays          integer not null default 0,
  due_at           integer not null,
  error_class      text,
  last_error       text,
  last_error_at    integer,
  deferred_at      integer not null,
  primary key (sink, seq)
) strict, without rowid;
create index posthaste_deferred_due on posthaste_deferred (sink, due_at);
create index posthaste_deferred_key on posthaste_deferred (sink, key, seq) where holds;

create table posthaste_dead_letters (
  letter       integer primary key autoincrement,
  sink         text not null,
  seq          integer not null,
  slot         integer not null,
  id           text not null,
  topic        text not null,
  key          text,
  headers      text,
  content_type text,
  payload      any,
  deliver_at   integer,
  appended_at  integer not null,
  route        text not null,
  holds_key    integer not null,
  attempts     integer not null,
  replays      integer not null default 0,
  error_class  text not null,
  error_code   text not null,
  error        text not null,
  dead_at      integer not null,
  unique (sink, seq)
) strict;
create index posthaste_dead_letters_id on posthaste_dead_letters (id);
create index posthaste_dead_letters_key on posthaste_dead_letters (sink, key) where holds_key;
create index posthaste_dead_letters_age on posthaste_dead_letters (dead_at);

create table posthaste_controls (
  kind       text not null check (kind in ('sink', 'route')),
  name       text not null,
  paused     integer not null default 0,
  rate_limit real,
  primary key (kind, name)
) strict, without rowid;

-- Who did what, and why. Nothing leaves the dead letters but by a line in here or a declared retention.
create table posthaste_audit (
  id     integer primary key autoincrement,
  at     integer not null,
  actor  text not null,
  action text not null,
  reason text not null,
  detail text not null
) strict;

-- For people with the sqlite3 shell.
create view posthaste_lanes_now as
  select l.sink, l.lane, l.owner, l.epoch, datetime(l.expires_at / 1000000, 'unixepoch') as expires_at, l.unclean,
         r.position, datetime(r.settled_at / 1000000, 'unixepoch') as settled_at, l.retired_at is not null as retired
    from posthaste_lanes l
    left join posthaste_receipts r on r.sink = l.sink and r.lane = l.lane
     and r.n = (select max(n) from posthaste_receipts m where m.sink = l.sink and m.lane = l.lane);

-- What lies behind each sink's hindmost lane, whatever its routes take of it.
create view posthaste_pending as
  select s.sink, o.seq, o.id, o.topic, o.key, datetime(o.appended_at / 1000000, 'unixepoch') as appended_at,
         length(o.payload) as payload_bytes
    from (select sink, min(position) as position from posthaste_lanes_now where not retired group by sink) s
    join posthaste_outbox o on o.seq > s.position;

create view posthaste_deferred_events as
  select sink, seq, id, topic, key, reason, attempts,
         case when due_at < 9223372036854775807 then datetime(due_at / 1000000, 'unixepoch') end as due_at,
         error_class, last_error, destination, datetime(appended_at / 1000000, 'unixepoch') as appended_at
    from posthaste_deferred;

create view posthaste_dead as
  select letter, sink, seq, id, topic, key, attempts, replays, error_class, error_code, error,
         datetime(dead_at / 1000000, 'unixepoch') as dead_at, holds_key, length(payload) as payload_bytes
    from posthaste_dead_letters;
