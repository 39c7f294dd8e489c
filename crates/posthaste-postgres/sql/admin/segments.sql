-- The ring. Sealed: no running transaction can still write to it. Sizes come from the file system.
select s.segment,
       case when s.segment = pg_sequence_last_value('posthaste.outbox_segment'::regclass) then 'current'
            when s.turn is null then 'empty'
            when s.seal_xid < pg_snapshot_xmin(pg_current_snapshot()) then 'sealed'
            else 'closed' end as state,
       coalesce(pg_total_relation_size(c.oid), 0) as bytes,
       s.opened_at
  from posthaste.segments s
  left join pg_class c on c.relname = 'outbox_' || s.segment
                      and c.relnamespace = (select oid from pg_namespace where nspname = $1)
 order by s.segment
