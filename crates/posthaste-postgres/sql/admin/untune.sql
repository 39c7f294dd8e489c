-- Back to the file's, for these settings; for all of them where none is named.
delete from posthaste.controls where kind = 'outbox' and (name = any ($1) or cardinality($1) = 0)
