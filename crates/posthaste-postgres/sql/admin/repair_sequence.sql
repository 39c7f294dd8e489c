-- Numbers go on above everything that was ever spoken of. setval is not transactional: it comes last,
-- only upwards, and with room for whatever is drawn between looking and setting.
select setval('posthaste.outbox_seq', greatest($1, pg_sequence_last_value('posthaste.outbox_seq'::regclass)) + 10000)
