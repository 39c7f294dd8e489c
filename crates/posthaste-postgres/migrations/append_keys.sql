-- `append` with a key that is a number or a UUID: a cast, and the function of version 1. `key` has no default here, so a call
-- without one still has one meaning; and an untyped key, null included, is text, because PostgreSQL prefers strings.
do $$
declare
  payload text;
  key text;
begin
  foreach payload in array array['bytea', 'text', 'jsonb'] loop
    foreach key in array array['bigint', 'uuid'] loop
      execute format('create or replace function posthaste.append(
          topic text, payload %s, key %s, headers jsonb default null, id uuid default null, idempotency_key text default null,
          deliver_at timestamptz default null, content_type text default null
        ) returns uuid language sql as ''select posthaste.append($1, $2, $3::text, $4, $5, $6, $7, $8)''', payload, key);
    end loop;
  end loop;
end $$
