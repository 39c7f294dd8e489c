-- Back to the file's, for the settings in a JSON list; for all of them where it is empty.
delete from posthaste_controls
 where kind = 'outbox' and (json_array_length(?1) = 0 or name in (select value from json_each(?1)))
