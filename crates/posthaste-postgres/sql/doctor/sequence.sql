-- The sequence that numbers events, and whether it belongs to whoever owns the log.
select s.cache_size, s.cycle, s.increment_by, s.max_value, s.sequenceowner::text as owner,
       (select tableowner::text from pg_tables where schemaname = $1 and tablename = 'ring') as log_owner
  from pg_sequences s where s.schemaname = $1 and s.sequencename = 'outbox_seq'
