-- The ring: what the sequence says, what the bookkeeping says, and what lies ahead.
select r.turn, pg_sequence_last_value('posthaste.outbox_segment'::regclass)::bigint as current,
       (select turn is not null from posthaste.segments s
         where s.segment = pg_sequence_last_value('posthaste.outbox_segment'::regclass) % 8 + 1) as next_used,
       (select string_agg(audit_note, '; ' order by segment) from posthaste.segments) as audit_notes
  from posthaste.ring r
