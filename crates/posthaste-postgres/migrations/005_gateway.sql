-- Version 5: the gateway, through which tenants hand in events over HTTP. Only adds: binaries of version 4 go on as before.

-- Who may hand in events, and how many. Null: the configuration's default. (NaN is greater than every number: the upper
-- bound refuses it.)
create table posthaste.gateway_tenants (
  tenant     text collate "C" primary key check (tenant ~ '^[A-Za-z0-9_.-]{1,64}$'),
  rate_per_s double precision check (rate_per_s > 0 and rate_per_s <= 100000),
  burst      integer check (burst between 1 and 1000000),
  paused     boolean not null default false,
  note       text,
  changed_at timestamptz not null default clock_timestamp()
);

-- Their keys: the hash, never the key.
create table posthaste.gateway_keys (
  id         text collate "C" primary key check (id ~ '^[a-z0-9]{12}$'),
  tenant     text collate "C" not null references posthaste.gateway_tenants on delete cascade,
  hash       bytea not null check (octet_length(hash) = 32),
  topics     text[],                -- null: all that are offered
  note       text,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz
);
create index gateway_keys_tenant on posthaste.gateway_keys (tenant);

-- What came with an Idempotency-Key. Scoped by tenant: nobody sees or hits another's.
create table posthaste.gateway_requests (
  tenant       text collate "C" not null,
  topic        text collate "C" not null,
  key          text collate "C" not null,
  request_hash bytea not null,
  ids          bytea not null,      -- 16 bytes for each event
  at           timestamptz not null default clock_timestamp(),
  primary key (tenant, topic, key)
);
create index gateway_requests_age on posthaste.gateway_requests (at);

-- One row for each commit: it says of a commit without an answer whether it happened.
create table posthaste.gateway_commits (
  id uuid primary key,
  at timestamptz not null default clock_timestamp()
);
create index gateway_commits_age on posthaste.gateway_commits (at);

-- Gateways read tenants and keys again when this number has changed. So a revoked key is no key within one look, and a
-- look costs one row.
insert into posthaste.state (name, value) values ('gateway_version', '1');
create function posthaste.gateway_changed() returns trigger language plpgsql as $$
begin
  update posthaste.state set value = (value::bigint + 1)::text where name = 'gateway_version';
  return null;
end $$;
create trigger gateway_changed after insert or update or delete or truncate on posthaste.gateway_tenants
  for each statement execute function posthaste.gateway_changed();
create trigger gateway_changed after insert or update or delete or truncate on posthaste.gateway_keys
  for each statement execute function posthaste.gateway_changed();

-- Appends what many requests have brought, in one call and one transaction. Requests are numbered by the caller; `keyed`
-- are those with an Idempotency-Key. Of those that came before it answers what was stored then, and appends nothing.
-- Events: the number of their request, and the columns of the log.
create function posthaste.gateway_append(
  commit_id uuid,
  keyed integer[], tenants text[], request_topics text[], request_keys text[], hashes bytea[], request_ids bytea[],
  requests integer[], event_ids uuid[], topics text[], keys text[], headers text[], content_types text[], payloads bytea[],
  deliver_ats bigint[]
) returns table (request integer, earlier_hash bytea, earlier_ids bytea) language plpgsql as $$
#variable_conflict use_column
declare
  fresh integer[] := '{}';
  known integer[] := '{}';
  answered bigint;
begin
  -- 202 is durable whatever the database's default is; what is stricter stays.
  if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  insert into posthaste.gateway_commits (id) values (commit_id);
  if cardinality(keyed) > 0 then
    -- A key that somebody else is about to commit is waited for, but not by a whole group for long.
    perform set_config('lock_timeout', '50ms', true);
    -- In one order for everybody, so that two groups cannot wait for each other.
    with inserted as (
      insert into posthaste.gateway_requests as g (tenant, topic, key, request_hash, ids)
      select r.tenant, r.topic, r.key, r.hash, r.ids
        from unnest(tenants, request_topics, request_keys, hashes, request_ids) as r (tenant, topic, key, hash, ids)
       order by r.tenant, r.topic, r.key
      on conflict do nothing
      returning g.tenant, g.topic, g.key
    )
    select coalesce(array_agg(r.n), '{}') into fresh
      from unnest(keyed, tenants, request_topics, request_keys) as r (n, tenant, topic, key)
      join inserted i on i.tenant = r.tenant and i.topic = r.topic and i.key = r.key;
    select coalesce(array_agg(r.n), '{}') into known from unnest(keyed) as r (n) where r.n <> all (fresh);
  end if;
  if cardinality(known) > 0 then
    -- A statement of its own: it sees what others have committed while the first one waited for them.
    return query
      select r.n, g.request_hash, g.ids
        from unnest(keyed, tenants, request_topics, request_keys) as r (n, tenant, topic, key)
        join posthaste.gateway_requests g on g.tenant = r.tenant and g.topic = r.topic and g.key = r.key
       where r.n = any (known);
    get diagnostics answered = row_count;
    if answered < cardinality(known) then
      raise exception 'posthaste: an idempotency key was purged meanwhile' using errcode = '40001';
    end if;
  end if;
  insert into posthaste.outbox (id, topic, key, headers, content_type, payload, deliver_at)
  select e.id, e.topic, e.key, e.headers::jsonb, e.content_type, e.payload, to_timestamp(e.deliver_at::float8 / 1e6)
    from unnest(requests, event_ids, topics, keys, headers, content_types, payloads, deliver_ats) with ordinality
         as e (n, id, topic, key, headers, content_type, payload, deliver_at, place)
   where e.n <> all (known)
   order by e.place;
end $$;
