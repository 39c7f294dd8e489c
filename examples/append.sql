-- Appending events from any language that speaks SQL. Run it with
--
--   psql "$DB" -v ON_ERROR_STOP=1 -f examples/append.sql
--
-- after `posthaste migrate up --url "$DB"`. The role needs membership in posthaste_app, nothing more. All topics begin
-- with `orders.`: a relay whose routes do not take them makes dead letters of these events.

-- The event and the business data: one transaction, both or neither.
begin;
create temporary table orders (id bigint primary key, total numeric) on commit drop;
insert into orders values (42, 9.90);
select posthaste.append('orders.placed', '{"order": 42}'::jsonb, key => 42); -- a key is a number, a UUID or a text
commit;

-- Text and bytes travel untouched. (jsonb is PostgreSQL's: it may reorder the members of an object.)
select posthaste.append('orders.note', 'plain text', key => 42);
select posthaste.append('orders.scan', '\x00ff10'::bytea, content_type => 'application/octet-stream');

-- Headers are an object of strings. `type` is the event's type; without it the topic is.
select posthaste.append('orders.placed', '{"order": 43}'::jsonb, key => 43,
                        headers => '{"type": "OrderPlaced", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}');

-- Asking twice appends once: the second call returns the first one's id.
select posthaste.append('orders.paid', '{"order": 42}'::jsonb, key => 42, idempotency_key => 'order-42-paid');
select posthaste.append('orders.paid', '{"order": 42}'::jsonb, key => 42, idempotency_key => 'order-42-paid');

-- Not before a given time.
select posthaste.append('orders.reminder', 'still open', key => 43, deliver_at => now() + interval '1 hour');

-- A tombstone: no payload at all.
select posthaste.append('orders.deleted', null::bytea, key => 41);

-- Many at once: plain INSERT and COPY work too. The relay checks the limits again.
insert into posthaste.outbox (topic, key, content_type, payload)
select 'orders.line-added', n::text, 'application/json', convert_to(format('{"order": %s}', n), 'UTF8')
  from generate_series(1, 1000) n;
