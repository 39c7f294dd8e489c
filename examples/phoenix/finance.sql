-- The service's own table, and what it does with a campaign. Both commit with the mark, or neither does.
create schema if not exists finance;
create table if not exists finance.reservations (
  campaign_id uuid primary key,
  tenant_id   text not null,
  amount      numeric not null check (amount > 0)
);

create or replace function finance.on_campaign(m posthaste.message) returns void language plpgsql as $$
declare
  campaign jsonb := posthaste.json(m);  -- what is no JSON is rejected, and lands in sys.dead_letters
begin
  if campaign ->> 'tenant_id' is null then
    raise exception 'a campaign without a tenant' using errcode = 'PH001';
  end if;
  insert into finance.reservations (campaign_id, tenant_id, amount)
  values ((campaign ->> 'campaign_id')::uuid, campaign ->> 'tenant_id', (campaign ->> 'budget')::numeric);
  perform posthaste.append('core.events.v1',
    jsonb_build_object('campaign_id', campaign ->> 'campaign_id', 'reserved', campaign ->> 'budget'),
    key => campaign ->> 'tenant_id',
    headers => posthaste.caused(m, jsonb_build_object('type', 'budget_reserved', 'tenant_id', campaign ->> 'tenant_id')));
end $$;

-- The seed's other two groups, in short: what they take is noted, once for each message.
create table if not exists finance.noted (service text, id text, primary key (service, id));

create or replace function finance.on_command(m posthaste.message) returns void language sql as $$
  insert into finance.noted values ('actuator', m.id)
$$;

create or replace function finance.on_audit(m posthaste.message) returns void language sql as $$
  insert into finance.noted values ('audit', m.topic || ':' || m.id)
$$;

grant usage on schema finance to posthaste_consumer;
grant insert on finance.reservations, finance.noted to posthaste_consumer;
