-- A handler that takes a whole batch: one INSERT for as many orders as there are. docs/consume.md tells of it.
create schema ledger;
create table ledger.orders (id bigint primary key, total numeric not null);

create function ledger.on_orders(batch posthaste.message[]) returns void language sql as $$
  insert into ledger.orders (id, total)
  select (posthaste.json(m) ->> 'id')::bigint, (posthaste.json(m) ->> 'total')::numeric from unnest(batch) as m
$$;
