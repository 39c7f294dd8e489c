-- Why letters died, the most frequent cause first. SQLite takes the other columns from the row of the maximum.
select fingerprint, count(*) as count, disposition, error_code, error, letter, min(dead_at) as first_at, max(dead_at) as last_at
  from posthaste_inbox_dead_letters
 where /*condition*/
 group by fingerprint
 order by count desc, fingerprint
