-- Version 4: the gateway, through which tenants hand in events over HTTP. Only adds: binaries of version 3 go on as before.

-- Who may hand in events, and how many. Null: the configuration's default.
create table posthaste_gateway_tenants (
  tenant     text primary key check (length(tenant) between 1 and 64 and tenant not glob '*[^A-Za-z0-9_.-]*'),
  rate_per_s real check (rate_per_s > 0 and rate_per_s <= 100000),
  burst      integer check (burst between 1 and 1000000),
  paused     integer not null default 0,
  note       text,
  changed_at integer not null
) strict, without rowid;

-- Their keys: the hash, never the key.
create table posthaste_gateway_keys (
  id         text primary key check (length(id) = 12 and id not glob '*[^a-z0-9]*'),
  tenant     text not null references posthaste_gateway_tenants on delete cascade,
  hash       blob not null check (length(hash) = 32),
  topics     text,                  -- a JSON list; null: all that are offered
  note       text,
  created_at integer not null,
  expires_at integer,
  revoked_at integer
) strict, without rowid;
create index posthaste_gateway_keys_tenant on posthaste_gateway_keys (tenant);

-- What came with an Idempotency-Key. Scoped by tenant: nobody sees or hits another's.
create table posthaste_gateway_requests (
  tenant       text not null,
  topic        text not null,
  key          text not null,
  request_hash blob not null,
  ids          blob not null,       -- 16 bytes for each event
  at           integer not null,
  primary key (tenant, topic, key)
) strict, without rowid;
create index posthaste_gateway_requests_age on posthaste_gateway_requests (at);

-- Gateways read tenants and keys again when this number has changed.
insert into posthaste_state (name, value) values ('gateway_version', '1');
create trigger posthaste_gateway_tenant_new after insert on posthaste_gateway_tenants begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
create trigger posthaste_gateway_tenant_set after update on posthaste_gateway_tenants begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
create trigger posthaste_gateway_tenant_gone after delete on posthaste_gateway_tenants begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
create trigger posthaste_gateway_key_new after insert on posthaste_gateway_keys begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
create trigger posthaste_gateway_key_set after update on posthaste_gateway_keys begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
create trigger posthaste_gateway_key_gone after delete on posthaste_gateway_keys begin
  update posthaste_state set value = cast(value as integer) + 1 where name = 'gateway_version';
end;
