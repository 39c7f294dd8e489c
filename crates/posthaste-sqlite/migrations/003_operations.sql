-- Version 3: operations. Only adds, and whatever it adds may be null: binaries of version 2 go on as before.

-- What an event waits for, by cause, and its last ten attempts.
alter table posthaste_deferred add column error_code text;
alter table posthaste_deferred add column history text;

-- One number for each cause of failure. Null: a relay of an older version wrote the letter.
alter table posthaste_dead_letters add column fingerprint integer;
alter table posthaste_dead_letters add column history text;
create index posthaste_dead_letters_cause on posthaste_dead_letters (fingerprint, letter);
create index posthaste_inbox_dead_cause on posthaste_inbox_dead_letters (consumer, fingerprint, letter);

-- Events delivered with this receipt. The others that it counts were put aside or died. Null: written by an older relay.
alter table posthaste_receipts add column delivered integer;

-- Who set a control, why, when, and until when it holds. Those of an outbox are its tuning. A check cannot be altered, so
-- the table is made anew.
create table posthaste_controls_new (
  kind       text not null check (kind in ('sink', 'route', 'consumer', 'outbox')),
  name       text not null,
  paused     integer not null default 0,
  rate_limit real,
  settings   text,
  until      integer,
  actor      text,
  reason     text,
  set_at     integer,
  primary key (kind, name)
) strict, without rowid;
insert into posthaste_controls_new (kind, name, paused, rate_limit)
  select kind, name, paused, rate_limit from posthaste_controls;
drop table posthaste_controls;
alter table posthaste_controls_new rename to posthaste_controls;

-- trace_id: of the request or the command. verified: a token said who it was; else they said so themselves.
alter table posthaste_audit add column trace_id text;
alter table posthaste_audit add column verified integer;
alter table posthaste_audit add column outcome text check (outcome in ('done', 'denied'));

-- Bulk acts. A chunk's transaction holds what is done to its letters, its line in the audit, and the job's progress.
create table posthaste_jobs (
  job             integer primary key autoincrement,
  kind            text not null,
  consumer        text,               -- of a consumer's kinds
  plan            text not null,      -- what it means: the filter, and what belongs to the kind
  upto            text not null,      -- it never goes beyond this letter or number
  position        text,               -- the last one that it has looked at
  rate_per_s      real check (rate_per_s > 0),
  state           text not null default 'queued'
                    check (state in ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')),
  total           integer not null,   -- what the dry run counted
  done            integer not null default 0,
  left_alone      integer not null default 0,
  reasons         text not null default '{}',  -- why they were left alone: {code: how many}
  error           text,
  actor           text not null,
  verified        integer not null,
  reason          text not null,
  trace_id        text not null,
  idempotency_key text unique,
  owner           text,               -- the process that runs it
  epoch           integer not null default 0,  -- each owner has a higher one: the fence of a chunk
  lease_until     integer,
  created_at      integer not null,
  started_at      integer,
  ended_at        integer
) strict;
create index posthaste_jobs_open on posthaste_jobs (job) where state in ('queued', 'running', 'paused');

-- Each line of the audit as an event, in the transaction of the act, where `posthaste migrate up` wrote the topic down.
-- Nothing in here can fail, for that would undo the act: what is no JSON is sent as text, what is too long is cut, and the
-- line itself has all of it. Denied acts, and acts on the audit's own events alone, stay here: they would go round for
-- ever. An act on others too is sent: nobody hides it by adding one of the audit's.
create trigger posthaste_audit_event after insert on posthaste_audit
  when exists (select 1 from posthaste_state where name = 'audit_topic')
   and new.outcome is not 'denied'
   and not exists (select 1 from posthaste_state s
                    where s.name = 'audit_topic'
                      and case when json_valid(new.detail) then json_extract(new.detail, '$.topics') end
                          = json_array(s.value))
begin
  insert into posthaste_outbox (topic, key, content_type, payload)
  -- What is no key of an event (empty, too long, with a line break or a zero) stays in the payload.
  select s.value, case when length(cast(new.trace_id as blob)) between 1 and 200
                            and instr(cast(new.trace_id as blob), x'0a') = 0
                            and instr(cast(new.trace_id as blob), x'0d') = 0
                            and instr(cast(new.trace_id as blob), x'00') = 0 then new.trace_id else new.id end,
         'application/json', cast(json_object(
           'id', new.id, 'at', strftime('%Y-%m-%dT%H:%M:%S', new.at / 1000000, 'unixepoch')
             || printf('.%06dZ', new.at % 1000000),
           'actor', substr(new.actor, 1, 1000), 'verified', json(case when new.verified then 'true' else 'false' end),
           'action', substr(new.action, 1, 200), 'reason', substr(new.reason, 1, 2000),
           'outcome', coalesce(new.outcome, 'done'), 'trace_id', substr(new.trace_id, 1, 200),
           'detail', json(case when length(cast(new.detail as blob)) > 65536 then '{"cut": true}'
                               when json_valid(new.detail) then new.detail
                               else json_quote(new.detail) end)) as blob)
    from posthaste_state s where s.name = 'audit_topic';
end;
