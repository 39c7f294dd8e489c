-- The service of the trials: a handler that notes each call, and does what the type of a message says.
create schema trial;
create table trial.effects (seq bigserial primary key, id text not null, type text not null, key text not null, n integer not null,
                            published_at timestamptz, at timestamptz not null default clock_timestamp());
create table trial.mood (fixed boolean not null);
insert into trial.mood values (false);
create table trial.pair (id integer primary key, n integer not null);
insert into trial.pair values (0, 0), (1, 0);
create table trial.liars (id text primary key);
create function trial.handle(m posthaste.message) returns void language plpgsql as $$
declare
  body jsonb := posthaste.json(m);
begin
  insert into trial.effects (id, type, key, n, published_at)
    values (m.id, m.type, convert_from(m.key, 'UTF8'), (body ->> 'n')::int, m.published_at);
  case m.type
    when 'late' then
      if m.attempt < 3 and not (select fixed from trial.mood) then raise exception 'not yet'; end if;
    when 'reject' then
      if not (select fixed from trial.mood) then raise exception 'no order' using errcode = 'PH001'; end if;
    when 'away' then
      if not (select fixed from trial.mood) or m.id in (select id from trial.liars) then
        raise exception 'no answer' using errcode = 'PH002', detail = 'bank';
      end if;
    when 'block' then perform pg_advisory_xact_lock(4711);
    when 'slow' then perform pg_sleep(0.01);
    when 'wait' then perform pg_sleep(0.5);
    when 'kill' then perform pg_terminate_backend(pg_backend_pid());
    when 'crash' then copy (select 1) to program 'kill -9 $PPID';
    when 'flaky' then
      if random() < 0.3 then raise exception 'not in this order' using errcode = '40001'; end if;
    when 'cross' then
      for turn in 0..1 loop
        update trial.pair set n = n + 1 where id = ((body ->> 'n')::int + turn) % 2;
        perform pg_sleep(0.005);
      end loop;
    when 'scratch' then create temporary table scratch (n integer) on commit drop;
    when 'chain' then
      perform posthaste.append(m.topic, m.payload, key => 'k0', headers => posthaste.caused(m, '{"type": "quiet"}'));
    when 'quiet' then
      perform posthaste.append(m.topic, m.payload, key => 'k1', headers => jsonb_build_object('type', 'order'));
    else null;
  end case;
end $$;