-- Whether the row that `look.sql` met was one of an earlier look. A statement of its own: the look may have waited for
-- that one to commit, and its snapshot is older.
select exists (select from posthaste.gateway_commits where id = $1) as fenced
