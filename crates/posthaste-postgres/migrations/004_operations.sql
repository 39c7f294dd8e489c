-- Version 4: operations. Only adds, and whatever it adds may be null: binaries of version 3 go on as before.

-- All of them now, in the order in which a settlement takes them: a relay waits until this is over, and nobody waits for
-- that relay in turn.
lock table posthaste.receipts, posthaste.deferred, posthaste.dead_letters, posthaste.inbox_dead_letters,
  posthaste.controls, posthaste.audit in access exclusive mode;

-- What an event waits for, by cause, and its last ten attempts.
alter table posthaste.deferred add column error_code text, add column history jsonb;

-- A history with one attempt more, which happened now. It keeps ten. What somebody made of it by hand is begun anew.
create function posthaste.attempts(history jsonb, attempt text) returns jsonb language sql volatile as $$
  select case when $2 is null then $1
    else (case when jsonb_typeof($1) is distinct from 'array' then '[]' when jsonb_array_length($1) >= 10 then $1 - 0 else $1 end)
      || (jsonb_build_object('at', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || $2::jsonb)
    end
$$;

-- One number for each cause of failure. Null: a relay of an older version wrote the letter.
alter table posthaste.dead_letters add column fingerprint bigint, add column history jsonb;
create index dead_letters_cause on posthaste.dead_letters (fingerprint, letter);
-- Not with the consumer first: a look for one letter, planned while the table is empty, would walk all of its consumer's.
create index inbox_dead_cause on posthaste.inbox_dead_letters (fingerprint, consumer, letter);

-- Events delivered with this receipt. The others that it counts were put aside or died. Null: written by an older relay.
alter table posthaste.receipts add column delivered bigint;

-- Who set a control, why, when, and until when it holds. Those of an outbox are its tuning.
alter table posthaste.controls add column settings jsonb, add column until timestamptz, add column actor text,
  add column reason text, add column set_at timestamptz,
  drop constraint controls_kind_check,
  add constraint controls_kind_check check (kind in ('sink', 'route', 'consumer', 'outbox'));

-- trace_id: of the request or the command. verified: a token said who it was; else they said so themselves. The defaults
-- are set apart: given with the column they would be said of all older lines, too.
alter table posthaste.audit add column trace_id text, add column verified boolean,
  add column outcome text check (outcome in ('done', 'denied')), add column db_user text;
alter table posthaste.audit alter column trace_id set default replace(gen_random_uuid()::text, '-', ''),
  alter column db_user set default session_user;

-- Bulk acts. A chunk's transaction holds what is done to its letters, its line in the audit, and the job's progress.
create table posthaste.jobs (
  job             bigint generated always as identity primary key,
  kind            text not null,
  consumer        text,               -- of a consumer's kinds
  plan            jsonb not null,     -- what it means: the filter, and what belongs to the kind
  upto            text not null,      -- it never goes beyond this letter or number
  position        text,               -- the last one that it has looked at
  rate_per_s      double precision check (rate_per_s > 0),
  state           text not null default 'queued'
                    check (state in ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')),
  total           bigint not null,    -- what the dry run counted
  done            bigint not null default 0,
  left_alone      bigint not null default 0,
  reasons         jsonb not null default '{}',  -- why they were left alone: {code: how many}
  error           text,
  actor           text not null,
  verified        boolean not null,
  reason          text not null,
  trace_id        text not null,
  idempotency_key text unique,
  owner           text,               -- the process that runs it
  epoch           bigint not null default 0,    -- each owner has a higher one: the fence of a chunk
  lease_until     timestamptz,
  created_at      timestamptz not null default clock_timestamp(),
  started_at      timestamptz,
  ended_at        timestamptz
);
create index jobs_open on posthaste.jobs (job) where state in ('queued', 'running', 'paused');

-- Where the audit goes; set by `posthaste migrate up` from the configuration. Null: nowhere. Not immutable: a session's
-- cached plans would keep the former topic.
create function posthaste.audit_topic() returns text language sql stable parallel safe as 'select null::text';

-- Each line of the audit as an event, in the transaction of the act. It never raises: that would undo the act, and stop
-- the retention. So whatever somebody wrote is cut to what an event can hold; the line itself has all of it. Denied acts,
-- and acts on the audit's own events alone, stay here: they would go round for ever. An act on others too is sent: nobody
-- hides it by adding one of the audit's.
create function posthaste.publish_audit() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
declare
  audit_topic text := posthaste.audit_topic();
begin
  if new.outcome = 'denied' or new.detail -> 'topics' = jsonb_build_array(audit_topic) then
    return null;
  end if;
  perform posthaste.append(
    topic => audit_topic,
    payload => jsonb_build_object(
      'id', new.id, 'at', to_char(new.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
      'actor', left(new.actor, 1000), 'verified', coalesce(new.verified, false), 'db_user', new.db_user,
      'action', left(new.action, 200), 'reason', left(new.reason, 2000), 'outcome', coalesce(new.outcome, 'done'),
      'trace_id', left(new.trace_id, 200),
      'detail', case when octet_length(new.detail::text) <= least(65536, posthaste.payload_bytes_max() / 2)
                     then new.detail else '{"cut": true}' end),
    -- What is no key of an event (empty, too long, with a line break) stays in the payload.
    key => case when octet_length(new.trace_id) between 1 and least(200, posthaste.key_bytes_max())
                     and new.trace_id !~ '[\r\n]' then new.trace_id else new.id::text end);
  return null;
exception when others then
  raise warning 'posthaste: line % of the audit was not sent to "%": %', new.id, audit_topic, sqlerrm;
  return null;
end $$;
revoke execute on function posthaste.publish_audit() from public;

create trigger audit_event after insert on posthaste.audit for each row when (posthaste.audit_topic() is not null)
  execute function posthaste.publish_audit();
