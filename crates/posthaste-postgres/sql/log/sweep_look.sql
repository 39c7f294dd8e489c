-- What a sweep could do, without a lock: the current segment's age and size, whether the next one is
-- empty, what is to be sealed, what is old enough to be audited.
select r.turn,
       pg_sequence_last_value('posthaste.outbox_segment'::regclass)::smallint as current,
       c.opened_at < clock_timestamp() - make_interval(secs => $1) as old,
       pg_table_size(format('posthaste.outbox_%s', c.segment)::regclass) as bytes,
       n.turn is null and (n.truncated_at is null or n.truncated_at < clock_timestamp() - interval '5 s') as next_empty,
       (select min(segment) from posthaste.segments where closed_at is not null and seal_xid is null) as to_seal,
       (select segment from posthaste.segments
         where seal_xid is not null and not closing and audit_note is null
           and closed_at < clock_timestamp() - make_interval(secs => $2)
           and pg_snapshot_xmin(pg_current_snapshot()) > seal_xid
         order by turn limit 1) as to_audit,
       (select segment from posthaste.segments where closing limit 1) as closing,
       (select count(*) from posthaste.segments where audit_note is not null)::int as audit_failures
  from posthaste.ring r
  join posthaste.segments c on c.segment = (r.turn - 1) % 8 + 1
  join posthaste.segments n on n.segment = r.turn % 8 + 1
