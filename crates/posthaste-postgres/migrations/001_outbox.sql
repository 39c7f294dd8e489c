-- Version 1: the append-only outbox log and everything around it.
-- The schema name `posthaste` is replaced by the configured one.

-- Numbers of events. CACHE 1: a cached block would let a session draw numbers below a mark.
create sequence posthaste.outbox_seq as bigint minvalue 1 cache 1;
-- The current segment of the ring. Read without a lock by the column default; only the relay may turn it.
create sequence posthaste.outbox_segment as bigint minvalue 1 maxvalue 8 cache 1;
select setval('posthaste.outbox_segment', 1, true);
-- Until when (milliseconds since 1970) appends should notify: the deadline of a sleeping relay.
create sequence posthaste.outbox_wakeup as bigint minvalue 0 start 0 cache 1;
select setval('posthaste.outbox_wakeup', 0, true);

-- A UUIDv7: 48 bits of milliseconds, the rest random.
create function posthaste.uuid_v7() returns uuid language sql volatile parallel safe as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
              placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
              from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid
$$;

-- The log. A row is written once; nobody updates or deletes it.
-- seq is drawn after the transaction has its xid, by construction of the CASE, not by luck of column
-- order: the cursor's proof rests on it (a mark (W, p) means that transactions above W draw above p).
-- No coalesce on segment: where the right to read the sequence is missing, the append must fail loudly
-- instead of writing into a segment that may be sealed.
create table posthaste.outbox (
  seq          bigint      not null
                 default (case when pg_current_xact_id() is not null then nextval('posthaste.outbox_seq') end),
  xid          xid8        not null default pg_current_xact_id(),
  segment      smallint    not null
                 default (case when pg_current_xact_id() is not null
                          then pg_sequence_last_value('posthaste.outbox_segment'::regclass) end)::smallint,
  slot         smallint    not null generated always as (
                 (case when key is null then seq else hashtextextended(key, 0) end & 1023)::smallint) stored,
  id           uuid        not null default posthaste.uuid_v7(),
  topic        text        collate "C" not null,
  key          text        collate "C",
  headers      jsonb,
  content_type text,
  payload      bytea,
  deliver_at   timestamptz,
  appended_at  timestamptz not null default clock_timestamp()
) partition by list (segment);

comment on table posthaste.outbox is
  'Append-only log of events. Append with posthaste.append(...), INSERT or COPY; never update or delete.';

do $$
begin
  for n in 1..8 loop
    execute format(
      'create table posthaste.outbox_%1$s partition of posthaste.outbox for values in (%1$s)
         with (autovacuum_vacuum_insert_threshold = -1)', n);
    execute format('create unique index outbox_%1$s_seq on posthaste.outbox_%1$s (seq)', n);
    -- One event by id, and the rows of one long transaction: a few kilobytes each, summarised as the
    -- segment grows.
    execute format('create index outbox_%1$s_id on posthaste.outbox_%1$s using brin (id)
                      with (pages_per_range = 32, autosummarize = on)', n);
    execute format('create index outbox_%1$s_xid on posthaste.outbox_%1$s using brin ((xid::text::bigint))
                      with (pages_per_range = 32, autosummarize = on)', n);
  end loop;
end $$;

-- Wakeup: one NOTIFY for a statement, and only while a relay sleeps. NOTIFY takes a lock that serialises
-- the commits of the whole cluster, so it must not be the rule.
create function posthaste.wake() returns trigger language plpgsql as $$
begin
  perform pg_notify(tg_table_schema || '_wakeup', '');
  return null;
end $$;

create trigger outbox_wakeup after insert on posthaste.outbox for each statement
  when (pg_sequence_last_value('posthaste.outbox_wakeup'::regclass)
        > (extract(epoch from clock_timestamp()) * 1000)::bigint)
  execute function posthaste.wake();

-- (topic, idempotency_key) of events that carry one, for a declared time. A unique index over all
-- segments of the log is impossible on purpose.
create table posthaste.idempotency_keys (
  topic       text collate "C" not null,
  key         text collate "C" not null,
  id          uuid not null,
  appended_at timestamptz not null default clock_timestamp(),
  primary key (topic, key)
);
create index idempotency_keys_age on posthaste.idempotency_keys (appended_at);

-- What an append accepts; set by `posthaste migrate up` from the configuration. Functions and no table: a
-- constant that the planner folds costs an append nothing.
create function posthaste.topic_bytes_max() returns integer language sql immutable parallel safe
  as 'select 255';
create function posthaste.key_bytes_max() returns integer language sql immutable parallel safe
  as 'select 1024';
create function posthaste.payload_bytes_max() returns integer language sql immutable parallel safe
  as 'select 1048576';
create function posthaste.header_bytes_max() returns integer language sql immutable parallel safe
  as 'select 16384';

-- Refuses headers that no broker could carry, by name. The relay checks the same again.
create function posthaste.check_headers(headers jsonb) returns void language plpgsql immutable parallel safe as $$
declare
  name text collate "C";
  value jsonb;
  bytes integer := 0;
begin
  if jsonb_typeof(headers) <> 'object' then
    raise exception 'posthaste: headers must be a JSON object of strings, not %', jsonb_typeof(headers) using errcode = '22023';
  end if;
  for name, value in select h.key, h.value from jsonb_each(headers) h loop
    if jsonb_typeof(value) <> 'string' then
      raise exception 'posthaste: header "%" must be a string, not %', name, jsonb_typeof(value) using errcode = '22023';
    elsif name !~ '^[A-Za-z0-9_.~-]{1,128}$' then
      raise exception 'posthaste: header name "%" must be made of letters, digits and -_.~ and be at most 128 bytes long', name
        using errcode = '22023';
    elsif lower(name) in ('message-id', 'key', 'time', 'source', 'posthaste-tombstone') then
      raise exception 'posthaste: header "%" is written by Posthaste itself', name using errcode = '22023';
    elsif value #>> '{}' ~ '[\r\n]' then
      raise exception 'posthaste: the value of header "%" holds a line break', name using errcode = '22023';
    end if;
    bytes := bytes + octet_length(name) + octet_length(value #>> '{}');
  end loop;
  if bytes > posthaste.header_bytes_max() then
    raise exception 'posthaste: headers have % bytes in all, at most % are allowed', bytes, posthaste.header_bytes_max()
      using errcode = '22023';
  end if;
end $$;

-- Append from any language, inside the caller's own transaction. Returns the event's id. With an
-- idempotency key the second append of the same (topic, key) returns the first one's id and adds
-- nothing, also when two transactions race: the second waits for the first to end.
create function posthaste.append(
  topic text, payload bytea, key text default null, headers jsonb default null, id uuid default null,
  idempotency_key text default null, deliver_at timestamptz default null, content_type text default null
) returns uuid language plpgsql as $$
#variable_conflict use_variable
declare
  given alias for id;
  result uuid := coalesce(given, posthaste.uuid_v7());
  earlier uuid;
begin
  if topic is null or topic = '' then
    raise exception 'posthaste: topic is empty' using errcode = '22023';
  elsif octet_length(topic) > posthaste.topic_bytes_max() then
    raise exception 'posthaste: topic has % bytes, at most % are allowed', octet_length(topic), posthaste.topic_bytes_max()
      using errcode = '22023';
  elsif topic ~ '[[:space:][:cntrl:]]' then
    raise exception 'posthaste: topic holds white space or a control character' using errcode = '22023';
  elsif key = '' then
    raise exception 'posthaste: key is empty; leave it out for an event without a key' using errcode = '22023';
  elsif octet_length(key) > posthaste.key_bytes_max() then
    raise exception 'posthaste: key has % bytes, at most % are allowed', octet_length(key), posthaste.key_bytes_max()
      using errcode = '22023';
  elsif key ~ '[\r\n]' then
    raise exception 'posthaste: key holds a line break' using errcode = '22023';
  elsif content_type is not null and (content_type = '' or octet_length(content_type) > 255 or content_type ~ '[\r\n]') then
    raise exception 'posthaste: content type must have 1 to 255 bytes without line breaks' using errcode = '22023';
  elsif octet_length(payload) > posthaste.payload_bytes_max() then
    raise exception 'posthaste: payload has % bytes, at most % are allowed', octet_length(payload), posthaste.payload_bytes_max()
      using errcode = '22023';
  elsif idempotency_key is not null and (idempotency_key = '' or octet_length(idempotency_key) > 255) then
    raise exception 'posthaste: idempotency key must have 1 to 255 bytes' using errcode = '22023';
  end if;
  if headers is not null then
    perform posthaste.check_headers(headers);
  end if;
  while idempotency_key is not null loop
    insert into posthaste.idempotency_keys as k (topic, key, id) values (topic, idempotency_key, result)
      on conflict on constraint idempotency_keys_pkey do nothing;
    exit when found;
    select k.id into earlier from posthaste.idempotency_keys k
     where k.topic = append.topic and k.key = append.idempotency_key;
    if found then
      return earlier;
    end if;
    -- Its time ran out between the two statements: once more.
  end loop;
  insert into posthaste.outbox (id, topic, key, headers, content_type, payload, deliver_at)
    values (result, topic, key, headers, content_type, payload, deliver_at);
  return result;
end $$;

create function posthaste.append(
  topic text, payload text, key text default null, headers jsonb default null, id uuid default null,
  idempotency_key text default null, deliver_at timestamptz default null, content_type text default null
) returns uuid language sql as $$
  select posthaste.append($1, convert_to($2, 'UTF8'), $3, $4, $5, $6, $7, coalesce($8, 'text/plain; charset=utf-8'))
$$;

create function posthaste.append(
  topic text, payload jsonb, key text default null, headers jsonb default null, id uuid default null,
  idempotency_key text default null, deliver_at timestamptz default null, content_type text default null
) returns uuid language sql as $$
  select posthaste.append($1, convert_to($2::text, 'UTF8'), $3, $4, $5, $6, $7, coalesce($8, 'application/json'))
$$;

-- The ring. Whoever turns, seals or truncates holds this row's lock in the session that does it.
create table posthaste.ring (
  one  boolean primary key default true check (one),
  turn bigint not null
);
insert into posthaste.ring (turn) values (1);

create table posthaste.segments (
  segment    smallint primary key,
  turn       bigint,                  -- the turn it was opened at; null: empty
  opened_at  timestamptz,
  opened_xid xid8 not null,           -- taken when it was last empty: receipts of its rows are younger
  closed_at  timestamptz,
  seal_xid   xid8,                    -- taken in a later transaction than the turn away from it
  closing    boolean not null default false,  -- audited; readers leave it out until it is truncated
  truncated_at timestamptz,           -- not turned into right after: a reader may still leave it out
  audit_note text
);
insert into posthaste.segments (segment, opened_xid) select n, pg_current_xact_id() from generate_series(1, 8) n;
update posthaste.segments set turn = 1, opened_at = clock_timestamp() where segment = 1;

-- Small facts agreed by all relays: routes in force, lane count, the cluster's identity.
create table posthaste.state (
  name  text primary key,
  value text not null
);

create table posthaste.relays (
  relay      text primary key,
  heart      integer,                 -- number of its session lock; null behind a pooler
  routes     text not null,
  joined_at  timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null
);

-- Owner, epoch and lease of each lane of each sink.
create table posthaste.lanes (
  sink             text not null,
  lane             smallint not null,
  slot_from        smallint not null,
  slot_to          smallint not null,
  filter           text not null,     -- what the sink reads, for the audit
  filter_n         bigint not null,   -- receipts up to this one were read under another filter
  filter_before    text,              -- what was read before the routes changed, ...
  filter_until     bigint not null default 0,  -- ... and is still read up to this number, so that nothing is skipped
  owner            text,
  heart            integer,
  epoch            bigint not null default 0,
  expires_at       timestamptz,
  unclean          integer not null default 0,
  unclean_position bigint,
  in_hand          bigint,            -- the event about to be published, while the owner goes carefully
  suspect          bigint,            -- the event that was in hand at the last death
  suspect_deaths   integer not null default 0,
  retired_at       timestamptz,       -- the sink left the configuration: holds up nothing any more
  primary key (sink, lane)
) with (fillfactor = 50);

-- Crash recovery empties this table, and with it every cursor that lives in a relay's memory.
create unlogged table posthaste.lease_tokens (
  sink  text not null,
  lane  smallint not null,
  epoch bigint not null,
  primary key (sink, lane)
);

-- The history of each cursor; its last row is the cursor. Unique (sink, lane, n) is the fence: whoever
-- takes a lane over writes n + 1 first, and the former owner's n + 1 fails.
create table posthaste.receipts (
  sink          text not null,
  lane          smallint not null,
  n             bigint not null,
  epoch         bigint not null,
  kind          text not null,        -- born, takeover, settle, rewind, repair, relane
  xid           xid8 not null default pg_current_xact_id(),
  mark          bigint not null,      -- a number read before xid was assigned
  position      bigint not null,
  snapshot      pg_snapshot not null,
  target        pg_snapshot,
  late_position bigint,
  segments      smallint[],           -- the double entry: rows handled by this receipt, by segment
  counts        bigint[],
  sums          bigint[],
  settled_at    timestamptz not null default clock_timestamp(),
  primary key (sink, lane, n)
);
create index receipts_xid on posthaste.receipts (xid);

-- The exceptions: events that wait for a retry, their time, or an earlier event of their key. Copies
-- stand by themselves: they outlive their segment. due_at = infinity: behind another of its key.
create table posthaste.deferred (
  sink           text not null,
  seq            bigint not null,
  slot           smallint not null,
  id             uuid not null,
  topic          text collate "C" not null,
  key            text collate "C",
  headers        jsonb,
  content_type   text,
  payload        bytea,
  deliver_at     timestamptz,
  appended_at    timestamptz not null,
  route          text not null,
  destination    text not null,
  reason         text not null,
  holds          boolean not null,
  attempts       integer not null default 0,
  earlier_attempts integer not null default 0,
  replays        integer not null default 0,
  due_at         timestamptz not null,
  error_class    text,
  last_error     text,
  last_error_at  timestamptz,
  deferred_at    timestamptz not null default clock_timestamp(),
  primary key (sink, seq)
);
create index deferred_due on posthaste.deferred (sink, due_at);
create index deferred_key on posthaste.deferred (sink, key, seq) where holds;

create table posthaste.dead_letters (
  letter         bigint generated always as identity primary key,
  sink           text not null,
  seq            bigint not null,
  slot           smallint not null,
  id             uuid not null,
  topic          text collate "C" not null,
  key            text collate "C",
  headers        jsonb,
  content_type   text,
  payload        bytea,
  deliver_at     timestamptz,
  appended_at    timestamptz not null,
  route          text not null,
  holds_key      boolean not null,
  attempts       integer not null,
  replays        integer not null default 0,
  error_class    text not null,
  error_code     text not null,
  error          text not null,
  dead_at        timestamptz not null default clock_timestamp(),
  unique (sink, seq)
);
create index dead_letters_id on posthaste.dead_letters (id);
create index dead_letters_key on posthaste.dead_letters (sink, key, seq) where holds_key;
create index dead_letters_age on posthaste.dead_letters (dead_at);

create table posthaste.controls (
  kind       text not null check (kind in ('sink', 'route')),
  name       text not null,
  paused     boolean not null default false,
  rate_limit double precision,
  primary key (kind, name)
);

-- Who did what, and why. Nothing leaves the dead letters but by a line in here or a declared retention.
create table posthaste.audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null default clock_timestamp(),
  actor  text not null,
  action text not null,
  reason text not null,
  detail jsonb not null
);

-- For people with psql.
create view posthaste.lanes_now as
  select l.sink, l.lane, l.owner, l.epoch, l.expires_at, l.unclean, r.position, r.snapshot,
         r.target is not null as catching_up, r.settled_at, l.retired_at
    from posthaste.lanes l
    left join lateral (select * from posthaste.receipts r
                        where r.sink = l.sink and r.lane = l.lane order by n desc limit 1) r on true;

create view posthaste.pending as
  select l.sink, l.lane, o.seq, o.id, o.topic, o.key, o.appended_at,
         clock_timestamp() - o.appended_at as age, octet_length(o.payload) as payload_bytes
    from posthaste.lanes_now l
    join posthaste.lanes p on p.sink = l.sink and p.lane = l.lane
    join posthaste.outbox o on o.seq > l.position and o.slot between p.slot_from and p.slot_to
   where l.retired_at is null
     and (p.filter = '' or (left(p.filter, 1) = '+' and o.topic like any (string_to_array(substr(p.filter, 2), chr(10))))
       or (left(p.filter, 1) = '-' and not o.topic like any (string_to_array(substr(p.filter, 2), chr(10)))));

create view posthaste.deferred_events as
  select sink, seq, id, topic, key, reason, attempts, nullif(due_at, 'infinity') as due_at, error_class,
         last_error, last_error_at, destination, appended_at
    from posthaste.deferred;

create view posthaste.dead as
  select letter, sink, seq, id, topic, key, attempts, replays, error_class, error_code, error, dead_at,
         holds_key, appended_at, octet_length(payload) as payload_bytes
    from posthaste.dead_letters;
