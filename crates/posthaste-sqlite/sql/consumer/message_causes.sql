-- What a consumer's deferred messages wait for, the most frequent first, with the error of the last of them.
with causes as (
  select consumer, reason, error_code, count(*) as count, min(seq) as first, max(seq) as last, min(deferred_at) as oldest_at,
         min(due_at) as due_at
    from posthaste_inbox_deferred
   where /*condition*/
   group by consumer, reason, error_code
)
select c.*, (select d.last_error from posthaste_inbox_deferred d where d.seq = c.last) as error
  from causes c
 order by c.count desc, c.first
