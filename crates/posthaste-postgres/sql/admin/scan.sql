-- A window of the log behind a number: how many rows a sink has not handled in it, and how old they are.
-- The window is a number of rows, whatever the filter selects of them, so its cost does not grow with the
-- backlog. $3 and $4 are the lanes' first slots and their positions.
select count(*) as scanned,
       max(s.seq) as reached,
       count(*) filter (where s.pending) as pending,
       coalesce(sum(s.age) filter (where s.pending), 0)::float8 as ages,
       coalesce(max(s.age) filter (where s.pending), 0)::float8 as oldest
  from (select seq, extract(epoch from statement_timestamp() - appended_at) as age,
               seq > ($4::bigint[])[width_bucket(slot, $3::smallint[])]/*condition*/ as pending
          from (select seq, slot, topic, appended_at from posthaste.outbox
                 where seq > $1 order by seq limit $2) w) s
